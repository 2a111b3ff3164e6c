"""Envelopes between nodes: what is sealed is opened, and bytes that are no envelope are refused."""

import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.codecs.header import WIDEST
from covey.errors import DecodeError
from covey.links.packed import Packed, Schema
from covey.runtimes.alone.envelope import open_sealed, seal

ROWS = Schema("rows", 3, torch.float32)
EXACT = Schema("exact", 1, torch.float64)


@given(st.lists(st.lists(st.binary(max_size=9), max_size=3), max_size=4))
def test_what_is_sealed_is_opened(rows: list[list[bytes]]) -> None:
    messages = []
    for number, own in enumerate(rows):
        schema = EXACT if number % 2 else ROWS
        messages.append(Packed(schema, tuple(own)))
    header, opened = open_sealed(seal({"round": 3}, messages))
    assert header == {"round": 3}
    assert [(packed.schema, packed.messages) for packed in opened] == [
        (packed.schema, packed.messages) for packed in messages
    ]


def sealed(lengths: list[Any], rows: bytes) -> bytes:
    """An envelope with one message whose header claims these lengths."""
    header = json.dumps({"messages": [["rows", 3, "float32", lengths]]}).encode()
    return struct.pack("<I", len(header)) + header + rows


def test_lengths_that_fit_are_read() -> None:
    _, [packed] = open_sealed(sealed([2, 0, 3], b"abcde"))
    assert packed.messages == (b"ab", b"", b"cde")


@pytest.mark.parametrize(
    ("lengths", "rows", "words"),
    [
        ([2], b"abc", "of which"),
        ([], b"a", "of which"),
        ([4], b"abc", "a row of 4 bytes"),
        ([2, 2], b"abc", "a row of 2 bytes"),
        ([3, -1, 1], b"abc", "a row of -1 bytes"),
        ([True], b"a", "a row of True bytes"),
        ([1.0], b"a", "a row of 1.0 bytes"),
        (["1"], b"a", "a row of '1' bytes"),
        ([2**70], b"a", "bytes at"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths: list[Any], rows: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        open_sealed(sealed(lengths, rows))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        struct.pack("<I", 3) + b"{}",
        struct.pack("<I", 2**31) + b"{}",
        struct.pack("<I", 2) + b"{}",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 2) + b"\xff\xff",
        struct.pack("<I", 17) + b'{"messages": [1]}',
    ],
)
def test_bytes_that_are_no_envelope_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="an envelope"):
        open_sealed(data)


@pytest.mark.parametrize(
    ("kind", "width", "dtype"),
    [
        ("columns", 3, "float32"),
        ("rows", -1, "float32"),
        ("rows", WIDEST + 1, "float32"),
        ("rows", True, "float32"),
        ("rows", 3.0, "float32"),
        ("rows", 3, "int64"),
        ("nothing", 0, "bool"),
    ],
)
def test_a_schema_that_links_do_not_carry_is_refused(kind: str, width: Any, dtype: str) -> None:
    header = json.dumps({"messages": [[kind, width, dtype, []]]}).encode()
    with pytest.raises(DecodeError):
        open_sealed(struct.pack("<I", len(header)) + header)
    with pytest.raises(DecodeError):
        Schema(kind, width, getattr(torch, dtype))  # type: ignore[arg-type]


def test_the_widest_schema_is_carried() -> None:
    assert Schema("rows", WIDEST, torch.float32).width == WIDEST
