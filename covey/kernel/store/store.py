"""What nodes remember: one column per (tier, name), holding rows only for the nodes that kept one.

A round writes into fresh slots and its end swaps them in, so that a round that fails leaves the
last good rows untouched. For the same reason a version of a column can be held for the price of an
index: its slots are not written again. What a round touched is its undo list: a commit, a rollback
and holding a version cost what was touched, however many nodes there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import numpy as np
import torch
from torch import Tensor

from covey.errors import ProgramError
from covey.kernel.store.segments import RowForm, Segment, Segments, sync
from covey.kernel.store.slots import NEVER, Slots

__all__ = [
    "NEVER",
    "PRESENT",
    "Column",
    "ColumnKey",
    "Entry",
    "Frozen",
    "KeptRows",
    "SavedNodes",
    "Store",
]

ColumnKey = tuple[str, str]
"""The tier and the name of a column."""
KeptRows = tuple[Tensor, Tensor, Tensor]
"""(ids, rounds, rows) of the nodes that have a row."""
PRESENT = "present"
"""The label of what nodes keep now, beside those of held versions."""


_SMALL = 1024


class Changes:
    """The ids of changed nodes, in chunks in the order of time.

    The chunks are joined when they hold more ids than there are nodes, twice over. `since` may then
    name nodes that changed before: too many are allowed, too few are not.

    >>> changes = Changes(10)
    >>> changes.add(torch.tensor([3, 1]))
    >>> moment = changes.now
    >>> changes.add(torch.tensor([7, 3]))
    >>> changes.since(moment).tolist(), changes.since(0).tolist()
    ([3, 7], [1, 3, 7])
    """

    def __init__(self, nodes: int) -> None:
        self._most = 2 * nodes + _SMALL
        self._chunks: list[Tensor] = []
        self._length = 0
        self.now = 0
        """The present moment: a number that grows with every change."""

    def add(self, ids: Tensor) -> None:
        """These nodes change now."""
        if not len(ids):
            return
        self._chunks.append(ids.int())
        self._length += len(ids)
        self.now += 1
        if self._length > self._most:
            joined = torch.unique(torch.cat(self._chunks))
            self._chunks = [joined]
            self._length = len(joined)

    def since(self, moment: int) -> Tensor:
        """The ids of the nodes that changed since a moment, each once, in rising order."""
        first = self.now - len(self._chunks)
        chunks = self._chunks[max(0, moment - first) :]
        if moment >= self.now or not chunks:
            return torch.empty(0, dtype=torch.int64)
        ids: Tensor = torch.unique(torch.cat(chunks))
        return ids.long()


class Version:
    """The slot of each node's row, and the round it was kept in, int32 [nodes] each."""

    def __init__(self, nodes: int) -> None:
        self.slot = torch.full((nodes,), NEVER, dtype=torch.int32)
        self.round = torch.full((nodes,), NEVER, dtype=torch.int32)
        self.changes = Changes(nodes)

    def ids(self, nodes: slice) -> Tensor:
        """The ids of those among some nodes that have a row, counted from the first of them."""
        have = self.slot[nodes] != NEVER
        return have.nonzero()[:, 0]

    def slots(self, ids: Tensor) -> Tensor:
        """The slots of these nodes, int64 [n]."""
        return self.slot[ids].long()

    def rounds(self, ids: Tensor) -> Tensor:
        """The rounds of these nodes, int64 [n]."""
        return self.round[ids].long()

    def set(self, ids: Tensor, slots: Tensor, rounds: Tensor | int) -> None:
        """Other slots and rounds for these nodes."""
        self.slot[ids] = slots.int()
        if isinstance(rounds, Tensor):
            rounds = rounds.int()
        self.round[ids] = rounds
        self.changes.add(ids)


