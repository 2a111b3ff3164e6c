"""One message between two nodes that share nothing: a JSON header, and the encoded rows of its
messages behind it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import torch

from covey.errors import DecodeError
from covey.links.packed import Packed, Schema

_LENGTH = struct.Struct("<I")
_LIMIT = 2**28  # bytes of a header
_TYPES = {"float32": torch.float32, "float64": torch.float64}


def seal(header: dict[str, Any], messages: Sequence[Packed]) -> bytes:
    """A header and packed messages as bytes."""
    described = []
    rows: list[bytes] = []
    for packed in messages:
        schema = packed.schema
        name = str(schema.dtype).removeprefix("torch.")
        lengths = [len(row) for row in packed.messages]
        described.append([schema.kind, schema.width, name, lengths])
        rows += packed.messages
    head = json.dumps({**header, "messages": described}).encode()
    return b"".join([_LENGTH.pack(len(head)), head, *rows])


def open_sealed(data: bytes) -> tuple[dict[str, Any], list[Packed]]:
    """The header and the packed messages; what cannot be an envelope is a DecodeError.

    >>> open_sealed(seal({"round": 3}, []))
    ({'round': 3}, [])
    """
    if len(data) < _LENGTH.size:
        raise DecodeError(f"an envelope of {len(data)} bytes, expected at least {_LENGTH.size}.")
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size
    if length > min(_LIMIT, len(data) - start):
        raise DecodeError(f"an envelope with a header of {length} bytes in {len(data)} bytes.")
    try:
        header = json.loads(data[start : start + length])
        described = header.pop("messages")
        messages, position = [], start + length
        for kind, width, name, lengths in described:
            rows = []
            for size in lengths:
                if type(size) is not int or size < 0 or position + size > len(data):
                    raise DecodeError(
                        f"an envelope with a row of {size!r} bytes at {position} of {len(data)}."
                    )
                rows.append(data[position : position + size])
                position += size
            messages.append(Packed(Schema(kind, width, _TYPES[name]), tuple(rows)))
    except DecodeError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DecodeError(f"an envelope whose header cannot be read: {error!r}.") from None
    if position != len(data):
        raise DecodeError(
            f"an envelope of {len(data)} bytes of which {position} are accounted for."
        )
    return header, messages
