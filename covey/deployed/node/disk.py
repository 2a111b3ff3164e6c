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
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from covey.deployed.node.blobs import LOG, Connection, LogMover, check, insert, move, read, whole
from covey.deployed.node.node_rows import NodeRow, as_bytes, dtype_name, dtype_of
from covey.deployed.transport.stored import Stored
from covey.deployed.transport.transport import Answer, AskKey, Seat, Status
from covey.errors import CheckpointError, ConfigError

Durability = Literal["process", "power"]
"""What a node survives: the end of its process, or a power cut as well (each ask waits for it)."""
_SYNCHRONOUS: dict[Durability, str] = {"process": "NORMAL", "power": "FULL"}
_PAGE = 2**14  # bytes: a model is a long chain of pages, and each costs a call
_CACHE = 2**13  # KiB of pages, for the answers of one ask: to delete them, their pages are read

FORMAT = "covey-node-3"
_DIGITS = 18  # of the number of a change, which sqlite holds in 64 bits
_CHILDREN = "children"
OWED = "owed"
"""The fact that lists (key, who was missing) of asks that a child has not answered."""
GOOD_OWED = "good owed"
"""The same after the last good round, to which a rollback returns."""
ENDED = "ended"
"""The fact that lists (key, who was missing below) of asks that have ended here."""
GOOD_ENDED = "good ended"
"""The same after the last good round."""
OWED_ORDERS = "owed orders"
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

# Fault points

FAULTS = {
    "inside-ask": "a node is about to run a program",
    "before-commit": "the program has ended; nothing is written",
    "inside-commit": "in the transaction of an answer, or of held rows",
    "after-commit": "the answer is written, and not sent",
    "answer-sent": "the answer is on its way",
    "asking": "a parent is about to ask its children",
    "answers-received": "the children have answered; nothing is written",
    "inside-journal": "in the transaction of their answers",
    "after-journal": "their answers are written",
    "between-rounds": "a node hears of a new round, or the server has played one",
    "inside-round-commit": "in the transaction that makes a round good",
    "round-ended": "the server has written a round; the next has not begun",
}
"""Where tests may end a process."""
FAULT_VARIABLE = "COVEY_FAULT"
"""POINT:N in the environment: a process kills itself when it passes a point for the n-th time."""
_hooks: list[Callable[[str], None]] = []


def fault(point: str) -> None:
    """Do what tests have put at this point; nothing in ordinary use."""
    for hook in _hooks:
        hook(point)


def set_fault(hook: Callable[[str], None] | None) -> None:
    """Call `hook` with the name of every fault point that is passed; None: no hook."""
    _hooks.clear()
    if hook is not None:
        _hooks.append(hook)


def arm_fault() -> None:
    """Set the fault that the environment names, if any; called once a process has started."""
    text = os.environ.get(FAULT_VARIABLE)
    if not text:
        return
    point, _, times = text.partition(":")
    if not times.isdecimal() or int(times) < 1:
        fix = "give POINT:N, such as inside-commit:3"
        raise ConfigError(f"{FAULT_VARIABLE} = {text!r}: {fix}.")
    set_fault(kill_at(point, int(times)))


