"""The asks and orders of a node to its children.

What they answer to an ask is on its disk before it asks again. An order, such as to hold rows, runs
no program, and goes down the tree from node to node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from covey.deployed.faults import fault
from covey.deployed.memory import give_back_free
from covey.deployed.node import node_rows
from covey.deployed.node.checked import ChildCheck, OrderCheck, ReplyCheck, child_error
from covey.deployed.node.checked_facts import Subtree
from covey.deployed.node.checked_orders import ENDING
from covey.deployed.node.disk import MISSED, Disk
from covey.deployed.node.epoch import Epoch
from covey.deployed.node.missed import MissedAsks, Missing, PendingOrders
from covey.deployed.node.node_rows import NodeRow, open_order, seal_order
from covey.deployed.transport.stored import Stored
from covey.deployed.transport.transport import (
    Answer,
    AskKey,
    Blob,
    Patience,
    Seat,
    Transport,
    digest,
)
from covey.errors import CoveyError, ProgramError
from covey.kernel.store.store import ColumnKey
from covey.links.packed import Packed
from covey.runtimes.alone.envelope import Pieces, header_of, open_sealed
from covey.runtimes.alone.loopback import HeldReply
from covey.runtimes.alone.place import Place

_MUCH = 2**23
"""Bytes of messages before and after which free memory is given back: it takes milliseconds."""
ONCE = ("hold", "release")
"""Orders that depend on when they are followed: one that comes again is not followed again."""
_CHANGING = (*ONCE, "thaw")
"""The orders that change what a node keeps."""
END_SECONDS = 60.0
"""How long an order at the end of a run waits at least, where there is a quorum."""


@dataclass(frozen=True)
class Order:
    """What all nodes do, down to a tier.

    `rows` are those of the whole subtree; each has a route in `arguments` where it must.
    """

    name: str
    arguments: Mapping[str, Any]
    rows: Sequence[NodeRow]
    round: int
    deepest: str


@dataclass(eq=False)
class ChildAsks:
    """What a node asks and orders, and what it knows of the children who did not answer."""

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
    unreached: list[list[Any]] = field(default_factory=list)
    """(tier, number) of those below that did not follow the last order, or kept their rows."""
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
        self,
        key: AskKey,
        common: Blob,
        own: Mapping[Seat, bytes],
        check: ReplyCheck,
    ) -> dict[Seat, Answer]:
        """Ask children; their answers are to be journalled before anything else is asked.

        After the next ask children have their last answers no more. An ask that is the last one of
        its program is never written: until this node has ended the program on its disk, its
        children have their answers on theirs.
        """
        if self._unwritten is not None:
            self.disk.journal(*self._unwritten, self.heard)
        for earlier, seat, reply in self._replies:
            reply.drop(partial(_messages, partial(self.disk.journalled_of, earlier, seat)))
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

    def let_go(self) -> None:
        """Hold no answers of children any more."""
        self._unwritten = None
        self._replies = []
        self._last = None

    def reduce(self, key: AskKey, answers: Mapping[Seat, Answer]) -> None:
        """The program under way reduces these answers from now on."""
        self._last = (key, answers)

    def reply(
        self,
        key: AskKey,
        tier: str,
        child: Seat,
        answer: Answer,
    ) -> bytes | None:
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
            reply.drop(partial(_messages, answer.read))
        else:
            self._replies.append((key, seat, reply))

    # Orders

    def order(
        self, order: Order, epoch: Epoch, templates: Mapping[ColumnKey, Tensor]
    ) -> list[NodeRow]:
        """Let all children follow an order; the rows that come back."""
        name = order.name
        arguments = dict(order.arguments)
        header = {
            "name": name,
            "arguments": arguments,
            "round": order.round,
            "deepest": order.deepest,
        }
        common = Pieces(())
        if arguments.get("broadcast"):
            common = Pieces(node_rows.pieces(order.rows))  # once for all children
        own = {}
        for child in self.seats:
            part, changed = self._part(child, order)
            own[child] = seal_order({**header, "epoch": asdict(epoch), "arguments": changed}, part)
        key = AskKey(
            epoch.run, order.round, "order", 0, name, digest(header), attempt=epoch.attempt
        )
        patience = self.patience_for(len(own))
        if patience is not None and name not in ONCE:  # for all children, except at the end
            ending = Patience(max(patience.seconds, END_SECONDS), patience.quorum)
            patience = ending if arguments.get(ENDING) else None
        check = OrderCheck(name, arguments, self.subtrees, templates)
        answers = self.send(key, common, own, patience, check)
        missing = {}
        for seat, answer in answers.items():
            if answer.status == "answered":
                self.orders.settle(seat)
            elif name in ONCE:
                missing[seat] = own[seat]
        self.orders.add(key, arguments.get("label", ""), missing, epoch.before)
        return self._rows(name, answers)

    def _part(self, child: Seat, order: Order) -> tuple[list[NodeRow], dict[str, Any]]:
        """The rows with routes through a child, and the arguments of the order with them alone."""
        arguments = dict(order.arguments)
        if "routes" not in arguments:
            return [], arguments
        level = self.place.tiers.index(self.place.tier) + 1
        part = []
        for row, route in zip(order.rows, arguments["routes"], strict=True):
            if len(route) > level and route[level] == child:
                part.append((row, route))
        return [row for row, _ in part], {**arguments, "routes": [route for _, route in part]}

    def _rows(self, name: str, answers: Mapping[Seat, Answer]) -> list[NodeRow]:
        """The rows that came back from children who followed an order."""
        out: list[NodeRow] = []
        failures = []
        numbers = {}
        for child in self.seats:
            if answers[child].status != "answered":
                below = self.place.below(self.place.tier)
                self.unreached.append([below, child])  # it follows when it is back
                continue
            reply, rows = open_order(answers[child].read())
            if reply["error"] is not None:
                failures.append(self.error(child, *reply["error"]))
                continue
            numbers[child] = reply["number"]
            if name == "write":
                # The answer to an order is not written down: what it corrects is still to be told.
                self.missing += self.missed.corrections(child, reply["ended"])
                self.missing += [Missing(*values) for values in reply["missing"]]
            self.unreached += reply["unreached"]
            out += rows
        if failures:
            raise failures[0]
        if name in _CHANGING:
            self.heard |= numbers
            self.disk.receive(numbers)
        return out

    # What both have

    def error(self, child: Seat, kind: str, text: str) -> CoveyError:
        """The error that a child answered; it names no nodes but those of its own subtree."""
        tiers = self.place.tiers
        tier = tiers[tiers.index(self.place.tier) + 1]
        return child_error(kind, text, (tier, child), self.subtrees.get(child, {}), tiers)

    def trim(self, size: int) -> None:
        """Give back memory that is not in use, before or after so many bytes of messages."""
        if self.transport is not None and size > _MUCH:
            self.disk.shrink()
            give_back_free()


def _messages(read: Callable[[], bytes]) -> list[Packed]:
    """The messages of a reply that lies outside memory."""
    return open_sealed(read())[1]
