"""Ways of dealing examples to devices: alike (iid), a few labels each, or by Dirichlet proportions.

Every function returns one array of example numbers per device. No example is given to two devices,
and the same seed gives the same answer, whatever else has drawn random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from covey.data.shards import Part
from covey.errors import DataError, shown

Numbers = npt.NDArray[np.int64]
Labels = Tensor | npt.NDArray[Any]
Split = tuple[float, float, float]
Parts = tuple[Part, Part, Part]
"""What devices train, validate and test on."""

SPLIT: Split = (0.6, 0.15, 0.25)
"""Train, validation, test: with validation joined to train, the papers' 75/25."""
_LARGEST_ALPHA = 1e9


class Use(IntEnum):
    """What a seed is used for: two functions given the same seed draw unrelated numbers."""

    IID = 0
    LABELS = 1
    DIRICHLET = 2
    SPLIT = 3
    SFEDHP = 4
    VALIDATION = 5
    EDGES = 6


def iid(n: int, devices: int, seed: int = 0) -> list[Numbers]:
    """The numbers 0 to n - 1 in random order, dealt in near equal piles.

    >>> [len(pile) for pile in iid(10, devices=3)]
    [4, 3, 3]
    """
    check_devices(devices, n)
    order = generator(seed, Use.IID).permutation(n)
    return np.array_split(order, devices)


def by_labels(
    y: Labels,
    *,
    devices: int,
    labels: int,
    seed: int = 0,
) -> list[Numbers]:
    """A few labels per device: device u owns the labels (u + j) mod classes, for j < labels.

    The examples of a label are shuffled and dealt in near equal piles to the devices that own it;
    an example whose label nobody owns is left out.

    >>> y = np.array([0, 1, 2] * 4)
    >>> [sorted(set(y[pile].tolist())) for pile in by_labels(y, devices=3, labels=2)]
    [[0, 1], [1, 2], [0, 2]]
    """
    y = checked(y)
    check_devices(devices, len(y))
    classes = int(y.max()) + 1
    check_labels(labels, classes)
    draws = generator(seed, Use.LABELS)
    piles: list[list[Numbers]] = [[] for _ in range(devices)]
    for label in range(classes):
        order = draws.permutation(np.flatnonzero(y == label))
        owners = [u for u in range(devices) if (label - u) % classes < labels]
        shares = np.array_split(order, max(len(owners), 1))
        for u, pile in zip(owners, shares, strict=False):
            piles[u].append(pile)
    return joined(piles)


def joined(piles: list[list[Numbers]]) -> list[Numbers]:
    """The pieces of every pile in one array."""
    nothing = np.empty(0, dtype=np.int64)
    return [np.concatenate([nothing, *pieces]) for pieces in piles]


def dirichlet(
    y: Labels, *, devices: int, alpha: float, seed: int = 0, minimum: int = 4
) -> list[Numbers]:
    """Every example, each class dealt by proportions drawn from Dir(alpha) over the devices.

    A small alpha gives a device few labels. A device left with fewer than `minimum` examples gets
    the rest from the largest devices, so that no draw has to be repeated, however small alpha is.

    >>> y = np.repeat([0, 1], 50)
    >>> sum(len(pile) for pile in dirichlet(y, devices=5, alpha=0.01))
    100
    """
    y = checked(y)
    check_devices(devices, len(y))
    if not within(alpha, 0, _LARGEST_ALPHA) or alpha == 0:
        rule = f"Dir(alpha) needs a positive number, {_LARGEST_ALPHA:g} at most"
        raise DataError(f"alpha={shown(alpha)}, but {rule}; 0.1 is uneven, 100 nearly even.")
    if not 0 <= minimum * devices <= len(y):
        raise DataError(
            f"minimum={minimum} examples for each of {devices} devices, "
            f"but there are {len(y)} examples; "
            f"give a minimum of 0 to {len(y) // devices}, or fewer devices."
        )
    draws = generator(seed, Use.DIRICHLET)
    piles: list[list[Numbers]] = [[] for _ in range(devices)]
    for label in np.unique(y):
        examples = np.flatnonzero(y == label)
        shares = draws.dirichlet(np.full(devices, alpha))
        counts = _rounded(shares * len(examples), len(examples))
        pieces = np.split(draws.permutation(examples), counts.cumsum()[:-1])
        for pile, piece in zip(piles, pieces, strict=True):
            pile.append(piece)
    # Shuffled, so that what a large device gives away is a fair sample of what it has.
    return _topped_up([draws.permutation(pile) for pile in joined(piles)], minimum)


def _rounded(shares: npt.NDArray[np.float64], total: int) -> Numbers:
    """Whole numbers that sum to the total: rounded down, then up where most was cut off."""
    counts = shares.astype(np.int64)
    most_cut = np.argsort(counts - shares, kind="stable")
    counts[most_cut[: total - counts.sum()]] += 1
    return counts


