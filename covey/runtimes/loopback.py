"""The loopback runtime: every node is an object with its own task, store and shard.

Encoded bytes go between them as they would between machines, without sockets. It is as slow as it
is strict: an algorithm that runs here, bit for bit as in the simulator, uses nothing that a device,
an edge or a server would not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from covey import errors
from covey.data import Shards
from covey.engine.population import Population
from covey.engine.task import Task
from covey.errors import CoveyError, ProgramError
from covey.kernel.algorithm import Algorithm, Program
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Deferred, Message, rows_of
from covey.kernel.store import PRESENT, Column, ColumnKey, Entry, Frozen, KeptRows, Store
from covey.links.link import Link, Route
from covey.links.node_bytes import LowerEnds
from covey.links.packed import Packed, Schema
from covey.runtimes.base import (
    Answers,
    BaseRuntime,
    MessageKey,
    Question,
    check_carried,
    flat,
    one_thread,
)
from covey.runtimes.contract import Lane, Runtime
from covey.runtimes.envelope import open_sealed, seal
from covey.runtimes.facts import Played
from covey.runtimes.frozen import joined, part_of
from covey.runtimes.place import OwnStore, Place, TrainingPlace
from covey.runtimes.training_tree import TrainingTree, training_tree
from covey.tree import Topology, Tree
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

    def drop(self, again: Callable[[], Sequence[Packed]]) -> None:
        """Hold them no more; `again` reads them."""
        self._messages = ()
        self._again = again


class Owner(Protocol):
    """The owner of programs that are no algorithm's, such as those that score.

    Its programs travel as a name and parameters.
    """

    def parameters(self) -> dict[str, Any]:
        """The parameters as JSON can hold them; another node makes the same programs from them."""
        ...


Make = Callable[[Mapping[str, Any]], Any]
"""Makes the owner of programs from its parameters."""


@dataclass
class Station(BaseRuntime):
    """One node: it plays the programs of its own tier, and asks its children through bytes."""

    place: Place = field(kw_only=True)
    training_place: Place | None = field(default=None, kw_only=True)
    """The place among those who train; None: all do."""
    under: int = field(kw_only=True)
    """How many training examples all devices under this node hold, as the node was told."""
    makers: Mapping[str, Make] = field(kw_only=True)
    """Makes the owners of programs that are not the algorithm's, by the name of their class."""
    children: dict[int, Send] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.forget()
        self._schemas: dict[tuple[Any, ...], Expected] = {}
        self._schemas_of = -1
        """The round of these schemas: a program may keep other rows in another round."""

    def forget(self) -> None:
        """Forget everything that this node keeps."""
        self.store = OwnStore(self._sizes(), place=self.place)

    def _training_tree(self) -> Topology:
        """The place among those who train, as this node was told."""
        return self.training_place or self.place

    def examples(self, tier: str, ids: Ids) -> Tensor:
        """How many training examples all devices under this node hold, [1]."""
        self.place.check(tier, ids, "the examples")
        return torch.full_like(ids, self.under)

    # Asking

    def exchange(self, me: Nodes, question: Question) -> Answers:
        """Send a request to every child that runs, and unpack the answers."""
        if not len(question.ids):
            return Answers([self._on_no_rows(question)])
        expected = self._expected(question)
        with self._timed("links"):
            down = []
            for number, rows in enumerate(question.rows):
                down.append(self._packed_down(question, rows, number))
            each = [self._packed_each(question, values) for values in question.each]
        replies = self._sent(question, down, each)
        return self._answers(question, down, replies, expected)

    def _sent(
        self, question: Question, down: list[Packed], each: Sequence[Packed]
    ) -> Iterator[bytes | None]:
        """The replies of all children that run, in id order; None where a child is missing.

        What nobody needs after it was sent may be taken out of `down`.
        """
        answering = set(question.answers.tolist())
        for position, child in enumerate(question.ids.tolist()):
            own = [packed.only(position) for packed in each]
            head = self._request(question, position, position in answering)
            request = seal(head, [*down, *own])
            yield self.children[child](request)

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
        reference = cache(partial(self._reference, question, down))  # decoded once for all
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
            if position in answering:
                held = HeldReply(messages)
                deferred = self._deferred(question, reference, held, schemas)
                parts.append(_answer(deferred, several))
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

    def _request(self, question: Question, position: int, answers: bool) -> dict[str, Any]:
        """The header of a request to one child."""
        owner, parameters = self._owner(question.program)
        shapes = [list(values.shape[1:]) for values in question.each]
        idle = None
        if question.idle is not None:
            idle = bool(question.idle[position])
        return {
            "round": question.round,
            "lane": self._play.lane,
            "path": question.path,
            "owner": owner,
            "parameters": parameters,
            "program": question.program.__name__,
            "rows": len(question.rows),
            "shapes": shapes,
            "idle": idle,
            "answers": answers,
        }

    def _owner(self, program: Program) -> tuple[str, dict[str, Any]]:
        """Whose program this is, and its parameters."""
        owner: Any = getattr(program, "__self__", None)
        if isinstance(owner, Algorithm):
            return ALGORITHM, {}
        return type(owner).__name__, owner.parameters()

    def _packed_down(self, question: Question, message: Message, number: int) -> Packed:
        """A message that goes to all children."""
        key = question.key("down", number)
        ends = self._lower_ends(question, question.ids, question.asker)
        return self._pack(message, question.askers, question.copies, key, ends)

    def _packed_each(self, question: Question, values: Tensor) -> Packed:
        """Messages with each child's own value."""
        senders = question.askers[question.asker]
        copies = torch.ones_like(senders)
        key = question.key("down")
        ends = self._lower_ends(question, question.ids, torch.arange(len(senders)))
        return self._pack(flat(values), senders, copies, key, ends)

    def _deferred(
        self,
        question: Question,
        reference: Callable[[], Rows | None],
        held: HeldReply,
        schemas: Sequence[Schema],
    ) -> list[Deferred | None]:
        """The answers of one child; `reference` returns what updates are differences from.

        Each is unpacked when it is reduced, so that not all are decoded at once.
        """
        messages = held.messages()
        if len(messages) != len(schemas):
            counts = f"{len(messages)} answers of a child, expected {len(schemas)}"
            raise ProgramError(f"{self.place}: {counts}.")
        link = self._link(question.key("up"))
        added = None
        if link.wire.update:
            added = reference()
        out: list[Deferred | None] = []
        for number, (packed, schema) in enumerate(zip(messages, schemas, strict=True)):
            if schema.kind == "nothing":
                packed.check(schema, 0)
                out.append(None)
                continue
            packed.check(schema, 1)
            read = partial(_unpacked, link, held, number, added, schema)
            out.append(Deferred(read, masked=schema.kind == "masked"))
        return out

    def _reference(self, question: Question, down: Sequence[Packed]) -> Rows | None:
        """The first row that went down, as it arrived; updates are differences from it."""
        if not down:
            return None
        link = self._link(question.key("down"))
        return rows_of(link.unpack(down[0]))

    def _expected(self, question: Question) -> Expected:
        """Whether the program answers several messages, and the schema of each.

        A rehearsal on no rows tells; its result is cached for the round.
        """
        if question.round != self._schemas_of:
            self._schemas.clear()
            self._schemas_of = question.round
        owner, parameters = self._owner(question.program)
        arguments = tuple(str(Schema.of(message)) for message in question.rows)
        key = (
            question.ends,
            question.program.__name__,
            self._play.lane,
            owner,
            str(parameters),
            arguments,
        )
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
        arguments: list[Tensor | None] = []
        for number, message in enumerate(question.rows):
            rows = rows_of(message)
            check_carried(rows, question.key("down", number))
            if rows is not None:
                rows = rows[:0]
            arguments.append(rows)
        for values in question.each:
            check_carried(values, question.key("down"))
            arguments.append(values[:0])
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
        play = self._new_play(header["round"], header["lane"])
        self._play = play
        self.clock.start()
        ids = torch.tensor([self.place.number])
        question = self._question_of(header, ids)
        arguments = self._arguments(header, messages, question)
        messages.clear()  # the encoded rows of the parent, which may be large
        received = None
        if header["rows"] and self._link(question.key("up")).wire.update:
            received = arguments[0]
        with one_thread(), torch.no_grad():
            packed = self._ran(header, question, arguments, received)
            self._check(last=True)
            play.ledger.settle()
        return seal({"error": None, **self._facts()}, packed)

    def _ran(
        self,
        header: dict[str, Any],
        question: Question,
        arguments: list[Tensor],
        received: Rows | None,
    ) -> list[Packed]:
        """Run a program on its arguments; its answer as it is sent.

        `received` are the rows that an update is the difference from.
        """
        ids = question.ids
        nodes = Nodes(
            self,
            self.place.tier,
            ids,
            round=self._play.round,
            path=header["path"],
            idle=question.idle,
        )
        answer = _called(question.program, nodes, arguments)
        self._record(self.place.tier, ids, nodes.call, question.idle)
        packed = []
        for number, message in enumerate(messages_of(answer)):
            self._checked_answer(question, ids, message, nodes.call)
            if header["answers"]:
                key = question.key("up", number)
                copies = torch.ones_like(ids)
                ends = self._lower_ends(question, ids, torch.zeros_like(ids))
                sent = self._pack(message, ids, copies, key, ends, received)
                packed.append(sent)
        return packed

    def _facts(self) -> dict[str, Any]:
        """What goes up beside an answer."""
        return {"facts": self._play.facts.as_dict()}

    def _program(self, header: dict[str, Any]) -> Program:
        """The program that a request names."""
        owner: Any = self.algorithm_in(header["round"])
        if header["owner"] != ALGORITHM:
            make = self.makers[header["owner"]]
            owner = make(header["parameters"])
        program: Program = getattr(owner, header["program"])
        return program

    def _question_of(self, header: dict[str, Any], ids: Ids) -> Question:
        """The question as this node sees it: one asker, and itself as the only child."""
        tier = self.place.tier
        level = self.tree.index(tier)
        above = self.tree.tiers[level - 1]
        zero = torch.zeros(1, dtype=torch.int64)
        idle = None
        if header["idle"] is not None:
            idle = torch.tensor([header["idle"]])
        answers = zero
        if not header["answers"]:
            answers = zero[:0]
        return Question(
            self._program(header),
            ends=(above, tier),
            round=header["round"],
            path=header["path"],
            askers=zero,
            ids=ids,
            asker=zero,
            answers=answers,
            idle=idle,
            rows=(),
            each=(),
        )

    def _arguments(
        self, header: dict[str, Any], messages: list[Packed], question: Question
    ) -> list[Tensor]:
        """The arguments of the program, from the messages that came down to this node."""
        link = self._link(question.key("down"))
        rows = [rows_of(link.unpack(packed)) for packed in messages]
        arguments = [row for row in rows if row is not None]
        first_own = header["rows"]
        for number, shape in enumerate(header["shapes"], start=first_own):
            arguments[number] = arguments[number].reshape(1, *shape)
        return arguments

    # Both

    def _link(self, key: MessageKey) -> Link:
        """The link of a message."""
        wire = self.wires[key.link, key.direction]
        return Link(wire, self._play.ledger)

    def _pack(
        self,
        message: Message,
        ids: Ids,
        copies: Tensor,
        key: MessageKey,
        ends: LowerEnds | None,
        reference: Rows | None = None,
    ) -> Packed:
        """The bytes of a message that this node sends."""
        check_carried(rows_of(message), key)
        link = self._link(key)
        packed = link.pack(
            message,
            cut=self._cut(key),
            reference=reference,
            keys=self._wire_keys(key, ids),
            memory=self._memory(key, ids, copies),
        )
        meter_key = (key.link, key.direction, self._play.lane)
        route = Route(meter_key, copies, tree=torch.zeros_like(ids), ends=ends)
        link.count(packed, route)
        return packed


