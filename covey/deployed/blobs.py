"""Long values in sqlite: written piece by piece, and moved out of the log beside the file.

A value that is bound to a statement is copied twice, and the statement keeps a copy.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
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
    connection.written += _OVERHEAD + size
    marks = "?, " * len(values)
    text = f"INSERT OR REPLACE INTO {table} VALUES ({marks}"
    if data is None or size <= _PIECE:
        connection.execute(f"{text}?)", [*values, data])
        return
    cursor = connection.execute(f"{text}zeroblob(?))", [*values, size])
    view = memoryview(data)
    assert cursor.lastrowid is not None
    with connection.blobopen(table, _LAST[table], cursor.lastrowid) as blob:
        for start in range(0, len(view), _PIECE):
            blob.write(view[start : start + _PIECE])


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
