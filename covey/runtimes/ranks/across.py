"""Replies whose answers lie on several ranks.

A sum per asker is computed in one of two ways. Gathered: every rank gets all answers and adds them
in id order, so the bits do not depend on the number of ranks. Added: every rank adds its own
answers, and an all-reduce adds these sums, which sends one row per asker and rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from covey.kernel.replies import AnswerPart, Gathered, Replies, Total
from covey.runtimes.ranks.ranks import Ranks
from covey.types import Rows

GATHERED = 64 * 2**20
"""Bytes of the answers of all nodes at the cut up to which sums are gathered."""


@dataclass(frozen=True, eq=False)
class Everyone:
    """Who answers, on all ranks: known to each of them, since each draws the same cohort."""

    asker: Tensor
    """The position of each answer's asker, in id order, [k]."""
    child: Tensor
    """The number of each answer among the children of its asker, [k]."""
    counts: tuple[int, ...]
    """How many of these answers each rank has; the first rank has the first ids."""


class Across(Replies):
    """The answers of this rank's children, reduced over those of all ranks.

    All ranks make the same reductions in the same order, since all run the program that makes them.
    """

    def __init__(
        self,
        parts: Sequence[Any] | None,
        *,
        asker: Tensor,
        askers: int,
        child: Tensor,
        everyone: Everyone,
        ranks: Ranks,
        gathers: Callable[[Rows], bool],
        timed: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Take the answers of this rank.

        `gathers` says whether sums of rows like these are gathered. `timed` counts the time that
        ranks take to exchange rows.
        """
        super().__init__(parts, asker=asker, askers=askers, child=child)
        self._everyone = everyone
        self._ranks = ranks
        self._gathers = gathers
        self._timed = timed

    @cached_property
    def count(self) -> Tensor:
        """How many answered each asker on all ranks, [n]."""
        return torch.bincount(self._everyone.asker, minlength=self._askers)

    def gather(self) -> Gathered:
        """The answers of all ranks, in id order."""
        rows = self._gathered(self._all_rows())
        return Gathered(rows, self._everyone.asker, self._everyone.child)

    def _totals(self, terms: Callable[[AnswerPart], tuple[Rows, ...]]) -> tuple[Rows, ...]:
        """Sums per asker, over the answers of all ranks."""
        self._check_answers()
        # Whether the values of these terms are narrow enough to be gathered.
        first = next(self._read_parts())
        mask = first.mask
        if mask is not None and mask.ndim > 1:
            mask = mask[:0]
        nothing = AnswerPart(first.rows[:0], mask, slice(0, 0))
        if not all(self._gathers(rows) for rows in terms(nothing)):
            local = Replies(self._parts, asker=self._asker, askers=self._askers, mask=self._mask)
            with self._timed():
                return tuple(self._ranks.add(local._totals(terms)))
        values = [terms(part) for part in self._read_parts()]
        sums = []
        for parts in zip(*values, strict=True):  # gathered, and added in id order
            own = torch.cat(parts)
            total = Total(self, own)
            total.add(self._gathered(own), self._everyone.asker)
            sums.append(total.value())
        return tuple(sums)

    def _gathered(self, own: Rows) -> Rows:
        """The rows of all ranks, in id order."""
        with self._timed():
            return self._ranks.gather(own, self._everyone.counts)
