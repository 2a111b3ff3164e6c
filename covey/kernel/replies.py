"""The replies to an `ask`: rows of many children, reduced per asker once weights are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from covey.errors import ProgramError
from covey.kernel.moved import on_device
from covey.types import Rows


@dataclass(frozen=True, eq=False)
class Masked:
    """Rows of which only some coordinates are meant; the others are not sent and not averaged."""

    rows: Rows
    mask: Tensor


@dataclass(frozen=True, eq=False)
class Exact:
    """Rows that no codec and no cut may change: counts, scores, coins; float32 or float64."""

    rows: Rows


Message = Rows | Masked | Exact | None
"""What a program sends: rows, some of their coordinates, rows that arrive unchanged, or nothing."""
Weighted = tuple[Rows, Exact | None]
"""Rows, and the weight of each in a mean; None where all have the same weight."""


def rows_of(message: Message) -> Rows | None:
    """The rows of a message of any kind."""
    if isinstance(message, Masked | Exact):
        return message.rows
    return message


class Gathered(NamedTuple):
    """Every answer on its own: its row, its asker's position and its number among the children."""

    rows: Rows
    asker: Tensor
    child: Tensor

    def into(self, table: Tensor) -> Tensor:
        """Put the answers into a table [n, children, P] of every child's last answer, in place."""
        table[self.asker, self.child] = self.rows
        return table


def exact(rows: Rows) -> Exact:
    """Rows that travel as they are: 4 bytes a number in float32, 8 in float64."""
    return Exact(rows)


@dataclass(frozen=True, eq=False)
class Deferred:
    """Answers of consecutive children that are not in memory yet: bytes, or rows on a disk.

    `read` returns them; every reduction reads each part once, one part after the other. `masked`
    says whether they have masks.
    """

    read: Callable[[], Message]
    masked: bool = False


_MIXED = "some of the answers have masks and others have none; give all of them one, or none."


class AnswerPart(NamedTuple):
    """Answers of consecutive children, as a reduction meets them."""

    rows: Rows
    mask: Tensor | None
    where: slice  # among all answers


