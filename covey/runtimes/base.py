"""What every runtime does alike: an ask is a cohort, an exchange and its replies. Only the exchange
differs.

The simulator exchanges rows with threads, the loopback runtime messages with other objects.
Whatever decides a bit, who is asked, what a link does to a row, in which order answers are added,
is decided here.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from covey import draws, native
from covey.data.shards import some
from covey.engine.task import Batches, Task
from covey.errors import DivergedError, ProgramError
from covey.kernel.algorithm import Algorithm, Program
from covey.kernel.call import Call
from covey.kernel.environment import Admission, Environment, Ideal
from covey.kernel.nodes import Cohort, Idle, Nodes
from covey.kernel.replies import Exact, Masked, Message, Replies
from covey.kernel.store import Frozen, Store
from covey.links.link import Ledger, Residuals
from covey.links.spec import LinkSpec
from covey.runtimes.clock import Clock
from covey.runtimes.contract import Lane, Runtime
from covey.runtimes.facts import Facts, Played
from covey.tree import Topology
from covey.types import Ids, Rows


@dataclass(frozen=True, eq=False)
class MessageKey:
    """What a message is: its link and direction, the program that it asks for or answers, and its
    number among the rows.
    """

    ends: tuple[str, str]
    direction: str
    program: str
    path: int
    number: int = 0

    @property
    def link(self) -> str:
        """The name of the link, such as "server-edge"."""
        return "-".join(self.ends)

    @property
    def sender(self) -> str:
        """The tier that sends it."""
        return self.ends[0 if self.direction == "down" else 1]


@dataclass(frozen=True, eq=False)
class Question:
    """One ask, before anything is sent: who runs, what they get, and which of them answer."""

    program: Program
    ends: tuple[str, str]
    round: int
    path: int
    askers: Ids
    """The ids of those who ask, [n]."""
    ids: Ids
    """The ids of those who run, [m]."""
    asker: Tensor
    """The position of each one's asker, [m]."""
    answers: Tensor
    """The positions of those who answer, [k]."""
    idle: Tensor | None
    """Who runs without having been asked, bool [m]; None for nobody."""
    rows: tuple[Message, ...]
    """What every asker sends to all its children, [n, ...] each."""
    each: tuple[Tensor, ...]
    """What every child gets for itself, [m, ...] each."""
    admission: Admission | None = None

    @cached_property
    def copies(self) -> Tensor:
        """To how many children each asker sends, [n]."""
        return torch.bincount(self.asker, minlength=len(self.askers))

    def key(self, direction: str, number: int = 0) -> MessageKey:
        """The key of one of its messages."""
        return MessageKey(self.ends, direction, self.program.__name__, self.path, number)


@dataclass(frozen=True, eq=False)
class Answers:
    """What came back: parts in id order, each a message or, for a program that answers several, a
    tuple of messages.

    A message may be `Deferred`: it is read when it is reduced.
    """

    parts: Sequence[Any]
    counted: Tensor | None = None
    """Which answers count, bool [k]; None: all do. Others have moved their sender's memory, and are
    left out of the replies.
    """


@dataclass(eq=False)
class Play:
    """The state of one play: nothing is left of it when the next begins."""

    round: int
    lane: Lane
    facts: Facts
    ledger: Ledger
    doubts: list[Doubt] = field(default_factory=list)

    @property
    def trains(self) -> bool:
        """Whether this is training, not scoring."""
        return self.lane == "train"


@dataclass(frozen=True, eq=False)
class Doubt:
    """Rows that may no longer be finite: whose they are, and a number for each that is finite only
    if the row is, [n].
    """

    tier: str
    text: str
    ids: Ids
    sums: Tensor


