"""What a parent decides of who dials in, and what its disk remembers of them."""

from __future__ import annotations

from covey.deployed.node.disk import Disk
from covey.deployed.transport.transport import Admission, Seat

_EVICTED = "evicted"


class Door:
    """The admission of a parent: its disk decides, and its node once it is made."""

    def __init__(self, disk: Disk) -> None:
        self.node: Admission | None = None
        self._disk = disk

    def refusal(self, seat: Seat, last_key: str | None) -> str | None:
        """Why a seat cannot be taken with a disk whose last written key is this; None: it can."""
        if self.node is not None:
            return self.node.refusal(seat, last_key)
        return self._disk.behind(seat, last_key)

    @property
    def evicted(self) -> frozenset[str]:
        """The names of the seats that are refused, also after a restart."""
        return frozenset(self._disk.fact(_EVICTED) or [])

    def remember(self, evicted: frozenset[str]) -> None:
        """These seats are refused from now on, and no others."""
        self._disk.note(**{_EVICTED: sorted(evicted)})
