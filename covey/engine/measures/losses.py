"""Losses: one number per example, by name or by a function of the user's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from covey.data import NO_TARGET, Scaling, Shards
from covey.engine.measures.named_losses import NAMED, Huber, named_loss
from covey.errors import ConfigError, DataError, meant, shown
from covey.origin import FAULTS, told

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""From outputs [N, ...] and targets [N, ...] to one loss per example [N].

Where labels are per position, every position counts as an example.
"""
Loss = str | LossFunction | Mapping[str, Any]
"""By name, a table with a name and settings, or a function.

"auto" is cross_entropy for classes, bce for several yes-or-no labels and squared_error for numbers.
"mse" is squared_error too.
"""


def resolved_loss(loss: Loss, shards: Shards) -> Loss:
    """The loss that a name or a table means for this data; a function as it is.

    >>> resolved_loss({"name": "huber", "delta": 2}, None)
    Huber(delta=2.0)
    """
    if callable(loss):
        return loss
    if isinstance(loss, Mapping):
        if set(loss) == {"name"}:
            return resolved_loss(loss["name"], shards)
        return named_loss(loss, shards)
    if loss == "auto" and shards.doubt:
        raise DataError(shards.doubt)
    if loss == "auto" and shards.classes is not None:
        return "cross_entropy"
    if loss == "auto" and shards.yes_no:
        return named_loss({"name": "bce"}, shards)
    if loss in ("auto", "mse"):
        return "squared_error"
    if loss in NAMED and loss not in _LOSSES:
        return named_loss({"name": loss}, shards)
    return loss


def scales_targets(loss: Loss, shards: Shards) -> bool:
    """Whether a loss may be taken of scaled targets, if it is of numbers in any unit.

    Huber's has one `delta` for all numbers of an example. A function may need the units.
    """
    return loss == "squared_error" or (isinstance(loss, Huber) and shards.y.ndim == 1)


def loss_function(loss: Loss, target: Scaling | None = None) -> LossFunction:
    """The function of a loss, one number per example; `target` scales outputs and targets."""
    if isinstance(loss, Huber) and target is not None:
        return Huber(loss.delta * float(target.factor))
    if isinstance(loss, Mapping):
        raise ConfigError(f"loss = {dict(loss)}: resolve it for the data first.")
    if isinstance(loss, type):
        name = loss.__name__
        raise ConfigError(f"loss = {name} is a class; make one, as in {name}().")
    if isinstance(loss, nn.Module) or (callable(loss) and type(loss) not in NAMED.values()):
        return PerExample(loss)
    if callable(loss):
        return loss
    check_loss_name(loss)
    return _LOSSES[loss]


def check_loss_name(loss: Loss) -> None:
    """Refuse a name that no loss has."""
    name = loss.get("name") if isinstance(loss, Mapping) else loss
    known = {"auto", "mse", *_LOSSES, *NAMED}
    if callable(name) or (isinstance(name, str) and name in known):
        return
    names = ", ".join({**_LOSSES, **NAMED})
    if isinstance(loss, Mapping) and "name" not in loss:
        example = f'such as {{name = "cross_entropy", {next(iter(loss), "smoothing")} = ...}}'
        raise ConfigError(f"loss lacks a name; give a table {example}, with one of {names}.")
    raise ConfigError(
        f"loss = {shown(name)}{meant(name, known)}: choose one of {names} (mse is squared_error), "
        "or give a function."
    )


_TARGETS: dict[type, str] = {
    nn.CrossEntropyLoss: "classes",
    nn.NLLLoss: "classes",
    nn.BCELoss: "yes or no",
    nn.BCEWithLogitsLoss: "yes or no",
}
"""What the losses of torch compare outputs with, where it is not numbers."""


class PerExample:
    """A loss of the user's own as one number per example.

    A torch loss with reduction "mean" or "sum" is taken without it. A function that gives one
    number for all examples is applied to every example alone. A torch loss per output becomes the
    mean over the outputs of an example.
    """

    def __init__(self, loss: LossFunction) -> None:
        self.loss = loss
        self.of_torch = isinstance(loss, nn.Module) and hasattr(loss, "reduction")
        self.targets = _TARGETS.get(type(loss), "numbers")
        if self.of_torch:
            plain: Any = copy.deepcopy(loss)
            plain.reduction = "none"
            self.loss = plain
        self.reduces = False

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        if self.reduces:
            return self._one_by_one(outputs, y)
        if self.of_torch and y.is_floating_point() and y.numel() == outputs.numel():
            y = y.view_as(outputs)  # torch would pair [N, 1] with [N] in all ways
        losses = self.loss(outputs, y)
        if losses.ndim == 0 and len(y) > 1:
            self.reduces = True
            return self._one_by_one(outputs, y)
        if self.of_torch and losses.ndim > 1:
            return losses.flatten(1).mean(1)
        return losses

    def _one_by_one(self, outputs: Tensor, y: Tensor) -> Tensor:
        def of_one(output: Tensor, target: Tensor) -> Tensor:
            return self.loss(output[None], target[None])

        try:
            return vmap(of_one)(outputs, y)
        except FAULTS as error:
            raise ConfigError(
                "the loss gives one number for all examples and cannot be taken example by "
                f"example ({told(error)}); return one number per example (reduction='none')."
            ) from error


def by_target(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Outputs and targets with one axis of targets per row, and which of the targets are there.

    Outputs [n, B, ...] and targets [n, B, ...] stay as they are, and None says that all are there.
    Where labels are per position, outputs [n, B, T, C] and labels [n, B, T] become [n, B * T, C]
    and [n, B * T]. A position without a label then has class 0.
    """
    if y.is_floating_point() or y.ndim < 3:
        return outputs, y, None
    labels = y.flatten(1)
    return outputs.flatten(1, 2), labels.clamp(min=0), labels != NO_TARGET


def losses_of(loss: LossFunction, outputs: Tensor, y: Tensor) -> Tensor:
    """One loss per target, [n, B] or [n, B * T]; 0 at a position without a target."""
    outputs, y, there = by_target(outputs, y)
    n, size = y.shape[:2]
    losses = loss(outputs.flatten(0, 1), y.flatten(0, 1))
    if losses.numel() != n * size:
        return losses
    losses = losses.view(n, size)
    if there is None:
        return losses
    return torch.where(there, losses, 0.0)


def predicts_numbers(loss: LossFunction) -> bool:
    """Whether outputs may be compared with targets; those of a cross-entropy are logits."""
    if loss is cross_entropy:
        return False
    return getattr(loss, "targets", "numbers") == "numbers"


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the squared distance, so that its gradient is the error."""
    error = outputs - y.view_as(outputs)
    return 0.5 * error.square().flatten(1).sum(1)


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Minus the logarithm of the label's probability; or with probabilities as targets."""
    return nn.functional.cross_entropy(outputs, y, reduction="none")


_LOSSES: dict[str, LossFunction] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
}
