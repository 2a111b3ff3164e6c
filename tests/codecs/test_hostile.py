"""Bytes from elsewhere: whatever they are, they decode to a row within the limit or raise
DecodeError.
"""

import os
import re
import struct
import tracemalloc
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from covey import native
from covey.codecs import CODECS, Auto, Bitmap, Codec, Coo, Dense, Quantised, gaps
from covey.errors import DecodeError

LIMIT = 100
ALL: dict[str, Codec] = {
    **CODECS,
    "int8 in blocks of 3": Quantised(8, block=3),
    "int4 drawn": Quantised(4, block=3, rounding="stochastic"),
}
every_codec = pytest.mark.parametrize("codec", ALL.values(), ids=ALL.keys())
many = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
ROW = torch.tensor([0.0, 1.5, 0.0, -0.0, 0.0, 0.0, 0.0, 0.0, 2.0])
MASK = ROW > 0
LONG = torch.nn.functional.pad(ROW, (0, 90))
GOOD_ROWS = (ROW, None), (ROW, MASK), (ROW.double(), None), (LONG, None), (LONG, LONG > 0)
GOOD = [
    codec.encode(row, mask, 7)
    for codec in ALL.values()
    for row, mask in (*GOOD_ROWS, (ROW * torch.nan, None))
]


@pytest.fixture(params=["kernel", "numpy"], autouse=True)
def with_and_without_the_kernel(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(native, "_library", "gone")


def survives(codec: Codec, message: bytes) -> None:
    try:
        row, mask = codec.decode(message, limit=LIMIT)
    except DecodeError:
        return
    assert row.numel() <= LIMIT
    assert mask is None or (mask.shape == row.shape and not row[~mask].count_nonzero())
    again, _ = codec.decode(codec.encode(row, mask, 3), limit=LIMIT)
    assert again.numpy().tobytes() == row.numpy().tobytes()


@every_codec
@many
@given(message=st.binary(max_size=120))
def test_random_bytes(codec: Codec, message: bytes) -> None:
    survives(codec, message)


@every_codec
@many
@given(
    tag=st.integers(0, 8),
    kind=st.integers(0, 3),
    form=st.none() | st.integers(0, 5),
    width=st.integers(0, 40) | st.integers(0, 2**32 - 1),
    count=st.none() | st.integers(0, 9),
    rest=st.binary(max_size=200),
)
def test_random_bytes_behind_a_good_header(
    codec: Codec, tag: int, kind: int, form: int | None, width: int, count: int | None, rest: bytes
) -> None:
    own = codec.encode(ROW, None, 1)[1] >> 4
    head = struct.pack("<BBI", 0x20 | tag, (own if form is None else form) << 4 | kind, width)
    if isinstance(codec, Quantised):
        head += struct.pack("<H", codec.block if count is None else count)
    elif count is not None:  # of the values that a row with gaps sends
        head += struct.pack("<I", count)
    survives(codec, head + rest)


@every_codec
@many
@given(
    message=st.sampled_from(GOOD),
    changes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3),
    end=st.integers(0, 60) | st.none(),
    tail=st.binary(max_size=5),
)
def test_mutated_messages(
    codec: Codec, message: bytes, changes: list[tuple[int, int]], end: int | None, tail: bytes
) -> None:
    mutated = bytearray(message)
    for at, byte in changes:
        mutated[at % len(mutated)] = byte
    survives(codec, bytes(mutated[:end]) + tail)


@every_codec
@pytest.mark.parametrize("row", [ROW, LONG], ids=["short", "long"])
@pytest.mark.parametrize("masked", [False, True])
def test_every_shorter_and_every_longer_message_is_refused(
    codec: Codec, row: torch.Tensor, masked: bool
) -> None:
    message = codec.encode(row, row > 0 if masked else None, 2)
    codec.decode(message, limit=len(row))
    for end in range(len(message)):
        with pytest.raises(DecodeError):
            codec.decode(message[:end], limit=len(row))
    for more in (b"\0", b"\x80", b"\0" * 8):
        with pytest.raises(DecodeError):
            codec.decode(message + more, limit=len(row))


