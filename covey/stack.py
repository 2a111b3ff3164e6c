"""Stacks of linear layers by hand: one batched backward pass whose gradients go straight into the rows, without a buffer.

The gradient of a linear layer is the product of what came in and what comes back. Keeping the two factors costs little, and
`add` multiplies them into the weights themselves; autograd would write a gradient as large as all rows and read it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.space import Space

Slope = Callable[[Tensor], Tensor]
"""The derivative of an activation, from its output."""

_SLOPES: dict[type[nn.Module], Slope] = {
    nn.ReLU: lambda out: out > 0,
    nn.Tanh: lambda out: 1 - out * out,
    nn.Sigmoid: lambda out: out * (1 - out),
}


@dataclass(frozen=True)
class Layer:
    """One linear layer: the slots of its weight and bias, and the activation after it."""

    weight: int
    bias: int | None
    activation: nn.Module | None


@dataclass(frozen=True, eq=False)
class Factors:
    """What came into a layer [n, B, in] and the loss's derivative by what it put out [n, B, out]."""

    layer: Layer
    inputs: Tensor
    errors: Tensor


@dataclass(frozen=True)
class Stack:
    """A chain of linear layers with a loss whose derivative is known."""

    layers: tuple[Layer, ...]
    derivative: Callable[[Tensor, Tensor], Tensor]

    def factors(self, parameters: list[Tensor], x: Tensor, y: Tensor, weight: Tensor | None) -> list[Factors]:
        """The gradient of each row's mean loss, as factors, all at the same parameters."""
        inputs = [x.flatten(2)]
        for layer in self.layers:
            inputs.append(_forward(layer, parameters, inputs[-1]))
        share = 1 / y.shape[1] if weight is None else (weight / weight.sum(1, keepdim=True)).unsqueeze(2)
        errors = self.derivative(inputs.pop(), y) * share
        out: list[Factors] = []
        for layer, above, before in zip(reversed(self.layers), [None, *reversed(self.layers)], reversed(inputs), strict=False):
            if above is not None:
                errors = torch.bmm(errors, parameters[above.weight].transpose(1, 2))
                if layer.activation is not None:
                    errors = errors * _SLOPES[type(layer.activation)](out[-1].inputs)
            out.append(Factors(layer, before, errors))
        return out

    @staticmethod
    def add(parameters: list[Tensor], factors: list[Factors], *, scale: float, keep: float = 1.0) -> None:
        """parameters <- keep * parameters + scale * gradient, in place."""
        for f in factors:
            parameters[f.layer.weight].baddbmm_(f.inputs.transpose(1, 2), f.errors, beta=keep, alpha=scale)
            if f.layer.bias is not None:
                total = f.errors.sum(1)
                bias = parameters[f.layer.bias]
                bias.add_(total, alpha=scale) if keep else bias.copy_(total).mul_(scale)


def stack(space: Space, loss: object) -> Stack | None:
    """The stack of a module, or None if it is anything else or its loss is the user's own."""
    derivative = _DERIVATIVES.get(loss) if isinstance(loss, str) else None
    if derivative is None or type(space.module) is not nn.Sequential:
        return None
    names = {slot.name: i for i, slot in enumerate(space.slots)}
    layers: list[Layer] = []
    for name, module in space.module.named_children():
        if type(module) is nn.Linear and f"{name}.weight" in names and (module.bias is None or f"{name}.bias" in names):
            layers.append(Layer(names[f"{name}.weight"], names.get(f"{name}.bias"), None))
        elif type(module) in _SLOPES and layers and layers[-1].activation is None and not getattr(module, "inplace", False):
            layers[-1] = Layer(layers[-1].weight, layers[-1].bias, module)
        elif not (type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1) and not layers):
            return None
    return Stack(tuple(layers), derivative) if layers and layers[-1].activation is None else None


def _forward(layer: Layer, parameters: list[Tensor], x: Tensor) -> Tensor:
    weight = parameters[layer.weight]
    out = torch.bmm(x, weight) if layer.bias is None else torch.baddbmm(parameters[layer.bias].unsqueeze(1), x, weight)
    return out if layer.activation is None else layer.activation(out)


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    chance = torch.softmax(outputs, dim=2)
    return chance.scatter_add_(2, y.unsqueeze(2), chance.new_full((), -1.0).expand(*y.shape, 1))


def _squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs - y.view_as(outputs)


_DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": _cross_entropy,
    "squared_error": _squared_error,
}
