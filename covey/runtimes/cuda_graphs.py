"""A device program as one CUDA graph: hundreds of small kernels for the price of one launch.

A graph replays kernels on fixed memory. Everything that may differ between two calls of a program
must lie in memory that is filled before the replay: its arguments, the ids of the devices, the keys
of its draws, the rows they keep. The first call of a program is an ordinary one that notes what it
reads (`Tape`); the second captures it on static inputs; from then on it is replayed. A program that
reads anything else, or branches on a number it computes, is never captured, and `Graphs.reasons`
says why.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from covey import draws
from covey.kernel.algorithm import Program
from covey.kernel.call import Call
from covey.kernel.nodes import Nodes, Services
from covey.kernel.replies import Exact, Masked
from covey.kernel.store import NEVER, Column
from covey.types import Ids, Rows

_SIZES = 8
"""Numbers of devices on which one program is captured; each holds its rows for good."""
_VARIANTS = 4
"""Graphs of one program and size; they differ in how the round's number compares."""

Work = Callable[[], tuple[dict[str, Tensor], Any]]
"""A program on static inputs; it returns the rows it keeps and its answer."""

Comparison = Callable[[Any, Any], Any]
Compared = tuple[Comparison, Any, bool]
"""A comparison of the round's number: (operator, the other operand, the result)."""


class Replay(Protocol):
    """Work that was captured once and can be repeated on the same memory."""

    kept: dict[str, Tensor]
    answer: Any

    def replay(self) -> None:
        """Do it again."""
        ...


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage: an older graph must not be freed while another one is captured."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class CudaReplay:
    """A CUDA graph.

    The graphs of one simulator share a pool of memory, that of `beside`: results are copied out
    before another graph runs. A pool lives as long as a graph that uses it.
    """

    def __init__(self, work: Work, beside: CudaReplay | None, device: torch.device) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._device = device
        pool = None
        if beside is not None:
            pool = beside._graph.pool()
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with (
            _uncollected(),
            torch.cuda.device(device),
            torch.cuda.graph(self._graph, pool=pool, stream=stream),
        ):
            self.kept, self.answer = work()

    def replay(self) -> None:
        """Do it again."""
        if self._device.index in (None, torch.cuda.current_device()):
            self._graph.replay()
            return
        with torch.cuda.device(self._device):
            self._graph.replay()


class Decisions(Protocol):
    """Where comparisons of the round's number are recorded."""

    compared: list[Compared]

    def refuse(self, reason: str) -> None:
        """What is noted cannot be captured."""
        ...


class Watched:
    """The round's number in a program that is noted.

    Its comparisons are recorded: a graph serves all rounds with the same results.
    """

    def __init__(self, value: int, tape: Decisions) -> None:
        self._value = value
        self._tape = tape

    def _compare(self, other: Any, operation: Comparison) -> bool:
        result = bool(operation(self._value, other))
        self._tape.compared.append((operation, other, result))
        return result

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, operator.lt)

    def __le__(self, other: Any) -> bool:
        return self._compare(other, operator.le)

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, operator.gt)

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, operator.ge)

    def __eq__(self, other: object) -> bool:
        return self._compare(other, operator.eq)

    def __ne__(self, other: object) -> bool:
        return self._compare(other, operator.ne)

    def __hash__(self) -> int:
        return hash(int(self))

    def __index__(self) -> int:
        self._tape.refuse("it computes with the round's number")
        return self._value

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))

    def __repr__(self) -> str:
        return repr(int(self))

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)

    def __bool__(self) -> bool:
        return self._compare(0, operator.ne)


def _with_the_number(compute: Callable[..., Any], *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Watched, *other: Any) -> Any:
        if swapped:
            return compute(*other, int(self))
        return compute(int(self), *other)

    return method


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "divmod": divmod,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}
for _name, _compute in _OPERATIONS.items():
    setattr(Watched, f"__{_name}__", _with_the_number(_compute))
    setattr(Watched, f"__r{_name}__", _with_the_number(_compute, swapped=True))
_SIGNS: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "pos": operator.pos,
    "abs": abs,
    "invert": operator.invert,
}
for _name, _compute in _SIGNS.items():
    setattr(Watched, f"__{_name}__", _with_the_number(_compute))


