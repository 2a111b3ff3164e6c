"""A device program as one CUDA graph: hundreds of small kernels for the price of one launch.

A graph replays kernels on fixed memory, so whatever may differ between two calls of a program must
lie in memory that is filled before the replay: its arguments, who the devices are, the keys of its
draws, what they remember. The first call of a program is an ordinary one that notes what it reads
(`Tape`); the second captures it on static inputs; from then on it is replayed. A program that reads
anything else, or decides by a number it computes, is never captured, and `Graphs.reasons` says why.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from covey import draws
from covey.kernel.algorithm import Program
from covey.kernel.call import Call
from covey.kernel.nodes import Nodes, Services
from covey.kernel.replies import Exact, Masked
from covey.kernel.store import NEVER
from covey.types import Ids, Rows

_SIZES = 8  # numbers of devices on which one program is captured; each holds its rows for good
_VARIANTS = 4  # graphs of one program and size, which differ in what they found out about the round's number

Work = Callable[[], tuple[dict[str, Tensor], Any]]
"""A program on static inputs: what it keeps and what it answers."""


class Replay(Protocol):
    """Work that was captured once and can be repeated on the same memory."""

    kept: dict[str, Tensor]
    answer: Any

    def replay(self) -> None:
        """Do it again."""
        ...


class CudaReplay:
    """A CUDA graph. Those of one simulator share a pool, that of `beside`: results are copied out
    before another runs.
    """

    def __init__(self, work: Work, beside: CudaReplay | None, device: torch.device) -> None:
        self._graph, self._device = torch.cuda.CUDAGraph(), device
        pool = (
            None if beside is None else beside._graph.pool()
        )  # a pool lives as long as a graph that uses it
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(device), torch.cuda.graph(self._graph, pool=pool, stream=stream):
            self.kept, self.answer = work()

    def replay(self) -> None:
        """Do it again."""
        with torch.cuda.device(self._device):
            self._graph.replay()


class Watched:
    """The round's number in a program that is noted: a comparison is remembered and holds for
    rounds that compare alike.
    """

    def __init__(self, value: int, tape: Tape) -> None:
        self._value, self._tape = value, tape

    def _compare(self, other: Any, how: Callable[[Any, Any], Any]) -> bool:
        result = bool(how(self._value, other))
        self._tape.compared.append((how, other, result))
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
        return compute(*other, int(self)) if swapped else compute(int(self), *other)

    return method


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv, "floordiv": operator.floordiv,
    "mod": operator.mod, "pow": operator.pow, "divmod": divmod, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "lshift": operator.lshift, "rshift": operator.rshift,
}  # fmt: skip
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
    """What one call of a program read besides its arguments."""

    draws: list[tuple[int | str, ...]] = field(default_factory=list)
    recalls: list[tuple[str, int | None]] = field(
        default_factory=list
    )  # since which round; None for the present one
    compared: list[tuple[Callable[[Any, Any], Any], Any, bool]] = field(default_factory=list)
    reason: str | None = None

    def refuse(self, reason: str) -> None:
        """This program cannot be captured."""
        self.reason = self.reason or reason

    def fits(self, round: int) -> bool:
        """Whether the program would have decided the same in this round."""
        return all(bool(how(round, other)) == result for how, other, result in self.compared)


class Taped(Nodes):
    """Nodes whose program is noted as it runs."""

    def __init__(self, runtime: Services, call: Invocation, tape: Tape) -> None:
        self._given, self._tape, self._number, self._idle = call.ids, tape, call.round, call.idle
        tier, ids = call.tier, call.ids
        super().__init__(runtime, tier, ids, round=call.round, path=call.path, idle=call.idle)
        self.device_ids = ids.to(runtime.task.device)
        self.local = runtime.tree.local(tier, self.device_ids)

    @property
    def ids(self) -> Ids:
        self._tape.refuse("it uses its devices' numbers or all their examples")
        return self._given

    @ids.setter
    def ids(self, ids: Ids) -> None:
        self._given = ids

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
        return len(self._given)

    def reads(self, what: str) -> None:
        self._tape.refuse(what)

    def address(self, *words: int | str) -> draws.Address:
        self._tape.draws.append(words)
        keys = draws.keys(self._runtime.seeds, self._number, self._path, self.tier, *words)
        copy = self._runtime.tree.copy(self.tier, self._given)
        return keys[copy].to(self._runtime.task.device)

    def recall(self, name: str, default: Rows | None = None, since: Any = 0) -> Any:
        if name in self.call.kept:
            return self.call.kept[name]
        column = self._runtime.store.columns.get((self.tier, name))
        if default is None or column is None or column.rows.device != default.device:
            self._tape.refuse(f"it recalls {name!r} without a default, or what is kept elsewhere")
        present = isinstance(since, Watched)
        self._tape.recalls.append((name, None if present else int(since)))
        return self._runtime.store.get(
            self.tier, name, self._given, default, self._number if present else int(since)
        )


class Static(Nodes):
    """Nodes that read everything from memory that is filled before each replay, in the order of
    their tape.
    """

    def __init__(
        self, runtime: Services, tier: str, ids: Ids, tape: Tape, first: Invocation
    ) -> None:
        super().__init__(runtime, tier, ids, round=0, path=0)
        device = runtime.task.device
        self.tape = tape
        self.device_ids, self.copy = (
            ids.to(device, copy=True),
            runtime.tree.copy(tier, ids).to(device, copy=True),
        )
        self.local = runtime.tree.local(tier, ids).to(device, copy=True)
        self._keys = torch.zeros(
            len(tape.draws), len(runtime.seeds), dtype=torch.int64, device=device
        )
        columns = [runtime.store.columns[tier, name].rows for name, _ in tape.recalls]
        self._stored = [rows.new_zeros((len(ids), *rows.shape[1:])) for rows in columns]
        self._fresh = [torch.zeros(len(ids), dtype=torch.bool, device=device) for _ in columns]
        nowhere = torch.full((len(ids),), NEVER)
        self._slots = [
            (nowhere.clone(), torch.zeros(len(ids), dtype=torch.int64, device=device))
            for _ in columns
        ]
        self.arguments = [value.clone() for value in first.arguments]
        self._number = first.round
        self.rewind()

    def rewind(self) -> None:
        """Before the program runs on these nodes."""
        self.call = Call(len(self.ids))
        self._calls, self._drawn, self._recalled = {}, 0, 0

    @property
    def round(self) -> Any:
        return Watched(self._number, Tape())

    @round.setter
    def round(self, round: int) -> None:
        self._number = round

    def fill(self, call: Invocation) -> None:
        """Everything this call's program would read, without waiting for what the GPU still does."""
        runtime, ids = self._runtime, call.ids
        if not torch.equal(ids, self.ids):
            self.ids = ids
            self.device_ids.copy_(ids, non_blocking=True)
            self.copy.copy_(runtime.tree.copy(self.tier, ids), non_blocking=True)
            self.local.copy_(runtime.tree.local(self.tier, ids), non_blocking=True)
        if self.tape.draws:
            keys = [
                draws.keys(runtime.seeds, call.round, call.path, self.tier, *words)
                for words in self.tape.draws
            ]
            self._keys.copy_(torch.stack(keys), non_blocking=True)
        for (name, since), stored, fresh, where in zip(
            self.tape.recalls, self._stored, self._fresh, self._slots, strict=True
        ):
            column = runtime.store.columns[self.tier, name]
            have = (column.slot[ids] != NEVER) & (
                column.round[ids] >= (call.round if since is None else since)
            )
            slots = torch.where(have, column.slot[ids], NEVER)
            if not torch.equal(slots, where[0]):
                where[0].copy_(slots)
                where[1].copy_(slots.clamp(min=0), non_blocking=True)
                fresh.copy_(have, non_blocking=True)
            if bool(have.any()):
                torch.index_select(column.rows, 0, where[1], out=stored)
        for mine, given in zip(self.arguments, call.arguments, strict=True):
            mine.copy_(given)

    def address(self, *words: int | str) -> draws.Address:
        self._drawn += 1
        return self._keys[self._drawn - 1][self.copy]

    def recall(self, name: str, default: Rows | None = None, since: Any = 0) -> Any:
        if name in self.call.kept:
            return self.call.kept[name]
        assert default is not None
        at, self._recalled = self._recalled, self._recalled + 1
        shape = (len(self), *(1,) * (default.ndim - 1))
        return torch.where(self._fresh[at].view(shape), self._stored[at], default)


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
        """What must be the same for a graph to serve."""
        shapes = tuple((value.shape, value.dtype) for value in self.arguments)
        return (self.program.__name__, self.tier, len(self.ids), *shapes)


