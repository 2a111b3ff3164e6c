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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from covey.kernel import moved
from covey.kernel.algorithm import Program
from covey.kernel.nodes import AskArguments, Call, Nodes
from covey.links.meter import LowerEnds
from covey.runtimes.cuda.cuda_graphs import (
    VARIANTS,
    CapturedNodes,
    Refused,
    Replay,
    Tape,
    Work,
    reason_of,
)
from covey.types import Ids, Rows

if TYPE_CHECKING:
    from covey.runtimes.base import Play, Question
    from covey.runtimes.simulator import Simulator

_DRAWS = 4096
"""The max number of draws in a round that is captured."""
_SHARE = 16
"""A graph holds the rows of a round for good: they are at most 1 / so many of a GPU's memory."""


class RoundNodes(CapturedNodes):
    """Nodes whose program is captured as a part of a round, which the same nodes run every time."""

    _tape: RoundTape

    @cached_property
    def device_ids(self) -> Ids:
        return self._tape.constant(self.ids)

    @property
    def count(self) -> Tensor:
        if self.leaf:
            return super().count
        runtime = self._tape.runtime
        counts = runtime.examples(self.tier, self.ids)
        return self._tape.constant(counts[:, None].to(runtime.task.dtype))


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


class RoundTape(Tape):
    """Everything that a round reads from outside, and what it does."""

    runtime: Simulator

    def __init__(self, runtime: Simulator, round: int, rows: Rows) -> None:
        self.rows = rows
        self.cuts: dict[str, float | None] = {}
        self.asks: list[_Asked] = []
        self.positions: list[tuple[int, slice, Tensor]] = []
        """The ask, the chunk, and the memory of the positions of those that answer."""
        self._constants: list[tuple[Tensor, Tensor]] = []  # in main memory, on the device
        super().__init__(runtime, round)

    def rewind(self) -> None:
        """Begin again, before the programs run."""
        super().rewind()
        self.kept: dict[tuple[str, str], list[tuple[Ids, Rows]]] = {}
        self.noted: list[_Noted] = []
        self.sent: list[tuple[int | None, slice]] = []
        """Of each message, the ask and the chunk that it answers; None for those going down."""
        self.stack: list[tuple[int | None, slice]] = [(None, slice(None))]
        self._taken = 0
        self._asked = 0
        self._positioned = 0

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

    def keys(
        self,
        path: int,
        tier: str,
        words: tuple[int | str, ...],
    ) -> Tensor:
        """The keys of the next draw, one for each seed."""
        if len(self.words) >= _DRAWS and self.recording:
            self.refuse(f"it draws more than {_DRAWS} times")
        return super().keys(path, tier, words)

    def recall(
        self,
        tier: str,
        name: str,
        ids: Ids,
        default: Rows | None,
        since: Any,
    ) -> Any:
        """What nodes kept earlier in this round or before it, else `default`."""
        for owners, rows in self.kept.get((tier, name), []):
            if torch.equal(owners, ids):
                return rows
            if bool(torch.isin(ids, owners).any()):
                self.refuse(f"nodes recall {name!r} in other groups than they kept it")
        return super().recall(tier, name, ids, default, since)

    def cut(self, tier: str, value: float | None) -> None:
        """The cut of rows from a tier, a number inside the graph."""
        self.cuts[tier] = value

    # Asks

    def asked(self, me: Nodes, ask: AskArguments, question: Question) -> None:
        """An ask begins."""
        if self.recording:
            if ask.each:
                self.refuse("a program sends every child a value of its own")
            if isinstance(ask.sample, Tensor):
                self.refuse("a program computes who is asked")
            if ask.sample is not None and self.runtime.idle == "skip":
                self.refuse("other nodes are asked in every round")
            above, part = self.stack[-1]
            self.asks.append(_Asked(me.tier, me.ids, ask, question, above, part))
        elif self._asked >= len(self.asks):
            self.refuse("its programs do not ask the same in every round")
        self._asked += 1

    @contextmanager
    def chunk(self, question: Question, part: slice) -> Iterator[None]:
        """Some of those asked run their program."""
        place = (question.path, question.tier)
        places = [(asked.question.path, asked.question.tier) for asked in self.asks]
        last = len(places) - 1 - places[::-1].index(place)  # the ask that is under way
        self.stack.append((last, part))
        try:
            yield
        finally:
            self.stack.pop()

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
        cut = self.runtime.algorithm.cut
        known = self.cuts.items()
        return super().fits(round) and all(cut(tier, round) == value for tier, value in known)

    def take(self, round: int, rows: Rows, questions: Sequence[Question] | None) -> None:
        """Fill in everything that a round reads."""
        self.round = round
        self.rows.copy_(rows)
        self.fill()
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

    @property
    def changes(self) -> bool:
        """Whether those who answer differ from round to round."""
        return any(asked.ask.sample is not None for asked in self.tape.asks)


