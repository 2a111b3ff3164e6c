"""Orders that children have not followed yet, and those that they have, as disks remember them.

A transport holds such orders in memory, and sends them when a child is back. A parent that is
started again hands them to its new transport. A child that has followed one meanwhile knows its
key, and does not follow it again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.deployed.node.disk import PENDING_ORDERS, Disk
from covey.deployed.transport.transport import AskKey, Seat, Transport

_KEYS = 64  # of orders on one label in one round; an honest run has a few
_FOLLOWED = "followed orders"
"""The fact that tells, by label, when the last order was given, and the keys of that time."""


@dataclass
class PendingOrders:
    """The orders that some children did not follow: for each child, the last ones of each label.

    An order on a label replaces the earlier ones. A child that is away does not train, so it would
    hold the same row for each of them. But the round of the last one may be rolled back. So the
    last order of a good round stays too.
    """

    disk: Disk
    _requests: dict[AskKey, dict[Seat, bytes]] = field(default_factory=dict)
    """What each child still has to get, by the key of the order."""
    _labels: dict[AskKey, str] = field(default_factory=dict)
    """The label of the rows that an order holds or releases."""

    def __post_init__(self) -> None:
        for key, label, data, seats in self.disk.fact(PENDING_ORDERS) or []:
            request = b64decode(data)
            self._put(AskKey.from_dict(key), label, dict.fromkeys(seats, request))

    def hand_to(self, transport: Transport) -> None:
        """Let a new transport send them."""
        for key, requests in self._requests.items():
            transport.owe(key, requests)

    def add(self, key: AskKey, label: str, requests: Mapping[Seat, bytes], before: int) -> None:
        """Some children did not follow an order in time; the disk knows it when this returns.

        Rounds before `before` are good.
        """
        if not requests:
            return
        for seat in requests:  # of its earlier ones the last of a good round stays
            earlier = []
            for other, owing in self._requests.items():
                if self._labels[other] == label and seat in owing:
                    earlier.append(other)
            good = [other for other in earlier if other.round < before]
            last_good = max(good, key=_time, default=None)
            for other in earlier:
                if other != last_good:
                    self._drop(other, [seat])
        self._put(key, label, requests)
        self.disk.note(**self.facts())

    def settle(self, seat: Seat) -> None:
        """A child has answered a later request, so it has followed all orders before."""
        for key in list(self._requests):
            self._drop(key, [seat])

    def facts(self) -> dict[str, Any]:
        """What the disk is to remember; children with the same request share it."""
        entries = []
        for key, requests in self._requests.items():
            seats: dict[bytes, list[Seat]] = {}
            for seat, request in requests.items():
                seats.setdefault(request, []).append(seat)
            for request, owing in seats.items():
                text = b64encode(request).decode()
                entries.append([key.as_dict(), self._labels[key], text, owing])
        return {PENDING_ORDERS: entries}

    def _put(self, key: AskKey, label: str, requests: Mapping[Seat, bytes]) -> None:
        self._labels[key] = label
        self._requests.setdefault(key, {}).update(requests)

    def _drop(self, key: AskKey, seats: Iterable[Seat]) -> None:
        """These children owe an order no more."""
        requests = self._requests[key]
        for seat in seats:
            requests.pop(seat, None)
        if not requests:
            del self._requests[key]
            del self._labels[key]


@dataclass(frozen=True)
class FollowedOrders:
    """The last orders that a node has followed, by their label."""

    disk: Disk

    def includes(self, label: str, key: AskKey) -> bool:
        """Whether this order was followed, or a later one on the same label."""
        last_time, last_keys = self._last(label)
        if last_time is None or last_time[0] != key.run or last_time < _time(key):
            return False
        return last_time > _time(key) or str(key) in last_keys

    def add(self, label: str, key: AskKey) -> None:
        """An order was followed; the disk knows it when this returns."""
        last_time, last_keys = self._last(label)
        keys = [str(key)]
        if last_time == _time(key):
            keys = [*last_keys, str(key)][-_KEYS:]
        self.disk.note(**{_FOLLOWED: {**self._all(), label: [_time(key), keys]}})

    def forget(self) -> None:
        """Follow every order that comes: the last ones were of rounds that are none."""
        self.disk.note(**{_FOLLOWED: {}})

    def _all(self) -> dict[str, Any]:
        return self.disk.fact(_FOLLOWED) or {}

    def _last(self, label: str) -> tuple[list[Any] | None, list[str]]:
        """When the last order on a label was given, and the keys of the orders of that time."""
        time, keys = self._all().get(label, (None, []))
        return time, keys


def _time(key: AskKey) -> list[Any]:
    """Grows within a run: a round that is run again is a later attempt."""
    return [key.run, key.attempt, key.round]
