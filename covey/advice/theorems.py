"""Step sizes and penalties against the theorems, before a run starts.

An error is given only where divergence is certain. One round is worked out along a direction in
which all losses have curvature h: it multiplies the distance to the optimum by a factor, and
divergence is certain only if that factor exceeds 1 in size at every h > 0, or at every h in (0, L]
where L is known exactly. Anything less is a warning: a loop with lr lam >= 2 leaves its own
minimiser, yet after an odd number of steps it ends on the far side of it, and the round may
converge for flat losses. The theorems' conditions are those corrected for misprints; they are
sufficient, and mostly far below what the papers ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from covey.algorithms import (
    AL2GD,
    APFL,
    L2GD,
    Centralised,
    Clustered,
    DemLearn,
    Ditto,
    FedAlt,
    FedAMP,
    FedAvg,
    FedMac,
    FedPer,
    FedProx,
    FedRep,
    FedSim,
    FineTune,
    HeurFedAMP,
    HierFAVG,
    Local,
    Nested,
    PerFedAvg,
    PerMFL,
    PFedBayes,
    PFedGP,
    PFedMe,
    Pruned,
    Scaffold,
    SFedHP,
)
from covey.errors import ConfigError
from covey.kernel.algorithm import Algorithm, PerNode

Vector = npt.NDArray[np.float64]
Excess = Callable[[Vector], Vector]
"""The factor by which one round multiplies the distance to the optimum, minus 1, by curvature.

