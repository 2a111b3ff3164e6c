"""An algorithm's steps and penalties checked by the theorems it states, before a run starts.

An error is raised only where divergence is certain. One round is worked out along a direction in
which all losses have curvature h: it multiplies the distance to the optimum by a factor. Divergence
is certain only if that factor exceeds 1 in size at every h > 0, or at every h in (0, L] where L is
exact. Anything less is a warning.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from covey.advice.theory import stated_by
from covey.errors import ConfigError
from covey.kernel.advice import Advice, Excess, Loss, RoundFactor, Vector
from covey.kernel.algorithm import Algorithm

_FLATTEST = 1e-100  # stands for the limit of no curvature
_CURVATURES = np.concatenate([[_FLATTEST], np.logspace(-9, 9, 1801)])
_ZOOMS = 4  # how often the grid is refined where a round comes closest to converging
_VALLEYS = 8  # local minima around which it is refined


def advise(
    algorithm: Algorithm,
    *,
    smoothness: float | None = None,
    strong: float | None = None,
    exact: bool = False,
    examples: int | None = None,
    devices: int | None = None,
    rounds: int | None = None,
    scheduled: bool = False,
) -> list[Advice]:
    """All findings on an algorithm's steps and penalties, the most serious first.

    `smoothness` is the L of every device's loss and `strong` its mu, l2 included. `exact` says that
    L is exact, as on quadratics, and not an estimate: then only curvatures up to L count.
    `examples` is the size of the smallest training set, `devices` and `rounds` are those of the
    run. `scheduled` says that later rounds have smaller rates: then no divergence is certain.

    >>> from covey.algorithms import PFedMe
    >>> print(advise(PFedMe(lam=30, personal_lr=0.05, lr=0.05))[-3])
    note: inner step: personal_lr*lam = 0.05*30 = 1.5: stable only for L < 2/personal_lr - lam = 10.
    """
    for name, value in (("smoothness", smoothness), ("strong", strong)):
        if value is not None and not 0 <= value < math.inf:
            raise ConfigError(f"{name} = {value!r} must be a number of 0 or more.")
    if smoothness is not None and strong is not None and strong > smoothness:
        raise ConfigError(
            f"strong = {strong!r} exceeds smoothness = {smoothness!r}; no curvature can be both."
        )
    loss = Loss(smoothness, strong, exact, examples, devices, rounds, scheduled)
    try:
        items = [
            _one_round(statement, loss) if isinstance(statement, RoundFactor) else statement
            for statement in stated_by(algorithm, "advice")(algorithm, loss)
        ]
    except (OverflowError, ZeroDivisionError) as error:
        raise ConfigError(
            f"{type(algorithm).__name__}: its fields are so large or so small that a round's "
            "factor is no number; choose others."
        ) from error
    order = ("error", "warning", "note")
    return sorted(items, key=lambda item: order.index(item.level))


def _one_round(stated: RoundFactor, loss: Loss) -> Advice:
    """A whole round on quadratics: certain divergence, or the curvatures at which it converges."""
    excess = stated.excess
    up_to = loss.L if loss.exact and loss.L else math.inf
    if _always_diverges(excess, up_to):
        return _hopeless(excess, up_to, stated.certain and not loss.scheduled)
    low, high = _stretch(excess)
    numbers = {"lowest curvature": low, "highest curvature": high}
    level: Literal["warning", "note"] = "note"
    text = f"on quadratics it converges at {_words(low, high)}."
    if loss.L is not None:
        factor = 1 + float(_evaluate(excess, np.array([loss.L]))[0])
        numbers["factor at L"] = factor
        text = f"at curvature L = {loss.L:g} a round multiplies the error by {factor:.3g}"
        if bool(_margin(excess, np.array([loss.L]))[0] > 0):
            level = "warning"
            text += f"{loss.guess}; it converges at {_words(low, high)}"
        text += "."
    return Advice(level, "one round", text, numbers)


def _hopeless(excess: Excess, up_to: float, certain: bool) -> Advice:
    """The error where a round diverges at every curvature up to `up_to`."""
    highest = min(up_to, 1e3)
    usual = np.geomspace(1e-6 * highest, highest, 601)
    median = float(np.median(np.abs(1 + _evaluate(excess, usual))))
    numbers = {"median factor": median}
    every = "every curvature"
    if up_to < math.inf:
        every = f"every curvature up to L = {up_to:g}"
        numbers["factor at L"] = 1 + float(_evaluate(excess, np.array([up_to]))[0])
    level: Literal["error", "warning"] = "error"
    start = "one round"
    if not certain:
        level = "warning"
        start = "while every list and schedule has its largest entry, one round"
    text = (
        f"{start} multiplies the distance to the optimum by more than 1 at {every} "
        f"(median {median:.3g}): this diverges whatever the loss; "
        "lower the step sizes or the penalties."
    )
    return Advice(level, "one round", text, numbers)


def _evaluate(excess: Excess, curvatures: Vector) -> Vector:
    """The excess at each curvature; infinite where it is too large for a float or not a number."""
    with np.errstate(all="ignore"):
        return np.nan_to_num(excess(curvatures), nan=np.inf, posinf=np.inf, neginf=-np.inf)


def _margin(excess: Excess, curvatures: Vector) -> Vector:
    """By how much a round's factor exceeds 1 in size at each curvature: above 0 it diverges."""
    change = _evaluate(excess, curvatures)
    margin: Vector = np.maximum(change, -2 - change)
    return margin


