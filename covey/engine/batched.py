"""The usual layers for many models at once, as steps on values of one of two layouts.

By rows a value is [n, B, ...]; folded it is [B, n * C, ...], in which n convolutions are one
grouped convolution, and pooling and GroupNorm need not know that there are many models. A value
stays folded from layer to layer until one asks for its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey.engine import rowwise
from covey.engine.layout import ParameterLayout

Step = Callable[[list[Tensor], Tensor], Tensor]
Own = dict[str, int]
"""Where the parameters of one layer stand among all: {"weight": 2, "bias": 3}."""

_STEADY = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.Hardtanh,
    nn.Tanh,
)  # the same bits in a vector's tail
_ELEMENTWISE = (
    *_STEADY,
    nn.ELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.Softplus,
    nn.Hardswish,
)
_NOTHING = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
)  # a space has no dropout but of p = 0


@dataclass(frozen=True)
class BatchedLayer:
    """What a layer does to many models' values, the axes of an example after it, and the layout it
    needs (None: either).
    """

    apply: Step
    axes: int
    folded: bool | None = None


def chain(
    space: ParameterLayout,
    axes: int,
    *,
    alone: bool,
) -> Step | str:
    """The pass through nested Sequentials of known layers for examples of so many axes.

    For any other module, the reason why there is no such pass.

    With `alone`, rows will come one at a time, so that nothing need be done to keep their bits
    apart.
    """
    slots = {slot.name: i for i, slot in enumerate(space.slots)}
    steps: list[Step] = []
    folded, before = False, type(space.module)
    for name, layer in layers(space.module):
        own = {
            key: slots.get(f"{name}{key}", -1) for key, _ in layer.named_parameters(recurse=False)
        }
        known = None if -1 in own.values() else _known(layer, own, axes, alone)
        if known is None:
            return _unknown(name, layer)
        swaps = folded and before is nn.ReLU and type(layer) in _MAX_POOLS
        if known.folded not in (None, folded):
            steps += [_unfold] if folded else [_fold, _channels_last] if alone else [_fold]
            folded = not folded
        steps.insert(
            len(steps) - swaps, known.apply
        )  # the largest of the ReLUs is the ReLU of the largest: fewer points
        axes, before = known.axes, type(layer)
    return _run(steps + [_unfold] * folded)


def layers(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The layers of nested Sequentials in the order they run, with the prefix of their parameters'
    names.

    A layer that stands twice is listed twice, which `named_children` would not do; its parameters
    carry the first name only.
    """
    if type(module) is nn.Sequential:
        return [
            pair
            for name, child in module._modules.items()
            if child is not None
            for pair in layers(child, f"{prefix}{name}.")
        ]
    return [(prefix, module)]


def _unknown(name: str, layer: nn.Module) -> str:
    """Why a layer has no step; only the whole model has no name."""
    kind = type(layer).__name__
    if not name:
        return f"{kind} is not an nn.Sequential of known layers"
    if type(layer) in (*_NOTHING, *_ELEMENTWISE, *_BUILDERS):
        return f"{kind} is used in a way that is not known"
    return f"{kind} is not a known layer"


def _run(steps: list[Step]) -> Step:
    def apply(parameters: list[Tensor], x: Tensor) -> Tensor:
        for step in steps:
            x = step(parameters, x)
        return x

    return apply


def _fold(parameters: list[Tensor], x: Tensor) -> Tensor:
    return x.transpose(0, 1).flatten(1, 2)


def _unfold(parameters: list[Tensor], x: Tensor) -> Tensor:
    return torch.unflatten(x, 1, (len(parameters[0]), -1)).transpose(0, 1)


def _channels_last(parameters: list[Tensor], x: Tensor) -> Tensor:
    """Images with the channels of a point side by side: a CPU convolves and pools them up to twice
    as fast.
    """
    if x.dim() != 4:
        return x
    if (
        x.shape[1] == 1
    ):  # both layouts at once; only these strides make torch go on with channels last
        return x.reshape(len(x), *x.shape[2:], 1).movedim(-1, 1)
    return x.contiguous(memory_format=torch.channels_last)


def _known(
    layer: nn.Module,
    own: Own,
    axes: int,
    alone: bool,
) -> BatchedLayer | None:
    kind = type(layer)
    if kind in _NOTHING:
        return BatchedLayer(lambda parameters, x: x, axes)
    if kind in _ELEMENTWISE and not getattr(layer, "inplace", False):
        activation = layer if alone or kind in _STEADY else rowwise.elementwise(layer)
        return BatchedLayer(lambda parameters, x: activation(x), axes)
    return _BUILDERS[kind](layer, own, axes) if kind in _BUILDERS else None


