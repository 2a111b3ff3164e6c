"""The loopback runtime: every node is an object with its own task, store and shard.

Encoded bytes go between them as they would between machines, without sockets. It is as slow as it
is strict: an algorithm that runs here, bit for bit as in the simulator, uses nothing that a device,
an edge or a server would not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covey.data import Shards
from covey.engine.population import Population
from covey.errors import CoveyError, ProgramError
from covey.kernel.algorithm import Algorithm, Program
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Deferred, Message, rows_of
from covey.kernel.store.store import PRESENT, Column, ColumnKey, Entry, Frozen, KeptRows, Store
from covey.links.link import Link, Route
from covey.links.packed import Packed, Schema
from covey.runtimes.alone.envelope import open_sealed, raised, seal
from covey.runtimes.alone.place import Membership, OwnStore, Place, members
from covey.runtimes.base import (
    Answers,
    BaseRuntime,
    Crossing,
    MessageKey,
    Question,
    check_carried,
    one_thread,
    part_of,
)
from covey.runtimes.contract import Lane, Runtime
from covey.runtimes.facts import Played
from covey.runtimes.spec import NodeSpec
from covey.tree import Tree
from covey.types import Ids, Rows

Send = Callable[[bytes], bytes]
"""Hands a request to a child and returns its reply."""
Expected = tuple[bool, list[Schema]]
"""Whether a program answers several messages, and the schema of each."""
ALGORITHM = "algorithm"


class HeldReply:
    """The encoded messages of a child's reply, which can be read again where they are dropped."""

    def __init__(self, messages: Sequence[Packed]) -> None:
        self._messages: Sequence[Packed] = messages
        self._again: Callable[[], Sequence[Packed]] | None = None

    def messages(self) -> Sequence[Packed]:
        """All of them, in order."""
        if self._again is not None:
            return self._again()
        return self._messages

    def read(self, number: int, link: Link, reference: Rows | None, schema: Schema) -> Message:
        """One of them; a reduction changes no answers, so they lie where they came."""
        packed = self.messages()[number]
        return link.unpack(packed, reference=reference, expect=schema, count=1, borrow=True)

    def drop(self, again: Callable[[], Sequence[Packed]]) -> None:
        """Hold them no more; `again` reads them."""
        self._messages = ()
        self._again = again


