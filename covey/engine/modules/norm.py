"""Batch normalization whose statistics are no part of a row.

With `norm = "device"` a layer normalizes by the statistics of the batch in training. Elsewhere it
uses those of the device's own training examples under the same row. The other two ways change the
layers before a run: "frozen" takes the module's own running statistics as constants, and "group"
puts GroupNorm in the place of BatchNorm.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey.engine.modules.passing import Pass
from covey.errors import ConfigError, ModelError

Norm = Literal["device", "frozen", "group"]

BatchNorm = nn.modules.batchnorm._BatchNorm
_LAZY = nn.modules.batchnorm._LazyNormBase
_GROUPS = 32
"""GroupNorm has at most so many groups."""
_CHANNELS = 4
"""A group of GroupNorm has at least so many channels."""


class _Substitute(BatchNorm):
    """A layer in the place of another BatchNorm."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Take every shape: the layer in whose place this one stands has checked it."""

    @classmethod
    def of(cls, layer: BatchNorm) -> Self:
        """A layer like another, with its weight, its bias and its mode."""
        other = cls(layer.num_features, layer.eps, layer.momentum, layer.affine)
        _give_parameters(other, layer)
        return other


class BatchNormFrozen(_Substitute):
    """BatchNorm whose running statistics are constants, in training too.

    Weight and bias are ordinary parameters. The state has the names of BatchNorm's.
    """

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

    >>> network = nn.Sequential(nn.Conv2d(3, 64, 1), nn.BatchNorm2d(64))
    >>> prepared(network, "group")[1].num_groups
    16
    """
    if not has_batch_norm(module):
        return module
    module = copy.deepcopy(module)
    if norm != "device":
        return _replaced(module, _grouped if norm == "group" else _frozen)
    # The module with running statistics as new: a run never uses them.
    for layer in module.modules():
        if isinstance(layer, BatchNorm) and not isinstance(layer, _LAZY):
            layer.reset_running_stats()
    return module


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a module has BatchNorm layers of any kind."""
    return any(isinstance(layer, BatchNorm) for layer in module.modules())


