"""Draws are functions of their address: nothing about who else draws, or how much was drawn before,
shows in them.
"""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey import draws, native

quick = settings(max_examples=60)
addresses = st.integers(0, 2**64 - 1)


@quick
@given(address=addresses, n=st.integers(1, 30), width=st.integers(1, 6), data=st.data())
def test_any_split_of_the_ids_draws_the_same_bits(
    address: int, n: int, width: int, data: st.DataObject
) -> None:
    ids = torch.tensor(
        data.draw(st.lists(st.integers(0, 10**12), min_size=n, max_size=n, unique=True))
    )
    at = data.draw(st.integers(0, n))
    order = torch.tensor(data.draw(st.permutations(range(n))))
    for draw in (draws.bits, draws.uniform, draws.normal):
        whole = draw(address, ids, width)
        assert torch.equal(
            whole, torch.cat([draw(address, ids[:at], width), draw(address, ids[at:], width)])
        )
        assert torch.equal(whole[order], draw(address, ids[order], width))
    assert torch.equal(
        draws.bits(address, ids, width), draws.bits(address, ids, width + 3)[:, :width]
    )


def test_ids_slots_and_every_word_of_the_address_matter() -> None:
    seen = draws.bits(draws.key(0), torch.arange(2000), 50)
    assert len(seen.unique()) == seen.numel()
    base: tuple[Any, ...] = (3, 1, 7, "device", "batch", 0)
    others = [
        (*base[:i], word, *base[i + 1 :]) for i, word in enumerate((4, 2, 8, "edge", "probe", 1))
    ]
    keys = [draws.key(*words) for words in (base, *others, base[::-1], base[:-1])]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**64 for key in keys)


def test_a_key_is_the_same_in_every_version() -> None:
    """Checkpoints hold no generator, so a change of these numbers changes every run that is
    resumed.
    """
    # splitmix64's first output from 0
    assert draws.key(0) == draws._finalise(draws._GOLDEN) == 0xE220A8397B1DCDAF
    assert draws.key(0, 1, "device") == draws.key(0, 1, "device")
    # the finaliser alone: 0 is its fixed point
    assert draws.bits(0, torch.tensor([0]), 1).item() == 0


def test_uniform_is_uniform() -> None:
    u = draws.uniform(draws.key("u"), torch.arange(1000), 200)
    assert u.dtype == torch.float64
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 1 / 2) < 0.003
    assert abs(u.var() - 1 / 12) < 0.001
    counts = torch.histc(u, bins=20, min=0, max=1)
    # the 99.9 % point of chi-square with 19 degrees
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 43.8
    assert torch.corrcoef(u[:, :8].T).fill_diagonal_(0).abs().max() < 0.12  # neighbouring slots
    assert torch.corrcoef(u[:8]).fill_diagonal_(0).abs().max() < 0.3  # neighbouring ids


def test_normal_is_normal() -> None:
    z = draws.normal(draws.key("z"), torch.arange(1000), 200)
    assert z.shape == (1000, 200)
    assert torch.isfinite(z).all()
    count = z.numel()
    # The variance of the mean of z^p is (E z^2p - (E z^p)^2) / count; four deviations.
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs((z**power).mean() - moment) < 4 * math.sqrt(variance / count), power
    assert torch.corrcoef(z[:, :8].T).fill_diagonal_(0).abs().max() < 0.12  # neighbouring slots
    assert torch.corrcoef(z[:8]).fill_diagonal_(0).abs().max() < 0.3  # neighbouring ids
    squares = z * z - 1  # uncorrelated numbers may still have correlated sizes
    assert abs((squares[:, 1:] * squares[:, :-1]).mean()) < 4 * 2 / math.sqrt(count)
    assert abs((squares[1:] * squares[:-1]).mean()) < 4 * 2 / math.sqrt(count)


def normal_cdf(z: Tensor) -> Tensor:
    return torch.special.ndtr(z)


