"""What nodes remember: one column per (tier, name), holding rows only for the nodes that kept one.

A round writes into fresh slots and its end swaps them in, so that a round that fails leaves the
last good rows untouched. For the same reason a version of a column can be held for the price of an
index: its slots are not written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from covey.errors import ProgramError

NEVER = -1
PRESENT = "present"
"""The label of what nodes keep now, beside those of held versions."""


@dataclass(frozen=True, eq=False)
class Version:
    """The slot of each node's row at one moment and the round it was kept in, [nodes] each; never
    changed in place.
    """

    slot: Tensor
    round: Tensor

    @staticmethod
    def empty(nodes: int) -> Version:
        """No node has a row."""
        return Version(torch.full((nodes,), NEVER), torch.full((nodes,), NEVER))

    def updated(self, ids: Tensor, slot: Tensor | int, round: Tensor | int) -> Version:
        """The same but for these nodes."""
        slots = self.slot.clone()
        rounds = self.round.clone()
        slots[ids] = slot
        rounds[ids] = round
        return Version(slots, rounds)


@dataclass(frozen=True, eq=False)
class Entry:
    """One version in a checkpoint: the nodes that have a row, the round of each, and its place
    among the saved rows.
    """

    ids: Tensor
    rounds: Tensor
    places: Tensor


@dataclass(frozen=True, eq=False)
class Frozen:
    """A column, or some nodes' part of it, as a checkpoint holds it: every row once, however many
    versions share it.
    """

    tier: str
    name: str
    rows: Tensor
    entries: dict[str, Entry]


class Column:
    """The rows one name has on one tier, with the round each was kept in."""

    def __init__(self, nodes: int, template: Tensor) -> None:
        self.rows = template.new_empty((0, *template.shape[1:]))
        self.slot = torch.full((nodes,), NEVER)
        self.round = torch.full((nodes,), NEVER)
        self.held: Mapping[str, Version] = {}
        self._good = (self.slot.clone(), self.round.clone())
        self._free = torch.empty(0, dtype=torch.int64)

    def put(self, ids: Tensor, rows: Tensor, round: int) -> None:
        """Rows for these nodes, visible now, kept for good at `commit`."""
        if rows.shape[1:] != self.rows.shape[1:] or rows.dtype != self.rows.dtype:
            had, got = (
                (tuple(self.rows.shape[1:]), self.rows.dtype),
                (tuple(rows.shape[1:]), rows.dtype),
            )
            raise ProgramError(
                f"kept rows of shape and type {got} under a name that holds {had}; use another name."
            )
        stale = ids[self.slot[ids] == self._good[0][ids]]
        self.slot[stale] = self._take(len(stale))
        self.rows.index_copy_(0, self._there(self.slot[ids]), rows)
        self.round[ids] = round

    def get(self, ids: Tensor, default: Tensor | None, since: int) -> Tensor | None:
        """The rows of these nodes, `default` where none was kept in round `since` or later."""
        fresh = (self.slot[ids] != NEVER) & (self.round[ids] >= since)
        if bool(fresh.all()):
            return torch.index_select(self.rows, 0, self._there(self.slot[ids]))
        if default is None:
            return None
        out = default.clone()
        where = fresh.nonzero()[:, 0]
        out.index_copy_(
            0,
            self._there(where),
            torch.index_select(self.rows, 0, self._there(self.slot[ids[where]])),
        )
        return out

    def version(self, label: str = PRESENT) -> Version:
        """What nodes keep now, or a version that is held."""
        if label == PRESENT:
            return Version(self.slot, self.round)
        return self.held.get(label) or Version.empty(len(self.slot))

    def read(self, label: str, nodes: slice) -> tuple[Tensor, Tensor, Tensor]:
        """(ids, rounds, rows) of those among some nodes that have a row in a version."""
        version = self.version(label)
        ids = (version.slot[nodes] != NEVER).nonzero()[:, 0] + (nodes.start or 0)
        rows = self.rows[self._there(version.slot[ids])]
        return ids, version.round[ids], rows

    def hold(self, label: str, nodes: slice) -> None:
        """Hold what these nodes keep now, in place of what was held of them under this label."""
        ids = torch.arange(len(self.slot))[nodes]
        held = self.version(label).updated(ids, self.slot[ids], self.round[ids])
        self.held = {**self.held, label: held}

    def release(self, label: str, nodes: slice) -> None:
        """Hold nothing of these nodes under this label any more."""
        if label in self.held:
            ids = torch.arange(len(self.slot))[nodes]
            self.held = {**self.held, label: self.held[label].updated(ids, NEVER, NEVER)}

    def freeze(self, nodes: slice) -> tuple[Tensor, dict[str, Entry]]:
        """The rows of these nodes in all versions, each once and in an order of their own, and the
        versions.
        """
        first = nodes.start or 0
        versions = {label: self.version(label) for label in (PRESENT, *sorted(self.held))}
        ids = {label: (v.slot[nodes] != NEVER).nonzero()[:, 0] for label, v in versions.items()}
        slots = torch.cat([versions[label].slot[ids[label] + first] for label in versions])
        unique, index, inverse = np.unique(slots.numpy(), return_index=True, return_inverse=True)
        order = np.argsort(
            index
        )  # by first appearance: slot numbers depend on what happened before
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        places = torch.split(
            torch.from_numpy(place[inverse.reshape(-1)]), [len(i) for i in ids.values()]
        )
        entries = {}
        for (label, version), where in zip(versions.items(), places, strict=True):
            entries[label] = Entry(ids[label], version.round[ids[label] + first], where.clone())
        return self.rows[self._there(torch.from_numpy(unique[order]))], entries

    def thaw(self, first: int, rows: Tensor, entries: Mapping[str, Entry]) -> None:
        """Take over what `freeze` gave for the nodes from `first` on."""
        slots = self._take(len(rows))
        self.rows.index_copy_(0, self._there(slots), rows.to(self.rows.device))
        for label, entry in entries.items():
            ids = entry.ids + first
            version = self.version(label).updated(ids, slots[entry.places], entry.rounds)
            if label == PRESENT:
                self.slot, self.round = version.slot, version.round
            else:
                self.held = {**self.held, label: version}
        self.commit()

    def commit(self) -> None:
        """What was put since the last commit becomes the good state."""
        self._good = (self.slot.clone(), self.round.clone())
        self._free = self._unused()

    def rollback(self) -> None:
        """Back to the last commit."""
        self.slot, self.round = self._good[0].clone(), self._good[1].clone()
        self._free = self._unused()

    def _there(self, numbers: Tensor) -> Tensor:
        """Beside the rows, without waiting for what a GPU is doing."""
        return numbers.to(self.rows.device, non_blocking=True)

    def _unused(self) -> Tensor:
        """The slots that neither a good row nor a held one lies in."""
        used = torch.zeros(len(self.rows), dtype=torch.bool)
        for slot in (self._good[0], *(version.slot for version in self.held.values())):
            used[slot[slot != NEVER]] = True
        return (~used).nonzero()[:, 0]

    def _take(self, count: int) -> Tensor:
        if len(self._free) < count:
            size = len(self.rows)
            more = max(count - len(self._free), size // 2)
            self.rows = torch.cat([self.rows, self.rows.new_empty((more, *self.rows.shape[1:]))])
            self._free = torch.cat([self._free, torch.arange(size, size + more)])
        taken, self._free = self._free[:count], self._free[count:]
        return taken


@dataclass
class Store:
    """The columns of every tier."""

    sizes: dict[str, int]
    columns: dict[tuple[str, str], Column] = field(default_factory=dict)
    _good_holds: dict[tuple[str, str], Mapping[str, Version]] = field(default_factory=dict)

    def put(self, tier: str, name: str, ids: Tensor, rows: Tensor, round: int) -> None:
        """Rows for some nodes of a tier; a first row of a name opens its column."""
        if (tier, name) not in self.columns:
            self.columns[tier, name] = Column(self.sizes[tier], rows)
        self.columns[tier, name].put(ids, rows, round)

    def get(
        self, tier: str, name: str, ids: Tensor, default: Tensor | None, since: int
    ) -> Tensor | None:
        """The rows of some nodes, `default` where there is none as young as `since`."""
        column = self.columns.get((tier, name))
        if column is None:
            return default
        return column.get(ids, default, since)

    def rounds(self, tier: str, name: str, ids: Tensor) -> Tensor:
        """The round in which each of these nodes kept its row, NEVER where none did."""
        column = self.columns.get((tier, name))
        return torch.full_like(ids, NEVER) if column is None else column.round[ids]

    def commit(self) -> None:
        """What nodes keep now, and what is held, is good."""
        self._good_holds = {key: column.held for key, column in self.columns.items()}
        for column in self.columns.values():
            column.commit()

    def rollback(self) -> None:
        """Go back to the last commit."""
        for key, column in self.columns.items():
            column.held = self._good_holds.get(
                key, {}
            )  # first, since a rollback frees all other slots
            column.rollback()

    def dump(self) -> Iterator[tuple[str, str, Tensor, Tensor, Tensor]]:
        """(tier, name, ids, rounds, rows) of what every column holds now."""
        for (tier, name), column in sorted(self.columns.items()):
            yield tier, name, *column.read(PRESENT, slice(0, None))

    def freeze(self, nodes: Mapping[str, slice]) -> Iterator[Frozen]:
        """Every column with its held versions, of these nodes of each tier, whose ids then count
        from 0.
        """
        for (tier, name), column in sorted(self.columns.items()):
            yield Frozen(tier, name, *column.freeze(nodes[tier]))

    def thaw(self, frozen: Frozen, nodes: slice) -> None:
        """The inverse of one entry of `freeze`; what cannot be such an entry is a ValueError."""
        _check_frozen(frozen, nodes.stop - nodes.start)
        key = (frozen.tier, frozen.name)
        if key not in self.columns:
            self.columns[key] = Column(self.sizes[frozen.tier], frozen.rows)
        column = self.columns[key]
        if frozen.rows.shape[1:] != column.rows.shape[1:] or frozen.rows.dtype != column.rows.dtype:
            raise ValueError(f"{key}: rows {tuple(frozen.rows.shape)} {frozen.rows.dtype}")
        column.thaw(nodes.start, frozen.rows, frozen.entries)


def _check_frozen(frozen: Frozen, nodes: int) -> None:
    """Raise ValueError unless ids, rounds and places fit together and every number is finite."""
    where = f"{frozen.tier} {frozen.name}"
    rows = frozen.rows
    if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
        raise ValueError(f"{where}: some saved numbers are not finite")
    for label, entry in frozen.entries.items():
        columns = (entry.ids, entry.rounds, entry.places)
        if any(
            c.dtype != torch.int64 or c.shape != entry.ids.shape or c.ndim != 1 for c in columns
        ):
            raise ValueError(
                f"{where}, {label}: ids, rounds and places are not three lists of equal length"
            )
        if not len(entry.ids):
            continue
        if not 0 <= int(entry.ids[0]) <= int(entry.ids[-1]) < nodes or bool(
            (entry.ids.diff() <= 0).any()
        ):
            raise ValueError(f"{where}, {label}: ids are not different, rising and below {nodes}")
        if int(entry.rounds.min()) < 0:
            raise ValueError(f"{where}, {label}: a row kept in round {int(entry.rounds.min()) + 1}")
        if not 0 <= int(entry.places.min()) <= int(entry.places.max()) < len(rows):
            raise ValueError(
                f"{where}, {label}: places up to {int(entry.places.max())} of {len(rows)} rows"
            )
