"""Scores of rows on a part of the data: right answers, losses and errors, as sums per device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey import native
from covey.engine import calibration
from covey.engine.batches import Batch
from covey.engine.losses import by_target
from covey.types import Ids, Rows

if TYPE_CHECKING:
    from covey.engine.task import Task

Predict = Callable[[Batch, Tensor], Tensor]
"""Outputs [m, B, ...] for a batch of m devices, given which of the rows they are, [m].

For classes, as good as logits.
"""


@dataclass(frozen=True, eq=False)
class PartScore:
    """The sums over one part of the data per device, float64 [n] each.

    Where labels are per position, the positions with a label are counted.
    """

    right: Tensor
    loss: Tensor
    count: Tensor
    calibration: Tensor | None = None  # [n, 3 bins + 2], the sums of `calibration`
    errors: Tensor | None = None  # [n, error_columns], for numbers: the sums of `error_sums`
    metrics: Tensor | None = None  # [n, columns], the sums of the task's metrics one after another

    def without(self, left_out: Tensor) -> PartScore:
        """These sums with zeros for the devices that are left out, bool [n]."""
        zeroed = {}
        for name, sums in vars(self).items():
            if sums is not None:
                zeroed[name] = sums.masked_fill(left_out.view(-1, *[1] * (sums.ndim - 1)), 0)
        return PartScore(**zeroed)


def evaluate(
    task: Task,
    x: Rows,
    split: str,
    ids: Ids,
    *,
    predict: Predict | None = None,
    bins: int = 0,
    errors: bool = False,
    metrics: bool = False,
) -> PartScore:
    """The score of each row on its device's part; see `Task.evaluate`."""
    errors = errors and task.targets > 0
    metrics = metrics and task.metric_columns > 0
    predict = predict or task.predictor(x, ids)
    if predict is None and not bins and _kernel_scores(task, x):
        return _by_kernel(task, x, split, ids, errors=errors, metrics=metrics)
    return _by_torch(
        task,
        x,
        split,
        ids,
        predict=predict,
        bins=bins,
        errors=errors,
        metrics=metrics,
    )


def _kernel_scores(task: Task, x: Rows) -> bool:
    """Whether the native kernel scores such rows."""
    if isinstance(task.native, str) or task.target is not None:
        return False
    if x.dtype != task.dtype or not native.serves(x):
        return False
    by_label = task.classifies and task.native.loss == "squared_error"
    return not by_label


def _outputs_of(task: Task, x: Rows) -> Predict:
    """The module's outputs, as a `Predict`."""

    def predict(batch: Batch, where: Tensor) -> Tensor:
        if len(where) == len(x):
            return task.outputs(x, batch)
        return task.outputs(x[where], batch)

    return predict


def error_columns(outputs: int) -> int:
    """How many sums `error_sums` has for so many outputs."""
    return 5 + 2 * outputs


def error_sums(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """All sums that RMSE, MAE and R2 need, of each row, float64 [n, error_columns].

    With targets y = high + low, they are of |error|, error^2, high^2, low^2 and high * low, then of
    high by output and of low by output. `high` has 12 bits, so that its sums are exact: y^2 alone
    would have no digit left of a spread a million times smaller than the mean.
    """
    weight = weight[..., None]
    targets = y.double().unsqueeze(-1).flatten(2)
    predicted = outputs.double().reshape(targets.shape)
    error = (predicted - targets) * weight
    targets = targets * weight
    shifted = targets * (2.0**41 + 1)
    high = shifted - (shifted - targets)
    low = targets - high
    terms = [error.abs(), error.square(), high.square(), low.square(), high * low]
    totals = torch.stack([term.sum((1, 2)) for term in terms], dim=1)
    return torch.cat([totals, high.sum(1), low.sum(1)], dim=1)


def metric_sums(task: Task, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The sums of the task's metrics one after another, float64 [n, columns]."""
    outputs = outputs.detach()
    columns = [metric.sums(outputs, y, weight) for metric in task.metrics]
    return torch.cat(columns, dim=1)


def _by_kernel(
    task: Task, x: Rows, split: str, ids: Ids, *, errors: bool, metrics: bool
) -> PartScore:
    assert not isinstance(task.native, str)
    examples = task.examples
    counts = examples.counts(split, ids)
    starts = examples.offset[split][ids]
    index = examples.index[split]
    right, loss = task.native.score(x, index, starts, counts)
    score = PartScore(right, loss, counts.double())
    if errors:  # the kernel knows the loss alone
        score = replace(score, errors=_errors(task, x, split, ids))
    if metrics:
        score = replace(score, metrics=_metrics(task, x, split, ids))
    return score


def _by_torch(
    task: Task,
    x: Rows,
    split: str,
    ids: Ids,
    *,
    predict: Predict | None,
    bins: int,
    errors: bool,
    metrics: bool,
) -> PartScore:
    n = len(ids)
    block = None
    if predict is None:
        predict = _outputs_of(task, x)
        block = _large_block(task, split, n)
    right = torch.zeros(n, dtype=torch.float64, device=task.device)
    loss = torch.zeros_like(right)
    by_bin = None
    if bins:
        by_bin = right.new_zeros(n, 3 * bins + 2)
    sums = None
    if errors:
        sums = right.new_zeros(n, error_columns(task.targets))
    of_metrics = None
    if metrics:
        of_metrics = right.new_zeros(n, task.metric_columns)
    for rows, batch in task.examples.blocks(split, ids, block):
        weight = batch.target_weight
        assert weight is not None
        where = _where(rows, n, task.device)
        outputs = predict(batch, where)
        outputs, y, losses = task.in_units(outputs, batch.y)
        loss[where] += (losses * weight).double().sum(1)
        outputs, y, _ = by_target(outputs, y)
        if task.classifies:
            predicted = outputs.argmax(-1)
            matches = (predicted == y) * weight
            right[where] += matches.double().sum(1)
        if by_bin is not None:
            by_bin[where] += calibration.sums(outputs, y, weight, bins)
        if sums is not None:
            sums[where] += error_sums(outputs, y, weight)
        if of_metrics is not None:
            of_metrics[where] += metric_sums(task, outputs, y, weight)
    counts = task.examples.target_counts(split, ids).double()
    counts = counts.to(task.device, non_blocking=True)
    return PartScore(right, loss, counts, by_bin, sums, of_metrics)


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
    return max(block, task.block(split))


def _errors(task: Task, x: Rows, split: str, ids: Ids) -> Tensor:
    """The sums of errors of each row on its device's part, [n, error_columns]."""
    shape = (len(ids), error_columns(task.targets))
    sums = torch.zeros(shape, dtype=torch.float64, device=task.device)
    for rows, batch in task.examples.blocks(split, ids):
        assert batch.weight is not None
        if rows is None:
            outputs = task.outputs(x, batch)
            sums += error_sums(outputs, batch.y, batch.weight)
        else:
            where = rows.to(task.device)
            outputs = task.outputs(x[where], batch)
            sums[where] += error_sums(outputs, batch.y, batch.weight)
    return sums


def _metrics(task: Task, x: Rows, split: str, ids: Ids) -> Tensor:
    """The sums of the metrics of each row on its device's part, [n, columns]."""
    shape = (len(ids), task.metric_columns)
    sums = torch.zeros(shape, dtype=torch.float64, device=task.device)
    for rows, batch in task.examples.blocks(split, ids):
        assert batch.weight is not None
        if rows is None:
            rows = torch.arange(len(ids))
        where = rows.to(task.device)
        outputs = task.outputs(x[where], batch)
        sums[where] += metric_sums(task, outputs, batch.y, batch.weight)
    return sums