def groups(layer: BatchNorm) -> int:
    """How many groups GroupNorm has in the place of a layer.

    It is gcd(C, min(32, C / 4)), so that a group has four channels or more. BatchNorm1d has one
    group: its examples may have a single value per channel.
    """
    channels = layer.num_features
    if isinstance(layer, nn.BatchNorm1d):
        return 1
    return math.gcd(channels, max(1, min(_GROUPS, channels // _CHANNELS)))


# Statistics


@dataclass(frozen=True)
class NormLayer:
    """Where the statistics of one BatchNorm layer lie in a row of statistics, [S].

    The mean of every channel comes first, then the variance of every channel.
    """

    name: str
    number: int
    channels: int
    start: int

    @property
    def stop(self) -> int:
        """The column after the last."""
        return self.start + 2 * self.channels

    def view(self, rows: Tensor) -> Tensor:
        """The statistics of this layer in rows [n, S], [n, 2, C]."""
        columns = rows[:, self.start : self.stop]
        return columns.view(len(rows), 2, self.channels)


def layers(module: nn.Module) -> tuple[NormLayer, ...]:
    """The layers of a module that normalize by the statistics of a device."""
    out: list[NormLayer] = []
    start = 0
    for name, layer in module.named_modules():
        if isinstance(layer, BatchNorm) and not isinstance(layer, BatchNormFrozen):
            norm_layer = NormLayer(name, len(out), layer.num_features, start)
            out.append(norm_layer)
            start = norm_layer.stop
    return tuple(out)


def points(module: nn.Module, norms: Sequence[NormLayer], x: Tensor) -> dict[str, int]:
    """How many values of a channel one example has in each layer that is used, by name.

    The module runs on the examples `x` [B, ...]. An error where a layer is used twice.
    """
    module = copy.deepcopy(module).eval()
    out: dict[str, int] = {}

    def noted(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if name in out:
                raise ModelError(
                    f"layer {name!r} ({type(layer).__name__}) is used twice in one pass, each time "
                    'with statistics of its own; use a layer for each, or norm = "group".'
                )
            out[name] = inputs[0].shape[2:].numel()

        return note

    for norm_layer in norms:
        layer = module.get_submodule(norm_layer.name)
        layer.register_forward_pre_hook(noted(norm_layer.name))
    with torch.no_grad():
        module(x)
    return out


def joined(norms: Sequence[NormLayer], recorded: dict[int, Tensor], like: Tensor) -> Tensor:
    """Rows of statistics [n, S] from those of each layer; 0 and 1 where a layer was not used."""
    parts = []
    for layer in norms:
        values = recorded.get(layer.number)
        if values is None:
            values = like.new_zeros(len(like), 2, layer.channels)
            values[:, 1] = 1
        parts.append(values.flatten(1))
    return torch.cat(parts, dim=1)


def set_statistics(module: nn.Module, norms: Sequence[NormLayer], statistics: Tensor) -> None:
    """Write the statistics of one device [S] into the running statistics of a module."""
    with torch.no_grad():
        for norm_layer in norms:
            layer: Any = module.get_submodule(norm_layer.name)
            mean, variance = norm_layer.view(statistics[None])[0]
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(variance)
            layer.num_batches_tracked.fill_(1)


def pooled(norms: Sequence[NormLayer], statistics: Tensor) -> Tensor:
    """The mean and the variance of the examples of n devices together, [S] from [n, S].

    Every device counts alike: the mean is that of the means. The variance has the spread of the
    means besides the mean of the variances.
    """
    parts = []
    for layer in norms:
        means, variances = layer.view(statistics.double()).unbind(1)
        mean = means.mean(0)
        spread = (means - mean).square().mean(0)
        parts += [mean, variances.mean(0) + spread]
    return torch.cat(parts).to(statistics.dtype)


# Values


def batch_norm(
    pass_: Pass,
    number: int,
    x: Tensor,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """The layer of this number on [n, B, C, ...]; `weight` and `bias` are [n, C], or None."""
    if x.dtype in (torch.bfloat16, torch.float16):
        x = x.float()  # a mean of many values needs more digits
    if pass_.statistics is not None:
        mean, variance = pass_.statistics[number].unbind(1)
    else:
        mean, variance = moments(x, pass_.weight)
        if pass_.recorded is not None:
            pass_.recorded[number] = torch.stack([mean, variance], dim=1)
    deviation = torch.sqrt(variance + eps)
    out = (x - _beside(mean, x)) / _beside(deviation, x)
    if weight is not None:
        out = out * _beside(weight, x)
    if bias is not None:
        out = out + _beside(bias, x)
    return out


def moments(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The mean and the variance of every channel of [n, B, C, ...], [n, C] each.

    Examples count by their `weight`, [n, B]. The variance is that of the examples themselves, as
    BatchNorm has it in training; it is not an estimate of a larger population's.
    """
    # The weight of every value of a channel, 1 in all.
    points = x.shape[3:].numel()
    share: Tensor | float
    if weight is None:
        share = 1 / (x.shape[1] * points)
    else:
        of_examples = weight / (weight.sum(1, keepdim=True) * points)
        ones = [1] * (x.dim() - 2)
        share = of_examples.view(*weight.shape, *ones)
    axes = [1, *range(3, x.dim())]
    mean = (x * share).sum(axes)
    distance = x - _beside(mean, x)
    variance = (distance * distance * share).sum(axes)
    return mean, variance


def _beside(values: Tensor, x: Tensor) -> Tensor:
    """Values of channels [n, C] in the shape of [n, B, C, ...]."""
    ones = [1] * (x.dim() - 3)
    return values.view(len(values), 1, -1, *ones)


def folded(
    pass_: Pass,
    number: int,
    x: Tensor,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    alone: bool,
) -> Tensor:
    """The layer of this number on [B, n * C, ...]; `weight` and `bias` are [n, C], or None.

    Torch's own function is faster than the formulas. It has no weights of examples and no batches
    of one value. On a CPU, its bits depend on n: there it is for models that are `alone`, n = 1.
    """
    if not _torch_computes(pass_, x, alone):
        models = 1 if alone else pass_.models
        by_model = torch.unflatten(x, 1, (models, -1)).transpose(0, 1)
        out = batch_norm(pass_, number, by_model, weight=weight, bias=bias, eps=eps)
        return out.transpose(0, 1).flatten(1, 2)
    if weight is not None:
        weight = weight.flatten()
    if bias is not None:
        bias = bias.flatten()
    if pass_.statistics is None:
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)
    mean, variance = pass_.statistics[number].transpose(0, 1).flatten(1)
    return F.batch_norm(x, mean, variance, weight, bias, eps=eps)


def _torch_computes(pass_: Pass, x: Tensor, alone: bool) -> bool:
    """Whether torch's own function has the values of a layer on [B, n * C, ...]."""
    if x.device.type == "cpu" and not alone:
        return False
    if pass_.statistics is not None:
        return True
    if pass_.weight is not None or pass_.recorded is not None:
        return False
    return x.shape[0] * x.shape[2:].numel() > 1


def beside_rows(pass_: Pass) -> Pass:
    """What norm layers need of a pass of one model, as the pass of n = 1 models."""
    without = replace(pass_, parameters=[], masks=())
    return without.map(lambda tensor: tensor[None])


# A module of the user's own


@dataclass(eq=False)
class Current:
    """The pass that a module is in, for its BatchNorm layers."""

    alone: bool  # rows come one at a time, outside of vmap
    pass_: Pass | None = None  # of n = 1 models


class SiteNorm(_Substitute):
    """BatchNorm in a module of many models: its statistics are the pass's."""

    current: Current
    number: int

    def forward(self, input: Tensor) -> Tensor:
        """The layer on the examples [B, C, ...] of one model."""
        pass_ = self.current.pass_
        assert pass_ is not None
        weight = self.weight[None] if self.affine else None
        bias = self.bias[None] if self.affine else None
        settings: Any = {"weight": weight, "bias": bias, "eps": self.eps}
        if self.current.alone:
            return folded(pass_, self.number, input, **settings, alone=True)
        return batch_norm(pass_, self.number, input[None], **settings)[0]


def with_sites(module: nn.Module, norms: Sequence[NormLayer], current: Current) -> nn.Module:
    """The module with BatchNorm layers that follow the current pass."""
    numbers = {layer.name: layer.number for layer in norms}

    def site(name: str, layer: BatchNorm) -> nn.Module:
        if name not in numbers:
            return layer
        other = SiteNorm.of(layer)
        other.current = current
        other.number = numbers[name]
        return other

    return _replaced(module, site)


class RecordedNorm(_Substitute):
    """BatchNorm that changes nothing of its own when it runs, so that it can be recorded."""

    number: int

    def forward(self, input: Tensor) -> Tensor:
        """The layer with the statistics of the batch in training, with its own elsewhere."""
        mean, variance = self.running_mean, self.running_var
        weight, bias = self.weight, self.bias
        return F.batch_norm(input, mean, variance, weight, bias, self.training, 0.0, self.eps)


def for_recording(module: nn.Module) -> nn.Module:
    """The module with BatchNorm layers that can be recorded."""
    numbers = {layer.name: layer.number for layer in layers(module)}

    def recorded(name: str, layer: BatchNorm) -> nn.Module:
        if name not in numbers:
            return layer
        other = RecordedNorm.of(layer)
        other.running_mean = layer.running_mean
        other.running_var = layer.running_var
        other.number = numbers[name]
        return other

    return _replaced(module, recorded)


def running(module: nn.Module, models: int) -> tuple[Tensor, ...]:
    """The running statistics of a module for so many models, as a pass has them."""
    out = []
    for norm_layer in layers(module):
        layer: Any = module.get_submodule(norm_layer.name)
        both = torch.stack([layer.running_mean, layer.running_var])
        out.append(both.expand(models, -1, -1))
    return tuple(out)


# Layers of a run


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


def _replaced(module: nn.Module, change: Callable[[str, BatchNorm], nn.Module]) -> nn.Module:
    """The module with another layer in the place of every BatchNorm."""
    others: dict[nn.Module, nn.Module] = {}
    for name, layer in module.named_modules():
        if isinstance(layer, BatchNorm) and not isinstance(layer, _LAZY):
            others[layer] = change(name, layer)
    if module in others:
        return others[module]
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if child in others:
                setattr(parent, name, others[child])
    return module


def _grouped(name: str, layer: BatchNorm) -> nn.Module:
    """GroupNorm with the weight and the bias of a layer."""
    other = nn.GroupNorm(groups(layer), layer.num_features, layer.eps, layer.affine)
    _give_parameters(other, layer)
    return other


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
    other = BatchNormFrozen.of(layer)
    other.running_mean = layer.running_mean
    other.running_var = layer.running_var
    other.num_batches_tracked = layer.num_batches_tracked
    return other


def _give_parameters(other: Any, layer: BatchNorm) -> None:
    """Give a layer the weight, the bias and the mode of another."""
    if layer.affine:
        other.weight = layer.weight
        other.bias = layer.bias
    other.train(layer.training)
