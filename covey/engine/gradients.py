"""Outputs, losses, gradients and Hessian products of many models, each on its own batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.engine.batches import Batch
from covey.engine.forward import Forward
from covey.engine.layout import ParameterLayout
from covey.engine.losses import LossFunction, cross_entropy
from covey.engine.passing import Pass
from covey.engine.stack import LinearStack
from covey.types import Rows


@dataclass(frozen=True, eq=False)
class Gradients:
    """A module and a loss, as functions of rows [n, P]."""

    space: ParameterLayout
    forward: Forward
    stack: LinearStack | str  # or why the module and the loss are no stack
    loss: LossFunction
    classifies: bool

    def views(self, x: Rows) -> list[Tensor]:
        """The parameters in rows, as the module knows them."""
        return [slot.view(x) for slot in self.space.slots]

    def outputs(self, x: Rows, batch: Batch) -> Tensor:
        """Each row's outputs on its batch, [n, B, ...]."""
        pass_ = Pass(self.views(x), weight=batch.weight)
        return self.forward(pass_, batch.x)

    def _training_outputs(self, parameters: list[Tensor], batch: Batch) -> Tensor:
        """The outputs of which a gradient is taken, [n, B, ...]."""
        pass_ = Pass(parameters, weight=batch.weight, training=True)
        return self.forward(pass_, batch.x)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss per example, [n, B]."""
        n, size = y.shape[:2]
        all_outputs = outputs.flatten(0, 1)
        all_targets = y.flatten(0, 1)
        losses = self.loss(all_outputs, all_targets)
        if losses.numel() != n * size:
            return losses
        return losses.view(n, size)

    def mean_loss(self, x: Rows, batch: Batch) -> Tensor:
        """Each row's mean loss on its batch, [n]."""
        if not len(x):
            return x.new_zeros(0)
        outputs = self.outputs(x, batch)
        losses = self.losses(outputs, batch.y)
        if batch.weight is None:
            return losses.mean(1)
        return _weighted_mean(losses, batch.weight)

    def gradient(self, x: Rows, batch: Batch) -> Rows:
        """The gradient of each row's mean loss on its batch, [n, P]."""
        out = torch.empty_like(x)
        if isinstance(self.stack, str):
            self._fill(out, self.by_autograd(x, batch))
            return out
        parameters = self.views(x)
        factors = self.stack.factors(parameters, batch.x, batch.y, batch.weight)
        self.stack.add(self.views(out), factors, scale=1.0, keep=0.0)
        return out

    def by_autograd(self, x: Rows, batch: Batch) -> tuple[Tensor, ...]:
        """The gradient of each row's mean loss, parameter by parameter."""
        if self.forward.path == "each" and len(x) > 1:  # holds one row's activations at a time
            by_row = []
            for i in range(len(x)):
                gradients = self.by_autograd(_row(x, i), batch.row(i))
                by_row.append(gradients)
            by_parameter = zip(*by_row, strict=True)
            return tuple(torch.cat(parts) for parts in by_parameter)
        leaves = self._leaves(x)
        if not len(x):
            return tuple(torch.zeros_like(leaf) for leaf in leaves)
        with torch.enable_grad():
            outputs = self._training_outputs(leaves, batch)
            losses = self.losses(outputs, batch.y)
            total = _total(losses, batch.weight)
            return torch.autograd.grad(total, leaves)

    def gradient_of(self, x: Rows, batch: Batch, loss: Callable[[Tensor], Tensor]) -> Rows:
        """The gradient of a loss of one's own.

        It takes the outputs [n, B, ...] and gives one number per row, [n].
        """
        leaf = x.detach().requires_grad_()
        if not len(x):
            # A rehearsal is to find what cannot work.
            loss(self._training_outputs(self.views(x), batch))
            return torch.zeros_like(x)
        with torch.enable_grad():
            outputs = self._training_outputs(self.views(leaf), batch)
            total = loss(outputs).sum()
            [gradient] = torch.autograd.grad(total, leaf)
        return gradient

    def hessian_product(self, x: Rows, batch: Batch, v: Rows) -> Rows:
        """H v per row, H being the Hessian of the row's mean loss on its batch, [n, P].

        It is the derivative of <gradient, v> by autograd. A difference of gradients is far off if
        a ReLU switches between its two points.
        """
        by_autograd = isinstance(self.stack, str)
        if by_autograd and x.device.type == "cpu" and len(x) > 1:
            # The bits of a norm's second derivative depend on the number of rows.
            products = []
            for i in range(len(x)):
                product = self.hessian_product(_row(x, i), batch.row(i), _row(v, i))
                products.append(product)
            return torch.cat(products)
        out = torch.zeros_like(x)
        if len(x):
            self._fill(out, self._products(x, batch, v))
        return out

    def _fill(self, rows: Rows, values: tuple[Tensor, ...]) -> None:
        """Write the values of every parameter into the rows."""
        for view, value in zip(self.views(rows), values, strict=True):
            view.copy_(value)

    def _products(self, x: Rows, batch: Batch, v: Rows) -> tuple[Tensor, ...]:
        """H v per row, parameter by parameter."""
        leaves = self._leaves(x)
        directions = self.views(v)
        outputs = []
        weights = []
        with torch.enable_grad():
            gradients = self._differentiable(leaves, batch)
            for gradient, weight in zip(gradients, directions, strict=True):
                if gradient.requires_grad:
                    outputs.append(gradient)
                    weights.append(weight)
            if not outputs:  # the loss is linear in the parameters
                return tuple(torch.zeros_like(leaf) for leaf in leaves)
            return torch.autograd.grad(outputs, leaves, weights, materialize_grads=True)

    def no_hessian(self, x: Rows, batch: Batch) -> str | None:
        """Why autograd has no second derivative of this module and loss; None where it has one.

        Some layers have a gradient but no derivative of it, such as fused attention.
        """
        leaves = self._leaves(x)
        try:
            with torch.enable_grad():
                gradients = self._differentiable(leaves, batch)
            curved = [gradient for gradient in gradients if gradient.requires_grad]
            ones = [torch.ones_like(gradient) for gradient in curved]
            if curved:  # through the whole graph: `grad` would pass over what leads to no leaf
                torch.autograd.backward(curved, ones)
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None

    def _leaves(self, x: Rows) -> list[Tensor]:
        return [view.detach().requires_grad_() for view in self.views(x)]

    def _differentiable(self, leaves: list[Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """The gradient of each row's mean loss, itself a function of the leaves."""
        outputs = self._training_outputs(leaves, batch)
        if self.loss is cross_entropy and self.classifies and outputs.ndim == 3:
            errors = _cross_entropy_errors(outputs, batch)
            return torch.autograd.grad(outputs, leaves, errors, create_graph=True)
        losses = self.losses(outputs, batch.y)
        total = _total(losses, batch.weight)
        return torch.autograd.grad(total, leaves, create_graph=True)


def _row(x: Rows, i: int) -> Rows:
    """One row, [1, P]."""
    return x[i : i + 1]


def _cross_entropy_errors(outputs: Tensor, batch: Batch) -> Tensor:
    """The derivative of each row's mean cross-entropy by its outputs, [n, B, classes].

    It is softmax - one_hot: the second derivative of log_softmax has bits that depend on n.
    """
    weight = batch.weight
    if weight is None:
        weight = torch.ones_like(batch.y, dtype=outputs.dtype)
    share = weight / weight.sum(1, keepdim=True)
    label = batch.y.unsqueeze(2)
    minus_one = outputs.new_full((), -1.0).expand(label.shape)
    probabilities = torch.softmax(outputs, dim=2)
    errors = probabilities.scatter_add(2, label, minus_one)
    return errors * share.unsqueeze(2)


def _total(losses: Tensor, weight: Tensor | None) -> Tensor:
    """The sum over rows of their mean losses: each row's gradient depends on its own alone."""
    if weight is None:
        weight = torch.ones_like(losses)
    return _weighted_mean(losses, weight).sum()


def _weighted_mean(losses: Tensor, weight: Tensor) -> Tensor:
    """The mean loss of each row, [n]."""
    total = (losses * weight).sum(1)
    return total / weight.sum(1)
