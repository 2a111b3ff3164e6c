"""The graph of a module as one pass of many models, on values of one of two layouts.

By rows a value is [n, B, ...]; folded it is [B, n * C, ...], in which n convolutions are one
grouped convolution, and pooling and GroupNorm need not know that there are many models. A value
stays folded from layer to layer until one asks for its rows.

A pass is a list of instructions. Each reads some registers and writes one. The rules in `rules.py`
say which instructions an operation needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from covey.engine.graph import FILLED, INPUT, PARAMETER, Graph, Multiple, Node, Shared, Unknown
from covey.engine.graph import Value as Value
from covey.engine.layout import ParameterLayout
from covey.engine.passing import Pass

Step = Callable[[Pass, Tensor], Tensor]
"""From the pass of all models and the inputs [n, B, ...] to the outputs."""
Registers = list[Any]
"""The tensors of a pass; None where one is not there yet or no more."""
Run = Callable[[Pass, Registers], Tensor]
"""From the pass and what earlier instructions made to one tensor more."""
Rule = Callable[..., None]
"""Emits the instructions of one operation: takes the compiler, then the operation's arguments."""

_ROWS = "rows"
_FOLDED = "folded"
_MAX_POOLS = (
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
)


@dataclass(frozen=True)
class Instruction:
    """What to run, the register of its result, and the registers that nobody reads any more."""

    run: Run
    target: int
    done: tuple[int, ...] = ()


class Compiler:
    """Builds the instructions of a graph. With `alone`, rows come one at a time.

    Then nothing need be done to keep their bits apart.
    """

    def __init__(self, graph: Graph, space: ParameterLayout, rules: Mapping[str, Rule], *,
                 alone: bool) -> None:  # fmt: skip
        self.graph = graph
        self.alone = alone
        self.numbers = space.numbers
        self.slots = space.slots
        self._module = space.module
        self._rules = rules
        self._instructions: list[tuple[Run, tuple[int, ...]]] = []
        self._node = 0
        self._places: dict[int, dict[str, int]] = {}
        self._constants: dict[int, int] = {}

    def step(self) -> Step:
        """The pass; raises `Unknown` where an operation has no rule."""
        for number in self.graph.needed:
            self._node = number
            node = self.graph.nodes[number]
            if node.operation == INPUT:
                self._places[number] = {_ROWS: -1}
            elif node.operation == FILLED:
                self._filled(node)
            elif node.operation != PARAMETER:  # parameters are read where they are used
                self._apply(node)
        return _machine(self._instructions, self.rows(self.graph.output))

    def _apply(self, node: Node) -> None:
        rule = self._rules.get(node.operation)
        if rule is None:
            raise Unknown(f"{node.operation} is not a known operation")
        keywords = dict(node.keywords)
        if node.part is not None:
            keywords["part"] = node.part
        try:
            rule(self, *node.arguments, **keywords)
        except Unknown:
            raise
        except Exception as error:  # arguments that the rule does not expect
            raise Unknown(f"{node.operation} is used in a way that is not known") from error
        if self._node not in self._places:
            raise Unknown(f"{node.operation} is used in a way that is not known")

    def _filled(self, node: Node) -> None:
        shape, value = node.arguments

        def run(pass_: Pass, v: Registers) -> Tensor:
            sizes = at_size(shape, v[-1].shape[1])
            return pass_.parameters[0].new_full((pass_.models, *sizes), value)

        self.emit(run)

    # What rules use

    def emit(self, run: Run, *reads: int, folded: bool = False) -> int:
        """The instruction that makes the value of this node; the register of its result.

        `reads` are the registers that it reads.
        """
        register = self._add(run, reads)
        layout = _FOLDED if folded else _ROWS
        self._places.setdefault(self._node, {})[layout] = register
        return register

    def then(self, run: Run, *reads: int) -> int:
        """An instruction on the way to the value of this node; the register of its result."""
        return self._add(run, reads)

    def same(self, operand: Value) -> None:
        """The value of this node is that of an earlier one."""
        if operand.number not in self._places:
            self.rows(operand)
        self._places[self._node] = self._places[operand.number]

    def rows(self, operand: Value | Shared) -> int:
        """The register that has an operand by rows, [n, ...]."""
        if isinstance(operand, Shared):
            constant = self.constant(operand)
            return self._add(
                lambda pass_, v: v[constant].expand(pass_.models, *v[constant].shape), (constant,)
            )
        places = self._places.setdefault(operand.number, {})
        if not places:
            places[_ROWS] = self._parameter(operand)
        if _ROWS not in places:
            source = places[_FOLDED]
            places[_ROWS] = self._add(lambda pass_, v: _unfold(pass_, v[source]), (source,))
        return places[_ROWS]

    def stored(self, operand: Value | Shared) -> int | None:
        """The register of a linear weight as rows hold it, [n, in, out]; None for other operands.

        A row holds the weights of linear layers transposed.
        """
        if not isinstance(operand, Value):
            return None
        node = self.graph.nodes[operand.number]
        if node.operation != PARAMETER:
            return None
        number = self._slot(node)
        if not self.slots[number].transposed:
            return None
        return self._add(lambda pass_, v: pass_.parameters[number], ())

    def _slot(self, node: Node) -> int:
        """The number of the slot that a node reads."""
        [name] = node.arguments
        number = self.numbers.get(name)
        if number is None:
            raise Unknown(f"parameter {name} is not part of a row")
        return number

    def _parameter(self, operand: Value) -> int:
        """The register of a parameter in the shape that the module knows."""
        number = self._slot(self.graph.nodes[operand.number])
        if self.slots[number].transposed:
            return self._add(lambda pass_, v: pass_.parameters[number].transpose(1, 2), ())
        return self._add(lambda pass_, v: pass_.parameters[number], ())

    def folded(self, operand: Value | Shared) -> int:
        """The register that has an operand folded, [B, n * C, ...]."""
        if isinstance(operand, Shared):
            raise Unknown("a constant stands where images are expected")
        places = self._places.setdefault(operand.number, {})
        if _FOLDED not in places:
            source = self.rows(operand)
            turn = _fold_alone if self.alone else fold
            places[_FOLDED] = self._add(lambda pass_, v: turn(v[source]), (source,))
        return places[_FOLDED]

    def is_folded(self, operand: Any) -> bool:
        """Whether an operand is there in the folded layout."""
        if not isinstance(operand, Value):
            return False
        return _FOLDED in self._places.get(operand.number, {})

    def constant(self, operand: Shared) -> int:
        """The register that has a tensor shared by all models, without an axis of rows."""
        key = id(operand.tensor)
        if key not in self._constants:
            tensor = self._tensor(operand)
            self._constants[key] = self._add(lambda pass_, v: tensor, ())
        return self._constants[key]

    def _tensor(self, operand: Shared) -> Tensor:
        """A shared tensor in the type and on the device of the parameters."""
        if operand.name is not None:
            tensor = _attribute(self._module, operand.name)
        else:
            tensor = operand.tensor
        parameter = next(self._module.parameters())
        if tensor.is_floating_point():
            return tensor.detach().to(parameter)
        return tensor.to(parameter.device)

    def axes(self, operand: Any) -> int:
        """How many axes an operand has, for one model; 0 for a number."""
        return len(self.shape(operand))

    def shape(self, operand: Any) -> tuple[Any, ...]:
        """The shape of an operand for one model; the batch size is a `Multiple`."""
        if isinstance(operand, Value):
            return self.graph.nodes[operand.number].shape
        if isinstance(operand, Shared):
            return tuple(operand.tensor.shape)
        return ()

    @property
    def made(self) -> tuple[Any, ...]:
        """The shape of what this node makes, for one model."""
        return self.graph.nodes[self._node].shape

    def _add(self, run: Run, reads: tuple[int, ...]) -> int:
        self._instructions.append((run, reads))
        return len(self._instructions) - 1


