"""True of every codec: what arrives is what `roundtrip` says, and it is as long as `nbytes` says."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey.codecs import CODECS, Codec

every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
quick = settings(max_examples=150)
SPECIAL = {  # -0.0, infinity, a signalling NaN, the smallest subnormal
    32: [0x80000000, 0x7F800000, 0x7F800001, 1],
    64: [0x8000000000000000, 0x7FF0000000000000, 0x7FF0000000000001, 1],
}


def of_bits(numbers: list[int], bits: int) -> Tensor:
    """Any bit pattern is a float: this reaches every nan, infinity and subnormal."""
    return torch.from_numpy(np.array(numbers, dtype=f"u{bits // 8}").view(f"f{bits // 8}"))


def bits_of(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.int32 if rows.dtype == torch.float32 else torch.int64)


@st.composite
def tables(draw: st.DrawFn) -> Tensor:
    """Rows [n, P] of arbitrary bits, many of them zero."""
    bits = draw(st.sampled_from([32, 64]))
    n, width = draw(st.integers(0, 3)), draw(st.integers(0, 70))
    number = st.just(0) | st.just(0) | st.sampled_from(SPECIAL[bits]) | st.integers(0, 2**bits - 1)
    return of_bits(draw(st.lists(number, min_size=n * width, max_size=n * width)), bits).reshape(n, width)


@st.composite
def masked_tables(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows = draw(tables())
    yes = draw(st.lists(st.booleans(), min_size=rows.numel(), max_size=rows.numel()))
    return rows, torch.tensor(yes, dtype=torch.bool).reshape(rows.shape)


def test_there_are_codecs_and_they_know_their_names() -> None:
    assert {"dense", "bitmap"} <= set(CODECS)
    assert all(codec.name == name for name, codec in CODECS.items())


@every_codec
@quick
@given(rows=tables())
def test_what_arrives_is_the_roundtrip(codec: Codec, rows: Tensor) -> None:
    expected = codec.roundtrip(rows)
    assert (expected.shape, expected.dtype) == (rows.shape, rows.dtype)
    for row, want in zip(rows, expected, strict=True):
        got, mask = codec.decode(codec.encode(row), limit=rows.shape[1])
        assert mask is None
        assert got.dtype == rows.dtype
        assert torch.equal(bits_of(got), bits_of(want))


@every_codec
@quick
@given(masked=masked_tables())
def test_what_arrives_under_a_mask_is_the_roundtrip(codec: Codec, masked: tuple[Tensor, Tensor]) -> None:
    rows, masks = masked
    expected = codec.roundtrip(rows.masked_fill(~masks, 0)).masked_fill(~masks, 0)
    for row, mask, want in zip(rows, masks, expected, strict=True):
        got, got_mask = codec.decode(codec.encode(row, mask), limit=rows.shape[1])
        assert got_mask is not None
        assert torch.equal(got_mask, mask)
        assert torch.equal(bits_of(got), bits_of(want))


@every_codec
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_signalling_nans_stay_signalling(codec: Codec, bits: int, count: int) -> None:
    """torch treats one value among others differently from several."""
    numbers = [SPECIAL[bits][2]] * count + [0] * 60
    row, mask = of_bits(numbers, bits), torch.arange(len(numbers)) < count
    for message in (codec.encode(row), codec.encode(row, mask)):
        assert bits_of(codec.decode(message, limit=len(row))[0]).tolist() == numbers


@every_codec
@quick
@given(rows=tables())
def test_nbytes_is_the_length(codec: Codec, rows: Tensor) -> None:
    counted = codec.nbytes(rows)
    assert counted.dtype == torch.int64
    assert counted.tolist() == [len(codec.encode(row)) for row in rows]


@every_codec
@quick
@given(masked=masked_tables())
def test_nbytes_is_the_length_under_a_mask(codec: Codec, masked: tuple[Tensor, Tensor]) -> None:
    rows, masks = masked
    lengths = [len(codec.encode(row, mask)) for row, mask in zip(rows, masks, strict=True)]
    assert codec.nbytes(rows, masks).tolist() == lengths
    if len(rows):  # one mask for all rows, as when a server sends the same part to each of them
        assert codec.nbytes(rows, masks[0]).tolist() == [len(codec.encode(row, masks[0])) for row in rows]


@every_codec
def test_strides_gradients_and_the_sender_s_memory_do_not_matter(codec: Codec) -> None:
    table = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]], requires_grad=True)
    column, mask = table[:, 0], torch.tensor([[True, False]] * 3)[:, 0]
    copy = column.detach().clone()
    assert codec.encode(column) == codec.encode(copy)
    assert codec.encode(column, mask) == codec.encode(copy, mask.clone())
    assert codec.nbytes(table.T).tolist() == codec.nbytes(table.T.detach().contiguous()).tolist()
    got, _ = codec.decode(codec.encode(copy), limit=3)
    got.add_(1)  # the receiver owns what it gets
    assert copy.tolist() == [0.0, 2.0, 0.0]


@every_codec
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rows_on_a_gpu_give_the_same_bytes(codec: Codec) -> None:
    rows, mask = torch.tensor([[0.0, -1.5, 0.0]]), torch.tensor([True, False, True])
    assert codec.encode(rows.cuda()[0]) == codec.encode(rows[0])
    assert codec.encode(rows.cuda()[0], mask.cuda()) == codec.encode(rows[0], mask)
    assert codec.nbytes(rows.cuda(), mask.cuda()).tolist() == codec.nbytes(rows, mask).tolist()
