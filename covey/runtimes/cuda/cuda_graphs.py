"""A device program as one CUDA graph: hundreds of small kernels for the price of one launch.

A graph replays kernels on fixed memory. Everything that may differ between two calls of a program
must lie in memory that is filled before the replay: its arguments, the ids of the devices, the keys
of its draws, the rows they keep. The first call of a program is an ordinary one whose reads are put
down on a tape, which has memory for them; the second is captured on this memory; from then on the
graph is replayed. A program that reads anything else, or branches on a number it computes, is never
captured, and `Graphs.reasons` says why. A whole round is captured in the same way (round_graphs).
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch import Tensor

from covey import draws
from covey.engine.task import Batch, Task
from covey.kernel.nodes import Nodes, Services
from covey.kernel.replies import Exact, Masked
from covey.kernel.store.store import NEVER, Store
from covey.types import Ids, Rows

if TYPE_CHECKING:
    from covey.runtimes.base import Question

_SIZES = 8
"""Numbers of devices on which one program is captured; each holds its rows for good."""
VARIANTS = 4
"""Graphs of one program and size, or of a round; they differ in how the round's number compares."""

_NOT_ALIKE = "its programs do not do the same in every round"

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


class Watched:
    """The round's number in a program that is captured.

    Its comparisons are recorded: a graph serves all rounds with the same results.
    """

    def __init__(self, value: int, tape: Tape) -> None:
        self._value = value
        self._tape = tape

    def _compare(self, other: Any, operation: Comparison) -> bool:
        result = bool(operation(self._value, other))
        self._tape.compared.append((operation, other, result))
        return result

    def __bool__(self) -> bool:
        return self._compare(0, operator.ne)

    def _refuse(self, *_: Any) -> Any:
        self._tape.refuse("a program computes with the round's number")


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _compared = partialmethod(Watched._compare, operation=getattr(operator, _name))
    setattr(Watched, f"__{_name}__", _compared)
_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod"]
_BINARY += ["and", "or", "xor", "lshift", "rshift"]
_UNARY = ["neg", "pos", "abs", "invert", "index", "int", "float", "hash", "repr", "format"]
for _name in (*_UNARY, *_BINARY, *(f"r{_name}" for _name in _BINARY)):
    setattr(Watched, f"__{_name}__", Watched._refuse)


class Refused(RuntimeError):
    """Something cannot be captured; the text says why."""


def reason_of(error: Exception) -> str | None:
    """Why an attempt to capture has failed; None: with an error of the program's own."""
    first_line = str(error).splitlines()[0] if str(error) else ""
    if isinstance(error, Refused):
        return first_line
    lower = first_line.lower()
    if "watched" in lower:  # the round's number is not quite a number here
        return "a program computes with the round's number"
    if "synchronizing" in lower:
        return "a program waits for a number that the GPU computes"
    if "captur" in lower or "out of memory" in lower:
        return f"it cannot be captured: {first_line}"
    return None


class Recall:
    """Rows that nodes recall from before the call, in static memory, and which nodes have one."""

    def __init__(
        self,
        store: Store,
        tier: str,
        name: str,
        ids: Ids,
        since: int | None,
        device: torch.device,
    ) -> None:
        """`since` is the first round whose rows count; None: the present one."""
        self.ids = ids
        self._column = (tier, name)
        self._since = since
        template = store.columns[tier, name].template
        self.rows = template.new_zeros((len(ids), *template.shape[1:]))
        self.fresh = torch.zeros(len(ids), dtype=torch.bool, device=device)
        self._slots = torch.full((len(ids),), NEVER)  # NEVER where a node has no row
        self._device_slots = torch.zeros(len(ids), dtype=torch.int64, device=device)

    def fill(self, store: Store, round: int) -> None:
        """Copy the rows that nodes have in a round."""
        column = store.columns[self._column]
        slots = column.find(self.ids, round if self._since is None else self._since)
        have = slots != NEVER
        if not torch.equal(slots, self._slots):
            self._slots.copy_(slots)
            self._device_slots.copy_(slots.clamp(min=0), non_blocking=True)
            self.fresh.copy_(have, non_blocking=True)
        if bool(have.any()):
            column.read_into(self._device_slots, self.rows)


