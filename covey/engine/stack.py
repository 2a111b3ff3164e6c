"""Stacks of linear layers by hand: one batched backward pass whose gradients go straight into the
rows, without a buffer.

The gradient of a linear layer is the product of what came in and what comes back. Keeping the two
factors costs little, and `add` multiplies them into the weights themselves; autograd would write a
gradient as large as all rows and read it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.engine import rowwise
from covey.engine.batched import layers
from covey.engine.layout import ParameterLayout


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
        "sigmoid", rowwise.elementwise(torch.sigmoid), lambda out: out * (1 - out)
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
    """What came into a layer [n, B, in] and the loss's derivative by what it put out [n, B, out]."""

    layer: Layer
    inputs: Tensor
    errors: Tensor


@dataclass(frozen=True)
class LinearStack:
    """A chain of linear layers with a loss whose derivative is known."""

    layers: tuple[Layer, ...]
    derivative: Callable[[Tensor, Tensor], Tensor]

    def factors(
        self,
        parameters: list[Tensor],
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        *,
        inside: Tensor | None = None,
    ) -> list[Factors]:
        """The gradient of each row's mean loss, as factors, the last layer's first, all at the same
        parameters.

        `inside` gives x times the first weight, where the caller knows it already.
        """
        inputs = [x.flatten(2)]
        for layer in self.layers:
            inputs.append(_forward(layer, parameters, inputs[-1], inside))
            inside = None
        share = (
            1 / y.shape[1]
            if weight is None
            else (weight / weight.sum(1, keepdim=True)).unsqueeze(2)
        )
        errors = self.derivative(inputs.pop(), y) * share
        out: list[Factors] = []
        for layer, above, before in zip(
            reversed(self.layers), [None, *reversed(self.layers)], reversed(inputs), strict=False
        ):
            if above is not None:
                errors = rowwise.bmm(errors, parameters[above.weight].transpose(1, 2))
                if layer.activation is not None:
                    errors = errors * layer.activation.slope(out[-1].inputs)
            out.append(Factors(layer, before, errors))
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
        """parameters <- keep * parameters + scale * gradient, in place; keep is 0 or 1; no first
        weight if `first` is False.
        """
        for f in factors:
            if first or f is not factors[-1]:
                rowwise.baddbmm_(
                    parameters[f.layer.weight],
                    f.inputs.transpose(1, 2),
                    f.errors,
                    keep=keep,
                    scale=scale,
                )
            if f.layer.bias is not None:
                total = f.errors.sum(1)
                bias = parameters[f.layer.bias]
                bias.add_(total, alpha=scale) if keep else bias.copy_(total).mul_(scale)


def stack(
    space: ParameterLayout,
    loss: object,
    example: torch.Size,
) -> LinearStack | str:
    """The stack of a module on examples of this shape, or the reason why it is none."""
    if not isinstance(loss, str):
        return "the loss is a function of your own"
    chain = _chain(space, example)
    if isinstance(chain, str):
        return chain
    if not chain or chain[-1].activation is not None:
        return "the last layer is not Linear"
    owned = {i for layer in chain for i in (layer.weight, layer.bias) if i is not None}
    if len(owned) < len(space.slots):
        return "the model has parameters outside its layers"
    return LinearStack(tuple(chain), _DERIVATIVES[loss])


def _chain(space: ParameterLayout, example: torch.Size) -> list[Layer] | str:
    """The linear layers in the order they run, or why the model is not made of these alone."""
    slots = {slot.name: i for i, slot in enumerate(space.slots)}
    chain: list[Layer] = []
    flat = len(example) == 1
    for name, module in layers(space.module):
        kind = type(module)
        if type(module) is nn.Linear:
            if not flat:
                return f"Linear takes examples of shape {tuple(example)}, which are not flattened"
            if not _owns(name, module, slots):
                return "a Linear layer is frozen or stands twice"
            chain.append(Layer(slots[f"{name}weight"], slots.get(f"{name}bias"), None))
        elif kind in _ACTIVATIONS and chain and chain[-1].activation is None:
            chain[-1] = Layer(chain[-1].weight, chain[-1].bias, _ACTIVATIONS[kind])
        elif kind in _ACTIVATIONS:
            return f"{kind.__name__} does not follow a Linear layer"
        elif _flattens(module) and not chain:
            flat = True
        else:
            return _unknown(name, module)
    return chain


def _owns(
    name: str,
    module: nn.Linear,
    slots: dict[str, int],
) -> bool:
    """Whether weight and bias of a layer have slots under its own name."""
    if f"{name}weight" not in slots:
        return False
    return module.bias is None or f"{name}bias" in slots


def _flattens(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def _unknown(name: str, module: nn.Module) -> str:
    """Why a module is no layer of a stack; only the whole model has no name."""
    kind = type(module).__name__
    if not name:
        return f"{kind} is not an nn.Sequential of Linear layers and activations"
    return f"{kind} is a layer other than Linear and ReLU, Tanh or Sigmoid"


def _forward(
    layer: Layer,
    parameters: list[Tensor],
    x: Tensor,
    inside: Tensor | None,
) -> Tensor:
    weight = parameters[layer.weight]
    bias = None if layer.bias is None else parameters[layer.bias].unsqueeze(1)
    if inside is not None:
        out = inside if bias is None else inside + bias
    else:
        out = rowwise.bmm(x, weight) if bias is None else rowwise.baddbmm(bias, x, weight)
    return out if layer.activation is None else layer.activation.run(out)


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    chance = torch.softmax(outputs, dim=2)
    return chance.scatter_add_(2, y.unsqueeze(2), chance.new_full((), -1.0).expand(*y.shape, 1))


def _squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs - y.view_as(outputs)


_DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": _cross_entropy,
    "squared_error": _squared_error,
}
