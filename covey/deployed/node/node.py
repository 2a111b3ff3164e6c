"""One node of a deployed tree: a station with a transport to its children, and a disk.

Everything that a node keeps is on its disk when it answers. A node object that is dropped at any
moment, and made again from the disk, goes on as if nothing had happened.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from covey import native
from covey.data.shards import some
from covey.deployed.node import node_rows, own_models
from covey.deployed.node.checked import OrderCheck, ReplyCheck, child_error
from covey.deployed.node.checked_facts import Rehearsed, Subtree, ask_form, nodes_of
from covey.deployed.node.checked_orders import ENDING, read_ask, read_order
from covey.deployed.node.disk import ENDED, GOOD_ENDED, GOOD_OWED, OWED, OWED_ORDERS, Disk, fault
from covey.deployed.node.disk_store import DiskStore
from covey.deployed.node.memory import give_back_free
from covey.deployed.node.missed import MissedAsks, Missing, remembered
from covey.deployed.node.node_rows import NodeRow, RowRange, dtype_name, dtype_of
from covey.deployed.node.owed_orders import FollowedOrders, OwedOrders
from covey.deployed.operate.certificates import Identity, read_again
from covey.deployed.transport import parcel
from covey.deployed.transport.stored import Stored
from covey.deployed.transport.transport import (
    Answer,
    AskKey,
    AskLane,
    Patience,
    Seat,
    Transport,
    digest,
)
from covey.errors import (
    CheckpointError,
    ConfigError,
    CoveyError,
    DecodeError,
    DivergedError,
    ProgramError,
    TransportError,
)
from covey.kernel.nodes import Call
from covey.kernel.replies import Exact, Message, rows_of
from covey.kernel.store.store import PRESENT, ColumnKey
from covey.links.packed import Packed, Schema
from covey.runs.scores.scoring import Scorer
from covey.runtimes.alone.envelope import Pieces, header_of, open_sealed, release, seal, sealed
from covey.runtimes.alone.loopback import HeldReply, Station, messages_of
from covey.runtimes.alone.place import OwnStore
from covey.runtimes.base import Crossing, MessageKey, Question, flat, residual_name
from covey.runtimes.contract import Lane
from covey.runtimes.spec import NodeSpec
from covey.types import Ids

LOG = logging.getLogger("covey.deployed")
_CHANGING = ("hold", "release", "thaw")
"""The orders that change what a node keeps."""
END_SECONDS = 60.0
"""How long such an order waits at least, where there is a quorum."""
_ONCE = ("hold", "release")
"""Orders that depend on when they are followed: one that comes again is not followed again."""
_GOOD = {OWED: GOOD_OWED, ENDED: GOOD_ENDED}
"""Facts to which a rollback returns: under which name they stand as after the last good round."""
_MUCH = 2**23
"""Bytes of messages before and after which free memory is given back: it takes milliseconds."""
_BEHIND = "the disk of a node above it is behind, or a parent lied; restore that disk"
_JUMP = 1000
"""Rounds that may pass between two requests where no certificates tell who says so."""


@dataclass(frozen=True)
class Epoch:
    """Where the server stands, which every request says.

    A node that was away finds out from it which of its pending rows are good.
    """

    run: str
    before: int
    """Everything that was kept in rounds before this one is good."""
    rollbacks: tuple[int, ...] = ()
    """The rounds that failed, in order; a round may have failed several times."""
    certificate: str = ""
    """That of the server, in PEM; empty where the tree has no certificates."""
    signature: str = ""
    """Of the first three with the key of that certificate, in hexadecimal digits."""

    @property
    def attempt(self) -> int:
        """The number of rollbacks so far."""
        return len(self.rollbacks)

    def undone(self, round: int, attempt: int) -> bool:
        """Whether what was kept in a round, after so many rollbacks, was rolled back since."""
        later = self.rollbacks[attempt:]
        return any(failed <= round for failed in later)

    @property
    def signed_text(self) -> bytes:
        """What the server signs: no node between can say that it stands elsewhere."""
        return b"covey epoch\0" + json.dumps([self.run, self.before, self.rollbacks]).encode()

    def signed(self, identity: Identity) -> Epoch:
        """The same, signed by the server."""
        identity.key()  # an error unless it is that of the certificate
        certificate = identity.certificate().decode()
        signature = identity.sign(self.signed_text).hex()
        return replace(self, certificate=certificate, signature=signature)

    @staticmethod
    def from_dict(values: Any) -> Epoch:
        """The inverse of `asdict`; the types of fields are checked before."""
        try:
            return Epoch(**{**values, "rollbacks": tuple(values["rollbacks"])})
        except (TypeError, KeyError):
            raise DecodeError("a request that does not say where the server stands.") from None


def _asked_beyond(patience: Patience | None, own: Mapping[Seat, bytes]) -> int | None:
    """How many children are asked, where fewer are enough; None: the error of any ends the ask."""
    if patience is None or patience.quorum >= len(own):
        return None
    return len(own)


@dataclass(eq=False)
class Node(Station):
    """One node of a deployed tree."""

    database: Disk = field(kw_only=True)
    transport: Transport | None = field(default=None, kw_only=True)
    """The way to the children; None for a device."""
    patience: Patience | None = field(default=None, kw_only=True)
    """When asks go on without some children; None: never, however long it takes."""
    shares_rows: bool = field(default=True, kw_only=True)
    """Whether the server may read what this node keeps, for a checkpoint or to look at it."""
    subtrees: Mapping[Seat, Subtree] = field(default_factory=dict, kw_only=True)
    """The ids of every child and of the nodes below it: a child states facts of these alone."""
    norm_bounds: Mapping[Seat, float] = field(default_factory=dict, kw_only=True)
    """The largest norm of a row that a child may answer in training; others have no bound."""
    drops_diverged: bool = field(default=False, kw_only=True)
    """Whether the answer of a device that diverged is a bad one, where there is a quorum."""
    identity: Identity | None = field(default=None, kw_only=True)
    """Signs where the server stands, or checks it; None: nobody signs."""
    jump: int = field(default=0, kw_only=True)
    """How many rounds from its disk the server may stand, once, as the operator says."""

    def __post_init__(self, spec: NodeSpec) -> None:
        self._alone = threading.Lock()
        self._unwritten: tuple[AskKey, dict[Seat, Answer]] | None = None
        """The last ask of the program under way and its answers, which no journal has."""
        self._replies_held: list[tuple[AskKey, Seat, HeldReply]] = []
        """The replies to the last ask of the program under way, which the journal may get."""
        self._last_answers: tuple[AskKey, Mapping[Seat, Answer]] | None = None
        """The last ask of the program under way, and its answers while they are reduced."""
        self._heard: dict[Seat, int] = {}
        """The numbers of the last changes that children have told since this node was made."""
        self._answered_key: AskKey | None = None
        """The key of the ask that this node answers."""
        self.rehearsed = Rehearsed(self.place.links)
        self._dropped_notes = False
        """Whether the log has said that notes of children are dropped."""
        self._ended: list[Any] = []
        """(key, who was missing in trainings) of the last asks that ended before the one under way.

        A parent that had given up waiting for such an answer learns from it what has happened.
        Scores are among them where a child told with its scores what it had trained.
        """
        self._missed = MissedAsks()
        """What children did not answer; their disks may have ended it."""
        self._unfollowed: set[AskKey] = set()
        """Orders of the server that were not followed: training first, they would hold others."""
        self.missing: list[Missing] = []
        """Who was missing here and below in the play that is under way."""
        self.unreached: list[list[Any]] = []
        """(tier, number) of those below that did not follow the last order, or kept their rows."""
        self.epoch = Epoch("", 0)
        self._templates = _templates(self.database.fact("kept") or [])
        if self.jump and not self.top:  # orders of rounds that the server may not know
            self.database.note(**{OWED_ORDERS: []})
        self._owed_orders = OwedOrders(self.database)
        if self.transport is not None:
            self._owed_orders.hand_to(self.transport)
        super().__post_init__(spec)

    @property
    def top(self) -> bool:
        """Whether this is the server."""
        return self.place.tier == self.place.tiers[0]

    @property
    def seats(self) -> range:
        """The ids of all children."""
        first = self.place.first_child
        return range(first, first + self.place.children)

    @cached_property
    def subtree(self) -> Subtree:
        """The ids of this node and of all nodes below it."""
        out = {self.place.tier: range(self.place.number, self.place.number + 1)}
        for subtree in self.subtrees.values():  # in the order of their ids
            for tier, ids in subtree.items():
                out[tier] = range(out.get(tier, ids).start, ids.stop)
        return out

    def forget(self) -> None:
        """Forget what is in memory, and read the disk."""
        self._let_go()
        store = DiskStore(self.sizes, place=self.place, disk=self.database, copies=self.top)
        store.load()
        self._missed = MissedAsks.read(self.database.fact(OWED) or [])
        self.store = store

    def kept(self) -> dict[ColumnKey, Tensor]:
        """Empty rows of everything that this node and those below it keep, by (tier, name)."""
        for key, template in super().kept().items():
            self._templates.setdefault(key, template)
        return dict(self._templates)

    def reports_of(self, tier: str) -> set[str]:
        """The names of what nodes of a tier report, from a rehearsal."""
        return {name for reporting, name in self.rehearsed.widths if reporting == tier}

    def learn(self, tier: str, name: str, template: Tensor) -> None:
        """Rows like this one are kept somewhere below."""
        self._templates.setdefault((tier, name), template)

    # Asking

    def _sent(
        self, question: Question, down: list[Packed], each: Sequence[Packed]
    ) -> Iterator[bytes | None]:
        """The replies of all children that run, in id order: from the journal, if it has them."""
        owner, parameters = self._owner(question.program)
        header = {
            "parameters": parameters,
            "rows": len(question.rows),
            "shapes": [list(values.shape[1:]) for values in question.each],
        }
        common = sealed(header, down)
        if not self._link(question.key("up")).wire.update:
            down.clear()  # no answer is a difference from these rows
        rows = None
        if self._play.lane == "score":  # the same program may score other rows
            rows = common
        key = AskKey(
            run=self.epoch.run,
            round=question.round,
            lane=self._play.lane,
            path=question.path,
            program=f"{owner}.{question.program.__name__}",
            parameters=digest(parameters, rows),
            attempt=self.epoch.attempt,
        )
        self._missed.ask(key)
        answers = self.database.journalled(key)
        if answers is None:
            check = self._reply_check(key, question)
            answers = self._asked(key, common, self._own_requests(question, each), check)
        self._last_answers = (key, answers)
        del common, rows
        for child in question.ids.tolist():
            answer = answers[child]
            if answer.status == "answered":
                data = answer.read()
                if child in self._missed:  # perhaps it lost the ask for which it was late
                    ended = header_of(data).get("ended", [])
                    self.missing += self._missed.settle(child, ended)
                yield data
                continue
            where = (question.round, self._play.lane, question.path, question.tier)
            entry = Missing(*where, child, answer.status)
            self.missing.append(entry)
            self._missed.add(key, entry)
            yield None

    def _reply_check(self, key: AskKey, question: Question) -> ReplyCheck:
        """What every answer to a question must be, from a rehearsal on no rows."""
        _, schemas = self._expected(question)
        answering = question.ids[question.answers].tolist()
        owner = getattr(question.program, "__self__", None)
        return ReplyCheck(
            key,
            schemas,
            frozenset(answering),
            self._link(question.key("up")),
            self.subtrees,
            replace(self.rehearsed, templates=self.kept()),
            self.norm_bounds,
            self.drops_diverged and self.patience is not None,
            owner if isinstance(owner, Scorer) else None,
        )

    def _own_requests(self, question: Question, each: Sequence[Packed]) -> dict[Seat, bytes]:
        """What every child gets for itself."""
        answering = set(question.answers.tolist())
        epoch = asdict(self.epoch)
        out = {}
        for position, child in enumerate(question.ids.tolist()):
            idle = None
            if question.idle is not None:
                idle = bool(question.idle[position])
            header = {"epoch": epoch, "idle": idle, "answers": position in answering}
            out[child] = seal(header, [packed.only(position) for packed in each])
        return out

    def _asked(
        self, key: AskKey, common: Pieces, own: Mapping[Seat, bytes], check: ReplyCheck
    ) -> dict[Seat, Answer]:
        """Ask children; their answers are to be journalled before anything else is asked."""
        self._journal()
        self._trim(len(common) * len(own))  # the answers may be as long
        fault("asking")
        patience = self._patience(len(own))
        check.asked = _asked_beyond(patience, own)
        answers = dict(self._reach().ask(key, common, own, patience, check, check.most))
        fault("answers-received")
        self._trim(sum(len(answer.data) for answer in answers.values()))
        answered = {seat for seat, answer in answers.items() if answer.status == "answered"}
        if check.failed & answered:
            return answers  # the round ends here
        for seat in answered:
            self._heard[seat] = check.numbers.get(seat, 0)
            self._owed_orders.settle(seat)
        self._unwritten = (key, answers)
        return answers

    def _journal(self) -> None:
        """Write what children answered last: after the next ask they have it no more.

        An ask that is the last one of its program is never written. Until this node has ended the
        program on its disk, its children have their answers on theirs.
        """
        if self._unwritten is not None:
            self.database.journal(*self._unwritten, self._heard)
        for key, seat, held in self._replies_held:
            held.drop(partial(self._read_again, key, seat))
        self._let_go()

    def _let_go(self) -> None:
        """Hold no answers of children any more."""
        self._unwritten = None
        self._replies_held = []
        self._last_answers = None

    def _hold_reply(self, question: Question, position: int, held: HeldReply) -> None:
        """Remember a reply: a program that asks again seldom reduces it once more.

        One that waits outside memory goes back there until it is reduced.
        """
        assert self._last_answers is not None
        key, answers = self._last_answers
        seat = int(question.ids[position])
        answer = answers[seat]
        if isinstance(answer.data, Stored):
            held.drop(lambda: open_sealed(answer.read())[1])
        else:
            self._replies_held.append((key, seat, held))

    def _read_again(self, key: AskKey, seat: Seat) -> list[Packed]:
        """The messages of a reply that the journal has."""
        _, messages = open_sealed(self.database.journalled_of(key, seat))
        return messages

    def _patience(self, asked: int) -> Patience | None:
        """How long to wait for so many children; a quorum above them is all of them."""
        if self.patience is None:
            return None
        return Patience(self.patience.seconds, min(self.patience.quorum, asked))

    def _reach(self) -> Transport:
        if self.transport is None:
            raise ProgramError(f"{self.place} asked its children, but it has no transport.")
        return self.transport

    def _child_error(self, child: Seat, kind: str, text: str) -> CoveyError:
        """The error that a child answered; it names no nodes but those of its own subtree."""
        tier = self.place.tiers[self.place.tiers.index(self.place.tier) + 1]
        subtree = self.subtrees.get(child, {})
        return child_error(kind, text, (tier, child), subtree, self.place.tiers)

    def _take_facts(self, header: dict[str, Any]) -> None:
        """Add the facts of a subtree, and learn which residuals are kept there.

        Everything else that is kept there is known from rehearsals: no child can add to it.
        """
        super()._take_facts({**header, "facts": self._believed(header)})
        for tier, name, *_ in header["kept"]:
            template = self.rehearsed.residuals.get((tier, name))
            if template is not None:
                self._templates.setdefault((tier, name), template)
        self.missing += [Missing(*values) for values in header["missing"]]

    def _believed(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """The facts of a child without notes that no rehearsal has; the log names the first."""
        facts: dict[str, Any] = header["facts"]
        believed = self.rehearsed.believed(facts)
        if len(believed["notes"]) < len(facts["notes"]) and not self._dropped_notes:
            self._dropped_notes = True
            names = [entry[1] for entry in facts["notes"] if entry not in believed["notes"]]
            LOG.warning(
                "note_dropped: %s, of the child on seat %s: the program notes it on some rows and "
                "not on none; note the same names always",
                some(names),
                header["seat"],
            )
        return believed

    # Answering

    def answer(self, key: AskKey, common: bytes, own: bytes) -> bytes:
        """Answer a request of the parent: run a program, or follow an order.

        A key that was answered before is answered from the disk. An error travels back.
        """
        with self._alone:
            self._trim(len(common) + len(own))
            try:
                if key.lane == "order":
                    return self._followed(key, common, own)
                return self._answered(key, common, own)
            except DecodeError as error:  # before anything has changed
                failure = ["TransportError", f"{self.place} refuses its parent: {error}"]
            except CoveyError as error:
                text = str(error)
                if isinstance(error, CheckpointError) and str(self.database.path) in text:
                    text = f"{self.place}: {text}"
                failure = [type(error).__name__, text]
            except (OSError, MemoryError) as error:
                reason = str(error) or type(error).__name__
                fix = "mend its machine, and start the server again if it has ended"
                failure = ["TransportError", f"{self.place} cannot go on: {reason}; {fix}."]
            except Exception as error:  # of a program: it ends the round everywhere, with its text
                failure = ["ProgramError", f"{self.place}: {type(error).__name__}: {error}"]
            self.forget()  # what a program has kept before it failed
            if key.lane == "order":
                return parcel.pack({"error": failure})
            return seal({"error": failure}, [])

    def _trim(self, size: int) -> None:
        """Give back memory that is not in use, before or after so many bytes of messages."""
        if self.transport is not None and size > _MUCH:
            self.database.shrink()
            give_back_free()

    def _answered(self, key: AskKey, common: bytes, own: bytes) -> bytes:
        header, messages = read_ask(self, key, common, own)
        self._catch_up(Epoch.from_dict(header["epoch"]), key)
        written = self.database.answer(key)
        if written is not None:
            return written
        if key.lane == "train" and key.round < self.epoch.before:
            late = f"round {key.round + 1} after it was good"
            raise TransportError(f"{self.place} is asked to train in {late}.")
        if self.database.trained(key):
            again = f"asked again for {key}, which it has answered, and others since"
            raise TransportError(f"{self.place} is {again}: {_BEHIND}, or start a new run.")
        attempts = {order.attempt for order in self._unfollowed}
        if key.lane == "train" and self.epoch.attempt in attempts:
            fix = "mend its machine, and start its process again"
            raise TransportError(f"{self.place} could not follow an order; {fix}.")
        fault("inside-ask")
        owner, _, program = key.program.rpartition(".")
        header |= {
            "round": key.round,
            "lane": key.lane,
            "path": key.path,
            "owner": owner,
            "program": program,
        }
        self.missing.clear()
        self._answered_key = key
        self._ended = self.database.fact(ENDED) or []
        release(common)
        reply = self._served(header, messages)
        facts: dict[str, Any] = {
            **self._owed_orders.facts(),
            "kept": self._described(),
            OWED: self._missed.facts(),
            "epoch": [self.epoch.before, self.epoch.attempt],
        }
        trainings = [entry for entry in self.missing if entry.lane == "train"]
        if key.lane == "train" or trainings:
            missing = [list(astuple(entry)) for entry in trainings]
            nodes = 1 + sum(map(nodes_of, self.subtrees.values()))
            facts[ENDED] = remembered([*self._ended, [str(key), missing]], nodes)
        self.database.end_ask(key, self._changed(), reply, facts, self._heard)
        self._written()
        return reply

    def _facts(self) -> dict[str, Any]:
        """What goes up beside an answer."""
        return {
            **super()._facts(),
            "kept": self._described(),
            "missing": self._missing_facts(),
            "ended": self._ended,
            "number": self.database.number + 1,  # of this answer, once it is written
            "key": str(self._answered_key),
            "seat": self.place.number,
        }

    def _pack(self, crossing: Crossing) -> Packed:
        """The bytes of a message; a DivergedError where an answer would not arrive finite.

        A parent refuses such an answer, and cannot know that it is an honest one.
        """
        packed = super()._pack(crossing)
        key = crossing.key
        link = self._link(key)
        if key.direction == "down" or link.wire.lossless:
            return packed
        rows = rows_of(link.unpack(packed))
        if rows is not None and not native.finite(rows):
            raise DivergedError(
                f"round {self._play.round + 1}: the answer of {key.program} of {self.place} is "
                "not finite as its link sends it; the state of the round before remains. "
                "Lower the step sizes or the penalties: `covey advise FILE --write` finds them."
            )
        return packed

    def _record(self, tier: str, ids: Ids, call: Call, idle: Tensor | None) -> None:
        """Store what a call kept; one on no rows tells what nodes below report.

        A program that has ended asks nothing more, so its last answers need no journal.
        """
        if len(ids):
            self._let_go()
        else:
            self.rehearsed.learn(tier, call)
        super()._record(tier, ids, call, idle)

    def _on_no_rows(self, question: Question) -> Any:
        """As for every station; it tells too which residuals of links nodes will keep."""
        answer = super()._on_no_rows(question)
        owner, _ = self._owner(question.program)
        schemas = [Schema.of(message) for message in (*question.rows, *map(flat, question.each))]
        program = f"{owner}.{question.program.__name__}"
        form = ask_form(self._play.lane, question.tier, program, schemas)
        widths = [schema.width for schema in schemas]
        self.rehearsed.asks[form] = max(self.rehearsed.asks.get(form, 0), *widths, 0)
        for number, message in enumerate(question.rows):
            self._learn_residual(question.key("down", number), message)
        for number, message in enumerate(messages_of(answer)):
            self._learn_residual(question.key("up", number), message)
        return answer

    def _learn_residual(self, key: MessageKey, message: Message) -> None:
        rows = rows_of(message)
        feedback = self.wires[key.link, key.direction].feedback
        if rows is not None and feedback and not isinstance(message, Exact):
            name = residual_name(key)
            self.rehearsed.residuals[key.sender, name] = rows[:0].detach().clone()
            self.rehearsed.kept[key.sender, name] = rows[:0].detach().clone()

    def rehearse(self, owner: Any, round: int) -> None:
        """Run the server's program of the algorithm, or of another owner, on no rows here.

        Afterwards `rehearsed` knows what nodes are asked for and keep, and the store is as before.
        """
        store = self.store
        self.store = OwnStore(self.sizes, place=self.place)
        lane: Lane = "train" if owner is None else "score"
        program = (owner or self.algorithm).server
        try:
            self.play(program, self.start[:0], round=max(round, 0), lane=lane)
        finally:
            self.store = store

    def _missing_facts(self) -> list[Any]:
        """Who was missing in the ask under way, as JSON can hold it."""
        return [list(astuple(entry)) for entry in self.missing]

    def _described(self) -> list[Any]:
        """The shape and type of everything that is kept here and below, as JSON can hold it."""
        out = []
        for (tier, name), template in self.kept().items():
            out.append([tier, name, dtype_name(template.dtype), list(template.shape[1:])])
        return out

    def _check_epoch(self, epoch: Epoch, key: AskKey) -> None:
        """Refuse what the server has not signed, and an ask of a later round than it says."""
        told = f"{self.place} is told that round {epoch.before + 1} comes next"
        if self.identity is not None and (epoch != self.epoch or not epoch.signature):
            try:
                signed = (epoch.certificate.encode(), bytes.fromhex(epoch.signature))
                verify = partial(self.identity.verify, *signed, epoch.signed_text, ended=True)
                read_again(partial(verify, self.place.tiers[0]))
            except ConfigError:  # of this node's own files
                raise
            except (TransportError, ValueError) as error:
                reason = f"which the server has not signed: {error}".rstrip(".")
                raise TransportError(f"{told}, {reason}; a parent lied.") from None
        if key.round > epoch.before:
            raise TransportError(f"{told}, and asked for {key}; a parent lied.")

    def _jumps(self, epoch: Epoch) -> bool:
        """Whether the operator lets this node follow to where the server stands, which needs it.

        The server is behind the disk. Or it is far ahead, and nobody has signed that.
        """
        before, attempt = self.database.fact("epoch") or (epoch.before, epoch.attempt)
        steps = (epoch.before - before, epoch.attempt - attempt)
        if min(steps) >= 0 and (self.identity is not None or max(steps) <= _JUMP):
            return False
        most = max(map(abs, steps))
        told = f"round {epoch.before + 1} comes next, after round {before + 1} did"
        if most > self.jump:
            reason = f"{_BEHIND}, or"
            if min(steps) >= 0:
                reason = f"more than {_JUMP} rounds at once, and no certificate tells who says so;"
            fix = f"let {self.place} believe it with covey node ... --jump {most}, once"
            raise TransportError(f"{self.place} is told that {told}: {reason} {fix}.")
        LOG.warning("jumped: %s believes that %s", self.place, told)
        self.jump = 0
        FollowedOrders(self.database).forget()
        self.database.note(epoch=[epoch.before, epoch.attempt])
        return True

    def _catch_up(self, epoch: Epoch, key: AskKey) -> None:
        """Commit or roll back what this node kept before, as the server did."""
        self._check_epoch(epoch, key)
        run = self.database.fact("run")
        if run is None:
            self.database.note(run=epoch.run)
        elif run != epoch.run:
            fix = "give this node an empty folder, or the server its own"
            raise TransportError(f"{self.place} has the disk of another run; {fix}.")
        jumps = self._jumps(epoch)
        self.epoch = epoch
        if key.lane == "order" and key.program in _ONCE:  # until it is followed; a lie never is
            self._unfollowed.add(key)
        pending = self.database.pending
        if pending is None:
            return
        round, _ = pending
        if epoch.undone(*pending) or (jumps and round >= epoch.before):
            fault("between-rounds")
            good = {name: self.database.fact(kept) or [] for name, kept in _GOOD.items()}
            self.database.rollback(**good)
            self.forget()
        elif round < epoch.before:
            fault("between-rounds")
            good = {kept: self.database.fact(name) or [] for name, kept in _GOOD.items()}
            self.database.commit(**good)

    # Rows

    def _changed(self) -> list[NodeRow]:
        """The rows that changed since they were written to the disk."""
        assert isinstance(self.store, DiskStore)
        return [self._row(name, label) for name, label in sorted(self.store.touched)]

    def _written(self) -> None:
        """Everything in memory is on the disk."""
        assert isinstance(self.store, DiskStore)
        self.store.written()

    def _row(self, name: str, label: str) -> NodeRow:
        """What this node keeps under a name; its numbers are only to be read."""
        tier = self.place.tier
        number = self.place.number
        assert isinstance(self.store, DiskStore)
        version = self.store.peek(tier, name, label)
        if version is None:
            return NodeRow(tier, number, name, label, 0, None)
        round, row = version
        return NodeRow(tier, number, name, label, round, row)

    @property
    def _only(self) -> slice:
        number = self.place.number
        return slice(number, number + 1)

    def end_round(
        self,
        state: bytes | None,
        records: Sequence[tuple[int, str]],
        missing: Sequence[Missing] = (),
        *,
        played: bool = True,
    ) -> None:
        """A round of the server is good; `state` is where the run stands."""
        facts = {
            **self._owed_orders.facts(),
            "kept": self._described(),
            OWED: self._missed.facts(),
            "run": self.epoch.run,
            "before": self.epoch.before,
            "rollbacks": list(self.epoch.rollbacks),
        }
        entries = [list(astuple(entry)) for entry in missing]
        changed = self._changed()
        self.database.end_round(changed, facts, state, records, entries, self._heard, played=played)
        self._written()

    def undo_round(self) -> None:
        """The server goes back to the last good round."""
        self.database.rollback(rollbacks=list(self.epoch.rollbacks))
        self.forget()

    # Orders

    def order(
        self,
        name: str,
        arguments: Mapping[str, Any],
        rows: Sequence[NodeRow] = (),
        *,
        round: int,
        deepest: str | None = None,
        asked: AskKey | None = None,
    ) -> list[NodeRow]:
        """Do something here and at all nodes down to a tier; the rows that come back.

        `rows` are those of the whole subtree; each has a route in `arguments` where it must.
        `asked` is the key of the parent's order.
        """
        out = self._follow_once(name, arguments, rows, round, asked)
        last = deepest or self.place.tiers[-1]
        if self.place.tiers.index(last) <= self.place.tiers.index(self.place.tier):
            return out
        if name == "write":
            rows = [*rows, *own_models.rows_for_below(self, arguments)]
        header = {"name": name, "arguments": dict(arguments), "round": round, "deepest": last}
        epoch = asdict(self.epoch)
        common = Pieces(())
        if arguments.get("broadcast"):
            common = Pieces(node_rows.pieces(rows))  # once for all children
        own = {}
        for child in self.seats:
            part, routes = self._part(child, rows, arguments)
            changed = {**header, "epoch": epoch}
            if routes is not None:
                changed["arguments"] = {**arguments, "routes": routes}
            own[child] = parcel.pack(changed, part)
        lane: AskLane = "order"
        key = AskKey(
            self.epoch.run, round, lane, 0, name, digest(header), attempt=self.epoch.attempt
        )
        patience = self._order_patience(name, arguments, len(own))
        check = OrderCheck(name, arguments, self.subtrees, self.kept())
        check.asked = _asked_beyond(patience, own)
        answers = self._reach().ask(key, common, own, patience, check, check.most)
        self._note_owed_orders(key, arguments.get("label", ""), own, answers)
        return out + self._rows_of_orders(name, answers)

    def _note_owed_orders(
        self, key: AskKey, label: str, own: Mapping[Seat, bytes], answers: Mapping[Seat, Answer]
    ) -> None:
        """Remember who has not followed an order that depends on when it is followed."""
        owing = {}
        for seat, answer in answers.items():
            if answer.status == "answered":
                self._owed_orders.settle(seat)
            elif key.program in _ONCE:
                owing[seat] = own[seat]
        self._owed_orders.add(key, label, owing, self.epoch.before)

    def _order_patience(
        self, name: str, arguments: Mapping[str, Any], asked: int
    ) -> Patience | None:
        """How long an order waits; None: for all children, however long it takes."""
        patience = self._patience(asked)
        if patience is None or name in ("hold", "release"):
            return patience
        if not arguments.get(ENDING):
            return None
        return Patience(max(patience.seconds, END_SECONDS), patience.quorum)

    def _rows_of_orders(self, name: str, answers: Mapping[Seat, Answer]) -> list[NodeRow]:
        """The rows that came back from children who followed an order."""
        out: list[NodeRow] = []
        failures = []
        numbers = {}
        for child in self.seats:
            if answers[child].status != "answered":
                below = self.place.below(self.place.tier)
                self.unreached.append([below, child])  # it follows when it is back
                continue
            reply, rows = parcel.unpack(answers[child].read())
            if reply["error"] is not None:
                failures.append(self._child_error(child, *reply["error"]))
                continue
            numbers[child] = reply["number"]
            if name == "write":
                # The answer to an order is not written down: what it corrects is still to be told.
                self.missing += self._missed.corrections(child, reply["ended"])
                self.missing += [Missing(*values) for values in reply["missing"]]
            self.unreached += reply.get("unreached", [])
            out += rows
        if failures:
            raise failures[0]
        if name in _CHANGING:
            self._heard |= numbers
            self.database.receive(numbers)
        return out

    def _part(
        self, child: Seat, rows: Sequence[NodeRow], arguments: Mapping[str, Any]
    ) -> tuple[list[NodeRow], list[list[int]] | None]:
        """The rows of a child's subtree, and their routes; None where rows have no routes."""
        routes = arguments.get("routes")
        if routes is None:
            return [], None
        level = self.place.tiers.index(self.place.tier) + 1
        part = []
        chosen = []
        for kept, route in zip(rows, routes, strict=True):
            if len(route) > level and route[level] == child:
                part.append(kept)
                chosen.append(route)
        return part, chosen

    def _followed(self, key: AskKey, common: bytes, own: bytes) -> bytes:
        """Follow an order of the parent."""
        header, rows = read_order(self, key, common, own)
        self._catch_up(Epoch.from_dict(header["epoch"]), key)
        self.missing.clear()
        self.unreached.clear()
        out = self.order(
            key.program,
            header["arguments"],
            rows,
            round=key.round,
            deepest=header["deepest"],
            asked=key,
        )
        self._unfollowed.discard(key)
        ended = self.database.fact(ENDED) or []
        facts = {
            "error": None,
            "missing": self._missing_facts(),
            "ended": ended,
            "number": self.database.number,
            "unreached": self.unreached,
        }
        return parcel.pack(facts, out)

    def _follow_once(
        self,
        name: str,
        arguments: Mapping[str, Any],
        rows: Sequence[NodeRow],
        round: int,
        asked: AskKey | None,
    ) -> list[NodeRow]:
        """As `_follow`, but not again where an order comes again.

        After a broken connection a parent cannot know whether its order was followed, and sends it
        again. The node may have trained meanwhile. So an order is not followed either where a later
        one on the same label was.
        """
        if asked is None or name not in _ONCE:
            return self._follow(name, arguments, rows, round)
        followed = FollowedOrders(self.database)
        if not followed.includes(arguments["label"], asked):
            self._follow(name, arguments, rows, round)
            followed.add(arguments["label"], asked)
        return []

    def _follow(
        self, name: str, arguments: Mapping[str, Any], rows: Sequence[NodeRow], round: int
    ) -> list[NodeRow]:
        """Do at this node alone what an order says."""
        if name in ("read", "freeze"):
            return self._handed_out(name, arguments)
        if name == "thaw":
            own_id = (self.place.tier, self.place.number)
            self.database.replace([row for row in rows if (row.tier, row.number) == own_id])
            self.forget()
        elif name == "write":
            with torch.no_grad():
                own_models.write(self, arguments, rows)
        elif name == "hold":
            self._hold_version(arguments["label"], arguments["columns"])
            self._keep_changes(round)
        else:
            self._release_version(arguments["label"])
            self._keep_changes(round)
        return []

    def _keep_changes(self, round: int) -> None:
        """Write what an order has changed; the server does it when the round is good."""
        if self.top:
            return
        changed = self._changed()
        if changed:
            self.database.keep(changed, round=round, attempt=self.epoch.attempt)
        self._written()

    def _hold_version(self, label: str, columns: Sequence[Sequence[str]]) -> None:
        assert isinstance(self.store, DiskStore)
        for tier, name in columns:
            column = self.store.columns.get((tier, name))
            if tier == self.place.tier and column is not None:
                column.hold(label, self._only)
                self.store.touched.add((name, label))

    def _release_version(self, label: str) -> None:
        assert isinstance(self.store, DiskStore)
        for (tier, name), column in self.store.columns.items():
            if tier == self.place.tier and label in column.held:
                column.release(label, self._only)
                self.store.touched.add((name, label))

    def own_rows(self, name: str, label: str) -> list[NodeRow]:
        """What this node keeps under a name, now or in a held version: one row or none."""
        if (self.place.tier, name) not in self.store.columns:
            return []
        kept = self._row(name, label)
        return [] if kept.row is None else [kept]

    def _handed_out(self, name: str, arguments: Mapping[str, Any]) -> list[NodeRow]:
        """The rows that an order asks for: those of a name, or all; of some nodes, or all."""
        part = arguments.get("part")
        if part is not None and not RowRange(*part).has(self.place.tier, self.place.number):
            return []
        if name == "read":
            rows = self.own_rows(arguments["name"], arguments["label"])
        else:
            rows = self._all_rows(arguments.get("name"))
        if not rows or self.shares_rows:
            return rows
        if not arguments.get(ENDING):
            fix = "use its models on its own machine"
            raise TransportError(f"{self.place} does not hand out the rows it keeps; {fix}.")
        self.unreached.append([self.place.tier, self.place.number])
        return []

    def _all_rows(self, only: str | None = None) -> list[NodeRow]:
        """Everything that this node keeps and holds, under one name or under all."""
        out = []
        for (tier, name), column in self.store.columns.items():
            if tier != self.place.tier or only not in (None, name):
                continue
            for label in [PRESENT, *sorted(column.held)]:
                kept = self._row(name, label)
                if kept.row is not None:
                    out.append(kept)
        return out

    # Joining

    def refusal(self, seat: Seat, last_key: str | None) -> str | None:
        """Why a child with this last key may not join: its disk lacks what it has answered."""
        reason = self.database.behind(seat, last_key, self._heard.get(seat, 0))
        if reason is None:
            return None
        tier = self.place.tiers[self.place.tiers.index(self.place.tier) + 1]
        return f"{tier} {seat}: {reason}"


def _templates(described: Sequence[Any]) -> dict[ColumnKey, Tensor]:
    """Empty rows by (tier, name), from what `Node._described` gave."""
    out = {}
    for tier, name, dtype, shape in described:
        out[tier, name] = torch.zeros((0, *shape), dtype=dtype_of(dtype))
    return out
