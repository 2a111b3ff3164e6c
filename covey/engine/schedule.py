"""Schedules: factors of a step size that depend on the round."""

from __future__ import annotations

import math

SCHEDULES = ("constant", "cosine", "linear", "step")


def factor(schedule: str, round: int, rounds: int) -> float:
    """The factor of a round, counted from 0, of a run of so many rounds; above 0 in all of them.

    >>> [factor("linear", round, 4) for round in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    share = min(round, rounds - 1) / rounds
    if schedule == "cosine":
        return (1 + math.cos(math.pi * share)) / 2
    if schedule == "linear":
        return 1 - share
    if schedule == "step":
        return _stair(share)
    return 1.0


def _stair(share: float) -> float:
    """1, from half of the rounds on 0.1, and 0.01 in the last quarter."""
    if share >= 0.75:
        return 0.01
    if share >= 0.5:
        return 0.1
    return 1.0
