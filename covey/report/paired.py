"""Tests of paired differences: Student's t, signed ranks and Holm's correction, in numpy.

Seeds are independent of each other: their differences take the t test. Devices of one seed share
its models: a test over devices holds for these models only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

LEAST = 3
"""Differences below which there is no t test."""
EXACT = 200
"""Differences other than 0 up to which the signed-rank test counts all sign patterns."""
_DF = 1000  # degrees of freedom that stand for more: the 95 % interval is then .1 % too wide


def t_test(differences: Sequence[float] | Vector) -> float | None:
    """The two-sided p-value of Student's paired t test, with one degree of freedom less than pairs.

    None below three differences, and where all are equal: seeds that do not differ are one seed.

    >>> round(t_test([1.0, 2.0, 3.0]) or 0.0, 4)
    0.0742
    """
    if len(differences) < LEAST or not np.ptp(differences):
        return None
    mean, error = _mean(differences)
    return student(mean / error, len(differences) - 1)


def interval(differences: Sequence[float] | Vector) -> tuple[float, float]:
    """The ends of the 95 % interval of the mean of paired differences, by Student's t.

    A difference is not distinguishable from none where low <= 0 <= high. Below two differences
    the ends are infinite.
    """
    if len(differences) < 2:
        return -math.inf, math.inf
    mean, error = _mean(differences)
    low, high = 0.0, 13.0  # 12.7 belongs to one degree of freedom
    for _ in range(50):
        middle = (low + high) / 2
        within = student(middle, len(differences) - 1) > 0.05
        low, high = (middle, high) if within else (low, middle)
    return mean - high * error, mean + high * error


def student(t: float, df: int) -> float:
    """P(|T| >= |t|) for `df` degrees of freedom: Abramowitz and Stegun, 26.7.3 and 26.7.4.

    >>> round(student(4.303, 2), 4), round(student(2.571, 5), 4)
    (0.05, 0.05)
    """
    df = min(df, _DF)
    angle = math.atan(abs(t) / math.sqrt(df))
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(2 + odd, df + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    within = math.sin(angle) * total
    if odd:
        within = 2 / math.pi * (angle + within)
    return max(0.0, 1 - within)


def _mean(differences: Sequence[float] | Vector) -> tuple[float, float]:
    """The mean of at least two differences, and its standard error."""
    values = np.asarray(differences, dtype=np.float64)
    return float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))


def wilcoxon(differences: Sequence[float] | Vector) -> float:
    """The two-sided p-value of the signed-rank test; differences of 0 are left out.

    It is exact for up to `EXACT` other differences, also with ties. Else it is that of the normal
    approximation with corrections for ties and continuity. Without other differences it is 1.

    >>> wilcoxon([1.0, 2.0, 3.0, -4.0, 5.0])
    0.4375
    """
    values = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a difference is not finite; leave out devices without a figure.")
    values = values[values != 0]
    _, inverse, counts = np.unique(np.abs(values), return_inverse=True, return_counts=True)
    mean = counts.cumsum() - (counts - 1) / 2
    ranks: Vector = mean[inverse]  # equal differences share their mean rank
    ties: Vector = counts[counts > 1].astype(np.float64)
    positive = float(ranks[values > 0].sum())
    smaller = min(positive, float(ranks.sum()) - positive)
    if len(values) <= EXACT:
        return _exact(ranks, smaller)
    n = len(values)
    expected = n * (n + 1) / 4
    variance = n * (n + 1) * (2 * n + 1) / 24
    variance -= float((ties**3 - ties).sum()) / 48
    distance = max(0.0, abs(smaller - expected) - 0.5)
    return math.erfc(distance / math.sqrt(2 * variance))


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


def _exact(ranks: Vector, smaller: float) -> float:
    """P(smaller rank sum <= this one) over all signs; doubled ranks are whole, also with ties."""
    share = np.zeros(int(2 * smaller) + 1)  # of the sign patterns, by twice their rank sum
    share[0] = 1.0
    for rank in (2 * ranks).astype(int).tolist():
        share[rank:] += share[:-rank].copy()
        share /= 2
    return min(1.0, 2 * float(share.sum()))
