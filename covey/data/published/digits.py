"""1,797 real handwritten digits of 8 x 8 pixels, small enough to ship.

DIGITS.md names their source.
"""

from __future__ import annotations

import gzip
from importlib import resources

import numpy as np
import torch
from torch import Tensor

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
    x, y = _load()
    if alpha is not None:
        dealt = partition.dirichlet(y, devices=devices, alpha=alpha, seed=seed)
    elif labels is not None:
        dealt = partition.by_labels(y, devices=devices, labels=labels, seed=seed)
    else:
        dealt = partition.iid(len(y), devices, seed)
    train, validation, test = partition.split(dealt, split=split, seed=seed)
    return Shards(x, y, train, validation, test, classes=10, name="digits")


def _load() -> tuple[Tensor, Tensor]:
    packed = resources.files("covey.data").joinpath("digits.csv.gz").read_bytes()
    table = np.loadtxt(
        gzip.decompress(packed).decode().splitlines(),
        delimiter=",",
        dtype=np.float32,
    )
    x = torch.from_numpy(
        table[:, :64] / 16
    )  # a pixel counts the dark points of a 4 x 4 block: 0 to 16
    return x, torch.from_numpy(table[:, 64].astype(np.int64))