def _always_diverges(excess: Excess, up_to: float) -> bool:
    """Whether a round diverges at every curvature in (0, up_to].

    On a grid, which is refined where the round comes closest to converging.
    """
    grid = _CURVATURES
    if up_to < math.inf:
        grid = np.append(grid[grid < up_to], up_to)
    for _ in range(_ZOOMS):
        margin = _margin(excess, grid)
        if not bool((margin > 0).all()):
            return False
        around = np.pad(margin, 1, constant_values=math.inf)
        below_both = (margin <= around[:-2]) & (margin <= around[2:])
        (valleys,) = np.nonzero(below_both)
        order = np.argsort(margin[valleys], kind="stable")
        lowest = valleys[order[:_VALLEYS]]
        left = grid[np.maximum(lowest - 1, 0)]
        right = grid[np.minimum(lowest + 1, len(grid) - 1)]
        grid = np.unique(np.geomspace(left, right, 65))
    return True


def _stretch(excess: Excess) -> tuple[float, float]:
    """The lowest stretch of curvatures at which a round converges.

    0 and infinity where it reaches an end of the grid.
    """
    stable = _margin(excess, _CURVATURES) <= 0
    if not bool(stable.any()):  # only between the points of the grid
        return math.nan, math.nan
    first = int(stable.argmax())
    end = first + int((~stable[first:]).argmax())  # the next unstable one; `first` if none is
    grid = _CURVATURES.tolist()
    low = _edge(excess, grid[first], grid[first - 1]) if first else 0.0
    high = _edge(excess, grid[end - 1], grid[end]) if end > first else math.inf
    return low, high


def _edge(excess: Excess, stable: float, unstable: float) -> float:
    """The curvature between these two at which a round begins to diverge."""
    for _ in range(60):
        middle = math.sqrt(stable) * math.sqrt(unstable)
        if bool(_margin(excess, np.array([middle]))[0] > 0):
            unstable = middle
        else:
            stable = middle
    return stable


def _words(low: float, high: float) -> str:
    if math.isnan(low):
        return "few curvatures"
    if low == 0 and high == math.inf:
        return "any curvature"
    start = f" from {low:.4g}" if low > 0 else " up"
    end = f" to {high:.4g}" if high < math.inf else ""
    return f"curvatures{start}{end}"
