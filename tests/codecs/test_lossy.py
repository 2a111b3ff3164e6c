# mypy: disable-error-code="arg-type"
"""What lossy codecs lose: as much as they say, and no bit more."""

import numpy as np
import pytest
import torch
from torch import Tensor

from covey import draws, native
from covey.codecs import Dense, Quantised
from covey.codecs.blocks import patterns

DTYPES = [torch.float32, torch.float64]
HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture(params=["kernel", "torch"], autouse=True)
def with_and_without_the_kernel(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.param == "torch":
        monkeypatch.setattr(native, "_library", "gone")


def numbers(dtype: torch.dtype, n: int = 40_000) -> Tensor:
    """Of all sizes, and the ties and edges of halves."""
    rng = np.random.default_rng(0)
    some = rng.standard_normal(n) * 10.0 ** rng.uniform(-12, 9, n)
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    exact = torch.cat([halves.view(half).double() for half in HALVES.values()])
    exact = exact[exact.isfinite()]
    near = torch.cat(
        [exact[:-1] + (exact[1:] - exact[:-1]) / 2, exact * (1 + 2**-12), exact * (1 + 2**-20)]
    )
    return (
        torch.cat([torch.from_numpy(some), exact, near[near.isfinite()]])
        .clamp(-3e38, 3e38)
        .to(dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("values", HALVES)
def test_halves_are_those_of_torch(values: str, dtype: torch.dtype) -> None:
    rows = numbers(dtype)[None]
    fits = rows.abs() <= torch.finfo(HALVES[values]).max
    want = rows.float().to(HALVES[values]).to(dtype)
    got = Dense(values).roundtrip(rows)
    assert torch.equal(patterns(got)[fits], patterns(want)[fits])
    assert torch.equal(
        got[~fits],
        torch.copysign(torch.tensor(torch.finfo(HALVES[values]).max, dtype=dtype), rows[~fits]),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("values", HALVES)
def test_every_half_there_is_arrives_as_it_is(values: str, dtype: torch.dtype) -> None:
    words = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    row = words.view(HALVES[values]).to(dtype)
    message = Dense(values).encode(row)
    sent = np.frombuffer(message[6:], "<i2")
    known = ~row.isnan().numpy()
    assert (sent[known] == words.numpy()[known]).all()
    assert len(set(sent[~known])) == 1
    got, _ = Dense(values).decode(message, limit=len(row))
    assert torch.equal(patterns(got)[known], patterns(row)[known])
    assert len(patterns(got)[~known].unique()) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("values", HALVES)
def test_what_is_finite_stays_finite(values: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(HALVES[values]).max
    most = torch.finfo(dtype).max
    rows = torch.tensor([[most, -most, torch.inf, -torch.inf, torch.nan, 1e-45]], dtype=dtype)
    got = Dense(values).roundtrip(rows)[0].tolist()
    assert got[:4] == [largest, -largest, torch.inf, -torch.inf]
    assert got[4] != got[4]
    assert got[5] == 0


def scales(rows: Tensor, codec: Quantised) -> Tensor:
    """Of each value, to a part in 2**16."""
    count = -(-rows.shape[1] // codec.block)
    padded = torch.nn.functional.pad(rows, (0, count * codec.block - rows.shape[1]))
    peaks = padded.reshape(len(rows), count, codec.block).abs().amax(2)
    return (peaks / codec.levels).repeat_interleave(codec.block, 1)[:, : rows.shape[1]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [1, 7, 256, 1000, 65535])
def test_nearest_is_off_by_half_a_scale_at_most(bits: int, block: int, dtype: torch.dtype) -> None:
    rows = torch.randn(
        3, 1000, generator=torch.Generator().manual_seed(1), dtype=dtype
    ) * torch.tensor([[1e-6], [1.0], [1e6]])
    codec = Quantised(bits, block)
    error = (codec.roundtrip(rows.to(dtype)) - rows).abs()
    # the largest value may be 127 / 2**16 of a scale above 127 scales
    assert (error <= scales(rows, codec) * (0.5 + 2e-3)).all()
    if block > 1:
        assert float((error / scales(rows, codec)).max()) > 0.45


@pytest.mark.parametrize("bits", [4, 8])
def test_ties_go_to_even(bits: int) -> None:
    levels = Quantised(bits).levels
    row = torch.tensor([[float(levels), 0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, -3.5]])
    assert Quantised(bits).roundtrip(row)[0].tolist() == [levels, 0, 2, 2, 4, 0, -2, -2, -4]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [4, 8])
def test_draws_are_off_by_less_than_a_scale_and_right_in_the_mean(
    bits: int, dtype: torch.dtype
) -> None:
    codec, n = Quantised(bits, block=50, rounding="stochastic"), 4000
    row = torch.randn(1, 170, generator=torch.Generator().manual_seed(2), dtype=dtype)
    got = codec.roundtrip(row.expand(n, -1), keys=draws.keys(range(n), "rounding"))
    scale = scales(row, codec)
    assert ((got - row).abs() < scale * (1 + 2e-3)).all()
    off = (got.double().mean(dim=0) - row[0].double()).abs() / scale[0]
    assert float(off.max()) < 4.5 * 0.5 / n**0.5  # deviations of a coin of one scale
    assert float(got.std(dim=0).max()) > 0.4 * float(scale.min())


def test_a_draw_is_at_the_row_s_key_and_the_value_s_place() -> None:
    key, width = draws.key("link", 3), 40
    row = torch.cat([torch.tensor([127.0]), torch.full((width - 1,), 0.3)])
    uniform = draws.uniform(key, torch.zeros(1, dtype=torch.int64), width)[0]
    codec = Quantised(8, rounding="stochastic")
    got, _ = codec.decode(codec.encode(row, key=key), limit=width)
    assert got.tolist() == [127.0, *(uniform[1:] < torch.tensor(0.3).double()).double().tolist()]
    # with a mask a value keeps its place
    half = codec.encode(row, torch.arange(width) % 2 == 0, key)
    assert codec.decode(half, limit=width)[0][::2].tolist() == got[::2].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_block_that_is_not_finite_arrives_as_nan_and_its_neighbours_as_they_are(
    rounding: str, dtype: torch.dtype
) -> None:
    rows = torch.ones(1, 10, dtype=dtype)
    rows[0, 4], keys = -torch.inf, torch.tensor([1])
    got = Quantised(8, block=4, rounding=rounding).roundtrip(rows, keys=keys)[0]
    assert got.isnan().tolist() == [False] * 4 + [True] * 4 + [False] * 2
    masked = Quantised(8, block=4, rounding=rounding).roundtrip(
        rows, torch.arange(10) % 2 == 0, keys
    )[0]
    assert masked.isnan().tolist() == [False] * 4 + [True, False, True, False, False, False]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_below_the_smallest_normal_number(bits: int, dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    row = torch.tensor([[3 * tiny, -2 * tiny, 0.7 * tiny, 0.3 * tiny, -0.0, 0.0]], dtype=dtype)
    got = Quantised(bits).roundtrip(row)[0]
    assert got.tolist() == [3 * tiny, -2 * tiny, tiny, 0.0, 0.0, 0.0]
    assert not patterns(got)[3:].count_nonzero()


def test_what_is_outside_the_mask_does_not_change_a_scale() -> None:
    rows = torch.tensor([[1e9, 1.0, 0.5, 0.25]])
    got = Quantised(8).roundtrip(rows, torch.tensor([False, True, True, True]))
    assert torch.allclose(got, torch.tensor([[0.0, 1.0, 0.5, 0.25]]), atol=0.005)