dense, dense_masked = Dense().encode(ROW), Dense().encode(ROW, MASK)
bitmap, f16 = Bitmap().encode(ROW), Dense("f16").encode(ROW)
coo = Coo().encode(ROW)
int8 = Quantised(8, block=4).encode(ROW)
int4 = Quantised(4).encode(ROW)
header = struct.Struct("<BBI").pack


@pytest.mark.parametrize(
    ("codec", "message", "says"),
    [
        (Dense(), b"", "0 bytes, but the header alone needs 6"),
        (Dense(), b"\x10" + dense[1:], "version 1, expected 2"),
        (Dense(), b"\x00" * 42, "version 0, expected 2"),
        (Dense(), bitmap, "tag 2, expected one of 0 (DENSE), 1 (DENSE_MASKED)"),
        (Bitmap(), coo, "tag 4, expected one of 0 (DENSE), 1 (DENSE_MASKED), 2 (BITMAP), 3"),
        (Quantised(8), dense, "tag 0, expected one of 6 (QUANTISED), 7 (QUANTISED_MASKED)"),
        (Dense(), b"\x2f" + dense[1:], "tag 15, expected"),
        (Dense(), b"\x20\x03" + dense[2:], "a row of type 3, expected"),
        (Dense(), f16, "values in format 1, expected 0 (own)"),
        (Dense("f16"), dense, "values in format 0, expected 1 (f16)"),
        (Quantised(8), int4, "values in format 4, expected 3 (int8)"),
        (Dense(), dense[:-1], "9 values of torch.float32 need 36 bytes, found 35"),
        (Dense("f16"), f16[:-1], "9 values of torch.float32 as f16 need 18 bytes, found 17"),
        (Dense("f16"), f16[:6] + b"\x01\x7e" + f16[8:], "1 values are a NaN in other bits than 0x7e00"),
        (Dense("bf16"), header(0x20, 0x21, 1) + b"\xc0\xff", "1 values are a NaN in other bits than 0x7fc0"),
        (Bitmap(), bitmap[:7], "9 mask bits need 2 bytes, found 1"),
        (Bitmap(), bitmap[:7] + b"\x03" + bitmap[8:], "last mask byte is 0x03, expected only its low 1 bits"),
        (Bitmap(), bitmap[:6] + b"\x0b" + bitmap[7:], "4 values of torch.float32 need 16 bytes"),
        (Bitmap(), bitmap[:6] + b"\x02" + bitmap[7:], "20 bytes, expected it to end after 16"),
        (Dense(), dense_masked[:8] + b"\x01" + dense_masked[9:], "1 values outside the mask are not 0"),
        (Coo(), coo[:9], "the number of values sent need 4 bytes, found 3"),
        (Coo(), coo[:6] + b"\x0a\0\0\0" + coo[10:], "10 values, expected at most the 9 of its row"),
        (Coo(), coo[:11], "the gaps before 3 values need 3 bytes, found 1"),
        (Coo(), coo[:-1], "3 values of torch.float32 need 12 bytes, found 11"),
        (Coo(), coo + b"\0", "4 bytes hold 4 whole gaps, expected 3 and nothing after them"),
        (Coo(), coo[:10] + b"\x81" + coo[11:], "3 bytes hold 2 whole gaps, expected 3"),
        (Coo(), coo[:12] + b"\x84" + coo[13:], "3 bytes hold 2 whole gaps, expected 3"),
        (Coo(), coo[:10] + b"\x81\x00" + coo[11:], "gap 0 takes 2 bytes, expected it in the fewest"),
        (Coo(), coo[:10] + b"\xff" * 5 + b"\x01" + coo[11:], "gap 0 takes 6 bytes, expected it in the fewest"),
        (
            Coo(),
            coo[:10] + b"\xff" * 4 + b"\x7f" + coo[11:],
            "a gap of 34359738367, expected less than the row's 9 values",
        ),
        (Coo(), coo[:10] + b"\x02" + coo[11:], "the gaps end at place 9, expected all"),
        (Quantised(8), int8, "in blocks of 4, expected 256"),
        (Quantised(8, block=4), int8[:7], "the block size need 2 bytes, found 1"),
        (Quantised(8, block=4), int8[:19], "3 scales of torch.float32 need 12 bytes, found 11"),
        (Quantised(8, block=4), int8[:-1], "9 integers of 8 bits need 9 bytes, found 8"),
        (
            Quantised(8, block=4), int8[:20] + b"\x05" + int8[21:-1] + b"\x05",
            "block 2 has integers up to 5 under the scale",
        ),
        (
            Quantised(8, block=4),
            int8[:24] + b"\x05" + int8[25:],
            "block 1 has integers up to 5 under the scale 0.0, expected 0",
        ),
        (Quantised(8, block=4), int8[:20] + b"\x80" + int8[21:], "block 0 has integers up to 128 under the scale"),
        (Quantised(8, block=4), int8[:8] + b"\xff" * 4 + int8[12:], "scale 0 is nan, expected 0"),
        (Quantised(8, block=4), int8[:8] + b"\x01\0\x80\x3f" + int8[12:], "scale 0 is 1.0000001"),
        (Quantised(8, block=4), int8[:8] + b"\0\0\x80\x7f" + int8[12:], "scale 0 is inf"),
        (Quantised(8, block=4), int8[:8] + b"\0\0\x80\x7e" + int8[12:], "scale 0 is 8.5"),
        (Quantised(8, block=4), int8[:8] + b"\0\0\0\x80" + int8[12:], "scale 0 is -0.0"),
        (Quantised(8, block=4), int8[:8] + b"\x80\0\0\0" + int8[12:], "scale 0 is 1.79"),
        (Quantised(4), int4[:-1] + b"\x17", "last byte of 9 int4 is 0x17, expected its high half"),
    ],
)  # fmt: skip
def test_messages_say_what_was_found_and_what_was_expected(
    codec: Codec, message: bytes, says: str
) -> None:
    with pytest.raises(DecodeError, match=re.escape(says)):
        codec.decode(message, limit=9)


