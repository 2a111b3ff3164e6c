"""Whole descents in the compiled kernel: what a stack, its batches and its terms are in the arrays
that rows.c reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey import native
from covey.engine import gram
from covey.engine.layout import ParameterLayout
from covey.engine.objective import DataLoss, Gradient, Objective
from covey.engine.stack import LinearStack
from covey.errors import ProgramError
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.batches import Batch

_SCORED = 48  # examples that meet a model together when it is scored
_AHEAD = 64  # steps whose batches go into one call, which caps the memory for their indices


@dataclass(frozen=True, eq=False)
class NativeKernel:
    """A stack and everybody's examples, as rows.c knows them."""

    stack: LinearStack
    space: ParameterLayout
    loss: str
    table: Tensor
    x: Tensor
    y: Tensor

    def descend(
        self,
        start: Rows,
        batch_of: Callable[[int], Batch],
        terms: Objective,
        *,
        l2: float,
        one: Batch | None = None,
        factored: bool = False,
    ) -> Rows:
        """Plain steps on mini-batches, all of them on `one` if that is given.

        Then they may be `factored`, for each row that takes enough steps.
        """
        self._check(start)
        rows = torch.empty_like(start, memory_format=torch.contiguous_format)
        steps = _each(terms.steps, len(start), torch.int64)
        arrays = _arrays(start, terms)
        work = _work(start, terms, arrays, l2)
        work.rows, work.layers, work.table = rows.data_ptr(), len(self.table), self.table.data_ptr()
        work.x, work.y, work.examples_held = self.x.data_ptr(), self.y.data_ptr(), len(self.x)
        work.loss = native.LOSSES.index(self.loss)
        if one is not None:
            work.factored = gram.LEAST_STEPS if factored else 0
            _run(work, [one], steps, start.dtype)
            return rows
        for first in range(0, terms.longest, _AHEAD):
            batches = [batch_of(step) for step in range(first, min(first + _AHEAD, terms.longest))]
            _run(work, batches, (steps - first).clamp(max=len(batches)), start.dtype)
            work.start, work.start_stride = work.rows, self.space.width
        return rows if terms.longest else start.clone()

    def score(
        self,
        rows: Rows,
        index: Tensor,
        starts: Tensor,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Right answers and summed loss of each row on the examples index[start : start + count],
        float64 [n] each.
        """
        self._check(rows)
        if len(rows) != len(starts):
            raise ProgramError(
                f"{len(rows)} rows to score for {len(starts)} devices; give one each."
            )
        rows = _rows(rows, rows)
        work = native.NativeWork(
            devices=len(rows), width=rows.shape[1], batch=_SCORED, batches=1, layers=len(self.table)
        )
        work.start, work.start_stride, work.table = (
            rows.data_ptr(),
            rows.stride(0),
            self.table.data_ptr(),
        )
        work.x, work.y, work.examples_held = self.x.data_ptr(), self.y.data_ptr(), len(self.x)
        work.loss, work.examples = native.LOSSES.index(self.loss), index.data_ptr()
        return native.score(work, rows.dtype, starts.contiguous(), counts.contiguous())

    def _check(self, rows: Rows) -> None:
        """The kernel trusts its numbers."""
        if rows.ndim != 2 or rows.shape[1] != self.space.width:
            raise ProgramError(
                f"rows of shape {tuple(rows.shape)}, but a model has {self.space.width} parameters; "
                "a descent on data needs whole models (`part` keeps columns as they are)."
            )


def refusal(
    gradient: Gradient,
    start: Rows,
    terms: Objective,
) -> str | None:
    """Why the kernel cannot do what these terms ask for; None if it can."""
    if terms.method != "gradient":
        return f"the method is {terms.method}"
    if terms.tol is not None:
        return "tol is set"
    if not native.serves(start):
        return "the native kernel does not take such rows"
    if isinstance(terms.lr, Tensor) and terms.lr.ndim == 2 and terms.lr.shape[1] > 1:
        return "step sizes differ from column to column"
    if terms.mask is not None and terms.mask.dtype != torch.bool:
        return "the mask is not boolean"
    if terms.part is not None and terms.part.step not in (None, 1):
        return "the part that moves leaves out columns in between"
    return None


def data_refusal(
    loss: DataLoss,
    start: Rows,
    terms: Objective,
) -> str | None:
    """As `refusal`, for steps on mini-batches."""
    task, one = loss.task, loss.one
    if isinstance(task.native, str):
        return task.native
    if loss.all_examples:
        return "each step takes the gradient of all examples"
    if one is not None and (one.data[0] is not task.x or one.data[1] is not task.y):
        return "the batch is of other examples than the task's"
    if start.dtype != task.dtype:
        return f"rows are {start.dtype}, but the examples {task.dtype}"
    return refusal(loss, start, terms)


def factored_refusal(
    loss: DataLoss,
    start: Rows,
    terms: Objective,
) -> str | None:
    """As `data_refusal`, for factored steps."""
    return gram.unfit(loss, terms) or data_refusal(loss, start, terms)


def on_batches(
    loss: DataLoss,
    start: Rows,
    terms: Objective,
) -> Rows:
    """Plain steps on mini-batches."""
    task = loss.task
    assert isinstance(task.native, NativeKernel)
    return task.native.descend(start, loss.batch_of, terms, l2=task.l2, one=loss.one)


def factored(
    loss: DataLoss,
    start: Rows,
    terms: Objective,
) -> Rows:
    """Plain steps on one batch, factored for each row that takes enough of them."""
    task = loss.task
    assert isinstance(task.native, NativeKernel)
    return task.native.descend(start, loss.batch_of, terms, l2=task.l2, one=loss.one, factored=True)


def without_data(
    gradient: Gradient,
    start: Rows,
    terms: Objective,
) -> Rows:
    """Plain steps on all terms but a data loss: one pass over the rows per step."""
    rows = torch.empty_like(start, memory_format=torch.contiguous_format)
    arrays = _arrays(start, terms)
    steps = _each(terms.steps, len(start), torch.int64)
    work = _work(start, terms, arrays, 0.0)
    work.rows, work.steps, work.batches = rows.data_ptr(), steps.data_ptr(), 1
    native.descend(work, start.dtype)
    return rows


def _arrays(start: Rows, terms: Objective) -> dict[str, Tensor]:
    """What the call reads of start and terms, by its name in `struct work`; it must live as long as
    the call.
    """
    lam, anchor = terms.prox if terms.prox is not None else (0.0, None)
    gamma = terms.l1[0] if terms.l1 is not None else 0.0
    one_each = {"lr": terms.lr, "lam": lam, "gamma": gamma}
    a_row_each = {"start": start, "anchor": anchor, "linear": terms.linear, "mask": terms.mask}
    return {
        **{name: _each(value, len(start), torch.float64) for name, value in one_each.items()},
        **{name: _rows(value, start) for name, value in a_row_each.items() if value is not None},
    }


def _work(
    start: Rows,
    terms: Objective,
    arrays: dict[str, Tensor],
    l2: float,
) -> native.NativeWork:
    part = (terms.part or slice(None)).indices(start.shape[1])
    rho = terms.l1[1] if terms.l1 is not None else 0.0
    return native.NativeWork(
        devices=len(start), width=start.shape[1], part_start=part[0], part_stop=part[1], decay=terms.decay + l2, rho=rho,
        l1=native.NO_L1 if terms.l1 is None else native.SMOOTH if rho > 0 else native.SOFT,
        **{name: array.data_ptr() for name, array in arrays.items()},
        **{f"{name}_stride": arrays[name].stride(0) for name in ("start", "anchor", "linear", "mask") if name in arrays},
    )  # fmt: skip


def _absence(rows: Tensor) -> str:
    """Why the kernel does not serve such rows."""
    if not native.loaded():
        return f"the native kernel is {native.status()}"
    if rows.device.type != "cpu":
        return f"the native kernel runs on a CPU, not on {rows.device.type}"
    return f"the native kernel has no {str(rows.dtype).removeprefix('torch.')}"


def kernel(
    stack: LinearStack | str,
    space: ParameterLayout,
    loss: object,
    x: Tensor,
    y: Tensor,
) -> NativeKernel | str:
    """The kernel for a stack, or the reason why there is none."""
    if isinstance(stack, str):
        return stack
    assert isinstance(loss, str)
    if not native.serves(x):
        return _absence(x)
    if len(stack.layers) > native.MOST_LAYERS:
        return f"the model has more than {native.MOST_LAYERS} layers"
    if any(0 in space.slots[layer.weight].shape for layer in stack.layers):
        return "the model has a layer without units"
    table = []
    for layer in stack.layers:
        out, inputs = space.slots[layer.weight].shape
        bias = -1 if layer.bias is None else space.slots[layer.bias].start
        activation = "none" if layer.activation is None else layer.activation.name
        table.append(
            [
                inputs,
                out,
                space.slots[layer.weight].start,
                bias,
                native.ACTIVATIONS.index(activation),
            ]
        )
    y = y.to(torch.int64 if loss == "cross_entropy" else x.dtype)
    return NativeKernel(
        stack, space, loss, torch.tensor(table), x.flatten(1).contiguous(), y.contiguous()
    )


def _run(
    work: native.NativeWork,
    batches: Sequence[Batch],
    steps: Tensor,
    dtype: torch.dtype,
) -> None:
    """One call: a batch per step, or one for all."""
    if any(len(batch.examples) != work.devices for batch in batches):
        raise ProgramError(
            f"a batch for {len(batches[0].examples)} devices meets {work.devices} rows; give one for each."
        )
    examples = torch.stack([batch.examples for batch in batches], dim=1)
    weights = [batch.weight for batch in batches if batch.weight is not None]
    weight = torch.stack(weights, dim=1).to(dtype) if weights else None
    work.batches, work.batch = examples.shape[1:]
    work.examples, work.steps = examples.data_ptr(), steps.data_ptr()
    work.weight = None if weight is None else weight.data_ptr()
    native.descend(work, dtype)


def _each(
    value: float | Tensor,
    count: int,
    dtype: torch.dtype,
) -> Tensor:
    """One number for every row."""
    if not isinstance(value, Tensor):
        return torch.full((count,), value, dtype=dtype)
    return value.to(dtype).reshape(-1).expand(count).contiguous()


def _rows(value: Tensor, like: Rows) -> Tensor:
    """Rows whose values lie side by side; one row may stand for all."""
    value = value.detach().expand_as(like)
    value = value if value.dtype == torch.bool else value.to(like)
    return value if value.stride(1) == 1 else value.contiguous()