Minus 1, because at small curvatures the factor differs from 1 by less than a float can hold.
"""
Condition = tuple[str, bool | None]
"""In words, and whether it holds; None where it takes an L that is not known."""

_FLATTEST = 1e-100  # stands for the limit of no curvature
_CURVATURES = np.concatenate([[_FLATTEST], np.logspace(-9, 9, 1801)])
_ZOOMS = 4  # how often the grid is refined where a round comes closest to converging
_VALLEYS = 8  # places where it is refined
_LOOPS = 10_000  # asks of a round up to which `Nested` is worked out
_NU = 1e-3  # how far PerMFL's inner loops are to shrink their starting error; the paper leaves nu open


@dataclass(frozen=True)
class Advice:
    """One finding; `level` is "error" only where divergence is certain, "note" where nothing needs to be done."""

    level: Literal["error", "warning", "note"]
    about: str
    text: str
    numbers: dict[str, float]

    def __str__(self) -> str:
        return f"{self.level}: {self.about}: {self.text}"


@dataclass(frozen=True)
class _Loss:
    """What is known of the devices' losses.

    Smoothness L, strong convexity mu, whether L is exact, and the size of the smallest training set.
    """

    L: float | None
    mu: float | None
    exact: bool
    examples: int | None = None

    @property
    def guess(self) -> str:
        """What a text adds where L is an estimate."""
        return "" if self.exact else " (if the estimate is right)"


def advise(
    algorithm: Algorithm,
    *,
    smoothness: float | None = None,
    strong: float | None = None,
    exact: bool = False,
    examples: int | None = None,
) -> list[Advice]:
    """Everything there is to say about an algorithm's steps and penalties, the most serious first.

    `smoothness` is the L of every device's loss and `strong` its mu, l2 included; `exact` says that L is known, as on
    quadratics, and not estimated: then only curvatures up to L count. `examples` is the size of the
    smallest training set.

    >>> print(advise(PFedMe(lam=30, personal_lr=0.05, lr=0.05))[-3])
    note: inner step: personal_lr*lam = 0.05*30 = 1.5: stable only for L < 2/personal_lr - lam = 10.
    """
    for name, value in (("smoothness", smoothness), ("strong", strong)):
        if value is not None and not 0 <= value < math.inf:
            raise ConfigError(f"{name} = {value!r} must be a number of 0 or more.")
    if smoothness is not None and strong is not None and strong > smoothness:
        raise ConfigError(f"strong = {strong!r} exceeds smoothness = {smoothness!r}; no curvature can be both.")
    check = _CHECKS.get(type(algorithm))
    if check is None:
        name = type(algorithm).__name__
        return [
            Advice("note", "unknown algorithm", f"no condition on the steps of {name} is known here; nothing was checked.", {})
        ]
    try:
        found = list(check(algorithm, _Loss(smoothness, strong, exact, examples)))
    except (OverflowError, ZeroDivisionError) as error:
        name = type(algorithm).__name__
        rule = "its fields are so large or so small that a round's factor is no number"
        raise ConfigError(f"{name}: {rule}; choose others.") from error
    return sorted(found, key=lambda advice: ("error", "warning", "note").index(advice.level))


def _inner(
    lr: float, lam: float, loss: _Loss, *, steps: int, total: int = 0, curve: float = 0.0, names: tuple[str, str] = ("lr", "lam")
) -> Iterator[Advice]:
    """`steps` gradient steps on a loss + lam/2 |x - anchor|^2, `total` of them before x is set back to its anchor.

    `curve` is what the smooth l1 adds near zero; its cycle is bounded, so that it is left to `_smooth_l1`.
    """
    product = f"{names[0]}*{names[1]} = {lr:g}*{lam:g} = {lr * lam:g}" if lam else f"{names[0]} = {lr:g}"
    numbers = {f"{names[0]}*{names[1]}": lr * lam} if lam else {names[0]: lr}
    bound, room = f"2/{names[0]}" + (f" - {names[1]}" if lam else ""), 2 / lr - lam
    if room <= 0:
        yield _too_long(product, numbers, 1 - lr * lam, steps, max(total, steps), names)
        return
    numbers["largest L"] = room
    if loss.L is None:
        near = f", and near zero for L < {room - curve:g}" if 0 < curve < room else ""
        numbers |= {"largest L near zero": room - curve} if curve else {}
        yield Advice("note", "inner step", f"{product}: stable only for L < {bound} = {room:g}{near}.", numbers)
        return
    curvature, numbers = lr * (lam + loss.L), numbers | {"lr*(lam+L)": lr * (lam + loss.L)}
    shown = f"{names[0]}*({names[1]}+L) = {curvature:g}" if lam else f"{names[0]}*L = {curvature:g}"
    if curvature < 2:
        yield Advice("note", "inner step", f"{shown} is below 2: the step is stable.", numbers)
        return
    largest = 2 / (lam + loss.L)
    text = f"{shown} is 2 or more: each step overshoots{loss.guess}; {names[0]} < {largest:.3g} is stable."
    yield Advice("warning", "inner step", text, numbers)


def _too_long(product: str, numbers: dict[str, float], factor: float, steps: int, total: int, names: tuple[str, str]) -> Advice:
    """Of a step that overshoots by its penalty alone."""
    fix, numbers = f"lower {names[0]} or {names[1]}", numbers | {"factor": factor}
    if steps > 1:
        text = f"{product} is 2 or more: every step multiplies the distance to its minimiser by {factor:g} or worse; {fix}."
        return Advice("warning", "inner step", text, numbers)
    if total > 1:
        text = f"{product} is 2 or more: the model overshoots its anchor, which only moving the anchor can make up for; {fix}."
        return Advice("warning", "inner step", text, numbers)
    text = f"{product}, but a single step starts at its anchor and does not feel {names[1]}; with more steps it would diverge."
    return Advice("note", "inner step", text, numbers)


def _smooth_l1(
    lr: float, lam: float, gamma: float, rho: float, *, L: float | None = None, names: tuple[str, str, str]
) -> Iterator[Advice]:
    """The curvature gamma/rho at zero: past the edge a weight does not settle, but alternates.

    Its two-cycle +-a solves a = lr gamma tanh(a/rho)/(2 - lr lam), with lam + L for lam where the loss
    curves: less than the same without tanh, and close to it once a is a few rho.
    """
    tied = lr * (lam + (L or 0.0))
    curvature = tied + lr * gamma / rho
    if gamma == 0 or curvature <= 2 or tied >= 2:
        return
    step, tie, penalty = names
    limit = lr * gamma / (2 - tied)
    cut = max(3 * rho, 2 * lr * gamma / (2 - lr * lam))
    ties = [*([tie] if lam else []), *(["L"] if L else [])]
    divisor = {0: "2", 1: f"(2 - {step}*{''.join(ties)})"}.get(len(ties), f"(2 - {step}*({'+'.join(ties)}))")
    terms = "+".join([*ties, f"{penalty}/rho"])
    hidden = "hides it" if limit <= cut else "does not hide it"
    text = (
        f"{step}*({terms}) = {curvature:.4g} is above 2: weights near zero do not settle but alternate "
        f"in sign with an amplitude of up to {step}*{penalty}/{divisor} = {limit:.2g}. The cut at {cut:.2g} {hidden}; "
        f'l1="prox", where there is one, reaches exact zeros, and {step} < {2 / (curvature / lr):.2g} would settle.'
    )
    numbers = {f"{step}*({terms})": curvature, "largest amplitude": limit, "cut": cut}
    yield Advice("warning", "smooth l1", text, numbers)


def _one_round(excess: Excess, loss: _Loss, *, certain: bool = True) -> Iterator[Advice]:
    """A whole round on quadratics: certain divergence, or the curvatures at which it converges.

    Without `certain` nodes differ in what they do: the round of those that go furthest is no proof.
    """
    up_to = loss.L if loss.exact and loss.L else math.inf
    if _always_diverges(excess, up_to):
        yield _hopeless(excess, up_to, certain)
        return
    low, high = _stretch(excess)
    where = _words(low, high)
    numbers = {"lowest curvature": low, "highest curvature": high}
    if loss.L is None:
        yield Advice("note", "one round", f"on quadratics it converges at {where}.", numbers)
        return
    change = _evaluate(excess, np.array([loss.L]))
    factor = 1 + float(change[0])
    numbers["factor at L"] = factor
    if not bool(_margin(change)[0] > 0):
        text = f"at curvature L = {loss.L:g} a round multiplies the error by {factor:.3g}."
        yield Advice("note", "one round", text, numbers)
        return
    text = f"at curvature L = {loss.L:g} a round multiplies the error by {factor:.3g}{loss.guess}; it converges at {where}."
    yield Advice("warning", "one round", text, numbers)


def _hopeless(excess: Excess, up_to: float, certain: bool) -> Advice:
    """Of a round that diverges at every curvature up to one, the error."""
    highest = min(up_to, 1e3)
    usual = np.geomspace(1e-6 * highest, highest, 601)
    median = float(np.median(np.abs(1 + _evaluate(excess, usual))))
    every = "every curvature" if up_to == math.inf else f"every curvature up to L = {up_to:g}"
    start = "one round" if certain else "with the largest entry of every list, one round"
    text = (
        f"{start} multiplies the distance to the optimum by more than 1 at {every} "
        f"(median {median:.3g}): this diverges whatever the loss; lower the step sizes or the penalties."
    )
    numbers = {"median factor": median}
    if up_to < math.inf:
        numbers["factor at L"] = 1 + float(_evaluate(excess, np.array([up_to]))[0])
    return Advice("error" if certain else "warning", "one round", text, numbers)


def _evaluate(excess: Excess, curvatures: Vector) -> Vector:
    """Factors too large for a float are infinite, as are differences of two such."""
    with np.errstate(all="ignore"):
        return np.nan_to_num(excess(curvatures), nan=np.inf, posinf=np.inf, neginf=-np.inf)


def _margin(change: Vector) -> Vector:
    """By how much the factor 1 + change exceeds 1 in size: above 0 where a round diverges."""
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
        margin = _margin(_evaluate(excess, grid))
        if not bool((margin > 0).all()):
            return False
        grid = _around_valleys(grid, margin)
    return True


def _around_valleys(grid: Vector, margin: Vector) -> Vector:
    """A finer grid between the neighbours of the lowest local minima."""
    before = np.concatenate([[math.inf], margin[:-1]])
    after = np.concatenate([margin[1:], [math.inf]])
    (valleys,) = np.nonzero((margin <= before) & (margin <= after))
    lowest = valleys[np.argsort(margin[valleys], kind="stable")[:_VALLEYS]]
    left = grid[np.maximum(lowest - 1, 0)]
    right = grid[np.minimum(lowest + 1, len(grid) - 1)]
    return np.unique(np.geomspace(left, right, 65))


def _stretch(excess: Excess) -> tuple[float, float]:
    """The lowest stretch of curvatures at which a round converges.

    0 and infinity where it reaches an end of the grid.
    """
    stable = _margin(_evaluate(excess, _CURVATURES)) <= 0
    if not bool(stable.any()):  # only between the points of the grid
        return math.nan, math.nan
    first = int(stable.argmax())
    end = first + int((~stable[first:]).argmax())  # the next unstable one, or `first` if there is none
    low, high = 0.0, math.inf
    if first > 0:
        low = _edge(excess, float(_CURVATURES[first]), float(_CURVATURES[first - 1]))
    if end > first:
        high = _edge(excess, float(_CURVATURES[end - 1]), float(_CURVATURES[end]))
    return low, high


def _edge(excess: Excess, stable: float, unstable: float) -> float:
    """The curvature between these two at which a round begins to diverge."""
    for _ in range(60):
        middle = math.sqrt(stable) * math.sqrt(unstable)
        if bool(_margin(_evaluate(excess, np.array([middle])))[0] > 0):
            unstable = middle
        else:
            stable = middle
    return stable


def _words(low: float, high: float) -> str:
    if math.isnan(low):
        return "few curvatures"
    below = f"curvatures up to {high:.4g}" if high < math.inf else "any curvature"
    return below if low == 0 else f"curvatures from {low:.4g}" + (f" to {high:.4g}" if high < math.inf else "")


def _theorem(about: str, conditions: Sequence[Condition], numbers: dict[str, float], end: str = "") -> Advice:
    """Which conditions of a theorem hold."""
    words = {True: "holds", False: "fails", None: "takes an L that is not given"}
    text = "; ".join(f"{condition}: {words[holds]}" for condition, holds in conditions)
    return Advice("note", about, f"{text}{'; ' + end if end else ''}.", numbers)


def _outer(lr: float, lam: float, *, names: tuple[str, str], largest: float, why: str) -> Iterator[Advice]:
    """The step of w_i towards theta, which itself follows w_i: `largest` is the L up to which the two converge together."""
    if lr * lam < 2:
        return
    step, tie = names
    text = (
        f"{step}*{tie} = {lr:g}*{lam:g} = {lr * lam:g} is 2 or more: w_i overshoots theta by more than their distance; "
        f"with theta at its minimiser it converges only for {why} = {largest:.4g}; lower {step}."
    )
    yield Advice("warning", "outer step", text, {f"{step}*{tie}": lr * lam, "largest L": largest})


def _server(beta: float, moved: float, text: str) -> Iterator[Advice]:
    """pFedMe's server: w_i has gone `moved` of the way to theta, and w goes beta times as far."""
    factor = 1 - beta * moved
    if not abs(factor) < 1:
        text = f"{text} = {factor:.3g} is not below 1 in size: the server overshoots (a heuristic); lower beta = {beta:g}."
        yield Advice("warning", "server step", text, {"server factor": factor, "beta": beta})


