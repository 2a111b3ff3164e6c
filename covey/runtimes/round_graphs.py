"""A whole round as one CUDA graph: the programs of all tiers, and the links between them.

It is possible where the same nodes run in every round: all are asked, or those not asked train
too. The first round is run as usual on static memory, and what it reads is put down on a tape: the
keys of draws, what nodes recall, numbers that go to the GPU. The second round is captured on the
same memory. From then on a round fills that memory, replays the graph, and reads everything that
it counted in one copy. A round that does anything else is refused, and `reason` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from covey import draws
from covey.engine.task import Batch, PartScore
from covey.kernel import moved
from covey.kernel.algorithm import Program
from covey.kernel.call import Call
from covey.kernel.nodes import Nodes
from covey.links.link import Entry, Ledger, Messages, Route, by_kind
from covey.links.node_bytes import LowerEnds
from covey.runtimes.cuda_graphs import Compared, Recalled, Replay, Watched, Work
from covey.types import Ids, Rows

if TYPE_CHECKING:
    from covey.runtimes.base import AskArguments, Play, Question, Suspect
    from covey.runtimes.simulator import Simulator

_VARIANTS = 4
"""Graphs of a round; they differ in how the round's number compares, and in cuts."""
_DRAWS = 4096
"""The max number of draws in a round that is captured."""
_SHARE = 16
"""A graph holds the rows of a round for good: they are at most 1 / so many of a GPU's memory."""


class Refused(RuntimeError):
    """A round cannot be captured; the text says why."""


class RoundNodes(Nodes):
    """Nodes whose program is captured as a part of a round."""

    def __init__(
        self,
        runtime: Simulator,
        tape: RoundTape,
        tier: str,
        ids: Ids,
        *,
        path: int,
        idle: Tensor | None,
    ) -> None:
        self._tape = tape
        self._services = runtime
        super().__init__(runtime, tier, ids, round=tape.round, path=path, idle=idle)

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

    @cached_property
    def device_ids(self) -> Ids:
        return self._tape.constant(self.ids)

    @property
    def count(self) -> Tensor:
        if self.leaf:
            return super().count
        task = self._services.task
        counts = self._services.examples(self.tier, self.ids)
        return self._tape.constant(counts[:, None].to(task.dtype))

    def reads(self, reason: str) -> None:
        self._tape.refuse(reason)

    def loss(self, rows: Rows, batch: Batch | None) -> Tensor:
        if batch is None:
            self._tape.refuse("a program takes the loss of all examples")
        return super().loss(rows, batch)

    def evaluate(self, rows: Rows, part: str, **options: Any) -> PartScore:
        self._tape.refuse("a program scores models")

    def age(self, name: str) -> Tensor:
        self._tape.refuse("a program asks for the age of what it keeps")

    def address(self, *words: int | str) -> draws.Address:
        keys = self._tape.keys(self._path, self.tier, words)
        if len(keys) == 1:
            return keys.expand(len(self))
        return keys[self._services.tree.copy(self.tier, self.device_ids)]

    def recall(self, name: str, default: Rows | None = None, since: Any = 0) -> Any:
        if name in self.call.kept:
            return self.call.kept[name]
        return self._tape.recall(self.tier, name, self.ids, default, since)


class _Recall(NamedTuple):
    """Rows that some nodes recall from before the round; `since` is None for the present round."""

    tier: str
    name: str
    ids: Ids
    since: int | None
    memory: Recalled


class _Asked(NamedTuple):
    """One ask: who asked what, and under which ask those stood."""

    tier: str
    ids: Ids
    ask: AskArguments
    question: Question
    above: int | None
    part: slice


class _Noted(NamedTuple):
    """Figures that nodes noted, and the ask and the chunk in which they ran."""

    tier: str
    name: str
    ids: Ids
    values: Tensor
    asked: int | None
    part: slice


