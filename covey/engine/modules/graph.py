"""A module's forward pass as a small graph: operations of torch, their operands, and sizes.

A node names a function of torch and holds its arguments. An argument is a `Value` (what an earlier
node made), a `Shared` tensor (the same for all models), a `Multiple` of the batch size, or a plain
Python value. The graph knows nothing of rows: `batched.py` turns it into a pass of many models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

INPUT = "input"
"""The operation of the first node: the examples of a batch."""
PARAMETER = "parameter"
"""The operation of a node that reads one trainable parameter; its argument is the name."""
FILLED = "filled"
"""The operation of a node whose tensor has one value everywhere; arguments: shape and value."""

FLOAT = "float"
"""The operation that turns a value to the type of the parameters."""
SITE = "dropout"
"""The operation of a site of dropout; arguments: the value, the site's number, and p for alpha."""
ATTENTION = "scaled_dot_product_attention"
"""Attention; arguments: query, key, value, mask, the site of its dropout or None, causal, scale."""


BATCH_NORM = "batch_norm"
"""BatchNorm; arguments: the value, weight, bias, the layer's number, eps."""


class Unknown(Exception):
    """Why a forward pass is no graph of known operations, in plain words."""


@dataclass(frozen=True)
class Value:
    """What the node of this number makes."""

    number: int


@dataclass(frozen=True, eq=False)
class Shared:
    """A tensor that is the same for all models: a buffer, a frozen parameter or a constant.

    `name` says where the module holds it; None: the forward pass made it.
    """

    tensor: Tensor
    name: str | None = None

    def of(self, module: nn.Module) -> Tensor:
        """The tensor, as this module holds it, in the type and on the device of its parameters."""
        tensor = self.tensor
        if self.name is not None:
            layer, _, key = self.name.rpartition(".")
            tensor = getattr(module.get_submodule(layer), key)
        parameter = next(module.parameters())
        if tensor.is_floating_point():
            return tensor.detach().to(parameter)
        return tensor.to(parameter.device)

    def common(self, other: Shared) -> Shared:
        """The tensor of both recordings; where only the second has its name, its values."""
        if self.name is not None and self.name == other.name:
            return self
        same_shape = self.tensor.shape == other.tensor.shape
        if same_shape and bool((self.tensor == other.tensor).all()):
            return Shared(self.tensor)
        raise Unknown("a tensor that it makes itself depends on the size of the batch")


@dataclass(frozen=True)
class Multiple:
    """So many times the size of the batch."""

    factor: int


@dataclass(frozen=True)
class Operation:
    """One operation. `part` is the number of its output, where it has several."""

    operation: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[Any, ...] = ()  # of what it makes; the batch size is a Multiple
    part: int | None = None

    @property
    def values(self) -> list[Value]:
        """The values that it takes, in order."""
        operands = (*self.arguments, *self.keywords.values())
        return [operand for operand in _leaves(operands) if isinstance(operand, Value)]

    @property
    def axes(self) -> int:
        """How many axes its tensor has, for one model."""
        return len(self.shape)


@dataclass(frozen=True)
class Graph:
    """The nodes in the order they run, and which of them is the output."""

    nodes: tuple[Operation, ...]
    output: Value

    @property
    def needed(self) -> list[int]:
        """The numbers of the nodes that the output depends on, in order."""
        pending = [self.output.number]
        out = set()
        while pending:
            number = pending.pop()
            if number not in out:
                out.add(number)
                pending += [value.number for value in self.nodes[number].values]
        return sorted(out)

    @property
    def readers(self) -> dict[int, list[int]]:
        """The nodes that read each value, in order."""
        readers: dict[int, list[int]] = {}
        for number in self.needed:
            for value in self.nodes[number].values:
                readers.setdefault(value.number, []).append(number)
        return readers


def site_count(graph: Graph | str) -> int:
    """In how many places of a graph training drops entries."""
    if isinstance(graph, str):
        return 0
    attention = [node for node in graph.nodes if node.operation == ATTENTION]
    plain = sum(node.operation == SITE for node in graph.nodes)
    return plain + sum(node.arguments[4] is not None for node in attention)


def merged(small: Graph, large: Graph, sizes: tuple[int, int]) -> Graph:
    """The graph of two recordings on batches of these sizes, which must be alike.

    A number that grows with the batch becomes a multiple of its size. In any other number and in
    their operations the recordings must agree.
    """
    if len(small.nodes) != len(large.nodes) or small.output != large.output:
        raise Unknown(_DIFFERS)
    nodes = []
    for one, other in zip(small.nodes, large.nodes, strict=True):
        if (one.operation, one.part) != (other.operation, other.part):
            raise Unknown(_DIFFERS)
        nodes.append(
            Operation(
                one.operation,
                _common(one.arguments, other.arguments, sizes),
                _common(one.keywords, other.keywords, sizes),
                _common(one.shape, other.shape, sizes),
                one.part,
            )
        )
    return Graph(tuple(nodes), small.output)


_DIFFERS = "its pass depends on the size of the batch"


def _common(one: Any, other: Any, sizes: tuple[int, int]) -> Any:
    """An argument of both recordings."""
    if type(one) is not type(other):
        raise Unknown(_DIFFERS)
    if isinstance(one, tuple):
        if len(one) != len(other):
            raise Unknown(_DIFFERS)
        return tuple(_common(a, b, sizes) for a, b in zip(one, other, strict=True))
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            raise Unknown(_DIFFERS)
        return {key: _common(one[key], other[key], sizes) for key in one}
    if isinstance(one, slice):
        ends = (one.start, one.stop, one.step)
        other_ends = (other.start, other.stop, other.step)
        return slice(*_common(ends, other_ends, sizes))
    if isinstance(one, Shared):
        return one.common(other)
    if one == other:
        return one
    small, large = sizes
    if type(one) is int and one > 0 and one % small == 0 and one // small * large == other:
        return Multiple(one // small)
    raise Unknown(_DIFFERS)


def _leaves(operand: Any) -> Iterator[Any]:
    """The operands inside tuples, mappings and slices."""
    if isinstance(operand, tuple):
        for part in operand:
            yield from _leaves(part)
    else:
        yield operand
