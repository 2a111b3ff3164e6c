"""Losses with settings, by name: weighted or smoothed cross-entropy, focal, binary, Huber.

Each takes outputs [N, ...] and targets [N, ...] and gives one number per example, [N]. A loss is a
value: two of the same settings are equal, and a fingerprint shows its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.data import Shards
from covey.errors import ConfigError
from covey.fields import NonNegative, Positive, Range, named_kind, read

Weights = Literal["balanced"] | tuple[NonNegative, ...]
"""One weight per class, or "balanced"."""


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy with a weight per class, or with smoothed labels.

    Label smoothing s mixes the label with the uniform distribution: (1 - s) of the one, s of the
    other. The loss of an example is multiplied by the weight of its class; the mean over examples
    is not divided by their weights.
    """

    weights: Weights = ()  # one per class, or "balanced": every class has the same total
    smoothing: Annotated[float, Range(0, 0.9999)] = 0.0  # share of the uniform distribution in a
    # label
    targets: ClassVar[str] = "classes"

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(outputs, y, reduction="none", label_smoothing=self.smoothing)
        return _by_class(losses, y, self.weights)


@dataclass(frozen=True)
class Focal:
    """Focal loss, -(1 - p)^gamma log p of the label's probability p (Lin et al., 2017)."""

    gamma: NonNegative = 2.0  # how much less an example that is surely right counts
    weights: Weights = ()  # one per class, or "balanced": every class has the same total
    targets: ClassVar[str] = "classes"

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        surprise = F.cross_entropy(outputs, y, reduction="none")
        doubt = 1 - torch.exp(-surprise)
        doubt = doubt.clamp(min=torch.finfo(doubt.dtype).tiny)  # doubt^gamma is steep at 0
        losses = doubt**self.gamma * surprise
        return _by_class(losses, y, self.weights)


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Cross-entropy of several yes-or-no labels per example, the mean over the labels.

    An output is the logit of its label. `positive` is the weight of yes, one per label.
    """

    positive: tuple[NonNegative, ...] = ()  # weights of yes, one per label
    targets: ClassVar[str] = "yes or no"

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        weight = None
        if self.positive:
            weight = _table(self.positive, outputs.dtype, outputs.device)
        targets = y.to(outputs).view_as(outputs)
        loss = F.binary_cross_entropy_with_logits
        losses = loss(outputs, targets, reduction="none", pos_weight=weight)
        return losses.flatten(1).mean(1)


@dataclass(frozen=True)
class Huber:
    """Half the squared error up to `delta`, linear beyond, summed over outputs."""

    delta: Positive = 1.0  # the error from which on the loss is linear
    targets: ClassVar[str] = "numbers"

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        losses = F.huber_loss(outputs, y.view_as(outputs), reduction="none", delta=self.delta)
        return losses.flatten(1).sum(1)


NamedLoss = CrossEntropy | Focal | BinaryCrossEntropy | Huber
NAMED: dict[str, type[NamedLoss]] = {
    "cross_entropy": CrossEntropy,
    "focal": Focal,
    "bce": BinaryCrossEntropy,
    "huber": Huber,
}
"""Losses that have settings."""


def named_loss(settings: Mapping[str, Any], shards: Shards) -> NamedLoss:
    """The loss of a table such as {"name": "focal", "gamma": 2}, for this data.

    >>> named_loss({"name": "huber", "delta": 2}, None)
    Huber(delta=2.0)
    """
    given = dict(settings)
    name = given.pop("name", None)
    loss = read(named_kind(NAMED, name, "loss"), given, "loss.")
    if isinstance(loss, CrossEntropy | Focal):
        if shards.classes is None:
            raise ConfigError(
                f"loss {name} needs labels, but the targets are numbers; give integer labels."
            )
        if loss.weights and not any(loss.weights):
            raise ConfigError(f"loss {name}: all weights are 0, which leaves no loss; raise some.")
        if loss.weights == "balanced":
            return replace(loss, weights=balanced(shards))
        if loss.weights and len(loss.weights) != shards.classes:
            have = f"{len(loss.weights)} weights for {shards.classes} classes"
            raise ConfigError(f"loss {name}: {have}; give one per class.")
    if isinstance(loss, BinaryCrossEntropy):
        _check_yes_or_no(loss, shards)
    return loss


def _check_yes_or_no(loss: BinaryCrossEntropy, shards: Shards) -> None:
    if shards.classes is not None:
        fix = "give targets of 0 and 1, one per label; for classes use cross_entropy"
        raise ConfigError(f"loss bce needs several yes-or-no labels per example; {fix}.")
    y = shards.y
    outside = (y < 0) | (y > 1)
    if bool(outside.any()):
        value = float(y[outside].flatten()[0])
        raise ConfigError(f"loss bce: a target is {value:g}; give numbers from 0 to 1.")
    labels = y[:1].numel()
    if loss.positive and len(loss.positive) != labels:
        have = f"{len(loss.positive)} weights `positive` for {labels} labels"
        raise ConfigError(f"loss bce: {have}; give one per label.")


def balanced(shards: Shards) -> tuple[float, ...]:
    """Weights that give every class the same total, over the training examples of all devices.

    The mean weight of an example is 1. A class that no device has counts as one of weight 1.
    """
    assert shards.classes is not None
    counts = torch.as_tensor(shards.labels()).sum(0).double()
    present = counts > 0
    each = counts.sum() / int(present.sum())
    weights = torch.where(present, each / counts.clamp(min=1), 1.0)
    return tuple(weights.tolist())


def _by_class(losses: Tensor, y: Tensor, weights: Weights) -> Tensor:
    """Every loss times the weight of its example's class."""
    if not weights:
        return losses
    assert not isinstance(weights, str)
    table = _table(weights, losses.dtype, losses.device)
    return losses * table[y]


@lru_cache
def _table(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers on a device, moved there once: a CUDA graph may not copy them."""
    return torch.tensor(numbers, dtype=dtype, device=device)