@dataclass(eq=False)
class Station(BaseRuntime):
    """One node: it plays the programs of its own tier, and asks its children through bytes."""

    member: Membership = field(kw_only=True)
    children: dict[int, Send] = field(default_factory=dict)

    def __post_init__(self, spec: NodeSpec) -> None:
        training = self.member.training_place or self.place
        super().__post_init__(replace(spec, tree=self.place, training=training))
        self.makers = spec.makers
        self._schemas: dict[tuple[Any, ...], Expected] = {}
        self._schemas_of = -1
        """The round of these schemas: a program may keep other rows in another round."""

    @property
    def place(self) -> Place:
        """Where this node stands in the tree."""
        return self.member.place

    def forget(self) -> None:
        """Forget everything that this node keeps."""
        self.store = OwnStore(self.sizes, place=self.place)

    def examples(self, tier: str, ids: Ids) -> Tensor:
        """How many training examples all devices under this node hold, [1]."""
        self.place.check(tier, ids, "the examples")
        return torch.full_like(ids, self.member.under)

    # Asking

    def exchange(self, me: Nodes, question: Question) -> Answers:
        """Send a request to every child that runs, and unpack the answers."""
        if not len(question.ids):
            return Answers([self._on_no_rows(question)])
        expected = self._expected(question)
        with self._timed("links"):
            packed = [self._pack(crossing) for crossing in question.down()]
        count = len(question.rows)
        down = packed[:count]
        each = packed[count:]
        packed.clear()  # what was sent may be large: `down` alone holds it
        replies = self._sent(question, down, each)
        return self._answers(question, down, replies, expected)

    def _sent(
        self, question: Question, down: list[Packed], each: Sequence[Packed]
    ) -> Iterator[bytes | None]:
        """The replies of all children that run, in id order; None where a child is missing.

        What nobody needs after it was sent may be taken out of `down`.
        """
        owner, parameters = self._owner(question.program)
        head: dict[str, Any] = {
            "round": question.round,
            "lane": self._play.lane,
            "path": question.path,
            "owner": owner,
            "parameters": parameters,
            "program": question.program.__name__,
            "rows": len(question.rows),
            "shapes": [list(values.shape[1:]) for values in question.each],
            "idle": None,
        }
        answering = set(question.answers.tolist())
        for position, child in enumerate(question.ids.tolist()):
            if question.idle is not None:
                head["idle"] = bool(question.idle[position])
            head["answers"] = position in answering
            own = [packed.only(position) for packed in each]
            yield self.children[child](seal(head, [*down, *own]))

    def _answers(
        self,
        question: Question,
        down: Sequence[Packed],
        replies: Iterable[bytes | None],
        expected: Expected,
    ) -> Answers:
        """The answers in the replies of all children that run, which are in id order."""
        several, schemas = expected
        answering = set(question.answers.tolist())
        update = self._link(question.key("up")).wire.update
        reference = None
        parts: list[Any] = []
        failures: list[CoveyError] = []
        missing = set()
        for position, reply in enumerate(replies):
            if reply is None:
                missing.add(position)
                continue
            header, messages = open_sealed(reply)
            if header["error"] is not None:
                kind, text = header["error"]
                failures.append(self._child_error(int(question.ids[position]), kind, text))
                continue
            self._take_facts(header)
            if position not in answering:
                continue
            if update and down and reference is None:  # decoded once, for all
                reference = rows_of(self._link(question.key("down")).unpack(down[0]))
            held = HeldReply(messages)
            deferred = self._deferred(question, reference, held, schemas)
            parts.append(tuple(deferred) if several else deferred[0])
            self._hold_reply(question, position, held)
        if failures:
            raise failures[0]
        if not parts:
            parts = [self._on_no_rows(question)]
        present = None
        if missing:
            there = [position not in missing for position in question.answers.tolist()]
            present = torch.tensor(there, dtype=torch.bool)
        return Answers(parts, present=present)

    def _hold_reply(self, question: Question, position: int, held: HeldReply) -> None:
        """A reply that its asker may reduce, now or later, is held from now on."""

    def _child_error(self, child: int, kind: str, text: str) -> CoveyError:
        """The error that a child raised, or passes on."""
        return raised(kind, text)

    def _take_facts(self, header: dict[str, Any]) -> None:
        """Add the facts that came beside an answer."""
        self._play.facts.merge(header["facts"])

    def _owner(self, program: Program) -> tuple[str, dict[str, Any]]:
        """Whose program this is, and its parameters."""
        owner: Any = getattr(program, "__self__", None)
        if isinstance(owner, Algorithm):
            return ALGORITHM, {}
        return type(owner).__name__, owner.parameters()

    def _deferred(
        self,
        question: Question,
        reference: Rows | None,
        held: HeldReply,
        schemas: Sequence[Schema],
    ) -> list[Deferred | None]:
        """The answers of one child; `reference` are the rows that updates are differences from.

        Each is unpacked when it is reduced, so that not all are decoded at once.
        """
        messages = held.messages()
        if len(messages) != len(schemas):
            counts = f"{len(messages)} answers of a child, expected {len(schemas)}"
            raise ProgramError(f"{self.place}: {counts}.")
        link = self._link(question.key("up"))
        out: list[Deferred | None] = []
        for number, (packed, schema) in enumerate(zip(messages, schemas, strict=True)):
            if schema.kind == "nothing":
                packed.check(schema, 0)
                out.append(None)
                continue
            packed.check(schema, 1)
            read = partial(held.read, number, link, reference, schema)
            out.append(Deferred(read, masked=schema.kind == "masked"))
        return out

    def _expected(self, question: Question) -> Expected:
        """Whether the program answers several messages, and the schema of each.

        A rehearsal on no rows tells; its result is cached for the round.
        """
        if question.round != self._schemas_of:
            self._schemas.clear()
            self._schemas_of = question.round
        owner, parameters = self._owner(question.program)
        arguments = [str(Schema.of(message)) for message in question.rows]
        program = question.program.__name__
        key = (question.tier, program, self._play.lane, owner, str(parameters), *arguments)
        if key not in self._schemas:
            answer = self._on_no_rows(question)
            several = isinstance(answer, tuple)
            schemas = [Schema.of(message) for message in messages_of(answer)]
            self._schemas[key] = (several, schemas)
        return self._schemas[key]

    def _on_no_rows(self, question: Question) -> Any:
        """The answer of the program of the tier below on no rows, which has the right widths."""
        tier = question.tier
        nobody = torch.zeros(0, dtype=torch.int64)
        nodes = Nodes(self, tier, nobody, round=question.round, path=question.path)
        arguments = []
        for number, message in enumerate((*question.rows, *question.each)):
            rows = rows_of(message)
            check_carried(rows, question.key("down", number))
            arguments.append(None if rows is None else rows[:0])
        answer = question.program(nodes, *arguments)
        for number, message in enumerate(messages_of(answer)):
            check_carried(rows_of(message), question.key("up", number))
            self._checked_answer(question, nobody, message, nodes.call)
        self._record(tier, nobody, nodes.call, None)
        return answer

    # Answering

    def serve(self, request: bytes) -> bytes:
        """Run the program that the parent asks for; an error travels back as its kind and text."""
        try:
            header, messages = open_sealed(request)
            return self._served(header, messages)
        except CoveyError as error:
            kind = type(error).__name__
            return seal({"error": [kind, str(error)]}, [])
        except Exception as error:  # of a program: it ends the round everywhere, with its text
            text = f"{self.place}: {type(error).__name__}: {error}"
            return seal({"error": ["ProgramError", text]}, [])

    def _served(self, header: dict[str, Any], messages: list[Packed]) -> bytes:
        """The reply to a request."""
        self._play = self._new_play(header["round"], header["lane"])
        self.clock.start()
        tier = self.place.tier
        zero = torch.zeros(1, dtype=torch.int64)
        idle = None
        if header["idle"] is not None:
            idle = torch.tensor([header["idle"]])
        question = Question(  # as this node sees it: one asker, and itself as the only child
            self._program(header),
            self.tree.tiers[self.tree.index(tier) - 1],
            tier,
            round=header["round"],
            path=header["path"],
            askers=zero,
            ids=torch.tensor([self.place.number]),
            asker=zero,
            answers=zero if header["answers"] else zero[:0],
            idle=idle,
        )
        link = self._link(question.key("down"))
        rows = [rows_of(link.unpack(packed)) for packed in messages]
        arguments = [row for row in rows if row is not None]
        rows.clear()
        for number, shape in enumerate(header["shapes"], start=header["rows"]):
            arguments[number] = arguments[number].reshape(1, *shape)
        messages.clear()  # the encoded rows of the parent, which may be large
        received = None
        if header["rows"] and self._link(question.key("up")).wire.update:
            received = arguments[0]
        with one_thread(), torch.no_grad():
            packed = self._ran(question, arguments, received)
            with self._timed("links"):
                self._play.suspects.check(last=True)
                self._play.ledger.settle()
        return seal({"error": None, **self._facts()}, packed)

    def _ran(
        self, question: Question, arguments: list[Tensor], received: Rows | None
    ) -> list[Packed]:
        """Run a program, which alone holds its arguments; its answer as it is sent.

        `received` are the rows that an update is the difference from.
        """
        ids = question.ids
        nodes = question.nodes(self)
        if len(arguments) == 1:  # large rows, of which it may let go
            answer = question.program(nodes, arguments.pop())
        else:
            answer = question.program(nodes, *arguments)
            arguments.clear()
        self._record(question.tier, ids, nodes.call, question.idle)
        packed = []
        for number, message in enumerate(messages_of(answer)):
            self._checked_answer(question, ids, message, nodes.call)
            if len(question.answers):
                crossing = question.up(message, number, ids)
                packed.append(self._pack(replace(crossing, reference=received)))
        return packed

    def _facts(self) -> dict[str, Any]:
        """What goes up beside an answer."""
        return {"facts": self._play.facts.as_dict()}

    def _program(self, header: dict[str, Any]) -> Program:
        """The program that a request names."""
        owner: Any = self.rates.of(self.algorithm, header["round"])
        if header["owner"] != ALGORITHM:
            make = self.makers[header["owner"]]
            owner = make(header["parameters"])
        program: Program = getattr(owner, header["program"])
        return program

    # Both

    def _link(self, key: MessageKey) -> Link:
        """The link of a message."""
        wire = self.wires[key.link, key.direction]
        return Link(wire, self._play.ledger)

    def _pack(self, crossing: Crossing) -> Packed:
        """The bytes of a message that this node sends."""
        key = crossing.key
        link = self._link(key)
        packed = link.pack(self._sending(crossing))
        meter_key = (key.link, key.direction, self._play.lane)
        tree = torch.zeros_like(crossing.senders)
        ends = crossing.ends if self._play.trains else None
        link.count(packed, Route(meter_key, crossing.copies, tree, ends=ends))
        return packed


