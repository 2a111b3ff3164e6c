"""The asks that children have missed, and what they say about them when they are back.

A parent cannot know what a child does that is late. It notes the child as "late", and learns more
from the next answer that comes: with it a child says which asks it has ended, and who was missing
below it in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from covey.deployed.transport.transport import AskKey, Seat, Status

ENDED = 32
"""How many asks a node remembers to have ended."""
_FOLDED = 128
"""How many missing nodes of earlier asks it remembers besides."""
_BELOW = 128
"""How many missing nodes of all ended asks, for each node of a subtree; a parent takes more."""
_MOST = 256
"""How many missed asks of a child are remembered; a parent takes as many corrections."""


@dataclass(frozen=True)
class Missing:
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
        return [[key, list(astuple(entry))] for key, entry in entries]

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
                    out.append(replace(entry, status="late"))
                out += below
            elif entry.status == "late":
                out.append(replace(entry, status="absent"))
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
