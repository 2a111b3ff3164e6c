"""Steps of linear stacks on a GPU, in as few kernels as possible.

A small kernel takes as long as its launch, whatever it computes. In a row a bias lies behind its
weight, so the two are one matrix; a column of ones beside the inputs of a layer multiplies its
bias. The means over a batch, the shrinking of a prox term and the step itself are factors of the
products. The algebra is that of `gram` and `in_place`, with other rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.engine.modules.activations import Activation
from covey.engine.modules.layout import ParameterLayout
from covey.engine.solvers.objective import DataLoss, Objective
from covey.engine.solvers.stack import Layer, LinearStack, cross_entropy
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.batches import Batch


def unfit(stack: LinearStack, space: ParameterLayout) -> str | None:
    """Why the steps of a stack are not computed here; None if they are."""
    for layer in stack.layers:
        if layer.bias is None:
            continue
        weight = space.slots[layer.weight]
        if space.slots[layer.bias].start != weight.stop:
            return "a bias does not lie behind its weight"
    return None


class Matrices:
    """The weights and biases of a stack as parts of rows, [n, inputs, outputs] each.

    Where a layer has a bias, its matrix has one line more, which is the bias.
    """

    def __init__(self, stack: LinearStack, space: ParameterLayout, rows: Rows) -> None:
        self.columns = _columns(space, stack.layers[0])
        self.first = space.slots[stack.layers[0].weight].view(rows)
        self.bias: Tensor | None = None
        if stack.layers[0].bias is not None:
            self.bias = space.slots[stack.layers[0].bias].view(rows).unsqueeze(1)
        self.upper: list[Tensor] = []  # the weight of each other layer, its bias as the last line
        for layer in stack.layers[1:]:
            outputs, _ = space.slots[layer.weight].shape
            columns = rows[:, _columns(space, layer)]
            lines = columns.shape[1] // outputs
            self.upper.append(columns.view(len(rows), lines, outputs))

    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of the first layer, without its activation."""
        z = torch.bmm(x, self.first)
        if self.bias is not None:
            z.add_(self.bias)
        return z


def _columns(space: ParameterLayout, layer: Layer) -> slice:
    """The columns of a row in which the weight and the bias of a layer lie."""
    weight = space.slots[layer.weight]
    last = weight if layer.bias is None else space.slots[layer.bias]
    return slice(weight.start, last.stop)


class Passes:
    """Passes through the layers above the first, on memory that is taken once."""

    def __init__(self, stack: LinearStack, matrices: Matrices, examples: int) -> None:
        self.examples = examples
        self._activations = [layer.activation for layer in stack.layers]
        self._classifies = stack.derivative is cross_entropy
        self._matrices = matrices.upper
        self._whole: list[Tensor] = []  # the inputs of each layer, with ones where it has a bias
        self._inputs: list[Tensor] = []  # the same without the ones
        for layer, matrix in zip(stack.layers[1:], matrices.upper, strict=True):
            count, width, _ = matrix.shape
            whole = matrix.new_ones(count, examples, width)
            self._whole.append(whole)
            self._inputs.append(whole if layer.bias is None else whole[:, :, :-1])
        minus_one = matrices.first.new_full((), -1.0)
        self._minus_one = minus_one.expand(len(matrices.first), examples, 1)

    def errors(self, z: Tensor, y: Tensor, share: Tensor | None) -> list[Tensor]:
        """The loss's derivative by the outputs of every layer, the first layer's first.

        `z` are the outputs of the first layer. The derivative is that of the sum over the examples,
        each times its `share`, if that is given.
        """
        outputs = [z]
        for whole, inputs, matrix, activation in zip(
            self._whole, self._inputs, self._matrices, self._activations, strict=False
        ):
            _activate(activation, outputs[-1], inputs)
            outputs.append(torch.bmm(whole, matrix))
        errors = outputs.pop()
        if self._classifies:
            errors = torch.softmax(errors, dim=2).scatter_add_(2, y.unsqueeze(2), self._minus_one)
        else:
            errors = errors - y.view_as(errors)
        if share is not None:
            errors.mul_(share)
        out = [errors]
        for number in reversed(range(len(self._matrices))):
            inputs = self._inputs[number]
            weight = self._matrices[number][:, : inputs.shape[2]]
            errors = torch.bmm(errors, weight.transpose(1, 2))
            errors = _back(self._activations[number], errors, outputs[number], inputs)
            out.insert(0, errors)
        return out

    def add(self, errors: list[Tensor], *, keep: float, scale: float) -> None:
        """matrices <- keep * matrices + scale * gradient, of the layers above the first."""
        for whole, matrix, own in zip(self._whole, self._matrices, errors[1:], strict=True):
            matrix.baddbmm_(whole.transpose(1, 2), own, beta=keep, alpha=scale)


