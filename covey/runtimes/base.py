"""The base of all runtimes: an ask is a cohort, an exchange and its replies.

Only the exchange differs: the simulator exchanges rows with threads, the loopback runtime messages
with other objects. Everything that decides a bit is in this module: who is asked, what a link does
to a row, in which order answers are added.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from covey import draws, native
from covey.data.shards import some
from covey.engine.task import Batches
from covey.errors import DivergedError, ProgramError
from covey.kernel.algorithm import Program
from covey.kernel.environment import Participation
from covey.kernel.moved import on_device
from covey.kernel.nodes import AskArguments, Call, Drawn, Idle, Nodes, Services
from covey.kernel.replies import Deferred, Exact, Masked, Message, Replies, rows_of
from covey.kernel.store.segments import RowForm
from covey.kernel.store.store import ColumnKey, Entry, Frozen, KeptRows, Store
from covey.links.link import Ledger, Residuals, Sending
from covey.links.meter import LowerEnds
from covey.runtimes.clock import Clock
from covey.runtimes.contract import Lane, Runtime
from covey.runtimes.facts import Played, SubtreeFacts
from covey.runtimes.spec import NodeSpec
from covey.runtimes.training_tree import training_tree
from covey.tree import Topology
from covey.types import Ids, Rows

if TYPE_CHECKING:
    from covey.runtimes.cuda.round_graphs import RoundTape


@dataclass(frozen=True, eq=False)
class MessageKey:
    """What identifies a message.

    It has a link, such as "server-edge", and a direction, the tier that sends it, the program that
    it asks for or answers, and a number among the rows of one ask.
    """

    link: str
    direction: str
    sender: str
    program: str
    path: int
    number: int = 0


@dataclass(frozen=True, eq=False)
class Crossing:
    """Rows that are sent over a link: those of some senders."""

    key: MessageKey
    message: Message
    senders: Ids
    """The ids of those who send, [n]."""
    copies: Tensor
    """To how many receivers each of them sends, [n]."""
    ends: LowerEnds
    reference: Rows | None = None
    """The rows that an update is the difference from."""
    heard: Callable[[Tensor], None] | None = None
    """Is called with the length of every row's message."""