def _called(program: Program, nodes: Nodes, arguments: list[Tensor]) -> Any:
    """Run a program, which then alone holds its arguments: it may let go of large rows."""
    if len(arguments) == 1:
        return program(nodes, arguments.pop())
    answer = program(nodes, *arguments)
    arguments.clear()
    return answer


def _unpacked(
    link: Link, held: HeldReply, number: int, reference: Rows | None, schema: Schema
) -> Message:
    """One message of a reply; a reduction changes no answers, so they lie where they came."""
    packed = held.messages()[number]
    return link.unpack(packed, reference=reference, expect=schema, count=1, borrow=True)


def messages_of(answer: Any) -> tuple[Message, ...]:
    """The messages of an answer: one, or a tuple of several."""
    if isinstance(answer, tuple):
        return answer
    return (answer,)


def _answer(messages: list[Deferred | None], several: bool) -> Any:
    """The answer of these messages: the inverse of `messages_of`."""
    if several:
        return tuple(messages)
    return messages[0]


def raised(kind: str, text: str) -> CoveyError:
    """The error that another node raised."""
    error = getattr(errors, kind, ProgramError)
    if isinstance(error, type) and issubclass(error, CoveyError):
        return error(text)
    return ProgramError(text)


class Loopback(Runtime):
    """A tree of stations in one process, for one seed."""

    def __init__(
        self,
        tree: Tree,
        shards: Shards,
        task: Callable[[Shards, Population], Task],
        station: Callable[[Place, Place | None, Task, int], Station],
    ) -> None:
        """Make a station for every node.

        `task` makes the task of a node from its own shard. `station` makes a node from its place,
        its place among those who train (None: all do), its task, and the number of examples under
        it, which the node is told.
        """
        if tree.copies != 1:
            fix = "run the seeds one after the other"
            raise errors.ConfigError(f"the loopback runtime runs one seed at a time; {fix}.")
        population = Population.of(shards)
        self.tree: Tree = tree
        self.stations: dict[str, list[Station]] = {}
        nothing = Shards.none(shards)
        examples = {tier: examples_under(tree, tier, shards) for tier in tree.tiers}
        training = training_tree(tree, examples)
        for tier in reversed(tree.tiers):
            under = examples[tier].tolist()
            stations = []
            for number in range(tree.size(tier)):
                own = nothing
                if tree.below(tier) is None:
                    own = shards.only([number])
                own_task = task(own, population.local())
                node = Place.of(tree, tier, number)
                among = None
                if isinstance(training, TrainingTree):
                    among = TrainingPlace.within(training, node)
                stations.append(station(node, among, own_task, under[number]))
            self.stations[tier] = stations
        self._connect()
        top = tree.tiers[0]
        self.server = self.stations[top][0]
        self.task = self.server.task
        self.start = self.server.start

    def _connect(self) -> None:
        """Give every station the way to its children."""
        for tier in self.tree.tiers[:-1]:
            below = self.stations[self.tree.below(tier) or ""]
            for station in self.stations[tier]:
                first = station.place.first_child
                children = range(first, first + station.place.children)
                station.children = {child: below[child].serve for child in children}

    def play(self, program: Program, rows: Rows, *, round: int, lane: Lane = "train") -> Played:
        """Run a program at the server station; with no rows, every program below runs on none."""
        return self.server.play(program, rows, round=round, lane=lane)

    def commit(self) -> None:
        """What all stations keep and hold is good."""
        for station in self._all():
            station.commit()

    def rollback(self) -> None:
        """All stations go back to the last commit."""
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
        template = self.kept()[tier, name]
        nothing = torch.zeros(0, dtype=torch.int64)
        ids = [nothing]
        rounds = [nothing]
        rows = [template]
        for station, column in self._columns(tier, name):
            own_id, own_round, own_row = column.read(label, _only(station))
            ids.append(own_id)
            rounds.append(own_round)
            rows.append(own_row)
        return torch.cat(ids), torch.cat(rounds), torch.cat(rows)

    def hold(self, label: str, copy: int, columns: Sequence[ColumnKey]) -> None:
        """Hold the rows that stations keep now in these (tier, name).

        They replace the rows that were held under this label.
        """
        for tier, name in columns:
            for station, column in self._columns(tier, name):
                column.hold(label, _only(station))

    def release(self, label: str, copy: int) -> None:
        """Hold nothing under this label any more."""
        for station in self._all():
            station.release(label, copy)

    def freeze(self, copy: int) -> Iterator[Frozen]:
        """Everything that stations keep and hold, in the form of the simulator's checkpoints."""
        templates = self.kept()
        for tier, name in sorted(templates):
            yield self._freeze_column(tier, name, templates[tier, name])

    def _freeze_column(self, tier: str, name: str, template: Tensor) -> Frozen:
        """The rows of all stations of a tier under one name."""
        rows = [template]
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
        held = sorted(set(parts) - {PRESENT})
        labels = [PRESENT, *held]
        entries_of_all = {label: joined(parts[label]) for label in labels}
        return Frozen(tier, name, torch.cat(rows), entries_of_all)

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
        """How this runtime runs programs."""
        return {
            "runtime": "loopback",
            "nodes": sum(self.tree.sizes),
            "seeds": 1,
        }

    def _all(self) -> Iterator[Station]:
        for stations in self.stations.values():
            yield from stations

    def _columns(self, tier: str, name: str) -> Iterator[tuple[Station, Column]]:
        """The stations of a tier that keep a row under this name, each with its column."""
        for station in self.stations[tier]:
            column = station.store.columns.get((tier, name))
            if column is not None:
                yield station, column


def examples_under(tree: Tree, tier: str, shards: Shards) -> Tensor:
    """How many training examples all devices under each node of a tier hold, [nodes]."""
    first, stop = tree.span(tier, torch.arange(tree.size(tier)))
    offset = shards.train.offset
    return offset[stop] - offset[first]


def _only(station: Station) -> slice:
    """The one node of its tier that a station is."""
    number = station.place.number
    return slice(number, number + 1)
