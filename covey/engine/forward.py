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
from covey.engine.passing import Pass


@dataclass(frozen=True)
class Forward:
    """The pass and its path: "batched", "each" or "vmap"."""

    path: str
    apply: Step
    unknown: str | None = None  # why the model is not made of known layers

    def __call__(self, pass_: Pass, x: Tensor) -> Tensor:
        """Outputs for inputs [n, B, ...]."""
        if len(x):
            return self.apply(pass_, x)
        # Neither vmap nor a convolution takes no rows: a row of zeros tells the shape.
        zeros = pass_.map(_row_of_zeros)
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

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        if len(x) == 1:
            # The layout of the output decides the kernels of the backward pass.
            return step(pass_, x).contiguous()
        inputs = torch.split(x, 1)
        outputs = []
        for pass_of_row, x_of_row in zip(pass_.split(), inputs, strict=True):
            out = step(pass_of_row, x_of_row)
            outputs.append(out.contiguous())
        return torch.cat(outputs)

    return apply


def _alone(space: ParameterLayout) -> Step:
    call = _call(space)

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        alone = pass_.map(lambda tensor: tensor.squeeze(0))
        return call(alone, x.squeeze(0)).unsqueeze(0)

    return apply


def _vmapped(space: ParameterLayout) -> Step:
    call = _call(space)

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        def one(tensors: list[Tensor], x: Tensor) -> Tensor:
            return call(pass_.with_tensors(tensors), x)

        return vmap(one)(pass_.tensors, x)

    return apply


def _call(space: ParameterLayout) -> Step:
    """The module itself on one model's pass, whose tensors have no axis of rows, and [B, ...]."""
    thread = threading.local()  # functional_call swaps parameters in place: a module per worker

    def call(pass_: Pass, x: Tensor) -> Tensor:
        if not hasattr(thread, "module"):
            thread.module = copy.deepcopy(space.module)
        values = {}
        for slot, parameter in zip(space.slots, pass_.parameters, strict=True):
            values[slot.name] = slot.oriented(parameter)
        out: Tensor = functional_call(thread.module, values, (x,))
        return out

    return call
