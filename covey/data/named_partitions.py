"""Partitions by name, as a configuration file names them.

A partition's function takes the labels, a seed, the share of a device's training examples that
validates and, by keyword, what the user may choose; its defaults are the paper's. Only a partition
in which devices share training examples uses that share, because it has to set validation examples
aside before it deals the rest; the others are cut device by device. `seed` counts repeats: 0 is the
published draw where there is one, s is the draw of the published seed plus s.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from covey.data import partition as ways
from covey.data import recipes
from covey.data.partition import SPLIT, Labels, Numbers, Split, Use
from covey.data.recipes import Dealt
from covey.data.shards import Part
from covey.errors import DataError, meant, shown

PARTITIONS: dict[str, str] = {
    "iid": "i.i.d. devices: all examples shuffled and dealt in near equal piles",
    "labels": "a few labels per device, in near equal piles",
    "dirichlet": "each class dealt by proportions drawn from Dir(alpha): small alpha, "
    "few labels per device",
    "legacy2020": "pFedMe's 20 devices as its code of 2020 dealt them: devices share images, "
    "so that test images leak",
    "disjoint": "pFedMe's 20 devices with sizes drawn as in its code, "
    "every image held by one device",
    "power_law": "FedProx's devices: two labels each, sizes by a power law",
    "sfedhp1": "sFedHP's setting 1: five labels per device, few images to train on, "
    "many to test on",
    "sfedhp2": "sFedHP's setting 2: five labels per device, many images to train on, "
    "few to test on",
    "sfedhp1_shared": "as sfedhp1, but the devices with a label have the same images of it",
    "sfedhp2_shared": "as sfedhp2, but the devices with a label have the same images of it",
    "permfl": "PerMFL's MNIST and Fashion-MNIST: two labels per device, log-normal sizes, "
    "a quarter to test on",
    "permfl_cifar100": "PerMFL's CIFAR-100: 350 devices with three labels, most with 30 images",
    "permfl_femnist": "PerMFL's FEMNIST: 3,500 devices with three labels, most with 30 images; "
    "shuffled before the split",
    "writer": "one device per writer, where the data names the writers",
}


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
) -> tuple[Part, Part, Part]:
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
    options = {
        "devices": devices,
        "labels": labels,
        "alpha": alpha,
        "writers": writers,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    _check(partition, chosen, len(y))
    share = split[1] / (split[0] + split[1]) if split[1] else 0.0
    dealt = _DEALS[partition](y, seed, share, **chosen)
    if dealt.test is None:
        return ways.split(dealt.train, split=split, seed=seed)
    if dealt.validation is None:
        train, validation = _validated(dealt.train, share, seed)
    else:
        train = _shuffled(dealt.train, seed)
        validation = _shuffled(dealt.validation, seed)
    return Part.of(train), Part.of(validation), Part.of(dealt.test)


def _shuffled(piles: list[Numbers], seed: int) -> list[Numbers]:
    """Each pile in random order: dealt label by label, cyclic batches would have one label each."""
    draws = [ways.generator(seed, Use.VALIDATION, device) for device in range(len(piles))]
    return [draw.permutation(pile) for draw, pile in zip(draws, piles, strict=True)]


def _validated(
    piles: list[Numbers], share: float, seed: int
) -> tuple[list[Numbers], list[Numbers]]:
    """Each pile cut in two, train and validation, of which validation has this share."""
    shuffled = _shuffled(piles, seed)
    cuts = [max(len(pile) - round(len(pile) * share), min(len(pile), 1)) for pile in piles]
    pairs = list(zip(shuffled, cuts, strict=True))
    return [pile[:cut] for pile, cut in pairs], [pile[cut:] for pile, cut in pairs]


def _iid(y: Labels, seed: int, share: float, *, devices: int = 20) -> Dealt:
    return Dealt(ways.iid(len(y), devices, seed))


def _labels(y: Labels, seed: int, share: float, *, devices: int = 20, labels: int = 2) -> Dealt:
    return Dealt(ways.by_labels(y, devices=devices, labels=labels, seed=seed))


def _dirichlet(
    y: Labels, seed: int, share: float, *, devices: int = 20, alpha: float = 0.1
) -> Dealt:
    return Dealt(ways.dirichlet(y, devices=devices, alpha=alpha, seed=seed))


def _legacy2020(y: Labels, seed: int, share: float) -> Dealt:
    return recipes.legacy2020(y, seed=1 + seed)


def _disjoint(y: Labels, seed: int, share: float) -> Dealt:
    return recipes.disjoint(y, seed=1 + seed)


def _power_law(y: Labels, seed: int, share: float, *, devices: int = 1000) -> Dealt:
    return recipes.power_law(y, devices=devices, seed=seed)


def _sfedhp(
    y: Labels,
    setting: int,
    seed: int,
    share: float,
    devices: int,
    labels: int,
    *,
    shared: bool = False,
) -> Dealt:
    return recipes.sfedhp(
        y,
        setting=setting,
        devices=devices,
        labels=labels,
        validation_share=share,
        shared=shared,
        seed=seed,
    )


def _sfedhp1(y: Labels, seed: int, share: float, *, devices: int = 20, labels: int = 5) -> Dealt:
    return _sfedhp(y, 1, seed, share, devices, labels)


def _sfedhp2(y: Labels, seed: int, share: float, *, devices: int = 20, labels: int = 5) -> Dealt:
    return _sfedhp(y, 2, seed, share, devices, labels)


def _sfedhp1_shared(
    y: Labels, seed: int, share: float, *, devices: int = 20, labels: int = 5
) -> Dealt:
    return _sfedhp(y, 1, seed, share, devices, labels, shared=True)


def _sfedhp2_shared(
    y: Labels, seed: int, share: float, *, devices: int = 20, labels: int = 5
) -> Dealt:
    return _sfedhp(y, 2, seed, share, devices, labels, shared=True)


def _permfl(y: Labels, seed: int, share: float, *, devices: int = 40, labels: int = 2) -> Dealt:
    return recipes.permfl(y, devices=devices, labels=labels, seeds=(5 + seed, 9 + seed))


def _permfl_cifar100(
    y: Labels, seed: int, share: float, *, devices: int = 350, labels: int = 3
) -> Dealt:
    return recipes.permfl_cifar100(y, devices=devices, labels=labels, seed=1 + seed)


def _permfl_femnist(
    y: Labels, seed: int, share: float, *, devices: int = 3500, labels: int = 3
) -> Dealt:
    return recipes.permfl_femnist(y, devices=devices, labels=labels, seed=1 + seed)


def _writer(y: Labels, seed: int, share: float, *, writers: Labels) -> Dealt:
    return recipes.by_writer(writers)


_DEALS: dict[str, Callable[..., Dealt]] = {
    "iid": _iid,
    "labels": _labels,
    "dirichlet": _dirichlet,
    "legacy2020": _legacy2020,
    "disjoint": _disjoint,
    "power_law": _power_law,
    "sfedhp1": _sfedhp1,
    "sfedhp2": _sfedhp2,
    "sfedhp1_shared": _sfedhp1_shared,
    "sfedhp2_shared": _sfedhp2_shared,
    "permfl": _permfl,
    "permfl_cifar100": _permfl_cifar100,
    "permfl_femnist": _permfl_femnist,
    "writer": _writer,
}


def _takes(partition: str) -> list[str]:
    """What a user may choose of a partition: the keywords of its function."""
    parameters = inspect.signature(_DEALS[partition]).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def _check(partition: str, chosen: dict[str, Any], examples: int) -> None:
    if partition not in _DEALS:
        hint = meant(partition, _DEALS)
        raise DataError(f"partition={partition!r}{hint}; choose one of {', '.join(_DEALS)}.")
    for name, value in chosen.items():
        if name not in _takes(partition):
            option = name
            if isinstance(value, int | float):
                option = f"{name}={shown(value)}"
            users = ", ".join(other for other in _DEALS if name in _takes(other))
            raise DataError(
                f"{option} is not an option of partition {partition!r}; "
                f"leave it out, or choose a partition that has it: {users}."
            )
    if partition == "writer" and len(chosen.get("writers", ())) != examples:
        raise DataError(
            f"partition 'writer' has the writers of {len(chosen.get('writers', ()))} of "
            f"{examples} examples; "
            "give writers=, one for each, "
            "or choose another partition if the data does not say who wrote what."
        )