def _envelope_bound(product: float, lam: float) -> float:
    """The L at which product * L/(lam+L) reaches 2; at a product of 2 no L does."""
    return 2 * lam / (product - 2) if product > 2 else math.inf


def _power(lr: float, lam: float, h: Vector, steps: int) -> Vector:
    """(1 - lr (lam + h))^steps - 1, to the last digits also where the power is close to 1 or -1."""
    speed = lr * (lam + h)
    beyond = (lr * lam - 2) + lr * h  # the base is -(1 + beyond) where a step overshoots
    short = np.expm1(steps * np.log1p(-np.minimum(speed, 1)))
    long = np.expm1(steps * np.log1p(np.maximum(beyond, -1)))
    overshot = long if steps % 2 == 0 else -2 - long
    power: Vector = np.where(speed <= 1, short, overshot)
    return power


def _loop(start: Vector, power: Vector, end: Vector) -> Vector:
    """x after the steps whose `_power` this is, towards `end`; all relative to the start of the round."""
    return start + power * (start - end)


def _prox_round(lr: float, lam: float, steps: int) -> Excess:
    """FedProx and its like: the anchor becomes the mean after `steps` on loss + lam/2 |x - anchor|^2."""
    return lambda h: h / (h + lam) * _power(lr, lam, h, steps)


def _pfedme(a: PFedMe, loss: _Loss) -> Iterator[Advice]:
    lam, names = a.lam + a.weight_decay, ("personal_lr", "lam")
    yield from _inner(a.personal_lr, lam, loss, steps=a.steps, total=a.steps * a.local_rounds, curve=a.gamma / a.rho, names=names)
    yield from _smooth_l1(a.personal_lr, lam, a.gamma, a.rho, L=loss.L, names=(*names, "gamma"))
    largest = _envelope_bound(a.lr * a.lam, a.lam)
    yield from _outer(a.lr, a.lam, names=("lr", "lam"), largest=largest, why="L < 2 lam/(lr lam - 2)")
    yield from _server(a.beta, 1 - (1 - a.lr * a.lam) ** a.local_rounds, "1 - beta (1 - (1 - lr lam)^R)")
    yield from _one_round(lambda h: _pfedme_round(a, h), loss)
    yield from _pfedme_theorems(a, loss)


