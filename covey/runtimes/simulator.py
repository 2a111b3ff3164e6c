"""The simulator: every child is a row, and devices run in chunks over one-thread workers."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covey.kernel.algorithm import Program
from covey.kernel.environment import Answered, Effort
from covey.kernel.moved import on_device
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Message, rows_of
from covey.links.link import Link, Route
from covey.runtimes.base import Answers, BaseRuntime, Crossing, Question, select
from covey.runtimes.cuda.cuda_graphs import CudaReplay, Graphs
from covey.runtimes.cuda.round_graphs import RoundNodes, Rounds
from covey.runtimes.machine import LARGEST_ROWS, cache_bytes, keep_freed_memory
from covey.runtimes.spec import MEMORY, NodeSpec
from covey.types import Rows

_GRAIN = 200_000
"""Values of rows below which a second thread waits for Python's lock more than it computes."""
_CACHED = 2**18
"""Values of rows that stay in the cache of a core."""
_SCORES = 4
"""Chunks per worker when models are scored: a device takes as long as it has examples."""


@dataclass(eq=False)
class Simulator(BaseRuntime):
    """One process that plays every node of the tree, or of several copies of it, one for each seed.

    In an environment with a clock programs are not captured, since their steps are counted.
    """

    def __post_init__(self, spec: NodeSpec) -> None:
        super().__post_init__(spec)
        self.workers = 1  # a GPU is one queue
        self.chunk_rows: int | None = None
        """The most bytes of rows in a chunk; None: no limit."""
        if self.task.device.type == "cpu":
            self.workers = spec.workers or torch.get_num_threads()
            keep_freed_memory()
            self.chunk_rows = min(cache_bytes() // self.workers, LARGEST_ROWS)  # stay in the cache
        one_row = spec.workers or self.task.path == "each"  # one row is work enough for a worker
        self.grain = 1 if one_row else _GRAIN
        """The fewest values of rows in a chunk for a worker."""
        self.capture = spec.capture
        self.graphs: Graphs | None = None
        self.rounds: Rounds | None = None
        on_gpu = self.task.device.type == "cuda"
        if on_gpu and self.no_graphs() is None:
            self.graphs = Graphs(self)
            self.rounds = Rounds(self, CudaReplay)
        self._room = spec.memory
        if on_gpu and spec.memory == MEMORY and not isinstance(self.task.stack, str):
            # Its kernels cost their launch; the activations of a stack are smaller than its rows.
            _, memory = torch.cuda.mem_get_info(self.task.device)
            self._room = max(MEMORY, memory // 4)
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0

    def report(self) -> dict[str, Any]:
        """How the simulator runs programs, in words and numbers."""
        out = {**super().report(), "workers": self.workers}
        if self.graphs is not None:
            out["graph"] = self.graphs.report()
            if self.rounds is not None and self.rounds.reason is None:
                out["graph"] = self.rounds.report()
            elif self.rounds is not None:  # why no more runs as a graph
                out["graph"] += f"; {self.rounds.report()}"
        elif self.task.device.type == "cuda":
            out["graph"] = f"none: {self.no_graphs()}"
        return out

    def no_graphs(self) -> str | None:
        """Why nothing runs as a CUDA graph on a GPU; None where something may."""
        if not self.capture:
            return "capture = false"
        if not self.environment.ideal:
            return "the environment counts the steps of every device"
        if self.rates.schedules:
            names = ", ".join(name for name, _ in self.rates.schedules)
            return f"schedules change {names} with the round, and a graph has fixed rates"
        return None

    def _answer_of(self, me: Nodes, program: Program, rows: Rows) -> Any:
        """The answer of the top tier's program; a round of training may be one graph."""
        if self.rounds is not None and self._play.trains and len(rows):
            with self._timed("training"):
                answer = self.rounds.run(program, rows)
            if answer is not None:
                return answer
        return super()._answer_of(me, program, rows)

    def exchange(self, me: Nodes, question: Question) -> Answers:
        """Send rows down, run the program on all children in chunks, send the answers up."""
        return self._all_answers(me, *self._all_sent(question))

    def _all_sent(self, question: Question) -> tuple[Question, list[Rows]]:
        """The ask with each child's own values as they arrive, and the askers' rows likewise."""
        with self._timed("links"):
            arrived: list[Any] = [rows_of(self._cross(crossing)) for crossing in question.down()]
        count = len(question.rows)
        pairs = zip(arrived[count:], question.each, strict=True)
        each = tuple(rows.reshape(values.shape) for rows, values in pairs)
        return replace(question, each=each), arrived[:count]

    def _all_answers(self, me: Nodes, question: Question, down: Sequence[Rows]) -> Answers:
        """The answers of all children that run, as they arrive above."""
        effort = None
        if not self.environment.ideal and self._play.trains:
            effort = Effort(question.ids, question.admission)
        run = partial(self._run, question, down, effort)
        timed: AbstractContextManager[None] = nullcontext()
        if question.tier == self.tree.tiers[-1]:
            timed = self._timed("training", threads=self.workers)
        with timed:
            parts = self._each_chunk(run, question)
        self._play.suspects.check()
        if effort is None:
            return Answers(parts)
        # Each asker's clock advances to its last answer; not all answers need count.
        answered = Answered(
            tier=question.above,
            below=question.tier,
            asker=question.asker[question.answers],
            askers=len(me),
            asker_idle=me.idle,
            effort=effort,
            answers=question.answers,
        )
        waited, counted = self.environment.answered(answered)
        me.call.elapsed = me.call.elapsed + waited
        return Answers(parts, counted)

    def _run(
        self, question: Question, down: Sequence[Rows], effort: Effort | None, part: slice
    ) -> Any:
        """Run the program on some of the nodes and store the rows they keep.

        Returns their answers as they arrive above.
        """
        chunk = question.only(part)
        asker = on_device(chunk.asker, self.task.device)
        received = tuple([torch.index_select(rows, 0, asker) for rows in down])
        chunk = replace(chunk, rows=received)
        recording: AbstractContextManager[None] = nullcontext()
        if self._play.tape is not None:
            recording = self._play.tape.chunk(question, part)
        with torch.no_grad(), recording:
            ratio = None if effort is None else effort.ratio(part)
            nodes, answer = self._invoke(chunk, ratio)
            self._record(chunk.tier, chunk.ids, nodes.call, chunk.idle)
            heard = None
            if effort is not None:
                effort.add(part, nodes.call)
                heard = partial(effort.heard, chunk.answers + part.start)
            with self._timed("links"):
                reference = received[0] if received else None
                return self._answer(chunk, nodes, answer, reference, heard)

    def _invoke(self, chunk: Question, ratio: Tensor | None) -> tuple[Nodes, Any]:
        """The nodes after their program has run, and its answer."""
        tape = self._play.tape
        if tape is not None:  # its reads are put down on the tape of the round
            nodes: Nodes = RoundNodes(tape, chunk.tier, chunk.ids, path=chunk.path, idle=chunk.idle)
            with tape.program(running=True):
                return nodes, chunk.program(nodes, *chunk.arguments)
        if self.graphs is not None and self._play.trains and chunk.tier == self.tree.tiers[-1]:
            return self.graphs.run(chunk)
        nodes = chunk.nodes(self)
        nodes.call.ratio = ratio
        return nodes, chunk.program(nodes, *chunk.arguments)

    def _answer(
        self,
        chunk: Question,
        nodes: Nodes,
        answer: Any,
        received: Rows | None,
        heard: Callable[[Tensor], None] | None,
    ) -> Any:
        """The answers of a chunk as they arrive above, of those nodes that answer."""
        ids = chunk.ids
        positions = chunk.answers
        chosen = positions
        if self._play.tape is not None and len(positions) != len(ids):
            chosen = self._play.tape.answering(positions)

        def up(message: Message, number: int) -> Message:
            self._checked_answer(chunk, ids, message, nodes.call)
            if rows_of(message) is None:
                return None
            crossing = chunk.up(select(message, chosen), number, ids[positions])
            reference = rows_of(select(received, chosen))
            return self._cross(replace(crossing, reference=reference, heard=heard))

        if not isinstance(answer, tuple):
            return up(answer, 0)
        return tuple(up(message, number) for number, message in enumerate(answer))

    def _cross(self, crossing: Crossing) -> Message:
        """The message that the receivers get."""
        play = self._play
        key = crossing.key
        before = len(play.ledger.entries)
        link = Link(self.wires[key.link, key.direction], play.ledger)
        arrived = link.send(self._sending(crossing), self._route(crossing))
        if play.tape is not None:
            play.tape.crossed(key.direction, len(play.ledger.entries) - before)
        return arrived

    def _route(self, crossing: Crossing) -> Route:
        """Where messages go, and at which nodes their bytes count."""
        key = crossing.key
        tree = self.tree.copy(key.sender, crossing.senders)
        meter_key = (key.link, key.direction, self._play.lane)
        ends = crossing.ends if self._play.trains else None
        return Route(meter_key, crossing.copies, tree, crossing.heard, ends)

    def _each_chunk(self, run: Callable[[slice], Any], question: Question) -> list[Any]:
        """Devices in chunks over the workers, other tiers at once; results in id order."""
        count = len(question.ids)
        size = count
        if question.tier == self.tree.tiers[-1]:
            size = self._chunk_size(count)
        if size >= count:
            return [run(slice(0, count))]
        parts = [slice(start, min(start + size, count)) for start in range(0, count, size)]
        if self.workers == 1 or self._play.tape is not None:
            return [run(part) for part in parts]
        return self._over_workers(run, parts)

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
            threads = torch.set_num_threads
            self._pool = ThreadPoolExecutor(self.workers, "covey", threads, initargs=(1,))
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
