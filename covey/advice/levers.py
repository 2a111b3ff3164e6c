"""What a measured curvature L implies for an algorithm's steps and penalties.

A step on a loss of curvature L plus lam/2 |x - anchor|^2 goes lr (lam + L) of the way to the
minimum along the steepest direction. Above 2 it diverges there; far below 1 it hardly moves. The
model above sees the loss below through an envelope of curvature lam L/(lam + L), and its step is
measured against that. The personal model itself goes L/(lam + L) of the way to the device's own
minimum: a lam much larger than L keeps all personal models at the model above.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from covey.advice.curvature import Curvature
from covey.advice.theory import stated_by
from covey.kernel.advice import FLAT, Levers, Proposal, Step, Tie, Upper, far, per_cent
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import largest

_RATIOS = (1.0, 0.25)  # lam as multiples of L: personal models go half, or 4/5, of their way
_LOOSER = 1.4  # how many times smaller a penalty must be to be worth a trial


def stated(algorithm: Algorithm, L: float = 0.0) -> Levers:
    """The levers that an algorithm states, or those by the names of its fields."""
    levers: Levers = stated_by(algorithm, "levers")(algorithm, L)
    return levers


def steps(algorithm: Algorithm) -> tuple[Step, ...]:
    """The step sizes on the data loss; fields with a list, one value per node, are left alone."""
    every = stated(algorithm).steps
    return tuple(step for step in every if isinstance(getattr(algorithm, step.field), int | float))


def without(algorithm: Algorithm) -> str:
    """Why an algorithm has no step size that the curvature says anything about."""
    reason = f"{type(algorithm).__name__} has no step size that is a number"
    return stated(algorithm).without or reason


def product(step: Step, algorithm: Algorithm, L: Curvature) -> float:
    """How far a step goes along the steepest direction, 1 being all the way to the minimum."""
    value = float(getattr(algorithm, step.field))
    return value * step.times * (step.tie + L.typical)


def safe(step: Step, L: Curvature) -> float:
    """The step that goes all the way on the median device, and is not unstable on steep ones."""
    typical = 1 / max(step.tie + L.typical, FLAT)
    steep = 2 / max(step.tie + L.high, FLAT)
    return min(typical, steep) / step.times


def moves(algorithm: Algorithm, original: Algorithm, L: Curvature) -> Iterator[Proposal]:
    """Changes of upper models' steps that the curvature suggests.

    Their reasons compare with `original`, the setting of the file.
    """
    for upper in uppers(algorithm, L):
        if far(float(getattr(algorithm, upper.field)), neat(upper.best)):
            yield _moved(upper, original, L)


def ties(algorithm: Any, original: Algorithm, L: Curvature) -> Iterator[Proposal]:
    """Changes of the penalties, with the upper models' steps that must follow them."""
    for penalty in stated(algorithm, L.typical).penalties:
        changes: Iterable[Proposal]
        if isinstance(penalty, Tie):
            changes = _loosened(penalty, algorithm, original, L.typical)
        else:
            changes = (penalty,)
        for change in changes:
            values = dict(change.values)
            reasons = dict(change.reasons)
            changed: Algorithm = replace(algorithm, **values)
            for upper in uppers(changed, L):
                moved = _moved(upper, original, L)
                values |= moved.values
                reasons |= moved.reasons
            yield Proposal(values, reasons)


def neat(value: float) -> float:
    """A value with two digits.

    >>> neat(0.03449), neat(127.3)
    (0.034, 130.0)
    """
    return float(f"{value:.2g}")


def reason(step: Step, original: Algorithm, new: float, L: Curvature) -> str:
    """Why a step of the original setting changes, by the curvature along the rounds tried."""
    share = product(step, original, L)
    if not math.isfinite(share):
        return "the given step is no number"
    formula = f"{step.formula} = {share:.2g}"
    curvature = f"with L = {L.typical:.2g} along the rounds tried"
    old = float(getattr(original, step.field))
    if new < old and share >= 2:
        return f"{formula} is above 2 {curvature}: steps overshoot"
    if new < old and share >= 1:
        return f"{formula} {curvature}, and it grows in training: steps are about to overshoot"
    if new < old:
        return f"{formula} {curvature}; shorter steps did better"
    if share < 0.5:
        down = f"a step goes only {per_cent(share)} of the way down the steepest direction"
        return f"{formula} {curvature}: {down}"
    return f"{formula} {curvature}; longer steps did better"


def uppers(algorithm: Algorithm, L: Curvature) -> list[Upper]:
    """The step sizes of upper models; fields with a list, one value per node, are left alone."""
    every = stated(algorithm, L.typical).uppers
    return [upper for upper in every if isinstance(getattr(algorithm, upper.field), int | float)]


def _moved(upper: Upper, original: Algorithm, L: Curvature) -> Proposal:
    """The best step of an upper model, and how much of its way the model goes by it."""
    new = neat(upper.best)
    every = stated(original, L.typical).uppers
    (old,) = [item for item in every if item.field == upper.field]
    old_step = largest(getattr(original, old.field))
    share = per_cent(new * upper.per_unit)
    before = per_cent(old_step * old.per_unit)
    text = f"{upper.moves} = {share} of the way to {upper.goal} at a time, was {before}"
    return Proposal({upper.field: new}, {upper.field: text})


def _loosened(tie: Tie, algorithm: Algorithm, original: Algorithm, L: float) -> Iterator[Proposal]:
    """Smaller values of a penalty, and of the penalties that are to equal it."""
    names = [tie.field, *tie.alike]
    for ratio in _RATIOS:
        value = neat(ratio * max(L, FLAT) * tie.scale)
        smallest = min(getattr(algorithm, name) for name in names)
        if smallest <= _LOOSER * value:
            continue
        old = float(getattr(original, tie.field)) / tie.scale
        share = f"L/({tie.field} + L) = {per_cent(L / (value / tie.scale + L))}"
        way = f"personal models go {share} of the way to their own minimum"
        why = f"with L = {L:.2g} {way}, was {per_cent(L / (old + L))}"
        yield Proposal(dict.fromkeys(names, value), {tie.field: why, **tie.alike})
