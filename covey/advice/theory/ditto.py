"""Ditto: a round of both models on quadratics."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from covey.algorithms.ditto import Ditto
from covey.kernel.advice import Levers, Loss, RoundFactor, Statement, Step, Tie, Vector
from covey.kernel.conditions import inner_step, power


def advice(a: Ditto, loss: Loss) -> Iterator[Statement]:
    """v continues from its last value, so that one step a round adds up as two would."""
    yield from inner_step(a.lr, 0.0, loss, steps=a.steps)
    names = ("personal_lr", "lam")
    yield from inner_step(a.personal_lr, a.lam, loss, steps=max(a.personal_steps, 2), names=names)
    yield RoundFactor(partial(one_round, a))


def one_round(a: Ditto, h: Vector) -> Vector:
    """The excess of the slower of the two models, which do not depend on each other.

    Only the sizes of the two factors matter: the root of those of twice as many steps.
    """
    v = power(a.personal_lr, a.lam, h, 2 * a.personal_steps)
    w = power(a.lr, 0.0, h, 2 * a.steps)
    slower: Vector = np.maximum(v, w)
    excess: Vector = slower / (1 + np.sqrt(1 + slower))  # sqrt(1 + slower) - 1
    return excess


def levers(a: Ditto, L: float) -> Levers:
    steps = (Step("lr"), Step("personal_lr", a.lam, "lam"))
    return Levers(steps, penalties=(Tie("lam"),))
