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
from covey.engine.passing import Pass

Step = Callable[[Pass, Tensor], Tensor]
"""From the pass of all models and a layer's inputs to its outputs."""
Own = dict[str, int]
"""Where the parameters of one layer stand among all: {"weight": 2, "bias": 3}."""

_STEADY = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.Tanh)
"""Activations that have the same bits in a vector's tail."""
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
_NOTHING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Layers that pass values on; a layout allows dropout with p = 0 only."""


_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: F.conv1d,
    2: F.conv2d,
    3: F.conv3d,
}


@dataclass(frozen=True)
class BatchedLayer:
    """A layer of many models."""

    apply: Step
    axes: int  # of an example after the layer
    folded: bool | None = None  # the layout that the layer needs; None: either


def chain(space: ParameterLayout, axes: int, *, alone: bool) -> Step | str:
    """The pass through nested Sequentials of known layers, for examples of so many axes.

    For any other module, the reason why there is no such pass. With `alone`, rows come one at a
    time, so that nothing need be done to keep their bits apart.
    """
    steps: list[Step] = []
    folded = False
    before = type(space.module)
    for name, layer in layers(space.module):
        own = _own(name, layer, space.numbers)
        batched = _batched(layer, own, axes, alone)
        if batched is None:
            return _unknown(name, layer)
        # The maximum of ReLUs is the ReLU of the maximum: pooling first leaves fewer points.
        pool_first = folded and before is nn.ReLU and type(layer) in _MAX_POOLS
        if batched.folded not in (None, folded):
            steps += _turn(folded, alone)
            folded = not folded
        steps.insert(len(steps) - pool_first, batched.apply)
        axes = batched.axes
        before = type(layer)
    if folded:
        steps.append(_unfold)
    return _run(steps)


def _own(name: str, layer: nn.Module, slots: dict[str, int]) -> Own | None:
    """The slots of a layer's parameters; None where one has none under the layer's name."""
    own = {}
    for key, _ in layer.named_parameters(recurse=False):
        slot = slots.get(f"{name}{key}")
        if slot is None:
            return None
        own[key] = slot
    return own


def _turn(folded: bool, alone: bool) -> list[Step]:
    """The steps from one layout to the other."""
    if folded:
        return [_unfold]
    if alone:
        return [_fold, _channels_last]
    return [_fold]


def layers(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The layers of nested Sequentials in the order they run, with their parameters' prefix.

    A layer that stands twice is listed twice, which `named_children` would not do. Its parameters
    carry the first name only.
    """
    if type(module) is not nn.Sequential:
        return [(prefix, module)]
    out = []
    for name, child in module._modules.items():
        if child is not None:
            out += layers(child, f"{prefix}{name}.")
    return out


def _unknown(name: str, layer: nn.Module) -> str:
    """Why a layer has no step; only the whole model has no name."""
    kind = type(layer).__name__
    if not name:
        return f"{kind} is not an nn.Sequential of known layers"
    if type(layer) in (*_NOTHING, *_ELEMENTWISE, *_BUILDERS):
        return f"{kind} is used in a way that is not known"
    return f"{kind} is not a known layer"


def _run(steps: list[Step]) -> Step:
    def apply(pass_: Pass, x: Tensor) -> Tensor:
        for step in steps:
            x = step(pass_, x)
        return x

    return apply


def _fold(pass_: Pass, x: Tensor) -> Tensor:
    return x.transpose(0, 1).flatten(1, 2)


def _unfold(pass_: Pass, x: Tensor) -> Tensor:
    models = pass_.models
    by_model = torch.unflatten(x, 1, (models, -1))
    return by_model.transpose(0, 1)


def _channels_last(pass_: Pass, x: Tensor) -> Tensor:
    """Images with the channels of a point side by side.

    A CPU convolves and pools them up to twice as fast.
    """
    if x.dim() != 4:
        return x
    if x.shape[1] == 1:
        # One channel has both layouts; only these strides make torch go on with channels last.
        height, width = x.shape[2:]
        by_point = x.reshape(len(x), height, width, 1)
        return by_point.movedim(-1, 1)
    return x.contiguous(memory_format=torch.channels_last)


def _batched(layer: nn.Module, own: Own | None, axes: int, alone: bool) -> BatchedLayer | None:
    """A layer for many models; None where it is not known."""
    kind = type(layer)
    if own is None:
        return None
    if kind in _NOTHING:
        return BatchedLayer(lambda pass_, x: x, axes)
    if kind in _ELEMENTWISE and not getattr(layer, "inplace", False):
        activation: Callable[[Tensor], Tensor] = layer
        if not alone and kind not in _STEADY:
            activation = rowwise.elementwise(layer)
        return BatchedLayer(lambda pass_, x: activation(x), axes)
    if kind in _BUILDERS:
        return _BUILDERS[kind](layer, own, axes)
    return None


