"""Each paper's partition of examples to devices, as published.

A published quirk is kept only where a name says so. Labels y are those of all examples, the papers'
training and test sets pooled. Where a paper's code fixes its seed, that seed is the default and
gives the published draw: numpy's and Python's older generators are used to that end. "Labels of
device u" are always (u + j) mod classes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covey.data.partitions.partition import (
    Labels,
    Numbers,
    Use,
    check_devices,
    check_labels,
    checked,
    generator,
    joined,
    within,
)
from covey.data.shards import some
from covey.errors import DataError, shown

Floats = npt.NDArray[np.float64]

PFEDME_DEVICES = 20
PFEDME_LABELS = 2
PFEDME_CLASSES = 10

# Examples of each label that a device trains on and is tested on, by the setting of the paper's
# tables.
SFEDHP = {1: (200, 800), 2: (900, 300)}


@dataclass(frozen=True, eq=False)
class Dealt:
    """The example numbers of each device.

    `test` is None where all examples are in `train`, still to be split. `validation` is None where
    it may be cut from each device's `train`, because no other device trains on the same examples.
    """

    train: list[Numbers]
    test: list[Numbers] | None = None
    validation: list[Numbers] | None = None


def legacy2020(y: Labels, *, seed: int = 1) -> Dealt:
    """20 devices with 2 labels each, as pFedMe's code of 2020 dealt them.

    Most images are held by several devices. That code counts positions in a mask of true and false,
    so that a device starts at the image 0 or 1 of its label, not where the last one stopped. Split
    per device, one device's test image is another's training image. The sizes go to devices in an
    order that is not the one of the labels they were drawn for. Labels stay true here; the code
    gives one image of most devices the label of the image before. Use this to compare with that
    paper alone.

    >>> held = legacy2020(np.repeat(np.arange(10), 100)).train
    >>> sum(map(len, held)), len(np.unique(np.concatenate(held)))
    (970, 331)
    """
    y, pools = _ten_pools(y)
    sizes = _pfedme_sizes(pools, seed).T.reshape(PFEDME_DEVICES, PFEDME_LABELS)
    # What was left of the last label's mask, one entry per label.
    start = y[:PFEDME_CLASSES] == PFEDME_CLASSES - 1
    piles: list[list[Numbers]] = [[] for _ in sizes]
    for u, j in np.ndindex(sizes.shape):
        label = (u + j) % PFEDME_CLASSES
        if start[label] + sizes[u, j] < len(pools[label]):
            piles[u].append(pools[label][int(start[label]) : sizes[u, j]])
            start[label] |= sizes[u, j] > 0
    return Dealt(joined(piles))


def disjoint(y: Labels, *, seed: int = 1) -> Dealt:
    """20 devices with 2 labels each; every image is held by one device.

    Sizes are drawn as for `legacy2020`. A size goes to a device that owns the label it was drawn
    for, and each device starts where the last one stopped.

    >>> held = disjoint(np.repeat(np.arange(10), 100)).train
    >>> sum(map(len, held)), len(np.unique(np.concatenate(held)))
    (1000, 1000)
    """
    y, pools = _ten_pools(y)
    owned = _owned(PFEDME_DEVICES, PFEDME_LABELS, PFEDME_CLASSES)
    piles: list[list[Numbers]] = [[] for _ in owned]
    for label, sizes in enumerate(_pfedme_sizes(pools, seed)):
        pieces = np.split(pools[label], sizes.cumsum()[:-1])
        for u, piece in zip(_owners(label, owned), pieces, strict=True):
            piles[u].append(piece)
    return Dealt(joined(piles))


def power_law(y: Labels, *, devices: int = 1000, seed: int = 0) -> Dealt:
    """FedProx's MNIST: 2 labels per device with sizes that follow a power law.

    A device has 5 images of each label, then shares of the rest in log-normal(0, 2) proportions.
    The published code is not seeded, so no seed gives its devices.

    >>> held = power_law(np.repeat(np.arange(10), 100), devices=40).train
    >>> min(map(len, held)), max(map(len, held))
    (10, 64)
    """
    pools, owned = _pools_and_owned(y, devices, labels=2)
    classes = len(pools)
    groups = -(-devices // classes)
    drawn = _older(seed).lognormal(0, 2, (classes, groups, 2))
    sizes = np.array([len(pool) for pool in pools])
    left = sizes - 5 * np.bincount(owned.reshape(-1), minlength=classes)
    shares = _shares(left, drawn)
    group = np.arange(devices) // classes
    more = shares[owned, group[:, None], [0, 1]].astype(np.int64)
    return Dealt(_in_turn(pools, owned, first=5, more=more))


def sfedhp(
    y: Labels,
    *,
    setting: int = 1,
    devices: int = 20,
    labels: int = 5,
    train_per_label: int | None = None,
    test_per_label: int | None = None,
    validation_share: float = 0.0,
    shared: bool = False,
    seed: int = 0,
) -> Dealt:
    """sFedHP's settings 1 (few images to train on) and 2 (many), by pools for each use.

    Per device and label, setting 1 has 200 images for training and 800 for testing, setting 2 has
    900 and 300; half of that where classes have 6,000 images or fewer on average, as in CIFAR-10.
    `validation_share` of the training images of each device and label validate instead. Each
    label's images are first cut into a test, a validation and a training pool. Where they are too
    few for all owners (MNIST), the pools are in the proportion of what is asked, and devices share
    images, as evenly as can be, but only within a pool: nobody trains on what tests or validates
    anybody. One device never has an image twice. The paper says neither how images repeat nor which
    labels a device owns. With `shared` a label has no more images than one device is asked for, so
    that all its owners have the same ones: its "200 training samples in each class" to the letter.

    >>> dealt = sfedhp(np.repeat(np.arange(10), 60), train_per_label=2, test_per_label=3)
    >>> [len(pile) for pile in dealt.train[:3]], [len(pile) for pile in dealt.test[:3]]
    ([10, 10, 10], [15, 15, 15])
    """
    pools, owned = _pools_and_owned(y, devices, labels)
    if setting not in SFEDHP:
        raise DataError(
            f"setting={setting}; sFedHP has the settings 1 (few images to train on) and 2 (many)."
        )
    if not within(validation_share, 0, 1):
        raise DataError(f"validation_share={shown(validation_share)}; give a share from 0 to 1.")
    half = sum(map(len, pools)) <= 6000 * len(pools)
    asked, test = (each // 2 if half else each for each in SFEDHP[setting])
    asked = asked if train_per_label is None else train_per_label
    test = test if test_per_label is None else test_per_label
    if min(asked, test) < 1:
        raise DataError(f"train_per_label={asked}, test_per_label={test}; give at least 1 of each.")
    validation = min(round(asked * validation_share), asked - 1)
    train = asked - validation
    draws = generator(seed, Use.SFEDHP)
    trained: list[list[Numbers]] = [[] for _ in owned]
    validated: list[list[Numbers]] = [[] for _ in owned]
    tested: list[list[Numbers]] = [[] for _ in owned]
    for label, pool in enumerate(pools):
        owners = _owners(label, owned)
        if len(owners) and asked + test > len(pool):
            raise DataError(
                f"label {label} has {len(pool)} examples, but sFedHP's partition gives every owner "
                f"{asked} for training and {test} for testing; give recipes.sfedhp a smaller "
                "train_per_label and test_per_label."
            )
        order = draws.permutation(pool)
        if shared:
            order = order[: test + asked]
        cut = _pool_size(len(order), len(owners), test, rest=asked)
        _hand_out(order[:cut], owners, test, tested)
        others = order[cut:]
        cut = _pool_size(len(others), len(owners), validation, rest=train)
        _hand_out(others[:cut], owners, validation, validated)
        _hand_out(others[cut:], owners, train, trained)
    return Dealt(joined(trained), joined(tested), joined(validated))


def permfl(
    y: Labels,
    *,
    devices: int = 40,
    labels: int = 2,
    seeds: tuple[int, int] = (5, 9),
) -> Dealt:
    """PerMFL's MNIST and Fashion-MNIST, 25 % for testing.

    A device has 10 images per label, then a log-normal share and 300 to 600 more. A device gets its
    share only if the label has that many left, and double if there are at most 20 devices. The
    seeds are Python's and numpy's; the paper's code has 1 and 1 for CIFAR-10.

    >>> dealt = permfl(np.repeat(np.arange(10), 700), devices=10)
    >>> [len(pile) for pile in dealt.train[:3]], [len(pile) for pile in dealt.test[:3]]
    ([15, 523, 15], [5, 175, 5])
    """
    pools, owned = _pools_and_owned(y, devices, labels)
    drawn = _older(seeds[1]).lognormal(0, 2, (len(pools), devices, labels))
    # Though 10 images per device are gone: as published.
    left = np.maximum([len(pool) - devices for pool in pools], 0)
    group = np.arange(devices) // max(devices // len(pools), 1)
    shares = _shares(left, drawn)[owned, group[:, None], np.arange(labels)]
    draws = random.Random(seeds[0])
    more = shares.astype(np.int64) + _whole_numbers(draws, 300, 600, owned.shape)
    return _permfl(pools, owned, more, draws)


def permfl_cifar100(
    y: Labels,
    *,
    devices: int = 350,
    labels: int = 3,
    seed: int = 1,
) -> Dealt:
    """PerMFL's CIFAR-100, 25 % for testing.

    A device has 10 images per label, then 300 to 600 more if the label has them left. A class has
    600 images, which is enough for one such draw or none, so that most devices keep 30 images.

    >>> dealt = permfl_cifar100(np.repeat(np.arange(5), 600), devices=30)
    >>> held = [len(pile) for pile in dealt.train]
    >>> held.count(22), max(held)
    (27, 588)
    """
    pools, owned = _pools_and_owned(y, devices, labels)
    draws = random.Random(seed)
    more = _whole_numbers(draws, 300, 600, owned.shape)
    return _permfl(pools, owned, more, draws)


def permfl_femnist(
    y: Labels,
    *,
    devices: int = 3500,
    labels: int = 3,
    seed: int = 1,
    shuffle: bool = True,
) -> Dealt:
    """PerMFL's FEMNIST (EMNIST by class), 25 % for testing.

    A device has 10 images per label, then 100 to 3,000 more if the label has them left.
    `shuffle=False` is the paper's code, which cuts a device's images in the order they were dealt:
    a device of 30 is tested on 8 images of its first label and trained on all three. Accuracies
    with and without cannot be compared.

    >>> y = np.repeat(np.arange(5), 100)
    >>> tests = [permfl_femnist(y, devices=10, shuffle=s).test[0] for s in (True, False)]
    >>> [np.unique(y[test]).tolist() for test in tests]
    [[0, 1, 2], [0]]
    """
    pools, owned = _pools_and_owned(y, devices, labels)
    draws = random.Random(seed)
    more = _whole_numbers(draws, 100, 3000, owned.shape)
    return _permfl(pools, owned, more, draws if shuffle else None)


def by_writer(writers: Labels) -> Dealt:
    """One device per writer, in the order of the writers' numbers or names.

    >>> [pile.tolist() for pile in by_writer(np.array([7, 3, 7, 7])).train]
    [[1], [0, 2, 3]]
    """
    array = np.asarray(writers)
    if array.ndim != 1 or len(array) == 0:
        raise DataError(
            f"writers has shape {array.shape}; give one writer per example, on one axis."
        )
    _, counts = np.unique(array, return_counts=True)
    return Dealt(np.split(np.argsort(array, kind="stable"), counts.cumsum()[:-1]))


def _pools(y: Numbers) -> list[Numbers]:
    """The examples of each label, in their order."""
    ends = np.bincount(y).cumsum()
    return np.split(np.argsort(y, kind="stable"), ends[:-1])


def _owned(devices: int, labels: int, classes: int) -> Numbers:
    """The labels of each device, [devices, labels]."""
    return (np.arange(devices)[:, None] + np.arange(labels)) % classes


def _owners(label: int, owned: Numbers) -> Numbers:
    """The devices that own a label."""
    return np.flatnonzero((owned == label).any(axis=1))


def _shares(left: Numbers, drawn: Floats) -> Floats:
    """What is left of each label, in the proportions that were drawn for it."""
    whole = drawn.sum(axis=(1, 2), keepdims=True)
    shares: Floats = left[:, None, None] * drawn / whole
    return shares


def _pools_and_owned(y: Labels, devices: int, labels: int) -> tuple[list[Numbers], Numbers]:
    y = checked(y)
    check_devices(devices, len(y))
    pools = _pools(y)
    check_labels(labels, len(pools))
    return pools, _owned(devices, labels, len(pools))


def _ten_pools(y: Labels) -> tuple[Numbers, list[Numbers]]:
    y = checked(y)
    pools = _pools(y)
    counts = [len(pool) for pool in pools]
    if len(pools) != PFEDME_CLASSES or min(counts) < PFEDME_DEVICES:
        raise DataError(
            f"y has {len(pools)} classes of {some(counts)} examples, "
            f"but pFedMe's partition needs {PFEDME_CLASSES}, each of "
            f"{PFEDME_DEVICES} or more; use partition.by_labels instead."
        )
    return y, pools


def _pfedme_sizes(pools: list[Numbers], seed: int) -> Numbers:
    """Four sizes for each label that sum to the number of its images, [10, 4].

    Each is between a fifth and a half of the images left; the last has the rest.
    """
    draws = _older(seed)
    owners = PFEDME_DEVICES * PFEDME_LABELS // PFEDME_CLASSES
    sizes = np.zeros((len(pools), owners), dtype=np.int64)
    for label, pool in enumerate(pools):
        left = len(pool)
        for owner in range(owners - 1):
            sizes[label, owner] = draws.randint(left // (owners + 1), left // 2, dtype=np.int64)
            left -= sizes[label, owner]
        sizes[label, -1] = left
    return sizes


def _in_turn(
    pools: list[Numbers],
    owned: Numbers,
    *,
    first: int,
    more: Numbers,
) -> list[Numbers]:
    """Each device's images: `first` of every label it owns, then `more` [devices, labels].

    A label gives more only while it has images left. Each device starts where the last one stopped.
    As in the published codes, the last image of a label goes to nobody.
    """
    asked = first * np.bincount(owned.reshape(-1), minlength=len(pools))
    short = [label for label, pool in enumerate(pools) if asked[label] > len(pool)]
    if short:
        raise DataError(
            f"label {short[0]} has {len(pools[short[0]])} examples, "
            f"but its owners among the {len(owned)} devices take {first} "
            f"each, {asked[short[0]]} in all; give fewer devices."
        )
    taken = np.zeros(len(pools), dtype=np.int64)
    piles: list[list[Numbers]] = [[] for _ in owned]
    for count, last in ((np.full_like(more, first), 0), (more, 1)):
        for u, j in np.ndindex(owned.shape):
            label = owned[u, j]
            n = count[u, j]
            if taken[label] + n + last <= len(pools[label]):
                piles[u].append(pools[label][taken[label] : taken[label] + n])
                taken[label] += n
    return joined(piles)


def _permfl(
    pools: list[Numbers], owned: Numbers, more: Numbers, draws: random.Random | None
) -> Dealt:
    """10 images per label and `more`, of which the first quarter, rounded up, is for testing.

    There is twice as much more if there are at most 20 devices. A device's images are shuffled
    before, unless there is no generator.
    """
    if len(owned) <= 20:
        more = more * 2
    train = []
    test = []
    for pile in _in_turn(pools, owned, first=10, more=more):
        if draws is not None:
            order = pile.tolist()
            draws.shuffle(order)
            pile = np.array(order, dtype=np.int64)
        cut = len(pile) - int(0.75 * len(pile))
        train.append(pile[cut:])
        test.append(pile[:cut])
    return Dealt(train, test)


def _whole_numbers(
    draws: random.Random,
    low: int,
    high: int,
    shape: tuple[int, ...],
) -> Numbers:
    """Whole numbers from low to high, both included, in the order of the published loops."""
    numbers = [draws.randint(low, high) for _ in np.ndindex(shape)]
    return np.array(numbers, dtype=np.int64).reshape(shape)


def _pool_size(images: int, owners: int, each: int, *, rest: int) -> int:
    """The number of `images` for a use that takes `each` per owner, beside `rest`.

    Where there are too few images, the use gets its share of them.
    """
    if owners * (each + rest) <= images:
        return owners * each
    return min(max(round(images * each / (each + rest)), each), images - rest)


def _hand_out(
    images: Numbers,
    owners: Numbers,
    each: int,
    piles: list[list[Numbers]],
) -> None:
    """`each` images to every owner's pile in turn, from the beginning again when they run out."""
    for turn, owner in enumerate(owners if each else ()):
        places = np.arange(turn * each, (turn + 1) * each) % len(images)
        piles[owner].append(images[places])


def _older(seed: int) -> np.random.RandomState:
    """The generator that the published codes used."""
    if not 0 <= seed < 2**32:
        raise DataError(f"seed={shown(seed)}; give an integer from 0 to {2**32 - 1}.")
    return np.random.RandomState(seed)