def _pfedme_round(a: PFedMe, h: Vector) -> Vector:
    w = theta = np.zeros_like(h)
    power = _power(a.personal_lr, a.lam + a.weight_decay, h, a.steps)
    for _ in range(a.local_rounds):
        end = (a.lam * w - h - a.weight_decay) / (h + a.lam + a.weight_decay)
        theta = _loop(theta, power, end)
        w = w - a.lr * a.lam * (w - theta)
    return a.beta * w


def _pfedme_theorems(a: PFedMe, loss: _Loss) -> Iterator[Advice]:
    scale = a.beta * a.local_rounds
    beta: Condition = (f"beta = {a.beta:g} >= 1", a.beta >= 1)
    if loss.mu:
        kappa = (a.lam + loss.mu) / loss.mu  # L_F = lam over mu_F = lam mu / (lam + mu)
        most = 1 / (6 * a.lam * (3 + 128 * kappa / a.beta)) / scale
        yield _theorem("Theorem 1 of pFedMe", [_at_most("lr", a.lr, most), beta], {"largest lr": most, "kappa_F": kappa})
    most, L = 1 / (75 * a.lam**3) / scale, None if loss.L is None else loss.L + a.gamma / a.rho
    least = None if L is None else math.sqrt(8 * L**2 + 1)
    wide = (f"lam = {a.lam:g} >= sqrt(8 L^2 + 1){_is(least)}", None if least is None else a.lam >= least)
    numbers = {"largest lr": most} | ({} if least is None else {"least lam": least})
    yield _theorem("Theorem 2 of pFedMe", [_at_most("lr", a.lr, most), wide, beta], numbers)


def _fedmac(a: FedMac, loss: _Loss) -> Iterator[Advice]:
    curve = a.gamma / a.rho if a.l1 == "smooth" else 0.0
    total = a.steps * a.local_rounds
    yield from _inner(a.personal_lr, 0.0, loss, steps=max(total, a.steps), curve=curve, names=("personal_lr", "lam"))
    if a.l1 == "smooth":
        yield from _smooth_l1(a.personal_lr, 0.0, a.gamma, a.rho, L=loss.L, names=("personal_lr", "lam", "gamma"))
        yield from _smooth_l1(a.lr, a.lam, a.gamma_w, a.rho, names=("lr", "lam", "gamma_w"))
    if a.gamma_w:
        far = a.lr * a.gamma_w
        text = f"lr*gamma_w = {a.lr:g}*{a.gamma_w:g} = {far:g}: how far the penalty moves a weight of w_i in one step"
        size: Literal["warning", "note"] = "warning" if far > 0.1 else "note"  # weights of trained models are of this size
        end = ", more than most weights of a model are large; lower gamma_w or lr." if far > 0.1 else "."
        yield Advice(size, "penalty step", text + end, {"lr*gamma_w": far})
    largest = a.lr * a.lam**2 / (a.lr * a.lam - 2) if a.lr * a.lam > 2 else math.inf
    yield from _outer(a.lr, a.lam, names=("lr", "lam"), largest=largest, why="lam < L < lr lam^2/(lr lam - 2)")
    yield from _server(a.beta, 1 - (1 - a.lr * a.lam) ** a.local_rounds, "1 - beta (1 - (1 - lr lam)^R)")
    yield from _one_round(lambda h: _fedmac_round(a, h), loss)
    yield from _correlation(a, loss)


def _fedmac_round(a: FedMac, h: Vector) -> Vector:
    w = theta = np.zeros_like(h)
    power = _power(a.personal_lr, 0.0, h, a.steps)
    for _ in range(a.local_rounds):
        theta = _loop(theta, power, (a.lam * (1 + w) - h) / h)
        w = w - a.lr * a.lam * (w - theta)
    return a.beta * w


def _correlation(a: FedMac, loss: _Loss) -> Iterator[Advice]:
    """What -lam <theta, w> does to theta, and to the convexity of the whole."""
    pull = a.personal_lr * a.lam
    if pull * a.steps * a.local_rounds < 0.01:
        text = (
            f"the correlation adds personal_lr*lam*w = {pull:.2g}*w per step, so that theta is nearly local SGD and what acts is "
            f"lr*lam = {a.lr * a.lam:g}, an average of its path; raise lam, and lower lr, to tie theta to w."
        )
        yield Advice("note", "correlation", text, {"personal_lr*lam": pull, "lr*lam": a.lr * a.lam})
    if loss.mu is None:
        return
    curve = a.gamma_w / a.rho if a.l1 == "smooth" else 0.0
    convex: Condition = (f"lam = {a.lam:g} < mu = {loss.mu:g}, without which the problem is not convex", a.lam < loss.mu)
    if a.lam >= loss.mu:
        yield _theorem("Theorem 1 of FedMac", [convex], {"lam": a.lam, "mu": loss.mu})
        return
    smooth, strong = a.lam + curve, a.lam - a.lam**2 / loss.mu
    most = 1 / ((18 + 256 * smooth / strong) * smooth) / (a.beta * a.local_rounds)
    beta: Condition = (f"beta = {a.beta:g} >= 1", a.beta >= 1)
    numbers = {"largest lr": most, "L_F": smooth, "mu_F": strong}
    yield _theorem("Theorem 1 of FedMac", [convex, _at_most("lr", a.lr, most), beta], numbers)