@dataclass(eq=False)
class Tape:
    """The reads of one call of a program besides its arguments."""

    draws: list[tuple[int | str, ...]] = field(default_factory=list)
    """The words of each draw's address."""
    recalls: list[tuple[str, int | None]] = field(default_factory=list)
    """Each recalled name and the round since which it counts; None: the present round."""
    compared: list[Compared] = field(default_factory=list)
    """The comparisons of the round's number."""
    reason: str | None = None
    """Why this program cannot be captured; None: it can."""

    def refuse(self, reason: str) -> None:
        """This program cannot be captured."""
        self.reason = self.reason or reason

    def fits(self, round: int) -> bool:
        """Whether the program would have decided the same in this round."""
        for operation, other, result in self.compared:
            if bool(operation(round, other)) != result:
                return False
        return True


class Taped(Nodes):
    """Nodes whose program is noted as it runs."""

    def __init__(self, runtime: Services, call: Invocation, tape: Tape) -> None:
        self._ids = call.ids
        self._tape = tape
        self._number = call.round
        self._idle = call.idle
        super().__init__(
            runtime,
            call.tier,
            call.ids,
            round=call.round,
            path=call.path,
            idle=call.idle,
        )
        self.device_ids = call.ids.to(runtime.task.device)
        self.local = runtime.tree.local(call.tier, self.device_ids)

    @property
    def ids(self) -> Ids:
        self._tape.refuse("it uses its devices' numbers or all their examples")
        return self._ids

    @ids.setter
    def ids(self, ids: Ids) -> None:
        self._ids = ids

    @property
    def idle(self) -> Tensor | None:
        self._tape.refuse("it asks who of its devices is idle")
        return self._idle

    @idle.setter
    def idle(self, idle: Tensor | None) -> None:
        pass

    @property
    def round(self) -> Any:
        return Watched(self._number, self._tape)

    @round.setter
    def round(self, round: int) -> None:
        self._number = round

    def __len__(self) -> int:
        return len(self._ids)

    def reads(self, reason: str) -> None:
        self._tape.refuse(reason)

    def address(self, *words: int | str) -> draws.Address:
        self._tape.draws.append(words)
        seeds = self._runtime.seeds
        address = (self._number, self._path, self.tier, *words)
        keys = draws.keys(seeds, *address)
        copy = self._runtime.tree.copy(self.tier, self._ids)
        return keys[copy].to(self._runtime.task.device)

    def recall(self, name: str, default: Rows | None = None, since: Any = 0) -> Any:
        if name in self.call.kept:
            return self.call.kept[name]
        store = self._runtime.store
        column = store.columns.get((self.tier, name))
        if default is None or column is None or column.template.device != default.device:
            self._tape.refuse(f"it recalls {name!r} without a default, or what is kept elsewhere")
        if isinstance(since, Watched):
            self._tape.recalls.append((name, None))
            first_round = self._number
        else:
            first_round = int(since)
            self._tape.recalls.append((name, first_round))
        return store.get(self.tier, name, self._ids, default, first_round)


class Recalled:
    """The static memory of one recalled name: rows, and which nodes have one."""

    def __init__(self, template: Tensor, nodes: int, device: torch.device) -> None:
        shape = template.shape[1:]
        self.rows = template.new_zeros((nodes, *shape))
        self.fresh = torch.zeros(nodes, dtype=torch.bool, device=device)
        self._slots = torch.full((nodes,), NEVER)  # NEVER where a node has no row
        self._device_slots = torch.zeros(nodes, dtype=torch.int64, device=device)

    def fill(self, column: Column, ids: Ids, since: int) -> None:
        """Copy the rows that nodes kept in round `since` or later."""
        slots = column.find(ids, since)
        have = slots != NEVER
        if not torch.equal(slots, self._slots):
            self._slots.copy_(slots)
            nonnegative = slots.clamp(min=0)
            self._device_slots.copy_(nonnegative, non_blocking=True)
            self.fresh.copy_(have, non_blocking=True)
        if bool(have.any()):
            column.read_into(self._device_slots, self.rows)


