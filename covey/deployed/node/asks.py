"""The asks of a node to its children: what they answer is on its disk before it asks again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any

from covey.deployed.faults import fault
from covey.deployed.memory import give_back_free
from covey.deployed.node.checked import ChildCheck, ReplyCheck, child_error
from covey.deployed.node.checked_facts import Subtree
from covey.deployed.node.disk import MISSED, Disk
from covey.deployed.node.missed import MissedAsks, Missing, PendingOrders
from covey.deployed.transport.stored import Stored
from covey.deployed.transport.transport import Answer, AskKey, Blob, Patience, Seat, Transport
from covey.errors import CoveyError, ProgramError
from covey.links.packed import Packed
from covey.runtimes.alone.envelope import header_of, open_sealed
from covey.runtimes.alone.loopback import HeldReply
from covey.runtimes.alone.place import Place

_MUCH = 2**23
"""Bytes of messages before and after which free memory is given back: it takes milliseconds."""


@dataclass(eq=False)
class ChildAsks:
    """What a node asks of its children, and what it knows of those who did not answer."""

    place: Place
    disk: Disk
    transport: Transport | None = None
    """The way to the children; None for a device."""
    patience: Patience | None = None
    """When asks go on without some children; None: never, however long it takes."""
    subtrees: Mapping[Seat, Subtree] = field(default_factory=dict)
    """The ids of every child and of the nodes below it: a child states facts of these alone."""
    heard: dict[Seat, int] = field(default_factory=dict)
    """The numbers of the last changes that children have told since this node was made."""
    missing: list[Missing] = field(default_factory=list)
    """Who was missing here and below in the play that is under way."""
    missed: MissedAsks = field(default_factory=MissedAsks)
    """What children did not answer; their disks may have ended it."""
    _unwritten: tuple[AskKey, dict[Seat, Answer]] | None = None
    """The last ask of the program under way and its answers, which no journal has."""
    _replies: list[tuple[AskKey, Seat, HeldReply]] = field(default_factory=list)
    """The replies to the last ask of the program under way, which the journal may get."""
    _last: tuple[AskKey, Mapping[Seat, Answer]] | None = None
    """The last ask of the program under way, and its answers while they are reduced."""

    def __post_init__(self) -> None:
        self.orders = PendingOrders(self.disk)
        if self.transport is not None:
            self.orders.hand_to(self.transport)

    @property
    def seats(self) -> range:
        """The ids of all children."""
        first = self.place.first_child
        return range(first, first + self.place.children)

    def forget(self) -> None:
        """Forget what is in memory, and read the disk."""
        self.let_go()
        self.missed = MissedAsks.read(self.disk.fact(MISSED) or [])

    def patience_for(self, asked: int) -> Patience | None:
        """How long to wait for so many children; a quorum above them is all of them."""
        if self.patience is None:
            return None
        return Patience(self.patience.seconds, min(self.patience.quorum, asked))

    def send(
        self,
        key: AskKey,
        common: Blob,
        own: Mapping[Seat, bytes],
        patience: Patience | None,
        check: ChildCheck,
    ) -> Mapping[Seat, Answer]:
        """Send a request to children, and wait for their answers."""
        if self.transport is None:
            raise ProgramError(f"{self.place} asked its children, but it has no transport.")
        if patience is not None and patience.quorum < len(own):
            check.asked = len(own)
        return self.transport.ask(key, common, own, patience, check, check.most)

    def ask(
        self, key: AskKey, common: Blob, own: Mapping[Seat, bytes], check: ReplyCheck
    ) -> dict[Seat, Answer]:
        """Ask children; their answers are to be journalled before anything else is asked.

        After the next ask children have their last answers no more. An ask that is the last one of
        its program is never written: until this node has ended the program on its disk, its
        children have their answers on theirs.
        """
        if self._unwritten is not None:
            self.disk.journal(*self._unwritten, self.heard)
        for earlier, seat, reply in self._replies:
            reply.drop(partial(self._journalled, earlier, seat))
        self.let_go()
        self.trim(len(common) * len(own))  # the answers may be as long
        fault("asking")
        answers = dict(self.send(key, common, own, self.patience_for(len(own)), check))
        fault("answers-received")
        self.trim(sum(len(answer.data) for answer in answers.values()))
        answered = {seat for seat, answer in answers.items() if answer.status == "answered"}
        if check.failed & answered:
            return answers  # the round ends here
        for seat in answered:
            self.heard[seat] = check.numbers.get(seat, 0)
            self.orders.settle(seat)
        self._unwritten = (key, answers)
        return answers

    def _journalled(self, key: AskKey, seat: Seat) -> list[Packed]:
        """The messages of a reply that the journal has."""
        _, messages = open_sealed(self.disk.journalled_of(key, seat))
        return messages

    def let_go(self) -> None:
        """Hold no answers of children any more."""
        self._unwritten = None
        self._replies = []
        self._last = None

    def reduce(self, key: AskKey, answers: Mapping[Seat, Answer]) -> None:
        """The program under way reduces these answers from now on."""
        self._last = (key, answers)

    def reply(self, key: AskKey, tier: str, child: Seat, answer: Answer) -> bytes | None:
        """The reply of a child of this tier; None: it is missing."""
        if answer.status == "answered":
            data = answer.read()
            if child in self.missed:  # perhaps it lost the ask for which it was late
                self.missing += self.missed.settle(child, header_of(data).get("ended", []))
            return data
        entry = Missing(key.round, key.lane, key.path, tier, child, answer.status)
        self.missing.append(entry)
        self.missed.add(key, entry)
        return None

    def hold(self, seat: Seat, reply: HeldReply) -> None:
        """Remember a reply: a program that asks again seldom reduces it once more.

        One that waits outside memory goes back there until it is reduced.
        """
        assert self._last is not None
        key, answers = self._last
        answer = answers[seat]
        if isinstance(answer.data, Stored):
            reply.drop(lambda: open_sealed(answer.read())[1])
        else:
            self._replies.append((key, seat, reply))

    def error(self, child: Seat, kind: str, text: str) -> CoveyError:
        """The error that a child answered; it names no nodes but those of its own subtree."""
        tiers = self.place.tiers
        tier = tiers[tiers.index(self.place.tier) + 1]
        return child_error(kind, text, (tier, child), self.subtrees.get(child, {}), tiers)

    def missing_facts(self) -> list[Any]:
        """Who was missing in the ask under way, as JSON can hold it."""
        return [list(astuple(entry)) for entry in self.missing]

    def trim(self, size: int) -> None:
        """Give back memory that is not in use, before or after so many bytes of messages."""
        if self.transport is not None and size > _MUCH:
            self.disk.shrink()
            give_back_free()
