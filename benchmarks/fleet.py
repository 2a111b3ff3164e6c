"""Data of `covey run benchmarks/fleet.toml`: many devices that hold examples of one pool, by number."""

from __future__ import annotations

import numpy as np

from covey.data import Shards, own_pool

POOL = 60_000
EACH = 15
"""Examples of a device: 10 to train on, 2 for validation, 3 to test."""


def pool(devices: int = 100_000, seed: int = 0) -> Shards:
    """Devices with examples of 784 numbers and ten classes, drawn at random from a pool."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((POOL, 784), dtype=np.float32)
    y = draw.integers(0, 10, POOL)
    index = draw.integers(0, POOL, devices * EACH)
    offsets = np.arange(devices + 1) * EACH
    split = (10 / EACH, 2 / EACH, 3 / EACH)
    return own_pool(x, y, offsets, index=index, split=split, seed=seed, classes=10, name="pool")
