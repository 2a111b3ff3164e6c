"""What nodes remember: one column per (tier, name), holding rows only for the nodes that kept one.

A round writes into fresh slots and its end swaps them in, so that a round that fails leaves the last good rows untouched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from covey.errors import ProgramError

NEVER = -1


class Column:
    """The rows one name has on one tier, with the round each was kept in."""

    def __init__(self, nodes: int, template: Tensor) -> None:
        self.rows = template.new_empty((0, *template.shape[1:]))
        self.slot = torch.full((nodes,), NEVER)
        self.round = torch.full((nodes,), NEVER)
        self._good = (self.slot.clone(), self.round.clone())
        self._free = torch.empty(0, dtype=torch.int64)

    def put(self, ids: Tensor, rows: Tensor, round: int) -> None:
        """Rows for these nodes, visible now, kept for good at `commit`."""
        if rows.shape[1:] != self.rows.shape[1:] or rows.dtype != self.rows.dtype:
            had, got = (tuple(self.rows.shape[1:]), self.rows.dtype), (tuple(rows.shape[1:]), rows.dtype)
            raise ProgramError(f"kept rows of shape and type {got} under a name that holds {had}; use another name.")
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
        out.index_copy_(0, self._there(where), torch.index_select(self.rows, 0, self._there(self.slot[ids[where]])))
        return out

    def held(self) -> Tensor:
        """The ids that hold a row."""
        return (self.slot != NEVER).nonzero()[:, 0]

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
        """The slots that no good row lies in."""
        used = torch.zeros(len(self.rows), dtype=torch.bool)
        used[self._good[0][self._good[0] != NEVER]] = True
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

    def put(self, tier: str, name: str, ids: Tensor, rows: Tensor, round: int) -> None:
        """Rows for some nodes of a tier; a first row of a name opens its column."""
        if (tier, name) not in self.columns:
            self.columns[tier, name] = Column(self.sizes[tier], rows)
        self.columns[tier, name].put(ids, rows, round)

    def get(self, tier: str, name: str, ids: Tensor, default: Tensor | None, since: int) -> Tensor | None:
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
        """The round ended well."""
        for column in self.columns.values():
            column.commit()

    def rollback(self) -> None:
        """The round failed."""
        for column in self.columns.values():
            column.rollback()

    def dump(self) -> Iterator[tuple[str, str, Tensor, Tensor, Tensor]]:
        """(tier, name, ids, rounds, rows) of every column, for a checkpoint."""
        for (tier, name), column in sorted(self.columns.items()):
            ids = column.held()
            yield tier, name, ids, column.round[ids], column.rows[column.slot[ids].to(column.rows.device)]

    def load(self, tier: str, name: str, ids: Tensor, rounds: Tensor, rows: Tensor) -> None:
        """The inverse of one entry of `dump`."""
        if ids.dtype != torch.int64 or not len(ids) == len(rounds) == len(rows):
            raise ValueError(f"{tier} {name}: {len(ids)} ids, {len(rounds)} rounds, {len(rows)} rows")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.sizes[tier]:
            raise ValueError(f"{tier} {name}: ids up to {int(ids.max())} of {self.sizes[tier]} nodes")
        self.put(tier, name, ids, rows, NEVER)
        column = self.columns[tier, name]
        column.round[ids] = rounds
        column.commit()
