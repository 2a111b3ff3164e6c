"""Facts of all devices that a node needs and cannot see in its own examples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from covey.data import Part, Shards
from covey.data.shards import SPLITS
from covey.errors import DataError

BLOCK = 256
"""Full passes go through blocks of at most so many examples."""
_BLOCK_STEP = 32  # and of a multiple of so many


def block_size(part: Part) -> int:
    """Enough for the largest device, up to a limit that caps memory whatever a device holds."""
    counts = part.counts()
    largest = max(1, int(counts.max()))
    steps = math.ceil(largest / _BLOCK_STEP)
    return min(BLOCK, steps * _BLOCK_STEP)


@dataclass(frozen=True, eq=False)
class Population:
    """Facts of all devices on which the bits of one device's results depend.

    A node that does not hold everybody's examples is told them.

    `blocks` is how many examples of a part go through a model at once, `most_labels` the most
    classes that one device has. `offset` says by differences how many examples of a part each
    device holds; a node that asks nobody has no need of it.
    """

    blocks: Mapping[str, int]
    most_labels: int
    offset: Mapping[str, Tensor] | None = None

    @classmethod
    def of(cls, shards: Shards) -> Population:
        """The facts of all examples together."""
        parts = {split: shards.part(split) for split in SPLITS}
        blocks = {split: block_size(part) for split, part in parts.items()}
        offset = {split: part.offset for split, part in parts.items()}
        return cls(blocks, most_labels(shards), offset)

    def check(self, shards: Shards) -> None:
        """An error unless it agrees with the devices that are in some shards."""
        for split, offset in (self.offset or {}).items():
            held = shards.part(split).counts()
            told = offset.diff()
            wrong = (held != told) & shards.present
            if bool(wrong.any()):
                device = int(wrong.nonzero()[0])
                raise DataError(
                    f"device {device} holds {int(held[device])} {split} examples, but the "
                    f"population says {int(told[device])}; make both from the same shards."
                )

    def local(self) -> Population:
        """Without what other devices hold."""
        return replace(self, offset=None)


def most_labels(shards: Shards) -> int:
    """The most classes that one device has training examples of."""
    has_class = shards.labels() > 0
    return int(has_class.sum(1).max())