@pytest.mark.parametrize("axis", ["ids", "slots"])
def test_the_distribution_of_normal_numbers(axis: str) -> None:
    """Kolmogorov's distance, and the tails to five deviations, along both axes of an address."""
    size = 1 << 20
    many, one = torch.arange(size), torch.tensor([7])
    z = (
        draws.normal(draws.key("ids"), many, 1)
        if axis == "ids"
        else draws.normal(draws.key("slots"), one, size)
    )
    z = z.flatten().sort().values
    steps = torch.arange(size + 1, dtype=torch.float64) / size
    cdf = normal_cdf(z)
    distance = torch.maximum((steps[1:] - cdf).max(), (cdf - steps[:-1]).max())
    assert distance * math.sqrt(size) < 1.95  # the 99.9 % point of Kolmogorov's distribution
    for limit in (2.0, 3.0, 4.0, 4.5, 5.0):
        expected = size * float(normal_cdf(torch.tensor(-limit, dtype=torch.float64)))
        deviation = math.sqrt(expected)
        for tail in ((z < -limit).sum(), (z > limit).sum()):
            assert abs(int(tail) - expected) < 4 * deviation + 2, limit


def test_box_muller_is_the_formula() -> None:
    """Against long doubles, at all magnitudes of 1 - u and around every zero of the cosine."""
    power = torch.arange(53, dtype=torch.float64)
    u = torch.cat(
        [1 - 2.0**-power, 2.0 ** -(power + 1), draws.uniform(3, torch.arange(50), 400)[0]]
    )
    near = torch.tensor([0.0, 0.25, 0.5, 0.75]) + 2.0 ** -power[2:, None]
    v = torch.cat(
        [
            near.flatten(),
            torch.tensor([0.0, 0.25, 0.5, 0.75]),
            draws.uniform(4, u[:1].long(), 300)[0],
        ]
    )
    u, v = torch.cartesian_prod(u, v % 1).unbind(1)
    got = draws.box_muller(u, v).numpy()
    long_u, long_v = u.numpy().astype(np.longdouble), v.numpy().astype(np.longdouble)
    quarter = np.abs(long_v - 0.5) - 0.25
    pi = np.longdouble("3.14159265358979323846264338327950288")
    want = np.sqrt(-2 * np.log1p(-long_u)) * np.sin(2 * pi * quarter)
    error = np.abs(got - want) / np.maximum(np.abs(want), 1e-300)
    assert float(error.max()) < 4 * 2.0**-52


