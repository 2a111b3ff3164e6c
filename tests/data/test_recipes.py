"""The papers' partitions: their published sizes, who shares what, and what cannot be dealt so."""

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.data import recipes
from covey.data.partitions.partition import Numbers
from covey.data.partitions.recipes import Dealt
from tests.data.tiny import labels_of
from tests.given import refused

MNIST_COUNTS = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
MNIST_BEGINS = [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def mnist() -> Numbers:
    """Labels as many as MNIST's, that begin as they do: pFedMe's code of 2020 looks at where nines
    stand among the first ten.
    """
    rest = np.array(MNIST_COUNTS) - np.bincount(MNIST_BEGINS, minlength=10)
    return np.concatenate([MNIST_BEGINS, np.repeat(np.arange(10), rest)])


def whole(dealt: Dealt) -> list[Numbers]:
    """All a device holds."""
    nothing = [np.empty(0, dtype=np.int64)] * len(dealt.train)
    parts = (dealt.train, dealt.validation or nothing, dealt.test or nothing)
    return [np.concatenate(piles) for piles in zip(*parts, strict=True)]


def sizes(dealt: Dealt) -> list[int]:
    return [len(pile) for pile in whole(dealt)]


def distinct(piles: list[Numbers]) -> int:
    return len(np.unique(np.concatenate(piles)))


DEALS: dict[str, Callable[..., Dealt]] = {
    "legacy2020": recipes.legacy2020,
    "disjoint": recipes.disjoint,
    "power_law": lambda y, **seed: recipes.power_law(y, devices=30, **seed),
    "sfedhp": lambda y, **seed: recipes.sfedhp(y, train_per_label=20, test_per_label=30, **seed),
    "permfl": lambda y, seed=5: recipes.permfl(y, devices=30, seeds=(seed, seed + 4)),
    "permfl_cifar100": lambda y, **seed: recipes.permfl_cifar100(y, devices=30, **seed),
    "permfl_femnist": lambda y, **seed: recipes.permfl_femnist(y, devices=30, **seed),
}
DISJOINT = [name for name in DEALS if name not in ("legacy2020", "sfedhp")]


def test_legacy2020_has_the_published_sizes() -> None:
    held = recipes.legacy2020(mnist()).train
    assert (min(map(len, held)), max(map(len, held)), sum(map(len, held))) == (1554, 5112, 69_969)
    trained = [int(0.75 * len(pile)) for pile in held]
    assert (min(trained), max(trained)) == (1165, 3834)  # the range printed in the paper


def test_legacy2020_deals_each_image_about_three_times() -> None:
    y = mnist()
    held = recipes.legacy2020(y).train
    # The longest slices have 23,537 images, but all slices of label 4 begin at its second: y[4] is
    # a nine.
    assert distinct(held) == 23_536
    assert np.flatnonzero(y == 4)[0] not in np.concatenate(held)
    for u, pile in enumerate(held):
        for label in (u % 10, (u + 1) % 10):
            first = np.searchsorted(np.flatnonzero(y == label), pile[y[pile] == label])
            assert first[0] in (0, 1)
            assert np.array_equal(first, np.arange(first[0], first[-1] + 1))


def test_disjoint_deals_every_image_once_by_the_same_draws() -> None:
    y = mnist()
    held, drawn = recipes.disjoint(y).train, recipes._pfedme_sizes(recipes._pools(y), seed=1)
    assert sum(map(len, held)) == distinct(held) == 70_000
    assert drawn[0].tolist() == [2441, 1127, 1575, 1760]
    for label in range(10):
        owners = [u for u in range(20) if label in (u % 10, (u + 1) % 10)]
        assert [int((y[held[u]] == label).sum()) for u in owners] == drawn[label].tolist()


@pytest.mark.parametrize("name", DISJOINT)
def test_no_image_is_in_two_devices(name: str) -> None:
    dealt = whole(DEALS[name](mnist()))
    assert sum(map(len, dealt)) == distinct(dealt)


@pytest.mark.parametrize("name", DEALS)
def test_devices_hold_their_own_labels(name: str) -> None:
    y, labels = mnist(), {"sfedhp": 5, "permfl_cifar100": 3, "permfl_femnist": 3}.get(name, 2)
    for u, pile in enumerate(whole(DEALS[name](y))):
        assert set(y[pile].tolist()) == {(u + j) % 10 for j in range(labels)}


@pytest.mark.parametrize("name", DEALS)
def test_the_seed_decides(name: str) -> None:
    y = mnist()
    one, again, other = (np.concatenate(whole(DEALS[name](y, seed=seed))) for seed in (3, 3, 4))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("name", DEALS)
def test_nothing_global_is_read_or_changed(name: str) -> None:
    before = (
        str(np.random.get_state(legacy=False)),  # noqa: NPY002
        random.getstate(),
        torch.get_rng_state().tolist(),
    )
    DEALS[name](mnist())
    assert (
        str(np.random.get_state(legacy=False)),  # noqa: NPY002
        random.getstate(),
        torch.get_rng_state().tolist(),
    ) == before


def test_labels_may_be_a_tensor() -> None:
    y = mnist()
    assert all(
        map(np.array_equal, recipes.disjoint(y).train, recipes.disjoint(torch.from_numpy(y)).train)
    )


def test_power_law_begins_with_five_of_each_and_deals_nearly_all() -> None:
    held = recipes.power_law(mnist()).train
    assert len(held) == 1000
    assert min(map(len, held)) == 10
    # fractions of an image are lost: at most one per device and label
    assert 70_000 - 2000 < sum(map(len, held)) < 70_000
    assert max(map(len, held)) > 20 * np.median([len(pile) for pile in held])


@pytest.mark.parametrize(("setting", "train", "test"), [(1, 200, 800), (2, 900, 300)])
def test_sfedhp_on_mnist_repeats_images_but_never_across_the_split(
    setting: int, train: int, test: int
) -> None:
    y = mnist()
    dealt = recipes.sfedhp(y, setting=setting)
    assert dealt.test is not None
    for u in range(20):
        own = sorted((u + j) % 10 for j in range(5))
        assert np.unique(y[dealt.train[u]], return_counts=True)[1].tolist() == [train] * 5
        assert [np.unique(y[dealt.test[u]]).tolist(), len(dealt.test[u])] == [own, 5 * test]
        assert distinct([dealt.train[u], dealt.test[u]]) == 5 * (train + test)
    assert not set(np.concatenate(dealt.train).tolist()) & set(np.concatenate(dealt.test).tolist())
    # all there are: no image repeats while one is unused
    assert distinct(dealt.train) + distinct(dealt.test) == 70_000
    assert all(np.bincount(np.concatenate(piles)).max() <= 2 for piles in (dealt.train, dealt.test))


@pytest.mark.parametrize(("setting", "train", "test"), [(1, 500, 2000), (2, 2250, 750)])
def test_sfedhp_on_cifar10_has_half_and_no_repeats(setting: int, train: int, test: int) -> None:
    dealt = recipes.sfedhp(labels_of([6000] * 10), setting=setting)
    assert dealt.test is not None
    assert ({len(pile) for pile in dealt.train}, {len(pile) for pile in dealt.test}) == (
        {train},
        {test},
    )
    assert distinct(whole(dealt)) == 20 * (train + test)
    validated = recipes.sfedhp(labels_of([6000] * 10), setting=setting, validation_share=0.2)
    assert distinct(whole(validated)) == 20 * (train + test)


@given(
    counts=st.lists(st.integers(6, 40), min_size=1, max_size=6),
    devices=st.integers(1, 12),
    train=st.integers(1, 3),
    test=st.integers(1, 3),
    share=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
    data=st.data(),
)
def test_sfedhp_is_honest_for_any_sizes(
    counts: list[int], devices: int, train: int, test: int, share: float, data: st.DataObject
) -> None:
    y, labels = labels_of(counts), data.draw(st.integers(1, len(counts)))
    devices = min(devices, len(y))
    dealt = recipes.sfedhp(
        y, devices=devices, labels=labels, validation_share=share, train_per_label=train, test_per_label=test,
    )  # fmt: skip
    assert dealt.test is not None
    assert dealt.validation is not None
    assert {len(pile) for pile in dealt.validation} == {
        labels * min(round(train * share), train - 1)
    }
    trained, validated, tested = (
        set(np.concatenate(p).tolist()) for p in (dealt.train, dealt.validation, dealt.test)
    )
    assert not trained & tested
    assert not trained & validated
    assert not validated & tested
    for pile in whole(dealt):
        assert len(pile) == labels * (train + test) == len(np.unique(pile))
    for label, count in enumerate(counts):
        owners = sum((label - u) % len(counts) < labels for u in range(devices))
        used = [pile[y[pile] == label] for pile in whole(dealt)]
        assert owners * (train + test) > count or distinct(used) == owners * (train + test)


def published(
    y: Numbers, devices: int, labels: int, draw: Callable[..., int], draws: random.Random
) -> list[list[int]]:
    """PerMFL's loops, one image at a time: 10 of each label, then a drawn number where the label
    has more than that left.
    """
    classes = int(y.max()) + 1
    left = [np.flatnonzero(y == label).tolist() for label in range(classes)]
    piles: list[list[int]] = [[] for _ in range(devices)]
    for u in range(devices):
        for j in range(labels):
            piles[u] += [left[(u + j) % classes].pop(0) for _ in range(10)]
    for u in range(devices):
        for j in range(labels):
            label = (u + j) % classes
            count = draw(label, u, j, draws)
            if count < len(left[label]):
                piles[u] += left[label][:count]
                left[label] = left[label][count:]
    return piles


def test_permfl_draws_in_the_order_of_the_papers_code() -> None:
    y, devices = mnist(), 40
    shares = np.random.RandomState(9).lognormal(0, 2.0, (10, devices, 2))
    shares = (
        np.array([[[count - devices]] for count in MNIST_COUNTS])
        * shares
        / shares.sum(axis=(1, 2), keepdims=True)
    )
    draws = random.Random(5)
    piles = published(
        y,
        devices,
        2,
        lambda label, u, j, d: int(shares[label, u // 4, j]) + d.randint(300, 600),
        draws,
    )
    dealt = recipes.permfl(y)
    assert dealt.test is not None
    for u, pile in enumerate(piles):
        draws.shuffle(pile)
        tested = len(pile) - int(0.75 * len(pile))
        assert dealt.test[u].tolist() == pile[:tested]
        assert dealt.train[u].tolist() == pile[tested:]
    assert (min(sizes(dealt)), max(sizes(dealt)), sum(sizes(dealt))) == (701, 1468, 39_669)


def test_permfl_doubles_for_few_devices() -> None:
    y = labels_of([50_000] * 10)
    assert min(sizes(recipes.permfl(y, devices=20))) >= 2 * (10 + 2 * 300)


@pytest.mark.parametrize(
    ("deal", "classes", "most"),
    [(recipes.permfl_cifar100, 100, 600), (recipes.permfl_femnist, 62, 3000)],
)
def test_permfl_without_shares_draws_in_the_order_of_the_papers_code(
    deal: Callable[..., Dealt], classes: int, most: int
) -> None:
    y, least = labels_of([5 * most // 4] * classes), 300 if most == 600 else 100
    draws = random.Random(1)
    piles = published(y, 130, 3, lambda label, u, j, d: d.randint(least, most), draws)
    for pile in piles:
        draws.shuffle(pile)
    dealt = deal(y, devices=130)
    assert dealt.test is not None
    assert [
        [*tested, *trained] for tested, trained in zip(dealt.test, dealt.train, strict=True)
    ] == piles


def test_permfl_cifar100_leaves_most_devices_with_30_images() -> None:
    held = sizes(recipes.permfl_cifar100(labels_of([600] * 100)))
    assert len(held) == 350
    assert min(held) == np.median(held) == 30
    assert held.count(30) > 250


def test_permfl_femnist_without_shuffling_tests_on_one_label() -> None:
    y = labels_of([3000] * 62)
    cut, honest = (recipes.permfl_femnist(y, shuffle=shuffle) for shuffle in (False, True))
    assert cut.test is not None
    assert honest.test is not None
    small = [u for u, held in enumerate(sizes(cut)) if held == 30]
    assert len(cut.test) == 3500
    assert len(small) > 3000
    for u in small:
        assert y[cut.test[u]].tolist() == [u % 62] * 8
    assert np.mean([len(np.unique(y[honest.test[u]])) for u in small]) > 2.5
    assert all(map(np.array_equal, map(np.sort, whole(cut)), map(np.sort, whole(honest))))


def test_800_000_examples_take_seconds() -> None:
    y = labels_of([12_903] * 62)
    start = time.process_time()
    assert len(recipes.permfl_femnist(y).train) == 3500
    assert len(recipes.power_law(y, devices=3500).train) == 3500
    assert len(recipes.by_writer(y * 57 % 3500).train) == 62
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "writers", [np.array([7, 3, 7, 9]), torch.tensor([7, 3, 7, 9]), np.array(["b", "a", "b", "c"])]
)
def test_by_writer_gives_each_writer_a_device(writers: Any) -> None:
    dealt = recipes.by_writer(writers)
    assert [pile.tolist() for pile in dealt.train] == [[1], [0, 2], [3]]
    assert dealt.test is None


@pytest.mark.parametrize("deal", [recipes.legacy2020, recipes.disjoint])
def test_pfedmes_partitions_refuse_other_classes(deal: Callable[..., Dealt]) -> None:
    with refused("3 classes of 50, 50, 50 examples", "needs 10, each of 20", "partition.by_labels"):
        deal(labels_of([50] * 3))
    with refused("10 classes of 19, 50", "each of 20 or more"):
        deal(labels_of([19, *[50] * 9]))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_refuses_seeds_that_the_older_generator_does_not_take(seed: int) -> None:
    with refused(f"seed={seed}", "0 to 4294967295"):
        recipes.disjoint(mnist(), seed=seed)


def test_refuses_more_devices_than_the_first_images_reach_for() -> None:
    with refused("label 0 has 99 examples", "100 devices take 5 each, 100 in all", "fewer devices"):
        recipes.power_law(labels_of([99, *[100] * 9]), devices=100)
    with refused("label 3 has 100 examples", "take 10 each"):
        recipes.permfl(labels_of([*[1000] * 3, 100, *[1000] * 6]), devices=100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"setting": 3}, ["setting=3", "1 (few", "2 (many)"]),
        ({"labels": 11}, ["labels=11", "give 1 to 10"]),
        ({"devices": 0}, ["devices=0", "at least 1"]),
        ({"train_per_label": 0}, ["train_per_label=0", "at least 1 of each"]),
        ({"train_per_label": 7000}, ["label 0 has 6903 examples", "7000 for training"]),
        ({"seed": -1}, ["seed=-1", "a non-negative integer"]),
    ],
)
def test_sfedhp_refuses(options: dict[str, Any], words: list[str]) -> None:
    with refused(*words):
        recipes.sfedhp(mnist(), **options)


@pytest.mark.parametrize("writers", [np.zeros((2, 2)), np.empty(0)])
def test_by_writer_refuses_what_are_not_writers(writers: Any) -> None:
    with refused(f"shape {writers.shape}", "one writer per example"):
        recipes.by_writer(writers)