@dataclass(eq=False)
class RoundTape:
    """Everything that a round reads from outside, in the order in which it reads it.

    While it is `recording`, memory is made for every read. Afterwards the reads of another run of
    the same programs get the same memory in the same order.
    """

    runtime: Simulator
    round: int
    rows: Rows
    recording: bool = True
    in_program: bool = True
    decisions: list[Compared] = field(default_factory=list)
    """The comparisons of the round's number."""
    words: list[tuple[Any, ...]] = field(default_factory=list)
    recalls: list[_Recall] = field(default_factory=list)
    cuts: dict[str, float | None] = field(default_factory=dict)
    asks: list[_Asked] = field(default_factory=list)
    positions: list[tuple[int, slice, Tensor]] = field(default_factory=list)
    """The ask, the chunk, and the memory of the positions of those that answer."""

    def __post_init__(self) -> None:
        device = self.runtime.task.device
        shape = (_DRAWS, len(self.runtime.seeds))
        self._keys = torch.zeros(shape, dtype=torch.int64, device=device)
        self._constants: list[tuple[Tensor, Tensor]] = []  # in main memory, on the device
        self.rewind()

    def rewind(self) -> None:
        """Begin again, before the programs run."""
        self.compared: list[Compared] = []
        if self.recording:
            self.compared = self.decisions
        self.kept: dict[tuple[str, str], list[tuple[Ids, Rows]]] = {}
        self.noted: list[_Noted] = []
        self.sent: list[tuple[int | None, slice]] = []
        """Of each message, the ask and the chunk that it answers; None for those going down."""
        self.stack: list[tuple[int | None, slice]] = [(None, slice(None))]
        self._drawn = 0
        self._taken = 0
        self._recalled = 0
        self._asked = 0
        self._positioned = 0

    def refuse(self, reason: str) -> NoReturn:
        """End the attempt."""
        raise Refused(reason)

    # Reads

    def constant(self, numbers: Tensor) -> Tensor:
        """Numbers that are the same in every round, on the device."""
        if any(numbers is memory for _, _, memory in self.positions):
            return numbers
        if self.recording:
            copy = numbers.to(self.runtime.task.device, non_blocking=True, copy=True)
            self._constants.append((numbers.clone(), copy))
        if self._taken >= len(self._constants):
            self.refuse("its programs do not do the same in every round")
        wanted, copy = self._constants[self._taken]
        self._taken += 1
        if not torch.equal(wanted, numbers):
            self.refuse("the numbers that go to the GPU change from round to round")
        return copy

    def keys(self, path: int, tier: str, words: tuple[int | str, ...]) -> Tensor:
        """The keys of a draw, one for each seed."""
        number = self._drawn
        self._drawn += 1
        if self.recording:
            if number >= _DRAWS:
                self.refuse(f"it draws more than {_DRAWS} times")
            self.words.append((path, tier, *words))
            self._keys[number].copy_(self._key(self.words[number]), non_blocking=True)
        return self._keys[number]

    def _key(self, words: tuple[Any, ...]) -> Tensor:
        return draws.keys(self.runtime.seeds, self.round, *words)

    def recall(self, tier: str, name: str, ids: Ids, default: Rows | None, since: Any) -> Any:
        """What nodes kept earlier in this round or before it, else `default`."""
        for owners, rows in self.kept.get((tier, name), []):
            if torch.equal(owners, ids):
                return rows
            if bool(torch.isin(ids, owners).any()):
                self.refuse(f"nodes recall {name!r} in other groups than they kept it")
        if default is None:
            self.refuse(f"a program recalls {name!r} without a default")
        if self.recording:
            self.recalls.append(self._new_recall(tier, name, ids, default, since))
        memory = self.recalls[self._recalled].memory
        self._recalled += 1
        ones = [1] * (default.ndim - 1)
        fresh = memory.fresh.view(len(ids), *ones)
        return torch.where(fresh, memory.rows, default)

    def _new_recall(self, tier: str, name: str, ids: Ids, default: Rows, since: Any) -> _Recall:
        template = self.runtime.kept().get((tier, name))
        device = self.runtime.task.device
        kinds = {device.type, default.device.type}
        if template is None or len(kinds | {template.device.type}) > 1:
            self.refuse(f"a program recalls {name!r}, which is not kept on the GPU")
        first = None
        if not isinstance(since, Watched):
            first = int(since)
        recall = _Recall(tier, name, ids, first, Recalled(template, len(ids), device))
        self._fill_recall(recall)
        return recall

    def _fill_recall(self, recall: _Recall) -> None:
        since = recall.since
        if since is None:
            since = self.round
        column = self.runtime.store.columns[recall.tier, recall.name]
        recall.memory.fill(column, recall.ids, since)

    def cut(self, tier: str, value: float | None) -> None:
        """The cut of rows from a tier, a number inside the graph."""
        self.cuts[tier] = value

    # Asks

    def asked(self, me: Nodes, ask: AskArguments, question: Question) -> None:
        """An ask begins."""
        if self.recording:
            self._check_ask(ask)
            above, part = self.stack[-1]
            self.asks.append(_Asked(me.tier, me.ids, ask, question, above, part))
        elif self._asked >= len(self.asks):
            self.refuse("its programs do not ask the same in every round")
        self._asked += 1

    def _check_ask(self, ask: AskArguments) -> None:
        if ask.each:
            self.refuse("a program sends every child a value of its own")
        if isinstance(ask.sample, Tensor):
            self.refuse("a program computes who is asked")
        if ask.sample is not None and self.runtime.idle == "skip":
            self.refuse("other nodes are asked in every round")

    @contextmanager
    def chunk(self, question: Question, part: slice) -> Iterator[None]:
        """Some of those asked run their program."""
        self.stack.append((self._number_of(question), part))
        try:
            yield
        finally:
            self.stack.pop()

    def _number_of(self, question: Question) -> int:
        """The number of the ask that is under way: the last one with this path."""
        for number in reversed(range(len(self.asks))):
            known = self.asks[number].question
            if known.path == question.path and known.ends == question.ends:
                return number
        raise AssertionError("no such ask")

    @contextmanager
    def program(self, *, running: bool) -> Iterator[None]:
        """Whether what happens now is a program's or the runtime's doing."""
        before = self.in_program
        self.in_program = running
        try:
            yield
        finally:
            self.in_program = before

    def answering(self, positions: Tensor) -> Tensor:
        """The positions of those in a chunk that answer, on the device."""
        if self.recording:
            number, part = self.stack[-1]
            assert number is not None
            memory = positions.to(self.runtime.task.device, non_blocking=True, copy=True)
            self.positions.append((number, part, memory))
        _, _, memory = self.positions[self._positioned]
        self._positioned += 1
        return memory

    # Writes

    def keep(self, tier: str, name: str, ids: Ids, rows: Rows) -> None:
        """Rows that nodes keep; of rows kept twice in a round the last ones count."""
        entries = self.kept.setdefault((tier, name), [])
        for number, (owners, _) in enumerate(entries):
            if torch.equal(owners, ids):
                entries[number] = (ids, rows)
                return
            if bool(torch.isin(ids, owners).any()):
                self.refuse(f"nodes keep {name!r} in other groups than before")
        entries.append((ids, rows))

    def crossed(self, direction: str, count: int) -> None:
        """Messages have crossed a link."""
        source: tuple[int | None, slice] = (None, slice(None))
        if direction == "up":
            source = self.stack[-1]
        self.sent += [source] * count

    def worked(self, call: Call) -> None:
        """A call has ended."""
        if isinstance(call.gradients, Tensor):
            self.refuse("its nodes take numbers of steps that it computes")

    def note(self, tier: str, name: str, ids: Ids, values: Tensor) -> None:
        """A figure of some nodes."""
        number, part = self.stack[-1]
        self.noted.append(_Noted(tier, name, ids, values, number, part))

    # Another round

    def fits(self, round: int) -> bool:
        """Whether the programs would decide the same in this round, and cut as much."""
        for operation, other, result in self.decisions:
            if bool(operation(round, other)) != result:
                return False
        algorithm = self.runtime.algorithm
        return all(algorithm.cut(tier, round) == cut for tier, cut in self.cuts.items())

    def fill(self, round: int, rows: Rows, questions: Sequence[Question] | None) -> None:
        """Fill in everything that a round reads, without waiting for the GPU."""
        self.round = round
        self.rows.copy_(rows)
        if self.words:
            keys = torch.stack([self._key(words) for words in self.words])
            self._keys[: len(keys)].copy_(keys, non_blocking=True)
        for recall in self.recalls:
            self._fill_recall(recall)
        if questions is None:
            return
        for number, part, memory in self.positions:
            positions = answering_in(questions[number], part)
            memory.copy_(positions, non_blocking=True)