def kill_at(point: str, times: int) -> Callable[[str], None]:
    """A hook that kills this process when a point is passed for the n-th time."""
    if point not in FAULTS:
        raise ConfigError(f"there is no fault point {point!r}; choose one of {', '.join(FAULTS)}.")
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        if name != point:
            return
        passed += 1
        if passed == times:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


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
        if durability not in get_args(Durability):
            rule = 'choose "process" or "power"'
            raise ConfigError(f"durability = {durability!r}: {rule}.")
        self.path = Path(path)
        self.durability: Durability = durability
        self._alone = threading.RLock()
        self._mover: LogMover | None = None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._open()
        except sqlite3.Error as error:
            raise CheckpointError(
                f"{self.path} cannot be used as a node's disk: {error}."
            ) from error
        self._check_format()
        if durability == "power":
            _sync_folders(self.path.parent)

    def _open(self) -> None:
        self._connection = sqlite3.connect(
            self.path,
            check_same_thread=False,
            isolation_level=None,
            timeout=30.0,
            factory=Connection,
        )
        self._connection.path = self.path
        self._connection.execute(f"PRAGMA page_size = {_PAGE}")  # of a new file
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE}")
        (journal,) = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()
        self._connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self.durability]}")
        pages = LOG // _PAGE
        if self.durability == "process" and journal == "wal":  # a disk in memory has no log
            self._mover = LogMover(self.path, self._alone)
            pages = 0
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")
        with self._transaction() as connection:
            for table in _TABLES:
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
            if not connection.execute("SELECT 1 FROM facts LIMIT 1").fetchall():
                _note(connection, {"format": FORMAT})

    def _check_format(self) -> None:
        (written,) = self._first("SELECT value FROM facts WHERE name = 'format'") or ("",)
        written = str(written).strip('"')  # before its checksum, which older ones have not
        if written != FORMAT:
            fix = "use the version of covey that wrote it, or an empty folder"
            raise CheckpointError(f"{self.path} has the format {written!r}, not {FORMAT!r}; {fix}.")
        (found,) = self._first("PRAGMA integrity_check(1)")  # also finds keys that have changed
        if found != "ok":
            fix = "restore the disk, or start a new run"
            raise CheckpointError(f"{self.path} is damaged: {found}; {fix}.")

    def close(self) -> None:
        """Let go of the file."""
        if self._mover is not None:
            self._mover.end()
        with self._alone:
            self._connection.close()

    @contextmanager
    def _transaction(self, inside: str | None = None) -> Iterator[Connection]:
        """Everything or nothing; `inside` is the fault point before the end."""
        with self._alone:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                if inside is not None:
                    fault(inside)
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._undo()
                fix = "free some space there, or mend it, and start the node again"
                raise CheckpointError(
                    f"cannot write {self.path}: {error}; what it held before is intact; {fix}."
                ) from error
            except BaseException:
                self._undo()
                raise
        if self._mover is not None:
            self._mover.look(self._connection)

    def _undo(self) -> None:
        """Give up a transaction, unless the database has done so itself."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Nobody else uses the file; an error of the database names it."""
        with self._alone:
            try:
                yield self._connection
            except (sqlite3.Error, TypeError, ValueError) as error:  # or a changed form
                fix = "mend the disk, and start the node again"
                raise CheckpointError(f"cannot read {self.path}: {error}; {fix}.") from error

    def _query(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._reading() as connection:
            return connection.execute(text, values).fetchall()

    def _first(self, text: str, values: Sequence[Any] = ()) -> Any:
        """The first row that a query selects; None where it selects none."""
        selected = self._query(text, values)
        if not selected:
            return None
        return selected[0]

    def _whole(self, table: str, where: str, values: Sequence[Any]) -> bytes | None:
        """The long value of the row that a condition selects; None where it selects none."""
        with self._reading() as connection:
            selected = self._first(f"SELECT rowid FROM {table} WHERE {where}", values)
            if selected is None:
                return None
            return whole(connection, table, selected[0])

    def shrink(self) -> None:
        """Let go of the pages of the file that are held in memory."""
        self._query("PRAGMA shrink_memory")

    # Facts

    def fact(self, name: str) -> Any:
        """A fact that JSON can hold; None where there is none."""
        with self._reading() as connection:
            return _fact(connection, name)

    def note(self, **facts: Any) -> None:
        """Write facts that JSON can hold."""
        with self._transaction() as connection:
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
        with self._reading():
            for name, label, round, dtype, shape, released in self._query(
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
        with self._reading() as connection:
            selected = self._first(text, [name, label])
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
        with self._transaction("inside-commit") as connection:
            _put(connection, rows, good=False)
            _note(connection, {"pending": [round, attempt], "number": number})

    def replace(self, rows: Iterable[NodeRow]) -> None:
        """Write rows that are good at once, from a checkpoint."""
        number = self.number + 1
        with self._transaction("inside-commit") as connection:
            _put(connection, rows, good=True)
            _note(connection, {"number": number})

    def commit(self, **facts: Any) -> None:
        """Pending rows are good."""
        with self._transaction("inside-round-commit") as connection:
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
        with self._transaction("inside-round-commit") as connection:
            connection.execute("DELETE FROM rows WHERE good = 0")
            connection.execute("DELETE FROM answers")
            connection.execute("DELETE FROM journal")
            connection.execute("DELETE FROM trained")
            _note(connection, {**facts, "pending": None})

    # Asks

    def answer(self, key: AskKey) -> bytes | None:
        """The answer to this ask, where it was the last one of its lane; else None."""
        return self._whole("answers", "lane = ? AND key = ?", [key.lane, str(key)])

    def trained(self, key: AskKey) -> bool:
        """Whether this training has ended here in a round that is not good yet."""
        return self._first("SELECT 1 FROM trained WHERE key = ?", [str(key)]) is not None

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
        with self._transaction("inside-commit") as connection:
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
        with self._transaction("inside-journal") as connection:
            for seat, answer in answers.items():
                insert(connection, "journal", [str(key), seat, answer.status], answer.read())
            _receive(connection, numbers)
        fault("after-journal")

    def journalled(self, key: AskKey) -> dict[Seat, Answer] | None:
        """What children answered to this ask; None where it was not journalled."""
        text = "SELECT seat, status, length(data) FROM journal WHERE key = ?"
        out = {}
        for seat, status, size in self._query(text, [str(key)]):
            data = Stored(size, partial(self.journalled_of, key, seat))
            out[seat] = Answer(_status(status), data)
        return out or None

    def journalled_of(self, key: AskKey, seat: Seat) -> bytes:
        """What one child answered to an ask that was journalled."""
        data = self._whole("journal", "key = ? AND seat = ?", [str(key), seat])
        if data is None:
            text = f"{self.path}: the journal has no answer of {seat} to {key}"
            raise CheckpointError(f"{text}; restore the disk, or start a new run.")
        return data

    def receive(self, numbers: Mapping[Seat, int]) -> None:
        """Write the numbers of the last changes that children have told."""
        with self._transaction("inside-journal") as connection:
            _receive(connection, numbers)

    def received(self, seat: Seat) -> int:
        """The number of the last change that a child has told; 0: none."""
        (number,) = self._first("SELECT number FROM received WHERE seat = ?", [seat]) or (0,)
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

    def names_of_children(self) -> dict[Seat, str]:
        """The names that `seat_children` was told; none before it was told any."""
        names: dict[str, Seat] = self.fact(_CHILDREN) or {}
        return {seat: name for name, seat in names.items()}

    def seat_children(self, children: Mapping[str, Seat]) -> None:
        """These are the children from now on, by name.

        If the tree has changed, what the disk knows of a child goes to its new number. Answers of
        an ask that the change has interrupted are forgotten.
        """
        new = dict(children)
        old = self.fact(_CHILDREN)
        if old == new:
            return
        with self._transaction() as connection:
            if old is not None:
                moved = {old[name]: number for name, number in new.items() if name in old}
                _move_children(connection, moved)
            _note(connection, {_CHILDREN: new})

    # The server's rounds

    def change_tree(self, state: bytes, facts: Mapping[str, Any]) -> None:
        """The run of a server goes on from this state on another tree."""
        with self._transaction("inside-round-commit") as connection:
            connection.execute("DELETE FROM journal")
            _note(connection, facts)
            insert(connection, "facts", ["run state"], state)

    def copy(self, path: Path) -> None:
        """Write the whole disk to a new file."""
        try:
            with self._alone, closing(sqlite3.connect(path)) as other:
                self._connection.backup(other)
        except sqlite3.Error as error:
            raise CheckpointError(f"cannot copy {self.path} to {path}: {error}.") from error

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
        with self._transaction("inside-round-commit") as connection:
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
        return self._whole("facts", "name = ?", ["run state"])

    def missing(self) -> list[tuple[int, str, int, str, int, Status]]:
        """(round, lane, path, tier, number, status) of all who did not answer in good rounds.

        A later entry of the same node and ask corrects an earlier one.
        """
        columns = "round, lane, path, tier, number, status"
        selected = self._query(f"SELECT {columns} FROM missing ORDER BY rowid")
        out = []
        for round, lane, path, tier, number, status in selected:
            out.append((round, lane, int(path), tier, number, _status(status)))
        return out

    def records(self, first: int = 0, count: int = -1) -> list[str]:
        """The records of written rounds, in order: `count` from `first` on, or all of them."""
        text = "SELECT round, sum, record FROM records WHERE round >= ? ORDER BY round LIMIT ?"
        out = []
        with self._reading() as connection:
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


def _sync_folders(folder: Path) -> None:
    """Let the names of a new file and of the folders that it lies in survive a power cut."""
    for path in (folder, *folder.absolute().parents):
        with suppress(OSError):  # a folder that may not be read was not made here
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _move_children(connection: Connection, moved: Mapping[Seat, Seat]) -> None:
    """Give children their new numbers; those without one are forgotten."""
    received = connection.execute("SELECT seat, number FROM received").fetchall()
    connection.execute("DELETE FROM received")
    for seat, number in received:
        if seat in moved:
            connection.execute("INSERT INTO received VALUES (?, ?)", [moved[seat], number])
    for name in (OWED, GOOD_OWED):
        owed = []
        for key, (round, lane, path, tier, seat, status) in _listed(connection, name):
            if seat in moved:
                owed.append([key, [round, lane, path, tier, moved[seat], status]])
        _note(connection, {name: owed})
    for name in (ENDED, GOOD_ENDED):  # who was missing below has other numbers now
        _note(connection, {name: [[key, []] for key, _ in _listed(connection, name)]})
    orders = []
    for key, label, request, seats in _listed(connection, OWED_ORDERS):
        owing = [moved[seat] for seat in seats if seat in moved]
        if owing:
            orders.append([key, label, request, owing])
    _note(connection, {OWED_ORDERS: orders})
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