class Static(Nodes):
    """Nodes that read from memory that is filled before each replay, in the order of their tape."""

    def __init__(
        self,
        runtime: Services,
        tier: str,
        ids: Ids,
        tape: Tape,
        first: Invocation,
    ) -> None:
        super().__init__(runtime, tier, ids, round=0, path=0)
        device = runtime.task.device
        self.tape = tape
        self.device_ids = ids.to(device, copy=True)
        copy = runtime.tree.copy(tier, ids)
        local = runtime.tree.local(tier, ids)
        self.copy = copy.to(device, copy=True)
        self.local = local.to(device, copy=True)
        shape = (len(tape.draws), len(runtime.seeds))
        self._keys = torch.zeros(shape, dtype=torch.int64, device=device)
        self._recalls = []
        for name, _ in tape.recalls:
            template = runtime.store.columns[tier, name].template
            recalled = Recalled(template, len(ids), device)
            self._recalls.append(recalled)
        self.arguments = [value.clone() for value in first.arguments]
        self._number = first.round
        self.rewind()

    def rewind(self) -> None:
        """Start the tape again, before the program runs on these nodes."""
        self.call = Call(len(self.ids))
        self._calls = {}
        self._drawn = 0
        self._recalled = 0

    @property
    def round(self) -> Any:
        return Watched(self._number, Tape())

    @round.setter
    def round(self, round: int) -> None:
        self._number = round

    def fill(self, call: Invocation) -> None:
        """Fill in everything that this call's program reads, without waiting for the GPU."""
        runtime = self._runtime
        self._fill_ids(call.ids)
        if self.tape.draws:
            keys = []
            for words in self.tape.draws:
                address = (call.round, call.path, self.tier, *words)
                keys.append(draws.keys(runtime.seeds, *address))
            self._keys.copy_(torch.stack(keys), non_blocking=True)
        for recall, recalled in zip(self.tape.recalls, self._recalls, strict=True):
            name, since = recall
            if since is None:
                since = call.round
            column = runtime.store.columns[self.tier, name]
            recalled.fill(column, call.ids, since)
        for static, value in zip(self.arguments, call.arguments, strict=True):
            static.copy_(value)

    def _fill_ids(self, ids: Ids) -> None:
        """Fill in the ids of the nodes, where they are others than in the last replay."""
        if torch.equal(ids, self.ids):
            return
        tree = self._runtime.tree
        self.ids = ids
        self.device_ids.copy_(ids, non_blocking=True)
        copy = tree.copy(self.tier, ids)
        local = tree.local(self.tier, ids)
        self.copy.copy_(copy, non_blocking=True)
        self.local.copy_(local, non_blocking=True)

    def address(self, *words: int | str) -> draws.Address:
        keys = self._keys[self._drawn]
        self._drawn += 1
        return keys[self.copy]

    def recall(self, name: str, default: Rows | None = None, since: Any = 0) -> Any:
        if name in self.call.kept:
            return self.call.kept[name]
        assert default is not None
        recalled = self._recalls[self._recalled]
        self._recalled += 1
        ones = [1] * (default.ndim - 1)
        fresh = recalled.fresh.view(len(self), *ones)
        return torch.where(fresh, recalled.rows, default)


@dataclass(frozen=True, eq=False)
class Invocation:
    """One call of a program, before it runs."""

    program: Program
    tier: str
    ids: Ids
    round: int
    path: int
    arguments: tuple[Tensor, ...]
    idle: Tensor | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """The properties of calls that one graph can serve."""
        name = self.program.__name__
        forms = [(value.shape, value.dtype) for value in self.arguments]
        return (name, self.tier, len(self.ids), *forms)

    def nodes(self, runtime: Services) -> Nodes:
        """The nodes on which the program runs."""
        return Nodes(
            runtime,
            self.tier,
            self.ids,
            round=self.round,
            path=self.path,
            idle=self.idle,
        )


@dataclass(eq=False)
class _Variant:
    tape: Tape
    nodes: Static | None = None
    replay: Replay | None = None