_Outcome = tuple[_Variant, "list[Question] | None", dict[str, Tensor], Any]


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
        device = runtime.task.device
        if self.reason is None and device.type == "cuda":
            _, memory = torch.cuda.mem_get_info(device)
            if runtime.tree.devices * runtime.start[0].nbytes * _SHARE > memory:
                self.reason = "the rows of a round take too much of the GPU's memory"

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
            played = self._run(program, rows)
        except (RuntimeError, TypeError) as error:
            self.reason = reason_of(error)
            if self.reason is None:
                raise
            self._variants.clear()
            return None
        return self._finish(*played)  # what fails here is no attempt: rows are stored already

    def _run(self, program: Program, rows: Rows) -> _Outcome:
        """The variant that was played, its asks, what nodes keep and what was computed."""
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
        variant.tape.take(round, rows, questions)
        with self._restored():
            if variant.replay is None:
                work = self._work(program, variant.tape, [])
                variant.replay = self._capture(work, None, self._runtime.task.device)
            variant.replay.replay()
        self.replays += 1
        return variant, questions, variant.replay.kept, variant.replay.answer

    def _record(self, program: Program, rows: Rows) -> _Outcome:
        """Run a round as usual, on static memory."""
        if len(self._variants) >= VARIANTS:
            raise Refused("what it does changes with the round too often")
        runtime = self._runtime
        tape = RoundTape(runtime, runtime._play.round, rows.clone())
        plays: list[Play] = []
        work = self._work(program, tape, plays)
        with self._restored(), _never_waiting(runtime.task.device):
            kept, answer = work()
        tape.end()
        variant = _Variant(tape, plays[0])
        self._variants.append(variant)
        questions = None
        if variant.changes:
            questions = [asked.question for asked in tape.asks]
        self._count_cohorts(variant)
        return variant, questions, kept, answer

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
            play.suspects.recorded = True
            runtime._play = play
            if tape.recording:
                plays.append(play)
            top = runtime.tree.tiers[0]
            ids = torch.arange(len(tape.rows))
            with moved.provided(tape.constant):
                me = RoundNodes(tape, top, ids, path=0, idle=None)
                answer = program(me, tape.rows.clone())
                runtime._record(top, ids, me.call, None)
                play.suspects.note(top, "the new global model", answer, ids)
            # The rows that nodes keep at the end of a round.
            kept = {}
            for number, (_, entries) in enumerate(sorted(tape.kept.items())):
                for k, (_, rows) in enumerate(entries):
                    kept[f"{number} {k}"] = rows
            return kept, (answer, _counted(play, tape))

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
        finite = numbers[layout.suspects] == 1
        if not bool(finite.all()):
            sizes = [len(suspect.ids) for suspect in variant.play.suspects.noted]
            for suspect, own in zip(
                variant.play.suspects.noted, torch.split(finite, sizes), strict=True
            ):
                sums = torch.where(own, 0.0, torch.nan)
                play.suspects.noted.append(replace(suspect, sums=sums))
        self._count_messages(variant, questions, numbers)
        for noted, place in zip(variant.tape.noted, layout.notes, strict=True):
            idle = None
            if questions is not None and noted.asked is not None:
                idle = questions[noted.asked].idle
            if idle is not None:
                idle = idle[noted.part]
            figures = numbers[place].view(torch.float64)
            play.facts.notes.add(noted.tier, noted.name, noted.ids, figures, idle)
        play.facts.gradients += variant.play.facts.gradients

    def _count_messages(
        self, variant: _Variant, questions: list[Question] | None, numbers: Tensor
    ) -> None:
        """Count messages, perhaps of other nodes than when the round was recorded."""
        layout = variant.layout
        for position, entry in enumerate(variant.play.ledger.entries):
            number, part = variant.tape.sent[position]
            if questions is not None and number is not None:  # from those who answer in this round
                question = questions[number]
                senders = question.ids[part][answering_in(question, part)]
                tree = self._runtime.tree.copy(question.tier, senders)
                ends = LowerEnds(question.tier, senders, torch.arange(len(senders)))
                entry = replace(entry, route=replace(entry.route, tree=tree, ends=ends))
            if not entry.exact:  # whose numbers of values are the same in all rounds
                entry = replace(entry, sent=numbers[layout.sent[position]])
            if entry.lengths is not None:
                entry = replace(entry, lengths=numbers[layout.lengths[position]])
            self._runtime._play.ledger.add(entry)

    def _count_cohorts(self, variant: _Variant) -> None:
        """The same nodes are asked as when the round was recorded."""
        cohorts = self._runtime._play.facts.cohorts
        for tier, chunks in variant.play.facts.cohorts.items():
            cohorts[tier] = list(chunks)


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


def _counted(play: Play, tape: RoundTape) -> Tensor:
    """Everything that a round counted, int64, so that it leaves the GPU in one copy.

    Whether suspects are finite; the values and the bytes of messages; the bits of noted figures.
    """
    parts = []
    if play.suspects.noted:
        sums = torch.cat([suspect.sums.double() for suspect in play.suspects.noted])
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


class _Layout(NamedTuple):
    """The positions of everything in `_counted`; none of numbers that are the same in all rounds.

    There is an entry for every message, and for every note.
    """

    suspects: Tensor
    sent: list[Tensor]
    lengths: list[Tensor]
    notes: list[Tensor]

    @staticmethod
    def of(play: Play, tape: RoundTape) -> _Layout:
        """The order of `_counted`."""
        stop = 0

        def positions(count: int) -> Tensor:
            nonlocal stop
            stop += count
            return torch.arange(stop - count, stop)

        suspects = positions(sum(len(suspect.ids) for suspect in play.suspects.noted))
        sent = []
        lengths = []
        for entry in play.ledger.entries:
            sent.append(positions(0 if entry.exact else len(entry.sent)))
            lengths.append(positions(0 if entry.lengths is None else len(entry.lengths)))
        notes = [positions(len(noted.ids)) for noted in tape.noted]
        return _Layout(suspects, sent, lengths, notes)
