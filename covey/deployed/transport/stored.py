"""Answers that wait in a file, so that a parent of many children does not hold all of them."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path


@dataclass(frozen=True)
class Stored:
    """Bytes that are not in memory."""

    size: int
    read: Callable[[], bytes]

    def __len__(self) -> int:
        """How many bytes there are."""
        return self.size


class NamelessFile:
    """A file without a name in a folder; it is gone when nobody has it any more.

    Threads read and write it by turns, since not every system has reads and writes at a position.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stream = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._alone = threading.Lock()
        self._close = weakref.finalize(self, self.stream.close)

    def write(self, start: int, data: bytes) -> None:
        """Write bytes at a position."""
        rest = memoryview(data)
        with self._alone:
            self.stream.seek(start)
            while rest:
                rest = rest[self.stream.write(rest) :]

    def read(self, start: int, size: int) -> bytes:
        """The bytes at a position."""
        pieces = []
        position = 0
        with self._alone:
            self.stream.seek(start)
            while position < size:
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
            self._close()


class AnswerFile:
    """A file without a name in a folder; it is gone when nobody reads it any more.

    >>> stored = AnswerFile(Path()).add(b"abc")
    >>> len(stored), stored.read()
    (3, b'abc')
    """

    def __init__(self, folder: Path) -> None:
        """The file is made when it gets its first bytes."""
        self._folder = folder
        self._file: NamelessFile | None = None
        self._end = 0
        self._alone = threading.Lock()

    def add(self, data: bytes) -> Stored:
        """Write bytes after the others; an OSError, such as of a full disk, loses none of them."""
        size = len(data)
        with self._alone:
            if self._file is None:
                self._file = NamelessFile(self._folder)
            start = self._end
            self._file.write(start, data)
            self._end = start + size
        return Stored(size, partial(self._file.read, start, size))


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
        self._folder = folder
        self._file: NamelessFile | None = None
        self._written = 0
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
                    if self._file is None:
                        self._file = NamelessFile(self._folder)
                    self._file.write(self._written, piece)
                    self._written += len(piece)
                except OSError as error:
                    self.error = error
                    self._held = BytesIO()
                    self._held.write(self._stored())
                    self._held.write(piece)
                    self._close()

    def take(self) -> bytes:
        """All bytes; nothing keeps them any more."""
        try:
            with self._alone:
                if self._held is not None:
                    return self._held.getvalue()
                return self._stored()
        finally:
            self.end()

    def _stored(self) -> bytes:
        if self._file is None:
            return b""
        return self._file.read(0, self._written)

    def end(self) -> None:
        """Forget the bytes, and give their space on the disk back."""
        self._ended = True  # a thread that still writes stops after its piece
        with self._alone:
            self._held = None
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
