"""Outputs, losses, gradients and Hessian products of many models, each on its own batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.engine.batches import Batch
from covey.engine.forward import Forward
from covey.engine.layout import ParameterLayout
from covey.engine.losses import cross_entropy
from covey.engine.stack import LinearStack
from covey.types import Rows


@dataclass(frozen=True, eq=False)
class Gradients:
    """A module and a loss, as functions of rows [n, P]."""

    space: ParameterLayout
    forward: Forward
    stack: LinearStack | str  # or why the module and the loss are no stack
    loss: Callable[[Tensor, Tensor], Tensor]
    classifies: bool

    def views(self, x: Rows) -> list[Tensor]:
        """The parameters in rows, as the module knows them."""
        return [slot.view(x) for slot in self.space.slots]

    def outputs(self, x: Rows, batch: Batch) -> Tensor:
        """What each row's module makes of its examples, [n, B, ...]."""
        return self.forward(self.views(x), batch.x)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss per example, [n, B]."""
        n, size = y.shape[:2]
        losses = self.loss(outputs.flatten(0, 1), y.flatten(0, 1))
        return losses.view(n, size) if losses.numel() == n * size else losses

    def mean_loss(self, x: Rows, batch: Batch) -> Tensor:
        """Each row's mean loss on its batch, [n]."""
        if not len(x):
            return x.new_zeros(0)
        losses = self.losses(self.outputs(x, batch), batch.y)
        if batch.weight is None:
            return losses.mean(1)
        return (losses * batch.weight).sum(1) / batch.weight.sum(1)

    def gradient(self, x: Rows, batch: Batch) -> Rows:
        """The gradient of each row's mean loss on its batch, [n, P]."""
        out = torch.empty_like(x)
        views = self.views(out)
        if isinstance(self.stack, str):
            for view, g in zip(views, self.by_autograd(x, batch), strict=True):
                view.copy_(g)
            return out
        factors = self.stack.factors(self.views(x), batch.x, batch.y, batch.weight)
        self.stack.add(views, factors, scale=1.0, keep=0.0)
        return out

    def by_autograd(self, x: Rows, batch: Batch) -> tuple[Tensor, ...]:
        """The gradient of each row's mean loss, parameter by parameter."""
        if self.forward.path == "each" and len(x) > 1:  # holds one row's activations at a time
            apart = [self.by_autograd(x[i : i + 1], batch.row(i)) for i in range(len(x))]
            return tuple(torch.cat(gradients) for gradients in zip(*apart, strict=True))
        leaves = self._leaves(x)
        if not len(x):
            return tuple(torch.zeros_like(leaf) for leaf in leaves)
        with torch.enable_grad():
            losses = self.losses(self.forward(leaves, batch.x), batch.y)
            return torch.autograd.grad(_total(losses, batch.weight), leaves)

    def gradient_of(
        self,
        x: Rows,
        batch: Batch,
        loss: Callable[[Tensor], Tensor],
    ) -> Rows:
        """The gradient of a loss of one's own.

        It takes the outputs [n, B, ...] and gives one number per row, [n].
        """
        leaf = x.detach().requires_grad_()
        if not len(x):
            loss(self.outputs(x, batch))  # a rehearsal is to find what cannot work
            return torch.zeros_like(x)
        with torch.enable_grad():
            return torch.autograd.grad(loss(self.outputs(leaf, batch)).sum(), leaf)[0]

    def hessian_product(
        self,
        x: Rows,
        batch: Batch,
        v: Rows,
    ) -> Rows:
        """H v per row, H being the Hessian of the row's mean loss on its batch, [n, P].

        It is the derivative of <gradient, v> by autograd. A difference of gradients is far off if
        a ReLU switches between its two points.
        """
        apart = isinstance(self.stack, str) and x.device.type == "cpu"
        if apart and len(x) > 1:  # bits of a norm's second derivative depend on the number of rows
            alone = [slice(i, i + 1) for i in range(len(x))]
            return torch.cat([self.hessian_product(x[i], batch.row(i.start), v[i]) for i in alone])
        out = torch.zeros_like(x)
        if not len(x):
            return out
        leaves = self._leaves(x)
        with torch.enable_grad():
            gradients = self._differentiable(leaves, batch)
            curved = [i for i, gradient in enumerate(gradients) if gradient.requires_grad]
            if not curved:  # the loss is linear in the parameters
                return out
            along = self.views(v)
            outputs = [gradients[i] for i in curved]
            weights = [along[i] for i in curved]
            parts = torch.autograd.grad(outputs, leaves, weights, materialize_grads=True)
        for view, product in zip(self.views(out), parts, strict=True):
            view.copy_(product)
        return out

    def no_hessian(self, x: Rows, batch: Batch) -> str | None:
        """Why autograd has no second derivative of this module and loss; None where it has one.

        Some layers have a gradient but no derivative of it, such as fused attention.
        """
        leaves = self._leaves(x)
        try:
            with torch.enable_grad():
                gradients = self._differentiable(leaves, batch)
            curved = [gradient for gradient in gradients if gradient.requires_grad]
            if curved:  # through the whole graph: `grad` would pass over what leads to no leaf
                torch.autograd.backward(curved, [torch.ones_like(gradient) for gradient in curved])
        except RuntimeError as error:
            return str(error).splitlines()[0]
        return None

    def _leaves(self, x: Rows) -> list[Tensor]:
        return [view.detach().requires_grad_() for view in self.views(x)]

    def _differentiable(self, leaves: list[Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """The gradient of each row's mean loss, itself a function of the leaves."""
        outputs = self.forward(leaves, batch.x)
        if self.loss is cross_entropy and self.classifies and outputs.ndim == 3:
            # As softmax - one_hot: the second derivative of log_softmax has bits that depend on n.
            weight = batch.weight
            if weight is None:
                weight = torch.ones_like(batch.y, dtype=outputs.dtype)
            share = (weight / weight.sum(1, keepdim=True)).unsqueeze(2)
            minus_one = outputs.new_full((), -1.0).expand(*batch.y.shape, 1)
            errors = torch.softmax(outputs, dim=2).scatter_add(2, batch.y.unsqueeze(2), minus_one)
            return torch.autograd.grad(outputs, leaves, errors * share, create_graph=True)
        losses = self.losses(outputs, batch.y)
        return torch.autograd.grad(_total(losses, batch.weight), leaves, create_graph=True)


def _total(losses: Tensor, weight: Tensor | None) -> Tensor:
    """The sum over rows of their mean losses: each row's gradient depends on its own alone."""
    if weight is None:
        weight = torch.ones_like(losses)
    return ((losses * weight).sum(1) / weight.sum(1)).sum()