@pytest.mark.skipif(not native.loaded(), reason="there is no compiled kernel here")
@pytest.mark.parametrize("instructions", native.SETS)
def test_the_kernel_draws_the_bits_of_torch(
    instructions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = native._load(instructions)
    if isinstance(library, str):
        pytest.skip(library)
    ids = torch.tensor([0, 5, 10**12, 7])
    addresses: list[draws.Address] = [
        0,
        2**64 - 1,
        draws.key("a"),
        torch.tensor([-(2**63), 5, 6, 2**63 - 1]),
    ]
    for address, dtype, width in itertools.product(
        addresses, native.DTYPES, (0, 1, 2, 7, 8, 9, 5000)
    ):
        monkeypatch.setattr(native, "_library", library)
        here = draws.normal(address, ids, width, dtype=dtype)
        monkeypatch.setattr(native, "_library", "gone")
        there = draws.normal(address, ids, width, dtype=dtype)
        assert here.dtype == there.dtype == dtype
        assert torch.equal(here, there), (address, width)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_bits_of_the_cpu() -> None:
    ids = torch.arange(50)
    here = draws.normal(draws.key("gpu"), ids, 5000)
    there = draws.normal(draws.key("gpu"), ids.cuda(), 5000)
    assert torch.equal(here, there.cpu())


@quick
@given(address=addresses, below=st.lists(st.integers(1, 2**40), min_size=1, max_size=10))
def test_integers_are_in_range(address: int, below: list[int]) -> None:
    limit = torch.tensor(below)
    got = draws.integers(address, torch.arange(len(below)), 40, below=limit)
    assert ((got >= 0) & (got < limit[:, None])).all()


def test_integers_are_uniform_and_an_empty_range_gives_zero() -> None:
    got = draws.integers(draws.key("i"), torch.arange(1000), 70, below=torch.full((1000,), 7))
    counts = torch.bincount(got.flatten(), minlength=7).double()
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 22.5  # 99.9 %, 6 degrees
    assert (
        draws.integers(1, torch.arange(2), 3, below=torch.tensor([0, 1])).tolist() == [[0] * 3] * 2
    )


@settings(max_examples=25)
@given(address=addresses, data=st.data())
def test_choose_gives_distinct_sorted_numbers_in_range(address: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    picks = [data.draw(st.integers(0, size)) for size in sizes]
    groups = torch.tensor(
        data.draw(
            st.lists(st.integers(0, 10**9), min_size=len(sizes), max_size=len(sizes), unique=True)
        )
    )
    position, number = draws.choose(
        address, groups, sizes=torch.tensor(sizes), picks=torch.tensor(picks)
    )
    pairs = list(zip(position.tolist(), number.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    assert torch.bincount(position, minlength=len(sizes)).tolist() == picks
    assert all(0 <= k < sizes[g] for g, k in pairs)
    for g in range(len(sizes)):  # a group's choice is its own
        own = slice(g, g + 1)
        some = {"sizes": torch.tensor(sizes[own]), "picks": torch.tensor(picks[own])}
        alone = draws.choose(address, groups[own], **some)
        assert alone[1].tolist() == [k for at, k in pairs if at == g]


def test_choosing_all_gives_all() -> None:
    for size in (1, 2, 3, 7, 20, 61):
        _, number = draws.choose(
            draws.key(size), torch.tensor([5]), sizes=torch.tensor([size]), picks=torch.tensor([size]),
        )  # fmt: skip
        assert number.tolist() == list(range(size))


def test_every_subset_is_equally_likely() -> None:
    trials = 20_000
    groups = torch.arange(trials)
    sizes, picks = torch.full((trials,), 5), torch.full((trials,), 2)
    _, number = draws.choose(draws.key("subsets"), groups, sizes=sizes, picks=picks)
    pairs = number.view(trials, 2)
    counts = torch.bincount(pairs[:, 0] * 5 + pairs[:, 1], minlength=25)
    expected = trials / math.comb(5, 2)
    seen = torch.tensor(
        [int(counts[a * 5 + b]) for a, b in itertools.combinations(range(5), 2)]
    ).double()
    assert seen.sum() == trials
    assert ((seen - expected) ** 2 / expected).sum() < 27.9  # 99.9 %, 9 degrees


def test_successive_addresses_are_independent_too() -> None:
    """Rounds change the address and not the group: the same test along that axis."""
    trials = 150
    one = torch.tensor([0])
    counts = torch.zeros(5)
    for round in range(trials):
        counts[draws.choose(draws.key(0, round), one, sizes=one + 5, picks=one + 2)[1]] += 1
    expected = trials * 2 / 5
    assert counts.sum() == 2 * trials
    assert ((counts - expected) ** 2 / expected).sum() < 18.5


def test_the_cost_is_that_of_the_sample_and_not_of_the_population() -> None:
    sizes = torch.full((3,), 10**9)
    position, number = draws.choose(7, torch.arange(3), sizes=sizes, picks=torch.full((3,), 1000))
    assert position.tolist() == [g for g in range(3) for _ in range(1000)]
    assert len(set(zip(position.tolist(), number.tolist(), strict=True))) == 3000
    assert abs(number.double().mean() / 1e9 - 0.5) < 0.03
    nobody = torch.empty(0, dtype=torch.int64)
    assert [part.tolist() for part in draws.choose(7, nobody, sizes=nobody, picks=nobody)] == [
        [],
        [],
    ]


def test_a_path_of_zeros_stays_zero() -> None:
    assert draws.path(draws.path(draws.path(0, 0), 0), 0) == 0
    paths = {draws.path(parent, ask) for parent in (0, 1, draws.path(0, 1)) for ask in range(50)}
    assert len(paths) == 150


@pytest.mark.skipif(not native.loaded(), reason="there is no compiled kernel here")
def test_the_kernel_chooses_as_numpy_does(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = torch.tensor([3, 10**9, 0, 7])
    sizes = torch.tensor([1, 10**6, 17, 5])
    picks = torch.tensor([1, 300, 0, 5])
    address = torch.tensor([-(2**63), 5, 6, 2**63 - 1])
    for key in (9, address):
        here = draws.choose(key, groups, sizes=sizes, picks=picks)
        with monkeypatch.context() as patch:
            patch.setattr(native, "_library", "gone")
            there = draws.choose(key, groups, sizes=sizes, picks=picks)
        assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
