"""The graph of a module as one pass of many models, on values of one of two layouts.

By rows a value is [n, B, ...]; folded it is [B, n * C, ...], in which n convolutions are one
grouped convolution, and pooling and GroupNorm need not know that there are many models. A value
stays folded from layer to layer until one asks for its rows.

A pass is a list of instructions. Each reads some registers and writes one. The rules in `rules.py`
say which instructions an operation needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from covey.engine.modules.graph import (
    INPUT,
    PARAMETER,
    Graph,
    Multiple,
    Operation,
    Shared,
    Unknown,
)
from covey.engine.modules.graph import Value as Value
from covey.engine.modules.layout import ParameterLayout
from covey.engine.modules.passing import Pass

Step = Callable[[Pass, Tensor], Tensor]
"""From the pass of all models and the inputs [n, B, ...] to the outputs."""
Run = Callable[..., Any]
"""From the tensors that an instruction reads to one tensor more."""
INPUTS = -1
"""The register of the inputs [n, B, ...]."""
NOTHING = -2
"""The register of an operand that is not there, None."""
PASS = -3
"""The register of the pass itself."""
Rule = Callable[..., None]
"""Emits the instructions of one operation: takes the compiler, then the operation's arguments."""
RULES: dict[str, Rule] = {}
"""The rules of all operations, by the names of torch's functions; their modules put them here."""

_ROWS = "rows"
_FOLDED = "folded"
_MAX_POOLS = [f"{kind}{axes}d" for kind in ("max_pool", "adaptive_max_pool") for axes in (1, 2, 3)]


def rule(*operations: str) -> Callable[[Rule], Rule]:
    """Makes a function the rule of these operations."""

    def registered(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operations, function))
        return function

    return registered


Instructions = list[tuple[Run, tuple[int, ...]]]
"""What to run, and the registers that it reads; each writes the register of its own number."""


def machine(instructions: Instructions, output: int) -> Step:
    """The pass that runs the instructions and forgets tensors as early as it can."""
    last_reader = {}
    for number, (_, reads) in enumerate(instructions):
        last_reader.update(dict.fromkeys(reads, number))
    steps = []
    for number, (run, reads) in enumerate(instructions):
        done = {r for r in reads if r >= 0 and r != output and last_reader[r] == number}
        steps.append((run, reads, tuple(done)))

    def apply(pass_: Pass, x: Tensor) -> Tensor:
        registers: list[Any] = [None] * len(steps) + [pass_, None, x]
        for number, (run, reads, done) in enumerate(steps):
            registers[number] = run(*[registers[r] for r in reads])
            for register in done:
                registers[register] = None
        result: Tensor = registers[output]
        return result

    return apply


