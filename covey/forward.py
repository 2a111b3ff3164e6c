"""One forward pass for many models at once: rows [n, P] and inputs [n, B, ...] to outputs [n, B, ...].

Stacks of linear layers run as batched products on views of the rows; any other module runs through vmap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from covey.space import Space

Step = Callable[[list[Tensor], Tensor], Tensor]

_ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Identity, nn.Dropout,
)  # fmt: skip


@dataclass(frozen=True)
class Forward:
    """The pass and how it runs: `path` is "batched" or "vmap"."""

    path: str
    apply: Step

    def __call__(self, parameters: list[Tensor], x: Tensor) -> Tensor:
        """Outputs for inputs [n, B, ...]; `parameters` are the slots' views, in the order of the space."""
        return self.apply(parameters, x)


def forward(space: Space) -> Forward:
    """The fastest pass that is exact for this module."""
    steps = _batched(space)
    return Forward("vmap", _vmapped(space)) if steps is None else Forward("batched", _chain(steps))


def _chain(steps: list[Step]) -> Step:
    def apply(parameters: list[Tensor], x: Tensor) -> Tensor:
        for step in steps:
            x = step(parameters, x)
        return x

    return apply


def _batched(space: Space) -> list[Step] | None:
    """The steps of a plain stack, or None if some layer is not known to this path."""
    names = {slot.name: i for i, slot in enumerate(space.slots)}
    steps: list[Step] = []
    for name, layer in _layers(space.module):
        step = _step(layer, names.get(f"{name}weight"), names.get(f"{name}bias"))
        if step is None:
            return None
        steps.append(step)
    return steps


def _layers(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential:
        return [pair for name, child in module.named_children() for pair in _layers(child, f"{prefix}{name}.")]
    return [(prefix, module)]


def _step(layer: nn.Module, weight: int | None, bias: int | None) -> Step | None:
    if type(layer) is nn.Linear and weight is not None and (bias is not None or layer.bias is None):
        return _linear(weight, bias)
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return lambda parameters, x: x.flatten(2)
    if type(layer) in _ELEMENTWISE and not getattr(layer, "inplace", False):
        return lambda parameters, x: layer(x)
    return None


def _linear(weight: int, bias: int | None) -> Step:
    if bias is None:
        return lambda parameters, x: torch.bmm(x, parameters[weight])
    return lambda parameters, x: torch.baddbmm(parameters[bias].unsqueeze(1), x, parameters[weight])


def _vmapped(space: Space) -> Step:
    module, slots = space.module, space.slots

    def one(parameters: list[Tensor], x: Tensor) -> Tensor:
        named = {s.name: p.t() if s.transposed else p for s, p in zip(slots, parameters, strict=True)}
        out: Tensor = functional_call(module, named, (x,))
        return out

    return lambda parameters, x: vmap(one)(parameters, x) if len(x) else _empty(one, parameters, x)


def _empty(one: Step, parameters: list[Tensor], x: Tensor) -> Tensor:
    """vmap refuses zero rows; one row of zeros tells the width."""
    like = one([p.new_zeros(p.shape[1:]) for p in parameters], x.new_zeros(x.shape[1:]))
    return like.new_zeros((0, *like.shape))
