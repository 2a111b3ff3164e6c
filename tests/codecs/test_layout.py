"""The bytes themselves, written out by hand: other versions and other languages depend on them."""

import struct

import pytest
import torch
from torch import Tensor

from covey.codecs import CODECS, Auto, Bitmap, Codec, Coo, Dense, Quantised, blocks

ROW = torch.tensor([0.0, 1.5, 0.0, -0.0, 0.0, 0.0, 0.0, 0.0, 2.0])
MASK = torch.tensor([True, True, False, False, False, False, False, False, True])
BITS = bytes([0b00001010, 0b00000001])
MASK_BITS = bytes([0b00000011, 0b00000001])
WIDTH = b"\x09\x00\x00\x00"
ODD = torch.tensor([1.0, -2.0, 65504.0, 1e9, -torch.inf, torch.nan, 2.0**-24, -0.0])
F16 = bytes.fromhex("08000000 003c 00c0 ff7b ff7b 00fc 007e 0100 0080")
BF16 = bytes.fromhex("08000000 803f 00c0 8047 6e4e 80ff c07f 8033 0080")
TINY = torch.tensor([1e-9, 1.0, -1e-9] + [0.0] * 6)
BLOCKS = torch.tensor([-63.5, 0.0, 0.74, 0.76, 0.25, 7.0, 1.0, 0.0, 0.0])
TIES = torch.tensor([-7.0, 1.0, 2.5, 3.5, 0.0], dtype=torch.float64)
"""They go to even."""
SEVENS = torch.tensor([0.0, 7.0, 99.0, 99.0, 99.0, 99.0, 99.0, 99.0, 14.0])
pack = struct.pack
GAPS = WIDTH + pack("<I", 3) + bytes([1, 1, 4])
SCALES = pack("<fIf", 0.5, 0x3D61C380, 0)
"""7 / 127 is 0x3d61c387, and loses its last seven bits."""
MESSAGES: dict[str, tuple[Codec, Tensor, Tensor | None, bytes]] = {
    "dense": (Dense(), ROW, None, b"\x20\x01" + WIDTH + pack("<9f", *ROW.tolist())),
    "dense float64": (Dense(), ROW.double(), None, b"\x20\x02" + WIDTH + pack("<9d", *ROW.tolist())),
    "dense in f16": (Dense("f16"), ODD, None, b"\x20\x11" + F16),
    "dense in bf16": (Dense("bf16"), ODD, None, b"\x20\x21" + BF16),
    "dense float64 in f16": (Dense("f16"), ODD.double(), None, b"\x20\x12" + F16),
    "dense sends zeros outside a mask": (
        Dense(), ROW + 5, MASK, b"\x21\x01" + WIDTH + MASK_BITS + pack("<9f", 5.0, 6.5, *[0.0] * 6, 7.0),
    ),
    "a bitmap sends minus zero but not zero": (
        Bitmap(), ROW, None, b"\x22\x01" + WIDTH + BITS + pack("<3f", 1.5, -0.0, 2.0),
    ),
    "a bitmap in f16": (Bitmap("f16"), ROW, None, b"\x22\x11" + WIDTH + BITS + pack("<3e", 1.5, -0.0, 2.0)),
    "what arrives as zero is not sent": (
        Bitmap("f16"), TINY, None, b"\x22\x11" + WIDTH + bytes([0b00000110, 0]) + pack("<2e", 1.0, -0.0),
    ),
    "a bitmap with a mask sends kept zeros": (
        Bitmap(), ROW, MASK, b"\x23\x01" + WIDTH + MASK_BITS + pack("<3f", 0.0, 1.5, 2.0),
    ),
    "coo sends the gaps before its values": (Coo(), ROW, None, b"\x24\x01" + GAPS + pack("<3f", 1.5, -0.0, 2.0)),
    "coo in bf16": (Coo("bf16"), ROW, None, b"\x24\x21" + GAPS + bytes.fromhex("c03f 0080 0040")),
    "coo with a mask sends kept zeros": (
        Coo(), ROW, MASK, b"\x25\x01" + WIDTH + pack("<I", 3) + bytes([0, 0, 6]) + pack("<3f", 0.0, 1.5, 2.0),
    ),
    "quantised in blocks": (
        Quantised(8, block=4), BLOCKS, None,
        b"\x26\x31" + WIDTH + b"\x04\x00" + SCALES + pack("<9b", -127, 0, 1, 2, 5, 127, 18, 0, 0),
    ),
    "quantised to four bits": (
        Quantised(4), TIES, None,
        b"\x26\x42" + bytes.fromhex("05000000 0001") + pack("<d", 1.0) + bytes([0x19, 0x42, 0x00]),
    ),
    "quantised with a mask sends only the integers inside": (
        Quantised(4, block=8), SEVENS, MASK,
        b"\x27\x41" + WIDTH + b"\x08\x00" + MASK_BITS + pack("<2f", 1.0, 2.0) + bytes([0x70, 0x07]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MESSAGES)
def test_the_bytes_by_hand(what: str) -> None:
    codec, row, mask, written = MESSAGES[what]
    assert codec.encode(row, mask) == written


@pytest.mark.parametrize(
    ("gap", "written"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (2**14 - 1, b"\xff\x7f"),
        (2**14, b"\x80\x80\x01"),
        (2**21, b"\x80\x80\x80\x01"),
    ],
)
def test_a_gap_is_seven_bits_to_a_byte_lowest_first(gap: int, written: bytes) -> None:
    row = torch.zeros(gap + 20)
    row[gap] = row[gap + 1] = 1.0
    width = struct.pack("<I", gap + 20)
    count = struct.pack("<I", 2)
    values = struct.pack("<2f", 1.0, 1.0)
    assert Coo().encode(row) == b"\x24\x01" + width + count + written + b"\x00" + values


def test_auto_sends_the_shortest() -> None:
    assert Auto().encode(ROW) == Bitmap().encode(ROW)
    assert Auto().encode(ROW, MASK) == Bitmap().encode(ROW, MASK)
    few = torch.nn.functional.pad(ROW, (0, 100))
    assert Auto().encode(few) == Coo().encode(few)
    assert Auto().encode(few, few > 0) == Coo().encode(few, few > 0)
    assert Auto().encode(ROW + 1) == Dense().encode(ROW + 1)


def test_a_quantised_block_that_is_not_finite_has_no_scale() -> None:
    nan = b"\x00\x00\xc0\x7f"
    message = Quantised(8, block=2).encode(
        torch.tensor([1.0, -torch.inf, -torch.nan, 127.0, 127.0])
    )
    assert message[8:] == nan + nan + struct.pack("<f", 1.0) + bytes([0, 0, 0, 0, 127])


@pytest.mark.parametrize("codec", [Bitmap(), Coo()], ids=["bitmap", "coo"])
def test_what_is_sparse_falls_back_to_dense_where_that_is_not_longer(codec: Codec) -> None:
    full = torch.ones(32)
    assert codec.encode(full) == Dense().encode(full)
    assert codec.encode(full, full > 0) == Dense().encode(full, full > 0)


def ones(zeros: int, width: int = 32) -> Tensor:
    return (torch.arange(width) >= zeros).float()


def test_a_tie_is_sent_dense() -> None:
    assert Bitmap().encode(ones(1)) == Dense().encode(ones(1))  # 4 bytes of bits, 4 bytes saved
    assert len(Bitmap().encode(ones(2))) == len(Dense().encode(ones(2))) - 4
    # 4 bytes of the number and 28 of gaps, 32 bytes saved
    assert Coo().encode(ones(8, 36)) == Dense().encode(ones(8, 36))
    assert (
        len(Coo().encode(ones(9, 36)))
        == 6 + 4 + 27 + 4 * 27
        == len(Dense().encode(ones(9, 36))) - 5
    )


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
def test_a_row_of_no_values_is_a_header(codec: Codec) -> None:
    message = codec.encode(torch.empty(0))
    assert message[2:6] == b"\x00\x00\x00\x00"
    assert len(message) == (8 if codec.name in ("int8", "int4") else 6)
    assert codec.nbytes(torch.empty(3, 0)).tolist() == [len(message)] * 3
    assert codec.decode(message, limit=0)[0].shape == (0,)


def test_a_model_of_zeros_takes_a_bit_a_value_or_ten_bytes() -> None:
    zeros = torch.zeros(2, 79_510)
    assert Bitmap().nbytes(zeros).tolist() == [6 + 9939] * 2
    assert Coo().nbytes(zeros).tolist() == Auto().nbytes(zeros).tolist() == [10] * 2
    assert Quantised(8).nbytes(zeros).tolist() == [8 + 4 * 311 + 79_510] * 2
    assert Quantised(4).nbytes(zeros).tolist() == [8 + 4 * 311 + 39_755] * 2


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
def test_large_messages_are_the_same_bytes(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    row = torch.randn(3000, generator=torch.Generator().manual_seed(1)).relu()
    usual = [codec.encode(row, mask) for mask in (None, row > 0.1)]
    monkeypatch.setattr(blocks, "_LARGE", 0)
    large = [codec.encode(row, mask) for mask in (None, row > 0.1)]
    assert [bytes(bytearray(message)) for message in large] == usual
    assert [hash(message) for message in large] == [hash(message) for message in usual]
