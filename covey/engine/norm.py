"""Batch normalization whose statistics are no part of a row.

With `norm = "device"` a layer normalizes by the statistics of the batch in training. Elsewhere it
uses those of the device's own training examples under the same row. The other two ways change the
layers before a run: "frozen" takes the module's own running statistics as constants, and "group"
puts GroupNorm in the place of BatchNorm.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey.errors import ConfigError, ModelError

Norm = Literal["device", "frozen", "group"]

BatchNorm = nn.modules.batchnorm._BatchNorm
_LAZY = nn.modules.batchnorm._LazyNormBase
_GROUPS = 32
_CHANNELS = 4
"""A group of GroupNorm has at least so many channels, and there are at most so many groups."""


class BatchNormFrozen(BatchNorm):
    """BatchNorm whose running statistics are constants, in training too.

    Weight and bias are ordinary parameters. The state has the names of BatchNorm's.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        """Take every shape: the layer in whose place this one stands has checked it."""

    def forward(self, input: Tensor) -> Tensor:
        """(x - mean) / sqrt(var + eps) * weight + bias for examples [B, C, ...]."""
        assert self.running_mean is not None
        assert self.running_var is not None
        factor = torch.rsqrt(self.running_var + self.eps)
        if self.affine:
            factor = factor * self.weight
        offset = -self.running_mean * factor
        if self.affine:
            offset = offset + self.bias
        ones = [1] * (input.dim() - 2)
        return input * factor.view(-1, *ones) + offset.view(-1, *ones)


def prepared(module: nn.Module, norm: Norm) -> nn.Module:
    """The module as a run uses it; the module itself where it has no BatchNorm.

    >>> prepared(nn.Sequential(nn.Conv2d(3, 64, 1), nn.BatchNorm2d(64)), "group")[1]
    GroupNorm(16, 64, eps=1e-05, affine=True)
    """
    if not any(isinstance(layer, BatchNorm) for layer in module.modules()):
        return module
    if norm == "group":
        return _replaced(module, _grouped)
    if norm == "frozen":
        return _replaced(module, _frozen)
    return _fresh(module)


