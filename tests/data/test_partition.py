"""Partitions are disjoint, complete where they promise it, fair, and decided by the seed alone."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.data import partition
from covey.data.partitions.partition import Numbers
from tests.data.tiny import labels_of
from tests.given import refused

seeds = st.integers(0, 2**32)
counts = st.lists(st.integers(1, 30), min_size=1, max_size=8)  # examples per class
DEALS: list[Callable[..., list[Numbers]]] = [
    lambda y, devices, seed: partition.iid(len(y), devices, seed),
    lambda y, devices, seed: partition.by_labels(y, devices=devices, labels=2, seed=seed),
    lambda y, devices, seed: partition.dirichlet(y, devices=devices, alpha=0.3, seed=seed),
]


def assert_disjoint(piles: list[Numbers]) -> None:
    dealt = np.concatenate(piles)
    assert len(np.unique(dealt)) == len(dealt)


@given(n=st.integers(1, 200), seed=seeds, data=st.data())
def test_iid_deals_everything_evenly(n: int, seed: int, data: st.DataObject) -> None:
    piles = partition.iid(n, data.draw(st.integers(1, n)), seed)
    assert sorted(np.concatenate(piles)) == list(range(n))
    assert max(map(len, piles)) - min(map(len, piles)) <= 1


@given(counts=counts, seed=seeds, data=st.data())
def test_by_labels_gives_owned_labels_only_and_evenly(
    counts: list[int], seed: int, data: st.DataObject
) -> None:
    y, classes = labels_of(counts), len(counts)
    devices, labels = data.draw(st.integers(1, len(y))), data.draw(st.integers(1, classes))
    piles = partition.by_labels(y, devices=devices, labels=labels, seed=seed)
    owned = [{(u + j) % classes for j in range(labels)} for u in range(devices)]
    assert_disjoint(piles)
    assert len(piles) == devices
    for label in range(classes):
        shares = [int((y[piles[u]] == label).sum()) for u in range(devices) if label in owned[u]]
        assert sum(shares) == (counts[label] if shares else 0)
        assert not shares or max(shares) - min(shares) <= 1
    assert all(set(y[pile].tolist()) <= own for pile, own in zip(piles, owned, strict=True))


def test_by_labels_leaves_out_what_nobody_owns() -> None:
    y = labels_of([5, 5, 5, 5])
    assert sorted(np.concatenate(partition.by_labels(y, devices=2, labels=1))) == list(range(10))


@given(counts=counts, seed=seeds, alpha=st.floats(1e-3, 1e3), data=st.data())
def test_dirichlet_deals_everything_and_keeps_the_minimum(
    counts: list[int], seed: int, alpha: float, data: st.DataObject
) -> None:
    y = labels_of(counts)
    devices = data.draw(st.integers(1, len(y)))
    minimum = data.draw(st.integers(0, len(y) // devices))
    piles = partition.dirichlet(y, devices=devices, alpha=alpha, seed=seed, minimum=minimum)
    assert sorted(np.concatenate(piles)) == list(range(len(y)))
    assert len(piles) == devices
    assert min(map(len, piles)) >= minimum


@pytest.mark.parametrize("alpha", [1e-300, 1e-8, 0.01])
def test_dirichlet_needs_no_second_draw_at_any_alpha(alpha: float) -> None:
    y = labels_of([100] * 10)
    piles = partition.dirichlet(y, devices=250, alpha=alpha)  # 250 x 4: every example is needed
    assert [len(pile) for pile in piles] == [4] * 250
    assert_disjoint(piles)


def test_dirichlet_is_even_for_large_alpha_and_uneven_for_small() -> None:
    y = labels_of([1000] * 5)
    even, uneven = (partition.dirichlet(y, devices=10, alpha=alpha) for alpha in (1e5, 0.05))
    assert max(map(len, even)) - min(map(len, even)) < 50
    assert max(map(len, uneven)) - min(map(len, uneven)) > 500


def test_no_device_is_favoured_by_the_rounding_of_dirichlet_shares() -> None:
    """The number of devices with a label is the same for the first, a middle and the last one."""
    y = np.repeat(np.arange(10), 100)
    held = np.zeros((60, 10))
    for seed in range(60):
        piles = partition.dirichlet(y, devices=10, alpha=0.05, seed=seed, minimum=0)
        held[seed] = [len(np.unique(y[pile])) for pile in piles]
    means = held.mean(0)
    assert means.max() - means.min() < 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 100))
def test_rounded_shares_sum_to_the_total_and_are_off_by_less_than_one(
    parts: list[float], total: int
) -> None:
    shares = (np.array(parts) + 1e-3) / (np.array(parts) + 1e-3).sum() * total
    counts = partition._rounded(shares, total)
    assert counts.sum() == total
    assert (abs(counts - shares) < 1 + 1e-9).all()


def test_only_devices_below_the_minimum_are_topped_up() -> None:
    piles = [np.arange(10), np.arange(10, 12), np.arange(12, 20), np.arange(20, 20)]
    topped = partition._topped_up(piles, 4)
    assert [len(pile) for pile in topped] == [6, 4, 6, 4]
    assert sorted(np.concatenate(topped)) == list(range(20))
    assert all(set(before[:6]) <= set(after) for before, after in zip(piles, topped, strict=True))


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12), data=st.data())
def test_all_at_once_is_as_one_at_a_time_from_the_largest(
    sizes: list[int], data: st.DataObject
) -> None:
    by = data.draw(st.integers(0, sum(sizes)))
    left = list(sizes)
    for _ in range(by):
        left[left.index(max(left))] -= 1
    assert partition._lowered(np.array(sizes), by).tolist() == left


@pytest.mark.parametrize("minimum", [4, 28])
def test_thousands_of_devices_are_topped_up_at_once(minimum: int) -> None:
    start = time.process_time()
    piles = partition.dirichlet(labels_of([10_000] * 10), devices=3500, alpha=0.01, minimum=minimum)
    assert time.process_time() - start < 1
    assert sum(map(len, piles)) == 100_000
    assert min(map(len, piles)) >= minimum


@pytest.mark.parametrize("deal", DEALS)
def test_the_seed_decides(deal: Callable[..., list[Numbers]]) -> None:
    y = labels_of([50, 50, 50])
    first, again, other = (np.concatenate(deal(y, 6, seed)) for seed in (7, 7, 8))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("deal", DEALS)
def test_nothing_global_is_read_or_changed(deal: Callable[..., list[Numbers]]) -> None:
    before, torch_before = np.random.get_state(legacy=False), torch.get_rng_state()  # noqa: NPY002
    deal(labels_of([50, 50]), 4, 0)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert str(before) == str(after)
    assert torch.equal(torch_before, torch.get_rng_state())


def test_labels_may_be_a_tensor() -> None:
    y = labels_of([9, 9])
    piles = [partition.by_labels(given, devices=4, labels=1) for given in (y, torch.from_numpy(y))]
    assert all(np.array_equal(a, b) for a, b in zip(*piles, strict=True))


fractions = st.tuples(st.integers(0, 10), st.integers(0, 10), st.integers(0, 10)).filter(any)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5), parts=fractions, seed=seeds)
def test_split_is_disjoint_complete_and_always_trains(
    sizes: list[int], parts: tuple[int, int, int], seed: int
) -> None:
    share = (parts[0] / sum(parts), parts[1] / sum(parts), parts[2] / sum(parts))
    pieces = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    cut = partition.split(pieces, split=share, seed=seed)
    for device, piece in enumerate(pieces):
        held = [part.held(device).tolist() for part in cut]
        assert sorted(itertools.chain(*held)) == piece.tolist()
        assert len(held[0]) >= 1


def test_split_rounds_test_and_validation() -> None:
    cut = partition.split([np.arange(n) for n in (1, 2, 3, 4, 10, 100)])
    assert [part.counts().tolist() for part in cut] == [
        [1, 2, 2, 2, 6, 60],
        [0, 0, 0, 1, 2, 15],
        [0, 0, 1, 1, 2, 25],
    ]


def test_split_of_a_device_does_not_depend_on_the_others() -> None:
    pieces = [np.arange(20), np.arange(20, 60)]
    both = partition.split(pieces, seed=3)
    second = partition.split([np.arange(5), pieces[1]], seed=3)
    assert torch.equal(both[0].held(1), second[0].held(1))
    assert not torch.equal(both[0].held(1), partition.split(pieces, seed=4)[0].held(1))


@pytest.mark.parametrize("deal", DEALS)
def test_refuses_impossible_numbers_of_devices(deal: Callable[..., list[Numbers]]) -> None:
    y = labels_of([2, 3])
    with refused("devices=0", "at least 1"):
        deal(y, 0, 0)
    with refused("devices=6", "only 5 examples", "at most 5"):
        deal(y, 6, 0)
    with refused("seed=-1", "a non-negative integer"):
        deal(labels_of([20, 20]), 2, -1)


Y = labels_of([5, 5])
REFUSED: list[tuple[Callable[..., Any], dict[str, Any], list[str]]] = [
    *((partition.by_labels, {"y": Y, "devices": 2, "labels": labels}, [f"labels={labels}", "2 classes", "give 1 to 2"]) for labels in (0, 3)),
    *(
        (partition.dirichlet, {"y": Y, "devices": 2, "alpha": alpha}, [f"alpha={alpha}", "positive number", "0.1"])
        for alpha in (0.0, -1.0, float("nan"), float("inf"))
    ),
    *(
        (partition.dirichlet, {"y": Y, "devices": 3, "alpha": 1, "minimum": minimum},
         [f"minimum={minimum}", "3 devices", "10 examples", "0 to 3", "fewer devices"])
        for minimum in (-1, 4)
    ),
    *(
        (partition.split, {"pieces": [np.arange(4)], "split": share}, [f"split={share}", "sum to 1"])
        for share in ((0.5, 0.5, 0.5), (1.2, -0.2, 0.0), (float("nan"), 0.5, 0.5), (0.5, 0.5))
    ),
    *(
        (partition.by_labels, {"y": y, "devices": 1, "labels": 1}, [str(y.dtype), str(y.shape), str(y.reshape(-1).tolist()), "partition iid"])
        for y in (np.array([0.5, 1.5]), np.array([[0], [1]]), np.array([-1, 0]), np.array([], dtype=int))
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("deal", "given", "words"),
    REFUSED,
    ids=[f"{deal.__name__}: {words[0]}" for deal, _, words in REFUSED],
)
def test_what_cannot_be_is_refused(
    deal: Callable[..., Any], given: dict[str, Any], words: list[str]
) -> None:
    with refused(*words):
        deal(**given)