@dataclass(eq=False)
class _Variant:
    tape: Tape
    nodes: Static | None = None
    replay: Replay | None = None


class Graphs:
    """The graphs of one simulator."""

    def __init__(
        self, runtime: Services, capture: Callable[[Work, Any, torch.device], Replay] = CudaReplay
    ) -> None:
        self._runtime, self._capture = runtime, capture
        self._variants: dict[tuple[Any, ...], list[_Variant]] = {}
        self.reasons: dict[str, str] = {}
        self.replays = 0
        self.others = 0  # calls on a number of devices that came when enough were captured

    def run(self, call: Invocation) -> tuple[Nodes, Any]:
        """The nodes with what they keep, and the answer."""
        if self._runtime.algorithm.eager is not None:  # a capture that fails prints errors of CUDA
            return self._eager(call)
        if call.program.__name__ in self.reasons or not len(call.ids):
            return self._eager(call)
        if call.kind not in self._variants and self._sizes(call) >= _SIZES:
            self.others += 1
            return self._eager(call)
        variants = self._variants.setdefault(call.kind, [])
        found = next((variant for variant in variants if variant.tape.fits(call.round)), None)
        if found is None:
            return self._note(call, variants)
        try:
            if found.replay is None:
                found.nodes, found.replay = self._captured(call, found.tape)
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            self._refuse(call, f"it cannot be captured: {first}")
            return self._eager(call)
        return self._again(call, found)

    def report(self) -> str:
        """Whether programs run as graphs, and why not."""
        if self._runtime.algorithm.eager is not None:
            return f"its programs run kernel by kernel: {self._runtime.algorithm.eager}"
        eager = "; ".join(
            f"{name} runs kernel by kernel: {reason}" for name, reason in self.reasons.items()
        )
        often = (
            f", {self.others} times not, as its number of devices changes" if self.others else ""
        )
        return eager or f"the devices' program, replayed {self.replays} times{often}"

    def _eager(self, call: Invocation) -> tuple[Nodes, Any]:
        nodes = Nodes(
            self._runtime, call.tier, call.ids, round=call.round, path=call.path, idle=call.idle
        )
        return nodes, call.program(nodes, *call.arguments)

    def _note(self, call: Invocation, variants: list[_Variant]) -> tuple[Nodes, Any]:
        tape = Tape()
        nodes = Taped(self._runtime, call, tape)
        try:
            answer = call.program(nodes, *call.arguments)
        except (TypeError, RuntimeError) as error:  # the round's number is not quite a number here
            if "Watched" not in str(error) and "watched" not in str(error):
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
        return sum(kind[0] == call.program.__name__ for kind in self._variants)

    def _captured(self, call: Invocation, tape: Tape) -> tuple[Static, Replay]:
        nodes = Static(self._runtime, call.tier, call.ids, tape, call)
        nodes.fill(call)

        def work() -> tuple[dict[str, Tensor], Any]:
            nodes.rewind()
            answer = call.program(nodes, *(value.clone() for value in nodes.arguments))
            return nodes.call.kept, (answer, nodes.call.notes)

        live = (variant.replay for variants in self._variants.values() for variant in variants)
        beside = next((replay for replay in live if replay is not None), None)
        return nodes, self._capture(work, beside, self._runtime.task.device)

    def _again(self, call: Invocation, variant: _Variant) -> tuple[Nodes, Any]:
        assert variant.nodes is not None
        assert variant.replay is not None
        variant.nodes.fill(call)
        variant.replay.replay()
        self.replays += 1
        out = Nodes(self._runtime, call.tier, call.ids, round=call.round, path=call.path)
        copies: dict[int, Tensor] = {}  # what is kept and answered alike stays one tensor
        answer, notes = variant.replay.answer
        out.call.kept = {name: _copy(rows, copies) for name, rows in variant.replay.kept.items()}
        out.call.notes = {name: _copy(values, copies) for name, values in notes.items()}
        out.call.gradients = (
            variant.nodes.call.gradients
        )  # a number: who computes its numbers of steps is not captured
        return out, _copy(answer, copies)

    def _refuse(self, call: Invocation, reason: str) -> None:
        self.reasons[call.program.__name__] = reason
        self._variants = {
            kind: found
            for kind, found in self._variants.items()
            if kind[0] != call.program.__name__
        }


def _copy(value: Any, copies: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return copies.setdefault(id(value), value.clone())
    if isinstance(value, Masked):
        return Masked(_copy(value.rows, copies), _copy(value.mask, copies))
    if isinstance(value, Exact):
        return Exact(_copy(value.rows, copies))
    return tuple(_copy(item, copies) for item in value) if isinstance(value, tuple) else value
