"""sFedHP's Theorems 1 to 3 (Liu et al., 2023), and a round of it on quadratics."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from covey.algorithms.sfedhp import SFedHP
from covey.kernel.advice import (
    HALFWAY,
    Advice,
    Levers,
    Loss,
    RoundFactor,
    Statement,
    Step,
    Tie,
    Upper,
    Vector,
    envelope,
)
from covey.kernel.conditions import (
    at_most,
    compared,
    descended,
    outer_steps,
    personal_steps,
    power,
    smooth_l1_cycle,
    theorem,
)


def advice(a: SFedHP, loss: Loss) -> Iterator[Statement]:
    gamma1, gamma2 = (a.gamma1, a.gamma2) if a.l1 == "smooth" else (0.0, 0.0)
    both = a.lam1 * a.lam2 / (a.lam1 + a.lam2)
    yield from personal_steps(
        a.lr2,
        a.lam1,
        loss,
        steps=a.steps,
        total=a.steps * a.edge_rounds,
        l1=(gamma1, a.rho),
        method=a.method,
        names=("lr2", "lam1", "gamma1"),
    )
    names = ("lr1", "lam_bar")
    yield from smooth_l1_cycle(a.lr1, both, gamma2, a.rho, names=(*names, "gamma2"))
    yield from outer_steps(a.lr1, both, beta=a.beta, rounds=a.edge_rounds, names=names)
    if a.method == "gradient" and not a.tol:  # else steps differ in number or in law
        yield RoundFactor(partial(one_round, a))
    smooth = a.lam2 + gamma2 / a.rho  # L_F
    L = None
    if loss.L is not None:
        L = loss.L + gamma1 / a.rho
    yield theorem_1(a, L, {"gamma1/rho": gamma1 / a.rho, "L_F": smooth})
    yield theorem_3(a, L, smooth)
    if loss.mu:
        yield theorem_2(a, loss.mu, smooth)


def one_round(a: SFedHP, h: Vector) -> Vector:
    w = phi = theta = np.zeros_like(h)
    steps = power(a.lr2, a.lam1, h, a.steps)
    for _ in range(a.edge_rounds):
        theta = descended(theta, steps, (a.lam1 * phi - h) / (h + a.lam1))
        phi = (a.lam1 * theta + a.lam2 * w) / (a.lam1 + a.lam2)
        w = w - a.lr1 * a.lam2 * (w - phi)
    return a.beta * w


def theorem_1(a: SFedHP, L: float | None, numbers: dict[str, float]) -> Advice:
    """With both links of its chain; `L` has the curvature of the l1 in it."""
    double = None if L is None else 2 * L
    conditions = [
        compared(f"lam1 = {a.lam1:g}", a.lam1, ">", "2 (L + gamma1/rho)", double),
        (f"lam2 = {a.lam2:g} > 2 lam1 = {2 * a.lam1:g}", a.lam2 > 2 * a.lam1),
    ]
    return theorem("Theorem 1 of sFedHP", conditions, numbers, "a convex loss needs neither")


def theorem_3(a: SFedHP, L: float | None, smooth: float) -> Advice:
    """Nonconvex losses, with lam at least the root."""
    lam = a.lam1 * a.lam2 / math.hypot(a.lam1, a.lam2)
    largest = min(1 / (588 * smooth * lam**2), a.beta / (2 * smooth))
    bound = largest / (a.beta * a.edge_rounds)
    root = None if L is None else math.sqrt(16 * L**2 + 1)
    conditions = [
        compared(f"lam = {lam:.4g}", lam, ">=", "sqrt(16 (L + gamma1/rho)^2 + 1)", root),
        at_most("lr1", a.lr1, bound),
    ]
    return theorem("Theorem 3 of sFedHP", conditions, {"lam": lam, "largest lr1": bound})


def theorem_2(a: SFedHP, mu: float, smooth: float) -> Advice:
    """Strongly convex losses."""
    strong = 1 / (1 / mu + 1 / a.lam1 + 1 / a.lam2)
    ratio = smooth / (strong * a.beta)
    largest = min(1 / strong, 1 / (3 * smooth * (3 + 128 * ratio)))
    bound = largest / (a.beta * a.edge_rounds)
    conditions = [at_most("lr1", a.lr1, bound)]
    return theorem("Theorem 2 of sFedHP", conditions, {"largest lr1": bound, "mu_F": strong})


def levers(a: SFedHP, L: float) -> Levers:
    both = a.lam1 * a.lam2 / (a.lam1 + a.lam2)
    seen = envelope(a.lam1, a.lam2, L)
    best = HALFWAY / max(seen, envelope(a.lam1, a.lam2))
    moves = "an edge's w_i moves lr1*lam1*lam2/(lam1 + lam2)"
    w_i = Upper("lr1", best, both, moves, "its devices")
    halfway = "as lam1: an edge stands halfway between its devices and the server"
    lam = Tie("lam1", alike={"lam2": halfway})
    return Levers((Step("lr2", a.lam1, "lam1"),), (w_i,), (lam,))
