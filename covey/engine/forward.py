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
        zeros = [_row_of_zeros(parameter) for parameter in parameters]
        outputs = self.apply(zeros, _row_of_zeros(x))
        return outputs[:0]


def _row_of_zeros(rows: Tensor) -> Tensor:
    shape = rows.shape[1:]
    return rows.new_zeros(1, *shape)


def forward(space: ParameterLayout, example: torch.Size, device: str = "cpu") -> Forward:
    """The fastest exact pass for this module, this shape of example and this type of device."""
    row_by_row = device == "cpu" and _convolves(space.module)
    steps = chain(space, len(example), alone=row_by_row)
    if isinstance(steps, str):
        if row_by_row:
            return Forward("each", _each(_alone(space)), unknown=steps)
        return Forward("vmap", _vmapped(space), unknown=steps)
    if row_by_row:
        return Forward("each", _each(steps))
    return Forward("batched", steps)


def _convolves(module: nn.Module) -> bool:
    convolution = nn.modules.conv._ConvNd
    return any(isinstance(layer, convolution) for layer in module.modules())


def _each(step: Step) -> Step:
    """Row by row, so that no row's bits can depend on its neighbours."""

    def apply(parameters: list[Tensor], x: Tensor) -> Tensor:
        if len(x) == 1:
            # The layout of the output decides the kernels of the backward pass.
            return step(parameters, x).contiguous()
        by_parameter = [torch.split(parameter, 1) for parameter in parameters]
        by_row = zip(*by_parameter, strict=True)
        inputs = torch.split(x, 1)
        outputs = []
        for row, x_of_row in zip(by_row, inputs, strict=True):
            out = step(list(row), x_of_row)
            outputs.append(out.contiguous())
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
