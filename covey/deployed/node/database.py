"""One sqlite file that several threads use, each by whole transactions."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, get_args

from covey.deployed.node.blobs import LOG, Connection, LogMover, whole
from covey.deployed.node.faults import fault
from covey.errors import CheckpointError, ConfigError

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
