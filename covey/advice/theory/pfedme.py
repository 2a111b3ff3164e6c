"""pFedMe's Theorems 1 and 2 (Dinh, Tran, Nguyen, 2020), and a round of it on quadratics."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from covey.algorithms.pfedme import PFedMe
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
    theorem,
)


def advice(a: PFedMe, loss: Loss) -> Iterator[Statement]:
    yield from personal_steps(
        a.personal_lr,
        a.lam + a.weight_decay,
        loss,
        steps=a.steps,
        total=a.steps * a.local_rounds,
        l1=(a.gamma, a.rho),
        method=a.method,
    )
    yield from outer_steps(a.lr, a.lam, beta=a.beta, rounds=a.local_rounds)
    if a.method == "gradient" and not a.tol:  # else steps differ in number or in law
        yield RoundFactor(partial(one_round, a))
    if loss.mu:
        yield theorem_1(a, loss.mu, loss.rounds)
    yield theorem_2(a, loss.L)


def one_round(a: PFedMe, h: Vector) -> Vector:
    w = theta = np.zeros_like(h)
    steps = power(a.personal_lr, a.lam + a.weight_decay, h, a.steps)
    curvature = h + a.lam + a.weight_decay
    for _ in range(a.local_rounds):
        theta = descended(theta, steps, (a.lam * w - h - a.weight_decay) / curvature)
        w = w - a.lr * a.lam * (w - theta)
    return a.beta * w


def theorem_1(a: PFedMe, mu: float, rounds: int | None) -> Advice:
    """Strongly convex losses."""
    kappa = (a.lam + mu) / mu  # L_F = lam over mu_F = lam mu / (lam + mu)
    eta_1 = 1 / (6 * a.lam * (3 + 128 * kappa / a.beta))
    bound = eta_1 / (a.beta * a.local_rounds)
    fewest = 2 * kappa / (eta_1 * a.lam)  # mu_F = lam / kappa
    conditions = [at_most("lr", a.lr, bound), (f"beta = {a.beta:g} >= 1", a.beta >= 1)]
    if rounds is not None:
        conditions += [compared(f"rounds T = {rounds}", rounds, ">=", "2/(eta_1 mu_F)", fewest)]
    numbers = {"largest lr": bound, "kappa_F": kappa, "fewest T": fewest}
    return theorem("Theorem 1 of pFedMe", conditions, numbers)


def theorem_2(a: PFedMe, L: float | None) -> Advice:
    """Nonconvex losses."""
    bound = 1 / (75 * a.lam**3) / (a.beta * a.local_rounds)
    numbers = {"largest lr": bound}
    min_lam = None
    if L is not None:
        min_lam = math.sqrt(8 * (L + a.gamma / a.rho) ** 2 + 1)
        numbers["least lam"] = min_lam
    conditions = [
        at_most("lr", a.lr, bound),
        compared(f"lam = {a.lam:g}", a.lam, ">=", "sqrt(8 L^2 + 1)", min_lam),
        (f"beta = {a.beta:g} >= 1", a.beta >= 1),
    ]
    return theorem("Theorem 2 of pFedMe", conditions, numbers)


def levers(a: PFedMe, L: float) -> Levers:
    best = HALFWAY / max(envelope(a.lam, L), a.lam)
    theta = Step("personal_lr", a.lam + a.weight_decay, "lam")
    w_i = Upper("lr", best, a.lam, "w_i moves lr*lam", "theta")
    return Levers((theta,), (w_i,), (Tie("lam"),))
