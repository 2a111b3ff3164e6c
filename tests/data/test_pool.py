"""Devices by offsets into one pair of arrays, against one pair per device."""

import numpy as np
import pytest
import torch

from covey.data import Part, Shards, own, own_pool
from covey.errors import DataError
from tests.visits import Visits

COUNTS = [7, 1, 12, 3, 20]


def arrays() -> tuple[np.ndarray, np.ndarray, list[int]]:
    rng = np.random.default_rng(0)
    total = sum(COUNTS)
    x = rng.normal(size=(total, 3))
    return x, rng.integers(0, 4, total), [0, *np.cumsum(COUNTS).tolist()]


def test_the_same_devices_as_from_a_list() -> None:
    x, y, offsets = arrays()
    pairs = list(zip(np.split(x, offsets[1:-1]), np.split(y, offsets[1:-1]), strict=True))
    listed = own(pairs)
    pooled = own_pool(x, y, offsets)
    assert torch.equal(pooled.x, listed.x)
    assert torch.equal(pooled.y, listed.y)
    assert pooled.classes == listed.classes
    for split in ("train", "validation", "test"):
        assert torch.equal(pooled.part(split).counts(), listed.part(split).counts())
    for device in range(len(COUNTS)):
        held = [pooled.part(split).held(device) for split in ("train", "validation", "test")]
        assert sorted(torch.cat(held).tolist()) == list(range(*offsets[device : device + 2]))


def test_a_device_is_cut_by_its_own_number_alone() -> None:
    x, y, offsets = arrays()
    whole = own_pool(x, y, offsets)
    fewer = own_pool(x, y, offsets[:-1], index=np.arange(offsets[-2]))
    for device in range(len(COUNTS) - 1):
        assert torch.equal(whole.train.held(device), fewer.train.held(device))
    other = own_pool(x, y, offsets, seed=1)
    assert not torch.equal(whole.train.index, other.train.index)
    assert whole.train.held(4).tolist() != sorted(whole.train.held(4).tolist())


def test_devices_may_share_examples() -> None:
    x, y, _ = arrays()
    shards = own_pool(x, y, [0, 3, 6], index=[5, 6, 7, 7, 6, 5], split=(1, 0, 0))
    assert len(shards.x) == len(x)
    assert sorted(shards.train.held(0).tolist()) == sorted(shards.train.held(1).tolist())


@pytest.mark.parametrize(
    ("offsets", "index", "words"),
    [
        ([0, 3], None, "rise from 0 to 43"),
        ([0.0, 43.0], None, "offsets is float64"),
        ([0, 2], [1, 99], "names examples 99"),
        ([0, 2], [[1, 2]], "index is int64 of shape"),
    ],
)
def test_what_does_not_fit_is_named(
    offsets: list[int], index: list[int] | None, words: str
) -> None:
    x, y, _ = arrays()
    with pytest.raises(DataError, match=words):
        own_pool(x, y, offsets, index=index)


def by_device(shards: Shards, devices: list[int]) -> tuple[Part, Part]:
    """The papers' training part, and that of chosen devices, device by device."""
    both = [
        [*shards.train.held(d).tolist(), *shards.validation.held(d).tolist()]
        for d in range(shards.devices)
    ]
    return Part.of(both), Part.of([shards.train.held(d).tolist() for d in devices])


def test_parts_are_made_for_all_devices_at_once() -> None:
    x, y, offsets = arrays()
    shards = own_pool(x, y, offsets)
    devices = [4, 0, 2]
    both, some = by_device(shards, devices)
    for part, expected in ((shards.paper().train, both), (shards.chosen(devices).train, some)):
        assert torch.equal(part.index, expected.index)
        assert torch.equal(part.offset, expected.offset)
    assert len(shards.paper().validation.index) == 0
    labels = shards.labels()
    for device in range(shards.devices):
        expected_labels = np.bincount(shards.y[shards.train.held(device)].numpy(), minlength=4)
        assert labels[device].tolist() == expected_labels.tolist()


def test_many_devices_cost_a_few_operations_each() -> None:
    devices = 4_000
    x = np.zeros((100, 2), dtype=np.float32)
    y = np.arange(100) % 3
    index = np.arange(devices * 10) % 100
    with Visits() as visits:
        own_pool(x, y, np.arange(devices + 1) * 10, index=index)
    assert visits.operations < 300
    assert visits.elements < 200 * len(index)
