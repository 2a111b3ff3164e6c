"""True of every codec: what arrives is what `roundtrip` says, and it is as long as `nbytes` says."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey import draws, native
from covey.codecs import CODECS, Codec, codec
from covey.codecs.blocks import count, patterns

ALL: dict[str, Codec] = {
    **CODECS,
    "int8 in blocks of 16": codec("int8", block=16),
    "int8 drawn": codec("int8", rounding="stochastic"),
    "int4 drawn, in blocks of 7": codec("int4", rounding="stochastic", block=7),
}
every_codec = pytest.mark.parametrize("codec", ALL.values(), ids=ALL.keys())
lossless = {name: codec for name, codec in CODECS.items() if codec.lossless}
quick = settings(max_examples=40)
SPECIAL = {  # -0.0, infinity, a signalling NaN, the smallest subnormal
    32: [0x80000000, 0x7F800000, 0x7F800001, 1],
    64: [0x8000000000000000, 0x7FF0000000000000, 0x7FF0000000000001, 1],
}
KEYS = draws.keys(range(10), "rows")


def of_bits(numbers: list[int], bits: int) -> Tensor:
    """Any bit pattern is a float: this reaches every nan, infinity and subnormal."""
    return torch.from_numpy(np.array(numbers, dtype=f"u{bits // 8}").view(f"f{bits // 8}"))


def bits_of(rows: Tensor) -> Tensor:
    return patterns(rows.contiguous())


@contextmanager
def no_kernel() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_library", "gone")
        yield


@st.composite
def tables(draw: st.DrawFn) -> Tensor:
    """Rows [n, P] of arbitrary bits, many of them zero, or of ordinary numbers: all from one seed,
    as one by one takes long.
    """
    bits, seed = draw(st.sampled_from([32, 64])), draw(st.integers(0, 2**32 - 1))
    n = draw(st.integers(0, 3))
    width = draw(st.integers(0, 70) | st.integers(120, 140) | st.just(700))
    rng, zeros = np.random.default_rng(seed), draw(st.sampled_from([0.0, 0.5, 0.9, 0.99]))
    whole, real = f"u{bits // 8}", f"f{bits // 8}"
    if draw(st.booleans()):
        rows = rng.integers(0, 2**bits, (n, width), dtype=whole)
        rows = np.where(
            rng.random(rows.shape) < 0.2,
            rng.choice(np.array(SPECIAL[bits], whole), rows.shape),
            rows,
        ).view(real)
    else:
        rows = (
            rng.standard_normal((n, width)) * draw(st.sampled_from([1e-40, 1e-5, 1.0, 1e5, 3e37]))
        ).astype(real)
    rows[rng.random(rows.shape) < zeros] = 0
    return torch.from_numpy(rows)


@st.composite
def masked_tables(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows, seed = draw(tables()), draw(st.integers(0, 2**32 - 1))
    return rows, torch.from_numpy(
        np.random.default_rng(seed).random(rows.shape) < draw(st.sampled_from([0.03, 0.5, 1.0]))
    )


def test_there_are_codecs_and_they_know_their_names() -> None:
    assert {"dense", "bitmap", "coo", "auto", "int8", "int4"} <= set(CODECS)
    assert set(lossless) == {"dense", "bitmap", "coo", "auto"}
    assert all(codec.name == name for name, codec in CODECS.items())


@every_codec
@quick
@given(rows=tables())
def test_what_arrives_is_the_roundtrip(codec: Codec, rows: Tensor) -> None:
    expected = codec.roundtrip(rows, None, KEYS[: len(rows)])
    assert (expected.shape, expected.dtype) == (rows.shape, rows.dtype)
    assert not codec.lossless or expected is rows
    for k, (row, want) in enumerate(zip(rows, expected, strict=True)):
        got, mask = codec.decode(codec.encode(row, None, int(KEYS[k])), limit=rows.shape[1])
        assert mask is None
        assert got.dtype == rows.dtype
        assert torch.equal(bits_of(got), bits_of(want))


@every_codec
@quick
@given(masked=masked_tables())
def test_what_arrives_under_a_mask_is_the_roundtrip(
    codec: Codec, masked: tuple[Tensor, Tensor]
) -> None:
    rows, masks = masked
    expected = codec.roundtrip(rows, masks, KEYS[: len(rows)])
    assert not bits_of(expected)[~masks].count_nonzero()
    assert not codec.lossless or torch.equal(
        bits_of(expected), bits_of(rows.masked_fill(~masks, 0))
    )
    for k, (row, mask, want) in enumerate(zip(rows, masks, expected, strict=True)):
        got, got_mask = codec.decode(codec.encode(row, mask, int(KEYS[k])), limit=rows.shape[1])
        assert got_mask is not None
        assert torch.equal(got_mask, mask)
        assert torch.equal(bits_of(got), bits_of(want))


@every_codec
@quick
@given(masked=masked_tables(), drawn=st.integers(-(2**63), 2**63 - 1))
def test_a_second_time_changes_nothing(
    codec: Codec, masked: tuple[Tensor, Tensor], drawn: int
) -> None:
    rows, masks = masked
    for mask in (None, masks):
        once = codec.roundtrip(rows, mask, KEYS[: len(rows)])
        twice = codec.roundtrip(once, mask, torch.full((len(rows),), drawn))
        assert torch.equal(bits_of(once), bits_of(twice))
        # links count what has arrived
        assert torch.equal(codec.nbytes(once, mask), codec.nbytes(rows, mask))


@every_codec
@quick
@given(masked=masked_tables())
def test_a_row_does_not_depend_on_its_neighbours(
    codec: Codec, masked: tuple[Tensor, Tensor]
) -> None:
    rows, masks = masked
    together = codec.roundtrip(rows, masks, KEYS[: len(rows)])
    for k in range(len(rows)):
        alone = codec.roundtrip(rows[k : k + 1], masks[k], KEYS[k : k + 1])
        assert torch.equal(bits_of(alone[0]), bits_of(together[k]))


@every_codec
@quick
@given(masked=masked_tables())
def test_the_kernel_makes_the_same_bytes_as_torch_and_numpy(
    codec: Codec, masked: tuple[Tensor, Tensor]
) -> None:
    rows, masks = masked
    for row, mask in zip(rows, masks, strict=True):
        for sent in (None, mask):
            message = codec.encode(row, sent, -5)
            with no_kernel():
                assert codec.encode(row, sent, -5) == message
                there, there_mask = codec.decode(message, limit=len(row))
            here, here_mask = codec.decode(message, limit=len(row))
            assert torch.equal(bits_of(there), bits_of(here))
            assert str(there_mask) == str(here_mask)
    for sent in (None, masks):
        arrives, long = codec.roundtrip(rows, sent, KEYS[: len(rows)]), codec.nbytes(rows, sent)
        with no_kernel():
            assert torch.equal(
                bits_of(codec.roundtrip(rows, sent, KEYS[: len(rows)])), bits_of(arrives)
            )
            assert torch.equal(codec.nbytes(rows, sent), long)


@pytest.mark.parametrize("codec", lossless.values(), ids=lossless.keys())
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("many", [1, 2, 4])
def test_signalling_nans_stay_signalling(codec: Codec, bits: int, many: int) -> None:
    """torch treats one value among others differently from several."""
    numbers = [SPECIAL[bits][2]] * many + [0] * 60
    row, mask = of_bits(numbers, bits), torch.arange(len(numbers)) < many
    for message in (codec.encode(row), codec.encode(row, mask)):
        assert bits_of(codec.decode(message, limit=len(row))[0]).tolist() == numbers


@every_codec
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_finite_is_noticed_and_zeros_stay_zeros(
    codec: Codec, dtype: torch.dtype
) -> None:
    rows = torch.zeros(4, 300, dtype=dtype)
    rows[0, 5], rows[1, 280], rows[2, 7] = torch.nan, torch.inf, -torch.inf
    got = codec.roundtrip(rows, None, KEYS[:4])
    assert got[0, 5].isnan()
    assert [bool(got[k, at].isfinite()) for k, at in ((1, 280), (2, 7))] == [False, False]
    assert not bits_of(got[3]).count_nonzero()
    largest = torch.full((1, 300), torch.finfo(dtype).max, dtype=dtype)
    assert codec.roundtrip(largest, None, KEYS[:1]).isfinite().all()


@every_codec
@quick
@given(rows=tables())
def test_nbytes_is_the_length(codec: Codec, rows: Tensor) -> None:
    counted = codec.nbytes(rows)
    assert counted.dtype == torch.int64
    assert counted.tolist() == [len(codec.encode(row, None, 1)) for row in rows]
    sent = count(patterns(codec.roundtrip(rows, None, KEYS[: len(rows)])))
    lengths = codec.lengths(sent, width=rows.shape[1], size=rows.element_size(), masked=False)
    assert lengths is None or lengths.tolist() == counted.tolist()


@every_codec
@quick
@given(masked=masked_tables())
def test_nbytes_is_the_length_under_a_mask(codec: Codec, masked: tuple[Tensor, Tensor]) -> None:
    rows, masks = masked
    each = [len(codec.encode(row, mask, 1)) for row, mask in zip(rows, masks, strict=True)]
    assert codec.nbytes(rows, masks).tolist() == each
    lengths = codec.lengths(
        count(masks), width=rows.shape[1], size=rows.element_size(), masked=True
    )
    assert lengths is None or lengths.tolist() == each
    if len(rows):  # one mask for all rows, as when a server sends the same part to each of them
        assert codec.nbytes(rows, masks[0]).tolist() == [
            len(codec.encode(row, masks[0], 1)) for row in rows
        ]


@every_codec
@quick
@given(rows=tables())
def test_auto_is_never_longer_than_what_loses_nothing(codec: Codec, rows: Tensor) -> None:
    assert not codec.lossless or (CODECS["auto"].nbytes(rows) <= codec.nbytes(rows)).all()


@every_codec
def test_strides_gradients_and_the_sender_s_memory_do_not_matter(codec: Codec) -> None:
    table = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]], requires_grad=True)
    column, mask = table[:, 0], torch.tensor([[True, False]] * 3)[:, 0]
    copy = column.detach().clone()
    assert codec.encode(column, None, 3) == codec.encode(copy, None, 3)
    assert codec.encode(column, mask, 3) == codec.encode(copy, mask.clone(), 3)
    assert codec.nbytes(table.T).tolist() == codec.nbytes(table.T.detach().contiguous()).tolist()
    turned = codec.roundtrip(table.T, None, KEYS[:2])
    assert torch.equal(turned, codec.roundtrip(table.T.detach().contiguous(), None, KEYS[:2]))
    got, _ = codec.decode(codec.encode(copy, None, 3), limit=3)
    got.add_(1)  # the receiver owns what it gets
    assert copy.tolist() == [0.0, 2.0, 0.0]
    got, _ = codec.decode(bytearray(codec.encode(copy, None, 3)), limit=3)  # type: ignore[arg-type]
    got.add_(1)


@every_codec
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_on_a_gpu_give_the_same_bits(codec: Codec, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(1)
    rows = (
        torch.randn(5, 3000, generator=g, dtype=torch.float64)
        * torch.logspace(-44, 38, 5)[:, None].double()
    ).to(dtype)
    rows[rows.abs() < rows.abs().median(dim=1, keepdim=True).values] = 0
    rows[0, 5], rows[1, 2], rows[2, 700] = torch.nan, torch.inf, -0.0
    mask, keys = torch.rand(5, 3000, generator=g) < 0.5, KEYS[:5]
    for sent in (None, mask):
        there = None if sent is None else sent.cuda()
        assert codec.nbytes(rows.cuda(), there).tolist() == codec.nbytes(rows, sent).tolist()
        got = codec.roundtrip(rows.cuda(), there, keys.cuda()).cpu()
        assert torch.equal(bits_of(got), bits_of(codec.roundtrip(rows, sent, keys)))
        for k, row in enumerate(rows):
            mine, theirs = (None, None) if sent is None or there is None else (sent[k], there[k])
            assert codec.encode(row.cuda(), theirs, k) == codec.encode(row, mine, k)
