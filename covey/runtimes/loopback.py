"""The loopback runtime: every node an object with its own task, its own store and only its own
shard.

Encoded bytes go between them as they would between machines, without sockets. It is as slow as it
is strict: an algorithm that runs here, bit for bit as in the simulator, uses nothing that a device,
an edge or a server would not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from covey import errors
from covey.data import Shards
from covey.engine.population import Population
from covey.engine.task import Task
from covey.errors import CoveyError, ProgramError
from covey.kernel.algorithm import Program
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Deferred, Message
from covey.kernel.store import PRESENT, Entry, Frozen, Store
from covey.links.link import Link, Route
from covey.links.packed import Packed, Schema
from covey.runtimes.base import (
    Answers,
    BaseRuntime,
    MessageKey,
    Question,
    check_carried,
    flat,
    one_thread,
    rows_of,
)
from covey.runtimes.contract import Lane, Runtime
from covey.runtimes.envelope import open_sealed, seal
from covey.runtimes.facts import Played
from covey.runtimes.place import OwnStore, Place
from covey.tree import Tree
from covey.types import Ids, Rows

Send = Callable[[bytes], bytes]
"""Hands a request to a child and returns its reply."""
ALGORITHM = "algorithm"


class Owner(Protocol):
    """Programs that are no algorithm's, such as those that score: they travel as a name and
    parameters.
    """

    def parameters(self) -> dict[str, Any]:
        """What JSON can hold, from which another node makes the same programs."""
        ...


Make = Callable[[Mapping[str, Any]], Any]
"""Makes the owner of programs from its parameters."""


@dataclass
class Station(BaseRuntime):
    """One node: it plays the programs of its own tier, and asks its children through bytes."""

    place: Place = field(kw_only=True)
    under: int = field(kw_only=True)
    """How many training examples all devices under this node hold, as it was told."""
    makers: Mapping[str, Make] = field(kw_only=True)
    """Makes the owners of programs that are not the algorithm's, by the name of their class."""
    children: dict[int, Send] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.forget()
        self._schemas: dict[tuple[Any, ...], tuple[bool, list[Schema]]] = {}

    def forget(self) -> None:
        """Forget everything that this node keeps."""
        self.store = OwnStore(
            dict(zip(self.tree.tiers, self.tree.sizes, strict=True)), place=self.place
        )

    def examples(self, tier: str, ids: Ids) -> Tensor:
        """How many training examples all devices under this node hold, [1]."""
        self.place.check(tier, ids, "the examples")
        return torch.full_like(ids, self.under)

    # Asking

    def exchange(self, me: Nodes, question: Question) -> Answers:
        """Send a request to every child that runs, and unpack what those who answer send back."""
        if not len(question.ids):
            return Answers([self._on_no_rows(question)])
        several, schemas = self._expected(question)
        with self._timed("links"):
            down = [
                self._packed_down(question, rows, number)
                for number, rows in enumerate(question.rows)
            ]
            each = [self._packed_each(question, values) for values in question.each]
        answering = set(question.answers.tolist())
        parts: list[Any] = []
        failures: list[CoveyError] = []
        for position, child in enumerate(question.ids.tolist()):
            own = [Packed(packed.schema, (packed.messages[position],)) for packed in each]
            request = seal(self._request(question, position, position in answering), [*down, *own])
            header, messages = open_sealed(self.children[child](request))
            if header["error"] is not None:
                failures.append(_raised(*header["error"]))
                continue
            self._play.facts.merge(header["facts"])
            if position in answering:
                answers = self._deferred(question, down, messages, schemas)
                parts.append(tuple(answers) if several else answers[0])
        if failures:
            raise failures[0]
        return Answers(parts or [self._on_no_rows(question)])

    def _request(self, question: Question, position: int, answers: bool) -> dict[str, Any]:
        owner, parameters = self._owner(question.program)
        return {
            "round": question.round,
            "lane": self._play.lane,
            "path": question.path,
            "owner": owner,
            "parameters": parameters,
            "program": question.program.__name__,
            "rows": len(question.rows),
            "shapes": [list(values.shape[1:]) for values in question.each],
            "idle": None if question.idle is None else bool(question.idle[position]),
            "answers": answers,
        }

    def _owner(self, program: Program) -> tuple[str, dict[str, Any]]:
        """Whose program this is, and its parameters."""
        owner: Any = getattr(program, "__self__", None)
        if owner is self.algorithm:
            return ALGORITHM, {}
        return type(owner).__name__, owner.parameters()

    def _packed_down(self, question: Question, message: Message, number: int) -> Packed:
        return self._pack(
            message, question.askers, question.copies, question.key("down", number), None
        )

    def _packed_each(self, question: Question, values: Tensor) -> Packed:
        senders = question.askers[question.asker]
        return self._pack(
            flat(values), senders, torch.ones_like(senders), question.key("down"), None
        )

    def _deferred(
        self,
        question: Question,
        down: Sequence[Packed],
        messages: Sequence[Packed],
        schemas: Sequence[Schema],
    ) -> list[Deferred | None]:
        """The answers of one child; each is unpacked when it is reduced, so that not all are
        decoded at once.
        """
        if len(messages) != len(schemas):
            raise ProgramError(
                f"{self.place}: {len(messages)} answers of a child, expected {len(schemas)}."
            )
        link = Link(self.wires[question.key("up").link, "up"], self._play.ledger)
        reference = self._reference(question, down) if link.wire.update else None
        out: list[Deferred | None] = []
        for packed, schema in zip(messages, schemas, strict=True):
            packed.check(schema, 0 if schema.kind == "nothing" else 1)
            if schema.kind == "nothing":
                out.append(None)
            else:
                read = partial(link.unpack, packed, reference=reference, expect=schema, count=1)
                out.append(Deferred(read, masked=schema.kind == "masked"))
        return out

    def _reference(self, question: Question, down: Sequence[Packed]) -> Rows | None:
        """The first row that went down, as it arrived there; updates that come up are differences
        from it.
        """
        if not down:
            return None
        link = Link(self.wires[question.key("down").link, "down"], self._play.ledger)
        return rows_of(link.unpack(down[0]))

    def _expected(self, question: Question) -> tuple[bool, list[Schema]]:
        """Whether the program answers several messages, and what each looks like: a rehearsal on no
        rows tells.
        """
        owner, parameters = self._owner(question.program)
        dtypes = tuple(str(Schema.of(message)) for message in question.rows)
        key = (
            question.ends,
            question.program.__name__,
            self._play.lane,
            owner,
            str(parameters),
            dtypes,
        )
        if key not in self._schemas:
            answer = self._on_no_rows(question)
            messages = answer if isinstance(answer, tuple) else (answer,)
            self._schemas[key] = (
                isinstance(answer, tuple),
                [Schema.of(message) for message in messages],
            )
        return self._schemas[key]

    def _on_no_rows(self, question: Question) -> Any:
        """The program of the tier below on no rows: nothing happens, and its answers have their
        widths.
        """
        nobody = torch.zeros(0, dtype=torch.int64)
        nodes = Nodes(self, question.ends[1], nobody, round=question.round, path=question.path)
        arguments = []
        for number, message in enumerate(question.rows):
            rows = rows_of(message)
            check_carried(rows, question.key("down", number))
            arguments.append(None if rows is None else rows[:0])
        for values in question.each:
            check_carried(values, question.key("down"))
        answer = question.program(nodes, *arguments, *(values[:0] for values in question.each))
        for number, message in enumerate(answer if isinstance(answer, tuple) else (answer,)):
            check_carried(rows_of(message), question.key("up", number))
            self._checked_answer(question, nobody, message, nodes.call)
        self._record(question.ends[1], nobody, nodes.call, None)
        return answer

    # Answering

    def serve(self, request: bytes) -> bytes:
        """Run the program that the parent asks for; an error travels back as its kind and text."""
        try:
            header, messages = open_sealed(request)
            return self._served(header, messages)
        except CoveyError as error:
            return seal({"error": [type(error).__name__, str(error)]}, [])
        except Exception as error:  # of a program: it ends the round everywhere, with its text
            text = f"{self.place}: {type(error).__name__}: {error}"
            return seal({"error": ["ProgramError", text]}, [])

    def _served(self, header: dict[str, Any], messages: list[Packed]) -> bytes:
        play = self._play = self._new_play(header["round"], header["lane"])
        self.clock.start()
        ids = torch.tensor([self.place.number])
        owner = (
            self.algorithm
            if header["owner"] == ALGORITHM
            else self.makers[header["owner"]](header["parameters"])
        )
        program: Program = getattr(owner, header["program"])
        question = self._question_of(header, program, ids)
        arguments = self._arguments(header, messages, question)
        received = arguments[0] if header["rows"] else None
        with one_thread(), torch.no_grad():
            nodes = Nodes(
                self,
                self.place.tier,
                ids,
                round=play.round,
                path=header["path"],
                idle=question.idle,
            )
            answer = program(nodes, *arguments)
            self._record(self.place.tier, ids, nodes.call, question.idle)
            several = answer if isinstance(answer, tuple) else (answer,)
            packed = []
            for number, message in enumerate(several):
                self._checked_answer(question, ids, message, nodes.call)
                if header["answers"]:
                    key = question.key("up", number)
                    packed.append(self._pack(message, ids, torch.ones_like(ids), key, received))
            self._check(last=True)
            play.ledger.settle()
        return seal({"error": None, "facts": play.facts.as_dict()}, packed)

    def _question_of(self, header: dict[str, Any], program: Program, ids: Ids) -> Question:
        """The question as this node sees it."""
        above = self.tree.tiers[self.tree.index(self.place.tier) - 1]
        zero = torch.zeros(1, dtype=torch.int64)
        idle = None if header["idle"] is None else torch.tensor([header["idle"]])
        answers = zero if header["answers"] else zero[:0]
        ends = (above, self.place.tier)
        return Question(
            program, ends, header["round"], header["path"], zero, ids, zero, answers, idle, (), ()
        )

    def _arguments(
        self, header: dict[str, Any], messages: list[Packed], question: Question
    ) -> list[Tensor]:
        """What came down to this node."""
        key = question.key("down")
        link = Link(self.wires[key.link, "down"], self._play.ledger)
        rows = [rows_of(link.unpack(packed)) for packed in messages]
        arguments = [row for row in rows if row is not None]
        for number, shape in enumerate(header["shapes"], start=header["rows"]):
            arguments[number] = arguments[number].reshape(1, *shape)
        return arguments

    # Both

    def _pack(
        self, message: Message, ids: Ids, copies: Tensor, key: MessageKey, reference: Rows | None
    ) -> Packed:
        """The bytes of a message that this node sends."""
        check_carried(rows_of(message), key)
        link = Link(self.wires[key.link, key.direction], self._play.ledger)
        packed = link.pack(
            message,
            cut=self._cut(key),
            reference=reference,
            keys=self._wire_keys(key, ids),
            memory=self._memory(key, ids),
        )
        link.count(
            packed, Route((key.link, key.direction, self._play.lane), copies, torch.zeros_like(ids))
        )
        return packed


