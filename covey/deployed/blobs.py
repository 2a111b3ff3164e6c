"""Long values in sqlite: written piece by piece, and moved out of the log beside the file.

A value that is bound to a statement is copied twice, and the statement keeps a copy.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

_PIECE = 2**20
_LOG = 2**22
"""Bytes of the log above which its pages are moved into the file."""
_OVERHEAD = 2**16
"""Bytes of the other pages that are written with a value."""
_LAST = {"rows": "data", "answers": "data", "journal": "data", "facts": "value"}
"""The last column of the tables that hold long values."""


class Connection(sqlite3.Connection):
    """A connection that counts what it has put into the log, about."""

    written: int = 0


def insert(
    connection: Connection,
    table: str,
    values: Sequence[Any],
    data: bytes | memoryview | None,
) -> None:
    """Insert or replace a row whose last column is `data`; any other column is in `values`."""
    size = 0 if data is None else len(data)
    if data is None or size <= _PIECE:
        _replace(connection, table, [*values, data], "?", size)
        return
    row = _replace(connection, table, [*values, size], "zeroblob(?)", size)
    view = memoryview(data)
    with connection.blobopen(table, _LAST[table], row) as blob:
        for start in range(0, len(view), _PIECE):
            blob.write(view[start : start + _PIECE])


def _replace(
    connection: Connection, table: str, values: Sequence[Any], last: str, size: int
) -> int:
    """Insert or replace a row whose last column has so many bytes; the number of the row."""
    connection.written += _OVERHEAD + size
    marks = "?, " * (len(values) - 1)
    text = f"INSERT OR REPLACE INTO {table} VALUES ({marks}{last})"
    row = connection.execute(text, values).lastrowid
    assert row is not None
    return row


def read(connection: Connection, table: str, row: int, out: memoryview) -> None:
    """Read the last column of the row of this number, whose length is that of `out`.

    A query would make a copy of a long value beside the one that it returns.
    """
    with connection.blobopen(table, _LAST[table], row, readonly=True) as blob:
        for start in range(0, len(out), _PIECE):
            stop = min(start + _PIECE, len(out))
            out[start:stop] = blob.read(stop - start)


def whole(connection: Connection, table: str, row: int, size: int) -> bytes:
    """The last column of the row of this number, which has so many bytes."""
    pieces = BytesIO()
    with connection.blobopen(table, _LAST[table], row, readonly=True) as blob:
        for _ in range(0, size, _PIECE):
            pieces.write(blob.read(_PIECE))
    return pieces.getvalue()  # without a copy


def move(connection: Connection, table: str, row: int, values: Sequence[Any]) -> None:
    """Give a row other values in front of its last column; an UPDATE would load that twice."""
    last = _LAST[table]
    selected = connection.execute(f"SELECT length({last}) FROM {table} WHERE rowid = ?", [row])
    (size,) = selected.fetchone()
    if size is None or size <= _PIECE:
        selected = connection.execute(f"SELECT {last} FROM {table} WHERE rowid = ?", [row])
        (data,) = selected.fetchone()
        insert(connection, table, values, data)
    else:
        new = _replace(connection, table, [*values, size], "zeroblob(?)", size)
        with (
            connection.blobopen(table, last, row, readonly=True) as source,
            connection.blobopen(table, last, new) as target,
        ):
            for _ in range(0, size, _PIECE):
                target.write(source.read(_PIECE))
    connection.execute(f"DELETE FROM {table} WHERE rowid = ?", [row])


class LogMover:
    """Moves what a file's log holds into the file, in a thread of its own.

    The file is synchronised to the disk then, for which no answer should wait.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: threading.Thread | None = None

    def look(self, connection: Connection) -> None:
        """Begin to move where much was written and nothing is being moved."""
        if connection.written < _LOG:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        connection.written = 0
        self._thread = threading.Thread(target=self._move, daemon=True)
        self._thread.start()

    def _move(self) -> None:
        with suppress(sqlite3.Error):  # the next one may succeed
            connection = sqlite3.connect(self._path)
            try:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            finally:
                connection.close()

    def end(self) -> None:
        """Wait for what is being moved."""
        if self._thread is not None:
            self._thread.join()