def _sfedhp(a: SFedHP, loss: _Loss) -> Iterator[Advice]:
    both = a.lam1 * a.lam2 / (a.lam1 + a.lam2)
    smooth = a.l1 == "smooth"
    curve, total = a.gamma1 / a.rho if smooth else 0.0, a.steps * a.edge_rounds
    yield from _inner(a.lr2, a.lam1, loss, steps=a.steps, total=total, curve=curve, names=("lr2", "lam1"))
    if smooth:
        yield from _smooth_l1(a.lr2, a.lam1, a.gamma1, a.rho, L=loss.L, names=("lr2", "lam1", "gamma1"))
        yield from _smooth_l1(a.lr1, both, a.gamma2, a.rho, names=("lr1", "lam_bar", "gamma2"))
    largest = _envelope_bound(a.lr1 * both, both)
    yield from _outer(a.lr1, both, names=("lr1", "lam_bar"), largest=largest, why="L < 2 lam_bar/(lr1 lam_bar - 2)")
    yield from _server(a.beta, 1 - (1 - a.lr1 * both) ** a.edge_rounds, "1 - beta (1 - (1 - lr1 lam_bar)^R)")
    yield from _one_round(lambda h: _sfedhp_round(a, h), loss)
    yield from _sfedhp_theorems(a, loss, curve, a.gamma2 / a.rho if smooth else 0.0)


def _sfedhp_round(a: SFedHP, h: Vector) -> Vector:
    w = phi = theta = np.zeros_like(h)
    power = _power(a.lr2, a.lam1, h, a.steps)
    for _ in range(a.edge_rounds):
        theta = _loop(theta, power, (a.lam1 * phi - h) / (h + a.lam1))
        phi = (a.lam1 * theta + a.lam2 * w) / (a.lam1 + a.lam2)
        w = w - a.lr1 * a.lam2 * (w - phi)
    return a.beta * w


def _sfedhp_theorems(a: SFedHP, loss: _Loss, curve1: float, curve2: float) -> Iterator[Advice]:
    """Theorem 1 with both links of its chain; Theorem 3 with lam at least, not at most, the root."""
    L, smooth = None if loss.L is None else loss.L + curve1, a.lam2 + curve2
    first: Condition = (f"lam1 = {a.lam1:g} > 2 (L + gamma1/rho){_is(2 * L if L is not None else None)}", _over(a.lam1, L, 2))
    second: Condition = (f"lam2 = {a.lam2:g} > 2 lam1 = {2 * a.lam1:g}", a.lam2 > 2 * a.lam1)
    yield _theorem("Theorem 1 of sFedHP", [first, second], {"gamma1/rho": curve1, "L_F": smooth}, "a convex loss needs neither")
    lam, scale = a.lam1 * a.lam2 / math.hypot(a.lam1, a.lam2), a.beta * a.edge_rounds
    least = None if L is None else math.sqrt(16 * L**2 + 1)
    most = min(1 / (588 * smooth * lam**2), a.beta / (2 * smooth)) / scale
    wide = (f"lam = {lam:.4g} >= sqrt(16 (L + gamma1/rho)^2 + 1){_is(least)}", None if least is None else lam >= least)
    yield _theorem("Theorem 3 of sFedHP", [wide, _at_most("lr1", a.lr1, most)], {"lam": lam, "largest lr1": most})
    if loss.mu:
        strong = 1 / (1 / loss.mu + 1 / a.lam1 + 1 / a.lam2)
        most = min(1 / strong, 1 / (3 * smooth * (3 + 128 * smooth / (strong * a.beta)))) / scale
        yield _theorem("Theorem 2 of sFedHP", [_at_most("lr1", a.lr1, most)], {"largest lr1": most, "mu_F": strong})


def _permfl(a: PerMFL, loss: _Loss) -> Iterator[Advice]:
    lr, eta = _most(a.lr), _most(a.edge_lr)
    yield from _inner(lr, a.lam, loss, steps=int(_most(a.steps)))
    yield from _team(a, eta)
    yield from _permfl_server(a)
    alike = all(_alike(value) for value in (a.lr, a.edge_lr, a.steps, a.edge_rounds))
    yield from _one_round(lambda h: _permfl_round(a, h), loss, certain=alike)
    yield from _permfl_theorems(a, loss, lr, eta)
    yield from _permfl_loops(a, loss, lr, eta)


def _team(a: PerMFL, eta: float) -> Iterator[Advice]:
    tied, both = eta * a.gamma, eta * (a.lam + a.gamma)
    numbers = {"edge_lr*gamma": tied, "edge_lr*(lam+gamma)": both}
    if tied >= 2 and _most(a.edge_rounds) > 1:
        text = (
            f"edge_lr*gamma = {eta:g}*{a.gamma:g} = {tied:g} is 2 or more: every edge round multiplies the distance of w_i to "
            f"its minimiser by {1 - tied:g} or worse; use edge_lr < {1 / (a.lam + a.gamma):.3g}."
        )
        yield Advice("warning", "edge step", text, numbers)
    elif both >= 1:
        room = 2 / eta - a.gamma
        where = "for every convex loss" if both < 2 else f"only where lam L/(lam+L) < 2/edge_lr - gamma = {room:.3g}"
        text = f"edge_lr*(lam+gamma) = {both:g}; below 1 is sufficient, not necessary: the step is stable {where}."
        yield Advice("warning", "edge step", text, numbers)


