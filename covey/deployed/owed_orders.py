"""Orders that children have not followed yet, as a parent's disk remembers them.

A transport holds such orders in memory, and sends them when a child is back. A parent that is
started again hands them to its new transport. A child that has followed one meanwhile knows its
key, and does not follow it again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.deployed.disk import OWED_ORDERS, Disk
from covey.deployed.transport import AskKey, Seat, Transport

_REMEMBERED = 32
"""Orders of a parent, as many as its children know that they have followed."""


@dataclass
class OwedOrders:
    """The last orders that some children did not follow."""

    disk: Disk
    _requests: dict[AskKey, dict[Seat, bytes]] = field(default_factory=dict)
    """What each child still has to get, by the key of the order."""

    def __post_init__(self) -> None:
        for key, data, seats in self.disk.fact(OWED_ORDERS) or []:
            request = b64decode(data)
            self._of(AskKey.from_dict(key)).update(dict.fromkeys(seats, request))

    def hand_to(self, transport: Transport) -> None:
        """Let a new transport send them."""
        for key, requests in self._requests.items():
            transport.owe(key, requests)

    def add(self, key: AskKey, requests: Mapping[Seat, bytes]) -> None:
        """Some children did not follow an order in time; the disk knows it when this returns."""
        if not requests:
            return
        self._of(key).update(requests)
        while len(self._requests) > _REMEMBERED:
            del self._requests[next(iter(self._requests))]
        self.disk.note(**self.facts())

    def settle(self, seat: Seat) -> None:
        """A child has answered a later request, so it has followed all orders before."""
        for key in list(self._requests):
            requests = self._requests[key]
            requests.pop(seat, None)
            if not requests:
                del self._requests[key]

    def facts(self) -> dict[str, Any]:
        """What the disk is to remember; children with the same request share it."""
        entries = []
        for key, requests in self._requests.items():
            seats: dict[bytes, list[Seat]] = {}
            for seat, request in requests.items():
                seats.setdefault(request, []).append(seat)
            for request, owing in seats.items():
                entries.append([key.as_dict(), b64encode(request).decode(), owing])
        return {OWED_ORDERS: entries}

    def _of(self, key: AskKey) -> dict[Seat, bytes]:
        return self._requests.setdefault(key, {})
