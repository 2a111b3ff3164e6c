"""Per-FedAvg: a round of steps on the meta loss, on quadratics."""

from collections.abc import Iterator
from functools import partial

from covey.algorithms.perfedavg import PerFedAvg
from covey.kernel.advice import (
    FLAT,
    HALFWAY,
    Levers,
    Loss,
    RoundFactor,
    Statement,
    Step,
    Upper,
    Vector,
)
from covey.kernel.conditions import power


def advice(a: PerFedAvg, loss: Loss) -> Iterator[Statement]:
    yield RoundFactor(partial(one_round, a))


def one_round(a: PerFedAvg, h: Vector) -> Vector:
    """f(x - alpha f'(x)) has curvature h (1 - alpha h)^2; without the Hessian h (1 - alpha h)."""
    adapted = 1 - a.alpha * h
    curvature = h * adapted
    if a.order == "hessian-free":
        curvature = h * adapted**2
    return power(a.lr, 0.0, curvature, a.steps)


def levers(a: PerFedAvg, L: float) -> Levers:
    best = HALFWAY / max(L, FLAT)
    alpha = Upper("alpha", best, L, "the personal step goes alpha*L", "the minimum")
    return Levers((Step("lr"),), (alpha,))