def _permfl_server(a: PerMFL) -> Iterator[Advice]:
    """x <- (1 - beta gamma) x + beta gamma mean w_i(x): w_i follows x, so that the first factor alone decides nothing."""
    product = a.beta * a.gamma
    if product <= 1:
        return
    worst = product * a.lam / (a.lam + a.gamma)
    envelope = 2 * a.gamma / (product - 2) if product > 2 else math.inf  # where product s/(gamma+s) is 2
    largest = envelope * a.lam / (a.lam - envelope) if envelope < a.lam else math.inf
    numbers = {"beta*gamma": product, "server factor": 1 - product, "beta*gamma*lam/(lam+gamma)": worst, "largest L": largest}
    if largest == math.inf:
        verdict = f"which every convex loss meets, as beta gamma lam/(lam+gamma) = {worst:.3g} is at most 2."
    else:
        verdict = f"here L < {largest:.3g}; beta <= {1 / a.gamma:.3g} makes it safe for every loss."
    text = (
        f"beta*gamma = {a.beta:g}*{a.gamma:g} = {product:g}, so x is multiplied by 1 - beta*gamma = {1 - product:g}, which "
        "the mean of w_i makes up for as it follows x. At most 1 is sufficient, not necessary: with inner loops run to the "
        f"end it converges while beta gamma s/(gamma+s) < 2, s = lam L/(lam+L), {verdict}"
    )
    yield Advice("warning", "server step", text, numbers)


def _permfl_round(a: PerMFL, h: Vector) -> Vector:
    w = np.zeros_like(h)  # the distance from x, which stays where it is
    eta = _most(a.edge_lr)
    power = _power(_most(a.lr), a.lam, h, int(_most(a.steps)))
    for _ in range(int(_most(a.edge_rounds))):
        theta = _loop(w, power, (a.lam * w - h) / (h + a.lam))
        w = w - eta * (a.lam * (w - theta) + a.gamma * w)
    return a.beta * a.gamma * w


def _permfl_theorems(a: PerMFL, loss: _Loss, lr: float, eta: float) -> Iterator[Advice]:
    """With the rate of (59), which is the algorithm's; the printed (1 - beta)^T renames beta."""
    smooth = None if loss.L is None else 1 / (loss.L + a.lam)
    device: Condition = (f"lr = {lr:g} <= 1/(L+lam){_is(smooth)}", None if smooth is None else lr <= smooth)
    convex = [_at_most("beta", a.beta, 1 / (2 * a.gamma)), _at_most("edge_lr", eta, 0.5 / (a.lam + a.gamma)), device]
    numbers, end = {"largest beta": 1 / (2 * a.gamma)}, "needs mu > 0"
    if loss.mu:
        strong = 1 / (1 / loss.mu + 1 / a.lam + 1 / a.gamma)
        numbers |= {"mu_F": strong, "rate": 1 - a.beta * strong / 2}
        end = f"rate 1 - beta mu_F/2 = {numbers['rate']:.4g} a round, mu_F = {strong:.3g}"
    yield _theorem("Theorem 1 of PerMFL", convex, numbers, end)
    nonconvex = [
        _at_most("beta", a.beta, 1 / (4 * a.gamma)),
        _at_most("edge_lr", eta, 1 / (a.lam + a.gamma)),
        _at_most("lr", lr, 1 / a.lam),
        (f"gamma = {a.gamma:g} > 2 lam = {2 * a.lam:g}", a.gamma > 2 * a.lam),
        (f"lam = {a.lam:g} > 2 L{_is(None if loss.L is None else 2 * loss.L)}", _over(a.lam, loss.L, 2)),
    ]
    yield _theorem("Theorem 2 of PerMFL (nonconvex)", nonconvex, {"largest beta": 1 / (4 * a.gamma)})


def _permfl_loops(a: PerMFL, loss: _Loss, lr: float, eta: float) -> Iterator[Advice]:
    """The K and L of (58), (61), (85) and (88), starting errors taken as equal: only their ratios enter."""
    mu = loss.mu or 0.0
    edge, device = eta * (a.lam * mu / (a.lam + mu) + a.gamma) / 2, lr * (mu + a.lam)
    if edge < 1 and device < 1:
        K, slope = math.log(_NU) / math.log1p(-edge), math.log1p(-edge) / math.log1p(-device)
        numbers = {"K": math.ceil(K), "L": math.ceil(slope * math.ceil(K)), "L per K": slope}
        text = (
            f"to shrink starting errors by nu = {_NU:g} (our choice; mu = {mu:g}), (56) asks for edge_rounds K >= {numbers['K']} "
            f"(now {_most(a.edge_rounds):g}) and (58) for steps L >= {slope:.3g} K = {numbers['L']} (now {_most(a.steps):g})"
        )
        if mu:
            strong = 1 / (1 / mu + 1 / a.lam + 1 / a.gamma)
            numbers["K per T"] = math.log1p(-min(a.beta * strong / 2, 0.999)) / math.log1p(-edge)
            text += f"; for Theorem 1's rate over T rounds (61) asks for K >= {numbers['K per T']:.3g} T, up to a constant"
        yield Advice("note", "K and L of PerMFL (convex)", text + ".", numbers)
    if loss.L is None or not (a.gamma > a.lam > loss.L) or lr * (loss.L + a.lam) >= 2:
        return
    per_k = a.lam**2 * eta / (2 * lr * (1 - lr * (loss.L + a.lam) / 2) * (a.lam - loss.L) ** 2)
    per_t = 2 * a.beta * a.gamma**2 / (eta * (a.gamma - a.lam) ** 2)
    text = f"over T rounds (88) asks for K >= {per_t:.3g} T and (85) for L >= {per_k:.3g} K, gaps of all levels taken as equal."
    yield Advice("note", "K and L of PerMFL (nonconvex)", text, {"K per T": per_t, "L per K": per_k})