@dataclass(frozen=True, eq=False)
class _Undo:
    """What some nodes had in a version before it changed."""

    version: Version
    ids: Tensor
    slots: Tensor
    rounds: Tensor

    def apply(self) -> None:
        """Give it back."""
        self.version.set(self.ids, self.slots, self.rounds)


@dataclass(frozen=True, eq=False)
class SavedNodes:
    """Some nodes of a version whose rows stay where they are, [n] each."""

    ids: Tensor
    slots: Tensor
    rounds: Tensor


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

    def __init__(
        self,
        nodes: int,
        template: Tensor,
        folder: Path | None = None,
        saves: int = 0,
        form: RowForm = "dense",
    ) -> None:
        self.nodes = nodes
        self.segments = Segments(template, nodes, folder, form)
        self.present = Version(nodes)
        self.held: dict[str, Version] = {}
        self._held_at: dict[tuple[str, int], int] = {}
        self._undo: list[_Undo] = []
        self._new_labels: list[str] = []
        self._holds: list[tuple[tuple[str, int], int]] = []
        self.slots = Slots(saves)
        self._attached = 0  # how many rows were taken over where they lie
        self._touched = torch.zeros(nodes, dtype=torch.int32)
        self._transaction = 1

    @property
    def template(self) -> Tensor:
        """Empty rows of the shape and type of this column, [0, ...]."""
        return self.segments.template

    @property
    def capacity(self) -> int:
        """The number of rows that there is memory for."""
        return self.segments.capacity

    def put(self, ids: Tensor, rows: Tensor, round: int) -> None:
        """Rows for these nodes, visible now, kept for good at `commit`."""
        if not self.takes(rows):
            holds = _form(self.template)
            got = _form(rows)
            text = f"kept rows of shape and type {got} under a name that holds {holds}"
            raise ProgramError(f"{text}; use another name.")
        if not len(ids):
            return
        slots = self.present.slots(ids)
        written_now = self._touched[ids] == self._transaction
        in_place = written_now & (self.slots.references(slots) == 1)
        kinds = None
        if self.segments.has_kinds:
            kinds = self.segments.kinds(rows)
            in_place &= self.slots.kinds(slots) == kinds
        if not bool(in_place.all()):
            fresh = ~in_place
            if kinds is None:
                free = self._take(int(fresh.sum()))
            else:
                free = self._take_kinds(kinds[fresh])
            self._move(self.present, ids[fresh], free, round)
            slots = self.present.slots(ids)
        self.segments.write(slots, rows)
        self.present.round[ids] = round
        self._touched[ids] = self._transaction

    def takes(self, rows: Tensor) -> bool:
        """Whether rows are of the shape and type of this column."""
        return _form(rows) == _form(self.template)

    def get(self, ids: Tensor, default: Tensor | None, since: int) -> Tensor | None:
        """The rows of these nodes, `default` where none was kept in round `since` or later."""
        slots = self.find(ids, since)
        fresh = slots != NEVER
        if bool(fresh.all()):
            return self.segments.read(slots)
        if default is None:
            return None
        out = default.clone()
        positions = fresh.nonzero()[:, 0]
        rows = self.segments.read(slots[positions])
        out.index_copy_(0, self.segments.on_device(positions), rows)
        return out

    def find(self, ids: Tensor, since: int) -> Tensor:
        """The slots of the rows that nodes kept in round `since` or later, NEVER for the others.

        `read_into` copies the rows of such slots.
        """
        slots = self.present.slots(ids)
        return torch.where(self.present.round[ids] >= since, slots, NEVER)

    def read_into(self, slots: Tensor, out: Tensor) -> None:
        """Copy the rows in these slots, numbers on the device of the rows, without waiting."""
        self.segments.read_into(slots, out)

    def version(self, label: str = PRESENT) -> Version:
        """What nodes keep now, or a version that is held."""
        if label == PRESENT:
            return self.present
        return self.held.get(label) or Version(self.nodes)

    def read(self, label: str, nodes: slice) -> KeptRows:
        """(ids, rounds, rows) of those among some nodes that have a row in a version."""
        version = self.version(label)
        first = nodes.start or 0
        ids = version.ids(nodes) + first
        rows = self.segments.read(version.slots(ids))
        return ids, version.rounds(ids), rows

    def hold(self, label: str, nodes: slice) -> None:
        """Hold what these nodes keep now, in place of what was held of them under this label.

        It costs what has changed since they were held last.
        """
        first, stop, _ = nodes.indices(self.nodes)
        version = self._label(label)
        key = (label, first)
        before = self._held_at.get(key, 0)
        self._holds.append((key, before))
        self._held_at[key] = self.present.changes.now
        ids = self.present.changes.since(before)
        ids = ids[(ids >= first) & (ids < stop)]
        ids = ids[version.slot[ids] != self.present.slot[ids]]
        self._move(version, ids, self.present.slots(ids), self.present.rounds(ids))

    def release(self, label: str, nodes: slice) -> None:
        """Hold nothing of these nodes under this label any more."""
        if label not in self.held:
            return
        first, _, _ = nodes.indices(self.nodes)
        version = self.held[label]
        ids = version.ids(nodes) + first
        never = torch.full_like(ids, NEVER)
        self._move(version, ids, never, never)
        key = (label, first)
        self._holds.append((key, self._held_at.get(key, 0)))
        self._held_at[key] = 0

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
            rounds.append(version.rounds(numbers + first))
            slots.append(version.slots(numbers + first))
        unique, positions = _by_first_appearance(torch.cat(slots))
        counts = [len(numbers) for numbers in ids]
        places = torch.split(positions, counts)
        entries = {}
        for k, label in enumerate(labels):
            entries[label] = Entry(ids[k], rounds[k], places[k].clone())
        return self.segments.read(unique), entries

    def thaw(self, first: int, rows: Tensor, entries: Mapping[str, Entry]) -> None:
        """Take over what `freeze` gave for the nodes from `first` on."""
        slots = self._take_like(rows)
        self.segments.write(slots, rows.to(self.template.device))
        for label, entry in entries.items():
            version = self._label(label)
            self._move(version, entry.ids + first, slots[entry.places], entry.rounds)
        self.commit()
        self.slots.free(slots[self.slots.references(slots) == 0])

    def attach(
        self, first: int, segments: Sequence[tuple[int, Segment]], saved: Mapping[str, SavedNodes]
    ) -> None:
        """Take over rows where they lie, for the nodes from `first` on.

        `segments` come with the slot that their first row had when it was saved. They are read and
        never written: a checkpoint counts on them.
        """
        starts = torch.tensor([start for start, _ in segments], dtype=torch.int64)
        shift = []
        for start, segment in segments:
            shift.append(self.segments.capacity - start)
            self.segments.add(segment)
        self.slots.inherited = self.segments.capacity
        self.slots.make_room(self.segments.capacity)
        shifts = torch.tensor(shift, dtype=torch.int64)
        for label, entry in saved.items():
            version = self._label(label)
            number = torch.searchsorted(starts, entry.slots, right=True) - 1
            slots = entry.slots + shifts[number]
            self._move(version, entry.ids + first, slots, entry.rounds)
        self.commit()
        inherited = torch.arange(self.slots.inherited)
        self.slots.borrowed = int((self.slots.references(inherited) > 0).sum())
        self._attached = self.slots.borrowed

    def compact(self) -> None:
        """Copy the rows in files of another process, once half of them are out of use."""
        borrowed = self.slots.borrowed
        if not borrowed or 2 * borrowed > self._attached:
            return
        versions = [self.present, *self.held.values()]
        slots = torch.cat([version.slot for version in versions]).long()
        old = torch.unique(slots[(slots >= 0) & (slots < self.slots.inherited)])
        new = torch.empty_like(old)
        for part in torch.split(torch.arange(len(old)), self.segments.per_segment):
            rows = self.segments.read(old[part])
            new[part] = self._take_like(rows)
            self.segments.write(new[part], rows)
        for version in versions:
            inherited = (version.slot >= 0) & (version.slot < self.slots.inherited)
            ids = inherited.nonzero()[:, 0]
            where = torch.searchsorted(old, version.slots(ids))
            self._move(version, ids, new[where], version.rounds(ids))
        self.commit()

    def commit(self) -> None:
        """What was put since the last commit becomes the good state."""
        for undo in self._undo:
            self.slots.drop(undo.slots)
        self._end()

    def rollback(self) -> None:
        """Back to the last commit."""
        for undo in reversed(self._undo):
            self.slots.drop(undo.version.slots(undo.ids))
            undo.apply()
        for key, moment in reversed(self._holds):
            self._held_at[key] = moment
        for label in self._new_labels:
            del self.held[label]
        self._end()

    def _end(self) -> None:
        """Begin the next transaction."""
        self._undo.clear()
        self._holds.clear()
        self._new_labels.clear()
        self._transaction += 1

    def _label(self, label: str) -> Version:
        """The version of this label; a held one is made if there is none."""
        if label == PRESENT:
            return self.present
        if label not in self.held:
            self.held[label] = Version(self.nodes)
            self._new_labels.append(label)
        return self.held[label]

    def _move(self, version: Version, ids: Tensor, slots: Tensor, rounds: Tensor | int) -> None:
        """Other slots for these nodes of a version, until a rollback."""
        undo = _Undo(version, ids, version.slots(ids), version.rounds(ids))
        self._undo.append(undo)
        self.slots.use(slots)
        version.set(ids, slots, rounds)

    def _take_like(self, rows: Tensor) -> Tensor:
        """Free slots for these rows."""
        if not self.segments.has_kinds:
            return self._take(len(rows))
        return self._take_kinds(self.segments.kinds(rows))

    def _take_kinds(self, kinds: Tensor) -> Tensor:
        """Free slots of these kinds, [n]."""
        out = torch.empty_like(kinds)
        for kind in torch.unique(kinds).tolist():
            positions = (kinds == kind).nonzero()[:, 0]
            out[positions] = self._take(len(positions), kind)
        return out

    def _take(self, count: int, kind: int = 0) -> Tensor:
        """Take `count` free slots of a kind; the column grows where there are too few."""
        missing = count - self.slots.available(kind)
        if missing > 0:
            self.slots.add(self.segments.grow(missing, kind), kind)
        return self.slots.take(count, kind)


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


