"""Paired differences of devices: the Wilcoxon signed-rank test and Holm's correction, in numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_EXACT = 50  # pairs up to which the distribution is counted out


@dataclass(frozen=True)
class Wilcoxon:
    """The test of a symmetric distribution of differences around 0, two-sided.

    `statistic` is the smaller of the two rank sums. `pairs` counts differences other than 0.
    """

    pairs: int
    statistic: float
    p: float
    method: Literal["exact", "normal", "none"]


def wilcoxon(differences: Sequence[float] | Vector) -> Wilcoxon:
    """The signed-rank test; differences of 0 are left out, as Wilcoxon did.

    The p-value is exact for up to 50 pairs without ties. Else it is that of the normal
    approximation with corrections for ties and continuity. Without pairs p is 1.

    >>> wilcoxon([1.0, 2.0, 3.0, -4.0, 5.0])
    Wilcoxon(pairs=5, statistic=4.0, p=0.4375, method='exact')
    """
    values = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a difference is not finite; leave out devices without a figure.")
    values = values[values != 0]
    if not len(values):
        return Wilcoxon(0, 0.0, 1.0, "none")
    ranks, ties = _ranks(np.abs(values))
    positive = float(ranks[values > 0].sum())
    statistic = min(positive, float(ranks.sum()) - positive)
    if len(values) <= _EXACT and not len(ties):
        return Wilcoxon(len(values), statistic, _exact(len(values), statistic), "exact")
    return Wilcoxon(len(values), statistic, _normal(len(values), statistic, ties), "normal")


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for as many comparisons as there are p-values.

    >>> holm([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.04]
    """
    order = np.argsort(p_values, kind="stable")
    out = [1.0] * len(p_values)
    largest = 0.0
    for position, number in enumerate(order.tolist()):
        corrected = min(1.0, (len(p_values) - position) * p_values[number])
        largest = max(largest, corrected)
        out[number] = largest
    return out


def _ranks(sizes: Vector) -> tuple[Vector, Vector]:
    """The rank of every size, the mean rank where sizes are equal, and how many are equal."""
    _, inverse, counts = np.unique(sizes, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    mean = last - (counts - 1) / 2
    ranks: Vector = mean[inverse]
    ties: Vector = counts[counts > 1].astype(np.float64)
    return ranks, ties


def _exact(n: int, statistic: float) -> float:
    """P(smaller rank sum <= statistic), from the number of sign patterns with each rank sum."""
    total = n * (n + 1) // 2
    patterns = np.zeros(total + 1)
    patterns[0] = 1.0
    for rank in range(1, n + 1):
        patterns[rank:] += patterns[:-rank].copy()
    below = float(patterns[: int(statistic) + 1].sum())
    return min(1.0, math.ldexp(below, 1 - n))


def _normal(n: int, statistic: float, ties: Vector) -> float:
    mean = n * (n + 1) / 4
    variance = n * (n + 1) * (2 * n + 1) / 24
    variance -= float((ties**3 - ties).sum()) / 48
    distance = max(0.0, abs(statistic - mean) - 0.5)
    if variance <= 0:
        return 1.0
    return math.erfc(distance / math.sqrt(2 * variance))


def interval(differences: Sequence[float] | Vector) -> tuple[float, float]:
    """The ends of the 95 % interval of the mean of paired differences, by Student's t.

    Below two differences the ends are infinite.

    >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0, 4.0])]
    [0.446, 4.554]
    """
    values = np.asarray(differences, dtype=np.float64)
    df = len(values) - 1
    if df < 1:
        return -math.inf, math.inf
    series = (1.959964, 2.37228, 2.82260, 2.55586, 1.58895)  # of t in 1/df, Fisher and Cornish
    t = {1: 12.7062, 2: 4.3027}.get(df) or sum(c / df**k for k, c in enumerate(series))
    half = t * float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - half, float(values.mean()) + half