class Tape:
    """Everything that programs read from outside, in the order in which they read it.

    While it is `recording`, memory is made for every read. Afterwards the reads of another run of
    the same programs get the same memory in the same order.
    """

    def __init__(self, runtime: Services, round: int) -> None:
        self.runtime = runtime
        self.round = round
        self.recording = True
        self.in_program = True
        """Whether what happens now is a program's doing, not the runtime's."""
        self.decisions: list[Compared] = []
        """The comparisons of the round's number."""
        self.words: list[tuple[Any, ...]] = []
        """The words of each draw's address."""
        self.recalls: list[Recall] = []
        self._keys = torch.zeros(0, dtype=torch.int64)
        self.rewind()

    def rewind(self) -> None:
        """Begin again, before the programs run."""
        self.compared: list[Compared] = self.decisions if self.recording else []
        self._drawn = 0
        self._recalled = 0

    def end(self) -> None:
        """The programs have run once, and everything that they read is known."""
        self.recording = False
        shape = (len(self.words), len(self.runtime.seeds))
        self._keys = torch.zeros(shape, dtype=torch.int64, device=self.runtime.task.device)

    def refuse(self, reason: str) -> NoReturn:
        """End the attempt."""
        raise Refused(reason)

    def fits(self, round: int) -> bool:
        """Whether the programs would decide the same in this round."""
        return all(bool(compare(round, x)) == result for compare, x, result in self.decisions)

    def fill(self) -> None:
        """Fill in what the round reads, without waiting for the GPU."""
        if self.words:
            keys = torch.stack([self.key(*words) for words in self.words])
            self._keys.copy_(keys, non_blocking=True)
        for recall in self.recalls:
            recall.fill(self.runtime.store, self.round)

    def key(self, path: int, tier: str, *words: int | str) -> Tensor:
        """The keys of a draw in this round, one for each seed."""
        return draws.keys(self.runtime.seeds, self.round, path, tier, *words)

    def keys(
        self,
        path: int,
        tier: str,
        words: tuple[int | str, ...],
    ) -> Tensor:
        """The same, in the memory of the next draw."""
        if self.recording:
            self.words.append((path, tier, *words))
            return self.key(path, tier, *words).to(self.runtime.task.device, non_blocking=True)
        if self._drawn >= len(self.words):
            self.refuse(_NOT_ALIKE)
        self._drawn += 1
        return self._keys[self._drawn - 1]

    def recall(
        self,
        tier: str,
        name: str,
        ids: Ids,
        default: Rows | None,
        since: Any,
    ) -> Any:
        """What nodes kept before the call, else `default`."""
        if default is None:
            self.refuse(f"a program recalls {name!r} without a default")
        if self.recording:
            store = self.runtime.store
            device = self.runtime.task.device
            column = store.columns.get((tier, name))
            kinds = {device.type, default.device.type}
            if column is None or len(kinds | {column.template.device.type}) > 1:
                self.refuse(f"a program recalls {name!r}, which is not kept on the GPU")
            first = None if isinstance(since, Watched) else int(since)
            recall = Recall(store, tier, name, ids, first, device)
            recall.fill(store, self.round)
            self.recalls.append(recall)
        if self._recalled >= len(self.recalls):
            self.refuse(_NOT_ALIKE)
        recall = self.recalls[self._recalled]
        self._recalled += 1
        fresh = recall.fresh.view(len(ids), *[1] * (default.ndim - 1))
        return torch.where(fresh, recall.rows, default)


class CapturedNodes(Nodes):
    """Nodes whose program reads from a tape: what is not on it cannot be captured."""

    def __init__(
        self,
        tape: Tape,
        tier: str,
        ids: Ids,
        *,
        path: int,
        idle: Tensor | None,
    ) -> None:
        self._tape = tape
        self._all = ids
        super().__init__(tape.runtime, tier, ids, round=tape.round, path=path, idle=idle)

    @property
    def round(self) -> Any:
        return Watched(self._tape.round, self._tape)

    @round.setter
    def round(self, round: int) -> None:
        pass

    @property
    def idle(self) -> Tensor | None:
        if self._idle is not None and self._tape.in_program:
            self._tape.refuse("a program asks who of its nodes is idle")
        return self._idle

    @idle.setter
    def idle(self, idle: Tensor | None) -> None:
        self._idle = idle

    def reads(self, reason: str) -> None:
        self._tape.refuse(reason)

    def loss(self, rows: Rows, batch: Batch | None) -> Tensor:
        if batch is None:
            self._tape.refuse("a program takes the loss of all examples")
        return super().loss(rows, batch)

    @property
    def task(self) -> Task:
        self._tape.refuse("a program scores models")

    def age(self, name: str) -> Tensor:
        self._tape.refuse("a program asks for the age of what it keeps")

    def address(self, *words: int | str) -> draws.Address:
        keys = self._tape.keys(self._path, self.tier, words)
        if len(keys) == 1:
            return keys.expand(len(self))
        return keys[self._runtime.tree.copy(self.tier, self.device_ids)]

    def recall(self, name: str, default: Rows | None = None, since: Any = 0) -> Any:
        if name in self.call.kept:
            return self.call.kept[name]
        return self._tape.recall(self.tier, name, self._all, default, since)


class ProgramTape(Tape):
    """What one program reads: each call may be of other devices, and has memory for their ids."""

    def __init__(self, runtime: Services, call: Question) -> None:
        super().__init__(runtime, call.round)
        self.call = call
        self.device_ids = call.ids.to(runtime.task.device, copy=True)
        self.arguments: list[Tensor] = []

    def take(self, call: Question) -> None:
        """Fill in everything that this call's program reads."""
        if not torch.equal(call.ids, self.call.ids):  # others than in the last replay
            self.device_ids.copy_(call.ids, non_blocking=True)
        self.call = call
        self.round = call.round
        for recall in self.recalls:
            recall.ids = call.ids
        self.fill()
        for static, value in zip(self.arguments, call.arguments, strict=True):
            static.copy_(value)

    def key(self, path: int, tier: str, *words: int | str) -> Tensor:
        return super().key(self.call.path, tier, *words)


