"""Losses: one number per example, by name or by a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from covey.data import NO_TARGET, Shards
from covey.errors import ConfigError

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""From outputs [N, ...] and targets [N, ...] to one loss per example [N].

Where labels are per position, every position counts as an example.
"""
Loss = Literal["auto", "cross_entropy", "squared_error", "mse"] | LossFunction
"""By name, or a function.

"auto" is cross_entropy for classes and squared_error for numbers; "mse" is squared_error too.
"""


def resolved_loss(loss: Loss, shards: Shards) -> Loss:
    """The loss that "auto" and "mse" mean for this data; any other as it is."""
    if callable(loss):
        return loss
    if loss == "auto" and shards.classes is not None:
        return "cross_entropy"
    if loss in ("auto", "mse"):
        return "squared_error"
    return loss


def loss_function(loss: Loss) -> LossFunction:
    """The function of a loss, one number per example."""
    if callable(loss):
        return loss
    if loss not in _LOSSES:
        names = f"{', '.join(_LOSSES)} (also called mse)"
        raise ConfigError(f"loss = {loss!r}: choose one of {names}, or give a function.")
    return _LOSSES[loss]


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
