"""Losses: one number per example, by name or by a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from covey.data import Shards
from covey.errors import ConfigError

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""From outputs [N, ...] and targets [N, ...] to one loss per example [N]."""
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