def _nested(a: Nested, loss: _Loss) -> Iterator[Advice]:
    """Every level by itself, then a round of all.

    An upper level's loss is made of envelopes, of less curvature than the `lam` below it.
    """
    for level, below in zip(a.levels, [*a.levels[1:], None], strict=True):
        under = loss if below is None else _envelope(below.lam, loss)
        lam = level.ridge + (level.lam if level.coupling == "prox" else 0.0)
        name = level.name or level.tier
        found = list(_inner(level.lr, lam, under, steps=level.steps, curve=level.gamma / level.rho))
        found += _smooth_l1(level.lr, lam, level.gamma, level.rho, L=under.L, names=("lr", "lam", "gamma"))
        yield from (Advice(f.level, f"{name}: {f.about}", f.text, f.numbers) for f in found)
    last = a.levels[-1]
    asks = math.prod(level.steps for level in a.levels[:-1])
    if last.tol is None and last.method == "gradient" and asks <= _LOOPS:
        yield from _one_round(lambda h: _nested_round(a, 0, np.zeros_like(h), h, {}), loss)


def _nested_round(a: Nested, at: int, anchor: Vector, h: Vector, last: dict[int, Vector]) -> Vector:
    """What `Nested.solve` makes of an anchor, both relative to the start of the round.

    `last` has the rows that levels ended with.
    """
    level = a.levels[at]
    x = last.get(at, anchor) if level.warm else anchor
    prox = level.lam if level.coupling == "prox" else 0.0
    linear = level.lam - prox
    if at + 1 == len(a.levels):
        end = (level.lam * anchor + linear - h - level.ridge) / (h + level.ridge + prox)
        x = _loop(x, _power(level.lr, level.ridge + prox, h, level.steps), end)
    else:
        pull, below = a.pull(at), a.levels[at + 1]
        for _ in range(level.steps):
            answer = _nested_round(a, at + 1, x, h, last)
            pulled = pull * (x - answer) if below.coupling == "prox" else -pull * (1 + answer)
            own = prox * (x - anchor) - linear * (1 + anchor) + level.ridge * (1 + x)
            x = x - level.lr * (pulled + own)
    last[at] = x
    return x


def _envelope(lam: float, loss: _Loss) -> _Loss:
    """An envelope's curvature is lam L/(lam+L), and at most lam whatever L; as a bound, it is never exact here."""
    L = lam if loss.L is None else lam * loss.L / (lam + loss.L) if lam + loss.L else 0.0
    return _Loss(L, None, exact=False)


def _plain(a: FedAvg | HierFAVG | Local | Centralised | Scaffold | APFL | FedPer | Clustered, loss: _Loss) -> Iterator[Advice]:
    yield from _inner(a.lr, 0.0, loss, steps=a.steps)


def _finetune(a: FineTune, loss: _Loss) -> Iterator[Advice]:
    yield from _inner(a.lr, 0.0, loss, steps=a.steps)
    yield from _inner(a.tune_lr, 0.0, loss, steps=a.tune_steps, names=("tune_lr", "lam"))


def _fedprox(a: FedProx, loss: _Loss) -> Iterator[Advice]:
    yield from _inner(a.lr, a.mu, loss, steps=a.steps, names=("lr", "mu"))
    yield from _one_round(_prox_round(a.lr, a.mu, a.steps), loss)


def _fedrep(a: FedRep, loss: _Loss) -> Iterator[Advice]:
    yield from _inner(a.lr, 0.0, loss, steps=a.steps)
    yield from _inner(a.head_lr, 0.0, loss, steps=a.head_steps, names=("head_lr", "lam"))


def _parts(a: FedAlt | FedSim | Pruned, loss: _Loss) -> Iterator[Advice]:
    """Only some columns move at a time, whose curvature is at most that of all: what is stable for all is stable for them."""
    above = replace(loss, exact=False)
    steps = a.steps if isinstance(a, FedSim) else a.personal_steps
    yield from _inner(a.lr, 0.0, above, steps=a.steps)
    yield from _inner(a.personal_lr, 0.0, above, steps=steps, names=("personal_lr", "lam"))


def _demlearn(a: DemLearn, loss: _Loss) -> Iterator[Advice]:
    """Where all devices have the same model, groups and mixing leave it as it is."""
    yield from _inner(a.lr, a.mu, loss, steps=a.steps, names=("lr", "mu"))
    yield from _one_round(_prox_round(a.lr, a.mu, a.steps), loss)


def _pfedbayes(a: PFedBayes, loss: _Loss) -> Iterator[Advice]:
    if a.method == "gradient":
        yield _bayes_steps(a, loss)
        return
    text = f"personal_lr = {a.personal_lr:g}: Adam's steps are about that large whatever the curvature, so there is no condition."
    yield Advice("note", "inner step", text, {"personal_lr": a.personal_lr})


def _bayes_steps(a: PFedBayes, loss: _Loss) -> Advice:
    """Plain steps of mean and rho on E f + zeta/n KL(q | local), whose curvatures add up.

    Along a mean f has L and the KL 1/s^2; along rho, where q is the local distribution, they have
    g (g + s (1 - g)) L and 2 g^2/s^2, with g = sigmoid(rho) and s = softplus(rho). The local
    distribution steps on the KL alone.
    """
    s = max(math.log1p(math.exp(a.rho)), 1e-150)
    g = 1 / (1 + math.exp(-a.rho))
    curve = max(1.0, g * (g + s * (1 - g))) * (loss.L or 0.0)
    tie = a.zeta * max(1.0, 2 * g * g) / s**2
    room = 2 / a.personal_lr - curve
    numbers = {"s": s, "zeta/s^2": tie}
    rule = (
        "personal_lr*(L + zeta/(n s^2)) and lr*zeta/(n s^2) must be below 2, where n is a device's number "
        f"of training examples and s = softplus(rho) = {s:.3g} at the start (less s, more n)"
    )
    if room <= 0:
        alone = f"L = {loss.L:g} alone is too much for personal_lr = {a.personal_lr:g}{loss.guess}"
        text = f"{rule}; {alone}; lower it."
        return Advice("warning", "inner step", text, numbers)
    least = max(tie / room, tie * a.lr / 2)
    numbers["least n"] = least
    condition = "" if loss.L is None else f" with L = {loss.L:g}"
    text = f"{rule}: zeta = {a.zeta:g} takes n > {least:.3g}{condition}"
    if loss.examples is not None and loss.examples <= least:
        text = f"{text}, but a device has {loss.examples}; lower personal_lr, lr or zeta."
        return Advice("warning", "inner step", text, numbers)
    return Advice("note", "inner step", f"{text}.", numbers)


