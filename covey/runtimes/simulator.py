"""The simulator: every child is a row, devices run in chunks over one-thread workers, only what is asked is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covey import draws
from covey.algorithm import Algorithm, Program
from covey.codecs import Codec
from covey.errors import DivergedError, ProgramError
from covey.link import Link
from covey.meter import Meter
from covey.nodes import Idle, Nodes
from covey.replies import Exact, Masked, Message, Replies, Rows
from covey.store import Store
from covey.task import Batches, Task
from covey.tree import Sample, Tree


@dataclass
class Simulator:
    """One process that plays every node of the tree.

    A chunk for a worker holds at least `grain` values of rows; `start` is the initial row, None for the seed's.
    """

    algorithm: Algorithm
    tree: Tree
    task: Task
    codecs: Mapping[str, Codec]
    seed: int = 0
    idle: Idle = "skip"
    batches: Batches = "uniform"
    workers: int = 1
    memory: int = 2**31
    grain: int = 1
    start: Tensor | None = None
    meter: Meter = field(default_factory=Meter)
    lane: str = "train"
    cohorts: dict[str, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = Store(dict(zip(self.tree.tiers, self.tree.sizes, strict=True)))
        start = self.task.space.initial(self.seed) if self.start is None else self.start
        self._initial = start.to(self.task.device, self.task.dtype)
        self._pool: ThreadPoolExecutor | None = None
        self._round = 0

    def initial(self) -> Tensor:
        """The common initial row, [P]."""
        return self._initial

    def play(self, program: Program, rows: Rows, *, round: int) -> Any:
        """Run a program of the top tier; with no rows at all, every program below runs on none."""
        self._round = round
        with _one_thread(), torch.no_grad():
            me = Nodes(self, self.tree.tiers[0], torch.arange(len(rows)), round=round, path=0)
            answer = program(me, rows.clone())
            self._commit([me], me.ids, round)
            self._finite(me.tier, "the new global model", answer if isinstance(answer, Tensor) else None, me.ids, round)
            return answer

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Asks in here are scores: their bytes go to a lane of their own and no cohort is recorded."""
        self.lane = "score"
        try:
            yield
        finally:
            self.lane = "train"

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
        asking = torch.arange(len(me)) if where is None else where.reshape(-1).nonzero()[:, 0].cpu()
        position, ids, answers = self._cohort(me, tier, asking, sample, draws.key(self.seed, me.round, path, tier))
        asker = asking[position]
        copies = torch.bincount(asker, minlength=len(me))
        down = [self._send(row, copies, me.tier, (me.tier, tier), "down") for row in rows]
        down_each = [self._send_each(me, tier, value, asker, ids) for value in each]

        idle = self._idle(me, asker, len(ids), answers)

        def run(part: slice) -> tuple[Nodes, Any]:
            nodes = Nodes(self, tier, ids[part], round=me.round, path=path, idle=None if idle is None else idle[part])
            here = asker[part].to(self.task.device)
            with torch.no_grad():
                return nodes, program(nodes, *(row[here] for row in down), *(value[part] for value in down_each))

        done = list(self._each_chunk(run, len(ids), leaf=self.tree.below(tier) is None))
        self._commit([nodes for nodes, _ in done], ids, me.round)
        asker, child = asker[answers], ids[answers] - self.tree.first(me.tier, me.ids)[asker[answers]]

        def reply(message: Message) -> Replies:
            rows = _rows(message)
            if rows is not None and (rows.ndim != 2 or len(rows) != len(ids) or not rows.is_floating_point()):
                got = f"{rows.dtype} of shape {tuple(rows.shape)}"
                raise ProgramError(
                    f"{tier}: {program.__name__} answered {got} for {len(ids)} nodes; give floating rows [n, width]."
                )
            self._finite(tier, f"the answer of {program.__name__}", rows, ids, me.round)
            up = self._send(_select(message, answers), torch.ones_like(child), tier, (me.tier, tier), "up")
            mask = up.mask if isinstance(up, Masked) else None
            return Replies(_rows(up), asker=asker, askers=len(me), mask=mask, child=child)

        answer = _join([result for _, result in done])
        return tuple(reply(item) for item in answer) if isinstance(answer, tuple) else reply(answer)

    def _below(self, me: Nodes, program: Program) -> str:
        tier = self.tree.below(me.tier)
        if tier is None:
            raise ProgramError(f"a {me.tier} asked for {program.__name__}, but it has no children.")
        return tier

    def _cohort(self, me: Nodes, tier: str, asking: Tensor, sample: Sample, address: int) -> tuple[Tensor, Tensor, Tensor]:
        """Who runs, as (position of the asker, child id), and which of them answer."""
        if sample is not None:
            self.tree.picks(me.tier, sample)  # also when nobody asks, so that a wrong number shows before the first round
        askers = me.ids[asking]
        position, ids = self.tree.cohort(me.tier, askers, sample=sample, address=address)
        if self.lane == "train":
            asked = ids if me.idle is None else ids[~me.idle[asking][position]]
            self.cohorts.setdefault(tier, []).append(asked)
        if sample is None or self.idle == "skip":
            return position, ids, torch.arange(len(ids))
        position, everyone = self.tree.cohort(me.tier, askers, sample=None, address=address)
        return position, everyone, torch.isin(everyone, ids).nonzero()[:, 0]

    def _idle(self, me: Nodes, asker: Tensor, count: int, answers: Tensor) -> Tensor | None:
        """Who of those that run was not asked, or stands under one that was not."""
        if self.idle == "skip":
            return None
        idle = torch.ones(count, dtype=torch.bool)
        idle[answers] = False
        return idle if me.idle is None else idle | me.idle[asker]

    def _each_chunk(self, run: Callable[[slice], Any], count: int, *, leaf: bool) -> Iterator[Any]:
        """Leaves in chunks over the workers, other tiers at once; results in id order."""
        room = max(1, self.memory // self.workers // self.task.row_bytes())
        least = -(-self.grain // self.task.space.width)
        size = max(1, min(room, max(least, -(-count // self.workers)))) if leaf else max(1, count)
        parts = [slice(start, min(start + size, count)) for start in range(0, max(count, 1), size)]
        if self.workers == 1 or len(parts) == 1:
            return map(run, parts)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, "covey", initializer=torch.set_num_threads, initargs=(1,))
        return self._pool.map(run, parts)

    def _commit(self, done: list[Nodes], ids: Tensor, round: int) -> None:
        for name in done[0].kept:
            rows = torch.cat([nodes.kept[name] for nodes in done]) if len(done) > 1 else done[0].kept[name]
            self._finite(done[0].tier, f"the kept {name!r}", rows, ids, round)
            self.store.put(done[0].tier, name, ids, rows, round)

    def _send(self, message: Message, copies: Tensor, sender: str, ends: tuple[str, str], direction: str) -> Any:
        link = Link("-".join(ends), self.codecs["-".join(ends)], self.meter)
        cut = self.algorithm.cut(sender, self._round) if self.lane == "train" else None
        out = link.send(message, copies=copies, cut=cut, direction=direction, lane=self.lane)
        return out.rows if isinstance(out, Exact) else out

    def _send_each(self, me: Nodes, tier: str, value: Tensor, asker: Tensor, ids: Tensor) -> Tensor:
        """Each child's own entry of a value that has one per child of the askers."""
        counts = me.children
        if len(value) != int(counts.sum()):
            raise ProgramError(
                f"each= holds {len(value)} values for the {int(counts.sum())} children of {len(me)} {me.tier} nodes."
            )
        starts = torch.cumsum(counts, 0) - counts
        chosen = value[(starts[asker] + ids - self.tree.first(me.tier, me.ids)[asker]).to(value.device)]
        flat = Exact((chosen[:, None] if chosen.ndim == 1 else chosen.flatten(1)).to(self.task.dtype))
        self._send(flat, torch.ones_like(ids), me.tier, (me.tier, tier), "down")
        return chosen

    def _finite(self, tier: str, what: str, rows: Tensor | None, ids: Tensor, round: int) -> None:
        if rows is None or not rows.is_floating_point() or bool(torch.isfinite(rows).all()):
            return
        bad = ids[(~torch.isfinite(rows.reshape(len(ids), -1)).all(1)).nonzero()[:, 0].cpu()].tolist()
        named = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise DivergedError(
            f"round {round}: {what} of {tier} {named} is no longer finite ({len(bad)} of {len(ids)} nodes); "
            "the state of the round before remains. Lower the step sizes or the penalties."
        )


def _rows(message: Message) -> Rows | None:
    return message.rows if isinstance(message, Masked | Exact) else message


def _select(message: Message, answers: Tensor) -> Message:
    """Only the rows of those who answer."""
    rows = _rows(message)
    if rows is None or len(rows) == len(answers):
        return message
    here = answers.to(rows.device)
    if isinstance(message, Masked):
        return Masked(message.rows[here], message.mask[here])
    return Exact(rows[here]) if isinstance(message, Exact) else rows[here]


def _join(results: list[Any]) -> Any:
    """One answer from those of the chunks: rows below rows, item by item."""
    first = results[0]
    if first is None or len(results) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(results)
    if isinstance(first, Masked):
        return Masked(torch.cat([r.rows for r in results]), torch.cat([r.mask for r in results]))
    if isinstance(first, Exact):
        return Exact(torch.cat([r.rows for r in results]))
    return tuple(_join(list(items)) for items in zip(*results, strict=True))


@contextmanager
def _one_thread() -> Iterator[None]:
    """One intra-op thread, on which the bits of a row do not depend on its neighbours; the caller's number comes back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