class Compiler:
    """Builds the instructions of a graph."""

    def __init__(self, graph: Graph, space: ParameterLayout) -> None:
        self.graph = graph
        self.numbers = space.numbers
        self.slots = space.slots
        self._module = space.module
        self._instructions: Instructions = []
        self._node = 0
        self._places: dict[int, dict[str, int]] = {}
        self._constants: dict[int, int] = {}

    def step(self) -> Step:
        """The pass; raises `Unknown` where an operation has no rule."""
        for number in self.graph.needed:
            self._node = number
            node = self.graph.nodes[number]
            if node.operation == INPUT:
                self._places[number] = {_ROWS: INPUTS}
            elif node.operation != PARAMETER:  # parameters are read where they are used
                if node.operation not in RULES:
                    raise Unknown(f"{node.operation} is not a known operation")
                keywords = dict(node.keywords)
                if node.part is not None:
                    keywords["part"] = node.part
                try:
                    RULES[node.operation](self, *node.arguments, **keywords)
                except Unknown:
                    raise
                except Exception as error:  # arguments that the rule does not expect
                    raise Unknown(f"{node.operation} is used in a way that is not known") from error
                if self._node not in self._places:
                    raise Unknown(f"{node.operation} is used in a way that is not known")
        return machine(self._instructions, self.rows(self.graph.output))

    # What rules use

    def emit(self, run: Run, *reads: int, folded: bool = False) -> int:
        """The instruction that makes the value of this node; the register of its result.

        `reads` are the registers that it reads.
        """
        register = self.then(run, *reads)
        layout = _FOLDED if folded else _ROWS
        self._places.setdefault(self._node, {})[layout] = register
        return register

    def then(self, run: Run, *reads: int) -> int:
        """An instruction on the way to the value of this node; the register of its result."""
        self._instructions.append((run, reads))
        return len(self._instructions) - 1

    def same(self, operand: Value) -> None:
        """The value of this node is that of an earlier one."""
        if operand.number not in self._places:
            self.rows(operand)
        self._places[self._node] = self._places[operand.number]

    def rows(self, operand: Value | Shared) -> int:
        """The register that has an operand by rows, [n, ...]."""
        if isinstance(operand, Shared):
            constant = self.constant(operand)
            return self.then(lambda pass_, x: x.expand(pass_.models, *x.shape), PASS, constant)
        places = self._places.setdefault(operand.number, {})
        if not places:  # a parameter, which is read in the shape that the module knows
            number = self._slot(operand)
            turned = self.slots[number].transposed

            def parameter(pass_: Pass) -> Tensor:
                value = pass_.parameters[number]
                return value.transpose(1, 2) if turned else value

            places[_ROWS] = self.then(parameter, PASS)
        if _ROWS not in places:

            def by_model(pass_: Pass, x: Tensor) -> Tensor:
                return torch.unflatten(x, 1, (pass_.models, -1)).transpose(0, 1)

            places[_ROWS] = self.then(by_model, PASS, places[_FOLDED])
        return places[_ROWS]

    def optional(self, operand: Value | Shared | None) -> int:
        """The register that has an operand by rows, or that of nothing."""
        return NOTHING if operand is None else self.rows(operand)

    def stored(self, operand: Value | Shared) -> int | None:
        """The register of a linear weight as rows hold it, [n, in, out]; None for other operands.

        A row holds the weights of linear layers transposed.
        """
        if not isinstance(operand, Value):
            return None
        if self.graph.nodes[operand.number].operation != PARAMETER:
            return None
        number = self._slot(operand)
        if not self.slots[number].transposed:
            return None
        return self.then(lambda pass_: pass_.parameters[number], PASS)

    def _slot(self, operand: Value) -> int:
        """The number of the slot of a parameter."""
        [name] = self.graph.nodes[operand.number].arguments
        if name not in self.numbers:
            raise Unknown(f"parameter {name} is not part of a row")
        return self.numbers[name]

    def folded(self, operand: Value | Shared) -> int:
        """The register that has an operand folded, [B, n * C, ...]."""
        if isinstance(operand, Shared):
            raise Unknown("a constant stands where images are expected")
        places = self._places.setdefault(operand.number, {})
        if _FOLDED not in places:
            places[_FOLDED] = self.then(fold, self.rows(operand))
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
            tensor = operand.of(self._module)
            self._constants[key] = self.then(lambda: tensor)
        return self._constants[key]

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


def at_size(shape: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    """A shape, an index or other numbers, on a batch of this size."""
    out: list[Any] = []
    for number in shape:
        if isinstance(number, Multiple):
            out.append(number.factor * size)
        elif isinstance(number, slice):
            out.append(slice(*at_size((number.start, number.stop, number.step), size)))
        elif isinstance(number, tuple):
            out.append(at_size(number, size))
        else:
            out.append(number)
    return tuple(out)


def pooled_first(graph: Graph) -> Graph:
    """The graph in which pooling comes before a ReLU that nobody else reads.

    The maximum of ReLUs is the ReLU of the maximum: pooling first leaves fewer points.
    """
    readers = graph.readers
    nodes = list(graph.nodes)
    for number, pool in enumerate(nodes):
        if pool.operation not in _MAX_POOLS or not pool.values:
            continue
        before = pool.values[0].number
        relu = nodes[before]
        if relu.operation == "relu" and len(readers.get(before, ())) == 1:
            source = relu.arguments[0]
            nodes[before] = replace(pool, arguments=(source, *pool.arguments[1:]))
            nodes[number] = Operation("relu", (Value(before),), {}, pool.shape)
    return Graph(tuple(nodes), graph.output)


def fold(x: Tensor) -> Tensor:
    """x [n, B, C, ...] as [B, n * C, ...]."""
    return x.transpose(0, 1).flatten(1, 2)
