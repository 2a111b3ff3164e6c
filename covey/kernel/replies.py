"""What came back from an `ask`: rows of many children, reduced per asker only once the weights are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from covey.errors import ProgramError
from covey.types import Rows


@dataclass(frozen=True, eq=False)
class Masked:
    """Rows of which only some coordinates are meant; the others are not sent and not averaged."""

    rows: Rows
    mask: Tensor


@dataclass(frozen=True, eq=False)
class Exact:
    """Rows that no codec and no cut may change: counts, scores, coins; float32 or float64, metered as such."""

    rows: Rows


Message = Rows | Masked | Exact | None
"""What a program sends or answers: rows, some coordinates of rows, rows that must arrive unchanged, or nothing."""


class Gathered(NamedTuple):
    """Every answer on its own: its rows, the position of its asker, and the child's number among that asker's children."""

    rows: Rows
    asker: Tensor
    child: Tensor

    def into(self, table: Tensor) -> Tensor:
        """A table [n, children, P] of every child's last answer, these now among them; changed in place."""
        table[self.asker, self.child] = self.rows
        return table


def exact(rows: Rows) -> Exact:
    """Rows that travel as they are: 4 bytes a number in float32, 8 in float64; links carry no other type."""
    return Exact(rows)


class Replies:
    """The answers of many children to n askers, in id order.

    >>> replies = Replies(torch.tensor([[1.0], [3.0], [10.0]]), asker=torch.tensor([0, 0, 1]), askers=2)
    >>> replies.mean().tolist()
    [[2.0], [10.0]]
    """

    def __init__(
        self,
        rows: Rows | Sequence[Rows] | None,
        *,
        asker: Tensor,
        askers: int,
        mask: Tensor | None = None,
        child: Tensor | None = None,
    ) -> None:
        self._parts = None if rows is None else (rows,) if isinstance(rows, Tensor) else tuple(rows)
        self._mask, self._asker, self._askers, self._child = mask, asker, askers, child

    @cached_property
    def count(self) -> Tensor:
        """How many answered each asker, [n]."""
        return torch.bincount(self._asker, minlength=self._askers)

    @cached_property
    def cover(self) -> Rows:
        """How many answers to each asker hold each coordinate, [n, width]."""
        rows = self._need()
        return self._total(torch.ones_like(rows) if self._mask is None else self._mask.to(rows).expand_as(rows))

    @cached_property
    def _even(self) -> int:
        """How many answered each asker, where all got the same number and more than none; else 0."""
        least = int(self.count.min()) if self._askers else 0
        return least if least > 0 and least == int(self.count.max()) else 0

    def sum(self) -> Rows | None:
        """The sum of the answers per asker; None if the program answers nothing."""
        if self._parts is None:
            return None
        return self._total(*self._parts) if self._mask is None else self._total(self._need() * self._mask)

    def total(self) -> Exact | None:
        """The sum as a message for the tier above, over those who answered."""
        total = self.sum()
        return None if total is None else exact(total)

    def sums(self, weight: Replies | None = None) -> tuple[Rows, Rows]:
        """The weighted sum of the answers and the sum of the weights, per asker."""
        rows = self._need()
        scale = self._weight(weight, rows)
        if self._mask is not None:
            scale = scale * self._mask
        return self._total(rows * scale), self._total(scale)

    def mean(self, *, weight: Replies | None = None, default: Rows | None = None) -> Rows:
        """The mean of the answers per asker; `default` where nobody (or, with masks, nobody for a coordinate) answered."""
        if weight is not None and weight._parts is None:
            weight = None
        if self._mask is None and weight is None:
            return self._plain_mean(default)
        total, scale = self.sums(weight)
        if default is None:
            if bool((scale == 0).any()):
                raise ProgramError("the mean of no answers: nobody was asked, or nobody sent a coordinate; give default=.")
            return total / scale
        return torch.where(scale == 0, default, total / torch.where(scale == 0, 1, scale))

    def _plain_mean(self, default: Rows | None) -> Rows:
        """Every answer counts 1: who got none is known without waiting for a GPU."""
        count, total = self.count, self._total(*(self._parts or (self._need(),)))
        if self._even:
            return total / self._even
        none = count == 0
        mean = total / count.clamp(min=1)[:, None].to(total.device, total.dtype, non_blocking=True)
        if not bool(none.any()):
            return mean
        if default is None:
            raise ProgramError("the mean of no answers: nobody was asked; give default=.")
        return torch.where(none[:, None].to(total.device, non_blocking=True), default, mean)

    def gather(self) -> Gathered:
        """All answers, unreduced; for attention, medians, clustering."""
        if self._child is None:
            raise ProgramError("these replies do not say which child sent them, so they cannot be gathered.")
        return Gathered(self._need(), self._asker, self._child)

    def _need(self) -> Rows:
        """All answers in one tensor."""
        if self._parts is None:
            raise ProgramError("the program that was asked answers None, so there is nothing to reduce.")
        if len(self._parts) > 1:
            self._parts = (torch.cat(self._parts),)
        return self._parts[0]

    def _weight(self, weight: Replies | None, rows: Rows) -> Rows:
        if weight is None:
            return rows.new_ones(len(rows), 1)
        if weight._need().shape[1:] != (1,) or len(weight._need()) != len(rows):
            shape = tuple(weight._need().shape)
            raise ProgramError(f"weights of shape {shape} for {len(rows)} answers; answer one number per node, [n, 1].")
        return weight._need().to(rows)

    def _total(self, *parts: Rows) -> Rows:
        """Sums in id order, so that the bits do not depend on who else was asked, nor on the parts the answers came in."""
        if parts[0].is_cuda and self._even:
            rows = parts[0] if len(parts) == 1 else torch.cat(parts)
            return rows.view(self._askers, self._even, *rows.shape[1:]).sum(1)
        if parts[0].is_cuda:  # index_add_ on a GPU adds in no fixed order
            lengths = self.count.to(parts[0].device, non_blocking=True)
            return torch.segment_reduce(torch.cat(parts), "sum", lengths=lengths, axis=0, unsafe=True)
        out = parts[0].new_zeros((self._askers, *parts[0].shape[1:]))
        for rows, asker in zip(parts, torch.split(self._asker, [len(rows) for rows in parts]), strict=True):
            out.index_add_(0, asker, rows)
        return out