_DIRTY = 4
"""Files that are synced at once."""


@dataclass
class Store:
    """The columns of every tier."""

    sizes: dict[str, int]
    columns: dict[ColumnKey, Column] = field(default_factory=dict)
    folder: Path | None = None
    """Where files with rows lie; None: rows are in memory."""
    saves: int = 0
    """How many checkpoints were made of rows in files."""
    form: RowForm = "dense"
    """How rows lie in memory or in files."""
    _syncing: Thread | None = None
    _unsynced: list[OSError] = field(default_factory=list)

    def put(
        self,
        tier: str,
        name: str,
        ids: Tensor,
        rows: Tensor,
        round: int,
    ) -> None:
        """Rows for some nodes of a tier; a first row of a name opens its column."""
        column = self.opened(tier, name, rows)
        column.put(ids, rows, round)

    def opened(self, tier: str, name: str, rows: Tensor) -> Column:
        """The column of a name, which is opened for rows like these if there is none."""
        key = (tier, name)
        if key not in self.columns:
            self.columns[key] = Column(self.sizes[tier], rows, self.folder, self.saves, self.form)
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
        return column.present.rounds(ids)

    def commit(self) -> None:
        """What nodes keep now, and what is held, is good."""
        for column in self.columns.values():
            column.commit()
        if self.folder is not None:
            self._sync_beside()

    def saved(self, checkpoints: Collection[int]) -> None:
        """A checkpoint was made; these are the numbers of all that may be read again."""
        self.saves += 1
        for column in self.columns.values():
            column.slots.saved(checkpoints, column.segments.shared)

    def sync(self) -> None:
        """Wait until all rows are on the disk."""
        if self._syncing is not None:
            self._syncing.join()
            self._syncing = None
        if self._unsynced:
            raise self._unsynced.pop()
        for column in self.columns.values():
            sync(column.segments.dirty)
            column.segments.dirty.clear()

    def _sync_beside(self) -> None:
        """Sync files while rounds go on, so that a save finds few that are not."""
        # Files to be synced that are not being filled. A page that is synced costs more when it is
        # written again.
        paths = []
        for column in self.columns.values():
            filling = {segment.path for segment in column.segments.last()}
            paths += sorted(column.segments.dirty - filling)
        busy = self._syncing is not None and self._syncing.is_alive()
        if busy or len(paths) < _DIRTY:
            return
        for column in self.columns.values():  # these files count as synced
            column.segments.dirty.difference_update(paths)
        self._syncing = Thread(target=_try_sync, args=(paths, self._unsynced), daemon=True)
        self._syncing.start()

    def rollback(self) -> None:
        """Go back to the last commit."""
        for column in self.columns.values():
            column.rollback()

    def freeze(self, nodes: Mapping[str, slice]) -> Iterator[Frozen]:
        """Every column with its held versions, of these nodes of each tier.

        The ids of the entries count from 0.
        """
        for (tier, name), column in sorted(self.columns.items()):
            yield Frozen(tier, name, *column.freeze(nodes[tier]))

    def thaw(self, frozen: Frozen, nodes: slice) -> None:
        """The inverse of one entry of `freeze`; an invalid entry is a ValueError."""
        rows = frozen.rows
        name = f"{frozen.tier} {frozen.name}"
        if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
            raise ValueError(f"{name}: some saved numbers are not finite")
        for label, entry in frozen.entries.items():
            _check_entry(f"{name}, {label}", entry, nodes.stop - nodes.start, len(rows))
        column = self.opened(frozen.tier, frozen.name, rows)
        if not column.takes(rows):
            key = (frozen.tier, frozen.name)
            raise ValueError(f"{key}: rows {tuple(rows.shape)} {rows.dtype}")
        column.thaw(nodes.start, rows, frozen.entries)


