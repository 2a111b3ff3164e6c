"""The digits are the known 1,797, and each device holds what it should."""

from typing import Any

import numpy as np
import pytest
import torch

from covey.data import digits
from covey.data.shards import SPLITS

SHARDS = digits()


def test_the_examples_are_the_known_ones() -> None:
    assert SHARDS.x.shape == (1797, 64)
    assert SHARDS.x.dtype == torch.float32
    assert (float(SHARDS.x.min()), float(SHARDS.x.max())) == (0, 1)
    assert SHARDS.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (SHARDS.x[0, :8] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert float((SHARDS.x * 16).sum()) == 561718
    assert (SHARDS.classes, SHARDS.name) == (10, "digits")


def test_a_device_has_two_labels_in_every_split() -> None:
    for device in range(20):
        for split in SPLITS:
            labels = set(SHARDS.y[SHARDS.part(split).held(device)].tolist())
            assert labels == {device % 10, (device + 1) % 10}


@pytest.mark.parametrize(
    "options", [{}, {"alpha": 0.1}, {"labels": None}, {"devices": 7, "labels": 10}]
)
def test_every_example_is_in_one_place(options: dict[str, Any]) -> None:
    shards = digits(**options)
    places = torch.cat([shards.part(split).index for split in SPLITS])
    assert sorted(places.tolist()) == list(range(1797))


def test_the_partition_follows_the_options() -> None:
    alike, uneven = digits(labels=None), digits(alpha=0.1)
    assert set(alike.paper().train.counts().tolist()) <= {67, 68}
    assert np.ptp(uneven.train.counts().numpy()) > 50
    assert digits(devices=5).devices == 5


def test_the_seed_decides() -> None:
    assert digits(seed=1).fingerprint() == digits(seed=1).fingerprint()
    assert digits(seed=1).fingerprint() != SHARDS.fingerprint()
