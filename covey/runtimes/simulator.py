"""The simulator: every child is a row, devices run in chunks over one-thread workers, only what is asked is touched."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covey import draws, native
from covey.data.shards import some
from covey.engine.task import Batches, Task
from covey.errors import DivergedError, ProgramError
from covey.kernel.algorithm import Algorithm, Program
from covey.kernel.nodes import Idle, Nodes
from covey.kernel.replies import Exact, Masked, Message, Replies
from covey.kernel.store import Store
from covey.links.link import Ledger, Link, Memory, Route
from covey.links.meter import Meter
from covey.links.spec import Wire
from covey.runtimes.clock import Clock
from covey.runtimes.cuda_graphs import Call, Graphs
from covey.runtimes.notes import Notes
from covey.tree import Sample, Tree
from covey.types import Ids, Rows
from covey.wireless.air import Air, Grant, most

_SCORES = 4  # chunks per worker when models are scored, which takes as long as a device has examples


@dataclass
class Simulator:
    """One process that plays every node of the tree, or of several copies of it, one for each seed.

    A chunk for a worker holds at least `grain` values of rows; `start` are the initial rows, [seeds, P]; `capture` allows CUDA
    graphs. With an `air` the virtual clock runs: programs then run as they are, since their steps are counted.
    """

    algorithm: Algorithm
    tree: Tree
    task: Task
    wires: Mapping[tuple[str, str], Wire]
    start: Rows
    seeds: tuple[int, ...] = (0,)
    idle: Idle = "skip"
    batches: Batches = "uniform"
    workers: int = 1
    memory: int = 2**31
    grain: int = 1
    capture: bool = True
    air: Air | None = None
    lane: str = "train"
    cohorts: dict[str, list[Tensor]] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        self.store = Store(dict(zip(self.tree.tiers, self.tree.sizes, strict=True)))
        self.start = self.start.to(self.task.device, self.task.dtype)
        self.meters = [Meter() for _ in self.seeds]
        self.clock = Clock()
        capture = self.capture and self.air is None and self.task.device.type == "cuda"
        self.graphs = Graphs(self) if capture else None
        self.elapsed = torch.zeros(len(self.seeds), 2, dtype=torch.float64)  # s that the servers waited in the last round
        self.gradients = torch.zeros(len(self.seeds), dtype=torch.float64)  # that were evaluated in it
        self._ledger = Ledger(self.meters)
        self._doubts: list[_Doubt] = []
        self._storing = threading.Lock()
        self._asked: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0
        self._round = 0

    def initial(self, tier: str, ids: Ids) -> Rows:
        """The common initial row of each node's tree, [n, P]."""
        return self.start[self.tree.copy(tier, ids.to(self.start.device))]

    def examples(self, tier: str, ids: Ids) -> Tensor:
        """How many training examples all devices under each node hold, [n]."""
        return self.task.total("train", *self.tree.span(tier, ids))

    @property
    def counts_moved(self) -> bool:
        """Whether somebody wants to know how many weights a node moved: the radio's clock."""
        return self.air is not None

    def play(self, program: Program, rows: Rows, *, round: int) -> Any:
        """Run a program of the top tier; with no rows at all, every program below runs on none."""
        self._round = round
        self._ledger.clear()
        self._doubts.clear()
        if self.lane == "train":
            self.gradients.zero_()
            if self.air is not None:
                self.air.clear()
        with _one_thread(), torch.no_grad():
            me = Nodes(self, self.tree.tiers[0], torch.arange(len(rows)), round=round, path=0)
            answer = program(me, rows.clone())
            self.elapsed = me.elapsed if self.lane == "train" else self.elapsed
            self._keep(me, me.ids, round)
            self._note(me, me.ids, None)
            self._doubt(me.tier, "the new global model", answer if isinstance(answer, Tensor) else None, me.ids)
            if self.task.device.type == "cuda":
                with self._timed("training"):  # most of what it still has to do
                    torch.cuda.synchronize(self.task.device)
            with self._timed("links"):
                self._check(last=True)
                self._ledger.settle()
            return answer

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Asks in here are scores: their bytes go to a lane of their own and no cohort is recorded."""
        self.lane = "score"
        try:
            with self.clock("scores"):
                yield
        finally:
            self.lane = "train"

    def nodes(self, tier: str, copy: int) -> slice:
        """The ids that one seed's nodes of a tier have."""
        size = self.tree.size(tier) // self.tree.copies
        return slice(copy * size, (copy + 1) * size)

    def hold(self, label: str, copy: int, columns: Sequence[tuple[str, str]]) -> None:
        """Hold what one seed's nodes keep now in these (tier, name), in place of what was held under this label."""
        for tier, name in columns:
            self.store.columns[tier, name].hold(label, self.nodes(tier, copy))

    def release(self, label: str, copy: int) -> None:
        """Hold nothing of one seed under this label any more."""
        for (tier, _), column in self.store.columns.items():
            column.release(label, self.nodes(tier, copy))

    def ask(
        self,
        me: Nodes,
        program: Program,
        rows: tuple[Any, ...],
        *,
        each: tuple[Tensor, ...],
        sample: Sample,
        where: Tensor | None,
    ) -> Any:
        """Run a program on children of `me`; the contract is that of `Nodes.ask`."""
        path, tier = me.next_ask(), self._below(me, program)
        with self._timed("cohorts"):
            asking = torch.arange(len(me)) if where is None else where.reshape(-1).nonzero()[:, 0].cpu()
            position, ids, answers, grant = self._cohort(me, tier, asking, sample, path)
            asker = asking[position]
            idle = self._idle(me, asker, len(ids), answers)
        with self._timed("links"):
            copies = torch.bincount(asker, minlength=len(me))
            way = _Way((me.tier, tier), "down", program.__name__, path)
            down = tuple(self._send(row, me.ids, copies, replace(way, number=k)) for k, row in enumerate(rows))
            down_each = tuple(self._send_each(me, way, value, asker, ids) for value in each)
        timed = _Timed(ids, grant) if self.air is not None and self.lane == "train" else None
        question = _Question(program, (me.tier, tier), me.round, path, ids, asker, answers, idle, down, down_each, timed)
        with self._timed("training", threads=self.workers) if self._leaf(tier) else nullcontext():
            done = list(self._each_chunk(partial(self._run, question), len(ids), leaf=self._leaf(tier)))
        self._check()
        counts = None if timed is None else self._wait(me, tier, asker[answers], timed, answers)
        answered = answers if counts is None else answers[counts]
        child = ids[answered] - self.tree.first(me.tier, me.ids)[asker[answered]]

        def replies(messages: list[Message]) -> Replies:
            if counts is not None:
                messages = [_select(_together(messages), counts.nonzero()[:, 0])]
            masks = [message.mask for message in messages if isinstance(message, Masked)]
            parts = [rows for rows in map(_rows, messages) if rows is not None]
            mask = torch.cat(masks) if masks else None
            return Replies(parts or None, asker=asker[answered], askers=len(me), mask=mask, child=child)

        if isinstance(done[0], tuple):
            return tuple(replies(list(messages)) for messages in zip(*done, strict=True))
        return replies(done)

    def _run(self, q: _Question, part: slice) -> Any:
        """The program on some of the nodes: what they keep is stored, what they answer has crossed the link."""
        ids, tier = q.ids[part], q.ends[1]
        here = q.asker[part].to(self.task.device, non_blocking=True)
        arguments = (*(torch.index_select(row, 0, here) for row in q.down), *(value[part] for value in q.each))
        with torch.no_grad():
            idle = None if q.idle is None else q.idle[part]
            if self.graphs is not None and self.lane == "train" and self._leaf(tier):
                nodes, answer = self.graphs.run(Call(q.program, tier, ids, q.round, q.path, arguments, idle))
            else:
                nodes = Nodes(self, tier, ids, round=q.round, path=q.path, idle=idle)
                nodes.granted = q.timed.ratio(part) if q.timed is not None else None
                answer = q.program(nodes, *arguments)
            self._keep(nodes, ids, q.round)
            self._note(nodes, ids, idle)
            self._count(nodes, ids)
            if q.timed is not None:
                q.timed.add(part, nodes)
            with self._timed("links"):
                here = q.answers[(q.answers >= part.start) & (q.answers < part.stop)] - part.start
                way = _Way(q.ends, "up", q.program.__name__, q.path, came=arguments[0] if q.down else None)
                if q.timed is not None:
                    way = replace(way, heard=partial(q.timed.heard, part.start + here))
                if isinstance(answer, tuple):
                    return tuple(self._up(q, ids, here, m, nodes, replace(way, number=k)) for k, m in enumerate(answer))
                return self._up(q, ids, here, answer, nodes, way)

    def _up(self, q: _Question, ids: Ids, here: Tensor, message: Message, nodes: Nodes, way: _Way) -> Message:
        """What arrives above of the answers of those who answer, `here` among the nodes."""
        rows, tier = _rows(message), q.ends[1]
        if rows is None:
            return None
        if rows.ndim != 2 or len(rows) != len(ids):
            got = f"{rows.dtype} of shape {tuple(rows.shape)}"
            raise ProgramError(
                f"{tier}: {q.program.__name__} answered {got} for {len(ids)} nodes; give float32 or float64 rows [n, width]."
            )
        if not any(rows is kept for kept in nodes.kept.values()):
            self._doubt(tier, f"the answer of {q.program.__name__}", rows, ids)
        if way.came is not None and len(here) < len(ids):
            way = replace(way, came=way.came[here.to(way.came.device, non_blocking=True)])
        return self._receive(_select(message, here), ids[here], torch.ones_like(here), way)

    def _leaf(self, tier: str) -> bool:
        return tier == self.tree.tiers[-1]

    def _timed(self, name: str, threads: int = 1) -> AbstractContextManager[None]:
        """Whatever happens while scoring is scoring."""
        return self.clock(name, threads) if self.lane == "train" else nullcontext()

    def _below(self, me: Nodes, program: Program) -> str:
        tier = self.tree.below(me.tier)
        if tier is None:
            raise ProgramError(f"a {me.tier} asked for {program.__name__}, but it has no children.")
        return tier

    def _cohort(
        self, me: Nodes, tier: str, asking: Tensor, sample: Sample, path: int
    ) -> tuple[Tensor, Tensor, Tensor, Grant | None]:
        """Who runs, as (position of the asker, child id), which of them answer, and what they are given of the air."""
        if sample is not None:
            self.tree.picks(me.tier, sample)  # also when nobody asks, so that a wrong number shows before the first round
        askers = me.ids[asking]
        if sample is None:
            position, ids = self._children(me.tier, askers)
        else:
            address = draws.keys(self.seeds, me.round, path, tier)[self.tree.copy(me.tier, askers)]
            position, ids = self.tree.cohort(me.tier, askers, sample=sample, address=address)
        whole, grant = sample is None, None
        if self.air is not None and self.lane == "train" and self._leaf(tier):
            grant = self.air.grant(ids, me.round)
            if not bool(grant.asked.all()):
                position, ids, whole = position[grant.asked], ids[grant.asked], False
        if self.lane == "train":
            asked = ids if me.idle is None else ids[~me.idle[asking][position]]
            self.cohorts.setdefault(tier, []).append(asked)
        if whole or self.idle == "skip":
            return position, ids, torch.arange(len(ids)), grant
        position, everyone = self._children(me.tier, askers)
        return position, everyone, torch.isin(everyone, ids).nonzero()[:, 0], grant

    def _children(self, tier: str, ids: Ids) -> tuple[Tensor, Tensor]:
        """All children of these nodes; who asks every round asks for the same."""
        last = self._asked.get(tier)
        if last is None or not torch.equal(last[0], ids):
            last = self._asked[tier] = (ids, *self.tree.cohort(tier, ids, sample=None, address=0))
        return last[1:]

    def _wait(self, me: Nodes, tier: str, asker: Tensor, timed: _Timed, answers: Tensor) -> Tensor | None:
        """Let the clock of those who ask run until they have their answers; whose count, [m] bool, or None for all."""
        assert self.air is not None
        sent = timed.sent[answers]
        if timed.grant is None:
            above = self.tree.below(tier) == self.tree.tiers[-1]  # the cells' edges, which have wires
            wire = self.air.wire(self.tree.first(tier, timed.ids[answers]), sent) if above else 0.0
            me.elapsed = me.elapsed + most(timed.elapsed[answers] + wire, asker, len(me))
            return None
        idle = torch.zeros_like(asker, dtype=torch.bool) if me.idle is None else me.idle[asker]
        took = self.air.took(timed.grant, timed.moved[answers], sent, idle)
        counts = self.air.in_time(timed.grant, took, asker, len(me), idle)
        relay = me.tier == self.tree.tiers[0]
        me.elapsed = me.elapsed + self.air.waits(timed.grant, took, counts, sent, asker, len(me), relay)
        return None if bool(counts.all()) else counts

    def _idle(self, me: Nodes, asker: Tensor, count: int, answers: Tensor) -> Tensor | None:
        """Who of those that run was not asked, or stands under one that was not."""
        if self.idle == "skip":
            return None
        idle = torch.ones(count, dtype=torch.bool)
        idle[answers] = False
        return idle if me.idle is None else idle | me.idle[asker]

    def _each_chunk(self, run: Callable[[slice], Any], count: int, *, leaf: bool) -> Iterator[Any]:
        """Leaves in chunks over the workers, other tiers at once; results in id order."""
        room = max(1, self.memory // self.workers // (self.task.row_bytes() + self.algorithm.memory()))
        if self.task.path == "each":  # rows run one by one, and a model stays in the cache for all its steps
            room = 1
        least = -(-self.grain // self.task.space.width)
        share = -(-count // (self.workers if self.lane == "train" else self.workers * _SCORES))
        size = max(1, min(room, max(least, share))) if leaf else max(1, count)
        parts = [slice(start, min(start + size, count)) for start in range(0, max(count, 1), size)]
        if self.workers == 1 or len(parts) == 1:
            return map(run, parts)
        return iter(self._over_workers(run, parts))

    def _over_workers(self, run: Callable[[slice], Any], parts: list[slice]) -> list[Any]:
        """The results in order; when one fails, or the user interrupts, nobody works on once this has raised."""
        if self._pool is None or self._owner != os.getpid():  # threads do not survive a fork
            self._pool = ThreadPoolExecutor(self.workers, "covey", initializer=torch.set_num_threads, initargs=(1,))
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

    def _keep(self, nodes: Nodes, ids: Ids, round: int) -> None:
        """Store what a program call kept."""
        for name, rows in nodes.kept.items():
            self._doubt(nodes.tier, f"the kept {name!r}", rows, ids)
            with self._storing:  # workers take turns
                self.store.put(nodes.tier, name, ids, rows, round)

    def _note(self, nodes: Nodes, ids: Ids, idle: Tensor | None) -> None:
        """Record what a program call noted of those who were asked."""
        if not nodes.notes or self.lane != "train":
            return
        for name, found in nodes.notes.items():
            for values in found:
                self._doubt(nodes.tier, f"the note {name!r}", values, ids)
                self.notes.add(nodes.tier, name, ids, values, idle)

    def _count(self, nodes: Nodes, ids: Ids) -> None:
        """Add the gradients that nodes evaluated, idle ones too.

        They are whole numbers, so the order of workers does not matter.
        """
        if self.lane != "train":
            return
        counts = torch.as_tensor(nodes.gradients, dtype=torch.float64).cpu().expand(len(ids))
        with self._storing:
            self.gradients.index_add_(0, self.tree.copy(nodes.tier, ids), counts)

    def _send(self, message: Message, ids: Ids, copies: Tensor, way: _Way) -> Any:
        """The rows that arrive."""
        out = self._receive(message, ids, copies, way)
        return out.rows if isinstance(out, Exact) else out

    def _receive(self, message: Message, ids: Ids, copies: Tensor, way: _Way) -> Message:
        """What the receivers get of a message."""
        _check_carried(_rows(message), way)
        sender, wire = way.sender, self.wires[way.link, way.direction]
        route = Route((way.link, way.direction, self.lane), copies, self.tree.copy(sender, ids), way.heard)
        cut = self.algorithm.cut(sender, self._round) if self.lane == "train" else None
        memory = self._memory(way, ids) if wire.feedback and self.lane == "train" else None

        def keys() -> Tensor:
            words = (self._round, way.path, "wire", way.link, way.direction, way.program, way.number)
            each = draws.keys(self.seeds, *words)[self.tree.copy(sender, ids)].to(self.task.device)
            return draws.bits(each, self.tree.local(sender, ids).to(self.task.device), 1)[:, 0]

        return Link(wire, self._ledger).send(message, route, cut=cut, reference=way.came, keys=keys, memory=memory)

    def _memory(self, way: _Way, ids: Ids) -> Memory:
        """What these senders' messages of this kind have lost so far: an ordinary kept row of theirs, which is no model."""
        name = f"_lost {way.link} {way.direction} {way.program} {way.number}"

        def keep(rows: Rows) -> None:
            with self._storing:
                self.store.put(way.sender, name, ids, rows, self._round)

        def recall(zeros: Rows) -> Rows:
            with self._storing:
                lost = self.store.get(way.sender, name, ids, zeros, 0)
            return zeros if lost is None else lost

        return Memory(recall, keep)

    def _send_each(self, me: Nodes, way: _Way, value: Tensor, asker: Tensor, ids: Tensor) -> Tensor:
        """Each child's own entry of a value that has one per child of the askers."""
        counts = me.children
        if len(value) != int(counts.sum()):
            raise ProgramError(
                f"each= holds {len(value)} values for the {int(counts.sum())} children of {len(me)} {me.tier} nodes."
            )
        starts = torch.cumsum(counts, 0) - counts
        chosen = value[(starts[asker] + ids - self.tree.first(me.tier, me.ids)[asker]).to(value.device)]
        flat = Exact(chosen[:, None] if chosen.ndim == 1 else chosen.flatten(1))
        arrived: Tensor = self._send(flat, me.ids[asker], torch.ones_like(ids), way)
        return arrived.reshape(chosen.shape)

    def _doubt(self, tier: str, what: str, rows: Tensor | None, ids: Ids) -> None:
        """Note rows that are no longer finite; on a GPU, which would have to be waited for, all that may not be."""
        if rows is None or not rows.is_floating_point() or not rows.numel():
            return
        if rows.is_cuda:
            self._doubts.append(_Doubt(tier, what, ids, rows.reshape(len(ids), -1).sum(1)))
        elif not native.finite(rows):
            whole = torch.isfinite(rows.reshape(len(ids), -1)).all(1)
            self._doubts.append(_Doubt(tier, what, ids, torch.where(whole, 0.0, math.nan)))

    def _check(self, *, last: bool = False) -> None:
        """An error that names the nodes whose rows are not finite; a GPU is asked at the end of a round only."""
        if not self._doubts or (self.task.device.type == "cuda" and not last):
            return
        wrong = ~torch.isfinite(torch.cat([doubt.sum for doubt in self._doubts])).cpu()
        parts = torch.split(wrong, [len(doubt.ids) for doubt in self._doubts])
        found = [(doubt, doubt.ids[part]) for doubt, part in zip(self._doubts, parts, strict=True) if bool(part.any())]
        self._doubts.clear()
        if not found:
            return
        tier, what = min((doubt.tier, doubt.what) for doubt, _ in found)  # whichever worker came first
        bad = torch.cat([ids for doubt, ids in found if (doubt.tier, doubt.what) == (tier, what)]).sort().values
        seeds = sorted({self.seeds[copy] for copy in self.tree.copy(tier, bad).tolist()})
        named = some(self.tree.local(tier, bad).tolist()) + (f" (seed {some(seeds)})" if len(self.seeds) > 1 else "")
        raise DivergedError(
            f"round {self._round + 1}: {what} of {tier} {named} is no longer finite "
            f"({len(bad)} of {self.tree.size(tier)} nodes); "
            "the state of the round before remains. Lower the step sizes or the penalties."
        )


@dataclass(frozen=True, eq=False)
class _Question:
    """One ask: who runs, what they get, and which of them answer."""

    program: Program
    ends: tuple[str, str]
    round: int
    path: int
    ids: Ids
    asker: Tensor
    answers: Tensor
    idle: Tensor | None
    down: tuple[Any, ...]
    each: tuple[Tensor, ...]
    timed: _Timed | None = None


class _Timed:
    """What the virtual clock must know of those who run, [m]: weights moved, bytes sent, and how long they waited themselves."""

    def __init__(self, ids: Ids, grant: Grant | None) -> None:
        self.ids, self.grant = ids, grant
        self.moved, self.sent = torch.zeros(2, len(ids), dtype=torch.float64)
        self.elapsed = torch.zeros(len(ids), 2, dtype=torch.float64)

    def add(self, part: slice, nodes: Nodes) -> None:
        """What some of them have done."""
        self.moved[part] = nodes.moved.cpu().double() if isinstance(nodes.moved, Tensor) else nodes.moved
        self.elapsed[part] = nodes.elapsed

    def heard(self, at: Tensor, lengths: Tensor) -> None:
        """Messages of some of them have been sent; no two workers have the same ones."""
        self.sent[at] += lengths

    def ratio(self, part: slice) -> Tensor | None:
        """The ratios granted to some of them; None where idle ones run as well, who were granted nothing."""
        grant = self.grant
        return grant.ratio[part] if grant is not None and len(grant.ids) == len(self.ids) else None


@dataclass(frozen=True, eq=False)
class _Way:
    """What a message is: its link and direction, the program that it asks for or answers, and which of its rows."""

    ends: tuple[str, str]
    direction: str
    program: str
    path: int
    number: int = 0
    came: Rows | None = None  # what came down to those who answer
    heard: Callable[[Tensor], None] | None = None  # told the bytes of each message

    @property
    def link(self) -> str:
        return "-".join(self.ends)

    @property
    def sender(self) -> str:
        return self.ends[0 if self.direction == "down" else 1]


@dataclass(frozen=True, eq=False)
class _Doubt:
    """Rows that may no longer be finite: whose they are, and a number for each that is finite only if the row is, [n]."""

    tier: str
    what: str
    ids: Ids
    sum: Tensor


def _check_carried(rows: Rows | None, way: _Way) -> None:
    """Refuse numbers of another type than a message can hold; on no rows too, so before the first round."""
    if rows is None or rows.dtype in (torch.float32, torch.float64):
        return
    asks = f"ask({way.program}) sends" if way.direction == "down" else f"{way.program} answers"
    raise ProgramError(
        f"{way.sender}: {asks} {rows.dtype}, but links carry float32 and float64 only; "
        "convert it first: x.to(w) has the model's type, x.double() holds whole numbers up to 2**53."
    )


def _rows(message: Message) -> Rows | None:
    return message.rows if isinstance(message, Masked | Exact) else message


def _together(messages: list[Message]) -> Message:
    """The answers of all chunks as one."""
    if isinstance(messages[0], Masked):
        both = [(message.rows, message.mask) for message in messages if isinstance(message, Masked)]
        return Masked(*(torch.cat(parts) for parts in zip(*both, strict=True)))
    parts = [rows for rows in map(_rows, messages) if rows is not None]
    return torch.cat(parts) if parts else None


def _select(message: Message, answers: Tensor) -> Message:
    """Only the rows of those who answer."""
    rows = _rows(message)
    if rows is None or len(rows) == len(answers):
        return message
    here = answers.to(rows.device, non_blocking=True)
    if isinstance(message, Masked):
        return Masked(message.rows[here], message.mask[here])
    return Exact(rows[here]) if isinstance(message, Exact) else rows[here]


@contextmanager
def _one_thread() -> Iterator[None]:
    """One intra-op thread, on which the bits of a row do not depend on its neighbours; the caller's number comes back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
