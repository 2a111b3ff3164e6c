"""PerMFL's Theorems 1 and 2 and their numbers of rounds (Banerjee et al., 2024).

Of lists with one entry per node, limits go by the largest entries and rounds by the smallest.
"""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from covey.algorithms.permfl import PerMFL
from covey.kernel.advice import (
    HALFWAY,
    Advice,
    Levers,
    Loss,
    Proposal,
    RoundFactor,
    Statement,
    Step,
    Upper,
    Vector,
    far,
    per_cent,
)
from covey.kernel.conditions import (
    at_most,
    compared,
    descended,
    envelope_bound,
    inner_step,
    largest,
    power,
    same_for_all,
    smallest,
    theorem,
)

_NU = 1e-3  # how far inner loops are to shrink their starting error; the paper leaves nu open


def advice(a: PerMFL, loss: Loss) -> Iterator[Statement]:
    yield from inner_step(largest(a.lr), a.lam, loss, steps=int(largest(a.steps)))
    yield from edge_step(a)
    if a.beta * a.gamma > 1:
        yield server_step(a)
    alike = same_for_all(a.lr, a.edge_lr, a.steps, a.edge_rounds)
    yield RoundFactor(partial(one_round, a), certain=alike)
    yield theorem_1(a, loss)
    yield theorem_2(a, loss.L)
    yield from convex_loops(a, loss.mu or 0.0)
    if loss.L is not None and a.gamma > a.lam > loss.L:
        yield from nonconvex_loops(a, loss.L)


def edge_step(a: PerMFL) -> Iterator[Advice]:
    eta = largest(a.edge_lr)
    tied = eta * a.gamma
    both = eta * (a.lam + a.gamma)
    if tied >= 2 and largest(a.edge_rounds) > 1:
        text = (
            f"edge_lr*gamma = {eta:g}*{a.gamma:g} = {tied:g} is 2 or more: every edge round "
            f"multiplies the distance of w_i to its minimiser by {1 - tied:g} or worse; "
            f"use edge_lr < {1 / (a.lam + a.gamma):.3g}."
        )
    elif both >= 1:
        losses = "for every convex loss"
        if both >= 2:
            losses = f"only where lam L/(lam+L) < 2/edge_lr - gamma = {2 / eta - a.gamma:.3g}"
        rule = "below 1 is sufficient, not necessary"
        text = f"edge_lr*(lam+gamma) = {both:g}; {rule}: the step is stable {losses}."
    else:
        return
    numbers = {"edge_lr*gamma": tied, "edge_lr*(lam+gamma)": both}
    yield Advice("warning", "edge step", text, numbers)


def server_step(a: PerMFL) -> Advice:
    """x <- (1 - beta gamma) x + beta gamma mean w_i(x), and w_i(x) follows x."""
    product = a.beta * a.gamma
    worst = product * a.lam / (a.lam + a.gamma)
    s = envelope_bound(product, a.gamma)  # where product s/(gamma + s) is 2
    max_L = math.inf
    bound = f"beta gamma lam/(lam+gamma) = {worst:.3g} is at most 2"
    verdict = f"which every convex loss meets, as {bound}."
    if s < a.lam:
        max_L = s * a.lam / (a.lam - s)
        verdict = f"here L < {max_L:.3g}; beta <= {1 / a.gamma:.3g} makes it safe for every loss."
    text = (
        f"beta*gamma = {a.beta:g}*{a.gamma:g} = {product:g}, so x is multiplied by "
        f"1 - beta*gamma = {1 - product:g}, "
        "which the mean of w_i makes up for as it follows x. "
        "At most 1 is sufficient, not necessary: with inner loops run to the end it converges "
        f"while beta gamma s/(gamma+s) < 2, s = lam L/(lam+L), {verdict}"
    )
    numbers = {
        "beta*gamma": product,
        "server factor": 1 - product,
        "beta*gamma*lam/(lam+gamma)": worst,
        "largest L": max_L,
    }
    return Advice("warning", "server step", text, numbers)


def one_round(a: PerMFL, h: Vector) -> Vector:
    w = np.zeros_like(h)  # the distance from x, which does not move
    eta = largest(a.edge_lr)
    steps = power(largest(a.lr), a.lam, h, int(largest(a.steps)))
    for _ in range(int(largest(a.edge_rounds))):
        theta = descended(w, steps, (a.lam * w - h) / (h + a.lam))
        w = w - eta * (a.lam * (w - theta) + a.gamma * w)
    return a.beta * a.gamma * w


def strong(a: PerMFL, mu: float) -> float:
    """mu_F, the strong convexity of the envelope that the server descends."""
    return 1 / (1 / mu + 1 / a.lam + 1 / a.gamma)


