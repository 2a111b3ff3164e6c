"""Partitions by name, as a configuration file names them.

A partition deals labels by a seed, by the share of a device's training examples that validates and,
by keyword, by what the user may choose; the usual values are the paper's. Only a partition in which
devices share training examples uses that share, because it has to set validation examples aside
before it deals the rest; the others are cut device by device. `seed` counts repeats: 0 is the
published draw where there is one, s is the draw of the published seed plus s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.data.partitions import partition as ways
from covey.data.partitions import recipes
from covey.data.partitions.partition import SPLIT, Labels, Numbers, Parts, Split, Use
from covey.data.partitions.recipes import Dealt
from covey.data.shards import Part
from covey.errors import DataError, meant, shown


@dataclass(frozen=True)
class _Way:
    """A partition: what it is, who gets what, and what a user may choose of it."""

    about: str
    deal: Callable[..., Dealt]  # of labels, a seed, a share, and the options by keyword
    usual: Mapping[str, Any] = field(default_factory=dict)  # of every option


def _sfedhp(about: str, **chosen: Any) -> _Way:
    def dealt(y: Labels, seed: int, share: float, **own: Any) -> Dealt:
        return recipes.sfedhp(y, validation_share=share, seed=seed, **chosen, **own)

    return _Way(about, dealt, {"devices": 20, "labels": 5})


_DEALS = {
    "iid": _Way(
        "i.i.d. devices: all examples shuffled and dealt in near equal piles",
        lambda y, seed, share, devices: Dealt(ways.iid(len(y), devices, seed)),
        {"devices": 20},
    ),
    "labels": _Way(
        "a few labels per device, in near equal piles",
        lambda y, seed, share, **own: Dealt(ways.by_labels(y, seed=seed, **own)),
        {"devices": 20, "labels": 2},
    ),
    "dirichlet": _Way(
        "each class dealt by proportions drawn from Dir(alpha): small alpha, few labels per device",
        lambda y, seed, share, **own: Dealt(ways.dirichlet(y, seed=seed, **own)),
        {"devices": 20, "alpha": 0.1},
    ),
    "legacy2020": _Way(
        "pFedMe's 20 devices as its code of 2020 dealt them: devices share images, "
        "so that test images leak",
        lambda y, seed, share: recipes.legacy2020(y, seed=1 + seed),
    ),
    "disjoint": _Way(
        "pFedMe's 20 devices with sizes drawn as in its code, every image held by one device",
        lambda y, seed, share: recipes.disjoint(y, seed=1 + seed),
    ),
    "power_law": _Way(
        "FedProx's devices: two labels each, sizes by a power law",
        lambda y, seed, share, devices: recipes.power_law(y, devices=devices, seed=seed),
        {"devices": 1000},
    ),
    "sfedhp1": _sfedhp(
        "sFedHP's setting 1: five labels per device, few images to train on, many to test on",
        setting=1,
    ),
    "sfedhp2": _sfedhp(
        "sFedHP's setting 2: five labels per device, many images to train on, few to test on",
        setting=2,
    ),
    "sfedhp1_shared": _sfedhp(
        "as sfedhp1, but the devices with a label have the same images of it",
        setting=1,
        shared=True,
    ),
    "sfedhp2_shared": _sfedhp(
        "as sfedhp2, but the devices with a label have the same images of it",
        setting=2,
        shared=True,
    ),
    "permfl": _Way(
        "PerMFL's MNIST and Fashion-MNIST: two labels per device, log-normal sizes, "
        "a quarter to test on",
        lambda y, seed, share, **own: recipes.permfl(y, seeds=(5 + seed, 9 + seed), **own),
        {"devices": 40, "labels": 2},
    ),
    "permfl_cifar100": _Way(
        "PerMFL's CIFAR-100: 350 devices with three labels, most with 30 images",
        lambda y, seed, share, **own: recipes.permfl_cifar100(y, seed=1 + seed, **own),
        {"devices": 350, "labels": 3},
    ),
    "permfl_femnist": _Way(
        "PerMFL's FEMNIST: 3,500 devices with three labels, most with 30 images; "
        "shuffled before the split",
        lambda y, seed, share, **own: recipes.permfl_femnist(y, seed=1 + seed, **own),
        {"devices": 3500, "labels": 3},
    ),
    "writer": _Way(
        "one device per writer, where the data names the writers",
        lambda y, seed, share, writers: recipes.by_writer(writers),
        {"writers": None},
    ),
}
PARTITIONS: dict[str, str] = {name: way.about for name, way in _DEALS.items()}


def deal(
    y: Labels,
    *,
    partition: str,
    devices: int | None = None,
    labels: int | None = None,
    alpha: float | None = None,
    split: Split = SPLIT,
    seed: int = 0,
    writers: Labels | None = None,
) -> Parts:
    """Train, validation and test parts of examples with labels y, by a named partition.

    What is None takes the partition's default. Where a partition has test examples of its own,
    `split` only says which share of the others validates. The parts of "legacy2020" leak by
    construction: `overlaps` says how much.

    >>> import numpy as np
    >>> train, validation, test = deal(np.repeat(np.arange(10), 40), partition="labels", devices=10)
    >>> train.devices, train.counts().tolist()[:2], test.counts().tolist()[:2]
    (10, [24, 24], [10, 10])
    """
    ways.check_split(split)
    if not ways.whole_within(seed, 0, math.inf):
        raise DataError(f"seed={shown(seed)}; give a non-negative integer.")
    options = {"devices": devices, "labels": labels, "alpha": alpha, "writers": writers}
    chosen = {name: value for name, value in options.items() if value is not None}
    _check(partition, chosen, len(y))
    share = split[1] / (split[0] + split[1]) if split[1] else 0.0
    way = _DEALS[partition]
    dealt = way.deal(y, seed, share, **{**way.usual, **chosen})
    if dealt.test is None:
        return ways.split(dealt.train, split=split, seed=seed)
    train = _shuffled(dealt.train, seed)
    if dealt.validation is None:
        cuts = [max(len(pile) - round(len(pile) * share), min(len(pile), 1)) for pile in train]
        pairs = list(zip(train, cuts, strict=True))
        train = [pile[:cut] for pile, cut in pairs]
        validation = [pile[cut:] for pile, cut in pairs]
    else:
        validation = _shuffled(dealt.validation, seed)
    return Part.of(train), Part.of(validation), Part.of(dealt.test)


def _shuffled(piles: list[Numbers], seed: int) -> list[Numbers]:
    """Each pile in random order: dealt label by label, cyclic batches would have one label each."""
    return [
        ways.generator(seed, Use.VALIDATION, device).permutation(pile)
        for device, pile in enumerate(piles)
    ]


def _check(partition: str, chosen: dict[str, Any], examples: int) -> None:
    if partition not in _DEALS:
        hint = meant(partition, _DEALS)
        raise DataError(f"partition={partition!r}{hint}; choose one of {', '.join(_DEALS)}.")
    for name, value in chosen.items():
        if name not in _DEALS[partition].usual:
            option = f"{name}={shown(value)}" if isinstance(value, int | float) else name
            users = ", ".join(other for other, way in _DEALS.items() if name in way.usual)
            raise DataError(
                f"{option} is not an option of partition {partition!r}; "
                f"leave it out, or choose a partition that has it: {users}."
            )
    known = len(chosen.get("writers", ()))
    if partition == "writer" and known != examples:
        raise DataError(
            f"partition 'writer' has the writers of {known} of {examples} examples; "
            "give writers=, one for each, or choose another partition if the data does not say "
            "who wrote what."
        )