def at_size(shape: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    """A shape, an index or other numbers, on a batch of this size."""
    return tuple(_at_size(length, size) for length in shape)


def _at_size(number: Any, size: int) -> Any:
    if isinstance(number, Multiple):
        return number.factor * size
    if isinstance(number, slice):
        return slice(*at_size((number.start, number.stop, number.step), size))
    if isinstance(number, tuple):
        return at_size(number, size)
    return number


def pooled_first(graph: Graph) -> Graph:
    """The graph in which pooling comes before a ReLU that nobody else reads.

    The maximum of ReLUs is the ReLU of the maximum: pooling first leaves fewer points.
    """
    readers: dict[int, int] = {}
    for number in graph.needed:
        for value in graph.nodes[number].values:
            readers[value.number] = readers.get(value.number, 0) + 1
    nodes = list(graph.nodes)
    for number, pool in enumerate(nodes):
        if pool.operation not in _MAX_POOLS or not pool.values:
            continue
        before = pool.values[0].number
        relu = nodes[before]
        if relu.operation == "relu" and readers.get(before) == 1:
            source = relu.arguments[0]
            nodes[before] = replace(pool, arguments=(source, *pool.arguments[1:]))
            nodes[number] = Node("relu", (Value(before),), {}, pool.shape)
    return Graph(tuple(nodes), graph.output)


def _machine(code: list[tuple[Run, tuple[int, ...]]], output: int) -> Step:
    """The pass that runs the instructions and forgets tensors as early as it can."""
    last_reader = {}
    for number, (_, reads) in enumerate(code):
        for register in reads:
            last_reader[register] = number
    instructions = []
    for number, (run, reads) in enumerate(code):
        done = {r for r in reads if r >= 0 and r != output and last_reader[r] == number}
        instructions.append(Instruction(run, number, tuple(done)))
    count = len(code) + 1

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        registers: Registers = [None] * count
        registers[-1] = x
        for instruction in instructions:
            registers[instruction.target] = instruction.run(pass_, registers)
            for register in instruction.done:
                registers[register] = None
        result: Tensor = registers[output]
        return result

    return apply


def _attribute(module: nn.Module, name: str) -> Tensor:
    layer, _, key = name.rpartition(".")
    tensor: Tensor = getattr(module.get_submodule(layer), key)
    return tensor


def fold(x: Tensor) -> Tensor:
    return x.transpose(0, 1).flatten(1, 2)


def _fold_alone(x: Tensor) -> Tensor:
    return _channels_last(fold(x))


def _unfold(pass_: Pass, x: Tensor) -> Tensor:
    by_model = torch.unflatten(x, 1, (pass_.models, -1))
    return by_model.transpose(0, 1)


def _channels_last(x: Tensor) -> Tensor:
    """Images with the channels of a point side by side.

    A CPU convolves and pools them up to twice as fast.
    """
    if x.dim() != 4:
        return x
    if x.shape[1] == 1:
        # One channel has both layouts; only these strides make torch go on with channels last.
        height, width = x.shape[2:]
        by_point = x.reshape(len(x), height, width, 1)
        return by_point.movedim(-1, 1)
    return x.contiguous(memory_format=torch.channels_last)
