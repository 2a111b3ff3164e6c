"""Whole descents in the native kernel: stack, batches and terms as the arrays of rows.c."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey import native
from covey.engine.modules.layout import ParameterLayout
from covey.engine.solvers.objective import MIN_STEPS, DataLoss, Gradient, Objective
from covey.engine.solvers.stack import Layer, LinearStack
from covey.errors import ProgramError
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.batches import Batch
    from covey.engine.task import Task

_SCORED = 48  # examples that meet a model together when it is scored
AHEAD = 64  # steps whose batches go into one call, which caps the memory for their indices


@dataclass(frozen=True, eq=False)
class NativeKernel:
    """A stack and everybody's examples, as rows.c knows them."""

    stack: LinearStack
    space: ParameterLayout
    loss: str
    table: Tensor
    x: Tensor
    y: Tensor

    def score(
        self, rows: Rows, index: Tensor, starts: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Right answers and summed loss of each row, float64 [n] each.

        A row is scored on the examples index[start : start + count].
        """
        work = native.NativeWork(
            devices=len(rows),
            width=self.space.width,
            batch=_SCORED,
            batches=1,
            examples=index.data_ptr(),
        )
        self.bind(work, rows)
        if len(rows) != len(starts):
            raise ProgramError(
                f"{len(rows)} rows to score for {len(starts)} devices; give one each."
            )
        rows = _rows(rows, rows)
        work.start = rows.data_ptr()
        work.start_stride = rows.stride(0)
        return native.score(work, rows.dtype, starts.contiguous(), counts.contiguous())

    def bind(self, work: native.NativeWork, rows: Rows) -> None:
        """Let the work on these rows read this model and these examples."""
        if rows.ndim != 2 or rows.shape[1] != self.space.width:  # the kernel trusts its numbers
            raise ProgramError(
                f"rows of shape {tuple(rows.shape)}, but a model has {self.space.width} "
                "parameters; a descent on data needs whole models "
                "(`part` keeps columns as they are)."
            )
        work.layers = len(self.table)
        work.table = self.table.data_ptr()
        work.x = self.x.data_ptr()
        work.y = self.y.data_ptr()
        work.examples_held = len(self.x)
        work.loss = native.LOSSES.index(self.loss)


def refusal(gradient: Gradient, start: Rows, terms: Objective) -> str | None:
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


def gradient_refusal(task: Task, x: Rows, batch: Batch | None) -> str | None:
    """Why the kernel cannot take gradients at these rows, on a batch if one is given."""
    if isinstance(task.native, str):
        return task.native
    if task.augment:
        return "the examples are augmented"
    if batch is not None and (batch.data[0] is not task.x or batch.data[1] is not task.y):
        return "the batch is of other examples than the task's"
    if x.dtype != task.dtype or not native.serves(x):
        return f"rows are {x.dtype}, but the examples {task.dtype}"
    return None


def data_refusal(
    loss: DataLoss, start: Rows, terms: Objective, *, factored: bool = False
) -> str | None:
    """As `refusal`, for steps on mini-batches, which may be `factored`."""
    if factored and (reason := loss.unfactored(terms)):
        return reason
    if loss.all_examples:
        return "each step takes the gradient of all examples"
    reason = gradient_refusal(loss.task, start, loss.fixed)
    return reason or refusal(loss, start, terms)


def on_batches(loss: DataLoss, start: Rows, terms: Objective, *, factored: bool = False) -> Rows:
    """Plain steps on mini-batches.

    Those on one batch may be `factored`, for each row that takes enough of them.
    """
    kernel = loss.task.native
    assert isinstance(kernel, NativeKernel)
    rows = torch.empty_like(start, memory_format=torch.contiguous_format)
    work = make_work(start, terms, terms.decay + loss.task.l2, to=rows, kernel=kernel)
    if loss.fixed is not None:
        if factored:
            work.factored = MIN_STEPS
        give(work, [loss.fixed], start.dtype)
        native.descend(work, start.dtype)
        return rows
    longest = terms.longest
    if longest == 0:
        return start.clone()
    steps = work.arrays["steps"]
    for first in range(0, longest, AHEAD):
        stop = min(first + AHEAD, longest)
        give(work, list(map(loss.batch_of, range(first, stop))), start.dtype)
        work.fresh = stop - first > 1
        steps_of_call = (steps - first).clamp(max=stop - first)
        work.steps = steps_of_call.data_ptr()
        native.descend(work, start.dtype)
        work.start = work.rows
        work.start_stride = kernel.space.width
    return rows


def without_data(gradient: Gradient, start: Rows, terms: Objective) -> Rows:
    """Plain steps on all terms but a data loss: one pass over the rows per step."""
    rows = torch.empty_like(start, memory_format=torch.contiguous_format)
    work = make_work(start, terms, terms.decay, to=rows)
    native.descend(work, start.dtype)
    return rows


def gradient(task: Task, x: Rows, batch: Batch) -> Rows:
    """The gradient of each row's mean loss on its batch: one step of size -1 from 0."""
    kernel = task.native
    assert isinstance(kernel, NativeKernel)
    zeros = x.new_zeros(1, x.shape[1]).expand_as(x)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    work = make_work(zeros, Objective(1, -1.0), 0.0, to=out, at=x, kernel=kernel)
    give(work, [batch], x.dtype)
    native.descend(work, x.dtype)
    return out


def make_work(
    start: Rows,
    terms: Objective,
    decay: float,
    *,
    to: Rows,
    at: Rows | None = None,
    other: tuple[Rows, float | Tensor] | None = None,
    kernel: NativeKernel | None = None,
) -> native.NativeWork:
    """A call of steps from `start` to `to`, on a model's data unless there is no kernel."""
    devices, width = len(start), start.shape[-1]
    numbers: dict[str, float | Tensor] = {"lr": terms.lr, "lam": 0.0, "gamma": 0.0}
    numbers["steps"] = terms.steps
    rows = {"start": start, "linear": terms.linear, "mask": terms.mask, "at": at}
    if terms.prox is not None:
        numbers["lam"], rows["anchor"] = terms.prox
    if other is not None:
        rows["other"], numbers["share"] = other
    part_start, part_stop, _ = (terms.part or slice(None)).indices(width)
    work = native.NativeWork(
        devices=devices,
        width=width,
        batches=1,
        rows=to.data_ptr(),
        part_start=part_start,
        part_stop=part_stop,
        decay=decay,
        linear_scale=1.0,
        l1=native.NO_L1,
    )
    work.arrays = {}
    if kernel is not None:
        kernel.bind(work, start)
    if terms.l1 is not None:
        numbers["gamma"], work.rho = terms.l1
        work.l1 = native.SMOOTH if work.rho > 0 else native.SOFT
    for name, number in numbers.items():  # one for every row
        dtype = torch.int64 if name == "steps" else torch.float64
        if isinstance(number, Tensor):
            each = number.to(dtype).reshape(-1).expand(devices).contiguous()
        else:  # one call of torch: workers wait for each other at every one
            each = torch.full((devices,), number, dtype=dtype)
        work.point(name, each)
    for name, value in rows.items():
        if value is not None:
            array = _rows(value, start)
            work.point(name, array)
            setattr(work, f"{name}_stride", array.stride(0))
    return work


def kernel(
    stack: LinearStack | str, space: ParameterLayout, loss: object, x: Tensor, y: Tensor
) -> NativeKernel | str:
    """The kernel for a stack, or the reason why there is none."""
    if isinstance(stack, str):
        return stack
    assert isinstance(loss, str)
    if not native.serves(x):
        if not native.loaded():
            return f"the native kernel is {native.status()}"
        if x.device.type != "cpu":
            return f"the native kernel runs on a CPU, not on {x.device.type}"
        return f"the native kernel has no {str(x.dtype).removeprefix('torch.')}"
    if len(stack.layers) > native.MAX_LAYERS:
        return f"the model has more than {native.MAX_LAYERS} layers"
    shapes = [space.slots[layer.weight].shape for layer in stack.layers]
    if any(0 in shape for shape in shapes):
        return "the model has a layer without units"
    table = [_description(layer, space) for layer in stack.layers]
    y = y.to(torch.int64 if loss == "cross_entropy" else x.dtype).contiguous()
    return NativeKernel(stack, space, loss, torch.tensor(table), x.flatten(1).contiguous(), y)


def _description(layer: Layer, space: ParameterLayout) -> list[int]:
    """One line of the kernel's table of layers."""
    weight = space.slots[layer.weight]
    outputs, inputs = weight.shape
    bias = -1 if layer.bias is None else space.slots[layer.bias].start
    activation = 0
    parameter = 0.0
    if layer.activation is not None:
        activation = native.ACTIVATIONS.index(layer.activation.name)
        parameter = layer.activation.parameter
    [parameter_bits] = struct.unpack("q", struct.pack("d", parameter))
    return [inputs, outputs, weight.start, bias, activation, parameter_bits]


def give(work: native.NativeWork, batches: Sequence[Batch], dtype: torch.dtype) -> None:
    """Let the work read these batches: one for every step, or one for all."""
    examples = torch.stack([batch.examples for batch in batches], dim=1)
    if len(examples) != work.devices:
        raise ProgramError(
            f"a batch for {len(examples)} devices meets {work.devices} rows; give one for each."
        )
    weights = [batch.weight for batch in batches if batch.weight is not None]
    work.batches, work.batch = examples.shape[1:]
    work.point("examples", examples)
    work.weight = None
    if weights:
        work.point("weight", torch.stack(weights, dim=1).to(dtype))


def _rows(value: Tensor, like: Rows) -> Tensor:
    """Rows whose values lie side by side; one row may stand for all."""
    value = value.detach().expand_as(like)
    if value.dtype != torch.bool:
        value = value.to(like)
    if value.stride(1) != 1:
        value = value.contiguous()
    return value
