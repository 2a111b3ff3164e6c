"""Scores of rows on a part of the data: the sums of every term, per device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey import native
from covey.engine.batches import Batch
from covey.engine.measures import calibration
from covey.engine.measures.losses import by_target
from covey.engine.measures.metrics import BASE, Term, by_term
from covey.types import Ids, Rows

if TYPE_CHECKING:
    from covey.engine.task import Task

Predict = Callable[[Batch, Tensor], Tensor]
"""Outputs [m, B, ...] for a batch of m devices, given which of the rows they are, [m].

For classes, as good as logits.
"""


@dataclass(frozen=True, eq=False)
class PartScore:
    """The sums over one part of the data per device: those of all terms, float64 [n, columns].

    Where labels are per position, the positions with a label are counted.
    """

    terms: Sequence[Term]
    sums: Tensor
    calibration: Tensor | None = None  # [n, 3 bins + 2], the sums of `calibration`

    @property
    def right(self) -> Tensor:
        """Right answers, [n]."""
        return self.sums[:, 0]

    @property
    def loss(self) -> Tensor:
        """The summed loss, [n]."""
        return self.sums[:, 1]

    @property
    def count(self) -> Tensor:
        """Examples, [n]."""
        return self.sums[:, 2]

    @property
    def by_term(self) -> dict[Term, Tensor]:
        """The sums of every term, [n, columns] each."""
        return by_term(self.terms, self.sums)

    def without(self, left_out: Tensor) -> PartScore:
        """These sums with zeros for the devices that are left out, bool [n]."""
        by_bin = self.calibration
        if by_bin is not None:
            by_bin = by_bin.masked_fill(left_out[:, None], 0)
        return PartScore(self.terms, self.sums.masked_fill(left_out[:, None], 0), by_bin)


def evaluate(
    task: Task,
    x: Rows,
    split: str,
    ids: Ids,
    *,
    predict: Predict | None = None,
    bins: int = 0,
    metrics: bool = False,
) -> PartScore:
    """Right answers, summed loss and count of each row on its device's part.

    With `metrics` also the other sums that the task's metrics follow from, and with `bins` those of
    a calibration. The outputs are the module's, or those that `predict` gives.
    """
    terms = task.terms if metrics else BASE
    predict = predict or task.predictor(x, ids)
    if predict is not None or bins or not _kernel_scores(task, x):
        return _by_torch(task, x, split, ids, terms, predict, bins)
    assert not isinstance(task.native, str)
    examples = task.examples
    counts = examples.counts(split, ids)
    starts = examples.offset[split][ids]
    right, loss = task.native.score(x, examples.index[split], starts, counts)
    sums = torch.stack([right, loss, counts.double()], dim=1)
    if len(terms) > len(BASE):  # the kernel knows no outputs
        others = _zeros(task, len(ids), terms)
        for rows, batch in examples.blocks(split, ids):
            assert batch.weight is not None
            where = _where(rows, len(ids), task.device)
            outputs = task.outputs(x if rows is None else x[where], batch)
            others[where] += _sums(terms, outputs, batch.y, batch.weight)
        sums = torch.cat([sums, others], dim=1)
    return PartScore(terms, sums)


def _kernel_scores(task: Task, x: Rows) -> bool:
    """Whether the native kernel scores such rows."""
    if isinstance(task.native, str) or task.target is not None:
        return False
    if x.dtype != task.dtype or not native.serves(x):
        return False
    by_label = task.classifies and task.native.loss == "squared_error"
    return not by_label


def _zeros(task: Task, n: int, terms: Sequence[Term]) -> Tensor:
    """Sums of nothing for the terms after the first ones, [n, columns]."""
    columns = sum(term.columns for term in terms[len(BASE) :])
    return torch.zeros((n, columns), dtype=torch.float64, device=task.device)


def _sums(terms: Sequence[Term], outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The sums of the terms after the first ones, one after another, float64 [n, columns]."""
    outputs = outputs.detach()
    return torch.cat([term.sums(outputs, y, weight) for term in terms if term.sums], dim=1)


def _by_torch(
    task: Task,
    x: Rows,
    split: str,
    ids: Ids,
    terms: Sequence[Term],
    predict: Predict | None,
    bins: int,
) -> PartScore:
    n = len(ids)
    block = _large_block(task, split, n) if predict is None else None
    right = torch.zeros(n, dtype=torch.float64, device=task.device)
    loss = torch.zeros_like(right)
    by_bin = right.new_zeros(n, 3 * bins + 2) if bins else None
    sums = _zeros(task, n, terms)
    for rows, batch in task.examples.blocks(split, ids, block):
        weight = batch.target_weight
        assert weight is not None
        where = _where(rows, n, task.device)
        if predict is not None:
            outputs = predict(batch, where)
        else:
            outputs = task.outputs(x if rows is None else x[where], batch)
        outputs, y, losses = task.in_units(outputs, batch.y)
        loss[where] += (losses * weight).double().sum(1)
        outputs, y, _ = by_target(outputs, y)
        if task.classifies:
            matches = (outputs.argmax(-1) == y) * weight
            right[where] += matches.double().sum(1)
        if by_bin is not None:
            by_bin[where] += calibration.sums(outputs, y, weight, bins)
        if len(terms) > len(BASE):
            sums[where] += _sums(terms, outputs, y, weight)
    counts = task.examples.target_counts(split, ids).double()
    counts = counts.to(task.device, non_blocking=True)
    base = torch.stack([right, loss, counts], dim=1)
    return PartScore(terms, torch.cat([base, sums], dim=1), by_bin)


def _where(rows: Tensor | None, count: int, device: torch.device) -> Tensor:
    """The rows of a block on the device; None for all of `count`."""
    if rows is None:
        return torch.arange(count, device=device)
    return rows.to(device, non_blocking=True)


_GPU_BYTES = 1 << 28
"""Bytes of examples that a GPU scores at once."""
_STEP = 32


def _large_block(task: Task, split: str, devices: int) -> int | None:
    """How many examples of each device a GPU scores at once; None: as many as a CPU does.

    Of linear stacks alone, whose activations are smaller than the examples.
    """
    if not task.examples.remembers or isinstance(task.stack, str):
        return None
    example = task.x[:1].nbytes * max(devices, 1)
    room = _GPU_BYTES // max(example, 1)
    longest = task.examples.longest[split]
    block = min(longest, room) // _STEP * _STEP + _STEP
    return max(block, task.examples.block(split))