@every_codec
def test_a_huge_declared_width_allocates_nothing(codec: Codec) -> None:
    block = b"\x03\0" if getattr(codec, "block", None) == 3 else b"\0\x01"
    tracemalloc.start()
    try:
        for tag, form in product(range(8), range(5)):
            message = (
                struct.pack("<BBI", 0x20 | tag, form << 4 | 2, 2**32 - 1)
                + (block if tag > 5 else b"")
                + b"\xff" * 64
            )
            for limit in (
                2**33,
                1000,
            ):  # even where the limit would allow it, the bytes are not there
                with pytest.raises(DecodeError):
                    codec.decode(message, limit=limit)
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [Coo(), Coo("f16"), Auto()], ids=lambda codec: codec.name)
@pytest.mark.parametrize("masked", [0, 1])
def test_gaps_that_are_refused_take_no_memory_for_the_row(codec: Codec, masked: int) -> None:
    form = 1 if codec.name == "coo_f16" else 0
    head = struct.pack("<BBII", 0x24 | masked, form << 4 | 1, 2**32 - 1, 1)
    # the place 2**32 - 1, after the last one
    beyond = b"\xff\xff\xff\xff\x0f" + b"\0" * (4, 2)[form]
    tracemalloc.start()
    try:
        with pytest.raises(
            DecodeError, match="a gap of 4294967295, expected less than the row's 4294967295"
        ):
            codec.decode(head + beyond, limit=2**33)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def resident() -> int:
    """Bytes of memory that this process really occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts pages as Linux does")
@pytest.mark.parametrize("places", [[], [0], [2**26 - 1], [5, 2**25, 2**25 + 1]], ids=str)
@pytest.mark.parametrize("masked", [0, 1])
def test_a_wide_row_of_a_few_values_occupies_a_few_pages(places: list[int], masked: int) -> None:
    """2**26 values would be 256 MiB; a page is 4 KiB, or 2 MiB where the system joins them."""
    width = 2**26
    head = struct.pack("<BBII", 0x24 | masked, 1, width, len(places))
    message = head + gap_bytes(places) + np.full(len(places), 2.5, "<f4").tobytes()
    assert len(message) < 10 + 10 * max(1, len(places))
    before = resident()
    row, mask = Coo().decode(message, limit=width)
    assert resident() - before < (1 + 2 * len(places)) * 2**22
    assert row.shape == (width,)
    assert row[places].tolist() == [2.5] * len(places)
    if masked:
        assert mask[places].all()


def gap_bytes(places: list[int]) -> bytes:
    """The gaps before these places, written by hand."""
    out = bytearray()
    last = -1
    for place in places:
        gap = place - last - 1
        while gap > 127:
            out.append(gap & 127 | 128)
            gap >>= 7
        out.append(gap)
        last = place
    return bytes(out)


@many
@given(data=st.data(), width=st.integers(700, 3000))
def test_rows_filled_place_by_place_are_those_filled_by_bits(
    data: st.DataObject, width: int
) -> None:
    """Rows of few values, on both sides of where the way of reading changes, come back to the bit."""
    places = sorted(data.draw(st.sets(st.integers(0, width - 1), max_size=6)))
    row = torch.zeros(width)
    row[places] = torch.tensor([1.5, -0.0, torch.nan, 3.0, -1e-40, torch.inf])[: len(places)]
    mask = None
    if data.draw(st.booleans()):
        mask = torch.zeros(width, dtype=torch.bool)
        mask[places] = True
    back, got = Coo().decode(Coo().encode(row, mask), limit=width)
    assert back.numpy().tobytes() == row.numpy().tobytes()
    assert str(got) == str(mask)


def test_a_row_that_does_not_fit_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = np.zeros

    def short_of_memory(size: int, dtype: type) -> NDArray[np.generic]:
        if size > 1000:
            raise MemoryError
        return zeros(size, dtype)

    monkeypatch.setattr(np, "zeros", short_of_memory)
    with pytest.raises(
        DecodeError,
        match="a row of 4294967295 values of float32 does not fit in memory; lower the limit",
    ):
        Coo().decode(struct.pack("<BBII", 0x24, 1, 2**32 - 1, 0), limit=2**33)


def test_the_limit_itself_is_allowed() -> None:
    for codec, message in ((Bitmap(), bitmap), (Coo(), coo), (Auto(), coo), (Quantised(4), int4)):
        assert codec.decode(message, limit=9)[0].numel() == 9
        with pytest.raises(DecodeError, match="declares 9 values, expected at most 8"):
            codec.decode(message, limit=8)


def test_auto_reads_what_any_lossless_codec_writes() -> None:
    for codec in (Dense(), Bitmap(), Coo()):
        for mask in (None, MASK):
            row, got = Auto().decode(codec.encode(ROW, mask), limit=9)
            assert row.tolist() == (
                ROW.tolist() if mask is None else ROW.masked_fill(~MASK, 0).tolist()
            )
            assert str(got) == str(mask)


def test_every_short_string_of_telling_bytes_as_gaps() -> None:
    strings = [
        bytes(block)
        for n in range(4)
        for block in product((0, 1, 2, 126, 127, 128, 129, 255), repeat=n)
    ]
    taken = {block: packed for block in strings if (packed := gaps_or_none(block, 2)) is not None}
    assert {b"\x00\x00", b"\x7f\x80\x01", b"\x80\x01\x7f", b"\xff\x01\x02"} <= set(taken)
    assert not {b"\x00", b"\x80\x00\x00", b"\x00\x80\x00", b"\xff\x02\x00"} & set(taken)
    for block, packed in taken.items():
        assert gaps.write(packed, 300, gaps.length(packed, 300)).tobytes() == block


def gaps_or_none(block: bytes, sent: int) -> NDArray[np.uint8] | None:
    try:
        return gaps.read(np.frombuffer(block, np.uint8), sent, 300)
    except DecodeError:
        return None
