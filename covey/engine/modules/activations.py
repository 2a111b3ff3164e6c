"""Elementwise functions after a linear layer and their derivatives; the native kernel has the same.

A derivative is computed from the function's output where that suffices, else from its input too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine.modules import rowwise
from covey.engine.modules.graph import Operation, Unknown, Value


@dataclass(frozen=True)
class Activation:
    """An elementwise function and its derivative.

    `slope` takes the input and the output. Unless `by_input`, it does not read the input, which is
    then not kept. The parameter is that of the function, where it has one.
    """

    name: str
    run: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    by_input: bool = False
    parameter: float = 0.0


_sigmoid = rowwise.elementwise(torch.sigmoid)
_exp = rowwise.elementwise(torch.exp)
_erf = rowwise.elementwise(torch.erf)
_CUBIC = 0.044715
_ROOT = math.sqrt(2 / math.pi)


def _silu_slope(z: Tensor, out: Tensor) -> Tensor:
    probability = _sigmoid(z)
    return probability * (1 + z * (1 - probability))


def _gelu_slope(z: Tensor, out: Tensor) -> Tensor:
    """Phi(z) + z phi(z), of the normal distribution."""
    cdf = 0.5 * (1 + _erf(z / math.sqrt(2)))
    density = _exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return cdf + z * density


def _gelu_tanh_slope(z: Tensor, out: Tensor) -> Tensor:
    t = torch.tanh(_ROOT * (z + _CUBIC * z * z * z))
    inner = _ROOT * (1 + 3 * _CUBIC * z * z)
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * inner


_FIXED: dict[str, Activation] = {
    "relu": Activation("relu", torch.relu, lambda z, out: out > 0),
    "tanh": Activation("tanh", torch.tanh, lambda z, out: 1 - out * out),
    "sigmoid": Activation("sigmoid", _sigmoid, lambda z, out: out * (1 - out)),
    "silu": Activation("silu", rowwise.elementwise(F.silu), _silu_slope, by_input=True),
}


def _leaky_relu(negative_slope: float = 0.01) -> Activation:
    if negative_slope < 0:
        raise Unknown(f"leaky_relu has the slope {negative_slope} below 0")
    return Activation(
        "leaky_relu",
        partial(F.leaky_relu, negative_slope=negative_slope),
        lambda z, out: torch.where(out > 0, 1.0, out.new_tensor(negative_slope)),
        parameter=negative_slope,
    )


def _elu(alpha: float = 1.0) -> Activation:
    if alpha < 0:
        raise Unknown(f"elu has alpha = {alpha}")
    return Activation(
        "elu",
        rowwise.elementwise(partial(F.elu, alpha=alpha)),
        lambda z, out: torch.where(out > 0, 1.0, out + alpha),
        parameter=alpha,
    )


def _gelu(approximate: str = "none") -> Activation:
    run = rowwise.elementwise(partial(F.gelu, approximate=approximate))
    if approximate == "tanh":
        return Activation("gelu_tanh", run, _gelu_tanh_slope, by_input=True)
    return Activation("gelu", run, _gelu_slope, by_input=True)


_MADE: dict[str, tuple[str, Callable[..., Activation]]] = {
    "leaky_relu": ("negative_slope", _leaky_relu),
    "elu": ("alpha", _elu),
    "gelu": ("approximate", _gelu),
}
"""Functions with an option: its name, and what makes the function from it."""


def activation(node: Operation) -> Activation | None:
    """The function of a node of a graph; None where it is no activation of a stack."""
    fixed = _FIXED.get(node.operation)
    if fixed is not None:
        return fixed
    if node.operation not in _MADE:
        return None
    name, make = _MADE[node.operation]
    options = [value for value in node.arguments if not isinstance(value, Value)]
    if options:
        return make(options[0])
    if name in node.keywords:
        return make(node.keywords[name])
    return make()
