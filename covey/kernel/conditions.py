"""Conditions on steps and penalties that algorithms share, and factors of loops on quadratics.

The theorems' conditions are those corrected for misprints; they are sufficient, and mostly far
below what the papers ran. A loop with lr lam >= 2 leaves its own minimiser, yet after an odd number
of steps it ends on the far side of it, and the round may converge for flat losses: hence warnings,
not errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from covey.kernel.advice import (
    Advice,
    Excess,
    Loss,
    RoundFactor,
    Statement,
    Vector,
)
from covey.kernel.algorithm import PerNode

Condition = tuple[str, bool | None]
"""In words, and whether it holds; None where it takes an L that is not known."""


def inner_step(
    lr: float,
    lam: float,
    loss: Loss,
    *,
    steps: int,
    total: int = 0,
    curve: float = 0.0,
    names: tuple[str, str] = ("lr", "lam"),
) -> Iterator[Advice]:
    """`steps` gradient steps of size lr on a loss + lam/2 |x - anchor|^2.

    After `total` of them x is set back to its anchor. `curve` is what the smooth l1 adds near zero;
    its cycle is bounded, so that it is left to `smooth_l1_cycle`. `names` are those of lr and lam
    in the text.
    """
    step, tie = names
    product = f"{step} = {lr:g}"
    numbers = {step: lr}
    bound = f"2/{step}"
    if "/" in step:  # such as lr/(1-p)
        bound = f"2/({step})"
    if lam:
        product = f"{step}*{tie} = {lr:g}*{lam:g} = {lr * lam:g}"
        numbers = {f"{step}*{tie}": lr * lam}
        bound = f"{bound} - {tie}"
    room = 2 / lr - lam
    if room <= 0:
        yield _too_long(product, numbers, 1 - lr * lam, steps, max(total, steps), names)
        return
    numbers["largest L"] = room
    if loss.L is None:
        yield _room(product, numbers, bound, room, curve)
        return
    yield _against(loss, lr, lam, names, numbers)


def prox_steps(
    lr: float,
    lam: float,
    loss: Loss,
    *,
    steps: int,
    names: tuple[str, str] = ("lr", "lam"),
) -> Iterator[Statement]:
    """A round of steps on a loss + lam/2 |x - anchor|^2, whose result is the next anchor."""
    yield from inner_step(lr, lam, loss, steps=steps, names=names)
    yield RoundFactor(prox_round(lr, lam, steps))


def steps_by_part(
    loss: Loss,
    *,
    lr: float,
    steps: int,
    personal_lr: float,
    personal_steps: int,
) -> Iterator[Advice]:
    """Steps on the shared columns and on the private ones.

    Their curvature is at most that of all columns, which is what `loss` knows.
    """
    bound = replace(loss, exact=False)
    yield from inner_step(lr, 0.0, bound, steps=steps)
    names = ("personal_lr", "lam")
    yield from inner_step(personal_lr, 0.0, bound, steps=personal_steps, names=names)


def _room(
    product: str,
    numbers: dict[str, float],
    bound: str,
    room: float,
    curve: float,
) -> Advice:
    """The largest L at which a step is stable."""
    near = ""
    if 0 < curve < room:
        near = f", and near zero for L < {room - curve:g}"
    if curve:
        numbers["largest L near zero"] = room - curve
    text = f"{product}: stable only for L < {bound} = {room:g}{near}."
    return Advice("note", "inner step", text, numbers)


def _against(
    loss: Loss,
    lr: float,
    lam: float,
    names: tuple[str, str],
    numbers: dict[str, float],
) -> Advice:
    """A step held against the L of the losses."""
    assert loss.L is not None
    step, tie = names
    curvature = lr * (lam + loss.L)
    numbers["lr*(lam+L)"] = curvature
    shown = f"{step}*L = {curvature:g}"
    if lam:
        shown = f"{step}*({tie}+L) = {curvature:g}"
    if curvature < 2:
        return Advice(
            "note",
            "inner step",
            f"{shown} is below 2: the step is stable.",
            numbers,
        )
    limit = f"{step} < {2 / (lam + loss.L):.3g} is stable"
    text = f"{shown} is 2 or more: each step overshoots{loss.guess}; {limit}."
    return Advice("warning", "inner step", text, numbers)


def _too_long(
    product: str,
    numbers: dict[str, float],
    factor: float,
    steps: int,
    total: int,
    names: tuple[str, str],
) -> Advice:
    """A step that overshoots by its penalty alone."""
    step, tie = names
    fix = f"lower {step} or {tie}"
    numbers["factor"] = factor
    if steps > 1:
        worse = f"every step multiplies the distance to its minimiser by {factor:g} or worse"
        return Advice(
            "warning",
            "inner step",
            f"{product} is 2 or more: {worse}; {fix}.",
            numbers,
        )
    if total > 1:
        worse = "the model overshoots its anchor, which only moving the anchor can make up for"
        return Advice(
            "warning",
            "inner step",
            f"{product} is 2 or more: {worse}; {fix}.",
            numbers,
        )
    single = f"a single step starts at its anchor and does not feel {tie}"
    text = f"{product}, but {single}; with more steps it would diverge."
    return Advice("note", "inner step", text, numbers)


def momentum_step(
    lr: float, lam: float, loss: Loss, *, names: tuple[str, str] = ("lr", "lam")
) -> Iterator[Advice]:
    """Nesterov's steps on a loss + lam/2 |x - anchor|^2, which overshoot sooner than plain ones.

    With momentum b a step of q = lr (lam + L) has the roots of z^2 - (1+b)(1-q) z + b (1-q), of
    size below 1 for q < (2+2b)/(1+2b). b is (1-r)/(1+r) with r^2 = lr lam, and grows to 1 without
    lam.
    """
    if lr * lam >= 2:
        return
    step, tie = names
    root = math.sqrt(lr * lam)
    momentum = (1 - root) / (1 + root)
    limit = (2 + 2 * momentum) / (1 + 2 * momentum)
    formula = f"{step}*L"
    if lam:
        formula = f"{step}*({tie}+L)"
    text = f"with Nesterov's momentum {formula} must be below {limit:.3g}, not 2"
    numbers = {"momentum": momentum, "limit": limit}
    if loss.L is not None and lr * (lam + loss.L) >= limit:
        numbers["lr*(lam+L)"] = lr * (lam + loss.L)
        text = f"{text}, but is {numbers['lr*(lam+L)']:.3g}{loss.guess}; lower {step}"
        yield Advice("warning", "momentum", f"{text}.", numbers)
        return
    yield Advice("note", "momentum", f"{text}.", numbers)


def smooth_l1_cycle(
    lr: float,
    lam: float,
    gamma: float,
    rho: float,
    *,
    L: float | None = None,
    names: tuple[str, str, str],
) -> Iterator[Advice]:
    """The curvature gamma/rho at zero: past the edge a weight does not settle, but alternates.

    Its two-cycle +-a solves a = lr gamma tanh(a/rho)/(2 - lr lam), with lam + L for lam where the
    loss curves: less than the same without tanh, and close to it once a is a few rho.
    """
    tied = lr * (lam + (L or 0.0))
    curvature = tied + lr * gamma / rho
    if gamma == 0 or curvature <= 2 or tied >= 2:
        return
    step, tie, penalty = names
    amplitude = lr * gamma / (2 - tied)
    cut = max(3 * rho, 2 * lr * gamma / (2 - lr * lam))
    ties = [name for name, value in ((tie, lam), ("L", L)) if value]
    terms = "+".join([*ties, f"{penalty}/rho"])
    hidden = "does not hide it"
    if amplitude <= cut:
        hidden = "hides it"
    formula = f"{step}*{penalty}/{_divisor(step, ties)}"
    text = (
        f"{step}*({terms}) = {curvature:.4g} is above 2: weights near zero do not settle but "
        f"alternate in sign with an amplitude of up to {formula} = {amplitude:.2g}. "
        f'The cut at {cut:.2g} {hidden}; l1="prox", where there is one, reaches exact zeros, '
        f"and {step} < {2 / (curvature / lr):.2g} would settle."
    )
    numbers = {
        f"{step}*({terms})": curvature,
        "largest amplitude": amplitude,
        "cut": cut,
    }
    yield Advice("warning", "smooth l1", text, numbers)


def _divisor(step: str, ties: list[str]) -> str:
    """2 - step*ties, in words."""
    if not ties:
        return "2"
    if len(ties) == 1:
        return f"(2 - {step}*{ties[0]})"
    return f"(2 - {step}*({'+'.join(ties)}))"


def outer_step(
    lr: float, lam: float, *, names: tuple[str, str], largest: float, why: str
) -> Iterator[Advice]:
    """The step of w_i towards theta, which itself follows w_i.

    `largest` is the L up to which the two converge together.
    """
    if lr * lam < 2:
        return
    step, tie = names
    text = (
        f"{step}*{tie} = {lr:g}*{lam:g} = {lr * lam:g} is 2 or more: "
        "w_i overshoots theta by more than their distance; "
        f"with theta at its minimiser it converges only for {why} = {largest:.4g}; lower {step}."
    )
    yield Advice(
        "warning",
        "outer step",
        text,
        {f"{step}*{tie}": lr * lam, "largest L": largest},
    )


def server_step(beta: float, moved: float, formula: str) -> Iterator[Advice]:
    """pFedMe's server: w_i has gone `moved` of the way to theta, and w goes beta times as far."""
    factor = 1 - beta * moved
    if abs(factor) < 1:
        return
    reason = "the server overshoots (a heuristic)"
    text = f"{formula} = {factor:.3g} is not below 1 in size: {reason}; lower beta = {beta:g}."
    yield Advice("warning", "server step", text, {"server factor": factor, "beta": beta})


