"""One forward pass for many models at once: rows [n, P] and inputs [n, B, ...] to outputs [n, B, ...].

Stacks of linear layers run as batched products on views of the rows; any other module runs through vmap.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from covey import rowwise
from covey.space import Space

Step = Callable[[list[Tensor], Tensor], Tensor]

_STEADY = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.Tanh, nn.Identity, nn.Dropout)  # the same bits in a vector's tail
_ELEMENTWISE = (*_STEADY, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Softplus, nn.Hardswish)


@dataclass(frozen=True)
class Forward:
    """The pass and how it runs: `path` is "batched" or "vmap"."""

    path: str
    apply: Step

    def __call__(self, parameters: list[Tensor], x: Tensor) -> Tensor:
        """Outputs for inputs [n, B, ...]; `parameters` are the slots' views, in the order of the space."""
        return self.apply(parameters, x)


def forward(space: Space, example: torch.Size) -> Forward:
    """The fastest pass that is exact for this module on examples of this shape."""
    steps = _batched(space, len(example))
    return Forward("vmap", _vmapped(space)) if steps is None else Forward("batched", _chain(steps))


def layers(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The layers of nested Sequentials in the order they run, with the prefix of their parameters' names.

    A layer that stands twice is listed twice, which `named_children` would not do; its parameters carry the first name only.
    """
    if type(module) is nn.Sequential:
        return [
            pair for name, child in module._modules.items() if child is not None for pair in layers(child, f"{prefix}{name}.")
        ]
    return [(prefix, module)]


def _chain(steps: list[Step]) -> Step:
    def apply(parameters: list[Tensor], x: Tensor) -> Tensor:
        for step in steps:
            x = step(parameters, x)
        return x

    return apply


def _batched(space: Space, axes: int) -> list[Step] | None:
    """The steps of a plain stack, or None if some layer, or a linear layer on several axes, is not known to this path."""
    names = {slot.name: i for i, slot in enumerate(space.slots)}
    steps: list[Step] = []
    for name, layer in layers(space.module):
        step = _step(layer, names.get(f"{name}weight"), names.get(f"{name}bias"))
        if step is None or (isinstance(layer, nn.Linear) and axes != 1):
            return None
        axes = 1 if isinstance(layer, nn.Flatten) else axes
        steps.append(step)
    return steps


def _step(layer: nn.Module, weight: int | None, bias: int | None) -> Step | None:
    if type(layer) is nn.Linear and weight is not None and (bias is not None or layer.bias is None):
        return _linear(weight, bias)
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return lambda parameters, x: x.flatten(2)
    if type(layer) in _ELEMENTWISE and not getattr(layer, "inplace", False):
        activation = layer if type(layer) in _STEADY else rowwise.elementwise(layer)
        return lambda parameters, x: activation(x)
    return None


def _linear(weight: int, bias: int | None) -> Step:
    if bias is None:
        return lambda parameters, x: rowwise.bmm(x, parameters[weight])
    return lambda parameters, x: rowwise.baddbmm(parameters[bias].unsqueeze(1), x, parameters[weight])


def _vmapped(space: Space) -> Step:
    slots = space.slots
    mine = threading.local()

    def one(parameters: list[Tensor], x: Tensor) -> Tensor:
        if not hasattr(mine, "module"):  # functional_call swaps parameters in place, so every worker has a module of its own
            mine.module = copy.deepcopy(space.module)
        named = {s.name: p.t() if s.transposed else p for s, p in zip(slots, parameters, strict=True)}
        out: Tensor = functional_call(mine.module, named, (x,))
        return out

    return lambda parameters, x: vmap(one)(parameters, x) if len(x) else _empty(one, parameters, x)


def _empty(one: Step, parameters: list[Tensor], x: Tensor) -> Tensor:
    """vmap refuses zero rows; one row of zeros tells the width."""
    like = one([p.new_zeros(p.shape[1:]) for p in parameters], x.new_zeros(x.shape[1:]))
    return like.new_zeros((0, *like.shape))