class Graphs:
    """The graphs of one simulator."""

    def __init__(
        self,
        runtime: Services,
        capture: Callable[[Work, Any, torch.device], Replay] = CudaReplay,
    ) -> None:
        self._runtime = runtime
        self._capture = capture
        self._variants: dict[tuple[Any, ...], list[_Variant]] = {}
        self.reasons: dict[str, str] = {}
        self.replays = 0
        self.others = 0  # calls on a number of devices that is not captured, beyond _SIZES

    def run(self, call: Invocation) -> tuple[Nodes, Any]:
        """The nodes with what they keep, and the answer."""
        if self._never_captured(call):
            return self._eager(call)
        kind = call.kind
        if kind not in self._variants and self._sizes(call) >= _SIZES:
            self.others += 1
            return self._eager(call)
        variants = self._variants.setdefault(kind, [])
        fitting = [variant for variant in variants if variant.tape.fits(call.round)]
        if not fitting:
            return self._note(call, variants)
        variant = fitting[0]
        try:
            if variant.replay is None:
                variant.nodes, variant.replay = self._captured(call, variant.tape)
        except RuntimeError as error:
            first_line = str(error).splitlines()[0]
            self._refuse(call, f"it cannot be captured: {first_line}")
            return self._eager(call)
        return self._again(call, variant)

    def _never_captured(self, call: Invocation) -> bool:
        """Whether a call runs kernel by kernel, whatever was captured before."""
        if self._runtime.algorithm.eager is not None:  # a capture that fails prints errors of CUDA
            return True
        return call.program.__name__ in self.reasons or not len(call.ids)

    def report(self) -> str:
        """Whether programs run as graphs, and why not."""
        reason = self._runtime.algorithm.eager
        if reason is not None:
            return f"its programs run kernel by kernel: {reason}"
        if self.reasons:
            lines = []
            for name, reason in self.reasons.items():
                lines.append(f"{name} runs kernel by kernel: {reason}")
            return "; ".join(lines)
        text = f"the devices' program, replayed {self.replays} times"
        if self.others:
            text += f", {self.others} times not, as its number of devices changes"
        return text

    def _eager(self, call: Invocation) -> tuple[Nodes, Any]:
        """Run a program kernel by kernel."""
        nodes = call.nodes(self._runtime)
        return nodes, call.program(nodes, *call.arguments)

    def _note(self, call: Invocation, variants: list[_Variant]) -> tuple[Nodes, Any]:
        """Run a program kernel by kernel, and note what it reads."""
        tape = Tape()
        nodes = Taped(self._runtime, call, tape)
        try:
            answer = call.program(nodes, *call.arguments)
        except (TypeError, RuntimeError) as error:
            # The round's number is not quite a number here.
            if "watched" not in str(error).lower():
                raise
            self._refuse(call, "it computes with the round's number")
            return self._eager(call)
        if tape.reason is None and len(variants) >= _VARIANTS:
            tape.refuse("what it does changes with the round too often")
        if tape.reason is None:
            variants.append(_Variant(tape))
        else:
            self._refuse(call, tape.reason)
        return nodes, answer

    def _sizes(self, call: Invocation) -> int:
        """On how many numbers of devices this program was noted."""
        name = call.program.__name__
        return sum(kind[0] == name for kind in self._variants)

    def _captured(self, call: Invocation, tape: Tape) -> tuple[Static, Replay]:
        """Capture a program on static nodes."""
        nodes = Static(self._runtime, call.tier, call.ids, tape, call)
        nodes.fill(call)

        def work() -> tuple[dict[str, Tensor], Any]:
            nodes.rewind()
            arguments = [value.clone() for value in nodes.arguments]
            answer = call.program(nodes, *arguments)
            return nodes.call.kept, (answer, nodes.call.notes)

        beside = self._any_replay()
        replay = self._capture(work, beside, self._runtime.task.device)
        return nodes, replay

    def _any_replay(self) -> Replay | None:
        """The first graph that was captured, if any."""
        for variants in self._variants.values():
            for variant in variants:
                if variant.replay is not None:
                    return variant.replay
        return None

    def _again(self, call: Invocation, variant: _Variant) -> tuple[Nodes, Any]:
        """Replay a graph, and copy its results out."""
        assert variant.nodes is not None
        assert variant.replay is not None
        variant.nodes.fill(call)
        variant.replay.replay()
        self.replays += 1
        out = call.nodes(self._runtime)
        copies: dict[int, Tensor] = {}  # what is kept and answered alike stays one tensor
        answer, notes = variant.replay.answer
        for name, rows in variant.replay.kept.items():
            out.call.kept[name] = _copy(rows, copies)
        for name, values in notes.items():
            out.call.notes[name] = _copy(values, copies)
        # It is a number: a program that computes its numbers of steps is not captured.
        out.call.gradients = variant.nodes.call.gradients
        return out, _copy(answer, copies)

    def _refuse(self, call: Invocation, reason: str) -> None:
        """Never capture this program, and drop its graphs."""
        name = call.program.__name__
        self.reasons[name] = reason
        for kind in list(self._variants):
            if kind[0] == name:
                del self._variants[kind]


def _copy(value: Any, copies: dict[int, Tensor]) -> Any:
    """A copy of all tensors in an answer; a tensor that occurs twice is copied once."""
    if isinstance(value, Tensor):
        return copies.setdefault(id(value), value.clone())
    if isinstance(value, Masked):
        rows = _copy(value.rows, copies)
        mask = _copy(value.mask, copies)
        return Masked(rows, mask)
    if isinstance(value, Exact):
        return Exact(_copy(value.rows, copies))
    if isinstance(value, tuple):
        return tuple(_copy(item, copies) for item in value)
    return value