def _activate(activation: Activation | None, z: Tensor, out: Tensor) -> None:
    """Write the inputs of the next layer."""
    if activation is None:
        out.copy_(z)
    elif activation.name == "relu":
        torch.clamp(z, min=0, out=out)
    else:
        out.copy_(activation.run(z))


def _back(activation: Activation | None, errors: Tensor, z: Tensor, out: Tensor) -> Tensor:
    """The derivative by what went into an activation, from that by what came out."""
    if activation is None:
        return errors
    if activation.name == "relu":
        masked: Tensor = torch.ops.aten.threshold_backward(errors, out, 0)
        return masked
    return errors * activation.slope(z, out)


def shares(batch: Batch) -> tuple[float, Tensor | None]:
    """The share of an example in its row's mean: one number for all, or one for each."""
    if batch.weight is None:
        return 1 / batch.y.shape[1], None
    share = batch.weight / batch.weight.sum(1, keepdim=True)
    return 1.0, share.unsqueeze(2)


def factored(loss: DataLoss, start: Rows, terms: Objective) -> Rows:
    """The rows after `terms.steps` plain steps on one batch; see `gram`.

    The outputs z of the first layer follow from its errors alone: z <- shrink z + pull z_anchor -
    lr (x x' + 1) errors, where the 1 is the bias.
    """
    stack, space, l2 = loss.task.stack, loss.task.space, loss.task.l2
    batch, lr = loss.fixed, terms.lr
    assert isinstance(stack, LinearStack)
    assert batch is not None
    assert not isinstance(lr, Tensor)
    shrink, pull, anchor = terms.quadratic(start, lr, l2)
    mean, share = shares(batch)
    scale = -lr * mean
    x, y = batch.x.flatten(2), batch.y
    x_transposed = x.transpose(1, 2)
    matrices = Matrices(stack, space, start)
    at_anchor = Matrices(stack, space, anchor)
    out = all_but(matrices.columns, start)
    moving = Matrices(stack, space, out)
    passes = Passes(stack, moving, x.shape[1])
    gram = torch.bmm(x, x_transposed)
    if moving.bias is not None:
        gram.add_(1)
    z = matrices.outputs(x)
    z_anchor = z.clone()
    if anchor is not start:
        z_anchor = at_anchor.outputs(x)
    from_start = 1.0
    from_anchor = 0.0
    total = torch.zeros_like(z)
    for _ in range(terms.longest):
        errors = passes.errors(z, y, share)
        passes.add(errors, keep=shrink, scale=scale)
        z.baddbmm_(gram, errors[0], beta=shrink, alpha=scale)
        if pull:
            z.add_(z_anchor, alpha=pull)
            for matrix, other in zip(moving.upper, at_anchor.upper, strict=True):
                matrix.add_(other, alpha=pull)
        total = torch.add(errors[0], total, alpha=shrink)
        from_start = shrink * from_start
        from_anchor = shrink * from_anchor + pull
    columns = matrices.columns
    if terms.decay + l2 == 0:  # the two factors add up to 1, and one pass over the weights does
        torch.lerp(start[:, columns], anchor[:, columns], from_anchor, out=out[:, columns])
    else:
        kept = from_start * start[:, columns]
        torch.add(kept, anchor[:, columns], alpha=from_anchor, out=out[:, columns])
    moving.first.baddbmm_(x_transposed, total, alpha=scale)
    if moving.bias is not None:
        moving.bias.add_(total.sum(1, keepdim=True), alpha=scale)
    return out


def all_but(columns: slice, rows: Rows) -> Rows:
    """A copy in which some columns are not yet set."""
    out = torch.empty_like(rows)
    out[:, : columns.start] = rows[:, : columns.start]
    out[:, columns.stop :] = rows[:, columns.stop :]
    return out
