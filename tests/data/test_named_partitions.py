"""Partitions by name: defaults, published seeds, the split, and parameters that a partition does
not take.
"""

from typing import Any

import numpy as np
import pytest
import torch

from covey.data import Shards, partition, recipes
from covey.data.partitions.leaks import overlaps
from covey.data.partitions.named_partitions import _DEALS, PARTITIONS, deal
from covey.data.partitions.partition import SPLIT, Split
from covey.data.shards import Part
from tests.data.tiny import labels_of
from tests.given import refused

Parts = tuple[Part, Part, Part]


Y = labels_of([1200] * 10)
# devices, where the default takes more examples
FEW = {"power_law": 50, "permfl_cifar100": 50, "permfl_femnist": 50}
LEAKING = {"legacy2020": "most images go to several devices, before each splits its own"}
SHARED = ("sfedhp1_shared", "sfedhp2_shared")
POOLED = ("sfedhp1", "sfedhp2", *SHARED)  # devices share images: validation has a pool of its own
OWN_TEST = [*POOLED, "permfl", "permfl_cifar100", "permfl_femnist"]


def dealt(name: str, **options: Any) -> Parts:
    if name == "writer":
        options = {"writers": np.arange(len(Y)) % 30, **options}
    return deal(Y, partition=name, **{"devices": FEW.get(name), **options})


def shards(parts: Parts) -> Shards:
    return Shards(torch.zeros(len(Y), 1), torch.from_numpy(Y), *parts, classes=10)


def same(one: Parts, other: Parts) -> bool:
    return all(
        a.index.equal(b.index) and a.offset.equal(b.offset) for a, b in zip(one, other, strict=True)
    )


def test_every_partition_says_what_it_is() -> None:
    assert all(PARTITIONS.values())


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_partition_makes_shards(name: str) -> None:
    made = shards(dealt(name))
    assert int(made.test.counts().min()) > 0
    for device in range(made.devices):
        held = torch.cat(
            [made.part(split).held(device) for split in ("train", "validation", "test")]
        )
        assert len(held.unique()) == len(held)


@pytest.mark.parametrize("split", [SPLIT, (0.3, 0.5, 0.2)])
@pytest.mark.parametrize("name", PARTITIONS)
def test_nobody_trains_on_what_tests_or_validates_anybody(name: str, split: Split) -> None:
    """A law of all partitions but those declared to leak; all three parts hold examples."""
    parts = dealt(name, split=split)
    train, validation, test = (set(part.index.tolist()) for part in parts)
    assert min(map(len, (train, validation, test))) >= 30
    found = overlaps(shards(parts))
    if name in LEAKING:
        assert train & test
        assert train & validation
        assert found.leaks > 0
        assert found.validation_leaks > 0
        return
    assert not train & test
    assert not train & validation
    assert not validation & test
    assert found.leaks == found.validation_leaks == found.reused == 0


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_papers_protocol_trains_on_no_test_example_and_on_none_twice(name: str) -> None:
    made = shards(dealt(name))
    paper = made.paper()
    assert paper.validation.counts().sum() == 0
    assert paper.train.counts().equal(made.train.counts() + made.validation.counts())
    for device in range(made.devices):
        assert len(paper.train.held(device).unique()) == len(paper.train.held(device))
    assert name in LEAKING or not set(paper.train.index.tolist()) & set(paper.test.index.tolist())


@pytest.mark.parametrize("name", ["sfedhp1", "sfedhp2"])
def test_validation_of_shared_images_comes_from_a_pool_of_its_own(name: str) -> None:
    """On MNIST's counts, where images repeat: 51 and 72 % of them used to be training images too."""
    y = labels_of([6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958])
    train, validation, test = deal(y, partition=name)
    each = {"sfedhp1": (160, 40, 800), "sfedhp2": (720, 180, 300)}[name]
    for part, count in zip((train, validation, test), each, strict=True):
        assert part.counts().tolist() == [5 * count] * 20
        for device in range(20):
            counts = np.bincount(y[part.held(device).numpy()], minlength=10)
            assert sorted(counts.tolist()) == [0] * 5 + [count] * 5
    assert not set(validation.index.tolist()) & set(train.index.tolist())
    assert deal(y, partition=name, split=(0.75, 0, 0.25))[2].index.equal(test.index)


@pytest.mark.parametrize("name", SHARED)
def test_devices_with_a_label_have_the_same_images_of_it(name: str) -> None:
    parts = deal(Y, partition=name, labels=2)
    each = {"sfedhp1_shared": (80, 20, 400), "sfedhp2_shared": (360, 90, 150)}[name]
    for part, count in zip(parts, each, strict=True):
        assert part.counts().tolist() == [2 * count] * 20
        assert len(part.index.unique()) == 10 * count
    train, validation, test = (set(part.index.tolist()) for part in parts)
    assert not train & validation
    assert not train & test
    assert not validation & test


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_seed_decides(name: str) -> None:
    assert same(dealt(name, seed=2), dealt(name, seed=2))
    assert not same(dealt(name, seed=2), dealt(name, seed=3))


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("iid", 20),
        ("labels", 20),
        ("dirichlet", 20),
        ("legacy2020", 20),
        ("disjoint", 20),
        ("sfedhp1", 20),
        ("permfl", 40),
    ],
)
def test_devices_by_default(name: str, devices: int) -> None:
    assert dealt(name)[0].devices == devices


