"""Stacks of linear layers, differentiated by hand: gradients go into the rows without a buffer.

The gradient of a linear layer is the product of what came in and what comes back. Keeping the two
factors costs little, and `add` multiplies them into the weights themselves; autograd would write a
gradient as large as all rows and read it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey.data import Shards
from covey.engine.measures.named_losses import NAMED
from covey.engine.modules import rowwise
from covey.engine.modules.activations import Activation, activation
from covey.engine.modules.graph import (
    INPUT,
    PARAMETER,
    SITE,
    Graph,
    Multiple,
    Operation,
    Unknown,
    Value,
)
from covey.engine.modules.layout import ParameterLayout

Derivative = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to the derivative of every example's loss by its outputs."""


_FLATTENING = ("flatten", "view", "reshape")
ACTIVATIONS = "ReLU, LeakyReLU, ELU, SiLU, GELU, Tanh or Sigmoid"


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
        kept: list[Tensor] = []  # what goes into each activation, or comes out where that suffices
        outputs = x.flatten(2)
        for layer in self.layers:
            inputs.append(outputs)
            weights = parameters[layer.weight]
            bias = None
            if layer.bias is not None:
                bias = parameters[layer.bias].unsqueeze(1)
            if inside is not None:
                linear = inside if bias is None else inside + bias
            elif bias is None:
                linear = rowwise.bmm(outputs, weights)
            else:
                linear = rowwise.baddbmm(bias, outputs, weights)
            outputs = linear
            if layer.activation is not None:
                outputs = layer.activation.run(linear)
                if not layer.activation.by_input:
                    linear = outputs
            kept.append(linear)
            inside = None
        share: Tensor | float = 1 / y.shape[1]  # of each example in its row's mean loss
        if weight is not None:
            share = (weight / weight.sum(1, keepdim=True)).unsqueeze(2)
        errors = self.derivative(outputs, y) * share
        *before, last = self.layers
        kept.pop()
        out = [Factors(last, inputs.pop(), errors)]
        for layer in reversed(before):
            after = out[-1]
            weight_after = parameters[after.layer.weight]
            errors = rowwise.bmm(errors, weight_after.transpose(1, 2))
            linear = kept.pop()
            if layer.activation is not None:
                errors = errors * layer.activation.slope(linear, after.inputs)
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


def stack(
    space: ParameterLayout, loss: object, shards: Shards, graph: Graph | str
) -> LinearStack | str:
    """The stack of a module with this graph on such data, or the reason why it is none."""
    if isinstance(graph, str):
        return graph
    reason = _no_derivative(loss, shards)
    if reason is not None:
        return reason
    try:
        chain = _chain(space, graph)
    except Unknown as error:
        return str(error)
    if not _is_bare(chain):
        return "the last layer is not Linear"
    owned = [slot for layer in chain for slot in (layer.weight, layer.bias)]
    slots = [slot for slot in owned if slot is not None]
    if len(set(slots)) < len(slots):
        return "a Linear layer stands twice"
    if len(slots) < len(space.slots):
        return "the model has parameters outside its layers"
    return LinearStack(tuple(chain), _DERIVATIVES[str(loss)])


def _no_derivative(loss: object, shards: Shards) -> str | None:
    """Why the derivative of a loss on such data is not known here."""
    if shards.tokens is not None:
        return "the inputs are token ids"
    if shards.by_position:
        return "the labels are per position"
    if loss == "cross_entropy" and shards.classes is None:
        return "the targets are probabilities"
    if type(loss) in NAMED.values():
        return f"the loss is {type(loss).__name__}, not plain cross-entropy or squared error"
    if not isinstance(loss, str):
        return "the loss is a function of your own"
    return None


def _chain(space: ParameterLayout, graph: Graph) -> list[Layer]:
    """The linear layers in the order they run; raises `Unknown` if there is anything else."""
    chain: list[Layer] = []
    before = Value(0)
    flat = graph.nodes[0].axes == 2
    for number in graph.needed:
        node = graph.nodes[number]
        flattens = node.operation in _FLATTENING and node.axes == 2
        if node.operation in (INPUT, PARAMETER):
            continue
        if node.operation == SITE:
            raise Unknown("the model has dropout")
        if [value for value in node.values if not _is_parameter(graph, value)] != [before]:
            raise Unknown(f"{node.operation} takes more than the values before it")
        if node.operation == "linear":
            if not flat:
                shape = tuple(graph.nodes[0].shape[1:])
                raise Unknown(f"Linear takes examples of shape {shape}, which are not flattened")
            chain.append(_layer(space, graph, node))
        elif (function := activation(node)) is not None:
            if not _is_bare(chain):
                raise Unknown(f"{node.operation} does not follow a Linear layer")
            linear = chain.pop()
            chain.append(replace(linear, activation=function))
        elif chain or not flattens or node.shape[0] != Multiple(1):
            raise Unknown(f"{node.operation} is neither Linear nor {ACTIVATIONS}")
        else:
            flat = True
        before = Value(number)
    return chain


def _is_parameter(graph: Graph, value: Value) -> bool:
    return graph.nodes[value.number].operation == PARAMETER


def _is_bare(chain: list[Layer]) -> bool:
    """Whether the last layer is there and has no activation yet."""
    return bool(chain) and chain[-1].activation is None


def _layer(space: ParameterLayout, graph: Graph, node: Operation) -> Layer:
    """A linear layer, whose weight and bias must be parameters as rows hold them."""
    operands = [*node.arguments, *node.keywords.values()]
    slots: list[int | None] = []
    for operand in operands[1:]:
        if operand is None:
            slots.append(None)
        elif isinstance(operand, Value) and _is_parameter(graph, operand):
            [name] = graph.nodes[operand.number].arguments
            slots.append(space.numbers[name])
        else:
            raise Unknown("a Linear layer is frozen, or its weight is computed")
    weight, bias = (*slots, None)[:2]
    if weight is None or not space.slots[weight].transposed:
        raise Unknown("the weight of a product is not that of a Linear layer")
    return Layer(weight, bias, None)


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """The derivative of cross-entropy: probabilities, minus 1 at the label."""
    probability = torch.softmax(outputs, dim=2)
    label = y.unsqueeze(2)
    minus_one = probability.new_full((), -1.0).expand(label.shape)
    return probability.scatter_add_(2, label, minus_one)


_DERIVATIVES: dict[str, Derivative] = {
    "cross_entropy": cross_entropy,
    "squared_error": lambda outputs, y: outputs - y.view_as(outputs),
}
