"""What children have missed: asks that they tell of when they are back, and orders still to follow.

A parent cannot know what a child does that is late. It notes the child as "late", and learns more
from the next answer that comes: with it a child says which asks it has ended, and who was missing
below it in them.

A transport holds orders that were not followed in memory, and sends them when a child is back. A
parent that is started again hands them to its new transport. A child that has followed one
meanwhile knows its key, and does not follow it again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from covey.deployed.node.disk import PENDING_ORDERS, Disk
from covey.deployed.transport.transport import AskKey, Seat, Status, Transport

ENDED = 32
"""How many asks a node remembers to have ended."""
_FOLDED = 128
"""How many missing nodes of earlier asks it remembers besides."""
_BELOW = 128
"""How many missing nodes of all ended asks, for each node of a subtree; a parent takes more."""
_MOST = 256
"""How many missed asks of a child are remembered; a parent takes as many corrections."""


class Missing(NamedTuple):
    """A node that did not answer an ask in time, or not well.

    "late": it has run the program, but its answer does not count. "absent": it never got the ask.
    "bad": its answer was refused, and it is taken to have no part in the ask. A later entry
    corrects it where the node on this seat has run the program.
    """

    round: int
    lane: str
    path: int
    tier: str
    number: int
    status: Status


@dataclass
class MissedAsks:
    """The asks that each child has missed since it last answered one, the oldest first.

    Only those are remembered that the child may have run: it was late, its answer was bad, or the
    ask may have been sent before this node was started again, which then found the seat empty.
    """

    _by_child: dict[Seat, list[tuple[str, Missing]]] = field(default_factory=dict)
    _first: tuple[int, int] | None = None
    """(round, attempt) of the first ask since this node was started."""

    @staticmethod
    def read(facts: Sequence[Any]) -> MissedAsks:
        """The inverse of `facts`."""
        out = MissedAsks()
        for key, values in facts:
            entry = Missing(*values)
            out._by_child.setdefault(entry.number, []).append((key, entry))
        return out

    def facts(self) -> list[Any]:
        """What the disk is to remember, as JSON can hold it."""
        entries = [pair for pairs in self._by_child.values() for pair in pairs]
        return [list(pair) for pair in entries]

    def __contains__(self, child: Seat) -> bool:
        return child in self._by_child

    def ask(self, key: AskKey) -> None:
        """Children are asked."""
        if self._first is None:
            self._first = (key.round, key.attempt)

    def add(self, key: AskKey, entry: Missing) -> None:
        """A child has missed an ask."""
        if entry.status == "absent" and (key.round, key.attempt) != self._first:
            return  # nobody has ever sent it
        entries = self._by_child.setdefault(entry.number, [])
        entries.append((str(key), entry))
        del entries[:-_MOST]

    def settle(self, child: Seat, ended: Sequence[Any]) -> list[Missing]:
        """As `corrections`; they are then on their way, and the missed asks are forgotten."""
        out = self.corrections(child, ended)
        self._by_child.pop(child, None)
        return out

    def corrections(self, child: Seat, ended: Sequence[Any]) -> list[Missing]:
        """What was missed in truth, from the (key, who was missing below) that a child has ended.

        A child that was late never got an ask that it has not ended. It may have ended one that it
        answered badly, or was taken to be absent from.
        """
        missing_by_key = dict(ended)
        missed = self._by_child.get(child, [])
        if len(ended) >= ENDED:  # those before the first that it remembers were answered
            oldest, _ = ended[0]
            keys = [key for key, _ in missed]
            if oldest in keys:
                missed = missed[keys.index(oldest) :]
        out: list[Missing] = []
        for key, entry in missed:
            below = [Missing(*values) for values in missing_by_key.get(key, [])]
            if entry.lane != "train":  # an answer with scores may correct earlier trainings
                out += below
            elif key in missing_by_key:
                if entry.status != "late":
                    out.append(entry._replace(status="late"))
                out += below
            elif entry.status == "late":
                out.append(entry._replace(status="absent"))
        return out


def remembered(ended: Sequence[Any], nodes: int) -> list[Any]:
    """The last of the (key, who was missing below) that a node has ended; it has `nodes` below.

    Who was missing in earlier ones is told with the first that stays: a parent that has missed the
    earlier ones has missed this one too. Of too many missing nodes the first are forgotten.

    >>> ended = [[f"key {number}", [number]] for number in range(40)]
    >>> remembered(ended, 5)[0]
    ['key 8', [0, 1, 2, 3, 4, 5, 6, 7, 8]]
    """
    out = [[key, list(missing)] for key, missing in ended[-ENDED:]]
    earlier = [entry for _, missing in ended[:-ENDED] for entry in missing]
    out[0][1] = [*earlier[-_FOLDED:], *out[0][1]]
    surplus = sum(len(missing) for _, missing in out) - _BELOW * nodes
    for pair in out[:-1]:
        dropped = max(0, min(surplus, len(pair[1])))
        del pair[1][:dropped]
        surplus -= dropped
    return out


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
    _orders: dict[AskKey, tuple[str, dict[Seat, bytes]]] = field(default_factory=dict)
    """The label of the rows that an order holds or releases, and what each child has to get."""

    def __post_init__(self) -> None:
        for key, label, data, seats in self.disk.fact(PENDING_ORDERS) or []:
            request = b64decode(data)
            self._put(AskKey.from_dict(key), label, dict.fromkeys(seats, request))

    def hand_to(self, transport: Transport) -> None:
        """Let a new transport send them."""
        for key, (_, requests) in self._orders.items():
            transport.owe(key, requests)

    def add(
        self,
        key: AskKey,
        label: str,
        requests: Mapping[Seat, bytes],
        before: int,
    ) -> None:
        """Some children did not follow an order in time; the disk knows it when this returns.

        Rounds before `before` are good.
        """
        if not requests:
            return
        for seat in requests:  # of its earlier ones the last of a good round stays
            earlier = [
                other
                for other, (held, owing) in self._orders.items()
                if held == label and seat in owing
            ]
            good = [other for other in earlier if other.round < before]
            last_good = max(good, key=_time, default=None)
            self._drop(seat, [other for other in earlier if other != last_good])
        self._put(key, label, requests)
        self.disk.note(**self.facts())

    def settle(self, seat: Seat) -> None:
        """A child has answered a later request, so it has followed all orders before."""
        self._drop(seat, list(self._orders))

    def facts(self) -> dict[str, Any]:
        """What the disk is to remember; children with the same request share it."""
        entries = []
        for key, (label, requests) in self._orders.items():
            seats: dict[bytes, list[Seat]] = {}
            for seat, request in requests.items():
                seats.setdefault(request, []).append(seat)
            for request, owing in seats.items():
                entries.append([key.as_dict(), label, b64encode(request).decode(), owing])
        return {PENDING_ORDERS: entries}

    def _put(self, key: AskKey, label: str, requests: Mapping[Seat, bytes]) -> None:
        _, owing = self._orders.setdefault(key, (label, {}))
        owing.update(requests)

    def _drop(self, seat: Seat, keys: Sequence[AskKey]) -> None:
        """A child owes these orders no more."""
        for key in keys:
            _, owing = self._orders[key]
            owing.pop(seat, None)
            if not owing:
                del self._orders[key]


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
