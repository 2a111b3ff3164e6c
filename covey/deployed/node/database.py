"""One sqlite file that threads use by whole transactions.

Long values are written piece by piece, and moved out of the log beside the file: a value that is
bound to a statement is copied twice, and the statement keeps a copy.

Beside a value is its checksum, as sqlite has none of its file. A CRC-32 finds every change of up to
32 bits in a row, and takes a quarter of the time of BLAKE2b: 0.07 ms for 300 kB. Forgers are not
its matter: who can write the file can do anything with it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args

from covey.deployed.faults import fault
from covey.errors import CheckpointError, ConfigError

_PIECE = 2**20
LOG = 2**20
"""Bytes of the log above which its pages are moved into the file."""
_OVERHEAD = 2**14
"""Bytes of the other pages that are written with a value."""
_LAST = {"rows": "data", "answers": "data", "journal": "data", "facts": "value"}
"""The last column of the tables that hold long values."""
_SUMMED = {
    "rows": ("name", "label", "round", "dtype", "shape"),
    "answers": ("lane", "key"),
    "journal": ("key", "seat", "status"),
    "facts": ("name",),
    "records": ("round",),
}
"""The columns in front of the checksum that it is of, with the last column."""


Data = bytes | memoryview | str


class Connection(sqlite3.Connection):
    """A connection that counts what it has put into the log, about."""

    path: Path
    written: int = 0


def _checksum(values: Sequence[Any], data: Data | None) -> int:
    """Of the last column of a row, and of values in front of it."""
    if isinstance(data, str):
        data = data.encode()
    return zlib.crc32(data or b"", zlib.crc32(json.dumps(list(values)).encode()))


def check(
    connection: Connection,
    table: str,
    values: Sequence[Any],
    data: Data,
) -> None:
    """Refuse data that are not what was written; `values` are those in front, and the checksum."""
    *own, written = values
    if _checksum(own, data) == written:
        return
    fix = "restore the disk, or start a new run"
    raise CheckpointError(
        f"{connection.path}: {', '.join(map(str, own[:2]))} in the table {table!r} is not what was "
        f"written there: the disk has changed some bits; {fix}."
    )


def _check_row(
    connection: Connection,
    table: str,
    row: int,
    data: Data,
) -> None:
    """Refuse the last column of the row of this number where it is not what was written."""
    columns = ", ".join(_SUMMED[table])
    selected = connection.execute(f"SELECT {columns}, sum FROM {table} WHERE rowid = ?", [row])
    check(connection, table, selected.fetchone(), data)


def insert(
    connection: Connection,
    table: str,
    values: Sequence[Any],
    data: Data | None,
) -> None:
    """Insert or replace a row of `values`, the checksum of them and of `data`, and `data`."""
    size = 0 if data is None else len(data)
    values = [*values, _checksum(values[-len(_SUMMED[table]) :], data)]
    if data is None or isinstance(data, str) or size <= _PIECE:
        _replace(connection, table, [*values, data], "?", size)
        return
    row = _replace(connection, table, [*values, size], "zeroblob(?)", size)
    view = memoryview(data)
    with connection.blobopen(table, _LAST[table], row) as blob:
        for start in range(0, len(view), _PIECE):
            blob.write(view[start : start + _PIECE])


def _replace(
    connection: Connection,
    table: str,
    values: Sequence[Any],
    last: str,
    size: int,
) -> int:
    """Insert or replace a row whose last column has so many bytes; the number of the row."""
    connection.written += _OVERHEAD + size
    marks = "?, " * (len(values) - 1)
    text = f"INSERT OR REPLACE INTO {table} VALUES ({marks}{last})"
    row = connection.execute(text, values).lastrowid
    assert row is not None
    return row


def read(
    connection: Connection,
    table: str,
    row: int,
    out: memoryview,
) -> None:
    """Read the last column of the row of this number, whose length is that of `out`."""
    start = 0
    for piece in _pieces(connection, table, row):
        out[start : start + len(piece)] = piece
        start += len(piece)
    _check_row(connection, table, row, out)


def whole(connection: Connection, table: str, row: int) -> bytes:
    """The last column of the row of this number."""
    pieces = BytesIO()
    pieces.writelines(_pieces(connection, table, row))
    data = pieces.getvalue()  # without a copy
    _check_row(connection, table, row, data)
    return data


def move(
    connection: Connection,
    table: str,
    row: int,
    values: Sequence[Any],
) -> None:
    """Give a row other values before its last column, the checksum of which stays the last of them.

    An UPDATE would load that column twice.
    """
    size = _size(connection, table, row)
    if size <= _PIECE:
        (data,) = _pieces(connection, table, row)
        _replace(connection, table, [*values, data], "?", size)
    else:
        new = _replace(connection, table, [*values, size], "zeroblob(?)", size)
        with connection.blobopen(table, _LAST[table], new) as target:
            for piece in _pieces(connection, table, row):
                target.write(piece)
    connection.execute(f"DELETE FROM {table} WHERE rowid = ?", [row])


def _pieces(connection: Connection, table: str, row: int) -> Iterator[bytes]:
    """The last column of the row of this number.

    A query would make a copy of a long value beside the one that it returns. A short one is queried
    all the same: Python's sqlite3 holds some 180 bytes of every blob that a connection has opened.
    """
    last = _LAST[table]
    size = _size(connection, table, row)
    if size <= _PIECE:
        text = f"SELECT {last} FROM {table} WHERE rowid = ?"
        yield from connection.execute(text, [row]).fetchone()
        return
    with connection.blobopen(table, last, row, readonly=True) as blob:
        for _ in range(0, size, _PIECE):
            yield blob.read(_PIECE)


def _size(connection: Connection, table: str, row: int) -> int:
    """Bytes of the last column of the row of this number."""
    text = f"SELECT length({_LAST[table]}) FROM {table} WHERE rowid = ?"
    (size,) = connection.execute(text, [row]).fetchone()
    return int(size)


@dataclass(eq=False)
class LogMover:
    """Moves what a file's log holds into the file, in a thread of its own.

    The file is synchronised to the disk then, for which no answer should wait. The log begins anew
    only if nothing was written meanwhile. In a tree at full speed that never happens. So a log that
    is longer than the file is emptied while nobody may write: most of it was moved just before.
    """

    _path: Path
    _alone: AbstractContextManager[Any]
    """Who writes to the file holds it, but not when it calls `look`."""
    _thread: threading.Thread | None = None

    def look(self, connection: Connection) -> None:
        """Begin to move where much was written; wait for what is being moved only if it is long."""
        if connection.written < LOG:
            return
        if self._thread is not None and self._thread.is_alive():
            if not self._longer(4 * LOG):
                return
            self._thread.join()  # or the log would grow faster than it is moved
        connection.written = 0
        self._thread = threading.Thread(target=self._move, daemon=True)
        self._thread.start()

    def _move(self) -> None:
        with (
            suppress(sqlite3.Error, OSError),  # the next one may succeed
            closing(sqlite3.connect(self._path)) as connection,
        ):
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if self._longer(2 * LOG):
                with self._alone:
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _longer(self, size: int) -> bool:
        """Whether the log is longer than this, and than the file."""
        log = self._path.with_name(f"{self._path.name}-wal")
        return log.stat().st_size > max(size, self._path.stat().st_size)

    def end(self) -> None:
        """Wait for what is being moved."""
        if self._thread is not None:
            self._thread.join()


Durability = Literal["process", "power"]
"""What a node survives: the end of its process, or a power cut as well (each ask waits for it)."""
_SYNCHRONOUS: dict[Durability, str] = {"process": "NORMAL", "power": "FULL"}
_PAGE = 2**14  # bytes: a model is a long chain of pages, and each costs a call
_CACHE = 2**13  # KiB of pages, for the answers of one ask: to delete them, their pages are read


class SqliteFile:
    """One sqlite file. Threads may share it: whoever reads or writes it is alone."""

    def __init__(self, path: Path, durability: Durability) -> None:
        if durability not in get_args(Durability):
            rule = 'choose "process" or "power"'
            raise ConfigError(f"durability = {durability!r}: {rule}.")
        self.path = path
        self._alone = threading.RLock()
        self.mover: LogMover | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.connection = sqlite3.connect(
                path,
                check_same_thread=False,
                isolation_level=None,
                timeout=30.0,
                factory=Connection,
            )
            self.connection.path = path
            self.connection.execute(f"PRAGMA page_size = {_PAGE}")  # of a new file
            self.connection.execute(f"PRAGMA cache_size = -{_CACHE}")
            (journal,) = self.connection.execute("PRAGMA journal_mode = WAL").fetchone()
            self.connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
            pages = LOG // _PAGE
            if durability == "process" and journal == "wal":  # a disk in memory has no log
                self.mover = LogMover(path, self._alone)
                pages = 0
            self.connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")
        except sqlite3.Error as error:
            raise CheckpointError(f"{path} cannot be used as a node's disk: {error}.") from error

    def close(self) -> None:
        """Let go of the file."""
        if self.mover is not None:
            self.mover.end()
        with self._alone:
            self.connection.close()

    @contextmanager
    def transaction(self, inside: str | None = None) -> Iterator[Connection]:
        """Everything or nothing; `inside` is the fault point before the end."""
        with self._alone:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                if inside is not None:
                    fault(inside)
                self.connection.execute("COMMIT")
            except BaseException as error:
                if self.connection.in_transaction:  # sqlite has not given it up itself
                    self.connection.execute("ROLLBACK")
                if not isinstance(error, sqlite3.Error):
                    raise
                fix = "free some space there, or mend it, and start the node again"
                raise CheckpointError(
                    f"cannot write {self.path}: {error}; what it held before is intact; {fix}."
                ) from error
        if self.mover is not None:
            self.mover.look(self.connection)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Nobody else uses the file; an error of the database names it."""
        with self._alone:
            try:
                yield self.connection
            except (sqlite3.Error, TypeError, ValueError) as error:  # or a changed form
                fix = "mend the disk, and start the node again"
                raise CheckpointError(f"cannot read {self.path}: {error}; {fix}.") from error

    def query(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows that a query selects."""
        with self.reading() as connection:
            return connection.execute(text, values).fetchall()

    def first(self, text: str, values: Sequence[Any] = ()) -> Any:
        """The first row that a query selects; None where it selects none."""
        selected = self.query(text, values)
        if not selected:
            return None
        return selected[0]

    def whole(self, table: str, where: str, values: Sequence[Any]) -> bytes | None:
        """The long value of the row that a condition selects; None where it selects none."""
        with self.reading() as connection:
            selected = self.first(f"SELECT rowid FROM {table} WHERE {where}", values)
            if selected is None:
                return None
            return whole(connection, table, selected[0])

    def copy(self, path: Path) -> None:
        """Write everything to a new file."""
        try:
            with self._alone, closing(sqlite3.connect(path)) as other:
                self.connection.backup(other)
        except sqlite3.Error as error:
            raise CheckpointError(f"cannot copy {self.path} to {path}: {error}.") from error

    def sync_folders(self) -> None:
        """Let the names of a new file and of the folders around it survive a power cut."""
        for path in (self.path.parent, *self.path.parent.absolute().parents):
            with suppress(OSError):  # a folder that may not be read was not made here
                handle = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
