"""Synthetic(alpha, beta): classification with 60 features and 10 classes.

Every device has a distribution of its own. The data of FedProx (Li et al., 2020), drawn in the
order of its code and pFedMe's (Dinh et al., 2020), so that the same seed gives the same devices. As
in that code, alpha and beta are standard deviations, and a device's W and b share one mean; the
papers' text differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from covey.data.partitions import partition
from covey.data.partitions.partition import SPLIT, Split
from covey.data.shards import Shards
from covey.errors import DataError, shown

FEATURES = 60
CLASSES = 10
_MOST_DEVICES = 1_000_000
_MOST_EXAMPLES = 100_000_000  # of which the latter take 24 GB
_LARGEST = 1e9

Floats = npt.NDArray[np.float64]


def synthetic(
    alpha: float = 0.5,
    beta: float = 0.5,
    *,
    devices: int = 100,
    seed: int = 0,
    sizes: str | Sequence[int] = "pfedme",
    split: Split = SPLIT,
) -> Shards:
    """Shards in which models differ between devices by alpha, and features by beta.

    `sizes` is "fedprox" (log-normal, 50 at least), "pfedme" (five times that), or a number of
    examples per device.

    >>> synthetic(devices=2, sizes=[40, 80]).test.counts().tolist()
    [10, 20]
    """
    if not (partition.within(alpha, 0, _LARGEST) and partition.within(beta, 0, _LARGEST)):
        rule = f"they are standard deviations, give 0 or more, {_LARGEST:g} at most"
        raise DataError(f"alpha={shown(alpha)}, beta={shown(beta)}; {rule}.")
    partition.check_range("devices", devices, 1, _MOST_DEVICES)
    partition.check_range("seed", seed, 0, 2**32 - 1)
    # The papers' generator: a newer one would draw other devices from the same seed.
    draws = np.random.RandomState(seed)
    counts = _sizes(sizes, devices, draws)
    mean = draws.normal(0, alpha, devices)
    mean_v = draws.normal(0, beta, devices)
    v = [draws.normal(mean_v[k], 1, FEATURES) for k in range(devices)]
    pairs = [_device(mean[k], v[k], counts[k], draws) for k in range(devices)]
    ends = np.cumsum(counts)
    pieces = np.split(np.arange(ends[-1]), ends[:-1])
    x, y = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*pairs, strict=True))
    parts = partition.split(pieces, split=split, seed=seed)
    return Shards(x, y, *parts, classes=CLASSES, name=f"synthetic({alpha}, {beta})")


def _sizes(sizes: str | Sequence[int], devices: int, draws: np.random.RandomState) -> list[int]:
    if isinstance(sizes, str):
        if sizes not in ("pfedme", "fedprox"):
            raise DataError(
                f"sizes={shown(sizes)}; "
                "give 'pfedme', 'fedprox', or a number of examples per device."
            )
        counts = draws.lognormal(4, 2, devices).astype(int) + 50
        if sizes == "pfedme":
            counts *= 5
        return [int(count) for count in counts]
    listed = isinstance(sizes, Sequence)
    if not listed or not all(partition.whole_within(n, 0, _MOST_EXAMPLES) for n in sizes):
        raise DataError(f"sizes={shown(sizes)}; give 'pfedme', 'fedprox', or a list of integers.")
    if len(sizes) != devices or min(sizes) < 1 or sum(sizes) > _MOST_EXAMPLES:
        raise DataError(
            f"sizes has {len(sizes)} numbers, the min is {min(sizes, default=None)}, "
            f"for {devices} devices; "
            f"give one per device, each at least 1, {_MOST_EXAMPLES:,} in all at most."
        )
    return [int(count) for count in sizes]


def _device(
    mean: float, v: Floats, count: int, draws: np.random.RandomState
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    w = draws.normal(mean, 1, (FEATURES, CLASSES))
    b = draws.normal(mean, 1, CLASSES)
    # The covariance is diagonal, but drawing feature by feature would use the stream in another
    # order.
    variances = np.arange(1, FEATURES + 1) ** -1.2
    x = draws.multivariate_normal(v, np.diag(variances), count)
    y = np.argmax(x @ w + b, axis=1)
    return x.astype(np.float32), y.astype(np.int64)