def test_defaults_of_the_large_ones() -> None:
    y = labels_of([1800] * 62)
    assert deal(y, partition="permfl_femnist")[0].devices == 3500
    assert deal(y, partition="permfl_cifar100")[0].devices == 350
    assert deal(y, partition="power_law")[0].devices == 1000


def test_parameters_arrive() -> None:
    assert same(
        dealt("labels", devices=7, labels=3, split=(0.5, 0.25, 0.25), seed=4),
        partition.split(
            partition.by_labels(Y, devices=7, labels=3, seed=4), split=(0.5, 0.25, 0.25), seed=4
        ),
    )
    assert same(
        dealt("dirichlet", devices=9, alpha=0.7),
        partition.split(partition.dirichlet(Y, devices=9, alpha=0.7), split=SPLIT),
    )


@pytest.mark.parametrize("seed", [0, 3])
def test_seed_0_is_the_published_draw(seed: int) -> None:
    for name, recipe in (("legacy2020", recipes.legacy2020), ("disjoint", recipes.disjoint)):
        assert same(
            dealt(name, seed=seed), partition.split(recipe(Y, seed=1 + seed).train, seed=seed)
        )
    for name, test in (
        ("permfl", recipes.permfl(Y, seeds=(5 + seed, 9 + seed)).test),
        ("permfl_cifar100", recipes.permfl_cifar100(Y, devices=50, seed=1 + seed).test),
        ("permfl_femnist", recipes.permfl_femnist(Y, devices=50, seed=1 + seed).test),
    ):
        assert test is not None
        assert dealt(name, seed=seed)[2].index.equal(Part.of(test).index)


@pytest.mark.parametrize("name", OWN_TEST)
def test_validation_is_carved_out_of_training(name: str) -> None:
    whole, nothing, test = dealt(name, split=(0.75, 0.0, 0.25))
    train, validation, again = dealt(name)
    assert nothing.counts().sum() == 0
    assert test.index.equal(again.index)
    for device in range(train.devices):
        both = torch.cat([train.held(device), validation.held(device)])
        assert len(both) == len(whole.held(device))
        assert name in POOLED or both.sort().values.equal(whole.held(device).sort().values)
        assert len(validation.held(device)) == round(0.2 * len(both))  # 0.15 of 0.75


def test_training_keeps_one_example_whatever_the_split() -> None:
    train, validation, _ = dealt("permfl", split=(0.0, 0.75, 0.25))
    assert set(train.counts().tolist()) == {1}
    assert int(validation.counts().min()) > 0
    assert dealt("permfl", split=(0.0, 0.0, 1.0))[1].counts().sum() == 0


def test_targets_may_be_dealt_alike() -> None:
    assert deal(torch.zeros(40), partition="iid", devices=4)[0].counts().tolist() == [6] * 4


GIVEN: dict[str, Any] = {"devices": 30, "labels": 2, "alpha": 0.5, "writers": np.arange(len(Y))}


@pytest.mark.parametrize("name", PARTITIONS)
def test_refuses_what_a_partition_does_not_take(name: str) -> None:
    for parameter in GIVEN.keys() - set(_DEALS[name].usual):
        shown = parameter if parameter == "writers" else f"{parameter}={GIVEN[parameter]}"
        users = ", ".join(other for other in PARTITIONS if parameter in _DEALS[other].usual)
        with refused(
            shown,
            f"partition {name!r}",
            "leave it out",
            f"choose a partition that has it: {users}.",
        ):
            deal(Y, partition=name, **{parameter: GIVEN[parameter]})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "shards"}, ["partition='shards'", "iid, labels, dirichlet"]),
        ({"partition": "writer"}, ["writers of 0 of 12000", "writers=, one for each"]),
        ({"partition": "writer", "writers": np.arange(5)}, ["writers of 5 of 12000"]),
        ({"partition": "iid", "seed": -1}, ["seed=-1", "a non-negative integer"]),
        ({"partition": "legacy2020", "seed": -1}, ["seed=-1", "a non-negative integer"]),
        ({"partition": "permfl", "split": (0.5, 0.1, 0.1)}, ["split=(0.5, 0.1, 0.1)", "sum to 1"]),
        ({"partition": "iid", "devices": 0}, ["devices=0", "at least 1"]),
    ],
)
def test_refuses(options: dict[str, Any], words: list[str]) -> None:
    with refused(*words):
        deal(Y, **options)