def _linear(
    layer: Any,
    own: Own,
    axes: int,
) -> BatchedLayer | None:
    weight, bias = own["weight"], own.get("bias")

    def product(parameters: list[Tensor], x: Tensor) -> Tensor:
        if bias is None:
            return rowwise.bmm(x, parameters[weight])
        return rowwise.baddbmm(parameters[bias].unsqueeze(1), x, parameters[weight])

    def on_the_last_axis(parameters: list[Tensor], x: Tensor) -> Tensor:
        return torch.unflatten(product(parameters, x.flatten(1, -2)), 1, x.shape[1:-1])

    return (
        BatchedLayer(product if axes == 1 else on_the_last_axis, axes, folded=False)
        if axes
        else None
    )


def _convolution(
    layer: Any,
    own: Own,
    axes: int,
) -> BatchedLayer | None:
    convolve: Callable[..., Tensor] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[
        len(layer.kernel_size)
    ]
    weight, bias = own["weight"], own.get("bias")

    def apply(parameters: list[Tensor], x: Tensor) -> Tensor:
        n = len(parameters[weight])
        offset = None if bias is None else parameters[bias].flatten()
        kernel = parameters[weight].flatten(0, 1)
        return convolve(
            x, kernel, offset, layer.stride, layer.padding, layer.dilation, n * layer.groups
        )

    fits = axes == len(layer.kernel_size) + 1 and layer.padding_mode == "zeros"
    return BatchedLayer(apply, axes, folded=True) if fits else None


def _pool(
    layer: Any,
    own: Own,
    axes: int,
) -> BatchedLayer | None:
    fits = axes == _POOLS[type(layer)] + 1 and not getattr(layer, "return_indices", False)
    return BatchedLayer(lambda parameters, x: layer(x), axes, folded=True) if fits else None


def _group_norm(
    layer: Any,
    own: Own,
    axes: int,
) -> BatchedLayer | None:
    weight, bias = own.get("weight"), own.get("bias")

    def apply(parameters: list[Tensor], x: Tensor) -> Tensor:
        scale, offset = (None if i is None else parameters[i].flatten() for i in (weight, bias))
        return F.group_norm(x, len(parameters[0]) * layer.num_groups, scale, offset, layer.eps)

    return BatchedLayer(apply, axes, folded=True) if axes else None


def _layer_norm(
    layer: Any,
    own: Own,
    axes: int,
) -> BatchedLayer | None:
    shape = layer.normalized_shape
    weight, bias = own.get("weight"), own.get("bias")

    def beside(parameter: Tensor, x: Tensor) -> Tensor:
        return parameter.view(len(x), *[1] * (x.dim() - parameter.dim()), *shape)

    def apply(parameters: list[Tensor], x: Tensor) -> Tensor:
        out = F.layer_norm(x, shape, eps=layer.eps)
        out = out if weight is None else out * beside(parameters[weight], x)
        return out if bias is None else out + beside(parameters[bias], x)

    return BatchedLayer(apply, axes, folded=False) if axes >= len(shape) else None


def _flatten(
    layer: Any,
    own: Own,
    axes: int,
) -> BatchedLayer | None:
    start, end = layer.start_dim % (axes + 1), layer.end_dim % (axes + 1)
    if not 1 <= start <= end:  # it would mix examples
        return None
    return BatchedLayer(
        lambda parameters, x: x.flatten(start + 1, end + 1), axes - (end - start), folded=False
    )


def _unflatten(
    layer: Any,
    own: Own,
    axes: int,
) -> BatchedLayer | None:
    if not isinstance(layer.dim, int) or not layer.dim % (axes + 1):
        return None
    dim, sizes = layer.dim % (axes + 1) + 1, tuple(layer.unflattened_size)
    return BatchedLayer(
        lambda parameters, x: torch.unflatten(x, dim, sizes), axes + len(sizes) - 1, folded=False
    )


_MAX_POOLS: dict[type[nn.Module], int] = {
    nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3,
    nn.AdaptiveMaxPool1d: 1, nn.AdaptiveMaxPool2d: 2, nn.AdaptiveMaxPool3d: 3,
}  # fmt: skip
_POOLS: dict[type[nn.Module], int] = {
    **_MAX_POOLS,
    nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3,
    nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3,
}  # fmt: skip
_BUILDERS: dict[type[nn.Module], Callable[[Any, Own, int], BatchedLayer | None]] = {
    nn.Linear: _linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys(_POOLS, _pool),
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
}