def answering_in(question: Question, part: slice) -> Tensor:
    """The positions in a chunk of those that answer."""
    answering: Tensor = question.answers
    inside = (answering >= part.start) & (answering < part.stop)
    return answering[inside] - int(part.start)


@dataclass(eq=False)
class _Variant:
    """A round that was recorded, and perhaps captured."""

    tape: RoundTape
    play: Play
    """What was counted when it was recorded: all but the numbers themselves."""
    replay: Replay | None = None

    @cached_property
    def layout(self) -> _Layout:
        """Where its numbers are."""
        return _Layout.of(self.play, self.tape)

    @cached_property
    def groups(self) -> list[_Group]:
        """Its messages, by kind; each kind is counted at once."""
        entries = self.play.ledger.entries
        places = self.layout.entries
        groups = []
        for numbers in by_kind(entries):
            own = [entries[number] for number in numbers]
            groups.append(_Group.of(own, [places[number] for number in numbers]))
        return groups

    @property
    def changes(self) -> bool:
        """Whether those who answer differ from round to round."""
        return any(asked.ask.sample is not None for asked in self.tape.asks)


class Rounds:
    """The captured rounds of one simulator."""

    def __init__(
        self,
        runtime: Simulator,
        capture: Callable[[Work, Any, torch.device], Replay],
    ) -> None:
        self._runtime = runtime
        self._capture = capture
        self._variants: list[_Variant] = []
        self.reason: str | None = runtime.algorithm.eager
        self.replays = 0
        if self.reason is None and not self._has_room():
            self.reason = "the rows of a round take too much of the GPU's memory"

    def _has_room(self) -> bool:
        device = self._runtime.task.device
        if device.type != "cuda":
            return True
        _, memory = torch.cuda.mem_get_info(device)
        rows = self._runtime.tree.devices * self._runtime.start[0].nbytes
        return rows * _SHARE <= memory

    def report(self) -> str:
        """Whether rounds run as one graph, and why not."""
        if self.reason is not None:
            return f"a round is not one graph: {self.reason}"
        return f"the whole round, replayed {self.replays} times"

    def run(self, program: Program, rows: Rows) -> Any:
        """The answer of the top tier's program; None where the round must run as usual."""
        if self.reason is not None:
            return None
        try:
            return self._run(program, rows)
        except Refused as error:
            self.reason = str(error)
        except (RuntimeError, TypeError) as error:
            reason = _reason_of(error)
            if reason is None:
                raise
            self.reason = reason
        self._variants.clear()
        return None

    def _run(self, program: Program, rows: Rows) -> Any:
        round = self._runtime._play.round
        fitting = [variant for variant in self._variants if variant.tape.fits(round)]
        if not fitting:
            return self._record(program, rows)
        variant = fitting[0]
        questions = None
        if variant.changes:
            questions = self._questions(variant)
        else:
            self._count_cohorts(variant)
        variant.tape.fill(round, rows, questions)
        with self._restored():
            if variant.replay is None:
                work = self._work(program, variant.tape, [])
                variant.replay = self._capture(work, None, self._runtime.task.device)
            variant.replay.replay()
        self.replays += 1
        return self._finish(variant, questions, variant.replay.kept, variant.replay.answer)

    def _record(self, program: Program, rows: Rows) -> Any:
        """Run a round as usual, on static memory."""
        if len(self._variants) >= _VARIANTS:
            raise Refused("what it does changes with the round too often")
        runtime = self._runtime
        tape = RoundTape(runtime, runtime._play.round, rows.clone())
        plays: list[Play] = []
        work = self._work(program, tape, plays)
        with self._restored(), _never_waiting(runtime.task.device):
            kept, answer = work()
        tape.recording = False
        variant = _Variant(tape, plays[0])
        self._variants.append(variant)
        questions = None
        if variant.changes:
            questions = [asked.question for asked in tape.asks]
        self._count_cohorts(variant)
        return self._finish(variant, questions, kept, answer)

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Put the play that is under way back in its place."""
        play = self._runtime._play
        try:
            yield
        finally:
            self._runtime._play = play

    def _work(self, program: Program, tape: RoundTape, plays: list[Play]) -> Work:
        """The round on the memory of a tape."""
        runtime = self._runtime

        def work() -> tuple[dict[str, Tensor], Any]:
            tape.rewind()
            play = runtime._new_play(tape.round, "train")
            play.tape = tape
            runtime._play = play
            if tape.recording:
                plays.append(play)
            top = runtime.tree.tiers[0]
            ids = torch.arange(len(tape.rows))
            with moved.provided(tape.constant):
                me = RoundNodes(runtime, tape, top, ids, path=0, idle=None)
                answer = program(me, tape.rows.clone())
                runtime._record(top, ids, me.call, None)
                runtime._suspect(top, "the new global model", answer, ids)
            return _kept(tape), (answer, _counted(play, tape))

        return work

    def _questions(self, variant: _Variant) -> list[Question]:
        """The asks of this round, whose cohorts are recorded; the same nodes run in all rounds."""
        runtime = self._runtime
        questions: list[Question] = []
        for asked in variant.tape.asks:
            idle = None
            if asked.above is not None:
                idle = questions[asked.above].idle
            if idle is not None:
                idle = idle[asked.part]
            round = runtime._play.round
            me = Nodes(runtime, asked.tier, asked.ids, round=round, path=0, idle=idle)
            question = runtime._question(me, replace(asked.ask, rows=()))
            same = torch.equal(question.ids, asked.question.ids)
            if not same or len(question.answers) != len(asked.question.answers):
                raise Refused(
                    "every round runs another sample of nodes, and a graph has fixed nodes; "
                    'with idle = "train" all nodes run'
                )
            questions.append(question)
        return questions

    def _finish(
        self,
        variant: _Variant,
        questions: list[Question] | None,
        kept: dict[str, Tensor],
        outputs: tuple[Rows, Tensor],
    ) -> Rows:
        """Store what nodes keep and count what a round counted; returns a copy of the answer."""
        runtime = self._runtime
        answer, counted = outputs
        round = runtime._play.round
        for number, ((tier, name), entries) in enumerate(sorted(variant.tape.kept.items())):
            for k, (ids, _) in enumerate(entries):
                runtime.store.put(tier, name, ids, kept[f"{number} {k}"], round)
        answer = answer.clone()
        numbers = counted.cpu()
        self._count(variant, questions, numbers)
        return answer

    def _count(self, variant: _Variant, questions: list[Question] | None, numbers: Tensor) -> None:
        """Put what was counted into the play that is under way."""
        play = self._runtime._play
        layout = variant.layout
        finite = numbers[: layout.entries_start]
        if not bool((finite == 1).all()):
            sizes = [len(suspect.ids) for suspect in variant.play.suspects]
            for suspect, own in zip(variant.play.suspects, torch.split(finite, sizes), strict=True):
                play.suspects.append(_read_suspect(suspect, own))
        if questions is None:
            for group in variant.groups:
                group.count(play.ledger, numbers)
        else:
            self._count_entries(variant, questions, numbers)
        for noted, start in zip(variant.tape.noted, layout.notes, strict=True):
            idle = None
            if questions is not None and noted.asked is not None:
                idle = questions[noted.asked].idle
            if idle is not None:
                idle = idle[noted.part]
            figures = numbers[start : start + len(noted.ids)].view(torch.float64)
            play.facts.notes.add(noted.tier, noted.name, noted.ids, figures, idle)
        play.facts.gradients += variant.play.facts.gradients

    def _count_entries(self, variant: _Variant, questions: list[Question], numbers: Tensor) -> None:
        """Count messages one by one: other nodes answer than when the round was recorded."""
        entries = variant.play.ledger.entries
        sources = variant.tape.sent
        places = variant.layout.entries
        for entry, (number, part), place in zip(entries, sources, places, strict=True):
            if number is not None:
                route = self._route(entry.route, questions[number], part)
                entry = replace(entry, route=route)
            if place.sent is not None:
                entry = replace(entry, sent=numbers[place.sent])
            if place.lengths is not None:
                entry = replace(entry, lengths=numbers[place.lengths])
            self._runtime._play.ledger.add(entry)

    def _count_cohorts(self, variant: _Variant) -> None:
        """The same nodes are asked as when the round was recorded."""
        cohorts = self._runtime._play.facts.cohorts
        for tier, chunks in variant.play.facts.cohorts.items():
            cohorts[tier] = list(chunks)

    def _route(self, route: Route, question: Question, part: slice) -> Route:
        """The route of answers, from those nodes that answer in this round."""
        positions = answering_in(question, part)
        senders = question.ids[part][positions]
        tree = self._runtime.tree.copy(question.tier, senders)
        ends = LowerEnds(question.tier, senders, torch.arange(len(senders)))
        return replace(route, tree=tree, ends=ends)


def _reason_of(error: Exception) -> str | None:
    """Why a round cannot be captured, from the error of the attempt; None: it is another error."""
    first_line = str(error).splitlines()[0]
    lower = first_line.lower()
    if "watched" in lower:  # the round's number is not quite a number here
        return "a program computes with the round's number"
    if "synchronizing" in lower:
        return "a program waits for a number that the GPU computes"
    if "captur" in lower:
        return f"it cannot be captured: {first_line}"
    return None


@contextmanager
def _never_waiting(device: torch.device) -> Iterator[None]:
    """Raise an error where a program waits for a GPU: in a capture that would print more errors."""
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _kept(tape: RoundTape) -> dict[str, Tensor]:
    """The rows that nodes keep at the end of a round."""
    out = {}
    for number, (_, entries) in enumerate(sorted(tape.kept.items())):
        for k, (_, rows) in enumerate(entries):
            out[f"{number} {k}"] = rows
    return out


def _counted(play: Play, tape: RoundTape) -> Tensor:
    """Everything that a round counted, int64, so that it leaves the GPU in one copy.

    Whether suspects are finite; the values and the bytes of messages; the bits of noted figures.
    """
    parts = []
    if play.suspects:
        sums = torch.cat([suspect.sums.double() for suspect in play.suspects])
        parts.append(torch.isfinite(sums).long())
    for entry in play.ledger.entries:
        if not entry.exact:
            parts.append(entry.sent)
            if entry.lengths is not None:
                parts.append(entry.lengths)
    parts += [noted.values.double().view(torch.int64) for noted in tape.noted]
    if not parts:
        return torch.zeros(0, dtype=torch.int64, device=tape.rows.device)
    return torch.cat(parts)


class _Place(NamedTuple):
    """Where the numbers of one message are in `_counted`; None: they are the same in all rounds."""

    sent: slice | None
    lengths: slice | None


class _Layout(NamedTuple):
    """Where everything is in `_counted`."""

    entries_start: int
    entries: list[_Place]
    notes: list[int]

    @staticmethod
    def of(play: Play, tape: RoundTape) -> _Layout:
        """The order of `_counted`."""
        start = sum(len(suspect.ids) for suspect in play.suspects)
        entries_start = start
        places = []
        for entry in play.ledger.entries:
            place = _Place(None, None)
            if not entry.exact:
                stop = start + len(entry.sent)
                place = _Place(slice(start, stop), None)
                start = stop
                if entry.lengths is not None:
                    stop = start + len(entry.lengths)
                    place = place._replace(lengths=slice(start, stop))
                    start = stop
            places.append(place)
        notes = []
        for noted in tape.noted:
            notes.append(start)
            start += len(noted.ids)
        return _Layout(entries_start, places, notes)


@dataclass(frozen=True, eq=False)
class _Group:
    """Messages of one kind, and where their numbers are in `_counted`."""

    messages: Messages
    same: Tensor
    """The numbers of values sent, where they are the same in all rounds."""
    sent: Tensor | None
    lengths: Tensor | None

    @staticmethod
    def of(entries: Sequence[Entry], places: Sequence[_Place]) -> _Group:
        """The group of entries of one kind."""
        return _Group(
            Messages.of(entries),
            torch.cat([entry.sent.cpu() for entry in entries]),
            _positions([place.sent for place in places]),
            _positions([place.lengths for place in places]),
        )

    def count(self, ledger: Ledger, numbers: Tensor) -> None:
        """Count the messages of this round."""
        sent = self.same
        if self.sent is not None:
            sent = numbers[self.sent]
        lengths = None
        if self.lengths is not None:
            lengths = numbers[self.lengths]
        ledger.count(self.messages, sent, lengths)


def _positions(parts: Sequence[slice | None]) -> Tensor | None:
    """All positions in some slices; None where there are none."""
    ranges = [torch.arange(part.start, part.stop) for part in parts if part is not None]
    if not ranges:
        return None
    return torch.cat(ranges)


def _read_suspect(suspect: Suspect, finite: Tensor) -> Suspect:
    """A suspect whose numbers have arrived."""
    sums = torch.where(finite == 1, 0.0, torch.nan)
    return replace(suspect, sums=sums)
