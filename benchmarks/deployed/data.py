"""Examples of many devices, drawn in no time: what is measured is not the data."""

from __future__ import annotations

import torch

from covey.data import Part, Shards

FEATURES = 60
CLASSES = 10
_PARTS = (15, 2, 3)
"""Examples of a device to train, to validate and to test on."""


def drawn(devices: int = 12, seed: int = 0) -> Shards:
    """Shards of 20 examples for each device."""
    generator = torch.Generator().manual_seed(seed)
    count = devices * sum(_PARTS)
    x = torch.randn(count, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (count,), generator=generator)
    parts = []
    first = 0
    for size in _PARTS:
        stop = first + devices * size
        parts.append(Part(torch.arange(first, stop), torch.arange(devices + 1) * size))
        first = stop
    train, validation, test = parts
    return Shards(x, y, train, validation, test, classes=CLASSES, name="drawn")