@dataclass(frozen=True, eq=False)
class Question:
    """One ask, before anything is sent: who runs, what they get, and which of them answer."""

    program: Program
    above: str
    """The tier of those who ask."""
    tier: str
    """The tier of those who run."""
    round: int
    path: int
    askers: Ids
    """The ids of those who ask, [n]."""
    ids: Ids
    """The ids of those who run, [m]."""
    asker: Tensor
    """The position of each one's asker, [m]."""
    answers: Tensor
    """The positions of those who answer, in rising order, [k]."""
    idle: Tensor | None
    """Who runs without having been asked, bool [m]; None for nobody."""
    rows: tuple[Message, ...] = ()
    """What every asker sends to all its children, [n, ...] each."""
    each: tuple[Tensor, ...] = ()
    """What every child gets for itself, [m, ...] each."""
    admission: Participation | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the program gets besides its nodes, once `rows` are those of every child."""
        return (*self.rows, *self.each)

    def nodes(self, runtime: Services) -> Nodes:
        """Those who run."""
        round, path, idle = self.round, self.path, self.idle
        return Nodes(runtime, self.tier, self.ids, round=round, path=path, idle=idle)

    def key(self, direction: str, number: int = 0) -> MessageKey:
        """The key of one of its messages."""
        link = f"{self.above}-{self.tier}"
        sender = self.above if direction == "down" else self.tier
        return MessageKey(link, direction, sender, self.program.__name__, self.path, number)

    def down(self) -> list[Crossing]:
        """What it sends: rows of the askers to all their children, each child's own values."""
        copies = torch.bincount(self.asker, minlength=len(self.askers))
        ends = LowerEnds(self.tier, self.ids, self.asker)
        out = []
        for number, message in enumerate(self.rows):
            out.append(Crossing(self.key("down", number), message, self.askers, copies, ends))
        for values in self.each:
            senders = self.askers[self.asker]
            ends = LowerEnds(self.tier, self.ids, torch.arange(len(self.ids)))
            ones = torch.ones_like(self.ids)
            out.append(Crossing(self.key("down"), flat(values), senders, ones, ends))
        return out

    def only(self, there: Tensor | slice) -> Question:
        """The ask of some of those who run alone: a slice of them, or bool [m]."""
        if isinstance(there, slice):
            bounds = torch.tensor([there.start, there.stop])
            first, stop = torch.searchsorted(self.answers, bounds).tolist()
            answers = self.answers[first:stop] - there.start
        else:
            answering = torch.zeros(len(there), dtype=torch.bool)
            answering[self.answers] = True
            answers = answering[there].nonzero()[:, 0]
        return replace(
            self,
            ids=self.ids[there],
            asker=self.asker[there],
            answers=answers,
            idle=None if self.idle is None else self.idle[there],
            each=tuple(values[there] for values in self.each),
        )

    def up(self, message: Message, number: int, ids: Ids) -> Crossing:
        """One message of the answers of these nodes."""
        ends = LowerEnds(self.tier, ids, torch.arange(len(ids)))
        return Crossing(self.key("up", number), message, ids, torch.ones_like(ids), ends)


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers to a question: parts in id order.

    A part is a message or, for a program that answers several, a tuple of messages. A message may
    be `Deferred`: it is read when it is reduced.
    """

    parts: Sequence[Any]
    counted: Tensor | None = None
    """Which answers count, bool [k]; None: all do.

    The others have changed their sender's memory, and are left out of the replies.
    """
    present: Tensor | None = None
    """Which of those who should answer did, bool [k]; None: all did. The parts are theirs alone."""


@dataclass(frozen=True, eq=False)
class Suspect:
    """Rows that may not be finite, with the ids of their nodes.

    `sums` has a number for each row that is finite only if the row is, [n].
    """

    tier: str
    text: str
    ids: Ids
    sums: Tensor


@dataclass(eq=False)
class Suspects:
    """The rows of one play that may not be finite."""

    tree: Topology
    seeds: tuple[int, ...]
    round: int
    on_gpu: bool
    recorded: bool = False
    """Whether the play becomes a graph, so that no number is read before its end."""
    noted: list[Suspect] = field(default_factory=list)

    def note(self, tier: str, text: str, rows: Tensor, ids: Ids) -> None:
        """Note rows that are not finite.

        A GPU would have to be waited for: of rows on it, sums are noted whether finite or not.
        """
        if not rows.is_floating_point() or not rows.numel():
            return
        later = rows.is_cuda or self.recorded
        if not later and native.finite(rows):
            return
        by_node = rows.reshape(len(ids), -1)
        if later:
            sums = by_node.sum(1)
        else:
            finite = torch.isfinite(by_node).all(1)
            sums = torch.where(finite, 0.0, math.nan)
        self.noted.append(Suspect(tier, text, ids, sums))

    def check(self, *, last: bool = False) -> None:
        """Raise an error that names the nodes whose rows are not finite.

        A GPU is waited for at the end of a round only.
        """
        if not self.noted or ((self.on_gpu or self.recorded) and not last):
            return
        sums = torch.cat([suspect.sums for suspect in self.noted])
        bad = ~torch.isfinite(sums).cpu()
        diverged: dict[tuple[str, str], list[Ids]] = {}
        for suspect in self.noted:
            own, bad = bad[: len(suspect.ids)], bad[len(suspect.ids) :]
            if bool(own.any()):
                bad_ids = diverged.setdefault((suspect.tier, suspect.text), [])
                bad_ids.append(suspect.ids[own])
        self.noted.clear()
        if diverged:
            tier, text = min(diverged)  # in alphabetical order, whichever worker was first
            raise self._error(tier, text, torch.cat(diverged[tier, text]))

    def _error(self, tier: str, text: str, bad_ids: Ids) -> DivergedError:
        """The error for rows of these nodes."""
        bad_ids = bad_ids.sort().values
        nodes = some(self.tree.local(tier, bad_ids).tolist())
        if len(self.seeds) > 1:
            copies = self.tree.copy(tier, bad_ids).tolist()
            seeds = sorted({self.seeds[copy] for copy in copies})
            nodes += f" (seed {some(seeds)})"
        return DivergedError(
            f"round {self.round + 1}: {text} of {tier} {nodes} is no longer finite "
            f"({len(bad_ids)} of {self.tree.size(tier)} nodes); "
            "the state of the round before remains. Lower the step sizes or the penalties: "
            "`covey advise FILE --write` finds and writes them."
        )


@dataclass(eq=False)
class Play:
    """The state of one play; the next play begins with a new one."""

    round: int
    lane: Lane
    facts: SubtreeFacts
    ledger: Ledger
    suspects: Suspects
    trains: bool
    """Whether this is training, not scoring."""
    tape: RoundTape | None = None
    """What the round reads is put down on it, where the round is captured for a GPU."""


@dataclass(eq=False)
class BaseRuntime(Runtime):
    """A runtime whose nodes, one or all of a tree, keep their rows in one store."""

    spec: InitVar[NodeSpec]

    def __post_init__(self, spec: NodeSpec) -> None:
        self.algorithm = spec.algorithm
        self.tree = spec.tree
        self.task = spec.task
        self.wires = spec.wires
        self.start = spec.start.to(spec.task.device, spec.task.dtype)
        self.seeds = spec.seeds
        self.idle: Idle = spec.idle
        self.batches: Batches = spec.batches
        self.rates = spec.rates
        self.environment = spec.environment
        self.clock = Clock()
        self.forget()
        self._play = self._new_play(0, "train")
        self._storing = threading.Lock()
        self._last_children: dict[tuple[str, Lane], tuple[Ids, Tensor, Ids]] = {}
        if spec.training is None:
            examples = {}
            for tier in self.tree.tiers:
                examples[tier] = self.examples(tier, torch.arange(self.tree.size(tier)))
            self.training = training_tree(self.tree, examples)
        else:
            self.training = spec.training

    # What a run uses, as `Runtime` says

    def play(
        self,
        program: Program,
        rows: Rows,
        *,
        round: int,
        lane: Lane = "train",
    ) -> Played:
        """Run a program of the top tier; with no rows at all, every program below runs on none."""
        play = self._new_play(round, lane)
        self._play = play
        timed: AbstractContextManager[None] = nullcontext()
        if play.trains:
            self.environment.begin()
        else:
            timed = self.clock("scores")
        self.clock.start()
        if getattr(program, "__self__", None) is self.algorithm:  # with its rates of this round
            program = getattr(self.rates.of(self.algorithm, round), program.__name__)
        with one_thread(), torch.no_grad(), timed:
            ids = torch.arange(len(rows))
            me = Nodes(self, self.tree.tiers[0], ids, round=round, path=0)
            answer = self._answer_of(me, program, rows)
            with self._timed("links"):
                play.suspects.check(last=True)
                play.ledger.settle()
            facts = play.facts
            if len(rows):
                facts = self._all_facts(facts, answer)
        environment = None
        devices: dict[str, Tensor] = {}
        if play.trains and len(rows):
            waited = torch.zeros(len(rows), 2, dtype=torch.float64) + me.call.elapsed
            environment, devices = self.environment.read(waited)
        seconds = self.clock.take()
        return facts.played(answer, environment, seconds, devices)

    def _all_facts(self, facts: SubtreeFacts, answer: Any) -> SubtreeFacts:
        """The facts of all processes that play together."""
        return facts

    def _answer_of(self, me: Nodes, program: Program, rows: Rows) -> Any:
        """The answer of the top tier's program, with everything that it did counted."""
        answer = program(me, rows.clone())
        if self.task.device.type == "cuda":
            with self._timed("training"):  # most of what it still has to do
                torch.cuda.synchronize(self.task.device)
        self._record(me.tier, me.ids, me.call, me.idle)
        if isinstance(answer, Tensor):
            self._play.suspects.note(me.tier, "the new global model", answer, me.ids)
        return answer

    def commit(self) -> None:
        self.store.commit()

    def rollback(self) -> None:
        self.store.rollback()

    def forget(self) -> None:
        """Forget everything that nodes keep."""
        self.store_in(None)

    def store_in(self, folder: Path | None, form: RowForm = "dense") -> None:
        """Forget everything that nodes keep; from here on they keep it in this form.

        It lies in files of a folder, or in memory.
        """
        sizes = dict(zip(self.tree.tiers, self.tree.sizes, strict=True))
        self.store = Store(sizes, folder=folder, form=form)
        if folder is not None:
            self.disk = self.store

    def kept(self) -> dict[ColumnKey, Tensor]:
        columns = self.store.columns
        return {key: column.template for key, column in columns.items()}

    def read(self, tier: str, name: str, label: str, copy: int) -> KeptRows:
        nodes = self.nodes(tier, copy)
        column = self.store.columns[tier, name]
        ids, rounds, rows = column.read(label, nodes)
        return ids - nodes.start, rounds, rows

    def hold(self, label: str, copy: int, columns: Sequence[ColumnKey]) -> None:
        for tier, name in columns:
            column = self.store.columns[tier, name]
            column.hold(label, self.nodes(tier, copy))

    def release(self, label: str, copy: int) -> None:
        for key, column in self.store.columns.items():
            tier, _ = key
            column.release(label, self.nodes(tier, copy))

    def freeze(self, copy: int) -> Iterator[Frozen]:
        """Everything that one seed's nodes keep and hold, for a checkpoint."""
        nodes = {tier: self.nodes(tier, copy) for tier in self.tree.tiers}
        return self.store.freeze(nodes)

    def thaw(self, frozen: Frozen, copy: int) -> None:
        """Take over one entry of `freeze`; a ValueError if it cannot be one."""
        nodes = self.nodes(frozen.tier, copy)
        self.store.thaw(frozen, nodes)

    def report(self) -> dict[str, Any]:
        return {"runtime": type(self).__name__.lower(), "seeds": len(self.seeds)}

    # What nodes use

    @property
    def members(self) -> Topology:
        """The tree of those who can be asked now: only nodes with examples in training."""
        if self._play.trains:
            return self.training
        return self.tree

    def initial(self, tier: str, ids: Ids) -> Rows:
        """The common initial row of each node's tree, [n, P], which the caller may change."""
        if len(self.start) == 1:
            return self.start.repeat(len(ids), 1)
        ids = ids.to(self.start.device)
        copy = self.tree.copy(tier, ids)
        return self.start[copy]

    def examples(self, tier: str, ids: Ids) -> Tensor:
        """How many training examples all devices under each node hold, [n]."""
        first, stop = self.tree.span(tier, ids)
        return self.task.examples.total("train", first, stop)

    def ask(self, me: Nodes, ask: AskArguments) -> Any:
        """Run a program on children of `me`; the contract is that of `Nodes.ask`."""
        tape = self._play.tape
        doing: AbstractContextManager[None] = nullcontext()
        if tape is not None:
            doing = tape.program(running=False)
        with doing:
            with self._timed("cohorts"):
                question = self._question(me, ask)
            if tape is not None:
                tape.asked(me, ask, question)
            answers = self.exchange(me, question)
            return self._replies(question, answers)

    @abstractmethod
    def exchange(self, me: Nodes, question: Question) -> Answers:
        """Let the children of `me` run the program and answer, over their links."""

    # Cohort

    def _question(self, me: Nodes, ask: AskArguments) -> Question:
        """An ask with the nodes that run for it."""
        program = ask.program
        tier = self.tree.below(me.tier)
        if tier is None:
            raise ProgramError(f"a {me.tier} asked for {program.__name__}, but it has no children.")
        asking = torch.arange(len(me))
        if ask.where is not None:
            where = me.in_main_memory(ask.where)
            asking = where.reshape(-1).nonzero()[:, 0]
        position, ids, answers, admission = self._those_who_run(me, ask, tier, asking)
        asker = asking[position]
        idle = None
        if self.idle == "train":
            idle = torch.ones_like(asker, dtype=torch.bool)
            idle[answers] = False
            if me.idle is not None:
                idle = idle | me.idle[asker]
        return Question(
            program,
            me.tier,
            tier,
            round=self._play.round,
            path=ask.path,
            askers=me.ids,
            ids=ids,
            asker=asker,
            answers=answers,
            idle=idle,
            rows=ask.rows,
            each=tuple(self._own_entries(me, value, asker, ids) for value in ask.each),
            admission=admission,
        )

    def _those_who_run(
        self, me: Nodes, ask: AskArguments, tier: str, asking: Tensor
    ) -> tuple[Tensor, Ids, Tensor, Participation | None]:
        """Who runs: (positions of their askers, ids, positions of those who answer, admission)."""
        position, ids = self._sampled(me, ask, tier, asking)
        if not self._play.trains:
            return position, ids, torch.arange(len(ids)), None
        everybody = ask.sample is None
        admission = self.environment.admit(tier, ids, self._play.round)
        if admission is not None and not bool(admission.asked.all()):
            position = position[admission.asked]
            ids = ids[admission.asked]
            everybody = False
        asked = ids
        if me.idle is not None:
            asked = ids[~me.idle[asking][position]]
        self._play.facts.asked(tier, asked)
        if everybody or self.idle == "skip":
            return position, ids, torch.arange(len(ids)), admission
        position, children = self._children(me.tier, me.ids[asking])
        answers = torch.isin(children, ids).nonzero()[:, 0]
        return position, children, answers, admission

    def _sampled(
        self, me: Nodes, ask: AskArguments, tier: str, asking: Tensor
    ) -> tuple[Tensor, Ids]:
        """The children that `sample` names: (position of the asker, child id)."""
        sample = ask.sample
        askers = me.ids[asking]
        if isinstance(sample, Drawn):
            if not len(askers):
                return sample.ids[:0], sample.ids[:0]
            # Those of the drawn nodes that are children of the askers.
            first = self.tree.first(me.tier, askers)
            stop = first + self.tree.counts(me.tier, askers)
            position = torch.searchsorted(first, sample.ids, right=True) - 1
            own = (position >= 0) & (sample.ids < stop[position])
            return position[own], sample.ids[own]
        if isinstance(sample, Tensor):
            if sample.dtype != torch.bool:
                fix = "give a number, or a bool for each child"
                raise ProgramError(f"{me.tier}: sample= is {sample.dtype}; {fix}.")
            position, ids = self._children(me.tier, askers)
            asker = asking[position]
            chosen = self._own_entries(me, sample, asker, ids, argument="sample")
            return position[chosen], ids[chosen]
        if sample is None:
            return self._children(me.tier, askers)
        # Also when nobody asks, so that a wrong number is an error before the first round.
        self.members.picks(me.tier, sample)
        copy = self.tree.copy(me.tier, askers)
        by_seed = draws.keys(self.seeds, self._play.round, ask.path, tier)
        address = by_seed[copy]
        return self.members.cohort(me.tier, askers, sample=sample, address=address)

    def _children(self, tier: str, ids: Ids) -> tuple[Tensor, Tensor]:
        """All children of these nodes, cached: most programs ask the same children every round."""
        key = (tier, self._play.lane)
        last = self._last_children.get(key)
        if last is None or not torch.equal(last[0], ids):
            last = (ids, *self.members.cohort(tier, ids, sample=None, address=0))
            self._last_children[key] = last
        _, position, children = last
        return position, children

    def _own_entries(
        self,
        me: Nodes,
        value: Tensor,
        asker: Tensor,
        ids: Ids,
        argument: str = "each",
    ) -> Tensor:
        """The entries of these children in a value with one for each child of `me`, [m, ...]."""
        counts = me.children
        total = int(counts.sum())
        if len(value) != total:
            children = f"the {total} children of {len(me)} {me.tier} nodes"
            raise ProgramError(f"{argument}= holds {len(value)} values for {children}.")
        starts = torch.cumsum(counts, 0) - counts
        positions = starts[asker] + self.members.child_number(me.tier, me.ids, asker, ids)
        return value[positions.to(value.device)]

    # Replies

    def _replies(self, question: Question, answers: Answers) -> Any:
        """The answers that count, in id order."""
        answered = question.answers
        if answers.present is not None:
            answered = answered[answers.present]
        if answers.counted is not None:
            answered = answered[answers.counted]
        asker = question.asker[answered]
        ids = question.ids[answered]
        child = self.members.child_number(question.above, question.askers, asker, ids)

        def replies(messages: list[Any]) -> Replies:
            if answers.counted is not None:
                positions = answers.counted.nonzero()[:, 0]
                messages = [select(together(messages), positions)]
            parts = []
            for message in messages:
                rows = message.rows if isinstance(message, Exact) else message
                if rows is not None:
                    parts.append(rows)
            return self._replies_of(question, parts or None, asker, child)

        if isinstance(answers.parts[0], tuple):
            by_number = zip(*answers.parts, strict=True)
            return tuple(replies(list(messages)) for messages in by_number)
        return replies(list(answers.parts))

    def _replies_of(
        self,
        question: Question,
        parts: list[Rows | Masked | Deferred] | None,
        asker: Tensor,
        child: Tensor,
    ) -> Replies:
        """The replies that consist of these parts.

        Each answer has the position of its asker and its number among the asker's children.
        """
        return Replies(parts, asker=asker, askers=len(question.askers), child=child)

    # Links

    def _sending(self, crossing: Crossing) -> Sending:
        """A message that is to cross, with what its senders have beside it."""
        key = crossing.key
        play = self._play
        check_carried(rows_of(crossing.message), key)
        cut = None
        if play.trains:
            cut = self.rates.of(self.algorithm, play.round).cut(key.sender, play.round)
            if play.tape is not None:
                play.tape.cut(key.sender, cut)
        return Sending(
            crossing.message,
            cut=cut,
            reference=crossing.reference,
            keys=self._wire_keys(key, crossing.senders),
            memory=self._memory(crossing),
        )

    def _wire_keys(self, key: MessageKey, ids: Ids) -> Callable[[], Tensor]:
        """The keys of the draws that a codec makes for the rows of these senders."""

        def keys() -> Tensor:
            if self._play.tape is not None:
                self._play.tape.refuse("a codec draws at random")
            message = (key.link, key.direction, key.program, key.number)
            by_seed = draws.keys(self.seeds, self._play.round, key.path, "wire", *message)
            device = self.task.device
            addresses = by_seed[self.tree.copy(key.sender, ids)].to(device)
            bits = draws.bits(addresses, self.tree.local(key.sender, ids).to(device), 1)
            return bits[:, 0]

        return keys

    def _memory(self, crossing: Crossing) -> Residuals | None:
        """The residuals of the senders' earlier messages of this kind.

        A residual is an ordinary kept row, which is no model. A node whose message has no receiver
        sends nothing, and its residual stays.
        """
        key = crossing.key
        wire = self.wires[key.link, key.direction]
        if not wire.feedback or not self._play.trains:
            return None
        if self._play.tape is not None:
            self._play.tape.refuse("a link has error feedback")
        name = residual_name(key)
        round = self._play.round
        ids = crossing.senders

        def keep(rows: Rows) -> None:
            senders = ids
            sends = crossing.copies > 0
            if not bool(sends.all()):
                senders = ids[sends]
                rows = rows[sends.to(rows.device)]
            if len(senders):
                with self._storing:
                    self.store.put(key.sender, name, senders, rows, round)

        def recall(zeros: Rows) -> Rows:
            with self._storing:
                residual = self.store.get(key.sender, name, ids, zeros, 0)
            return zeros if residual is None else residual

        return Residuals(recall, keep)

    # The record of calls

    def _new_play(self, round: int, lane: Lane) -> Play:
        facts = SubtreeFacts(self.tree)
        ledger = Ledger(facts.meters, facts.node_bytes)
        on_gpu = self.task.device.type == "cuda"
        suspects = Suspects(self.tree, self.seeds, round, on_gpu)
        return Play(round, lane, facts, ledger, suspects, trains=lane == "train")

    def _record(self, tier: str, ids: Ids, call: Call, idle: Tensor | None) -> None:
        """Store what a call kept, and add up what it noted and worked."""
        play = self._play
        for name, rows in call.kept.items():
            self._play.suspects.note(tier, f"the kept {name!r}", rows, ids)
            if play.tape is not None:
                play.tape.keep(tier, name, ids, rows)
                continue
            with self._storing:  # workers take turns
                self.store.put(tier, name, ids, rows, play.round)
        if play.tape is not None:
            play.tape.worked(call)
        self._add_facts(tier, ids, call, idle)

    def _add_facts(self, tier: str, ids: Ids, call: Call, idle: Tensor | None) -> None:
        """Add up what a call noted and worked."""
        play = self._play
        if play.trains:
            for name, noted in call.notes.items():
                for values in noted:
                    self._play.suspects.note(tier, f"the note {name!r}", values, ids)
                    if play.tape is not None:
                        play.tape.note(tier, name, ids, values)
                        continue
                    play.facts.notes.add(tier, name, ids, values, idle)
        play.facts.add(tier, ids, call, trains=play.trains)

    def _checked_answer(self, question: Question, ids: Ids, message: Message, call: Call) -> None:
        """Raise unless an answer is one row per node; note rows that are not finite."""
        rows = rows_of(message)
        if rows is None:
            return
        tier = question.tier
        program = question.program.__name__
        if rows.ndim != 2 or len(rows) != len(ids):
            answer = f"{rows.dtype} of shape {tuple(rows.shape)} for {len(ids)} nodes"
            fix = "give float32 or float64 rows [n, width]"
            raise ProgramError(f"{tier}: {program} answered {answer}; {fix}.")
        if id(rows) not in map(id, call.kept.values()):  # those were checked when they were kept
            self._play.suspects.note(tier, f"the answer of {program}", rows, ids)

    def _timed(self, name: str, threads: int = 1) -> AbstractContextManager[None]:
        """Time `name`, except during scoring, which is timed as a whole."""
        if not self._play.trains:
            return nullcontext()
        return self.clock(name, threads)


