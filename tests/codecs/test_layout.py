"""The bytes themselves, written out by hand: other versions and other languages depend on them."""

import struct

import torch

from covey.codecs import Bitmap, Dense

ROW = torch.tensor([0.0, 1.5, 0.0, -0.0, 0.0, 0.0, 0.0, 0.0, 2.0])
MASK = torch.tensor([True, True, False, False, False, False, False, False, True])
BITS = bytes([0b00001010, 0b00000001])
MASK_BITS = bytes([0b00000011, 0b00000001])


def test_dense() -> None:
    assert Dense().encode(ROW) == b"\x10\x01\x09\x00\x00\x00" + struct.pack("<9f", *ROW.tolist())
    assert Dense().encode(ROW.double()) == b"\x10\x02\x09\x00\x00\x00" + struct.pack("<9d", *ROW.tolist())


def test_dense_with_a_mask_sends_zeros_outside_it() -> None:
    sent = torch.where(MASK, ROW + 5, 0.0)
    expected = b"\x11\x01\x09\x00\x00\x00" + MASK_BITS + struct.pack("<9f", *sent.tolist())
    assert Dense().encode(ROW + 5, MASK) == expected


def test_bitmap_sends_minus_zero_but_not_zero() -> None:
    assert Bitmap().encode(ROW) == b"\x12\x01\x09\x00\x00\x00" + BITS + struct.pack("<3f", 1.5, -0.0, 2.0)


def test_bitmap_with_a_mask_sends_kept_zeros() -> None:
    assert Bitmap().encode(ROW, MASK) == b"\x13\x01\x09\x00\x00\x00" + MASK_BITS + struct.pack("<3f", 0.0, 1.5, 2.0)


def test_bitmap_falls_back_to_dense_where_that_is_not_longer() -> None:
    full, one_zero = torch.ones(32), torch.tensor([0.0] + [1.0] * 31)
    assert Bitmap().encode(full) == Dense().encode(full)
    assert Bitmap().encode(one_zero) == Dense().encode(one_zero)  # 4 bytes of bits, 4 bytes saved: a tie
    assert len(Bitmap().encode(torch.tensor([0.0] * 2 + [1.0] * 30))) == len(Dense().encode(full)) - 4


def test_a_row_of_no_values_is_a_header() -> None:
    empty = torch.empty(0)
    assert Dense().encode(empty) == Bitmap().encode(empty) == b"\x10\x01\x00\x00\x00\x00"
    assert Bitmap().nbytes(torch.empty(3, 0)).tolist() == [6, 6, 6]


def test_a_model_of_zeros_takes_a_bit_a_value() -> None:
    assert Bitmap().nbytes(torch.zeros(2, 79_510)).tolist() == [6 + 9939] * 2