class Replies:
    """The answers of many children to n askers, in id order.

    The answers may come in parts, each of consecutive children, and parts may be `Deferred`: sums
    and means then hold one of them at a time, however many there are. `count`, `cover`, `sum`,
    `sums`, `mean` and `total` need a number or a sum per asker, and only `gather` needs the answers
    themselves: these are the only points at which nodes on several machines communicate.

    >>> rows, asker = torch.tensor([[1.0], [3.0], [10.0]]), torch.tensor([0, 0, 1])
    >>> replies = Replies(rows, asker=asker, askers=2)
    >>> replies.mean().tolist()
    [[2.0], [10.0]]
    """

    def __init__(
        self,
        rows: Rows | Sequence[Rows | Masked | Deferred] | None,
        *,
        asker: Tensor,
        askers: int,
        mask: Tensor | None = None,
        child: Tensor | None = None,
    ) -> None:
        if isinstance(rows, Tensor):
            rows = (rows,)
        self._parts = tuple(rows or ())
        self._asker = asker
        self._askers = askers
        self._child = child
        self._mask = mask
        have_masks = set()
        for part in self._parts:
            masked = part.masked if isinstance(part, Deferred) else isinstance(part, Masked)
            have_masks.add(masked)
        if len(have_masks) > 1:
            raise ProgramError(_MIXED)
        self._masked = mask is not None or True in have_masks

    @cached_property
    def count(self) -> Tensor:
        """How many answered each asker, [n]."""
        return torch.bincount(self._asker, minlength=self._askers)

    @cached_property
    def cover(self) -> Rows:
        """How many answers to each asker hold each coordinate, [n, width]."""

        def held(part: AnswerPart) -> tuple[Rows]:
            if part.mask is None:
                return (torch.ones_like(part.rows),)
            mask = part.mask.to(part.rows)
            return (mask.expand_as(part.rows),)

        (cover,) = self._totals(held)
        return cover

    @cached_property
    def _even(self) -> int:
        """How many answered each asker if all got the same number, else 0."""
        if not self._askers:
            return 0
        smallest = int(self.count.min())
        if smallest != int(self.count.max()):
            return 0
        return smallest

    def sum(self) -> Rows | None:
        """The sum of the answers per asker; None if the program answers nothing."""
        if not self._parts:
            return None
        (total,) = self._totals(lambda part: (_inside(part.rows, part.mask),))
        return total

    def total(self) -> Exact | None:
        """The sum as a message for the tier above, over those who answered."""
        total = self.sum()
        if total is None:
            return None
        return exact(total)

    def sums(self, weight: Replies | None = None) -> tuple[Rows, Rows]:
        """The weighted sum of the answers and the sum of the weights, per asker."""
        weights: Rows | None = None
        if weight is not None:
            count = len(self._asker)
            rows = weight._all_rows()
            if rows.shape[1:] != (1,) or len(rows) != count:
                have = f"weights of shape {tuple(rows.shape)} for {count} answers"
                raise ProgramError(f"{have}; answer one number per node, [n, 1].")
            weights = rows

        def weighted(part: AnswerPart) -> tuple[Rows, Rows]:
            scale = part.rows.new_ones(len(part.rows), 1)
            if weights is not None:
                scale = weights[part.where].to(part.rows)
            scale = _inside(scale, part.mask)
            return part.rows * scale, scale

        total, scale = self._totals(weighted)
        return total, scale

    def mean(self, *, weight: Replies | None = None, default: Rows | None = None) -> Rows:
        """The mean of the answers per asker; `default` where nobody answered.

        With masks, also where nobody sent a coordinate.
        """
        if weight is not None and not weight._parts:
            weight = None
        if not self._masked and weight is None:
            return self._plain_mean(default)
        total, scale = self.sums(weight)
        if default is None:
            # A GPU would have to be waited for: a mean of no weight is found at the round's end.
            known = scale.is_cuda and not self._masked and bool((self.count > 0).all())
            if not known and bool((scale == 0).any()):
                reason = "nobody was asked, or nobody sent a coordinate"
                raise ProgramError(f"the mean of no answers: {reason}; give default=.")
            return total / scale
        nobody = scale == 0
        mean = total / torch.where(nobody, 1, scale)
        return torch.where(nobody, default, mean)

    def _plain_mean(self, default: Rows | None) -> Rows:
        """Every answer counts 1: who got none is known without waiting for a GPU."""
        (total,) = self._totals(lambda part: (part.rows,))
        if self._even:
            return total.div_(self._even)
        nobody = self.count == 0
        divisor = self.count.clamp(min=1)[:, None]
        mean = total / on_device(divisor.to(total.dtype), total.device)
        if not bool(nobody.any()):
            return mean
        if default is None:
            raise ProgramError("the mean of no answers: nobody was asked; give default=.")
        use_default = on_device(nobody[:, None], total.device)
        return torch.where(use_default, default, mean)

    def gather(self) -> Gathered:
        """All answers, unreduced; for attention, medians, clustering."""
        if self._child is None:
            reason = "these replies do not say which child sent them"
            raise ProgramError(f"{reason}, so they cannot be gathered.")
        return Gathered(self._all_rows(), self._asker, self._child)

    def _check_answers(self) -> None:
        if not self._parts:
            reason = "the program that was asked answers None"
            raise ProgramError(f"{reason}, so there is nothing to reduce.")

    def _all_rows(self) -> Rows:
        """All answers in one tensor, which is held from now on."""
        self._check_answers()
        first = self._parts[0]
        if len(self._parts) == 1 and isinstance(first, Tensor):
            return first
        parts = list(self._read_parts())
        rows = torch.cat([part.rows for part in parts])
        masks = [part.mask.expand_as(part.rows) for part in parts if part.mask is not None]
        self._parts = (rows,)
        self._mask = None
        if masks:
            self._mask = torch.cat(masks)
        return rows

    def _read_parts(self) -> Iterator[AnswerPart]:
        """The parts in id order, each read when it is its turn."""
        asked = len(self._asker)
        stop = 0
        for part in self._parts:
            rows, mask = _read(part)
            start = stop
            stop += len(rows)
            if stop > asked:
                break
            where = slice(start, stop)
            if self._mask is not None:
                mask = self._mask
                if mask.ndim > 1:  # else that of all answers
                    mask = mask[where]
            yield AnswerPart(rows, mask, where)
            del rows, mask  # before the next one is read
        if stop != asked:
            raise ProgramError(f"at least {stop} answers, but {asked} children were asked.")

    def _totals(self, terms: Callable[[AnswerPart], tuple[Rows, ...]]) -> tuple[Rows, ...]:
        """Sums per asker of the values that `terms` computes from each part.

        They are added in id order, so that the bits do not depend on who else was asked, nor on
        the parts the answers came in.
        """
        self._check_answers()
        totals: list[Total] = []
        for part in self._read_parts():
            values = terms(part)
            if not totals:  # those of the first part say how wide the sums are
                totals = [Total(self, like) for like in values]
            for total, rows in zip(totals, values, strict=True):
                total.add(rows, self._asker[part.where])
            del part, values, rows  # before the next one is read
        return tuple([total.value() for total in totals])


class Total:
    """One sum per asker, to which parts are added one after the other."""

    def __init__(self, replies: Replies, like: Rows) -> None:
        self._replies = replies
        self._waiting: list[Rows] = []
        self._sum: Rows | None = None
        if not like.is_cuda:  # where index_add_ adds in no fixed order
            self._sum = like.new_zeros((replies._askers, *like.shape[1:]))

    def add(self, rows: Rows, asker: Tensor) -> None:
        """Add the answers of consecutive children."""
        if self._sum is None:
            self._waiting.append(rows)
        else:
            self._sum.index_add_(0, asker, rows)

    def value(self) -> Rows:
        """The sums, [askers, width]."""
        if self._sum is not None:
            return self._sum
        rows = self._waiting[0]
        if len(self._waiting) > 1:
            rows = torch.cat(self._waiting)
        if each := self._replies._even:
            by_asker = rows.view(self._replies._askers, each, *rows.shape[1:])
            return by_asker.sum(1)
        lengths = on_device(self._replies.count, rows.device)
        return torch.segment_reduce(rows, "sum", lengths=lengths, axis=0, unsafe=True)


def _read(part: Rows | Masked | Deferred) -> tuple[Rows, Tensor | None]:
    """The rows of a part and their mask; a deferred part is read now."""
    message: Message = None
    if not isinstance(part, Deferred):
        message = part
    else:
        message = part.read()
        if message is not None and isinstance(message, Masked) != part.masked:
            raise ProgramError(_MIXED)
    if isinstance(message, Masked):
        return message.rows, message.mask
    if isinstance(message, Exact):
        return message.rows, None
    if message is None:
        raise ProgramError("some of the programs that were asked answer None and others do not.")
    return message, None


def _inside(rows: Rows, mask: Tensor | None) -> Rows:
    """Rows with zeros outside a mask; the rows themselves without one."""
    if mask is None:
        return rows
    return rows * mask
