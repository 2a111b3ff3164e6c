"""An order between nodes: a JSON header and, behind it, rows of single nodes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from covey.deployed.node import node_rows
from covey.deployed.node.node_rows import NodeRow
from covey.errors import DecodeError
from covey.runtimes.alone.envelope import LIMIT, open_sealed, seal

_LENGTH = struct.Struct("<I")


def pack(header: dict[str, Any], rows: Sequence[NodeRow] = ()) -> bytes:
    """A header and rows as bytes."""
    head = seal(header, [])
    front = [_LENGTH.pack(len(head)), head]
    return b"".join([*front, *node_rows.pieces(rows, _LENGTH.size + len(head))])


def unpack(
    data: bytes, limit: int = LIMIT, rows_limit: int = LIMIT
) -> tuple[dict[str, Any], list[NodeRow]]:
    """The inverse of `pack`; anything else is a DecodeError.

    So are a header of more than `limit` bytes, and a head of the rows of more than `rows_limit`.
    The rows may lie in the memory of the data, and must not be written.

    >>> unpack(pack({"order": "hold"}))
    ({'order': 'hold'}, [])
    """
    if len(data) < _LENGTH.size:
        raise DecodeError(f"an order of {len(data)} bytes.")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    if end > len(data):
        raise DecodeError(f"an order with a header of {length} bytes in {len(data)} bytes.")
    header, _ = open_sealed(data[_LENGTH.size : end], limit)
    return header, node_rows.unpack(memoryview(data)[end:], borrow=True, limit=rows_limit)
