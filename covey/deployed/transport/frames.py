"""Messages cut into frames of 1 MB, and put together again within limits.

A frame has at most `CHUNK` bytes of blobs. A receiver checks all sizes that a head states before it
keeps a single byte, and keeps only bytes that have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO

from covey.deployed.transport.transport import CHUNK, MAX_HEAD, MAX_MESSAGE
from covey.deployed.transport.wire import (
    Frame,
    Head,
    read_frame,
    read_head,
    sizes_of,
    write,
    write_head,
)
from covey.errors import DecodeError

_MAX_PIECES = 4096


@dataclass(frozen=True)
class Message:
    """A head and its blobs."""

    head: Head
    blobs: tuple[bytes, ...] = ()
    kept: bool = True
    """Whether the blobs are those that were sent; a receiver may have discarded them."""


def cut(number: int, message: Message) -> Iterator[bytes]:
    """The frames of a message. The blobs are not copied as a whole.

    >>> from covey.deployed.transport.wire import Reply
    >>> message = Message(Reply(seat=3, size=5), (b"hello",))
    >>> [len(frame) for frame in cut(1, message)]
    [17]
    """
    head = write_head(message.head)
    if sizes_of(message.head) != [len(blob) for blob in message.blobs]:
        raise ValueError(f"a head with the sizes {sizes_of(message.head)} of other blobs")
    if len(head) > MAX_HEAD:
        raise ValueError(f"a head of {len(head)} bytes, more than {MAX_HEAD}")
    for pieces in _groups(message.blobs):
        yield write(Frame(number=number, head=head, pieces=pieces))
        head = b""


def _groups(blobs: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Pieces of the blobs, as many as fit into a frame; one group at least."""
    group: list[bytes] = []
    room = CHUNK
    for blob in blobs:
        start = 0
        while start < len(blob):
            if room == 0 or len(group) == _MAX_PIECES:
                yield group
                group = []
                room = CHUNK
            piece = blob[start : start + room]
            group.append(piece)
            start += len(piece)
            room -= len(piece)
    yield group


@dataclass
class Assembler:
    """Puts the frames of one direction of a stream together."""

    limit: int = MAX_MESSAGE
    """Bytes of all blobs of a message."""
    _number: int = 0
    head: Head | None = None
    """That of the message that has begun and not ended."""
    sizes: list[int] = field(default_factory=list)
    """How many bytes each blob of that message has."""
    _blobs: list[bytes] = field(default_factory=list)
    _begun: BytesIO | None = None
    """The bytes of a blob that has begun and not ended; it hands them over without a copy."""
    _missing: int = 0
    _keeps: bool = True
    _sink: Callable[[bytes], None] | None = None
    """Who gets the bytes that are not kept."""

    def skip_to(self, number: int) -> None:
        """Expect the message of this number next."""
        self._number = number - 1

    def discard(self) -> None:
        """Keep no bytes of the message that has begun; its end is still found."""
        self._keeps = False
        self._blobs = [b""] * len(self._blobs)
        if self._begun is not None:
            self._begun = BytesIO()

    def divert(self, sink: Callable[[bytes], None]) -> None:
        """Hand the bytes of the message that has begun to somebody else, who keeps them.

        It is for a message with one blob, of which nobody could tell several apart.
        """
        if self._begun is not None:
            sink(self._begun.getvalue())
        self.discard()
        self._sink = sink

    @property
    def within(self) -> bool:
        """Whether a message has begun and not ended."""
        return self.head is not None

    @property
    def kept(self) -> int:
        """How many bytes of blobs are held now."""
        begun = self._begun.getbuffer().nbytes if self._begun is not None else 0
        return sum(map(len, self._blobs)) + begun

    def take(self, data: bytes) -> Message | None:
        """Take a frame; return the message that it ends, if any. A bad frame is a DecodeError."""
        frame = read_frame(data)
        pieces = list(frame.pieces)  # each look at them is a copy
        if frame.head:
            self._begin(frame)
        elif self.head is None:
            raise DecodeError("a frame without a head where a message should begin.")
        elif frame.number != self._number:
            raise DecodeError(f"a frame of message {frame.number} within message {self._number}.")
        elif not pieces:
            raise DecodeError("a frame without a head and without bytes.")
        for position, piece in enumerate(pieces):
            if position and self._begun is not None:
                raise DecodeError("a frame with two pieces of one blob.")
            self._append(piece)
        # A frame that could have held more is refused: many small pieces take much memory.
        total = sum(map(len, pieces))
        if total > CHUNK:
            raise DecodeError(f"a frame with {total} bytes of blobs, more than {CHUNK}.")
        if self._begun is not None and total < CHUNK:
            raise DecodeError(f"a frame with {total} bytes, expected {CHUNK}.")
        if self.head is None or self._missing:
            return None
        message = Message(self.head, tuple(self._blobs), self._keeps)
        self.head = None
        self._blobs = []
        self._sink = None
        return message

    def _begin(self, frame: Frame) -> None:
        """Check the head of the next message."""
        if self.head is not None:
            raise DecodeError(f"a message that begins within message {self._number}.")
        if frame.number != self._number + 1:
            raise DecodeError(f"message {frame.number} after message {self._number}.")
        if len(frame.head) > MAX_HEAD:
            raise DecodeError(f"a head of {len(frame.head)} bytes, more than {MAX_HEAD}.")
        head = read_head(frame.head)
        sizes = sizes_of(head)
        if sum(sizes) > self.limit:
            raise DecodeError(f"a message of {sum(sizes)} bytes, more than {self.limit}.")
        self._number = frame.number
        self.head = head
        self.sizes = sizes
        self._blobs = []
        self._keeps = True
        self._next_blob()

    def _next_blob(self) -> None:
        """Go on to the next blob that has bytes."""
        self._begun = None
        self._missing = 0
        while len(self._blobs) < len(self.sizes):
            self._missing = self.sizes[len(self._blobs)]
            if self._missing:
                return
            self._blobs.append(b"")

    def _append(self, piece: bytes) -> None:
        """Take a piece of the current blob."""
        if not piece or len(piece) > self._missing:
            raise DecodeError(f"a piece of {len(piece)} bytes where {self._missing} are missing.")
        self._missing -= len(piece)
        if self._sink is not None:
            self._sink(piece)
        if not self._keeps:
            piece = b""
        if self._begun is None and self._missing:
            self._begun = BytesIO()
        if self._begun is not None:
            self._begun.write(piece)
            if self._missing:
                return
            piece = self._begun.getvalue()
        self._blobs.append(piece)
        self._next_blob()
