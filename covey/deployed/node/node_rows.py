"""The rows of single nodes as bytes, for a node's disk and for orders between nodes."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.codecs.numbers import borrowed
from covey.errors import DecodeError, shown
from covey.runtimes.alone.envelope import LIMIT, aligned, check_length, open_sealed, seal

_LENGTH = struct.Struct("<I")
_TYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in _TYPES}


@dataclass(frozen=True, eq=False)
class NodeRow:
    """What one node keeps under a name, now or in a held version.

    `row` has no dimension for nodes. It is None where a held version was released.
    """

    tier: str
    number: int
    name: str
    label: str
    round: int
    row: Tensor | None


def in_part(part: Sequence[Any] | None, tier: str, number: int) -> bool:
    """Whether a node is in the part of a tier, from one number to another, whose rows are read.

    >>> in_part(["device", 3, 5], "device", 4), in_part(None, "edge", 0)
    (True, True)
    """
    return part is None or (tier == part[0] and part[1] <= number < part[2])


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The type of a name; an unknown one is a DecodeError."""
    dtype = _BY_NAME.get(name)
    if dtype is None:
        raise DecodeError(f"a row of the type {name[:20]!r}.")
    return dtype


def as_bytes(row: Tensor) -> memoryview:
    """The numbers of a row in the order of memory; they are not copied where they lie in order."""
    flat = row.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def from_bytes(
    data: bytes | memoryview,
    dtype: str,
    shape: Sequence[int],
    *,
    borrow: bool = False,
) -> Tensor:
    """The inverse of `as_bytes`; bytes that do not fit are a DecodeError.

    With `borrow` the row may lie in the memory of the bytes, and must not be written.
    """
    kind = dtype_of(dtype)
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise DecodeError(f"a row with the shape {list(shape)!r}.")
        count *= size
    if len(data) != count * kind.itemsize:
        raise DecodeError(f"a row of {len(data)} bytes, expected {count * kind.itemsize}.")
    if not data:
        return torch.zeros(tuple(shape), dtype=kind)
    plain = np.frombuffer(data, np.uint8)
    if borrow and plain.ctypes.data % kind.itemsize == 0:
        return borrowed(plain).view(kind).view(tuple(shape))
    return torch.frombuffer(bytearray(data), dtype=kind).view(tuple(shape))


def pieces(rows: Sequence[NodeRow], before: int = 0) -> list[bytes | memoryview]:
    """Rows of several nodes as bytes to be joined, whose numbers are not copied.

    `before` bytes come before them.
    """
    blobs = [as_bytes(kept.row) for kept in rows if kept.row is not None]
    heads = json.dumps([described(kept) for kept in rows]).encode()
    head = aligned(heads, before + _LENGTH.size)
    return [_LENGTH.pack(len(head)), head, *blobs]


def described(kept: NodeRow) -> list[object]:
    """What stands in the head about a row."""
    form = None
    if kept.row is not None:
        size = kept.row.numel() * kept.row.element_size()
        form = [dtype_name(kept.row.dtype), list(kept.row.shape), size]
    return [kept.tier, kept.number, kept.name, kept.label, kept.round, form]


def unpack(data: bytes | memoryview, *, borrow: bool = False, limit: int = LIMIT) -> list[NodeRow]:
    """The inverse of `pieces`; anything else, or a head above the limit, is a DecodeError.

    With `borrow` rows may lie in the memory of the data, and must not be written.

    >>> row = NodeRow("device", 3, "personal", "present", 0, torch.ones(2))
    >>> unpack(b"".join(pieces([row])))[0].row
    tensor([1., 1.])
    """
    whole = memoryview(data)
    out = []
    try:
        (length,) = _LENGTH.unpack_from(whole)
        check_length(length, limit)
        position = _LENGTH.size + length
        head = json.loads(bytes(whole[_LENGTH.size : position]))
        for tier, number, name, label, round, form in head:
            row = None
            if form is not None:
                dtype, shape, size = form
                left = len(whole) - position
                if type(size) is not int or not 0 <= size <= left:
                    raise DecodeError(f"a row of {shown(size)} bytes where {left} are left.")
                row = from_bytes(whole[position : position + size], dtype, shape, borrow=borrow)
                position += size
            out.append(NodeRow(tier, number, name, label, round, row))
    except DecodeError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, struct.error) as error:
        raise DecodeError(f"rows of nodes that cannot be read: {error!r}.") from None
    if position != len(whole):
        raise DecodeError(f"rows of nodes of {len(whole)} bytes, of which {position} are used.")
    return out


def seal_order(header: dict[str, Any], rows: Sequence[NodeRow] = ()) -> bytes:
    """An order between nodes, or the answer to one: a JSON header and, behind it, rows."""
    head = seal(header, [])
    front = [_LENGTH.pack(len(head)), head]
    return b"".join([*front, *pieces(rows, _LENGTH.size + len(head))])


def sealed_error(lane: str, kind: str, text: str) -> bytes:
    """The answer to a request of this lane that was not obeyed, and why."""
    failure = {"error": [kind, text]}
    return seal_order(failure) if lane == "order" else seal(failure, [])


def open_order(
    data: bytes, limit: int = LIMIT, rows_limit: int = LIMIT
) -> tuple[dict[str, Any], list[NodeRow]]:
    """The inverse of `seal_order`; anything else is a DecodeError.

    So are a header of more than `limit` bytes, and a head of the rows of more than `rows_limit`.
    The rows may lie in the memory of the data, and must not be written.

    >>> open_order(seal_order({"order": "hold"}))
    ({'order': 'hold'}, [])
    """
    if len(data) < _LENGTH.size:
        raise DecodeError(f"an order of {len(data)} bytes.")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    if end > len(data):
        raise DecodeError(f"an order with a header of {length} bytes in {len(data)} bytes.")
    header, _ = open_sealed(data[_LENGTH.size : end], limit)
    return header, unpack(memoryview(data)[end:], borrow=True, limit=rows_limit)