def theorem_1(a: PerMFL, loss: Loss) -> Advice:
    """With the rate of (59), the algorithm's own; the printed (1 - beta)^T renames beta."""
    lr = largest(a.lr)
    max_lr = None if loss.L is None else 1 / (loss.L + a.lam)
    numbers = {"largest beta": 1 / (2 * a.gamma)}
    conditions = [
        at_most("beta", a.beta, 1 / (2 * a.gamma)),
        at_most("edge_lr", largest(a.edge_lr), 0.5 / (a.lam + a.gamma)),
        compared(f"lr = {lr:g}", lr, "<=", "1/(L+lam)", max_lr),
    ]
    end = "needs mu > 0"
    if loss.mu:
        mu_F = strong(a, loss.mu)
        rate = 1 - a.beta * mu_F / 2
        numbers |= {"mu_F": mu_F, "rate": rate}
        end = f"rate 1 - beta mu_F/2 = {rate:.4g} a round, mu_F = {mu_F:.3g}"
    return theorem("Theorem 1 of PerMFL", conditions, numbers, end)


def theorem_2(a: PerMFL, L: float | None) -> Advice:
    lam = a.lam
    double = None if L is None else 2 * L
    conditions = [
        at_most("beta", a.beta, 1 / (4 * a.gamma)),
        at_most("edge_lr", largest(a.edge_lr), 1 / (lam + a.gamma)),
        at_most("lr", largest(a.lr), 1 / lam),
        (f"gamma = {a.gamma:g} > 2 lam = {2 * lam:g}", a.gamma > 2 * lam),
        compared(f"lam = {lam:g}", lam, ">", "2 L", double),
    ]
    numbers = {"largest beta": 1 / (4 * a.gamma)}
    end = "its bound (16) is false as printed, and holds with twice its right side"
    return theorem("Theorem 2 of PerMFL (nonconvex)", conditions, numbers, end)


def convex_loops(a: PerMFL, mu: float) -> Iterator[Advice]:
    """The K and L of (58) and (61), starting errors taken as equal: only their ratios enter."""
    curvature = a.lam * mu / (a.lam + mu) + a.gamma
    edge = smallest(a.edge_lr) * curvature / 2
    device = smallest(a.lr) * (mu + a.lam)
    if edge >= 1 or device >= 1:
        return
    edge_rate = math.log1p(-edge)
    K = math.ceil(math.log(_NU) / edge_rate)
    slope = edge_rate / math.log1p(-device)
    L = math.ceil(slope * K)
    numbers = {"K": K, "L": L, "L per K": slope}
    text = (
        f"to shrink starting errors by nu = {_NU:g} (our choice; mu = {mu:g}), (56) asks for "
        f"edge_rounds K >= {K} (now {smallest(a.edge_rounds):g}) and (58) for steps "
        f"L >= {slope:.3g} K = {L} (now {smallest(a.steps):g})"
    )
    if mu:
        rate = min(a.beta * strong(a, mu) / 2, 0.999)
        per_round = math.log1p(-rate) / edge_rate
        numbers["K per T"] = per_round
        asked = f"(61) asks for K >= {per_round:.3g} T, up to a constant"
        text += f"; for Theorem 1's rate over T rounds {asked}"
    yield Advice("note", "K and L of PerMFL (convex)", f"{text}.", numbers)


def nonconvex_loops(a: PerMFL, L: float) -> Iterator[Advice]:
    """The K and L of (85) and (88)."""
    ends = (smallest(a.lr), largest(a.lr))
    decrease = min(lr * (1 - lr * (L + a.lam) / 2) for lr in ends)
    if decrease <= 0:
        return
    convex = (a.lam - L) ** 2
    per_k = a.lam**2 * largest(a.edge_lr) / (2 * decrease * convex)
    between = (a.gamma - a.lam) ** 2
    per_t = 2 * a.beta * a.gamma**2 / (smallest(a.edge_lr) * between)
    text = (
        f"over T rounds (88) asks for K >= {per_t:.3g} T and (85) for L >= {per_k:.3g} K, "
        "gaps of all levels taken as equal."
    )
    numbers = {"K per T": per_t, "L per K": per_k}
    yield Advice("note", "K and L of PerMFL (nonconvex)", text, numbers)


def levers(a: PerMFL, L: float) -> Levers:
    both = a.lam + a.gamma
    moves = "an edge moves edge_lr*(lam + gamma)"
    edge = Upper("edge_lr", HALFWAY / both, both, moves, "its minimum")
    penalties: tuple[Proposal, ...] = ()
    if isinstance(a.edge_lr, int | float) and far(a.lam, a.gamma):
        share = f"lam/(lam + gamma) = {per_cent(a.lam / both)}"
        why = f"an edge goes {share} of the way to its devices; lam = gamma: halfway"
        penalties = (Proposal({"lam": a.gamma}, {"lam": why}),)
    return Levers((Step("lr", a.lam, "lam"),), (edge,), penalties)
