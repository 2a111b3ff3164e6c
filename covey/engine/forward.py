"""One forward pass for many models: rows [n, P] and inputs [n, B, ...] to outputs [n, B, ...], and
which way is fastest.

"batched": the usual layers as batched products and grouped convolutions. "each": one row after the
other, which on a CPU beats a grouped convolution. "vmap": any other module.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from covey.engine.batched import Step, chain
from covey.engine.layout import ParameterLayout


@dataclass(frozen=True)
class Forward:
    """The pass and how it runs: `path` is "batched", "each" or "vmap"."""

    path: str
    apply: Step
    unknown: str | None = None  # why the model is not made of known layers

    def __call__(self, parameters: list[Tensor], x: Tensor) -> Tensor:
        """Outputs for inputs [n, B, ...]; `parameters` are the slots' views, in the order of the
        space.
        """
        if len(x):
            return self.apply(parameters, x)
        one = self.apply(
            [p.new_zeros(1, *p.shape[1:]) for p in parameters], x.new_zeros(1, *x.shape[1:])
        )
        return one[:0]  # neither vmap nor a convolution takes no rows; one of zeros tells the shape


def forward(
    space: ParameterLayout,
    example: torch.Size,
    device: str = "cpu",
) -> Forward:
    """The fastest pass that is exact for this module on examples of this shape, on this type of
    device.
    """
    each = device == "cpu" and any(
        isinstance(m, nn.modules.conv._ConvNd) for m in space.module.modules()
    )
    steps = chain(space, len(example), alone=each)
    unknown = steps if isinstance(steps, str) else None
    if each:
        one = _alone(space) if isinstance(steps, str) else steps
        return Forward("each", _each(one), unknown)
    if isinstance(steps, str):
        return Forward("vmap", _vmapped(space), unknown)
    return Forward("batched", steps)


def _each(one: Step) -> Step:
    """Row by row, so that no row's bits can depend on its neighbours."""

    def apply(parameters: list[Tensor], x: Tensor) -> Tensor:
        if len(x) == 1:
            return one(parameters, x).contiguous()  # its layout decides the kernels of the way back
        rows = zip(*(torch.split(p, 1) for p in parameters), strict=True)
        return torch.cat(
            [
                one(list(row), own).contiguous()
                for row, own in zip(rows, torch.split(x, 1), strict=True)
            ]
        )

    return apply


def _alone(space: ParameterLayout) -> Step:
    call = _call(space)
    return lambda parameters, x: call([p.squeeze(0) for p in parameters], x.squeeze(0)).unsqueeze(0)


def _vmapped(space: ParameterLayout) -> Step:
    call = _call(space)
    return lambda parameters, x: vmap(call)(parameters, x)


def _call(space: ParameterLayout) -> Step:
    """The module itself on one model's parameters and inputs [B, ...]."""
    mine = threading.local()

    def call(parameters: list[Tensor], x: Tensor) -> Tensor:
        if not hasattr(
            mine, "module"
        ):  # functional_call swaps parameters in place, so every worker has a module of its own
            mine.module = copy.deepcopy(space.module)
        named = {
            s.name: p.t() if s.transposed else p
            for s, p in zip(space.slots, parameters, strict=True)
        }
        out: Tensor = functional_call(mine.module, named, (x,))
        return out

    return call