@dataclass
class BaseRuntime(Runtime):
    """A runtime whose nodes, one or all of a tree, keep their rows in one store.

    `start` are the initial rows, [seeds, P]. `wires` says of every link and direction what it does
    to rows.
    """

    algorithm: Algorithm
    tree: Topology
    task: Task
    wires: Mapping[tuple[str, str], LinkSpec]
    start: Rows
    seeds: tuple[int, ...] = (0,)
    idle: Idle = "skip"
    batches: Batches = "uniform"
    environment: Environment = field(default_factory=Ideal)

    def __post_init__(self) -> None:
        self.store = Store(dict(zip(self.tree.tiers, self.tree.sizes, strict=True)))
        self.start = self.start.to(self.task.device, self.task.dtype)
        self.clock = Clock()
        self._play = self._new_play(0, "train")
        self._storing = threading.Lock()
        self._last_cohort: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    # What a run uses

    def play(self, program: Program, rows: Rows, *, round: int, lane: Lane = "train") -> Played:
        """Run a program of the top tier; with no rows at all, every program below runs on none."""
        play = self._play = self._new_play(round, lane)
        if play.trains:
            self.environment.begin()
        self.clock.start()
        with one_thread(), torch.no_grad(), nullcontext() if play.trains else self.clock("scores"):
            me = Nodes(self, self.tree.tiers[0], torch.arange(len(rows)), round=round, path=0)
            answer = program(me, rows.clone())
            self._settle(me, answer)
        environment = None
        if play.trains and len(rows):
            environment = self.environment.read(me.call.elapsed)
        return play.facts.played(answer, environment, self.clock.take())

    def commit(self) -> None:
        """What nodes keep and what is held is good: a round that fails goes back to it."""
        self.store.commit()

    def rollback(self) -> None:
        """Go back to the last commit."""
        self.store.rollback()

    def forget(self) -> None:
        """Forget everything that nodes keep."""
        self.store = Store(dict(zip(self.tree.tiers, self.tree.sizes, strict=True)))

    def kept(self) -> dict[tuple[str, str], Tensor]:
        """(tier, name) of everything that nodes keep, with no rows of its shape and type, [0, ...]."""
        return {key: column.rows[:0] for key, column in self.store.columns.items()}

    def read(self, tier: str, name: str, label: str, copy: int) -> tuple[Tensor, Tensor, Tensor]:
        """(ids, rounds, rows) of what one seed's nodes keep, now or in a version held; ids count
        from 0.
        """
        nodes = self.nodes(tier, copy)
        ids, rounds, rows = self.store.columns[tier, name].read(label, nodes)
        return ids - nodes.start, rounds, rows

    def hold(self, label: str, copy: int, columns: Sequence[tuple[str, str]]) -> None:
        """Hold what one seed's nodes keep now in these (tier, name), in place of what was held
        under this label.
        """
        for tier, name in columns:
            self.store.columns[tier, name].hold(label, self.nodes(tier, copy))

    def release(self, label: str, copy: int) -> None:
        """Hold nothing of one seed under this label any more."""
        for (tier, _), column in self.store.columns.items():
            column.release(label, self.nodes(tier, copy))

    def freeze(self, copy: int) -> Iterator[Frozen]:
        """Everything that one seed's nodes keep and hold, for a checkpoint."""
        return self.store.freeze({tier: self.nodes(tier, copy) for tier in self.tree.tiers})

    def thaw(self, frozen: Frozen, copy: int) -> None:
        """Take over one entry of `freeze`; a ValueError if it cannot be one."""
        self.store.thaw(frozen, self.nodes(frozen.tier, copy))

    def report(self) -> dict[str, Any]:
        """How programs are run here, in words and numbers."""
        return {"runtime": type(self).__name__.lower(), "seeds": len(self.seeds)}

    # What nodes use

    @property
    def counts_moved(self) -> bool:
        """Whether the environment wants to know how many weights a node moved."""
        return not self.environment.ideal

    def initial(self, tier: str, ids: Ids) -> Rows:
        """The common initial row of each node's tree, [n, P]."""
        return self.start[self.tree.copy(tier, ids.to(self.start.device))]

    def examples(self, tier: str, ids: Ids) -> Tensor:
        """How many training examples all devices under each node hold, [n]."""
        return self.task.total("train", *self.tree.span(tier, ids))

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
        path = me.next_ask()
        with self._timed("cohorts"):
            question = self._question(me, program, path, rows, each, sample, where)
        answers = self.exchange(me, question)
        return self._replies(question, answers)

    @abstractmethod
    def exchange(self, me: Nodes, question: Question) -> Answers:
        """Let the children of `me` run the program and answer, over their links."""

    # Cohort

    def _question(
        self,
        me: Nodes,
        program: Program,
        path: int,
        rows: tuple[Message, ...],
        each: tuple[Tensor, ...],
        sample: Cohort,
        where: Tensor | None,
    ) -> Question:
        tier = self.tree.below(me.tier)
        if tier is None:
            raise ProgramError(f"a {me.tier} asked for {program.__name__}, but it has no children.")
        asking = torch.arange(len(me))
        if where is not None:
            asking = where.reshape(-1).nonzero()[:, 0].cpu()
        position, ids, answers, admission = self._cohort(me, tier, asking, sample, path)
        asker = asking[position]
        idle = self._idle(me, asker, len(ids), answers)
        own = tuple(self._own_entries(me, value, asker, ids) for value in each)
        return Question(
            program, (me.tier, tier), me.round, path, me.ids, asker=asker, ids=ids,
            answers=answers, idle=idle, rows=rows, each=own, admission=admission,
        )  # fmt: skip

    def _cohort(
        self, me: Nodes, tier: str, asking: Tensor, sample: Cohort, path: int
    ) -> tuple[Tensor, Tensor, Tensor, Admission | None]:
        """Who runs, as (position of the asker, child id), which of them answer, and what they are
        admitted with.
        """
        askers = me.ids[asking]
        if sample is None or isinstance(sample, Tensor):
            position, ids = self._children(me.tier, askers)
        else:
            self.tree.picks(
                me.tier, sample
            )  # also when nobody asks, so that a wrong number shows before the first round
            address = draws.keys(self.seeds, me.round, path, tier)[self.tree.copy(me.tier, askers)]
            position, ids = self.tree.cohort(me.tier, askers, sample=sample, address=address)
        if isinstance(sample, Tensor):
            if sample.dtype != torch.bool:
                raise ProgramError(
                    f"{me.tier}: sample= is {sample.dtype}; give a number, or a bool for each child."
                )
            chosen = self._own_entries(me, sample, asking[position], ids, argument="sample")
            position, ids = position[chosen], ids[chosen]
        everybody = sample is None
        admission = self.environment.admit(tier, ids, me.round) if self._play.trains else None
        if admission is not None and not bool(admission.asked.all()):
            position, ids, everybody = position[admission.asked], ids[admission.asked], False
        if self._play.trains:
            asked = ids if me.idle is None else ids[~me.idle[asking][position]]
            self._play.facts.asked(tier, asked)
        if everybody or self.idle == "skip" or not self._play.trains:
            return position, ids, torch.arange(len(ids)), admission
        position, children = self._children(me.tier, askers)
        return position, children, torch.isin(children, ids).nonzero()[:, 0], admission

    def _children(self, tier: str, ids: Ids) -> tuple[Tensor, Tensor]:
        """All children of these nodes; who asks every round asks for the same."""
        last = self._last_cohort.get(tier)
        if last is None or not torch.equal(last[0], ids):
            last = (ids, *self.tree.cohort(tier, ids, sample=None, address=0))
            self._last_cohort[tier] = last
        return last[1:]

    def _idle(self, me: Nodes, asker: Tensor, count: int, answers: Tensor) -> Tensor | None:
        """Who of those that run was not asked, or stands under a node that was not."""
        if self.idle == "skip":
            return None
        idle = torch.ones(count, dtype=torch.bool)
        idle[answers] = False
        return idle if me.idle is None else idle | me.idle[asker]

    def _own_entries(
        self, me: Nodes, value: Tensor, asker: Tensor, ids: Ids, argument: str = "each"
    ) -> Tensor:
        """Each child's own entry of a value that has one for every child of the askers, [m, ...]."""
        counts = me.children
        if len(value) != int(counts.sum()):
            raise ProgramError(
                f"{argument}= holds {len(value)} values for the {int(counts.sum())} children of {len(me)} {me.tier} nodes."
            )
        starts = torch.cumsum(counts, 0) - counts
        positions = starts[asker] + ids - self.tree.first(me.tier, me.ids)[asker]
        return value[positions.to(value.device)]

    # Replies

    def _replies(self, question: Question, answers: Answers) -> Any:
        """The answers that count, in id order."""
        answered = question.answers
        if answers.counted is not None:
            answered = answered[answers.counted]
        asker = question.asker[answered]
        child = question.ids[answered] - self.tree.first(question.ends[0], question.askers)[asker]
        askers = len(question.askers)

        def replies(messages: list[Any]) -> Replies:
            if answers.counted is not None:
                messages = [select(together(messages), answers.counted.nonzero()[:, 0])]
            parts = [
                message.rows if isinstance(message, Exact) else message for message in messages
            ]
            answered = [part for part in parts if part is not None]
            return Replies(answered or None, asker=asker, askers=askers, child=child)

        if isinstance(answers.parts[0], tuple):
            return tuple(replies(list(messages)) for messages in zip(*answers.parts, strict=True))
        return replies(list(answers.parts))

    # Links

    def _cut(self, key: MessageKey) -> float | None:
        """Below which size the sender's entries are sent as zeros."""
        return self.algorithm.cut(key.sender, self._play.round) if self._play.trains else None

    def _wire_keys(self, key: MessageKey, ids: Ids) -> Callable[[], Tensor]:
        """The keys of the draws that a codec makes for the rows of these senders."""

        def keys() -> Tensor:
            words = (
                self._play.round,
                key.path,
                "wire",
                key.link,
                key.direction,
                key.program,
                key.number,
            )
            each = draws.keys(self.seeds, *words)[self.tree.copy(key.sender, ids)].to(
                self.task.device
            )
            return draws.bits(each, self.tree.local(key.sender, ids).to(self.task.device), 1)[:, 0]

        return keys

    def _memory(self, key: MessageKey, ids: Ids) -> Residuals | None:
        """The residuals of these senders' earlier messages of this kind: an ordinary kept row,
        which is no model.
        """
        if not self.wires[key.link, key.direction].feedback or not self._play.trains:
            return None
        name = f"_lost {key.link} {key.direction} {key.program} {key.number}"
        round = self._play.round

        def keep(rows: Rows) -> None:
            with self._storing:
                self.store.put(key.sender, name, ids, rows, round)

        def recall(zeros: Rows) -> Rows:
            with self._storing:
                residual = self.store.get(key.sender, name, ids, zeros, 0)
            return zeros if residual is None else residual

        return Residuals(recall, keep)

    # What calls leave behind

    def _new_play(self, round: int, lane: Lane) -> Play:
        facts = Facts(self.tree)
        return Play(round, lane, facts, Ledger(facts.meters))

    def _settle(self, me: Nodes, answer: Any) -> None:
        """The end of a program at the top of what is played here."""
        self._record(me.tier, me.ids, me.call, me.idle)
        self._doubt(
            me.tier, "the new global model", answer if isinstance(answer, Tensor) else None, me.ids
        )
        with self._timed("links"):
            self._check(last=True)
            self._play.ledger.settle()

    def _record(self, tier: str, ids: Ids, call: Call, idle: Tensor | None) -> None:
        """Store what a call kept, and add up what it noted and worked."""
        play = self._play
        for name, rows in call.kept.items():
            self._doubt(tier, f"the kept {name!r}", rows, ids)
            with self._storing:  # workers take turns
                self.store.put(tier, name, ids, rows, play.round)
        if play.trains:
            for name, noted in call.notes.items():
                for values in noted:
                    self._doubt(tier, f"the note {name!r}", values, ids)
                    play.facts.notes.add(tier, name, ids, values, idle)
        play.facts.add(tier, ids, call, trains=play.trains)

    def _checked_answer(self, question: Question, ids: Ids, message: Message, call: Call) -> None:
        """An error if an answer is not one row per node; rows that are not finite are noted."""
        rows = rows_of(message)
        if rows is None:
            return
        tier, program = question.ends[1], question.program.__name__
        if rows.ndim != 2 or len(rows) != len(ids):
            shape = f"{rows.dtype} of shape {tuple(rows.shape)}"
            raise ProgramError(
                f"{tier}: {program} answered {shape} for {len(ids)} nodes; give float32 or float64 rows [n, width]."
            )
        if not any(rows is kept for kept in call.kept.values()):
            self._doubt(tier, f"the answer of {program}", rows, ids)

    def _timed(self, name: str, threads: int = 1) -> AbstractContextManager[None]:
        """Time `name`, except during scoring, which is timed as a whole."""
        return self.clock(name, threads) if self._play.trains else nullcontext()

    # Divergence

    def _doubt(self, tier: str, text: str, rows: Tensor | None, ids: Ids) -> None:
        """Note rows that are no longer finite; on a GPU, which would have to be waited for, all
        that may not be.
        """
        if rows is None or not rows.is_floating_point() or not rows.numel():
            return
        if rows.is_cuda:
            self._play.doubts.append(Doubt(tier, text, ids, rows.reshape(len(ids), -1).sum(1)))
        elif not native.finite(rows):
            finite = torch.isfinite(rows.reshape(len(ids), -1)).all(1)
            self._play.doubts.append(Doubt(tier, text, ids, torch.where(finite, 0.0, math.nan)))

    def _check(self, *, last: bool = False) -> None:
        """Raise an error that names the nodes whose rows are not finite; a GPU is asked at the end
        of a round only.
        """
        doubts = self._play.doubts
        if not doubts or (self.task.device.type == "cuda" and not last):
            return
        wrong = ~torch.isfinite(torch.cat([doubt.sums for doubt in doubts])).cpu()
        parts = torch.split(wrong, [len(doubt.ids) for doubt in doubts])
        certain = [
            (doubt, doubt.ids[part])
            for doubt, part in zip(doubts, parts, strict=True)
            if bool(part.any())
        ]
        doubts.clear()
        if certain:
            raise self._diverged(certain)

    def _diverged(self, certain: list[tuple[Doubt, Ids]]) -> DivergedError:
        tier, text = min(
            (doubt.tier, doubt.text) for doubt, _ in certain
        )  # whichever worker came first
        bad = (
            torch.cat([ids for doubt, ids in certain if (doubt.tier, doubt.text) == (tier, text)])
            .sort()
            .values
        )
        seeds = sorted({self.seeds[copy] for copy in self.tree.copy(tier, bad).tolist()})
        which = some(self.tree.local(tier, bad).tolist())
        if len(self.seeds) > 1:
            which += f" (seed {some(seeds)})"
        return DivergedError(
            f"round {self._play.round + 1}: {text} of {tier} {which} is no longer finite "
            f"({len(bad)} of {self.tree.size(tier)} nodes); "
            "the state of the round before remains. Lower the step sizes or the penalties."
        )


