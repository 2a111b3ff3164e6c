"""Answers that wait in a file, so that a parent of many children does not hold all of them."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Stored:
    """Bytes that are not in memory."""

    size: int
    read: Callable[[], bytes]

    def __len__(self) -> int:
        """How many bytes there are."""
        return self.size


class AnswerFile:
    """A file without a name in a folder; it is gone when nobody reads it any more.

    >>> stored = AnswerFile(Path()).add(b"abc")
    >>> len(stored), stored.read()
    (3, b'abc')
    """

    def __init__(self, folder: Path) -> None:
        """The file is made when it gets its first bytes."""
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = 0
        self._alone = threading.Lock()

    def add(self, data: bytes) -> Stored:
        """Write bytes after the others; an OSError, such as of a full disk, loses none of them."""
        size = len(data)
        with self._alone:
            if self._file is None:
                file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
                weakref.finalize(self, file.close)
                self._file = file
            start = self._end
            written = 0
            self._file.seek(start)
            while written < size:
                written += self._file.write(memoryview(data)[written:])
            self._end = start + size
        return Stored(size, partial(self._read, start, size))

    def _read(self, start: int, size: int) -> bytes:
        assert self._file is not None
        pieces = []
        position = 0
        with self._alone:
            self._file.seek(start)
            while position < size:
                piece = self._file.read(size - position)
                if not piece:
                    text = f"an answer of {size} bytes in {self._folder} ends after {position}"
                    raise OSError(text)
                pieces.append(piece)
                position += len(piece)
        return b"".join(pieces)