def _try_sync(paths: list[Path], errors: list[OSError]) -> None:
    """Sync files, and leave an error for the next save."""
    try:
        sync(paths)
    except OSError as error:
        errors.append(error)


def rising(ids: Tensor, nodes: int) -> bool:
    """Whether these are ids of different nodes in rising order, int64 [n]."""
    if ids.dtype != torch.int64 or ids.ndim != 1:
        return False
    if not len(ids):
        return True
    inside = int(ids[0]) >= 0 and int(ids[-1]) < nodes
    return inside and bool((ids.diff() > 0).all())


def _check_entry(name: str, entry: Entry, nodes: int, rows: int) -> None:
    """Raise ValueError unless an entry is one of `nodes` nodes and `rows` rows."""
    for numbers in (entry.ids, entry.rounds, entry.places):
        alike = numbers.shape == entry.ids.shape
        if not alike or numbers.ndim != 1 or numbers.dtype != torch.int64:
            raise ValueError(f"{name}: ids, rounds and places are not three lists of equal length")
    if not len(entry.ids):
        return
    if not rising(entry.ids, nodes):
        raise ValueError(f"{name}: ids are not different, rising and below {nodes}")
    earliest = int(entry.rounds.min())
    if earliest < 0:
        raise ValueError(f"{name}: a row kept in round {earliest + 1}")
    highest = int(entry.places.max())
    if int(entry.places.min()) < 0 or highest >= rows:
        raise ValueError(f"{name}: places up to {highest} of {rows} rows")
