"""Stacks of linear layers, differentiated by hand: gradients go into the rows without a buffer.

The gradient of a linear layer is the product of what came in and what comes back. Keeping the two
factors costs little, and `add` multiplies them into the weights themselves; autograd would write a
gradient as large as all rows and read it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from covey.engine import rowwise
from covey.engine.batched import layers
from covey.engine.layout import ParameterLayout

Derivative = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to the derivative of every example's loss by its outputs."""


@dataclass(frozen=True)
class Activation:
    """An elementwise function and its derivative, from its output."""

    name: str
    run: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation("relu", torch.relu, lambda out: out > 0),
    nn.Tanh: Activation("tanh", torch.tanh, lambda out: 1 - out * out),
    nn.Sigmoid: Activation(
        "sigmoid",
        rowwise.elementwise(torch.sigmoid),
        lambda out: out * (1 - out),
    ),
}


@dataclass(frozen=True)
class Layer:
    """One linear layer: the slots of its weight and bias, and the activation after it."""

    weight: int
    bias: int | None
    activation: Activation | None


@dataclass(frozen=True, eq=False)
class Factors:
    """A layer's inputs [n, B, in] and the loss's derivative by its outputs [n, B, out]."""

    layer: Layer
    inputs: Tensor
    errors: Tensor


@dataclass(frozen=True)
class LinearStack:
    """A chain of linear layers with a loss whose derivative is known."""

    layers: tuple[Layer, ...]
    derivative: Derivative

    def factors(
        self,
        parameters: list[Tensor],
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        *,
        inside: Tensor | None = None,
    ) -> list[Factors]:
        """The gradient of each row's mean loss, as factors, the last layer's first.

        All are taken at the same parameters. `inside` gives x times the first weight, where the
        caller knows it already.
        """
        inputs = []
        outputs = x.flatten(2)
        for layer in self.layers:
            inputs.append(outputs)
            outputs = _forward(layer, parameters, outputs, inside)
            inside = None
        errors = self.derivative(outputs, y) * _share(y, weight)
        *before, last = self.layers
        out = [Factors(last, inputs.pop(), errors)]
        for layer in reversed(before):
            after = out[-1]
            weight_after = parameters[after.layer.weight]
            errors = rowwise.bmm(errors, weight_after.transpose(1, 2))
            if layer.activation is not None:
                errors = errors * layer.activation.slope(after.inputs)
            out.append(Factors(layer, inputs.pop(), errors))
        return out

    @staticmethod
    def add(
        parameters: list[Tensor],
        factors: list[Factors],
        *,
        scale: float,
        keep: float = 1.0,
        first: bool = True,
    ) -> None:
        """parameters <- keep * parameters + scale * gradient, in place.

        `keep` is 0 or 1. If `first` is False, the weight of the first layer is left as it is.
        """
        for f in factors:
            if first or f is not factors[-1]:
                weight = parameters[f.layer.weight]
                inputs = f.inputs.transpose(1, 2)
                rowwise.baddbmm_(weight, inputs, f.errors, keep=keep, scale=scale)
            if f.layer.bias is not None:
                total = f.errors.sum(1)
                bias = parameters[f.layer.bias]
                if keep:
                    bias.add_(total, alpha=scale)
                else:
                    bias.copy_(total).mul_(scale)


def stack(space: ParameterLayout, loss: object, example: torch.Size) -> LinearStack | str:
    """The stack of a module on examples of this shape, or the reason why it is none."""
    if not isinstance(loss, str):
        return "the loss is a function of your own"
    chain = _chain(space, example)
    if isinstance(chain, str):
        return chain
    if not _is_bare(chain):
        return "the last layer is not Linear"
    owned: set[int | None] = set()
    for layer in chain:
        owned |= {layer.weight, layer.bias}
    if len(owned - {None}) < len(space.slots):
        return "the model has parameters outside its layers"
    return LinearStack(tuple(chain), _DERIVATIVES[loss])


def _chain(space: ParameterLayout, example: torch.Size) -> list[Layer] | str:
    """The linear layers in the order they run, or why the model is not made of these alone."""
    slots = space.numbers
    chain: list[Layer] = []
    flat = len(example) == 1
    for name, module in layers(space.module):
        kind = type(module)
        if isinstance(module, nn.Linear) and kind is nn.Linear:
            if not flat:
                return f"Linear takes examples of shape {tuple(example)}, which are not flattened"
            if not _owns(name, module, slots):
                return "a Linear layer is frozen or stands twice"
            weight = slots[f"{name}weight"]
            bias = slots.get(f"{name}bias")
            chain.append(Layer(weight, bias, None))
        elif kind in _ACTIVATIONS:
            if not _is_bare(chain):
                return f"{kind.__name__} does not follow a Linear layer"
            linear = chain.pop()
            chain.append(replace(linear, activation=_ACTIVATIONS[kind]))
        elif chain or not _flattens(module):
            return _unknown(name, module)
        else:
            flat = True
    return chain


def _is_bare(chain: list[Layer]) -> bool:
    """Whether the last layer is there and has no activation yet."""
    return bool(chain) and chain[-1].activation is None


def _owns(name: str, module: nn.Linear, slots: dict[str, int]) -> bool:
    """Whether weight and bias of a layer have slots under its own name."""
    if f"{name}weight" not in slots:
        return False
    return module.bias is None or f"{name}bias" in slots


def _flattens(module: nn.Module) -> bool:
    if type(module) is not nn.Flatten:
        return False
    return module.start_dim == 1 and module.end_dim == -1


def _unknown(name: str, module: nn.Module) -> str:
    """Why a module is no layer of a stack; only the whole model has no name."""
    kind = type(module).__name__
    if not name:
        return f"{kind} is not an nn.Sequential of Linear layers and activations"
    return f"{kind} is a layer other than Linear and ReLU, Tanh or Sigmoid"


def _forward(layer: Layer, parameters: list[Tensor], x: Tensor, inside: Tensor | None) -> Tensor:
    out = _linear(layer, parameters, x, inside)
    if layer.activation is None:
        return out
    return layer.activation.run(out)


def _linear(layer: Layer, parameters: list[Tensor], x: Tensor, inside: Tensor | None) -> Tensor:
    """x times the weight, which is `inside` where that is given, plus the bias."""
    weight = parameters[layer.weight]
    if layer.bias is None:
        if inside is not None:
            return inside
        return rowwise.bmm(x, weight)
    bias = parameters[layer.bias].unsqueeze(1)
    if inside is not None:
        return inside + bias
    return rowwise.baddbmm(bias, x, weight)


def _share(y: Tensor, weight: Tensor | None) -> Tensor | float:
    """The share of each example in its row's mean loss."""
    if weight is None:
        return 1 / y.shape[1]
    share = weight / weight.sum(1, keepdim=True)
    return share.unsqueeze(2)


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    probability = torch.softmax(outputs, dim=2)
    label = y.unsqueeze(2)
    minus_one = probability.new_full((), -1.0).expand(label.shape)
    return probability.scatter_add_(2, label, minus_one)


def _squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs - y.view_as(outputs)


_DERIVATIVES: dict[str, Derivative] = {
    "cross_entropy": _cross_entropy,
    "squared_error": _squared_error,
}