class ProgramNodes(CapturedNodes):
    """Nodes whose program is a graph of its own, for other nodes in every call."""

    def __init__(self, tape: ProgramTape) -> None:
        call = tape.call
        super().__init__(tape, call.tier, call.ids, path=call.path, idle=call.idle)
        self.device_ids = tape.device_ids

    @property
    def ids(self) -> Ids:
        self._tape.refuse("it uses its devices' numbers or all their examples")

    @ids.setter
    def ids(self, ids: Ids) -> None:
        pass

    def __len__(self) -> int:
        return len(self._all)


@dataclass(eq=False)
class _GraphVariant:
    """A program that was recorded, and perhaps captured."""

    tape: ProgramTape
    gradients: float | Tensor
    """How many gradients it takes: a number, or it would not be captured."""
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
        self._variants: dict[tuple[Any, ...], list[_GraphVariant]] = {}
        self.reasons: dict[str, str] = {}
        self.replays = 0
        self.others = 0  # calls on a number of devices that is not captured, beyond _SIZES

    def run(self, call: Question) -> tuple[Nodes, Any]:
        """The nodes with what they keep, and the answer."""
        name = call.program.__name__
        eager = self._runtime.algorithm.eager  # a capture that fails prints errors of CUDA
        if eager is not None or name in self.reasons or not len(call.ids):
            return self._eager(call)
        # The properties of calls that one graph can serve.
        forms = [(value.shape, value.dtype) for value in call.arguments]
        kind = (name, call.tier, len(call.ids), *forms)
        sizes = sum(known[0] == name for known in self._variants)
        if kind not in self._variants and sizes >= _SIZES:
            self.others += 1
            return self._eager(call)
        variants = self._variants.setdefault(kind, [])
        fitting = [variant for variant in variants if variant.tape.fits(call.round)]
        try:
            if not fitting:
                return self._record(call, variants)
            variant = fitting[0]
            if variant.replay is None:
                variant.replay = self._captured(call, variant.tape)
            return self._again(call, variant)
        except (RuntimeError, TypeError) as error:
            reason = reason_of(error)
            if reason is None:
                raise
        self.reasons[name] = reason
        for known in list(self._variants):
            if known[0] == name:
                del self._variants[known]
        return self._eager(call)

    def report(self) -> str:
        """Whether programs run as graphs, and why not."""
        reason = self._runtime.algorithm.eager
        if reason is not None:
            return f"its programs run kernel by kernel: {reason}"
        if self.reasons:
            reasons = self.reasons.items()
            return "; ".join(f"{name} runs kernel by kernel: {reason}" for name, reason in reasons)
        text = f"the devices' program, replayed {self.replays} times"
        if self.others:
            text += f", {self.others} times not, as its number of devices changes"
        return text

    def _eager(self, call: Question) -> tuple[Nodes, Any]:
        """Run a program kernel by kernel."""
        nodes = call.nodes(self._runtime)
        return nodes, call.program(nodes, *call.arguments)

    def _record(self, call: Question, variants: list[_GraphVariant]) -> tuple[Nodes, Any]:
        """Run a program kernel by kernel, and put down on a tape what it reads."""
        tape = ProgramTape(self._runtime, call)
        nodes = ProgramNodes(tape)
        answer = call.program(nodes, *call.arguments)
        if len(variants) >= VARIANTS:
            tape.refuse("what it does changes with the round too often")
        tape.end()
        variants.append(_GraphVariant(tape, nodes.call.gradients))
        return nodes, answer

    def _captured(self, call: Question, tape: ProgramTape) -> Replay:
        """The graph of a program on the memory of its tape."""

        def work() -> tuple[dict[str, Tensor], Any]:
            tape.rewind()
            nodes = ProgramNodes(tape)
            arguments = [value.clone() for value in tape.arguments]
            answer = call.program(nodes, *arguments)
            return nodes.call.kept, (answer, nodes.call.notes)

        known = [variant.replay for variants in self._variants.values() for variant in variants]
        beside = next((replay for replay in known if replay is not None), None)
        try:
            tape.arguments = [value.clone() for value in call.arguments]
            tape.take(call)
            return self._capture(work, beside, self._runtime.task.device)
        except RuntimeError as error:
            first_line = str(error).splitlines()[0]
            raise Refused(reason_of(error) or f"it cannot be captured: {first_line}") from error

    def _again(self, call: Question, variant: _GraphVariant) -> tuple[Nodes, Any]:
        """Replay a graph, and copy its results out."""
        assert variant.replay is not None
        variant.tape.take(call)
        variant.replay.replay()
        self.replays += 1
        out = call.nodes(self._runtime)
        copies: dict[int, Tensor] = {}  # what is kept and answered alike stays one tensor
        answer, notes = variant.replay.answer
        for name, rows in variant.replay.kept.items():
            out.call.kept[name] = _copy(rows, copies)
        for name, values in notes.items():
            out.call.notes[name] = _copy(values, copies)
        out.call.gradients = variant.gradients
        return out, _copy(answer, copies)


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
