"""Answers that wait in a file, so that a parent of many children does not hold all of them."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO, FileIO
from pathlib import Path


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

    Threads read and write it by turns, since not every system has reads and writes at a position.

    >>> stored = AnswerFile(Path()).add(b"abc")
    >>> len(stored), stored.read()
    (3, b'abc')
    """

    def __init__(self, folder: Path) -> None:
        """The file is made when it gets its first bytes."""
        self._folder = folder
        self._alone = threading.Lock()
        self.stream: FileIO | None = None
        self.size = 0

    def add(self, data: bytes) -> Stored:
        """Write bytes after the others; an OSError, such as of a full disk, loses none of them."""
        rest = memoryview(data)
        with self._alone:
            if self.stream is None:
                file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
                self.stream = file
                weakref.finalize(self, file.close)
            start = self.size
            self.stream.seek(start)
            while rest:
                rest = rest[self.stream.write(rest) :]
            self.size += len(data)
        return Stored(len(data), partial(self.read, start, len(data)))

    def read(self, start: int, size: int) -> bytes:
        """The bytes at a position."""
        pieces = []
        position = 0
        with self._alone:
            if self.stream is not None:
                self.stream.seek(start)
            while self.stream is not None and position < size:
                piece = self.stream.read(size - position)
                if not piece:
                    text = f"an answer of {size} bytes in {self._folder} ends after {position}"
                    raise OSError(text)
                pieces.append(piece)
                position += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Give the space on the disk back."""
        with self._alone, suppress(OSError):  # nobody wants the bytes any more
            if self.stream is not None:
                self.stream.close()
            self.stream = None


class Arrival:
    """An answer that arrives piece by piece, in a file of its own without a name.

    Every call may wait for the disk. So none is for the thread of an event loop.

    >>> arrival = Arrival(Path())
    >>> arrival.write([b"ab", b"c"])
    >>> arrival.take()
    b'abc'
    """

    def __init__(self, folder: Path) -> None:
        """The file is made when it gets its first bytes."""
        self.file = AnswerFile(folder)
        self._held: BytesIO | None = None
        self._ended = False
        self._alone = threading.Lock()
        self.error: OSError | None = None
        """Why the bytes are held in memory, such as of a full disk."""

    def write(self, pieces: Sequence[bytes]) -> None:
        """Add bytes; those of an answer that has ended are dropped."""
        with self._alone:
            for piece in pieces:
                if self._ended:
                    return
                if self._held is not None:
                    self._held.write(piece)
                    continue
                try:
                    self.file.add(piece)
                except OSError as error:
                    self.error = error
                    self._held = BytesIO()
                    self._held.write(self.file.read(0, self.file.size))
                    self._held.write(piece)
                    self.file.close()

    def take(self) -> bytes:
        """All bytes; nothing keeps them any more."""
        try:
            with self._alone:
                if self._held is not None:
                    return self._held.getvalue()
                return self.file.read(0, self.file.size)
        finally:
            self.end()

    def end(self) -> None:
        """Forget the bytes, and give their space on the disk back."""
        self._ended = True  # a thread that still writes stops after its piece
        with self._alone:
            self._held = None
            self.file.close()
