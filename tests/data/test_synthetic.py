"""Synthetic data is the papers' to the draw: sizes, features and labels."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from covey.data import synthetic
from covey.data.published.synthetic import _sizes
from covey.data.shards import SPLITS, Shards
from covey.errors import DataError


def totals(shards: Shards) -> torch.Tensor:
    return torch.stack([shards.part(split).counts() for split in SPLITS]).sum(dim=0)


@pytest.mark.parametrize(
    ("sizes", "devices", "smallest", "largest", "total"),
    [
        ("pfedme", 100, 250, 25_810, 205_795),
        ("pfedme", 40, 250, 25_810, 122_235),
        ("fedprox", 30, 50, 5_162, 22_349),
    ],
)
def test_sizes_are_the_papers(
    sizes: str, devices: int, smallest: int, largest: int, total: int
) -> None:
    # without the examples: 205,795 take a while on a busy machine
    held = _sizes(sizes, devices, np.random.RandomState(0))
    assert (min(held), max(held), sum(held)) == (smallest, largest, total)


@pytest.mark.parametrize("sizes", ["pfedme", "fedprox"])
def test_devices_hold_as_many_examples_as_drawn(sizes: str) -> None:
    drawn = _sizes(sizes, 5, np.random.RandomState(0))
    assert totals(synthetic(devices=5, sizes=sizes)).tolist() == drawn


def test_draws_come_in_the_order_of_the_papers_code() -> None:
    draw, devices = np.random.RandomState(3), 4
    sizes = draw.lognormal(4, 2, devices).astype(int) + 50
    mean_w, mean_v = draw.normal(0, 0.7, devices), draw.normal(0, 0.2, devices)
    v = [draw.normal(mean, 1, 60) for mean in mean_v]
    xs, ys = [], []
    for k in range(devices):
        w, b = draw.normal(mean_w[k], 1, (60, 10)), draw.normal(mean_w[k], 1, 10)
        xs.append(
            draw.multivariate_normal(v[k], np.diag([j**-1.2 for j in range(1, 61)]), sizes[k])
        )
        ys += [int(np.argmax(row @ w + b)) for row in xs[-1]]
    shards = synthetic(0.7, 0.2, devices=devices, seed=3, sizes="fedprox")
    assert np.allclose(shards.x.numpy(), np.concatenate(xs).astype(np.float32))
    assert shards.y.tolist() == ys


def test_sizes_may_be_given() -> None:
    shards = synthetic(devices=3, sizes=[8, 1, 20])
    assert totals(shards).tolist() == [8, 1, 20]
    assert (shards.x.shape[1], shards.x.dtype, shards.classes) == (60, torch.float32, 10)


def test_every_device_holds_its_own_consecutive_examples() -> None:
    shards = synthetic(devices=3, sizes=[8, 5, 20])
    held = [
        torch.cat([shards.part(split).held(d) for split in SPLITS]).sort().values.tolist()
        for d in range(3)
    ]
    assert held == [list(range(8)), list(range(8, 13)), list(range(13, 33))]


def test_the_seed_decides() -> None:
    one, again, other = (
        synthetic(devices=2, sizes=[9, 9], seed=seed).fingerprint() for seed in (1, 1, 2)
    )
    assert one == again != other


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": -1}, ["alpha=-1", "standard deviations", "0 or more"]),
        ({"beta": float("nan")}, ["beta=nan", "standard deviations", "0 or more"]),
        ({"devices": 0}, ["devices=0", "give 1 to"]),
        ({"seed": -4}, ["seed=-4", "give 0 to"]),
        ({"sizes": "lognormal"}, ["sizes='lognormal'", "'pfedme', 'fedprox'"]),
        ({"devices": 3, "sizes": [5, 5]}, ["2 numbers", "3 devices", "one per device"]),
        ({"devices": 2, "sizes": [5, 0]}, ["the min is 0", "each at least 1"]),
        ({"devices": 2, "sizes": []}, ["0 numbers", "one per device"]),
    ],
)
def test_refuses(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DataError, match=".*".join(map(re.escape, words))):
        synthetic(**options)