def check_carried(rows: Rows | None, key: MessageKey) -> None:
    """Refuse numbers of another type than a message can hold; on no rows too, so before the first
    round.
    """
    if rows is None or rows.dtype in (torch.float32, torch.float64):
        return
    asks = f"ask({key.program}) sends" if key.direction == "down" else f"{key.program} answers"
    raise ProgramError(
        f"{key.sender}: {asks} {rows.dtype}, but links carry float32 and float64 only; "
        "convert it first: x.to(w) has the model's type, x.double() holds whole numbers up to 2**53."
    )


def rows_of(message: Message) -> Rows | None:
    """The rows of a message of any kind."""
    return message.rows if isinstance(message, Masked | Exact) else message


def together(messages: list[Message]) -> Message:
    """Messages of one kind as one."""
    if isinstance(messages[0], Masked):
        both = [(message.rows, message.mask) for message in messages if isinstance(message, Masked)]
        return Masked(*(torch.cat(parts) for parts in zip(*both, strict=True)))
    parts = [rows for rows in map(rows_of, messages) if rows is not None]
    return torch.cat(parts) if parts else None


def select(message: Message, positions: Tensor) -> Message:
    """Only the rows at these positions, which are in order."""
    rows = rows_of(message)
    if rows is None or len(rows) == len(positions):
        return message
    chosen = positions.to(rows.device, non_blocking=True)
    if isinstance(message, Masked):
        return Masked(message.rows[chosen], message.mask[chosen])
    return Exact(rows[chosen]) if isinstance(message, Exact) else rows[chosen]


def flat(values: Tensor) -> Exact:
    """One row per child, as a link carries it."""
    return Exact(values[:, None] if values.ndim == 1 else values.flatten(1))


@contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op thread, on which the bits of a row do not depend on its neighbours; the caller's
    number comes back.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
