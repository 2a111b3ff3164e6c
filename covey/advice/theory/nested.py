"""Nested envelopes: the steps of every level, and a round of all of them on quadratics."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from covey.algorithms.nested import Nested
from covey.kernel.advice import Advice, Levers, Loss, RoundFactor, Statement, Vector
from covey.kernel.conditions import descended, personal_steps, power

_ASKS = 10_000  # asks of a round up to which its factor is worked out


def advice(a: Nested, loss: Loss) -> Iterator[Statement]:
    """Every level by itself, then a round of all levels."""
    for level, below in zip(a.levels, (*a.levels[1:], None), strict=True):
        loss_below = loss
        if below is not None:  # an envelope of curvature lam L/(lam+L), at most lam, never exact
            L = below.lam
            if loss.L is not None and L + loss.L:
                L = L * loss.L / (L + loss.L)
            loss_below = Loss(L, None, exact=False)
        lam = level.ridge + level.prox
        l1 = (level.gamma, level.rho)
        names = ("lr", "lam", "gamma")
        steps = personal_steps(level.lr, lam, loss_below, steps=level.steps, l1=l1, names=names)
        for item in steps:
            about = f"{level.name or level.tier}: {item.about}"
            yield Advice(item.level, about, item.text, item.numbers)
    asks = math.prod(level.steps for level in a.levels[:-1])
    last = a.levels[-1]
    if last.tol is None and last.method == "gradient" and asks <= _ASKS:
        yield RoundFactor(partial(one_round, a))


def one_round(a: Nested, h: Vector) -> Vector:
    return _answer(a, 0, np.zeros_like(h), h, {})


def _answer(
    a: Nested,
    index: int,
    anchor: Vector,
    h: Vector,
    ends: dict[int, Vector],
) -> Vector:
    """The result of `Nested.solve` for an anchor, both relative to the start of the round.

    `ends` has the rows that levels ended with.
    """
    level = a.levels[index]
    x = anchor
    if level.warm:
        x = ends.get(index, anchor)
    prox = level.prox
    linear = level.lam - prox
    if index + 1 == len(a.levels):
        slope = level.lam * anchor + linear - h - level.ridge
        steps = power(level.lr, level.ridge + prox, h, level.steps)
        x = descended(x, steps, slope / (h + level.ridge + prox))
    else:
        pull = a.pull(index)
        below = a.levels[index + 1]
        for _ in range(level.steps):
            answer = _answer(a, index + 1, x, h, ends)
            pulled = -pull * (1 + answer)
            if below.coupling == "prox":
                pulled = pull * (x - answer)
            tie = prox * (x - anchor) - linear * (1 + anchor)
            own = tie + level.ridge * (1 + x)
            x = x - level.lr * (pulled + own)
    ends[index] = x
    return x


def levers(a: Nested, L: float) -> Levers:
    return Levers(without="the steps of Nested are those of its levels; `--theory` checks each")