def split(
    pieces: Sequence[Numbers], *, split: Split = SPLIT, seed: int = 0, first: int = 0
) -> Parts:
    """Train, validation and test parts of each device's examples.

    The examples are shuffled, and cut by the fractions of `split`. Test and validation get their
    rounded share, train the rest and at least one example. A device's cut depends on the seed and
    its number alone, not on the other devices; `first` is the number of the first.

    >>> [part.counts().tolist() for part in split([np.arange(20), np.arange(20, 24)])]
    [[12, 2], [3, 1], [5, 1]]
    """
    check_split(split)
    cuts = []
    for device, piece in enumerate(pieces, first):
        n = len(piece)
        test = min(round(n * split[2]), max(n - 1, 0))
        validation = min(round(n * split[1]), max(n - 1 - test, 0))
        train = n - validation - test
        shuffled = generator(seed, Use.SPLIT, device).permutation(piece)
        cuts.append(np.split(shuffled, [train, train + validation]))
    parts = [Part.of([cut[number] for cut in cuts]) for number in range(3)]
    return parts[0], parts[1], parts[2]


def _topped_up(piles: list[Numbers], minimum: int) -> list[Numbers]:
    """Piles of at least `minimum` examples, of which the largest piles give to those that lack."""
    sizes = np.array([len(pile) for pile in piles])
    lacking = np.maximum(minimum - sizes, 0)
    kept = _lowered(sizes, int(lacking.sum()))
    spare = np.concatenate([pile[keep:] for pile, keep in zip(piles, kept, strict=True)])
    gifts = np.split(spare, lacking.cumsum()[:-1])
    return [
        np.concatenate([pile[:keep], gift])
        for pile, keep, gift in zip(piles, kept, gifts, strict=True)
    ]


def _lowered(sizes: Numbers, by: int) -> Numbers:
    """The sizes after `by` examples are taken away, one at a time, from the largest size.

    Of equal sizes the first is lowered. So no giver falls below a minimum that there is enough for.
    """
    larger = len(sizes) - np.bincount(sizes).cumsum()  # how many sizes exceed each level
    above = larger[::-1].cumsum()[::-1]  # how many have to go until none exceeds it
    level = int(np.argmax(above <= by))
    kept = np.minimum(sizes, level)
    kept[np.flatnonzero(kept == level)[: by - int(above[level])]] -= 1
    return kept


def generator(seed: int, *address: int) -> np.random.Generator:
    """A generator for a seed and an address, such as a use and a device.

    It depends on nothing else.
    """
    if not whole_within(seed, 0, math.inf):
        raise DataError(f"seed={shown(seed)}; give a non-negative integer.")
    return np.random.default_rng([seed, *address])


def within(value: Any, low: float, high: float) -> bool:
    """Whether a value is a plain number in [low, high]: not NaN, no text, no truth value.

    >>> within(0.5, 0, 1), within(True, 0, 1), within("1", 0, 1), within(math.nan, 0, 1)
    (True, False, False, False)
    """
    kind = isinstance(value, int | float | np.integer | np.floating)
    return kind and not isinstance(value, bool) and bool(low <= value <= high)


def whole_within(value: Any, low: float, high: float) -> bool:
    """Whether a value is a whole number in [low, high]."""
    return isinstance(value, int | np.integer) and within(value, low, high)


def check_range(name: str, value: Any, low: float, high: float, *, whole: bool = True) -> None:
    """An error unless a value is a number in [low, high], and a whole one if `whole`."""
    if not (whole_within if whole else within)(value, low, high):
        raise DataError(f"{name}={shown(value)}; give {low:,} to {high:,}.")


def checked(y: Labels) -> Numbers:
    """Labels as an array of int64; an error if they are none."""
    array = np.asarray(y)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) == 0 or array.min() < 0:
        raise DataError(
            f"y is {array.dtype} of shape {array.shape} (it begins "
            f"{array.reshape(-1)[:5].tolist()}), but dealing by "
            "label needs one axis of integers from 0; give class labels, or use the partition iid."
        )
    return array.astype(np.int64)


def check_labels(labels: int, classes: int) -> None:
    """An error if a device cannot own so many labels."""
    if not whole_within(labels, 1, classes):
        raise DataError(
            f"labels={shown(labels)} per device, but y has {classes} classes; give 1 to {classes}."
        )


def check_devices(devices: int, examples: int) -> None:
    """An error if the examples cannot be dealt to so many devices."""
    if not whole_within(devices, 1, math.inf):
        raise DataError(f"devices={shown(devices)}; give an integer of at least 1.")
    if devices > examples:
        raise DataError(
            f"devices={shown(devices)}, but there are only {examples} examples; "
            f"give at most {examples} devices."
        )


def check_split(split: Split) -> None:
    """An error if a split is not three shares of a whole."""
    listed = isinstance(split, list | tuple) and len(split) == 3
    shares = listed and all(within(share, 0, 1) for share in split)
    if not shares or not math.isclose(sum(split), 1, abs_tol=1e-6):
        raise DataError(
            f"split={shown(split)}; "
            "give three fractions (train, validation, test), none negative, that sum to 1."
        )
