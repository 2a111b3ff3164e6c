"""One forward pass for many models: rows [n, P] and inputs [n, B, ...] to outputs [n, B, ...].

There are three paths. "batched" runs the usual layers as batched products and grouped convolutions.
"each" runs one row after the other, which on a CPU beats a grouped convolution. "vmap" runs any
other module.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, replace
from typing import Any

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
    single: Step | None = None
    """Where rows run one by one: the pass of one model, whose tensors have no axis of rows.

    The parameters have the shapes of the module.
    """

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
            return by_row(space, _swapped(space), unknown=steps)
        return Forward("vmap", _vmapped(space), unknown=steps)
    if row_by_row:
        return by_row(space, _without_rows(space, steps))
    return Forward("batched", steps)


def by_row(space: ParameterLayout, single: Step, unknown: str | None = None) -> Forward:
    """The path "each": one model after the other."""

    def contiguous(pass_: Pass, x: Tensor) -> Tensor:
        # The layout of the output decides the kernels of the backward pass.
        return single(pass_, x).contiguous()

    return Forward("each", _each(space, contiguous), unknown, contiguous)


def _convolves(module: nn.Module) -> bool:
    convolution = nn.modules.conv._ConvNd
    return any(isinstance(layer, convolution) for layer in module.modules())


def _each(space: ParameterLayout, single: Step) -> Step:
    """Row by row, so that no row's bits can depend on its neighbours."""

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        outputs = []
        for pass_of_row, x_of_row in zip(pass_.unbind(), x.unbind(), strict=True):
            parameters = space.oriented(pass_of_row.parameters)
            one = replace(pass_of_row, parameters=parameters)
            outputs.append(single(one, x_of_row))
        return torch.stack(outputs)

    return apply


def _without_rows(space: ParameterLayout, step: Step) -> Step:
    """The pass of one model by that of many."""

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        stored = replace(pass_, parameters=space.oriented(pass_.parameters))
        one = stored.map(lambda tensor: tensor.unsqueeze(0))
        return step(one, x.unsqueeze(0)).squeeze(0)

    return apply


def _vmapped(space: ParameterLayout) -> Step:
    call = _call(space)

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        def one(tensors: list[Tensor], x: Tensor) -> Tensor:
            return call(pass_.with_tensors(tensors), x)

        return vmap(one)(pass_.tensors, x)

    return apply


def _swapped(space: ParameterLayout) -> Step:
    """The module itself on one model's pass, whose tensors have no axis of rows, and [B, ...].

    Its parameters are replaced where they stand, which takes a third of `functional_call`'s time.
    """
    thread = threading.local()  # a module per worker

    def call(pass_: Pass, x: Tensor) -> Tensor:
        if not hasattr(thread, "module"):
            thread.module = copy.deepcopy(space.module)
            thread.places = _places(thread.module, space)
        for parameter, places in zip(pass_.parameters, thread.places, strict=True):
            for held, name in places:
                held[name] = parameter
        out: Tensor = thread.module(x)
        return out

    return call


def _places(module: nn.Module, space: ParameterLayout) -> list[list[tuple[dict[str, Any], str]]]:
    """Where the module keeps the parameter of each slot, which may be in several layers."""
    numbers = {}
    for number, slot in enumerate(space.slots):
        numbers[id(module.get_parameter(slot.name))] = number
    places: list[list[tuple[dict[str, Any], str]]] = [[] for _ in space.slots]
    for layer in module.modules():
        for name, parameter in layer._parameters.items():
            number = numbers.get(id(parameter))
            if number is not None:
                places[number].append((layer._parameters, name))
    return places


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
