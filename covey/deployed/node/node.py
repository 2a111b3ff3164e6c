"""One node of a deployed tree: a station with a transport to its children, and a disk.

Everything that a node keeps is on its disk when it answers. A node object that is dropped at any
moment, and made again from the disk, goes on as if nothing had happened.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from covey import native
from covey.data.shards import some
from covey.deployed.faults import fault
from covey.deployed.node import own_models
from covey.deployed.node.asks import ONCE, ChildAsks, Order
from covey.deployed.node.checked import ReplyCheck
from covey.deployed.node.checked_facts import Rehearsed, Subtree, ask_form, nodes_of, subtree
from covey.deployed.node.checked_orders import ENDING, read_ask, read_order
from covey.deployed.node.disk import ENDED, GOOD_ENDED, GOOD_MISSED, MISSED, Disk
from covey.deployed.node.disk_store import DiskStore
from covey.deployed.node.epoch import BEHIND, Epoch, Standing
from covey.deployed.node.missed import FollowedOrders, Missing, remembered
from covey.deployed.node.node_rows import (
    NodeRow,
    dtype_name,
    dtype_of,
    in_part,
    seal_order,
    sealed_error,
)
from covey.deployed.transport.transport import AskKey, Seat, digest
from covey.errors import CheckpointError, CoveyError, DecodeError, DivergedError, TransportError
from covey.kernel.nodes import Call
from covey.kernel.replies import Exact, rows_of
from covey.kernel.store.store import ColumnKey
from covey.links.packed import Packed, Schema
from covey.runs.scores.scoring import Scorer
from covey.runtimes.alone.envelope import release, seal, sealed
from covey.runtimes.alone.loopback import HeldReply, Station, messages_of
from covey.runtimes.alone.place import OwnStore
from covey.runtimes.base import Crossing, Question, flat, residual_name
from covey.runtimes.contract import Lane
from covey.runtimes.spec import NodeSpec
from covey.types import Ids

LOG = logging.getLogger("covey.deployed")
_GOOD = {MISSED: GOOD_MISSED, ENDED: GOOD_ENDED}
"""Facts to which a rollback returns: under which name they stand as after the last good round."""


@dataclass(eq=False)
class Node(Station):
    """One node of a deployed tree."""

    database: Disk = field(kw_only=True)
    standing: Standing = field(kw_only=True)
    """Where the server stands."""
    asks: ChildAsks = field(kw_only=True)
    """The asks to the children."""
    shares_rows: bool = field(default=True, kw_only=True)
    """Whether the server may read what this node keeps, for a checkpoint or to look at it."""
    norm_bounds: Mapping[Seat, float] = field(default_factory=dict, kw_only=True)
    """The largest norm of a row that a child may answer in training; others have no bound."""
    drops_diverged: bool = field(default=False, kw_only=True)
    """Whether the answer of a device that diverged is a bad one, where there is a quorum."""

    def __post_init__(self, spec: NodeSpec) -> None:
        self._alone = threading.Lock()
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
        self._unfollowed: set[AskKey] = set()
        """Orders of the server that were not followed: training first, they would hold others."""
        self._templates: dict[ColumnKey, Tensor] = {}
        for tier, name, dtype, shape in self.database.fact("kept") or []:
            self._templates[tier, name] = torch.zeros((0, *shape), dtype=dtype_of(dtype))
        super().__post_init__(spec)

    @property
    def epoch(self) -> Epoch:
        """Where the server stands."""
        return self.standing.epoch

    @property
    def own(self) -> DiskStore:
        """The rows that this node keeps."""
        assert isinstance(self.store, DiskStore)
        return self.store

    @property
    def top(self) -> bool:
        """Whether this is the server."""
        return self.place.tier == self.place.tiers[0]

    @cached_property
    def subtree(self) -> Subtree:
        """The ids of this node and of all nodes below it."""
        return subtree(self.place.tier, self.place.number, self.asks.subtrees.values())

    def forget(self) -> None:
        """Forget what is in memory, and read the disk."""
        self.asks.forget()
        store = DiskStore(self.sizes, place=self.place, disk=self.database, copies=self.top)
        store.load()
        self.store = store

    def kept(self) -> dict[ColumnKey, Tensor]:
        """Empty rows of everything that this node and those below it keep, by (tier, name)."""
        for key, template in super().kept().items():
            self._templates.setdefault(key, template)
        return dict(self._templates)

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
        # The same program may score other rows.
        rows = common if self._play.lane == "score" else None
        key = AskKey(
            run=self.epoch.run,
            round=question.round,
            lane=self._play.lane,
            path=question.path,
            program=f"{owner}.{question.program.__name__}",
            parameters=digest(parameters, rows),
            attempt=self.epoch.attempt,
        )
        self.asks.missed.ask(key)
        answers = self.database.journalled(key)
        if answers is None:
            check = self._reply_check(key, question)
            answers = self.asks.ask(key, common, self._own_requests(question, each), check)
        self.asks.reduce(key, answers)
        del common, rows
        for child in question.ids.tolist():
            yield self.asks.reply(key, question.tier, child, answers[child])

    def _reply_check(self, key: AskKey, question: Question) -> ReplyCheck:
        """What every answer to a question must be, from a rehearsal on no rows."""
        _, schemas = self._expected(question)
        answering = question.ids[question.answers].tolist()
        owner = getattr(question.program, "__self__", None)
        return ReplyCheck(
            key=key,
            schemas=schemas,
            answering=frozenset(answering),
            link=self._link(question.key("up")),
            subtrees=self.asks.subtrees,
            rehearsed=replace(self.rehearsed, templates=self.kept()),
            bounds=self.norm_bounds,
            drops_diverged=self.drops_diverged and self.asks.patience is not None,
            scorer=owner if isinstance(owner, Scorer) else None,
        )

    def _own_requests(self, question: Question, each: Sequence[Packed]) -> dict[Seat, bytes]:
        """What every child gets for itself."""
        answering = set(question.answers.tolist())
        epoch = asdict(self.epoch)
        out = {}
        for position, child in enumerate(question.ids.tolist()):
            idle = None if question.idle is None else bool(question.idle[position])
            header = {"epoch": epoch, "idle": idle, "answers": position in answering}
            out[child] = seal(header, [packed.only(position) for packed in each])
        return out

    def _hold_reply(self, question: Question, position: int, held: HeldReply) -> None:
        self.asks.hold(int(question.ids[position]), held)

    def _child_error(self, child: Seat, kind: str, text: str) -> CoveyError:
        return self.asks.error(child, kind, text)

    def _take_facts(self, header: dict[str, Any]) -> None:
        """Add the facts of a subtree, and learn which residuals are kept there.

        Everything else that is kept there is known from rehearsals: no child can add to it. Notes
        that no rehearsal has are left out; the log names the first.
        """
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
        super()._take_facts({**header, "facts": believed})
        for tier, name, *_ in header["kept"]:
            template = self.rehearsed.residuals.get((tier, name))
            if template is not None:
                self._templates.setdefault((tier, name), template)
        self.asks.missing += [Missing(*values) for values in header["missing"]]

    # Answering

    def answer(self, key: AskKey, common: bytes, own: bytes) -> bytes:
        """Answer a request of the parent: run a program, or follow an order.

        A key that was answered before is answered from the disk. An error travels back.
        """
        with self._alone:
            self.asks.trim(len(common) + len(own))
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
            return sealed_error(key.lane, *failure)

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
            raise TransportError(f"{self.place} is {again}: {BEHIND}, or start a new run.")
        attempts = {order.attempt for order in self._unfollowed}
        if key.lane == "train" and self.epoch.attempt in attempts:
            fix = "mend its machine, and start its process again"
            raise TransportError(f"{self.place} could not follow an order; {fix}.")
        fault("inside-ask")
        owner, _, program = key.program.rpartition(".")
        header |= {"round": key.round, "lane": key.lane, "path": key.path}
        header |= {"owner": owner, "program": program}
        self.asks.missing.clear()
        self._answered_key = key
        self._ended = self.database.fact(ENDED) or []
        release(common)
        reply = self._served(header, messages)
        facts = {**self._known(), "epoch": [self.epoch.before, self.epoch.attempt]}
        trainings = [entry for entry in self.asks.missing if entry.lane == "train"]
        if key.lane == "train" or trainings:
            ended = [*self._ended, [str(key), trainings]]
            facts[ENDED] = remembered(ended, nodes_of(self.subtree))
        self.database.end_ask(key, self.own.changed(), reply, facts, self.asks.heard)
        self.own.written()
        return reply

    def _facts(self) -> dict[str, Any]:
        """What goes up beside an answer."""
        return {
            **super()._facts(),
            "kept": self._described(),
            "missing": self.asks.missing,
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

    def _record(
        self,
        tier: str,
        ids: Ids,
        call: Call,
        idle: Tensor | None,
    ) -> None:
        """Store what a call kept; one on no rows tells what nodes below report.

        A program that has ended asks nothing more, so its last answers need no journal.
        """
        if len(ids):
            self.asks.let_go()
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
        down = [(question.key("down", n), message) for n, message in enumerate(question.rows)]
        up = [(question.key("up", n), message) for n, message in enumerate(messages_of(answer))]
        for key, message in down + up:
            rows = rows_of(message)
            feedback = self.wires[key.link, key.direction].feedback
            if rows is not None and feedback and not isinstance(message, Exact):
                name = residual_name(key)
                self.rehearsed.residuals[key.sender, name] = rows[:0].detach().clone()
                self.rehearsed.kept[key.sender, name] = rows[:0].detach().clone()
        return answer

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

    def _described(self) -> list[Any]:
        """The shape and type of everything that is kept here and below, as JSON can hold it."""
        return [
            [tier, name, dtype_name(template.dtype), list(template.shape[1:])]
            for (tier, name), template in self.kept().items()
        ]

    def _known(self) -> dict[str, Any]:
        """What the disk is to remember of those below."""
        return {
            **self.asks.orders.facts(),
            "kept": self._described(),
            MISSED: self.asks.missed.facts(),
        }

    def _catch_up(self, epoch: Epoch, key: AskKey) -> None:
        """Commit or roll back what this node kept before, as the server did."""
        jumped = self.standing.follow(epoch, key)
        if key.lane == "order" and key.program in ONCE:  # until it is followed; a lie never is
            self._unfollowed.add(key)
        pending = self.database.pending
        if pending is None:
            return
        good = pending[0] < epoch.before
        if epoch.undone(*pending) or (jumped and not good):
            fault("between-rounds")
            facts = {name: self.database.fact(kept) or [] for name, kept in _GOOD.items()}
            self.database.rollback(**facts)
            self.forget()
        elif good:
            fault("between-rounds")
            facts = {kept: self.database.fact(name) or [] for name, kept in _GOOD.items()}
            self.database.commit(**facts)

    def end_round(
        self,
        state: bytes | None,
        records: Sequence[tuple[int, str]],
        missing: Sequence[Missing] = (),
        *,
        played: bool = True,
    ) -> None:
        """A round of the server is good; `state` is where the run stands."""
        epoch = self.epoch
        stands = {"run": epoch.run, "before": epoch.before, "rollbacks": list(epoch.rollbacks)}
        facts = {**self._known(), **stands}
        self.database.end_round(
            self.own.changed(), facts, state, records, missing, self.asks.heard, played=played
        )
        self.own.written()

    # Orders

    def order(self, order: Order, asked: AskKey | None = None) -> list[NodeRow]:
        """Do something here and at all nodes down to a tier; the rows that come back.

        `asked` is the key of the parent's order.
        """
        out = self._follow(order, asked)
        tiers = self.place.tiers
        if tiers.index(order.deepest) <= tiers.index(self.place.tier):
            return out
        if order.name == "write":
            rows = [*order.rows, *own_models.rows_for_below(self, order.arguments)]
            order = replace(order, rows=rows)
        return out + self.asks.order(order, self.epoch, self.kept())

    def _followed(self, key: AskKey, common: bytes, own: bytes) -> bytes:
        """Follow an order of the parent."""
        header, rows = read_order(self, key, common, own)
        self._catch_up(Epoch.from_dict(header["epoch"]), key)
        self.asks.missing.clear()
        self.asks.unreached.clear()
        order = Order(key.program, header["arguments"], rows, key.round, header["deepest"])
        out = self.order(order, key)
        self._unfollowed.discard(key)
        facts = {
            "error": None,
            "missing": self.asks.missing,
            "ended": self.database.fact(ENDED) or [],
            "number": self.database.number,
            "unreached": self.asks.unreached,
        }
        return seal_order(facts, out)

    def _follow(self, order: Order, asked: AskKey | None) -> list[NodeRow]:
        """Do at this node alone what an order says; the rows that it asks for.

        After a broken connection a parent cannot know whether its order was followed, and sends it
        again. The node may have trained meanwhile. So an order to hold or release rows is not
        followed again, and not either where a later one on the same label was.
        """
        if order.name in ("read", "freeze"):
            return self._handed_out(order)
        if order.name == "thaw":
            own_id = (self.place.tier, self.place.number)
            self.database.replace([row for row in order.rows if (row.tier, row.number) == own_id])
            self.forget()
            return []
        if order.name == "write":
            with torch.no_grad():
                own_models.write(self, order.arguments, order.rows)
            return []
        label = order.arguments["label"]
        followed = FollowedOrders(self.database)
        if asked is not None and followed.includes(label, asked):
            return []
        if order.name == "hold":
            self.own.hold(label, order.arguments["columns"])
        else:
            self.own.release(label)
        if not self.top:  # the server writes it when the round is good
            changed = self.own.changed()
            if changed:
                self.database.keep(changed, round=order.round, attempt=self.epoch.attempt)
            self.own.written()
        if asked is not None:
            followed.add(label, asked)
        return []

    def _handed_out(self, order: Order) -> list[NodeRow]:
        """The rows that an order asks for: those of a name, or all; of some nodes, or all."""
        arguments = order.arguments
        if not in_part(arguments.get("part"), self.place.tier, self.place.number):
            return []
        if order.name == "read":
            rows = self.own.rows(arguments["name"], arguments["label"])
        else:
            rows = self.own.versions(arguments.get("name"))
        if not rows or self.shares_rows:
            return rows
        if not arguments.get(ENDING):
            fix = "use its models on its own machine"
            raise TransportError(f"{self.place} does not hand out the rows it keeps; {fix}.")
        self.asks.unreached.append([self.place.tier, self.place.number])
        return []

    # Joining

    def refusal(self, seat: Seat, last_key: str | None) -> str | None:
        """Why a child with this last key may not join: its disk lacks what it has answered."""
        reason = self.database.behind(seat, last_key, self.asks.heard.get(seat, 0))
        if reason is None:
            return None
        tier = self.place.tiers[self.place.tiers.index(self.place.tier) + 1]
        return f"{tier} {seat}: {reason}"
