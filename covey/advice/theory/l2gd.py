"""L2GD's steps and its rate (Hanzely, Richtarik, 2020)."""

from collections.abc import Iterator

from covey.algorithms.l2gd import L2GD
from covey.kernel.advice import Levers, Loss, Statement, Step
from covey.kernel.conditions import at_most, averaging_step, inner_step, theorem


def advice(a: L2GD, loss: Loss) -> Iterator[Statement]:
    """Flips add up over rounds, so that several local steps follow each other."""
    yield from inner_step(a.lr / (1 - a.p), 0.0, loss, steps=2, names=("lr/(1-p)", "lam"))
    yield from averaging_step(a.lr * a.lam / a.p, "lr*lam/p")
    if loss.L is not None:
        expected_smoothness = max(loss.L / (1 - a.p), a.lam / a.p, 1e-30)
        bound = 0.5 / expected_smoothness
        yield theorem("the rate of L2GD", [at_most("lr", a.lr, bound)], {"largest lr": bound})


def levers(a: L2GD, L: float) -> Levers:
    return Levers((Step("lr", times=1 / (1 - a.p)),))
