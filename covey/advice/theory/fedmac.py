"""FedMac's Theorem 1 (Li, Liu et al., 2021), its steps, and a round of it on quadratics."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from covey.algorithms.fedmac import FedMac
from covey.kernel.advice import (
    HALFWAY,
    Advice,
    Levers,
    Loss,
    RoundFactor,
    Statement,
    Step,
    Upper,
    Vector,
)
from covey.kernel.conditions import (
    at_most,
    descended,
    outer_steps,
    personal_steps,
    power,
    smooth_l1_cycle,
    theorem,
)


def advice(a: FedMac, loss: Loss) -> Iterator[Statement]:
    smooth = a.l1 == "smooth"
    yield from personal_steps(  # correlation adds no curvature
        a.personal_lr,
        0.0,
        loss,
        steps=a.steps * a.local_rounds,
        l1=(a.gamma if smooth else 0.0, a.rho),
        method=a.method,
    )
    if smooth:
        yield from smooth_l1_cycle(a.lr, a.lam, a.gamma_w, a.rho, names=("lr", "lam", "gamma_w"))
    if a.gamma_w:
        yield penalty_step(a)
    moved = a.lr * a.lam
    largest = a.lr * a.lam**2 / (moved - 2) if moved > 2 else math.inf
    converges = "lam < L < lr lam^2/(lr lam - 2)", largest
    yield from outer_steps(a.lr, a.lam, beta=a.beta, rounds=a.local_rounds, converges=converges)
    if a.method == "gradient" and not a.tol:  # else steps differ in number or in law
        yield RoundFactor(partial(one_round, a))
    pull = a.personal_lr * a.lam
    if pull * a.steps * a.local_rounds < 0.01:
        text = (
            f"the correlation adds personal_lr*lam*w = {pull:.2g}*w per step, so that theta is "
            f"nearly local SGD and what acts is lr*lam = {moved:g}, an average of "
            "its path; raise lam, and lower lr, to tie theta to w."
        )
        yield Advice("note", "correlation", text, {"personal_lr*lam": pull, "lr*lam": moved})
    if loss.mu is not None:
        yield theorem_1(a, loss.mu)


def penalty_step(a: FedMac) -> Advice:
    moved = a.lr * a.gamma_w
    product = f"lr*gamma_w = {a.lr:g}*{a.gamma_w:g} = {moved:g}"
    text = f"{product}: how far the penalty moves a weight of w_i in one step"
    numbers = {"lr*gamma_w": moved}
    if moved <= 0.1:  # weights of trained models are of this size
        return Advice("note", "penalty step", f"{text}.", numbers)
    text = f"{text}, more than most weights of a model are large; lower gamma_w or lr."
    return Advice("warning", "penalty step", text, numbers)


def one_round(a: FedMac, h: Vector) -> Vector:
    w = theta = np.zeros_like(h)
    steps = power(a.personal_lr, 0.0, h, a.steps)
    for _ in range(a.local_rounds):
        theta = descended(theta, steps, (a.lam * (1 + w) - h) / h)
        w = w - a.lr * a.lam * (w - theta)
    return a.beta * w


def theorem_1(a: FedMac, mu: float) -> Advice:
    """Strongly convex losses."""
    name = "Theorem 1 of FedMac"
    lam = a.lam
    needed = f"lam = {lam:g} < mu = {mu:g}, without which the problem is not convex"
    if lam >= mu:
        return theorem(name, [(needed, False)], {"lam": lam, "mu": mu})
    smooth = lam
    if a.l1 == "smooth":
        smooth = lam + a.gamma_w / a.rho
    strong = lam - lam**2 / mu
    steepest = (18 + 256 * smooth / strong) * smooth
    bound = 1 / steepest / (a.beta * a.local_rounds)
    conditions = [
        (needed, True),
        at_most("lr", a.lr, bound),
        (f"beta = {a.beta:g} >= 1", a.beta >= 1),
    ]
    return theorem(name, conditions, {"largest lr": bound, "L_F": smooth, "mu_F": strong})


def levers(a: FedMac, L: float) -> Levers:
    w_i = Upper("lr", HALFWAY / a.lam, a.lam, "w_i moves lr*lam", "theta")
    return Levers((Step("personal_lr"),), (w_i,))
