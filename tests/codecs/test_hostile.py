"""Bytes from elsewhere: whatever they are, they decode to a row within the limit or raise DecodeError."""

import re
import struct
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.codecs import CODECS, Bitmap, Codec, Dense
from covey.errors import DecodeError

LIMIT = 100
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
many = settings(max_examples=400)
ROW = torch.tensor([0.0, 1.5, 0.0, -0.0, 0.0, 0.0, 0.0, 0.0, 2.0])
MASK = ROW > 0
GOOD = [codec.encode(ROW, mask) for codec in CODECS.values() for mask in (None, MASK)]


def survives(codec: Codec, message: bytes) -> None:
    try:
        row, mask = codec.decode(message, limit=LIMIT)
    except DecodeError:
        return
    assert row.numel() <= LIMIT
    assert mask is None or (mask.shape == row.shape and not row[~mask].count_nonzero())
    again, _ = codec.decode(codec.encode(row, mask), limit=LIMIT)
    assert again.numpy().tobytes() == row.numpy().tobytes()


@every_codec
@many
@given(message=st.binary(max_size=120))
def test_random_bytes(codec: Codec, message: bytes) -> None:
    survives(codec, message)


@every_codec
@many
@given(
    first=st.integers(0x10, 0x13),
    number=st.integers(1, 2),
    width=st.integers(0, 40) | st.integers(0, 2**32 - 1),
    rest=st.binary(max_size=200),
)
def test_random_bytes_behind_a_good_header(codec: Codec, first: int, number: int, width: int, rest: bytes) -> None:
    survives(codec, struct.pack("<BBI", first, number, width) + rest)


@every_codec
@many
@given(
    message=st.sampled_from(GOOD),
    changes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3),
    end=st.integers(0, 60),
    tail=st.binary(max_size=5),
)
def test_mutated_messages(codec: Codec, message: bytes, changes: list[tuple[int, int]], end: int, tail: bytes) -> None:
    mutated = bytearray(message)
    for at, byte in changes:
        mutated[at % len(mutated)] = byte
    survives(codec, bytes(mutated[:end]) + tail)


@pytest.mark.parametrize("message", GOOD)
def test_every_shorter_and_every_longer_message_is_refused(message: bytes) -> None:
    codec = next(c for c in (Dense(), Bitmap()) if message in (c.encode(ROW), c.encode(ROW, MASK)))
    codec.decode(message, limit=9)
    for end in range(len(message)):
        with pytest.raises(DecodeError):
            codec.decode(message[:end], limit=9)
    with pytest.raises(DecodeError, match=f"{len(message) + 1} bytes, expected it to end after {len(message)}"):
        codec.decode(message + b"\0", limit=9)


dense, dense_masked, bitmap, bitmap_masked = GOOD


@pytest.mark.parametrize(
    ("codec", "message", "says"),
    [
        (Dense(), b"", "0 bytes, but the header alone needs 6"),
        (Dense(), b"\x20" + dense[1:], "version 2, expected 1"),
        (Dense(), b"\x00" * 42, "version 0, expected 1"),
        (Dense(), bitmap, "tag 2, expected one of 0 (DENSE), 1 (DENSE_MASKED)"),
        (Bitmap(), dense_masked, "tag 1, expected one of 0 (DENSE), 2 (BITMAP), 3 (BITMAP_MASKED)"),
        (Dense(), b"\x1f" + dense[1:], "tag 15, expected"),
        (Dense(), b"\x10\x03" + dense[2:], "number format 3, expected"),
        (Dense(), dense[:-1], "9 values of torch.float32 need 36 bytes, found 35"),
        (Bitmap(), bitmap[:7], "9 mask bits need 2 bytes, found 1"),
        (Bitmap(), bitmap[:7] + b"\x03" + bitmap[8:], "last mask byte is 0x03, expected only its low 1 bits"),
        (Bitmap(), bitmap[:6] + b"\x0b" + bitmap[7:], "4 values of torch.float32 need 16 bytes, found 12"),
        (Bitmap(), bitmap[:6] + b"\x02" + bitmap[7:], "20 bytes, expected it to end after 16"),
        (Dense(), dense_masked[:8] + b"\x01" + dense_masked[9:], "1 values outside the mask are not 0"),
    ],
)
def test_messages_say_what_was_found_and_what_was_expected(codec: Codec, message: bytes, says: str) -> None:
    with pytest.raises(DecodeError, match=re.escape(says)):
        codec.decode(message, limit=9)


@every_codec
@pytest.mark.parametrize("tag", range(4))
def test_a_huge_declared_width_allocates_nothing(codec: Codec, tag: int) -> None:
    message = struct.pack("<BBI", 0x10 | tag, 2, 2**32 - 1) + b"\xff" * 64
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            codec.decode(message, limit=2**33)  # even where the limit would allow it, the bytes are not there
        with pytest.raises(DecodeError):
            codec.decode(message, limit=1000)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_the_limit_itself_is_allowed() -> None:
    assert Bitmap().decode(bitmap, limit=9)[0].numel() == 9
    with pytest.raises(DecodeError, match="declares 9 values, expected at most 8"):
        Bitmap().decode(bitmap, limit=8)