def check_carried(rows: Rows | None, key: MessageKey) -> None:
    """Raise unless the numbers are of a type that links carry.

    It is checked on no rows too, and so before the first round.
    """
    if rows is None or rows.dtype in (torch.float32, torch.float64):
        return
    sends = f"{key.program} answers"
    if key.direction == "down":
        sends = f"ask({key.program}) sends"
    raise ProgramError(
        f"{key.sender}: {sends} {rows.dtype}, but links carry float32 and float64 only; "
        "convert it first: x.to(w) has the model's type, "
        "x.double() holds whole numbers up to 2**53."
    )


def together(messages: list[Message]) -> Message:
    """Messages of one kind as one."""
    all_rows = map(rows_of, messages)
    parts = [rows for rows in all_rows if rows is not None]
    if not parts:
        return None
    rows = torch.cat(parts)
    masks = [message.mask for message in messages if isinstance(message, Masked)]
    if masks:
        return Masked(rows, torch.cat(masks))
    return rows


def select(message: Message, positions: Tensor) -> Message:
    """Only the rows at these positions, which are in order."""
    rows = rows_of(message)
    if rows is None or len(rows) == len(positions):
        return message
    chosen = on_device(positions, rows.device)
    if isinstance(message, Masked):
        return Masked(message.rows[chosen], message.mask[chosen])
    if isinstance(message, Exact):
        return Exact(rows[chosen])
    return rows[chosen]


def residual_name(key: MessageKey) -> str:
    """The name under which a sender keeps the residual of its messages of one kind."""
    return f"_lost {key.link} {key.direction} {key.program} {key.number}"


def flat(values: Tensor) -> Exact:
    """One row per child, as a link carries it."""
    if values.ndim == 1:
        return Exact(values[:, None])
    return Exact(values.flatten(1))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one intra-op thread, where the bits of a row do not depend on other rows.

    The caller's number of threads is restored.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def part_of(frozen: Frozen, nodes: slice) -> Frozen:
    """The rows and entries of some nodes of a column; their ids stay."""
    parts = {}
    for label, entry in frozen.entries.items():
        own = (entry.ids >= nodes.start) & (entry.ids < nodes.stop)
        parts[label] = Entry(
            ids=entry.ids[own],
            rounds=entry.rounds[own],
            places=entry.places[own],
        )
    every_place = torch.cat([part.places for part in parts.values()])
    places = torch.unique(every_place)
    entries = {}
    for label, part in parts.items():
        new_places = torch.searchsorted(places, part.places)
        entries[label] = Entry(part.ids, part.rounds, new_places)
    rows = frozen.rows[places.to(frozen.rows.device)]
    return Frozen(frozen.tier, frozen.name, rows, entries)
