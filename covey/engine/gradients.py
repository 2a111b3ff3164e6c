"""Outputs, losses, gradients and Hessian products of many models, each on its own batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from covey.engine.augment import Augmentation, augmented
from covey.engine.batches import Batch
from covey.engine.measures.losses import LossFunction, by_target, cross_entropy, losses_of
from covey.engine.modules import dropout, norm
from covey.engine.modules.dropout import Site
from covey.engine.modules.forward import Forward
from covey.engine.modules.layout import ParameterLayout
from covey.engine.modules.passing import Pass
from covey.engine.solvers.precision import Precision
from covey.engine.solvers.stack import LinearStack
from covey.types import Rows


@dataclass(frozen=True, eq=False)
class Gradients:
    """A module and a loss, as functions of rows [n, P]."""

    space: ParameterLayout
    forward: Forward
    stack: LinearStack | str  # or why the module and the loss are no stack
    loss: LossFunction
    classifies: bool
    precision: Precision
    sites: tuple[Site, ...] = ()  # where the module drops entries in training
    augment: tuple[Augmentation, ...] = ()  # what is done to a training batch

    def views(self, x: Rows) -> list[Tensor]:
        """The parameters in rows, as the module knows them."""
        return [slot.view(x) for slot in self.space.slots]

    def outputs(
        self,
        x: Rows,
        batch: Batch,
        statistics: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """Each row's outputs on its batch, [n, B, ...].

        `statistics` are those of its norm layers; None: those of the batch.
        """
        pass_ = Pass(self.views(x), weight=batch.weight, statistics=statistics)
        return self.forward(pass_, batch.x)

    def statistics(self, x: Rows, batch: Batch) -> Rows:
        """What the norm layers of each row take from its batch, [n, S]."""
        with torch.no_grad():
            pass_ = Pass(self.views(x), weight=batch.weight)
            recorded = self.forward.statistics(pass_, batch.x)
        return norm.joined(self.space.norms, recorded, x)

    def training_outputs(self, parameters: list[Tensor], batch: Batch) -> Tensor:
        """The outputs of which a gradient is taken, [n, B, ...]."""
        pass_ = self._training_pass(parameters, batch)
        return self.forward(pass_, self.inputs(batch))

    def _training_pass(self, parameters: list[Tensor], batch: Batch) -> Pass:
        """The pass of which a gradient is taken.

        A batch without a draw is passed through the module in eval mode, if that would drop.
        """
        masks: tuple[Tensor, ...] = ()
        if self.sites and batch.draw is not None:
            size = batch.examples.shape[1]
            masks = dropout.masks(self.sites, batch.draw, size, parameters[0].dtype)
        training = not self.sites or batch.draw is not None
        return Pass(parameters, masks, weight=batch.weight, training=training)

    def inputs(self, batch: Batch) -> Tensor:
        """The examples of a training batch, augmented if it has a draw, [n, B, ...]."""
        if not self.augment or batch.draw is None:
            return batch.x
        return augmented(self.augment, batch.x, batch.draw)

    def _outputs_for_gradient(self, parameters: list[Tensor], batch: Batch) -> Tensor:
        """As `training_outputs`, with products in the type that `precision` says."""
        with self.precision.products():
            outputs = self.training_outputs(parameters, batch)
        return outputs.to(parameters[0].dtype)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss per example, [n, B], or per position, [n, B * T]."""
        return losses_of(self.loss, outputs, y)

    def gradient(self, x: Rows, batch: Batch) -> Rows:
        """The gradient of each row's mean loss on its batch, [n, P]."""
        if isinstance(self.stack, str):
            return self.by_autograd(x, batch)
        out = torch.empty_like(x)
        parameters = self.views(x)
        factors = self.stack.factors(parameters, self.inputs(batch), batch.y, batch.weight)
        self.stack.add(self.views(out), factors, scale=1.0, keep=0.0)
        return out

    def by_autograd(self, x: Rows, batch: Batch) -> Rows:
        """The gradient of each row's mean loss, by autograd, [n, P]."""
        if not len(x):
            return torch.zeros_like(x)
        leaves = self.leaves(x)
        if self.forward.single is None:
            [gradients] = self.of_leaves(leaves, batch)
            return torch.cat([gradient.reshape(len(x), -1) for gradient in gradients], dim=1)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        for row, gradients in zip(out.unbind(), self.of_leaves(leaves, batch), strict=True):
            stored = self.space.oriented(gradients)
            torch.cat([gradient.flatten() for gradient in stored], out=row)
        return out

    def leaves(self, x: Rows) -> list[list[Tensor]]:
        """The parameters in rows as leaves of autograd, which share the memory of the rows.

        They are those of all rows together, [n, ...]. Where rows run one by one, they are those of
        each row in the shapes of the module.
        """
        views = self.views(x)
        if self.forward.single is None:
            return [_leaves(views)]
        by_parameter = []
        for slot, view in zip(self.space.slots, views, strict=True):
            if slot.transposed:
                view = view.mT
            by_parameter.append(view.unbind())
        return [_leaves(parameters) for parameters in zip(*by_parameter, strict=True)]

    def of_leaves(self, leaves: list[list[Tensor]], batch: Batch) -> Iterator[tuple[Tensor, ...]]:
        """The gradients of mean losses by `leaves`, in the same form."""
        if self.forward.single is None:
            [parameters] = leaves
            with torch.enable_grad():
                outputs = self._outputs_for_gradient(parameters, batch)
                losses = self.losses(outputs, batch.y)
            shares = _shares(losses, batch.target_weight)
            yield torch.autograd.grad(losses, parameters, shares, materialize_grads=True)
            return
        for i, parameters in enumerate(leaves):  # holds one row's activations at a time
            yield self._of_row(parameters, batch.row(i))

    def _of_row(self, leaves: list[Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """The gradient of one row's mean loss, parameter by parameter."""
        assert self.forward.single is not None
        pass_ = self._training_pass(leaves, batch)
        if pass_.masks or pass_.weight is not None:
            pass_ = pass_.of_first(leaves)
        x = self.inputs(batch)[0]
        weight = None if batch.target_weight is None else batch.target_weight[0]
        with torch.enable_grad():
            with self.precision.products():
                outputs = self.forward.single(pass_, x)
            outputs = outputs.to(leaves[0].dtype)
            if batch.by_position:
                losses = self.losses(outputs[None], batch.y)[0]
            else:
                losses = self.loss(outputs, batch.y[0])
        if weight is None and losses.is_cpu:
            shares = _equal_shares(losses.shape, losses.dtype)
        else:
            shares = _shares(losses, weight)
        return torch.autograd.grad(losses, leaves, shares, materialize_grads=True)

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
            # A rehearsal is to find what cannot work.
            loss(self._outputs_for_gradient(self.views(x), batch))
            return torch.zeros_like(x)
        with torch.enable_grad():
            outputs = self._outputs_for_gradient(self.views(leaf), batch)
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
            for i, (row, direction) in enumerate(zip(x[:, None], v[:, None], strict=True)):
                products.append(self.hessian_product(row, batch.row(i), direction))
            return torch.cat(products)
        out = torch.zeros_like(x)
        if not len(x):
            return out
        leaves = _leaves(self.views(x))
        outputs = []
        weights = []
        with torch.enable_grad():
            gradients = self._differentiable(leaves, batch)
            for gradient, weight in zip(gradients, self.views(v), strict=True):
                if gradient.requires_grad:
                    outputs.append(gradient)
                    weights.append(weight)
            if not outputs:  # the loss is linear in the parameters
                return out
            values = torch.autograd.grad(outputs, leaves, weights, materialize_grads=True)
        for view, value in zip(self.views(out), values, strict=True):
            view.copy_(value)
        return out

    def no_hessian(self, x: Rows, batch: Batch) -> str | None:
        """Why autograd has no second derivative of this module and loss; None where it has one.

        Some layers have a gradient but no derivative of it, such as fused attention.
        """
        leaves = _leaves(self.views(x))
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

    def _differentiable(self, leaves: list[Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """The gradient of each row's mean loss, itself a function of the leaves."""
        outputs = self.training_outputs(leaves, batch)
        one_axis = outputs.ndim == batch.y.ndim + 1
        if self.loss is cross_entropy and self.classifies and one_axis:
            errors = _cross_entropy_errors(outputs, batch)
            return torch.autograd.grad(
                outputs, leaves, errors, create_graph=True, materialize_grads=True
            )
        losses = self.losses(outputs, batch.y)
        # The sum over rows of their mean losses: each row's gradient depends on its own alone.
        weight = batch.target_weight
        if weight is None:
            weight = torch.ones_like(losses)
        total = weighted_mean(losses, weight).sum()
        return torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)


def _leaves(views: Sequence[Tensor]) -> list[Tensor]:
    return [view.detach().requires_grad_() for view in views]


def _cross_entropy_errors(outputs: Tensor, batch: Batch) -> Tensor:
    """The derivative of each row's mean cross-entropy by its outputs, in their shape.

    It is softmax - one_hot: the second derivative of log_softmax has bits that depend on n.
    """
    scores, y, _ = by_target(outputs, batch.y)
    weight = batch.target_weight
    if weight is None:
        weight = torch.ones_like(y)
    weight = weight.to(outputs.dtype)
    share = weight / weight.sum(1, keepdim=True)
    label = y.unsqueeze(2)
    minus_one = outputs.new_full((), -1.0).expand(label.shape)
    probabilities = torch.softmax(scores, dim=2)
    errors = probabilities.scatter_add(2, label, minus_one)
    errors = errors * share.unsqueeze(2)
    return errors.view_as(outputs)


def _shares(losses: Tensor, weight: Tensor | None) -> Tensor:
    """The derivative of each row's mean loss by its losses, in their shape."""
    if weight is None:
        return torch.full_like(losses, 1 / losses.shape[-1])
    weight = weight.to(losses.dtype)  # of positions it says only which have a label
    return weight / weight.sum(-1, keepdim=True)


@lru_cache(maxsize=16)
def _equal_shares(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """As `_shares`, of losses on a CPU that weigh the same: to make it anew takes 3 % of a row."""
    return torch.full(shape, 1 / shape[-1], dtype=dtype)


def weighted_mean(losses: Tensor, weight: Tensor) -> Tensor:
    """The mean loss of each row, [n]."""
    total = (losses * weight).sum(1)
    return total / weight.sum(1)
