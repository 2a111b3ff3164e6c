"""The asks of a parent: their requests and answers, and which answers its seats still owe."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

from covey.deployed.transport.stored import AnswerFile, Stored
from covey.deployed.transport.transport import (
    Answer,
    AskKey,
    Blob,
    Check,
    Diverged,
    Patience,
    Seat,
    failed_in,
)
from covey.errors import DivergedError, TransportError
from covey.runtimes.alone.envelope import Pieces

_LATE = 8  # trainings that are kept for late children, whose requests may be long
_READING = ("read", "freeze")  # orders that move nothing at a node
_WRITING = "write"  # the order after which an earlier one of its kind is of no use


@dataclass(eq=False)
class Ask:
    """An ask that waits for answers."""

    key: AskKey
    common: Blob | Stored
    own: Mapping[Seat, bytes | Stored]
    check: Check | None = None
    most: int | None = None
    """Bytes of the longest answer that is taken; None: of any message."""
    file: AnswerFile | None = None
    """Where answers wait that are not to be held in memory; None: all are held."""
    in_memory: int = 0
    """Bytes of the answers that are held in memory, and of those that arrive there."""
    answers: dict[Seat, bytes | Stored] = field(default_factory=dict)
    bad: set[Seat] = field(default_factory=set)
    """The seats whose answer was refused, and who are not asked again yet."""
    diverged: dict[Seat, Diverged] = field(default_factory=dict)
    """Those of them whose training diverged, and who are not asked again."""
    sent: set[Seat] = field(default_factory=set)
    error: Exception | None = None
    """Of this parent, while it checked an answer."""
    untrimmed: int = 0
    """Bytes of the answers that came since free memory was last given back."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False
    """Whether nobody waits for answers any more."""

    @property
    def size(self) -> int:
        """Bytes of the requests of all seats."""
        return len(self.common) + sum(map(len, self.own.values()))

    def written(self, file: AnswerFile) -> tuple[Stored, dict[Seat, Stored]]:
        """The requests, whose bytes lie in a file."""
        own = {seat: file.add(as_sent(data)) for seat, data in self.own.items()}
        common = self.common.joined() if isinstance(self.common, Pieces) else self.common
        return file.add(as_sent(common)), own

    def end(self) -> None:
        """Keep what those need who still owe it, and nothing else."""
        self.over = True
        self.own = {seat: self.own[seat] for seat in self.owing()}
        self.answers = {}
        self.file = None

    def owing(self) -> list[Seat]:
        """The seats that owe it though nobody waits: an order, or a training that they were sent.

        Scores move nothing, and so do orders that only read.
        """
        if self.key.lane == "order" and self.key.program not in _READING:
            return self.missing()
        if self.key.lane == "train":
            return [seat for seat in self.missing() if seat in self.sent - self.bad]
        return []

    def excuse(self, seats: Collection[Seat]) -> None:
        """These seats owe it no more."""
        self.answers |= {seat: b"" for seat in seats if seat in self.own}

    def missing(self) -> list[Seat]:
        """The seats without an answer."""
        return [seat for seat in self.own if seat not in self.answers]

    def fitting(self, seats: list[Seat], limit: int) -> list[Seat]:
        """The first of these seats whose requests fit into one message; one in any case."""
        size = len(self.common)
        for position, seat in enumerate(seats):
            size += len(self.own[seat])
            if position and size > limit:
                return seats[:position]
        return seats

    def ended(self, patience: Patience | None, waited: float, gone: set[Seat]) -> bool:
        """Whether nothing more is waited for; `gone` are seats that have long been empty."""
        if len(self.answers) == len(self.own):
            return True
        if patience is None:
            return False
        if any(seat in self.answers for seat in failed_in(self.check)):
            return True  # others with the same error may have been evicted, and never answer again
        if len(self.answers) < patience.quorum:
            return False
        return waited >= patience.seconds or gone.union(self.bad).issuperset(self.missing())

    def wanted_again(self, patience: Patience | None, waited: float) -> list[Seat]:
        """The seats with a bad answer, where others cannot be a quorum, or were not in time."""
        in_time = patience is not None and waited < patience.seconds
        if in_time and len(self.own) - len(self.bad) >= self.quorum(patience):
            return []
        return sorted(self.bad - self.diverged.keys())

    def quorum(self, patience: Patience | None) -> int:
        """How many answers are enough."""
        return len(self.own) if patience is None else patience.quorum

    def check_diverged(self, patience: Patience | None, names: Mapping[Seat, str]) -> None:
        """Raise what a seat says of its training where the others are too few for a quorum."""
        if self.diverged and len(self.own) - len(self.diverged) < self.quorum(patience):
            seat = min(self.diverged)
            fix = "the others are no quorum; lower the step sizes, the penalties or the quorum"
            raise DivergedError(f"{names[seat]}: {self.diverged[seat]}; {fix}.")

    def believe(self, seat: Seat, data: bytes | Stored) -> None:
        """A seat has given a good answer."""
        if self.over:
            data = b""
        self.answers.setdefault(seat, data)
        self.bad.discard(seat)
        self.diverged.pop(seat, None)

    def refuse(self, seat: Seat, reason: str) -> None:
        """A seat has given a bad answer; one that came before it counts still."""
        if seat in self.answers:
            return
        self.bad.add(seat)
        if isinstance(reason, Diverged):
            self.diverged[seat] = reason

    def result(self) -> dict[Seat, Answer]:
        """The answer of every seat."""
        out = dict.fromkeys(self.own, Answer("absent"))
        out |= dict.fromkeys(self.sent & out.keys(), Answer("late"))
        out |= dict.fromkeys(self.bad & out.keys(), Answer("bad"))
        return out | {seat: Answer("answered", data) for seat, data in self.answers.items()}


