"""An envelope between two nodes that share nothing: a JSON header, then encoded rows."""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import torch

from covey import errors
from covey.codecs import header as codec_header
from covey.errors import CoveyError, DecodeError, ProgramError
from covey.links.packed import Packed, Schema

_LENGTH = struct.Struct("<I")
_CODEC_HEADER = codec_header.SIZE
_ALIGNED = 16
LIMIT = 2**28
"""Bytes of a header, where whoever reads it knows no smaller limit."""
_TYPES = {"float32": torch.float32, "float64": torch.float64}


class Pieces:
    """Bytes that lie in several pieces of memory, and are not joined.

    >>> pieces = Pieces([b"ab", b"cde"])
    >>> len(pieces), pieces[1:4], pieces.joined()
    (5, b'bcd', b'abcde')
    """

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self.parts = tuple(parts)
        self._ends = list(accumulate(map(len, self.parts)))

    def __len__(self) -> int:
        """How many bytes there are."""
        if not self._ends:
            return 0
        return self._ends[-1]

    def __getitem__(self, where: slice) -> bytes:
        """A copy of some bytes, such as a frame takes."""
        start, stop, _ = where.indices(len(self))
        out = []
        number = bisect_right(self._ends, start)
        while start < stop:
            part = memoryview(self.parts[number])
            first = self._ends[number] - len(part)
            end = min(stop, self._ends[number])
            out.append(part[start - first : end - first])
            start = end
            number += 1
        return b"".join(out)

    def joined(self) -> bytes:
        """All bytes in one piece."""
        return b"".join(self.parts)


def seal(header: dict[str, Any], messages: Sequence[Packed]) -> bytes:
    """A header and packed messages as bytes."""
    return sealed(header, messages).joined()


def sealed(header: dict[str, Any], messages: Sequence[Packed]) -> Pieces:
    """As `seal`; the encoded rows are not copied."""
    descriptions = []
    rows: list[bytes] = []
    for packed in messages:
        schema = packed.schema
        name = str(schema.dtype).removeprefix("torch.")
        lengths = [len(row) for row in packed.messages]
        descriptions.append([schema.kind, schema.width, name, lengths])
        rows += packed.messages
    described = {**header, "messages": descriptions}
    head = aligned(json.dumps(described).encode(), _LENGTH.size + _CODEC_HEADER)
    length = _LENGTH.pack(len(head))
    return Pieces([length, head, *rows])


def aligned(head: bytes, beside: int) -> bytes:
    """JSON with so many blanks behind it that numbers after `beside` more bytes are aligned.

    A receiver can then use them where they lie.
    """
    return head + b" " * (-(len(head) + beside) % _ALIGNED)


def header_of(data: bytes, limit: int = LIMIT) -> dict[str, Any]:
    """The header alone; bytes without one of at most `limit` bytes are a DecodeError.

    >>> header_of(seal({"round": 3}, []))["round"]
    3
    """
    length = _header_length(data, limit)
    try:
        header = json.loads(bytes(data[_LENGTH.size : _LENGTH.size + length]))
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"an envelope whose header cannot be read: {error!r}.") from None
    if not isinstance(header, dict):
        raise DecodeError("an envelope whose header is no table.")
    return header


def _header_length(data: bytes, limit: int) -> int:
    if len(data) < _LENGTH.size:
        raise DecodeError(f"an envelope of {len(data)} bytes, expected at least {_LENGTH.size}.")
    (length,) = _LENGTH.unpack_from(data)
    if length > len(data) - _LENGTH.size:
        raise DecodeError(f"an envelope with a header of {length} bytes in {len(data)} bytes.")
    check_length(length, limit)
    return int(length)


def check_length(length: int, limit: int) -> None:
    """Refuse a header that takes too much memory once it is read."""
    if length > limit:
        raise DecodeError(f"a header of {length} bytes, more than {limit}.")


def open_sealed(data: bytes, limit: int = LIMIT) -> tuple[dict[str, Any], list[Packed]]:
    """The header and the packed messages; invalid bytes are a DecodeError.

    So is a header of more than `limit` bytes, before it is read. The messages are views of the
    data, not copies.

    >>> open_sealed(seal({"round": 3}, []))
    ({'round': 3}, [])
    """
    start = _LENGTH.size
    position = start + _header_length(data, limit)
    view = memoryview(data)
    messages = []
    try:
        header = json.loads(bytes(data[start:position]))
        for kind, width, name, lengths in header.pop("messages"):
            schema = Schema(kind, width, _TYPES[name])
            rows: list[bytes] = []
            for length in lengths:
                left = len(data) - position
                if type(length) is not int or not 0 <= length <= left:
                    row = f"a row of {length!r} bytes at {position} of {len(data)}"
                    raise DecodeError(f"an envelope with {row}.")
                end = position + length
                rows.append(cast(bytes, view[position:end]))  # which codecs read like bytes
                position = end
            messages.append(Packed(schema, tuple(rows)))
    except DecodeError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DecodeError(f"an envelope whose header cannot be read: {error!r}.") from None
    if position != len(data):
        read = f"{position} are accounted for"
        raise DecodeError(f"an envelope of {len(data)} bytes of which {read}.")
    return header, messages


def raised(kind: str, text: str) -> CoveyError:
    """The error that another node raised."""
    error = getattr(errors, kind, ProgramError)
    if isinstance(error, type) and issubclass(error, CoveyError):
        return error(text)
    return ProgramError(text)


def release(data: bytes) -> None:
    """Let go of data that came as a view: whoever called with it need not hold large bytes.

    Messages that were opened from it stay.
    """
    view: Any = data
    if isinstance(view, memoryview):
        view.release()
