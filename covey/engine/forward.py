"""One forward pass for many models: rows [n, P] and inputs [n, B, ...] to outputs [n, B, ...].

There are three paths. "batched" runs the usual layers as batched products and grouped convolutions.
"each" runs one row after the other, which on a CPU beats a grouped convolution. "vmap" runs any
other module.
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
    """The pass and its path: "batched", "each" or "vmap"."""

    path: str
    apply: Step
    unknown: str | None = None  # why the model is not made of known layers

    def __call__(self, parameters: list[Tensor], x: Tensor) -> Tensor:
        """Outputs for inputs [n, B, ...].

        `parameters` are the views of the slots, in the order of the layout.
        """
        if len(x):
            return self.apply(parameters, x)
        # Neither vmap nor a convolution takes no rows: a row of zeros tells the shape.
        zeros = [p.new_zeros(1, *p.shape[1:]) for p in parameters]
        outputs = self.apply(zeros, x.new_zeros(1, *x.shape[1:]))
        return outputs[:0]


def forward(space: ParameterLayout, example: torch.Size, device: str = "cpu") -> Forward:
    """The fastest exact pass for this module, this shape of example and this type of device."""
    modules = space.module.modules()
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in modules)
    row_by_row = convolves and device == "cpu"
    steps = chain(space, len(example), alone=row_by_row)
    if isinstance(steps, str):
        if row_by_row:
            return Forward("each", _each(_alone(space)), unknown=steps)
        return Forward("vmap", _vmapped(space), unknown=steps)
    if row_by_row:
        return Forward("each", _each(steps))
    return Forward("batched", steps)


def _each(step: Step) -> Step:
    """Row by row, so that no row's bits can depend on its neighbours."""

    def apply(parameters: list[Tensor], x: Tensor) -> Tensor:
        if len(x) == 1:
            # The layout of the output decides the kernels of the backward pass.
            return step(parameters, x).contiguous()
        rows = zip(*(torch.split(p, 1) for p in parameters), strict=True)
        outputs = []
        for row, inputs in zip(rows, torch.split(x, 1), strict=True):
            outputs.append(step(list(row), inputs).contiguous())
        return torch.cat(outputs)

    return apply


def _alone(space: ParameterLayout) -> Step:
    call = _call(space)

    def apply(parameters: list[Tensor], x: Tensor) -> Tensor:
        row = [p.squeeze(0) for p in parameters]
        return call(row, x.squeeze(0)).unsqueeze(0)

    return apply


def _vmapped(space: ParameterLayout) -> Step:
    call = _call(space)
    return lambda parameters, x: vmap(call)(parameters, x)


def _call(space: ParameterLayout) -> Step:
    """The module itself on one model's parameters and inputs [B, ...]."""
    thread = threading.local()  # functional_call swaps parameters in place: a module per worker

    def call(parameters: list[Tensor], x: Tensor) -> Tensor:
        if not hasattr(thread, "module"):
            thread.module = copy.deepcopy(space.module)
        values = {}
        for slot, parameter in zip(space.slots, parameters, strict=True):
            values[slot.name] = slot.oriented(parameter)
        out: Tensor = functional_call(thread.module, values, (x,))
        return out

    return call
