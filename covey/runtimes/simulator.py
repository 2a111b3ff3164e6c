"""The simulator: every child is a row, and devices run in chunks over one-thread workers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covey.kernel.algorithm import Program
from covey.kernel.environment import Answered, Effort
from covey.kernel.moved import on_device
from covey.kernel.nodes import Cohort, Nodes
from covey.kernel.replies import Exact, Message, rows_of
from covey.links.link import Link, Route
from covey.links.node_bytes import LowerEnds
from covey.runtimes.base import (
    Answers,
    BaseRuntime,
    MessageKey,
    Question,
    check_carried,
    flat,
    select,
)
from covey.runtimes.cuda_graphs import CudaReplay, Graphs, Invocation
from covey.runtimes.round_graphs import RoundNodes, Rounds
from covey.types import Ids, Rows

MEMORY = 2**31
"""Bytes of the rows in a chunk, where an experiment says nothing else."""
_CACHED = 2**18
"""Values of rows that stay in the cache of a core."""
_SCORES = 4
"""Chunks per worker when models are scored: a device takes as long as it has examples."""


@dataclass
class Simulator(BaseRuntime):
    """One process that plays every node of the tree, or of several copies of it, one for each seed.

    A chunk for a worker holds at least `grain` values of rows, and at most `chunk_rows` bytes of
    them (None: no limit). `capture` allows CUDA graphs. In an environment with a clock programs are
    not captured, since their steps are counted.
    """

    workers: int = 1
    memory: int = MEMORY
    chunk_rows: int | None = None
    grain: int = 1
    capture: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.graphs: Graphs | None = None
        self.rounds: Rounds | None = None
        on_gpu = self.task.device.type == "cuda"
        if on_gpu and self.no_graphs() is None:
            self.graphs = Graphs(self)
            self.rounds = Rounds(self, CudaReplay)
        self._room = self.memory
        if on_gpu and self.memory == MEMORY and not isinstance(self.task.stack, str):
            # Its kernels cost their launch; the activations of a stack are smaller than its rows.
            _, memory = torch.cuda.mem_get_info(self.task.device)
            self._room = max(MEMORY, memory // 4)
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0

    def report(self) -> dict[str, Any]:
        """How the simulator runs programs, in words and numbers."""
        out = {**super().report(), "workers": self.workers}
        if self.graphs is not None:
            out["graph"] = self._graph_report(self.graphs)
        elif self.task.device.type == "cuda":
            out["graph"] = f"none: {self.no_graphs()}"
        return out

    def no_graphs(self) -> str | None:
        """Why nothing runs as a CUDA graph on a GPU; None where something may."""
        if not self.capture:
            return "capture = false"
        if not self.environment.ideal:
            return "the clock of a radio counts the steps of every device"
        if self.rates.schedules:
            names = ", ".join(name for name, _ in self.rates.schedules)
            return f"schedules change {names} with the round, and a graph has fixed rates"
        return None

    def _graph_report(self, graphs: Graphs) -> str:
        """What runs as a CUDA graph, and why no more does."""
        if self.rounds is None:
            return graphs.report()
        if self.rounds.reason is None:
            return self.rounds.report()
        return f"{graphs.report()}; {self.rounds.report()}"

    def _answer_of(self, me: Nodes, program: Program, rows: Rows) -> Any:
        """The answer of the top tier's program; a round of training may be one graph."""
        if self.rounds is not None and self._play.trains and len(rows):
            with self._timed("training"):
                answer = self.rounds.run(program, rows)
            if answer is not None:
                with self._timed("links"):
                    self._check(last=True)
                    self._play.ledger.settle()
                return answer
        return super()._answer_of(me, program, rows)

    def ask(
        self,
        me: Nodes,
        program: Program,
        rows: tuple[Message, ...],
        *,
        each: tuple[Tensor, ...],
        sample: Cohort,
        where: Tensor | None,
    ) -> Any:
        """Run a program on children of `me`; the contract is that of `Nodes.ask`."""
        doing: AbstractContextManager[None] = nullcontext()
        if self._play.tape is not None:
            doing = self._play.tape.program(running=False)
        with doing:
            return super().ask(me, program, rows, each=each, sample=sample, where=where)

    def exchange(self, me: Nodes, question: Question) -> Answers:
        """Send rows down, run the program on all children in chunks, send the answers up."""
        down, each = self._all_sent(me, question)
        return self._all_answers(me, question, down, each)

    def _all_sent(self, me: Nodes, question: Question) -> tuple[list[Rows], list[Tensor]]:
        """What arrives below: the askers' rows, and each child's own values."""
        with self._timed("links"):
            down = []
            for number, message in enumerate(question.rows):
                key = question.key("down", number)
                ends = self._lower_ends(question, question.ids, question.asker)
                rows = self._sent(message, me.ids, question.copies, key, ends)
                down.append(rows)
            each = [self._sent_each(question, values) for values in question.each]
        return down, each

    def _all_answers(
        self, me: Nodes, question: Question, down: Sequence[Rows], each: Sequence[Tensor]
    ) -> Answers:
        """The answers of all children that run, as they arrive above."""
        effort = None
        if not self.environment.ideal and self._play.trains:
            effort = Effort(question.ids, question.admission)
        run = partial(self._run, question, down, each, effort)
        leaf = self._leaf(question.tier)
        timed: AbstractContextManager[None] = nullcontext()
        if leaf:
            timed = self._timed("training", threads=self.workers)
        with timed:
            results = self._each_chunk(run, len(question.ids), leaf=leaf)
            parts = list(results)
        self._check()
        counted = self._counted(me, question, effort)
        return Answers(parts, counted)

    def _counted(self, me: Nodes, question: Question, effort: Effort | None) -> Tensor | None:
        """Advance each asker's clock to its last answer; return a mask of the answers that count.

        None for the mask: all count.
        """
        if effort is None:
            return None
        above, below = question.ends
        answered = Answered(
            tier=above,
            below=below,
            asker=question.asker[question.answers],
            askers=len(me),
            asker_idle=me.idle,
            effort=effort,
            answers=question.answers,
        )
        waited, counted = self.environment.answered(answered)
        me.call.elapsed = me.call.elapsed + waited
        return counted

    def _run(
        self,
        question: Question,
        down: Sequence[Rows],
        each: Sequence[Tensor],
        effort: Effort | None,
        part: slice,
    ) -> Any:
        """Run the program on some of the nodes and store the rows they keep.

        Returns their answers as they arrive above.
        """
        asker = on_device(question.asker[part], self.task.device)
        arguments = [torch.index_select(rows, 0, asker) for rows in down]
        arguments += [values[part] for values in each]
        received = None
        if down:
            received = arguments[0]
        idle = None
        if question.idle is not None:
            idle = question.idle[part]
        invocation = Invocation(
            question.program,
            tier=question.tier,
            ids=question.ids[part],
            round=question.round,
            path=question.path,
            arguments=tuple(arguments),
            idle=idle,
        )
        chunk: AbstractContextManager[None] = nullcontext()
        if self._play.tape is not None:
            chunk = self._play.tape.chunk(question, part)
        with torch.no_grad(), chunk:
            nodes, answer = self._invoke(invocation, effort, part)
            self._record(invocation.tier, invocation.ids, nodes.call, idle)
            if effort is not None:
                effort.add(part, nodes.call)
            with self._timed("links"):
                return self._answer(question, part, nodes, answer, received, effort)

    def _invoke(
        self, invocation: Invocation, effort: Effort | None, part: slice
    ) -> tuple[Nodes, Any]:
        """The nodes after their program has run, and its answer."""
        if self._play.tape is not None:
            return self._invoke_on_tape(invocation)
        trained = self._play.trains and self._leaf(invocation.tier)
        if trained and self.graphs is not None:
            return self.graphs.run(invocation)
        nodes = invocation.nodes(self)
        if effort is not None:
            nodes.call.ratio = effort.ratio(part)
        return nodes, invocation.program(nodes, *invocation.arguments)

    def _invoke_on_tape(self, invocation: Invocation) -> tuple[Nodes, Any]:
        """As `_invoke`, of nodes whose reads are put down on the tape of the round."""
        tape = self._play.tape
        assert tape is not None
        nodes = RoundNodes(
            self,
            tape,
            invocation.tier,
            invocation.ids,
            path=invocation.path,
            idle=invocation.idle,
        )
        with tape.program(running=True):
            return nodes, invocation.program(nodes, *invocation.arguments)

    def _answer(
        self,
        question: Question,
        part: slice,
        nodes: Nodes,
        answer: Any,
        received: Rows | None,
        effort: Effort | None,
    ) -> Any:
        """The answers of a chunk as they arrive above, of those nodes that answer."""
        answering = question.answers
        inside = (answering >= part.start) & (answering < part.stop)
        in_question = answering[inside]
        positions = in_question - part.start
        heard = None
        if effort is not None:
            heard = partial(effort.heard, in_question)
        ids = question.ids[part]
        chosen = positions
        if self._play.tape is not None and len(positions) != len(ids):
            chosen = self._play.tape.answering(positions)

        def up(message: Message, number: int) -> Message:
            self._checked_answer(question, ids, message, nodes.call)
            if rows_of(message) is None:
                return None
            reference = rows_of(select(received, chosen))
            senders = ids[positions]
            return self._cross(
                select(message, chosen),
                senders,
                copies=torch.ones_like(positions),
                key=question.key("up", number),
                ends=self._lower_ends(question, senders, torch.arange(len(senders))),
                reference=reference,
                heard=heard,
            )

        if not isinstance(answer, tuple):
            return up(answer, 0)
        sent = []
        for number, message in enumerate(answer):
            sent.append(up(message, number))
        return tuple(sent)

    def _sent(
        self,
        message: Message,
        ids: Ids,
        copies: Tensor,
        key: MessageKey,
        ends: LowerEnds | None,
    ) -> Any:
        """The rows that arrive below."""
        arrived = self._cross(message, ids, copies, key, ends)
        if isinstance(arrived, Exact):
            return arrived.rows
        return arrived

    def _sent_each(self, question: Question, values: Tensor) -> Tensor:
        """Each child's own value as it arrives."""
        senders = question.askers[question.asker]
        copies = torch.ones_like(question.ids)
        key = question.key("down")
        ends = self._lower_ends(question, question.ids, torch.arange(len(question.ids)))
        arrived: Tensor = self._sent(flat(values), senders, copies, key, ends)
        return arrived.reshape(values.shape)

    def _cross(
        self,
        message: Message,
        ids: Ids,
        copies: Tensor,
        key: MessageKey,
        ends: LowerEnds | None,
        reference: Rows | None = None,
        heard: Callable[[Tensor], None] | None = None,
    ) -> Message:
        """The message that the receivers get."""
        check_carried(rows_of(message), key)
        route = self._route(key, ids, copies, ends, heard)
        wire = self.wires[key.link, key.direction]
        link = Link(wire, self._play.ledger)
        before = len(self._play.ledger.entries)
        arrived = link.send(
            message,
            route,
            cut=self._cut(key),
            reference=reference,
            keys=self._wire_keys(key, ids),
            memory=self._memory(key, ids, copies),
        )
        if self._play.tape is not None:
            crossed = len(self._play.ledger.entries) - before
            self._play.tape.crossed(key.direction, crossed)
        return arrived

    def _route(
        self,
        key: MessageKey,
        ids: Ids,
        copies: Tensor,
        ends: LowerEnds | None,
        heard: Callable[[Tensor], None] | None,
    ) -> Route:
        """Where the messages of these senders go, and at which nodes their bytes count."""
        tree = self.tree.copy(key.sender, ids)
        meter_key = (key.link, key.direction, self._play.lane)
        return Route(meter_key, copies, tree, heard, ends)

    def _settle(self, me: Nodes, answer: Any) -> None:
        if self.task.device.type == "cuda":
            with self._timed("training"):  # most of what it still has to do
                torch.cuda.synchronize(self.task.device)
        super()._settle(me, answer)

    def _leaf(self, tier: str) -> bool:
        return tier == self.tree.tiers[-1]

    def _each_chunk(self, run: Callable[[slice], Any], count: int, *, leaf: bool) -> Iterator[Any]:
        """Devices in chunks over the workers, other tiers at once; results in id order."""
        size = count
        if leaf:
            size = self._chunk_size(count)
        size = max(1, size)
        parts = []
        for start in range(0, max(count, 1), size):
            stop = min(start + size, count)
            parts.append(slice(start, stop))
        if self.workers == 1 or len(parts) == 1 or self._play.tape is not None:
            return map(run, parts)
        return iter(self._over_workers(run, parts))

    def _chunk_size(self, count: int) -> int:
        """The number of devices in a chunk, of `count` that run."""
        device_bytes = self.task.row_bytes() + self.algorithm.memory()
        room = max(1, self._room // self.workers // device_bytes)
        width = self.task.space.width
        if self.chunk_rows is not None:
            # The rows of a chunk stay in the cache from one pass over them to the next.
            row = width * self.task.dtype.itemsize
            room = min(room, max(1, self.chunk_rows // row))
        if self.task.path == "each":
            # Rows run one by one, and the models of a chunk stay in the cache for all their steps.
            room = min(room, max(1, _CACHED // width))
        smallest = math.ceil(self.grain / width)
        chunks = self.workers
        if not self._play.trains and self.workers > 1:
            chunks = self.workers * _SCORES
        share = math.ceil(count / chunks)
        return min(room, max(smallest, share))

    def _over_workers(self, run: Callable[[slice], Any], parts: list[slice]) -> list[Any]:
        """The results in order.

        After an error, or an interrupt by the user, no worker is running any more when this raises.
        """
        if self._pool is None or self._owner != os.getpid():  # threads do not survive a fork
            self._pool = ThreadPoolExecutor(
                self.workers,
                "covey",
                initializer=torch.set_num_threads,
                initargs=(1,),
            )
            self._owner = os.getpid()
        futures: list[Future[Any]] = []
        try:
            for part in parts:  # not a comprehension: an interrupt must find those submitted so far
                futures.append(self._pool.submit(run, part))  # noqa: PERF401
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            wait(futures)  # or rows would be stored after the round was undone
            raise