def averaging_step(step: float, name: str) -> Iterator[Advice]:
    """A move towards a mean by `step` times the distance."""
    if step >= 2:
        reason = "models overshoot their mean by more than their distance"
        text = f"{name} = {step:g} is 2 or more: {reason}; lower lr."
        yield Advice("warning", "averaging step", text, {name: step})


def envelope_bound(product: float, lam: float) -> float:
    """The L at which product * L/(lam+L) reaches 2; at a product of 2 no L does."""
    if product <= 2:
        return math.inf
    return 2 * lam / (product - 2)


def theorem(
    about: str,
    conditions: Sequence[Condition],
    numbers: dict[str, float],
    end: str = "",
) -> Advice:
    """A note on which conditions of a theorem hold.

    >>> print(theorem("Theorem 1", [at_most("lr", 0.1, 0.05)], {}))
    note: Theorem 1: lr = 0.1 <= 0.05: fails.
    """
    words = {
        True: "holds",
        False: "fails",
        None: "takes an L that is not given",
    }
    parts = [f"{condition}: {words[holds]}" for condition, holds in conditions]
    if end:
        parts.append(end)
    return Advice("note", about, "; ".join(parts) + ".", numbers)


def at_most(name: str, value: float, bound: float) -> Condition:
    """Whether a value is at most a bound."""
    return f"{name} = {value:g} <= {bound:.3g}", value <= bound