def groups(layer: BatchNorm) -> int:
    """How many groups GroupNorm has in the place of a layer.

    It is gcd(C, min(32, C / 4)), so that a group has four channels or more. BatchNorm1d has one
    group: its examples may have a single value per channel.
    """
    channels = layer.num_features
    if isinstance(layer, nn.BatchNorm1d):
        return 1
    return math.gcd(channels, max(1, min(_GROUPS, channels // _CHANNELS)))


def statistics(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The mean and the variance of every channel of [n, B, C, ...], [n, C] each.

    Examples count by their `weight`, [n, B]. The variance is that of the examples themselves, as
    BatchNorm has it in training; it is not an estimate of a larger population's.
    """
    share = _share(x, weight)
    axes = [1, *range(3, x.dim())]
    mean = (x * share).sum(axes)
    distance = x - _beside(mean, x)
    variance = (distance * distance * share).sum(axes)
    return mean, variance


def normalized(x: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """[n, B, C, ...] with these statistics [n, C] taken out."""
    deviation = torch.sqrt(variance + eps)
    return (x - _beside(mean, x)) / _beside(deviation, x)


def scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """[n, B, C, ...] times a layer's weight [n, C] plus its bias, where it has them."""
    if weight is not None:
        x = x * _beside(weight, x)
    if bias is not None:
        x = x + _beside(bias, x)
    return x


def pooled(statistics: Tensor) -> Tensor:
    """The mean and the variance of all examples of n devices together, [..., 2, C].

    `statistics` are those of every device, [n, ..., 2, C]. Every device counts alike.
    """
    mean, variance = statistics.double().unbind(-2)
    of_all = mean.mean(0)
    square = (variance + mean * mean).mean(0)
    both = torch.stack([of_all, square - of_all * of_all], dim=-2)
    return both.to(statistics.dtype)


def _share(x: Tensor, weight: Tensor | None) -> Tensor | float:
    """The weight of every value of a channel, as 1 in all, in the shape of [n, B, C, ...]."""
    points = x.shape[3:].numel()
    if weight is None:
        return 1 / (x.shape[1] * points)
    share = weight / (weight.sum(1, keepdim=True) * points)
    ones = [1] * (x.dim() - 2)
    return share.view(*weight.shape, *ones)


def _beside(values: Tensor, x: Tensor) -> Tensor:
    """Values of channels [n, C] in the shape of [n, B, C, ...]."""
    ones = [1] * (x.dim() - 3)
    return values.view(len(values), 1, -1, *ones)


# Layers


def refuse(name: str, layer: nn.Module) -> None:
    """Refuse a layer whose statistics no row and no device has."""
    kind = type(layer).__name__
    if isinstance(layer, nn.SyncBatchNorm):
        raise ModelError(
            f"layer {name!r} is {kind}: devices do not share the statistics of their batches; "
            'use nn.BatchNorm2d, or norm = "group".'
        )
    if isinstance(layer, BatchNorm) and not layer.track_running_stats:
        raise ModelError(
            f"layer {name!r} is {kind} with track_running_stats=False: predictions would depend "
            'on what else is predicted; set it to True, or use norm = "group".'
        )
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        raise ModelError(
            f"layer {name!r} is {kind} with track_running_stats=True: its running statistics are "
            "no part of a row; set it to False, so that every example has its own."
        )


def _fresh(module: nn.Module) -> nn.Module:
    """A copy whose running statistics are as new: a run never uses them."""
    module = copy.deepcopy(module)
    for layer in module.modules():
        if isinstance(layer, BatchNorm) and not isinstance(layer, _LAZY):
            layer.reset_running_stats()
    return module


def _replaced(module: nn.Module, change: Callable[[str, BatchNorm], nn.Module]) -> nn.Module:
    """A copy with another layer in the place of every BatchNorm."""
    module = copy.deepcopy(module)
    others: dict[nn.Module, nn.Module] = {}
    for name, layer in module.named_modules():
        if isinstance(layer, BatchNorm) and not isinstance(layer, _LAZY):
            others[layer] = change(name, layer)
    if module in others:
        return others[module]
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child in others:
                setattr(parent, name, others[child])
    return module


def _grouped(name: str, layer: BatchNorm) -> nn.Module:
    """GroupNorm with the weight and the bias of a layer."""
    other = nn.GroupNorm(groups(layer), layer.num_features, layer.eps, layer.affine)
    return _with_parameters(other, layer)


def _frozen(name: str, layer: BatchNorm) -> nn.Module:
    """The layer with its running statistics as constants; an error where they are as new."""
    refuse(name, layer)
    if isinstance(layer, BatchNormFrozen):
        return layer
    assert layer.running_mean is not None
    assert layer.running_var is not None
    unchanged = not layer.running_mean.any() and bool((layer.running_var == 1).all())
    if unchanged and not layer.num_batches_tracked:
        raise ConfigError(
            f"norm = 'frozen', but layer {name!r} has seen no example yet: its running statistics "
            "are 0 and 1. Load a pretrained module, or use norm = 'device'."
        )
    other = BatchNormFrozen(layer.num_features, layer.eps, layer.momentum, layer.affine)
    other.load_state_dict(layer.state_dict())
    return _with_parameters(other, layer)


def _with_parameters(other: Any, layer: BatchNorm) -> nn.Module:
    """Give a layer the weight, the bias and the mode of another."""
    if layer.affine:
        other.weight = layer.weight
        other.bias = layer.bias
    other.train(layer.training)
    return other.to(_device(layer))  # type: ignore[no-any-return]


def _device(layer: nn.Module) -> torch.device:
    tensors = [*layer.parameters(), *layer.buffers()]
    if not tensors:
        return torch.device("cpu")
    return tensors[0].device
