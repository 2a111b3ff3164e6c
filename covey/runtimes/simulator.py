"""The simulator: every child is a row, devices run in chunks over one-thread workers, only what is
asked is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covey.kernel.environment import Answered, Effort
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Exact, Message
from covey.links.link import Link, Route
from covey.runtimes.base import (
    Answers,
    BaseRuntime,
    MessageKey,
    Question,
    check_carried,
    flat,
    rows_of,
    select,
)
from covey.runtimes.cuda_graphs import Graphs, Invocation
from covey.types import Ids, Rows

_SCORES = (
    4  # chunks per worker when models are scored, which takes as long as a device has examples
)


@dataclass
class Simulator(BaseRuntime):
    """One process that plays every node of the tree, or of several copies of it, one for each seed.

    A chunk for a worker holds at least `grain` values of rows; `capture` allows CUDA graphs. In an
    environment with a clock programs run as they are, since their steps are counted.
    """

    workers: int = 1
    memory: int = 2**31
    grain: int = 1
    capture: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        capture = self.capture and self.environment.ideal and self.task.device.type == "cuda"
        self.graphs = Graphs(self) if capture else None
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0

    def report(self) -> dict[str, Any]:
        """How programs are run here, in words and numbers."""
        out = {**super().report(), "workers": self.workers}
        if self.graphs is not None:
            out["graph"] = self.graphs.report()
        return out

    def exchange(self, me: Nodes, question: Question) -> Answers:
        """Send rows down, run the program on all children in chunks, send the answers up."""
        with self._timed("links"):
            down = tuple(
                self._sent(rows, me.ids, question.copies, question.key("down", number))
                for number, rows in enumerate(question.rows)
            )
            each = tuple(self._sent_each(question, values) for values in question.each)
        effort = None
        if not self.environment.ideal and self._play.trains:
            effort = Effort(question.ids, question.admission)
        run = partial(self._run, question, down, each, effort)
        leaf = self._leaf(question.ends[1])
        with self._timed("training", threads=self.workers) if leaf else nullcontext():
            parts = list(self._each_chunk(run, len(question.ids), leaf=leaf))
        self._check()
        return Answers(parts, self._counted(me, question, effort))

    def _counted(self, me: Nodes, question: Question, effort: Effort | None) -> Tensor | None:
        """Advance each asker's clock to its last answer; a mask of the answers that count (None:
        all).
        """
        if effort is None:
            return None
        asker = question.asker[question.answers]
        answered = Answered(*question.ends, asker, len(me), me.idle, effort, question.answers)
        waited, counted = self.environment.answered(answered)
        me.call.elapsed = me.call.elapsed + waited
        return counted

    def _run(
        self,
        question: Question,
        down: tuple[Rows, ...],
        each: tuple[Tensor, ...],
        effort: Effort | None,
        part: slice,
    ) -> Any:
        """The program on some of the nodes: what they keep is stored, what they answer has crossed
        the link.
        """
        ids, tier = question.ids[part], question.ends[1]
        idle = None if question.idle is None else question.idle[part]
        asker = question.asker[part].to(self.task.device, non_blocking=True)
        arguments = (
            *(torch.index_select(rows, 0, asker) for rows in down),
            *(values[part] for values in each),
        )
        with torch.no_grad():
            if self.graphs is not None and self._play.trains and self._leaf(tier):
                invocation = Invocation(
                    question.program, tier, ids, question.round, question.path, arguments, idle
                )
                nodes, answer = self.graphs.run(invocation)
            else:
                nodes = Nodes(self, tier, ids, round=question.round, path=question.path, idle=idle)
                nodes.call.ratio = None if effort is None else effort.ratio(part)
                answer = question.program(nodes, *arguments)
            self._record(tier, ids, nodes.call, idle)
            if effort is not None:
                effort.add(part, nodes.call)
            with self._timed("links"):
                return self._answer(
                    question, part, nodes, answer, arguments[0] if down else None, effort
                )

    def _answer(
        self,
        question: Question,
        part: slice,
        nodes: Nodes,
        answer: Any,
        received: Rows | None,
        effort: Effort | None,
    ) -> Any:
        """What arrives above of the answers of those who answer."""
        inside = (question.answers >= part.start) & (question.answers < part.stop)
        positions = question.answers[inside] - part.start
        heard = None if effort is None else partial(effort.heard, part.start + positions)
        ids = question.ids[part]

        def up(message: Message, number: int) -> Message:
            self._checked_answer(question, ids, message, nodes.call)
            if rows_of(message) is None:
                return None
            reference = received
            if received is not None and len(positions) < len(ids):
                reference = received[positions.to(received.device, non_blocking=True)]
            one_each = torch.ones_like(positions)
            key = question.key("up", number)
            return self._cross(
                select(message, positions), ids[positions], one_each, key, reference, heard
            )

        if isinstance(answer, tuple):
            return tuple(up(message, number) for number, message in enumerate(answer))
        return up(answer, 0)

    def _sent(self, message: Message, ids: Ids, copies: Tensor, key: MessageKey) -> Any:
        """The rows that arrive below."""
        arrived = self._cross(message, ids, copies, key)
        return arrived.rows if isinstance(arrived, Exact) else arrived

    def _sent_each(self, question: Question, values: Tensor) -> Tensor:
        """Each child's own value as it arrives."""
        senders = question.askers[question.asker]
        arrived: Tensor = self._sent(
            flat(values), senders, torch.ones_like(question.ids), question.key("down")
        )
        return arrived.reshape(values.shape)

    def _cross(
        self,
        message: Message,
        ids: Ids,
        copies: Tensor,
        key: MessageKey,
        reference: Rows | None = None,
        heard: Callable[[Tensor], None] | None = None,
    ) -> Message:
        """What the receivers get of a message."""
        check_carried(rows_of(message), key)
        route = Route(
            (key.link, key.direction, self._play.lane),
            copies,
            self.tree.copy(key.sender, ids),
            heard,
        )
        link = Link(self.wires[key.link, key.direction], self._play.ledger)
        memory, keys = self._memory(key, ids), self._wire_keys(key, ids)
        return link.send(
            message, route, cut=self._cut(key), reference=reference, keys=keys, memory=memory
        )

    def _settle(self, me: Nodes, answer: Any) -> None:
        if self.task.device.type == "cuda":
            with self._timed("training"):  # most of what it still has to do
                torch.cuda.synchronize(self.task.device)
        super()._settle(me, answer)

    def _leaf(self, tier: str) -> bool:
        return tier == self.tree.tiers[-1]

    def _each_chunk(self, run: Callable[[slice], Any], count: int, *, leaf: bool) -> Iterator[Any]:
        """Leaves in chunks over the workers, other tiers at once; results in id order."""
        room = max(
            1, self.memory // self.workers // (self.task.row_bytes() + self.algorithm.memory())
        )
        if (
            self.task.path == "each"
        ):  # rows run one by one, and a model stays in the cache for all its steps
            room = 1
        smallest = -(-self.grain // self.task.space.width)
        chunks = self.workers if self._play.trains else self.workers * _SCORES
        share = -(-count // chunks)
        size = max(1, min(room, max(smallest, share))) if leaf else max(1, count)
        parts = [slice(start, min(start + size, count)) for start in range(0, max(count, 1), size)]
        if self.workers == 1 or len(parts) == 1:
            return map(run, parts)
        return iter(self._over_workers(run, parts))

    def _over_workers(self, run: Callable[[slice], Any], parts: list[slice]) -> list[Any]:
        """The results in order; when one fails, or the user interrupts, nobody works on once this
        has raised.
        """
        if self._pool is None or self._owner != os.getpid():  # threads do not survive a fork
            self._pool = ThreadPoolExecutor(
                self.workers, "covey", initializer=torch.set_num_threads, initargs=(1,)
            )
            self._owner = os.getpid()
        futures: list[Future[Any]] = []
        try:
            for part in parts:
                futures.append(self._pool.submit(run, part))  # noqa: PERF401 - an interrupt must find those submitted so far
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            wait(futures)  # or rows would be stored after the round was undone
            raise