def as_sent(data: Blob | Stored) -> bytes:
    """What frames are cut from."""
    if isinstance(data, Stored):
        return data.read()
    return cast(bytes, data)  # several pieces are cut like bytes


@dataclass(eq=False)
class Asks:
    """The asks under way, and those that have ended and that some seats still owe."""

    open: dict[AskKey, Ask] = field(default_factory=dict)
    pending: dict[AskKey, Ask] = field(default_factory=dict)
    """Those that have ended, in their order.

    Of a seat they are no more trainings than its window: it is sent no others before. Of all seats
    the last `_LATE` are kept.
    """
    closed: bool = False
    """Whether the transport has ended, so that nobody will answer."""

    def begin(self, ask: Ask) -> None:
        """An ask is under way."""
        if ask.key in self.open:
            raise TransportError(f"{ask.key} is being asked already.")
        self.open[ask.key] = ask

    def end(self, ask: Ask) -> None:
        """Nobody waits for an ask any more."""
        del self.open[ask.key]
        ask.end()
        self.keep(ask)

    def keep(self, ask: Ask) -> None:
        """Keep an ask that has ended for the seats that owe it; one to write replaces the last."""
        for other in self.pending.values():
            if other.key.lane == "order" and other.key.program == ask.key.program == _WRITING:
                other.excuse(ask.own)
        self.pending[ask.key] = ask
        self.forget_settled()
        trainings = [key for key in self.pending if key.lane == "train"]
        for key in trainings[:-_LATE]:  # whoever owes it may never come back
            del self.pending[key]

    def excuse(self, key: AskKey, seat: Seat) -> None:
        """A seat owes an ask no more, if it did."""
        if key in self.pending:
            self.pending[key].excuse([seat])
            self.forget_settled()

    def forget_settled(self) -> None:
        """Forget the asks that nobody owes any more."""
        self.pending = {key: ask for key, ask in self.pending.items() if ask.missing()}

    def in_order(self) -> list[Ask]:
        """What a process gets that takes seats: first what is owed."""
        return [*self.pending.values(), *self.open.values()]
