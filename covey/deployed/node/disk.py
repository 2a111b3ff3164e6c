"""The disk of one deployed node: one sqlite file, from which the node goes on after a crash.

It holds the rows that the node keeps, the residuals of its links, its last answer in each lane, and
the answers that its children gave to the ask that it is working on (the journal). What a node keeps
in a round is pending until a later round: a round that fails goes back to the last good rows. Both
versions are on the disk.

An ask ends in one transaction: its rows, its answer and the end of its journal are written together
or not at all. After a crash within an ask the program runs again from the rows before it, and the
journal answers what it had asked already.

Every change that a parent must be able to count on has a number. A node that joins says the number
of its last one, and its parent knows the last number that it has heard: a disk with less has lost
something, and is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor

from covey.deployed.faults import fault
from covey.deployed.node.database import (
    Connection,
    Durability,
    SqliteFile,
    check,
    insert,
    move,
    read,
)
from covey.deployed.node.node_rows import NodeRow, as_bytes, dtype_name, dtype_of
from covey.deployed.transport.stored import Stored
from covey.deployed.transport.transport import Admission, Answer, AskKey, Seat, Status
from covey.errors import CheckpointError

FORMAT = "covey-node-3"
_DIGITS = 18  # of the number of a change, which sqlite holds in 64 bits
CHILDREN = "children"
"""The fact that tells the seats of the children, by name."""
_EVICTED = "evicted"
MISSED = "owed"
"""The fact that lists (key, who was missing) of asks that a child has not answered."""
GOOD_MISSED = "good owed"
"""The same after the last good round, to which a rollback returns."""
ENDED = "ended"
"""The fact that lists (key, who was missing below) of asks that have ended here."""
GOOD_ENDED = "good ended"
"""The same after the last good round."""
PENDING_ORDERS = "owed orders"
"""The fact that lists (key, label, request, children) of orders that were not followed."""
_TABLES = (
    # data is NULL where a held version is released
    "rows (good INTEGER, name TEXT, label TEXT, round INTEGER, dtype TEXT, shape TEXT, "
    "sum INTEGER, data BLOB, PRIMARY KEY (name, label, good))",
    "answers (lane TEXT PRIMARY KEY, key TEXT, sum INTEGER, data BLOB)",
    "journal (key TEXT, seat INTEGER, status TEXT, sum INTEGER, data BLOB, "
    "PRIMARY KEY (key, seat))",
    "received (seat INTEGER PRIMARY KEY, number INTEGER)",
    "trained (key TEXT PRIMARY KEY, round INTEGER)",
    "facts (name TEXT PRIMARY KEY, sum INTEGER, value BLOB)",
    "records (round INTEGER PRIMARY KEY, sum INTEGER, record TEXT)",
    # path is 64 bits without a sign, so it is a text
    "missing (round INTEGER, lane TEXT, path TEXT, tier TEXT, number INTEGER, status TEXT)",
)


@dataclass(frozen=True)
class KeptForm:
    """A row that a node keeps, now or in a held version, without its numbers."""

    name: str
    label: str
    round: int
    dtype: str
    shape: tuple[int, ...]


class Disk:
    """One sqlite file. Threads may share it: every method is one transaction or one query."""

    def __init__(self, path: str | os.PathLike[str], durability: Durability = "process") -> None:
        self.path = Path(path)
        self.durability: Durability = durability
        self.file = SqliteFile(self.path, durability)
        self.close = self.file.close
        with self.file.transaction() as connection:
            for table in _TABLES:
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
            if not connection.execute("SELECT 1 FROM facts LIMIT 1").fetchall():
                _note(connection, {"format": FORMAT})
        (written,) = self.file.first("SELECT value FROM facts WHERE name = 'format'") or ("",)
        written = str(written).strip('"')  # before its checksum, which older ones have not
        if written != FORMAT:
            fix = "use the version of covey that wrote it, or an empty folder"
            raise CheckpointError(f"{path} has the format {written!r}, not {FORMAT!r}; {fix}.")
        (found,) = self.file.first("PRAGMA integrity_check(1)")  # also finds keys that have changed
        if found != "ok":
            fix = "restore the disk, or start a new run"
            raise CheckpointError(f"{path} is damaged: {found}; {fix}.")
        if durability == "power":
            self.file.sync_folders()

    def shrink(self) -> None:
        """Let go of the pages of the file that are held in memory."""
        self.file.query("PRAGMA shrink_memory")

    # Facts

    def fact(self, name: str) -> Any:
        """A fact that JSON can hold; None where there is none."""
        with self.file.reading() as connection:
            return _fact(connection, name)

    def note(self, **facts: Any) -> None:
        """Write facts that JSON can hold."""
        with self.file.transaction() as connection:
            _note(connection, facts)

    @property
    def last_key(self) -> str | None:
        """The key of the last ask that ended here, which the parent hears when the node joins.

        Behind it is the number of the last change, as in "key#7".
        """
        if not self.number:
            return None
        return f"{self.fact('last key') or ''}#{self.number}"

    @property
    def number(self) -> int:
        """The number of the last change of this disk: an answer, or rows that an order changed."""
        return int(self.fact("number") or 0)

    @property
    def pending(self) -> tuple[int, int] | None:
        """(round, attempt) in which pending rows were kept; None where there are none."""
        pending = self.fact("pending")
        if pending is None:
            return None
        round, attempt = pending
        return round, attempt

    # Rows

    def kept(self) -> list[KeptForm]:
        """The rows of this node, without their numbers; pending ones stand for good ones."""
        columns = "name, label, round, dtype, shape, data IS NULL"
        out: dict[tuple[str, str], KeptForm | None] = {}
        with self.file.reading():
            for name, label, round, dtype, shape, released in self.file.query(
                f"SELECT {columns} FROM rows ORDER BY good"
            ):
                if (name, label) in out:
                    continue
                out[name, label] = None
                if not released:
                    out[name, label] = KeptForm(name, label, round, dtype, tuple(json.loads(shape)))
        return [kept for kept in out.values() if kept is not None]

    def row(self, name: str, label: str) -> Tensor:
        """One of the rows that `kept` lists."""
        text = (
            "SELECT rowid, dtype, shape FROM rows WHERE name = ? AND label = ? "
            "ORDER BY good LIMIT 1"
        )
        with self.file.reading() as connection:
            selected = self.file.first(text, [name, label])
            if selected is None:
                fix = "restore the disk, or start a new run"
                raise CheckpointError(f"{self.path} has lost the row {name!r} ({label}); {fix}.")
            number, dtype, shape = selected
            out = torch.empty(json.loads(shape), dtype=dtype_of(dtype))
            read(connection, "rows", number, as_bytes(out))
        return out

    def rows(self, tier: str, number: int) -> list[NodeRow]:
        """All of them; (tier, number) say who this node is."""
        out = []
        for kept in self.kept():
            row = self.row(kept.name, kept.label)
            out.append(NodeRow(tier, number, kept.name, kept.label, kept.round, row))
        return out

    def keep(self, rows: Iterable[NodeRow], *, round: int, attempt: int) -> None:
        """Write rows that are pending until the round is good."""
        number = self.number + 1
        with self.file.transaction("inside-commit") as connection:
            _put(connection, rows, good=False)
            _note(connection, {"pending": [round, attempt], "number": number})

    def replace(self, rows: Iterable[NodeRow]) -> None:
        """Write rows that are good at once, from a checkpoint."""
        number = self.number + 1
        with self.file.transaction("inside-commit") as connection:
            _put(connection, rows, good=True)
            _note(connection, {"number": number})

    def commit(self, **facts: Any) -> None:
        """Pending rows are good."""
        with self.file.transaction("inside-round-commit") as connection:
            connection.execute(
                "DELETE FROM rows WHERE good = 1 AND (name, label) IN "
                "(SELECT name, label FROM rows WHERE good = 0)"
            )
            connection.execute("DELETE FROM rows WHERE good = 0 AND data IS NULL")
            text = "SELECT rowid, name, label, round, dtype, shape, sum FROM rows WHERE good = 0"
            for number, *values in connection.execute(text).fetchall():
                move(connection, "rows", number, [1, *values])
            connection.execute("DELETE FROM trained")
            _note(connection, {**facts, "pending": None})

    def rollback(self, **facts: Any) -> None:
        """Back to the good rows; what was asked and answered since then is forgotten."""
        with self.file.transaction("inside-round-commit") as connection:
            connection.execute("DELETE FROM rows WHERE good = 0")
            connection.execute("DELETE FROM answers")
            connection.execute("DELETE FROM journal")
            connection.execute("DELETE FROM trained")
            _note(connection, {**facts, "pending": None})

    # Asks

    def answer(self, key: AskKey) -> bytes | None:
        """The answer to this ask, where it was the last one of its lane; else None."""
        return self.file.whole("answers", "lane = ? AND key = ?", [key.lane, str(key)])

    def trained(self, key: AskKey) -> bool:
        """Whether this training has ended here in a round that is not good yet."""
        return self.file.first("SELECT 1 FROM trained WHERE key = ?", [str(key)]) is not None

    def end_ask(
        self,
        key: AskKey,
        rows: Iterable[NodeRow],
        answer: bytes,
        facts: Mapping[str, Any],
        numbers: Mapping[Seat, int] | None = None,
    ) -> None:
        """An ask has ended: its rows, its answer, and no journal any more.

        `numbers` are those of the last changes of the children's disks.
        """
        fault("before-commit")
        number = self.number + 1
        with self.file.transaction("inside-commit") as connection:
            _put(connection, rows, good=False)
            insert(connection, "answers", [key.lane, str(key)], answer)
            _receive(connection, numbers or {})
            connection.execute("DELETE FROM journal")
            if key.lane == "train":
                values = [str(key), key.round]
                connection.execute("INSERT INTO trained VALUES (?, ?)", values)
            pending = [key.round, key.attempt]
            own = {"last key": str(key), "pending": pending, "number": number}
            _note(connection, {**facts, **own})
        fault("after-commit")

    def journal(
        self, key: AskKey, answers: Mapping[Seat, Answer], numbers: Mapping[Seat, int]
    ) -> None:
        """Write what children answered, before anything else is asked of them.

        `numbers` are those of the last changes of the children's disks.
        """
        with self.file.transaction("inside-journal") as connection:
            for seat, answer in answers.items():
                insert(connection, "journal", [str(key), seat, answer.status], answer.read())
            _receive(connection, numbers)
        fault("after-journal")

    def journalled(self, key: AskKey) -> dict[Seat, Answer] | None:
        """What children answered to this ask; None where it was not journalled."""
        text = "SELECT seat, status, length(data) FROM journal WHERE key = ?"
        out = {}
        for seat, status, size in self.file.query(text, [str(key)]):
            data = Stored(size, partial(self.journalled_of, key, seat))
            out[seat] = Answer(_status(status), data)
        return out or None

    def journalled_of(self, key: AskKey, seat: Seat) -> bytes:
        """What one child answered to an ask that was journalled."""
        data = self.file.whole("journal", "key = ? AND seat = ?", [str(key), seat])
        if data is None:
            text = f"{self.path}: the journal has no answer of {seat} to {key}"
            raise CheckpointError(f"{text}; restore the disk, or start a new run.")
        return data

    def receive(self, numbers: Mapping[Seat, int]) -> None:
        """Write the numbers of the last changes that children have told."""
        with self.file.transaction("inside-journal") as connection:
            _receive(connection, numbers)

    def received(self, seat: Seat) -> int:
        """The number of the last change that a child has told; 0: none."""
        (number,) = self.file.first("SELECT number FROM received WHERE seat = ?", [seat]) or (0,)
        return int(number)

    def behind(self, seat: Seat, last_key: str | None, heard: int = 0) -> str | None:
        """Why a child's disk with this last key lacks what the child has told; None: it does not.

        `heard` is the number of the last change that the child has told and nobody has written.
        """
        received = max(self.received(seat), heard)
        if number_in(last_key) >= received:
            return None
        return (
            f"its disk is behind its parent's journal ({last_key or 'empty'}): its parent knows of "
            f"its change {received}; restore its disk, or start a new run."
        )

    def seat_children(self, children: Mapping[str, Seat]) -> None:
        """These are the children from now on, by name.

        If the tree has changed, what the disk knows of a child goes to its new number. Answers of
        an ask that the change has interrupted are forgotten.
        """
        new = dict(children)
        old = self.fact(CHILDREN)
        if old == new:
            return
        with self.file.transaction() as connection:
            if old is not None:
                moved = {old[name]: number for name, number in new.items() if name in old}
                _move_children(connection, moved)
            _note(connection, {CHILDREN: new})

    # The server's rounds

    def change_tree(self, state: bytes, facts: Mapping[str, Any]) -> None:
        """The run of a server goes on from this state on another tree."""
        with self.file.transaction("inside-round-commit") as connection:
            connection.execute("DELETE FROM journal")
            _note(connection, facts)
            insert(connection, "facts", ["run state"], state)

    def end_round(
        self,
        rows: Iterable[NodeRow],
        facts: Mapping[str, Any],
        state: bytes | None = None,
        records: Iterable[tuple[int, str]] = (),
        missing: Iterable[Sequence[Any]] = (),
        numbers: Mapping[Seat, int] | None = None,
        *,
        played: bool = True,
    ) -> None:
        """A round of the server is good: its rows, where the run stands, and no journal any more.

        The journal stays where nothing was played: it is that of a round which a crash has
        interrupted.

        `records` are (round, text) of the rounds that were not written yet, `missing` (round, lane,
        path, tier, number, status) of those who did not answer in them, `numbers` those of the last
        changes of the children's disks.
        """
        fault("between-rounds")
        with self.file.transaction("inside-round-commit") as connection:
            _put(connection, rows, good=True)
            connection.execute("DELETE FROM rows WHERE data IS NULL")
            if played:
                connection.execute("DELETE FROM journal")
            _note(connection, facts)
            _receive(connection, numbers or {})
            for round, record in records:
                insert(connection, "records", [round], record)
            for entry in missing:
                round, lane, path, *rest = entry
                values = [round, lane, str(path), *rest]
                connection.execute("INSERT INTO missing VALUES (?, ?, ?, ?, ?, ?)", values)
            if state is not None:
                insert(connection, "facts", ["run state"], state)

    @property
    def state(self) -> bytes | None:
        """Where the run stood after the last good round; None before the first."""
        return self.file.whole("facts", "name = ?", ["run state"])

    def missing(self) -> list[tuple[int, str, int, str, int, Status]]:
        """(round, lane, path, tier, number, status) of all who did not answer in good rounds.

        A later entry of the same node and ask corrects an earlier one.
        """
        columns = "round, lane, path, tier, number, status"
        selected = self.file.query(f"SELECT {columns} FROM missing ORDER BY rowid")
        out = []
        for round, lane, path, tier, number, status in selected:
            out.append((round, lane, int(path), tier, number, _status(status)))
        return out

    def records(self, first: int = 0, count: int = -1) -> list[str]:
        """The records of written rounds, in order: `count` from `first` on, or all of them."""
        text = "SELECT round, sum, record FROM records WHERE round >= ? ORDER BY round LIMIT ?"
        out = []
        with self.file.reading() as connection:
            for *values, record in connection.execute(text, [first, count]).fetchall():
                check(connection, "records", values, record)
                out.append(record)
        return out


def number_in(last_key: str | None) -> int:
    """The number of the last change of a disk, from what a node says when it joins.

    >>> number_in("run/0/3/train/7/algorithm.device/ab#12"), number_in("ab#" + "9" * 5000)
    (12, 0)
    """
    number = (last_key or "").rpartition("#")[2]
    if not number.isdecimal() or len(number) > _DIGITS:
        return 0
    return int(number)


def _receive(connection: Connection, numbers: Mapping[Seat, int]) -> None:
    for seat, number in numbers.items():
        connection.execute("INSERT OR REPLACE INTO received VALUES (?, ?)", [seat, number])


def _move_children(connection: Connection, moved: Mapping[Seat, Seat]) -> None:
    """Give children their new numbers; those without one are forgotten."""
    received = connection.execute("SELECT seat, number FROM received").fetchall()
    connection.execute("DELETE FROM received")
    for seat, number in received:
        if seat in moved:
            connection.execute("INSERT INTO received VALUES (?, ?)", [moved[seat], number])
    for name in (MISSED, GOOD_MISSED):
        owed = []
        for key, (round, lane, path, tier, seat, status) in _listed(connection, name):
            if seat in moved:
                owed.append([key, [round, lane, path, tier, moved[seat], status]])
        _note(connection, {name: owed})
    for name in (ENDED, GOOD_ENDED):  # who was missing below has other numbers now
        _note(connection, {name: [[key, []] for key, _ in _listed(connection, name)]})
    orders = []
    for key, label, request, seats in _listed(connection, PENDING_ORDERS):
        owing = [moved[seat] for seat in seats if seat in moved]
        if owing:
            orders.append([key, label, request, owing])
    _note(connection, {PENDING_ORDERS: orders})
    connection.execute("DELETE FROM journal")


def _listed(connection: Connection, name: str) -> list[Any]:
    """A fact that is a list; an empty one where there is none."""
    entries: list[Any] = _fact(connection, name) or []
    return entries


def _fact(connection: Connection, name: str) -> Any:
    """A fact that JSON can hold; None where there is none."""
    text = "SELECT name, sum, value FROM facts WHERE name = ?"
    for *values, value in connection.execute(text, [name]).fetchall():
        check(connection, "facts", values, value)
        return json.loads(value)
    return None


def _note(connection: Connection, facts: Mapping[str, Any]) -> None:
    for name, value in facts.items():
        insert(connection, "facts", [name], json.dumps(value))


def _put(connection: Connection, rows: Iterable[NodeRow], *, good: bool) -> None:
    for kept in rows:
        form: list[Any] = [None, None]
        data = None
        if kept.row is not None:
            shape = json.dumps(list(kept.row.shape))
            form = [dtype_name(kept.row.dtype), shape]
            data = as_bytes(kept.row)
        values = [int(good), kept.name, kept.label, kept.round, *form]
        insert(connection, "rows", values, data)


def _status(text: str) -> Status:
    """A status as the journal has it."""
    for status in get_args(Status):
        if text == status:
            return cast(Status, status)
    raise CheckpointError(f"a journal with the status {text!r}.")


class DiskAdmission:
    """The admission of a parent: its disk decides, and its node once it is made."""

    def __init__(self, disk: Disk) -> None:
        self.node: Admission | None = None
        self._disk = disk

    def refusal(self, seat: Seat, last_key: str | None) -> str | None:
        """Why a seat cannot be taken with a disk whose last written key is this; None: it can."""
        if self.node is not None:
            return self.node.refusal(seat, last_key)
        return self._disk.behind(seat, last_key)

    @property
    def evicted(self) -> frozenset[str]:
        """The names of the seats that are refused, also after a restart."""
        return frozenset(self._disk.fact(_EVICTED) or [])

    def remember(self, evicted: frozenset[str]) -> None:
        """These seats are refused from now on, and no others."""
        self._disk.note(**{_EVICTED: sorted(evicted)})
