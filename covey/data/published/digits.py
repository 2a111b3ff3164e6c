"""1,797 real handwritten digits of 8 x 8 pixels, small enough to ship.

DIGITS.md names their source.
"""

from __future__ import annotations

import gzip
from importlib import resources

import numpy as np
import torch

from covey.data.partitions import partition
from covey.data.partitions.partition import SPLIT, Split
from covey.data.shards import Shards


def digits(
    *,
    devices: int = 20,
    labels: int | None = 2,
    alpha: float | None = None,
    split: Split = SPLIT,
    seed: int = 0,
) -> Shards:
    """The digits as shards, x [1797, 64] in [0, 1].

    Each device has `labels` labels. With `alpha` the labels are dealt by Dir(alpha) instead. With
    labels=None and no alpha, the devices are alike (iid).

    >>> shards = digits()
    >>> shards.devices, shards.classes, tuple(shards.x.shape)
    (20, 10, (1797, 64))
    """
    packed = resources.files("covey.data").joinpath("digits.csv.gz").read_bytes()
    lines = gzip.decompress(packed).decode().splitlines()
    table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    x = torch.from_numpy(table[:, :64] / 16)  # of the 16 points of a pixel's block, the dark ones
    y = torch.from_numpy(table[:, 64].astype(np.int64))
    if alpha is not None:
        dealt = partition.dirichlet(y, devices=devices, alpha=alpha, seed=seed)
    elif labels is not None:
        dealt = partition.by_labels(y, devices=devices, labels=labels, seed=seed)
    else:
        dealt = partition.iid(len(y), devices, seed)
    parts = partition.split(dealt, split=split, seed=seed)
    return Shards(x, y, *parts, classes=10, name="digits")
