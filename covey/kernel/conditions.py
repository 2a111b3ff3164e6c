"""Conditions on steps and penalties that algorithms share, and factors of loops on quadratics.

The theorems' conditions are those corrected for misprints; they are sufficient, and mostly far
below what the papers ran. A loop with lr lam >= 2 leaves its own minimiser, yet after an odd number
of steps it ends on the far side of it, and the round may converge for flat losses: hence warnings,
not errors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence

import numpy as np

from covey.fields import PerNode
from covey.kernel.advice import (
    Advice,
    Excess,
    Loss,
    RoundFactor,
    Statement,
    Vector,
)

Condition = tuple[str, bool | None]
"""In words, and whether it holds; None where it takes an L that is not known."""

_RELATIONS = {"<=": operator.le, ">=": operator.ge, ">": operator.gt}


def inner_step(
    lr: float,
    lam: float,
    loss: Loss,
    *,
    steps: int,
    total: int = 0,
    curve: float = 0.0,
    names: Sequence[str] = ("lr", "lam"),
) -> Iterator[Advice]:
    """`steps` gradient steps of size lr on a loss + lam/2 |x - anchor|^2.

    After `total` of them x is set back to its anchor. `curve` is what the smooth l1 adds near zero;
    its cycle is bounded, so that it is left to `smooth_l1_cycle`. `names` are those of lr and lam
    in the text.
    """
    step, tie = names
    product = f"{step} = {lr:g}"
    formula = f"{step}*L"
    numbers = {step: lr}
    bound = f"2/{step}"
    if "/" in step:  # such as lr/(1-p)
        bound = f"2/({step})"
    if lam:
        product = f"{step}*{tie} = {lr:g}*{lam:g} = {lr * lam:g}"
        formula = f"{step}*({tie}+L)"
        numbers = {f"{step}*{tie}": lr * lam}
        bound = f"{bound} - {tie}"
    room = 2 / lr - lam
    if room <= 0:
        numbers["factor"] = 1 - lr * lam
        yield _too_long(product, numbers, steps, max(total, steps), names)
        return
    numbers["largest L"] = room
    if loss.L is None:
        near = ""
        if 0 < curve < room:
            near = f", and near zero for L < {room - curve:g}"
        if curve:
            numbers["largest L near zero"] = room - curve
        text = f"{product}: stable only for L < {bound} = {room:g}{near}."
        yield Advice("note", "inner step", text, numbers)
        return
    share = lr * (lam + loss.L)
    numbers["lr*(lam+L)"] = share
    if share < 2:
        text = f"{formula} = {share:g} is below 2: the step is stable."
        yield Advice("note", "inner step", text, numbers)
        return
    limit = f"{step} < {2 / (lam + loss.L):.3g} is stable"
    text = f"{formula} = {share:g} is 2 or more: each step overshoots{loss.guess}; {limit}."
    yield Advice("warning", "inner step", text, numbers)


def _too_long(
    product: str,
    numbers: dict[str, float],
    steps: int,
    total: int,
    names: Sequence[str],
) -> Advice:
    """A step that overshoots by its penalty alone."""
    step, tie = names
    if total <= 1:
        single = f"a single step starts at its anchor and does not feel {tie}"
        text = f"{product}, but {single}; with more steps it would diverge."
        return Advice("note", "inner step", text, numbers)
    worse = "the model overshoots its anchor, which only moving the anchor can make up for"
    if steps > 1:
        factor = numbers["factor"]
        worse = f"every step multiplies the distance to its minimiser by {factor:g} or worse"
    text = f"{product} is 2 or more: {worse}; lower {step} or {tie}."
    return Advice("warning", "inner step", text, numbers)


def prox_steps(
    lr: float,
    lam: float,
    loss: Loss,
    *,
    steps: int,
    names: Sequence[str] = ("lr", "lam"),
) -> Iterator[Statement]:
    """A round of steps on a loss + lam/2 |x - anchor|^2, whose result is the next anchor."""
    yield from inner_step(lr, lam, loss, steps=steps, names=names)
    yield RoundFactor(prox_round(lr, lam, steps))


def personal_steps(
    lr: float,
    lam: float,
    loss: Loss,
    *,
    steps: int,
    total: int = 0,
    l1: tuple[float, float] = (0.0, 1.0),
    method: str = "gradient",
    names: Sequence[str] = ("personal_lr", "lam", "gamma"),
) -> Iterator[Advice]:
    """The steps of a personal model with a smooth l1 of gamma and rho, plain or Nesterov's."""
    gamma, rho = l1
    pair = names[:2]
    curve = gamma / rho
    yield from inner_step(lr, lam, loss, steps=steps, total=total, curve=curve, names=pair)
    if method == "nesterov":
        yield from momentum_step(lr, lam, loss, names=pair)
    yield from smooth_l1_cycle(lr, lam, gamma, rho, L=loss.L, names=names)


def momentum_step(
    lr: float, lam: float, loss: Loss, *, names: Sequence[str] = ("lr", "lam")
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
    names: Sequence[str],
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
    divisor = "2"
    if ties:
        divisor = f"(2 - {step}*{ties[0]})"
    if len(ties) == 2:
        divisor = f"(2 - {step}*({'+'.join(ties)}))"
    formula = f"{step}*{penalty}/{divisor}"
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


def outer_steps(
    lr: float,
    lam: float,
    *,
    beta: float,
    rounds: int,
    names: tuple[str, str] = ("lr", "lam"),
    converges: tuple[str, float] | None = None,
) -> Iterator[Advice]:
    """The steps of w_i towards theta, which itself follows w_i, and the server's towards w_i.

    `converges` says up to which L the first two converge together, in words and as a number. By
    default theta descends the loss + lam/2 |theta - w_i|^2. In its rounds w_i goes some share of
    the way to theta, and w goes beta times as far.
    """
    step, tie = names
    product = lr * lam
    if product >= 2:
        if converges is None:
            converges = f"L < 2 {tie}/({step} {tie} - 2)", envelope_bound(product, lam)
        why, largest = converges
        text = (
            f"{step}*{tie} = {lr:g}*{lam:g} = {product:g} is 2 or more: "
            "w_i overshoots theta by more than their distance; with theta at its minimiser "
            f"it converges only for {why} = {largest:.4g}; lower {step}."
        )
        numbers = {f"{step}*{tie}": product, "largest L": largest}
        yield Advice("warning", "outer step", text, numbers)
    moved = 1 - (1 - product) ** rounds
    factor = 1 - beta * moved
    if abs(factor) >= 1:
        formula = f"1 - beta (1 - (1 - {step} {tie})^R) = {factor:.3g}"
        fix = f"the server overshoots (a heuristic); lower beta = {beta:g}"
        text = f"{formula} is not below 1 in size: {fix}."
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


def compared(
    shown: str, value: float, relation: str, formula: str, bound: float | None
) -> Condition:
    """Whether a value, `shown` in the text, is in a relation to a formula, such as "<=".

    The bound None takes an unknown L.
    """
    if bound is None:
        return f"{shown} {relation} {formula}", None
    return f"{shown} {relation} {formula} = {bound:.4g}", _RELATIONS[relation](value, bound)


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
