"""AL2GD's steps (Lyu et al., 2022)."""

from collections.abc import Iterator

from covey.algorithms.al2gd import AL2GD
from covey.kernel.advice import Levers, Loss, Statement, Step
from covey.kernel.conditions import averaging_step, inner_step, largest, smallest


def advice(a: AL2GD, loss: Loss) -> Iterator[Statement]:
    not_server = 1 - a.p
    local = a.lr / not_server / (1 - largest(a.edge_p))
    yield from inner_step(local, 0.0, loss, steps=2, names=("lr/((1-p)(1-edge_p))", "lam"))
    pull = a.lr * a.lam / not_server / smallest(a.edge_p)
    yield from averaging_step(pull, "lr*lam/((1-p) edge_p)")
    yield from averaging_step(a.lr * a.gamma / a.p, "lr*gamma/p")


def levers(a: AL2GD, L: float) -> Levers:
    times = 1 / (1 - a.p) / (1 - largest(a.edge_p))
    return Levers((Step("lr", times=times),))
