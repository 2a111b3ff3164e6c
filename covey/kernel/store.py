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
ColumnKey = tuple[str, str]
"""The tier and the name of a column."""
KeptRows = tuple[Tensor, Tensor, Tensor]
"""(ids, rounds, rows) of the nodes that have a row."""
PRESENT = "present"
"""The label of what nodes keep now, beside those of held versions."""


@dataclass(frozen=True, eq=False)
class Version:
    """The slot of each node's row at one moment, and the round it was kept in, [nodes] each.

    A version is never changed in place.
    """

    slot: Tensor
    round: Tensor

    @staticmethod
    def empty(nodes: int) -> Version:
        """No node has a row."""
        never = torch.full((nodes,), NEVER)
        return Version(never, never.clone())

    def copy(self) -> Version:
        """The same numbers in memory of their own."""
        return Version(self.slot.clone(), self.round.clone())

    def ids(self, nodes: slice) -> Tensor:
        """The ids of those among some nodes that have a row, counted from the first of them."""
        have = self.slot[nodes] != NEVER
        return have.nonzero()[:, 0]

    def updated(self, ids: Tensor, slot: Tensor | int, round: Tensor | int) -> Version:
        """The same but for these nodes."""
        slots = self.slot.clone()
        rounds = self.round.clone()
        slots[ids] = slot
        rounds[ids] = round
        return Version(slots, rounds)


@dataclass(frozen=True, eq=False)
class Entry:
    """One version in a checkpoint: the nodes that have a row and the round of each.

    `places` are the positions of their rows among the saved rows.
    """

    ids: Tensor
    rounds: Tensor
    places: Tensor