def at_most_of(shown: str, value: float, formula: str, bound: float | None) -> Condition:
    """Whether a value, `shown` in the text, is at most a formula; None takes an unknown L."""
    holds = None
    if bound is not None:
        holds = value <= bound
    return f"{shown} <= {formula}{_equals(bound)}", holds


def at_least_of(shown: str, value: float, formula: str, bound: float | None) -> Condition:
    """Whether a value, `shown` in the text, is at least a formula; None takes an unknown L."""
    holds = None
    if bound is not None:
        holds = value >= bound
    return f"{shown} >= {formula}{_equals(bound)}", holds


def exceeds(shown: str, value: float, formula: str, bound: float | None) -> Condition:
    """Whether a value, `shown` in the text, is above a formula; None takes an unknown L."""
    holds = None
    if bound is not None:
        holds = value > bound
    return f"{shown} > {formula}{_equals(bound)}", holds


def _equals(bound: float | None) -> str:
    if bound is None:
        return ""
    return f" = {bound:.4g}"


def largest(value: PerNode) -> float:
    """The largest of a list with one entry per node, which is the first to diverge."""
    if isinstance(value, Sequence):
        return float(max(value))
    return float(value)


def smallest(value: PerNode) -> float:
    """The smallest of a list with one entry per node."""
    if isinstance(value, Sequence):
        return float(min(value))
    return float(value)


def same_for_all(*values: PerNode) -> bool:
    """Whether all nodes have the same values."""
    lists = [value for value in values if isinstance(value, Sequence)]
    return all(len(set(entries)) <= 1 for entries in lists)


def power(lr: float, lam: float, h: Vector, steps: int) -> Vector:
    """(1 - lr (lam + h))^steps - 1, to the last digits, also where the power is near 1 or -1."""
    speed = lr * (lam + h)
    beyond = (lr * lam - 2) + lr * h  # the base is -(1 + beyond) where a step overshoots
    log_short = np.log1p(-np.minimum(speed, 1))
    log_long = np.log1p(np.maximum(beyond, -1))
    short = np.expm1(steps * log_short)
    long = np.expm1(steps * log_long)
    if steps % 2 == 1:
        long = -2 - long
    result: Vector = np.where(speed <= 1, short, long)
    return result


def descended(start: Vector, power: Vector, end: Vector) -> Vector:
    """x after steps of this `power` towards `end`; all are relative to the start of the round."""
    return start + power * (start - end)


def prox_round(lr: float, lam: float, steps: int) -> Excess:
    """FedProx and its like: the anchor becomes x after `steps` on loss + lam/2 |x - anchor|^2."""
    return lambda h: h / (h + lam) * power(lr, lam, h, steps)
