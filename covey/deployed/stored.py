"""Answers that wait in a file, so that a parent of many children does not hold all of them."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
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
                self._file = _nameless(self, self._folder)
            start = self._end
            _write(self._file.fileno(), start, data)
            self._end = start + size
        return Stored(size, partial(self._read, start, size))

    def _read(self, start: int, size: int) -> bytes:
        assert self._file is not None
        return _read(self._file.fileno(), start, size, self._folder)


class Arrival:
    """An answer that arrives piece by piece, in its place of an `ArrivalFile`."""

    def __init__(self, descriptor: int, start: int, folder: Path, leave: Callable[[], None]):
        """`leave` gives the place back."""
        self._descriptor = descriptor
        self._start = start
        self._folder = folder
        self._leave = leave
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
                if not self._ended:
                    self._add(piece)

    def _add(self, piece: bytes) -> None:
        if self._held is None:
            try:
                _write(self._descriptor, self._start + self._written, piece)
                self._written += len(piece)
                return
            except OSError as error:
                self.error = error
                self._held = BytesIO()
                self._held.write(self._stored())
        self._held.write(piece)

    def read(self) -> bytes:
        """All bytes so far."""
        with self._alone:
            if self._held is not None:
                return self._held.getvalue()
            return self._stored()

    def _stored(self) -> bytes:
        return _read(self._descriptor, self._start, self._written, self._folder)

    def end(self) -> None:
        """Forget the bytes; another answer may have the place."""
        with self._alone:  # a thread may still write a piece
            if not self._ended:
                self._ended = True
                self._held = None
                self._leave()


class ArrivalFile:
    """A file without a name for answers of which not all bytes are there.

    Each has a place in it, which is used again. So an answer that never ends takes no more of the
    disk than any other, however often it begins.

    >>> file = ArrivalFile(Path(), longest=100)
    >>> arrival = file.begin()
    >>> arrival.write([b"ab", b"c"])
    >>> arrival.read()
    b'abc'
    >>> arrival.end()
    """

    def __init__(self, folder: Path, longest: int) -> None:
        """`longest` are the bytes of an answer; the file is made when the first one begins."""
        self._folder = folder
        self._longest = longest
        self._file: IO[bytes] | None = None
        self._places: set[int] = set()
        self._alone = threading.Lock()

    def begin(self) -> Arrival:
        """A place for one more answer; an OSError where there can be no file."""
        with self._alone:
            if self._file is None:
                self._file = _nameless(self, self._folder)
            place = next(number for number in itertools.count() if number not in self._places)
            self._places.add(place)
        start = place * self._longest
        leave = partial(self._end, place)
        return Arrival(self._file.fileno(), start, self._folder, leave)

    def _end(self, place: int) -> None:
        with self._alone:
            self._places.discard(place)
            if not self._places and self._file is not None:
                os.ftruncate(self._file.fileno(), 0)


def _nameless(owner: object, folder: Path) -> IO[bytes]:
    """A file without a name, which is closed when nobody has its owner any more."""
    file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
    weakref.finalize(owner, file.close)
    return file


def _write(descriptor: int, start: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], start + written)


def _read(descriptor: int, start: int, size: int, folder: Path) -> bytes:
    pieces = []
    position = 0
    while position < size:
        piece = os.pread(descriptor, size - position, start + position)
        if not piece:
            raise OSError(f"an answer of {size} bytes in {folder} ends after {position}")
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)