@dataclass(frozen=True, eq=False)
class Frozen:
    """A column, or some nodes' part of it, as a checkpoint holds it.

    Every row is there once, however many versions share it.
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
        self._good = self.version().copy()
        self._free = torch.empty(0, dtype=torch.int64)

    def put(self, ids: Tensor, rows: Tensor, round: int) -> None:
        """Rows for these nodes, visible now, kept for good at `commit`."""
        if not self.takes(rows):
            holds = _form(self.rows)
            got = _form(rows)
            text = f"kept rows of shape and type {got} under a name that holds {holds}"
            raise ProgramError(f"{text}; use another name.")
        unchanged = self.slot[ids] == self._good.slot[ids]
        stale = ids[unchanged]
        self.slot[stale] = self._take(len(stale))
        slots = self._on_device(self.slot[ids])
        self.rows.index_copy_(0, slots, rows)
        self.round[ids] = round

    def takes(self, rows: Tensor) -> bool:
        """Whether rows are of the shape and type of this column."""
        return _form(rows) == _form(self.rows)

    def get(self, ids: Tensor, default: Tensor | None, since: int) -> Tensor | None:
        """The rows of these nodes, `default` where none was kept in round `since` or later."""
        slots = self.slot[ids]
        fresh = (slots != NEVER) & (self.round[ids] >= since)
        if bool(fresh.all()):
            return self._rows_at(slots)
        if default is None:
            return None
        out = default.clone()
        positions = fresh.nonzero()[:, 0]
        rows = self._rows_at(slots[positions])
        out.index_copy_(0, self._on_device(positions), rows)
        return out

    def version(self, label: str = PRESENT) -> Version:
        """What nodes keep now, or a version that is held."""
        if label == PRESENT:
            return Version(self.slot, self.round)
        return self.held.get(label) or Version.empty(len(self.slot))

    def read(self, label: str, nodes: slice) -> KeptRows:
        """(ids, rounds, rows) of those among some nodes that have a row in a version."""
        version = self.version(label)
        first = nodes.start or 0
        ids = version.ids(nodes) + first
        rows = self._rows_at(version.slot[ids])
        return ids, version.round[ids], rows

    def hold(self, label: str, nodes: slice) -> None:
        """Hold what these nodes keep now, in place of what was held of them under this label."""
        ids = torch.arange(len(self.slot))[nodes]
        version = self.version(label)
        held = version.updated(ids, self.slot[ids], self.round[ids])
        self.held = {**self.held, label: held}

    def release(self, label: str, nodes: slice) -> None:
        """Hold nothing of these nodes under this label any more."""
        if label in self.held:
            ids = torch.arange(len(self.slot))[nodes]
            released = self.held[label].updated(ids, NEVER, NEVER)
            self.held = {**self.held, label: released}

    def freeze(self, nodes: slice) -> tuple[Tensor, dict[str, Entry]]:
        """The rows of these nodes in all versions, each once, and the versions."""
        first = nodes.start or 0
        labels = [PRESENT, *sorted(self.held)]
        ids = []
        rounds = []
        slots = []
        for label in labels:
            version = self.version(label)
            numbers = version.ids(nodes)
            ids.append(numbers)
            rounds.append(version.round[numbers + first])
            slots.append(version.slot[numbers + first])
        unique, positions = _by_first_appearance(torch.cat(slots))
        counts = [len(numbers) for numbers in ids]
        places = torch.split(positions, counts)
        entries = {}
        for k, label in enumerate(labels):
            entries[label] = Entry(ids[k], rounds[k], places[k].clone())
        return self._rows_at(unique), entries

    def thaw(self, first: int, rows: Tensor, entries: Mapping[str, Entry]) -> None:
        """Take over what `freeze` gave for the nodes from `first` on."""
        slots = self._take(len(rows))
        rows = rows.to(self.rows.device)
        self.rows.index_copy_(0, self._on_device(slots), rows)
        for label, entry in entries.items():
            ids = entry.ids + first
            version = self.version(label)
            version = version.updated(ids, slots[entry.places], entry.rounds)
            if label == PRESENT:
                self._set(version)
            else:
                self.held = {**self.held, label: version}
        self.commit()

    def commit(self) -> None:
        """What was put since the last commit becomes the good state."""
        self._good = self.version().copy()
        self._free = self._unused()

    def rollback(self) -> None:
        """Back to the last commit."""
        self._set(self._good.copy())
        self._free = self._unused()

    def _set(self, version: Version) -> None:
        """Make a version that which nodes keep now."""
        self.slot = version.slot
        self.round = version.round

    def _rows_at(self, slots: Tensor) -> Tensor:
        """A copy of the rows in these slots."""
        return torch.index_select(self.rows, 0, self._on_device(slots))

    def _on_device(self, numbers: Tensor) -> Tensor:
        """The numbers on the device of the rows, without waiting for what a GPU is doing."""
        return numbers.to(self.rows.device, non_blocking=True)

    def _unused(self) -> Tensor:
        """The slots that neither a good row nor a held one lies in."""
        used = torch.zeros(len(self.rows), dtype=torch.bool)
        for version in (self._good, *self.held.values()):
            slots = version.slot[version.slot != NEVER]
            used[slots] = True
        return (~used).nonzero()[:, 0]

    def _take(self, count: int) -> Tensor:
        """Take `count` free slots; the column grows where there are too few."""
        if len(self._free) < count:
            size = len(self.rows)
            more = max(count - len(self._free), size // 2)
            memory = self.rows.new_empty((more, *self.rows.shape[1:]))
            self.rows = torch.cat([self.rows, memory])
            new_slots = torch.arange(size, size + more)
            self._free = torch.cat([self._free, new_slots])
        taken = self._free[:count]
        self._free = self._free[count:]
        return taken


def _form(rows: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    """The shape of one row and its type."""
    return tuple(rows.shape[1:]), rows.dtype


def _by_first_appearance(slots: Tensor) -> tuple[Tensor, Tensor]:
    """The different slots in the order in which they appear first, and each slot's position there.

    Not sorted: the numbers of slots depend on what happened before.
    """
    numbers = slots.numpy()
    unique, index, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(index)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    positions = rank[inverse.reshape(-1)]
    return torch.from_numpy(unique[order]), torch.from_numpy(positions)


@dataclass
class Store:
    """The columns of every tier."""

    sizes: dict[str, int]
    columns: dict[ColumnKey, Column] = field(default_factory=dict)
    _good_holds: dict[ColumnKey, Mapping[str, Version]] = field(default_factory=dict)

    def put(self, tier: str, name: str, ids: Tensor, rows: Tensor, round: int) -> None:
        """Rows for some nodes of a tier; a first row of a name opens its column."""
        column = self._column(tier, name, rows)
        column.put(ids, rows, round)

    def _column(self, tier: str, name: str, rows: Tensor) -> Column:
        """The column of a name, which is opened for rows like these if there is none."""
        key = (tier, name)
        if key not in self.columns:
            self.columns[key] = Column(self.sizes[tier], rows)
        return self.columns[key]

    def get(
        self,
        tier: str,
        name: str,
        ids: Tensor,
        default: Tensor | None,
        since: int,
    ) -> Tensor | None:
        """The rows of some nodes, `default` where there is none as young as `since`."""
        column = self.columns.get((tier, name))
        if column is None:
            return default
        return column.get(ids, default, since)

    def rounds(self, tier: str, name: str, ids: Tensor) -> Tensor:
        """The round in which each of these nodes kept its row, NEVER where none did."""
        column = self.columns.get((tier, name))
        if column is None:
            return torch.full_like(ids, NEVER)
        return column.round[ids]

    def commit(self) -> None:
        """What nodes keep now, and what is held, is good."""
        self._good_holds = {key: column.held for key, column in self.columns.items()}
        for column in self.columns.values():
            column.commit()

    def rollback(self) -> None:
        """Go back to the last commit."""
        for key, column in self.columns.items():
            # The held versions first, since a rollback frees all other slots.
            column.held = self._good_holds.get(key, {})
            column.rollback()

    def dump(self) -> Iterator[tuple[str, str, Tensor, Tensor, Tensor]]:
        """(tier, name, ids, rounds, rows) of what every column holds now."""
        for (tier, name), column in sorted(self.columns.items()):
            yield tier, name, *column.read(PRESENT, slice(0, None))

    def freeze(self, nodes: Mapping[str, slice]) -> Iterator[Frozen]:
        """Every column with its held versions, of these nodes of each tier.

        The ids of the entries count from 0.
        """
        for (tier, name), column in sorted(self.columns.items()):
            yield Frozen(tier, name, *column.freeze(nodes[tier]))

    def thaw(self, frozen: Frozen, nodes: slice) -> None:
        """The inverse of one entry of `freeze`; an invalid entry is a ValueError."""
        _check_frozen(frozen, nodes.stop - nodes.start)
        rows = frozen.rows
        column = self._column(frozen.tier, frozen.name, rows)
        if not column.takes(rows):
            key = (frozen.tier, frozen.name)
            raise ValueError(f"{key}: rows {tuple(rows.shape)} {rows.dtype}")
        column.thaw(nodes.start, rows, frozen.entries)


def _check_frozen(frozen: Frozen, nodes: int) -> None:
    """Raise ValueError unless ids, rounds and places fit together and every number is finite."""
    column = f"{frozen.tier} {frozen.name}"
    rows = frozen.rows
    if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
        raise ValueError(f"{column}: some saved numbers are not finite")
    for label, entry in frozen.entries.items():
        _check_entry(f"{column}, {label}", entry, nodes, len(rows))


def _check_lists(name: str, *lists: Tensor) -> None:
    """Raise ValueError unless these are lists of whole numbers, equally long."""
    for numbers in lists:
        alike = numbers.shape == lists[0].shape
        if not alike or numbers.ndim != 1 or numbers.dtype != torch.int64:
            raise ValueError(f"{name}: ids, rounds and places are not three lists of equal length")


def _check_entry(name: str, entry: Entry, nodes: int, rows: int) -> None:
    """Raise ValueError unless an entry is one of `nodes` nodes and `rows` rows."""
    _check_lists(name, entry.ids, entry.rounds, entry.places)
    if not len(entry.ids):
        return
    rising = bool((entry.ids.diff() > 0).all())
    first = int(entry.ids[0])
    last = int(entry.ids[-1])
    if not rising or not 0 <= first <= last < nodes:
        raise ValueError(f"{name}: ids are not different, rising and below {nodes}")
    earliest = int(entry.rounds.min())
    if earliest < 0:
        raise ValueError(f"{name}: a row kept in round {earliest + 1}")
    highest = int(entry.places.max())
    if int(entry.places.min()) < 0 or highest >= rows:
        raise ValueError(f"{name}: places up to {highest} of {rows} rows")