def _raised(kind: str, text: str) -> CoveyError:
    """The error that another node raised."""
    known = getattr(errors, kind, ProgramError)
    if isinstance(known, type) and issubclass(known, CoveyError):
        return known(text)
    return ProgramError(text)


class Loopback(Runtime):
    """A tree of stations in one process, for one seed."""

    def __init__(
        self,
        tree: Tree,
        shards: Shards,
        task: Callable[[Shards, Population], Task],
        station: Callable[[Place, Task, int], Station],
    ) -> None:
        """`task` makes the task of a node from its own shard; `station` a node from its place, task
        and told examples.
        """
        if tree.copies != 1:
            raise errors.ConfigError(
                "the loopback runtime runs one seed at a time; run the seeds one after the other."
            )
        population = Population.of(shards)
        self.tree: Tree = tree
        self.stations: dict[str, list[Station]] = {}
        nothing = Shards.none(shards)
        for tier in reversed(tree.tiers):
            ids = torch.arange(tree.size(tier))
            first, stop = tree.span(tier, ids)
            under = (shards.train.offset[stop] - shards.train.offset[first]).tolist()
            row = []
            for number in range(tree.size(tier)):
                own = shards.only([number]) if tree.below(tier) is None else nothing
                place = Place.of(tree, tier, number)
                row.append(station(place, task(own, population.local()), under[number]))
            self.stations[tier] = row
        self._connect()
        self.server = self.stations[tree.tiers[0]][0]
        self.task = self.server.task
        self.start = self.server.start

    def _connect(self) -> None:
        for tier in self.tree.tiers[:-1]:
            below = self.stations[self.tree.below(tier) or ""]
            for station in self.stations[tier]:
                first = station.place.first_child
                children = range(first, first + station.place.children)
                station.children = {child: below[child].serve for child in children}

    def play(self, program: Program, rows: Rows, *, round: int, lane: Lane = "train") -> Played:
        """Run a program at the server station; with no rows at all, every program below runs on
        none.
        """
        return self.server.play(program, rows, round=round, lane=lane)

    def commit(self) -> None:
        """What all stations keep and hold is good."""
        for station in self._all():
            station.commit()

    def rollback(self) -> None:
        """All stations go back to the last commit."""
        for station in self._all():
            station.rollback()

    def kept(self) -> dict[tuple[str, str], Tensor]:
        """(tier, name) of everything that some station keeps, with no rows of its shape and type."""
        out: dict[tuple[str, str], Tensor] = {}
        for station in self._all():
            for key, rows in station.kept().items():
                out.setdefault(key, rows)
        return out

    def read(self, tier: str, name: str, label: str, copy: int) -> tuple[Tensor, Tensor, Tensor]:
        """(ids, rounds, rows) of what the stations of a tier keep, now or in a version held."""
        template = self.kept()[tier, name]
        nothing = torch.zeros(0, dtype=torch.int64)
        parts = [(nothing, nothing, template)]
        for station in self.stations[tier]:
            column = station.store.columns.get((tier, name))
            if column is not None:
                parts.append(column.read(label, _only(station)))
        ids, rounds, rows = zip(*parts, strict=True)
        return torch.cat(ids), torch.cat(rounds), torch.cat(rows)

    def hold(self, label: str, copy: int, columns: Sequence[tuple[str, str]]) -> None:
        """Hold what stations keep now in these (tier, name), in place of what was held under this
        label.
        """
        for tier, name in columns:
            for station in self.stations[tier]:
                if (tier, name) in station.store.columns:
                    station.store.columns[tier, name].hold(label, _only(station))

    def release(self, label: str, copy: int) -> None:
        """Hold nothing under this label any more."""
        for station in self._all():
            station.release(label, copy)

    def freeze(self, copy: int) -> Iterator[Frozen]:
        """Everything that stations keep and hold, for a checkpoint of the same form as the
        simulator's.
        """
        for (tier, name), template in sorted(self.kept().items(), key=lambda item: item[0]):
            rows, count = [template], 0
            parts: dict[str, list[Entry]] = {}
            for station in self.stations[tier]:
                column = station.store.columns.get((tier, name))
                if column is None:
                    continue
                own, entries = column.freeze(_only(station))
                for label, entry in entries.items():
                    ids = entry.ids + station.place.number
                    parts.setdefault(label, []).append(
                        Entry(ids, entry.rounds, entry.places + count)
                    )
                rows.append(own)
                count += len(own)
            entries = {
                label: _joined(parts.get(label, []))
                for label in (PRESENT, *sorted(set(parts) - {PRESENT}))
            }
            yield Frozen(tier, name, torch.cat(rows), entries)

    def thaw(self, frozen: Frozen, copy: int) -> None:
        """Hand every station its own rows of one entry of `freeze`, of this runtime or of another."""
        check = Store(dict(zip(self.tree.tiers, self.tree.sizes, strict=True)))
        check.thaw(frozen, self.nodes(frozen.tier, copy))
        for station in self.stations[frozen.tier]:
            entries = {
                label: _of_node(entry, station.place.number)
                for label, entry in frozen.entries.items()
            }
            places = torch.unique(torch.cat([entry.places for entry in entries.values()]))
            for label, entry in entries.items():
                entries[label] = Entry(
                    entry.ids, entry.rounds, torch.searchsorted(places, entry.places)
                )
            own = Frozen(
                frozen.tier, frozen.name, frozen.rows[places.to(frozen.rows.device)], entries
            )
            station.store.thaw(own, slice(0, self.tree.size(frozen.tier)))

    def report(self) -> dict[str, Any]:
        """How programs are run here."""
        return {"runtime": "loopback", "nodes": sum(self.tree.sizes), "seeds": 1}

    def _all(self) -> Iterator[Station]:
        for row in self.stations.values():
            yield from row


def _only(station: Station) -> slice:
    """The one node of its tier that a station is."""
    return slice(station.place.number, station.place.number + 1)


def _joined(entries: Sequence[Entry]) -> Entry:
    """The entries of several stations as one."""
    nothing = torch.zeros(0, dtype=torch.int64)
    ids = torch.cat([nothing, *(entry.ids for entry in entries)])
    rounds = torch.cat([nothing, *(entry.rounds for entry in entries)])
    places = torch.cat([nothing, *(entry.places for entry in entries)])
    return Entry(ids, rounds, places)


def _of_node(entry: Entry, number: int) -> Entry:
    """One node's part of an entry."""
    own = entry.ids == number
    return Entry(entry.ids[own], entry.rounds[own], entry.places[own])