def _linear(layer: Any, own: Own, axes: int) -> BatchedLayer | None:
    weight = own["weight"]
    bias = own.get("bias")

    def product(pass_: Pass, x: Tensor) -> Tensor:
        w = pass_.parameters[weight]
        if bias is None:
            return rowwise.bmm(x, w)
        offset = pass_.parameters[bias].unsqueeze(1)
        return rowwise.baddbmm(offset, x, w)

    def on_the_last_axis(pass_: Pass, x: Tensor) -> Tensor:
        points = x.shape[1:-1]
        out = product(pass_, x.flatten(1, -2))
        return torch.unflatten(out, 1, points)

    if axes == 0:
        return None
    if axes == 1:
        return BatchedLayer(product, axes, folded=False)
    return BatchedLayer(on_the_last_axis, axes, folded=False)


def _convolution(layer: Any, own: Own, axes: int) -> BatchedLayer | None:
    dimensions = len(layer.kernel_size)
    convolve = _CONVOLUTIONS[dimensions]
    weight = own["weight"]
    bias = own.get("bias")

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        models = len(pass_.parameters[weight])
        kernel = pass_.parameters[weight].flatten(0, 1)
        offset = _flat(pass_.parameters, bias)
        groups = models * layer.groups
        return convolve(
            x,
            kernel,
            offset,
            layer.stride,
            layer.padding,
            layer.dilation,
            groups,
        )

    if axes != dimensions + 1 or layer.padding_mode != "zeros":
        return None
    return BatchedLayer(apply, axes, folded=True)


def _flat(parameters: list[Tensor], slot: int | None) -> Tensor | None:
    """One parameter of all models, [n * C], where the layer has it."""
    if slot is None:
        return None
    return parameters[slot].flatten()


def _pool(layer: Any, own: Own, axes: int) -> BatchedLayer | None:
    if axes != _POOLS[type(layer)] + 1:
        return None
    if getattr(layer, "return_indices", False):
        return None
    return BatchedLayer(lambda pass_, x: layer(x), axes, folded=True)


def _group_norm(layer: Any, own: Own, axes: int) -> BatchedLayer | None:
    weight = own.get("weight")
    bias = own.get("bias")

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        scale = _flat(pass_.parameters, weight)
        offset = _flat(pass_.parameters, bias)
        groups = pass_.models * layer.num_groups
        return F.group_norm(x, groups, scale, offset, layer.eps)

    if axes == 0:
        return None
    return BatchedLayer(apply, axes, folded=True)


def _layer_norm(layer: Any, own: Own, axes: int) -> BatchedLayer | None:
    shape = layer.normalized_shape
    weight = own.get("weight")
    bias = own.get("bias")

    def beside(parameter: Tensor, x: Tensor) -> Tensor:
        missing = x.dim() - parameter.dim()
        ones = [1] * missing
        return parameter.view(len(x), *ones, *shape)

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        out = F.layer_norm(x, shape, eps=layer.eps)
        if weight is not None:
            out = out * beside(pass_.parameters[weight], x)
        if bias is not None:
            out = out + beside(pass_.parameters[bias], x)
        return out

    if axes < len(shape):
        return None
    return BatchedLayer(apply, axes, folded=False)


def _flatten(layer: Any, own: Own, axes: int) -> BatchedLayer | None:
    start = layer.start_dim % (axes + 1)
    end = layer.end_dim % (axes + 1)
    if not 1 <= start <= end:  # it would mix examples
        return None

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        return x.flatten(start + 1, end + 1)

    return BatchedLayer(apply, axes - (end - start), folded=False)


def _unflatten(layer: Any, own: Own, axes: int) -> BatchedLayer | None:
    if not isinstance(layer.dim, int):
        return None
    dim = layer.dim % (axes + 1)
    if dim == 0:  # it would mix examples
        return None
    sizes = tuple(layer.unflattened_size)

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        return torch.unflatten(x, dim + 1, sizes)

    return BatchedLayer(apply, axes + len(sizes) - 1, folded=False)


_MAX_POOLS: dict[type[nn.Module], int] = {
    nn.MaxPool1d: 1,
    nn.MaxPool2d: 2,
    nn.MaxPool3d: 3,
    nn.AdaptiveMaxPool1d: 1,
    nn.AdaptiveMaxPool2d: 2,
    nn.AdaptiveMaxPool3d: 3,
}
_POOLS: dict[type[nn.Module], int] = {
    **_MAX_POOLS,
    nn.AvgPool1d: 1,
    nn.AvgPool2d: 2,
    nn.AvgPool3d: 3,
    nn.AdaptiveAvgPool1d: 1,
    nn.AdaptiveAvgPool2d: 2,
    nn.AdaptiveAvgPool3d: 3,
}
_Builder = Callable[[Any, Own, int], BatchedLayer | None]
_BUILDERS: dict[type[nn.Module], _Builder] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    **dict.fromkeys(_POOLS, _pool),
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
}
