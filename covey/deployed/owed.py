"""Which answers the seats owe to their parent: what was asked, and what was answered since."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from covey.deployed.transport import AskKey, Seat
from covey.deployed.wire import Head, Reply
from covey.errors import DecodeError

REMEMBERED = 64
"""Keys of a seat; an answer to an older one is a lie."""


@dataclass
class Owed:
    """The keys that were asked of every seat, and whether each has its answer."""

    _asked: dict[Seat, OrderedDict[AskKey, bool]] = field(default_factory=dict)

    def ask(self, seat: Seat, key: AskKey) -> None:
        """A seat owes an answer to this key from now on."""
        keys = self._asked.setdefault(seat, OrderedDict())
        keys[key] = False
        keys.move_to_end(key)
        while len(keys) > REMEMBERED:
            keys.popitem(last=False)

    def settle(self, seat: Seat, key: AskKey) -> None:
        """A seat has answered this key."""
        self._asked[seat][key] = True

    def lie(self, head: Head | None, seats: Collection[Seat]) -> str | None:
        """Why a reply from a process with these seats is none that is owed; None: it is.

        What is no reply at all is a DecodeError.
        """
        if not isinstance(head, Reply):
            raise DecodeError(f"a {type(head).__name__} where a Reply should come.")
        key = head.key.asked()
        if head.seat not in seats:
            return f"an answer for the seat {head.seat}"
        answered = self._asked.get(head.seat, OrderedDict()).get(key)
        if answered is None:
            return f"an answer to {key}, which was not asked"
        if answered:
            return f"a second answer to {key}"
        return None