def messages_of(answer: Any) -> tuple[Message, ...]:
    """The messages of an answer: one, or a tuple of several."""
    if isinstance(answer, tuple):
        return answer
    return (answer,)


class Loopback(Runtime):
    """A tree of stations in one process, for one seed."""

    def __init__(
        self,
        tree: Tree,
        shards: Shards,
        spec: Callable[[Shards, Population], NodeSpec],
    ) -> None:
        """Make a station for every node; `spec` says what one with these examples is made of."""
        self.tree: Tree = tree
        self.stations: dict[str, list[Station]] = {}
        told = members(tree, shards)
        for tier in reversed(tree.tiers):
            self.stations[tier] = [
                Station(spec(member.own(shards), member.population), member=member)
                for member in told[tier]
            ]
        for tier in tree.tiers[:-1]:  # every station gets the way to its children
            below = self.stations[tree.below(tier) or ""]
            for station in self.stations[tier]:
                first = station.place.first_child
                numbers = range(first, first + station.place.children)
                station.children = {number: below[number].serve for number in numbers}
        self.server = self.stations[tree.tiers[0]][0]
        self.task = self.server.task
        self.start = self.server.start

    def play(
        self,
        program: Program,
        rows: Rows,
        *,
        round: int,
        lane: Lane = "train",
    ) -> Played:
        """Run a program at the server station; with no rows, every program below runs on none."""
        return self.server.play(program, rows, round=round, lane=lane)

    def commit(self) -> None:
        for station in self._all():
            station.commit()

    def rollback(self) -> None:
        for station in self._all():
            station.rollback()

    def kept(self) -> dict[ColumnKey, Tensor]:
        """Empty rows of the shape and type of everything that stations keep, by (tier, name)."""
        out: dict[ColumnKey, Tensor] = {}
        for station in self._all():
            for key, rows in station.kept().items():
                out.setdefault(key, rows)
        return out

    def read(self, tier: str, name: str, label: str, copy: int) -> KeptRows:
        """(ids, rounds, rows) that the stations of a tier keep, now or in a held version."""
        nothing = torch.zeros(0, dtype=torch.int64)
        parts: list[KeptRows] = [(nothing, nothing, self.kept()[tier, name])]
        columns = self._columns(tier, name)
        parts += [column.read(label, _only(station)) for station, column in columns]
        ids, rounds, rows = map(torch.cat, zip(*parts, strict=True))
        return ids, rounds, rows

    def hold(self, label: str, copy: int, columns: Sequence[ColumnKey]) -> None:
        for tier, name in columns:
            for station, column in self._columns(tier, name):
                column.hold(label, _only(station))

    def release(self, label: str, copy: int) -> None:
        for station in self._all():
            station.release(label, copy)

    def freeze(self, copy: int) -> Iterator[Frozen]:
        """Everything that stations keep and hold, in the form of the simulator's checkpoints."""
        nothing = torch.zeros(0, dtype=torch.int64)
        templates = self.kept()
        for tier, name in sorted(templates):
            rows = [templates[tier, name]]
            count = 0
            parts: dict[str, list[Entry]] = {PRESENT: []}
            for station, column in self._columns(tier, name):
                own, entries = column.freeze(_only(station))
                for label, entry in entries.items():
                    ids = entry.ids + station.place.number
                    moved = Entry(ids, entry.rounds, entry.places + count)
                    parts.setdefault(label, []).append(moved)
                rows.append(own)
                count += len(own)
            together = {}
            for label in [PRESENT, *sorted(parts.keys() - {PRESENT})]:
                entries_of = [Entry(nothing, nothing, nothing), *parts[label]]
                together[label] = Entry(
                    torch.cat([entry.ids for entry in entries_of]),
                    torch.cat([entry.rounds for entry in entries_of]),
                    torch.cat([entry.places for entry in entries_of]),
                )
            yield Frozen(tier, name, torch.cat(rows), together)

    def thaw(self, frozen: Frozen, copy: int) -> None:
        """Hand every station its own rows of one entry of `freeze`, of any runtime."""
        sizes = dict(zip(self.tree.tiers, self.tree.sizes, strict=True))
        check = Store(sizes)
        check.thaw(frozen, self.nodes(frozen.tier, copy))
        everyone = slice(0, self.tree.size(frozen.tier))
        for station in self.stations[frozen.tier]:
            own = part_of(frozen, _only(station))
            station.store.thaw(own, everyone)

    def report(self) -> dict[str, Any]:
        return {"runtime": "loopback", "nodes": sum(self.tree.sizes), "seeds": 1}

    def _all(self) -> Iterator[Station]:
        for stations in self.stations.values():
            yield from stations

    def _columns(self, tier: str, name: str) -> Iterator[tuple[Station, Column]]:
        """The stations of a tier that keep a row under this name, each with its column."""
        for station in self.stations[tier]:
            column = station.store.columns.get((tier, name))
            if column is not None:
                yield station, column


def _only(station: Station) -> slice:
    """The one node of its tier that a station is."""
    number = station.place.number
    return slice(number, number + 1)
