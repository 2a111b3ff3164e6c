"""The rows that one node keeps: small ones in memory too, large ones on its disk alone.

A large row is in memory from when a program keeps it until it is written. Whoever needs it later
reads it from the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from covey.deployed.node.disk import Disk, KeptForm
from covey.deployed.node.node_rows import NodeRow, dtype_of
from covey.kernel.store.segments import Segments
from covey.kernel.store.store import PRESENT, Column
from covey.runtimes.alone.place import OwnStore
from covey.types import Ids

LARGE = 2**18
"""Bytes of a row above which it is not held in memory."""


class DiskSegments(Segments):
    """The rows of one name: by slot, in memory, or on the disk under a label."""

    def __init__(
        self,
        template: Tensor,
        nodes: int,
        read: Callable[[str], Tensor],
        *,
        copies: bool,
    ) -> None:
        super().__init__(template, nodes)
        self._read_label = read
        self._rows: dict[int, Tensor] = {}
        self._labels: dict[int, str] = {}
        self._large = self.row_bytes > LARGE
        self._copies = copies or not self._large

    @property
    def held(self) -> int:
        """How many rows are in memory."""
        return len(self._rows)

    def grow(self, count: int, kind: int = 0) -> Tensor:
        """So many new slots."""
        before = self.capacity
        self.capacity += count
        return torch.arange(before, self.capacity)

    def read(self, slots: Tensor) -> Tensor:
        """A copy of the rows in these slots."""
        numbers = slots.tolist()
        if len(numbers) == 1 and self._large and numbers[0] not in self._rows:
            return self.peek(numbers[0])[None]  # read from the disk, for the caller alone
        out = self.template.new_empty((len(numbers), *self.template.shape[1:]))
        for position, slot in enumerate(numbers):
            out[position] = self.peek(slot)
        return out

    def peek(self, slot: int) -> Tensor:
        """The row in a slot, which is only to be read."""
        row = self._rows.get(slot)
        if row is None:
            row = self._read_label(self._labels[slot])
            if not self._large:
                self._rows[slot] = row
        return row

    def read_into(self, slots: Tensor, out: Tensor) -> None:
        """Copy the rows in these slots."""
        out.copy_(self.read(slots))

    def write(self, slots: Tensor, rows: Tensor) -> None:
        """Rows into slots. A large one is on its way to the disk: it is not copied."""
        for slot, row in zip(slots.tolist(), rows, strict=True):
            self._rows[slot] = row.clone() if self._copies else row

    def written(self, labels: Mapping[int, str]) -> None:
        """All rows in use are on the disk, each slot under this label."""
        self._labels = dict(labels)
        rows = {} if self._large else self._rows
        self._rows = {slot: row for slot, row in rows.items() if slot in labels}


class DiskColumn(Column):
    """What one node keeps under a name, now and in held versions."""

    def __init__(
        self,
        nodes: int,
        template: Tensor,
        number: int,
        read: Callable[[str], Tensor],
        *,
        copies: bool,
    ) -> None:
        """`number` is that of the node; -1 where it is of another tier, and keeps nothing."""
        super().__init__(nodes, template)
        self._number = number
        self.rows = DiskSegments(template, nodes, read, copies=copies)
        self.segments = self.rows

    def load_versions(self, rounds: Mapping[str, int]) -> None:
        """The disk has these versions: the round of each label."""
        ids = torch.tensor([self._number])
        for label, round in rounds.items():
            version = self.present if label == PRESENT else self._label(label)
            self._move(version, ids, self._take(1), round)
        self.commit()
        self.written()

    def written(self) -> None:
        """Everything is on the disk."""
        labels = {}
        for label in [*sorted(self.held), PRESENT] if self._number >= 0 else []:
            slot = int(self.version(label).slot[self._number])
            if slot >= 0:
                labels[slot] = label
        self.rows.written(labels)

    def peek(self, label: str) -> tuple[int, Tensor] | None:
        """(round, row) of a version, which is only to be read; None where there is none."""
        version = self.version(label)
        slot = int(version.slot[self._number])
        if slot < 0:
            return None
        return int(version.round[self._number]), self.rows.peek(slot)


@dataclass
class DiskStore(OwnStore):
    """The rows of one node, with a list of what has changed since it was written to the disk."""

    disk: Disk = field(kw_only=True)
    copies: bool = False
    """Whether a kept row may be changed by others before it is written."""
    touched: set[tuple[str, str]] = field(default_factory=set)
    """(name, label) of the rows that changed."""

    def put(
        self,
        tier: str,
        name: str,
        ids: Ids,
        rows: Tensor,
        round: int,
    ) -> None:
        """Rows of this node."""
        super().put(tier, name, ids, rows, round)
        if len(ids):
            self.touched.add((name, PRESENT))

    def opened(self, tier: str, name: str, rows: Tensor) -> Column:
        """The column of a name, which is opened for rows like these if there is none."""
        key = (tier, name)
        if key not in self.columns:
            number = self.place.number if tier == self.place.tier else -1
            read = partial(self.disk.row, name)
            column = DiskColumn(self.sizes[tier], rows, number, read, copies=self.copies)
            self.columns[key] = column
        return self.columns[key]

    def kept(self) -> dict[str, DiskColumn]:
        """The columns of this node's own tier, by name."""
        own = {name: one for (tier, name), one in self.columns.items() if tier == self.place.tier}
        return {name: one for name, one in own.items() if isinstance(one, DiskColumn)}

    def load(self) -> None:
        """Take over what the disk has."""
        by_name: dict[str, list[KeptForm]] = {}
        for kept in self.disk.kept():
            by_name.setdefault(kept.name, []).append(kept)
        for name, versions in by_name.items():
            first = versions[0]
            template = torch.zeros((0, *first.shape), dtype=dtype_of(first.dtype))
            self.opened(self.place.tier, name, template)
            self.kept()[name].load_versions({kept.label: kept.round for kept in versions})

    def row(self, name: str, label: str) -> NodeRow:
        """What this node keeps under a name; its numbers are only to be read."""
        round, row = self.kept()[name].peek(label) or (0, None)
        return NodeRow(self.place.tier, self.place.number, name, label, round, row)

    def rows(self, name: str, label: str) -> list[NodeRow]:
        """What this node keeps under a name, now or in a held version: one row or none."""
        if name not in self.kept():
            return []
        kept = self.row(name, label)
        return [] if kept.row is None else [kept]

    def versions(self, only: str | None = None) -> list[NodeRow]:
        """Everything that this node keeps and holds, under one name or under all."""
        out = []
        for name, column in self.kept().items():
            if only in (None, name):
                for label in [PRESENT, *sorted(column.held)]:
                    out += self.rows(name, label)
        return out

    def changed(self) -> list[NodeRow]:
        """The rows that changed since they were written to the disk."""
        return [self.row(name, label) for name, label in sorted(self.touched)]

    def hold(self, label: str, columns: Sequence[Sequence[str]]) -> None:
        """Hold the rows that this node keeps now in these (tier, name)."""
        kept = self.kept()
        for tier, name in columns:
            if tier == self.place.tier and name in kept:
                kept[name].hold(label, self._own)
                self.touched.add((name, label))

    def release(self, label: str) -> None:
        """Hold nothing under this label any more."""
        for name, column in self.kept().items():
            if label in column.held:
                column.release(label, self._own)
                self.touched.add((name, label))

    @property
    def _own(self) -> slice:
        """This node among those of its tier."""
        return slice(self.place.number, self.place.number + 1)

    def written(self) -> None:
        """Everything is on the disk."""
        self.touched.clear()
        self.commit()
        for column in self.columns.values():
            assert isinstance(column, DiskColumn)
            column.written()
