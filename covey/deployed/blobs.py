"""Long values in sqlite: written piece by piece, and moved out of the log beside the file.

A value that is bound to a statement is copied twice, and the statement keeps a copy.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_PIECE = 2**20
_LOG = 2**22
"""Bytes of the log above which its pages are moved into the file."""
_LAST = {"rows": "data", "answers": "data", "journal": "data", "facts": "value"}
"""The last column of the tables that hold long values."""


def insert(
    connection: sqlite3.Connection,
    table: str,
    values: Sequence[Any],
    data: bytes | memoryview | None,
) -> None:
    """Insert or replace a row whose last column is `data`; any other column is in `values`."""
    marks = "?, " * len(values)
    text = f"INSERT OR REPLACE INTO {table} VALUES ({marks}"
    if data is None or len(data) <= _PIECE:
        connection.execute(f"{text}?)", [*values, data])
        return
    cursor = connection.execute(f"{text}zeroblob(?))", [*values, len(data)])
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
        self._log = f"{path}-wal"
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Begin to move where the log is long and nothing is being moved."""
        if self._thread is not None and self._thread.is_alive():
            return
        with suppress(OSError):
            if os.stat(self._log).st_size > _LOG:
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