def _pfedgp(a: PFedGP, loss: _Loss) -> Iterator[Advice]:
    text = f"lr = {a.lr:g}: the loss is a Gaussian process's, its gradients are clipped at {a.clip:g}; no condition is known."
    yield Advice("note", "inner step", text, {"lr": a.lr, "clip": a.clip})


def _ditto(a: Ditto, loss: _Loss) -> Iterator[Advice]:
    yield from _inner(a.lr, 0.0, loss, steps=a.steps)
    lasting = max(a.personal_steps, 2)  # v goes on from where it stood, so that one step a round adds up
    yield from _inner(a.personal_lr, a.lam, loss, steps=lasting, names=("personal_lr", "lam"))
    yield from _one_round(lambda h: _ditto_round(a, h), loss)


def _ditto_round(a: Ditto, h: Vector) -> Vector:
    """The slower of the two models to converge; v stands where the last round left it, w ignores v.

    Only the sizes of the two factors matter: the root of those of twice as many steps.
    """
    v = _power(a.personal_lr, a.lam, h, 2 * a.personal_steps)
    w = _power(a.lr, 0.0, h, 2 * a.steps)
    both: Vector = np.maximum(v, w)
    excess: Vector = both / (1 + np.sqrt(1 + both))  # sqrt(1 + both) - 1
    return excess


def _fedamp(a: FedAMP | HeurFedAMP, loss: _Loss) -> Iterator[Advice]:
    tie, name = (a.lam / a.alpha, "lam/alpha") if isinstance(a, FedAMP) else (a.lam, "lam")
    yield from _inner(a.lr, tie, loss, steps=a.steps, names=("lr", name))
    yield from _one_round(_prox_round(a.lr, tie, a.steps), loss)


def _perfedavg(a: PerFedAvg, loss: _Loss) -> Iterator[Advice]:
    """The gradient of f(x - alpha grad f(x)) has curvature h (1 - alpha h)^2, and h (1 - alpha h) where H is left out."""
    power = 1 if a.order == "first" else 2

    def excess(h: Vector) -> Vector:
        return _power(a.lr, 0.0, h * (1 - a.alpha * h) ** power, a.steps)

    yield from _one_round(excess, loss)


def _l2gd(a: L2GD, loss: _Loss) -> Iterator[Advice]:
    local = a.lr / (1 - a.p)
    yield from _inner(local, 0.0, loss, steps=2, names=("lr/(1-p)", "lam"))  # flips add up, whatever a round holds
    yield from _overshoot(a.lr * a.lam / a.p, "lr*lam/p")
    if loss.L is not None:
        most = 0.5 / max(loss.L / (1 - a.p), a.lam / a.p, 1e-30)  # 1/2 over the expected smoothness
        yield _theorem("the rate of L2GD", [_at_most("lr", a.lr, most)], {"largest lr": most})


def _al2gd(a: AL2GD, loss: _Loss) -> Iterator[Advice]:
    chances = list(a.edge_p) if isinstance(a.edge_p, Sequence) else [a.edge_p]
    local, pull = a.lr / (1 - a.p) / (1 - max(chances)), a.lr * a.lam / (1 - a.p) / min(chances)
    yield from _inner(local, 0.0, loss, steps=2, names=("lr/((1-p)(1-edge_p))", "lam"))
    yield from _overshoot(pull, "lr*lam/((1-p) edge_p)")
    yield from _overshoot(a.lr * a.gamma / a.p, "lr*gamma/p")


def _overshoot(step: float, name: str) -> Iterator[Advice]:
    """A move towards a mean by `step` times the distance."""
    if step >= 2:
        text = f"{name} = {step:g} is 2 or more: models overshoot their mean by more than their distance; lower lr."
        yield Advice("warning", "averaging step", text, {name: step})


def _at_most(name: str, value: float, bound: float) -> Condition:
    return f"{name} = {value:g} <= {bound:.3g}", value <= bound


def _over(value: float, L: float | None, times: float) -> bool | None:
    return None if L is None else value > times * L


def _is(value: float | None) -> str:
    return "" if value is None else f" = {value:.4g}"


def _most(value: PerNode) -> float:
    """The largest of a list with one entry per node, which is the first to diverge."""
    return float(max(value)) if isinstance(value, Sequence) else float(value)


def _alike(value: PerNode) -> bool:
    """Whether all nodes have the same."""
    return not isinstance(value, Sequence) or len(set(value)) <= 1


_CHECKS: dict[type[Algorithm], Callable[[Any, _Loss], Iterator[Advice]]] = {
    AL2GD: _al2gd,
    APFL: _plain,
    Clustered: _plain,
    DemLearn: _demlearn,
    Ditto: _ditto,
    FedAlt: _parts,
    FedSim: _parts,
    PFedBayes: _pfedbayes,
    PFedGP: _pfedgp,
    Pruned: _parts,
    FedAMP: _fedamp,
    FedPer: _plain,
    FedRep: _fedrep,
    HeurFedAMP: _fedamp,
    L2GD: _l2gd,
    PerFedAvg: _perfedavg,
    Scaffold: _plain,
    FedAvg: _plain,
    FedMac: _fedmac,
    FedProx: _fedprox,
    FineTune: _finetune,
    HierFAVG: _plain,
    Centralised: _plain,
    Local: _plain,
    Nested: _nested,
    PFedMe: _pfedme,
    PerMFL: _permfl,
    SFedHP: _sfedhp,
}
