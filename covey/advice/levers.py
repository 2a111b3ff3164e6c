"""Which fields of an algorithm are steps and penalties, and what a measured curvature L asks of them.

A step on a loss of curvature L plus lam/2 |x - anchor|^2 goes lr (lam + L) of the way to the minimum
along the steepest direction: above 2 it diverges there, far below 1 it hardly moves. The model
above sees the loss below through an envelope of curvature lam L/(lam + L), and its step is measured
against that. The personal model itself goes L/(lam + L) of the way to the device's own minimum: a
lam much larger than L keeps all personal models at the model above.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from covey.advice.curvature import Curvature
from covey.algorithms import (
    AL2GD,
    L2GD,
    DemLearn,
    Ditto,
    FedAMP,
    FedMac,
    FedProx,
    HeurFedAMP,
    Nested,
    PerFedAvg,
    PerMFL,
    PFedBayes,
    PFedGP,
    PFedMe,
    SFedHP,
)
from covey.kernel.algorithm import Algorithm

_OUTER = 0.5  # of the way per step of an upper model: it moves, and cannot overshoot what it follows
_TIES = (1.0, 0.25)  # lam as multiples of L: personal models go half, or 4/5, of their way
_FLAT = 1e-2  # a curvature below it asks for no longer steps
_LOOSER = 1.4  # how many times smaller a penalty must be to be worth a trial


@dataclass(frozen=True)
class Step:
    """A field that is a step size on the data loss, `tie` the curvature that penalties add.

    The step taken is the field's value times `times`, as where steps are taken rarely but far.
    """

    field: str
    tie: Callable[[Any], float] = lambda algorithm: 0.0
    tie_name: str = ""
    times: Callable[[Any], float] = lambda algorithm: 1.0

    def product(self, algorithm: Algorithm, L: Curvature) -> float:
        """How far a step goes along the steepest direction, 1 being all the way to the minimum."""
        value = float(getattr(algorithm, self.field))
        return value * self.times(algorithm) * (self.tie(algorithm) + L.typical)

    def safe(self, algorithm: Algorithm, L: Curvature) -> float:
        """The step that goes all the way on the median device, and is not unstable on steep ones."""
        tie = self.tie(algorithm)
        typical = 1 / max(tie + L.typical, _FLAT)
        steep = 2 / max(tie + L.high, _FLAT)
        return min(typical, steep) / self.times(algorithm)

    @property
    def formula(self) -> str:
        """The product, as reasons write it."""
        if self.tie_name:
            return f"{self.field}*({self.tie_name} + L)"
        return f"{self.field}*L"


@dataclass(frozen=True)
class Proposal:
    """New values of some fields, and why."""

    values: dict[str, float]
    reasons: dict[str, str]


def _lam(a: Any) -> float:
    return float(a.lam)


_STEPS: dict[type[Algorithm], tuple[Step, ...]] = {
    AL2GD: (Step("lr", times=lambda a: 1 / (1 - a.p) / (1 - _largest(a.edge_p))),),
    DemLearn: (Step("lr", lambda a: float(a.mu), "mu"),),
    Ditto: (Step("lr"), Step("personal_lr", _lam, "lam")),
    FedAMP: (Step("lr", lambda a: a.lam / a.alpha, "lam/alpha"),),
    FedMac: (Step("personal_lr"),),
    FedProx: (Step("lr", lambda a: float(a.mu), "mu"),),
    HeurFedAMP: (Step("lr", _lam, "lam"),),
    L2GD: (Step("lr", times=lambda a: 1 / (1 - a.p)),),
    Nested: (),
    PFedBayes: (),
    PFedGP: (),
    PFedMe: (Step("personal_lr", lambda a: a.lam + a.weight_decay, "lam"),),
    PerFedAvg: (Step("lr"),),
    PerMFL: (Step("lr", _lam, "lam"),),
    SFedHP: (Step("lr2", lambda a: float(a.lam1), "lam1"),),
}
"""The algorithms whose steps are not simply the fields called lr or something_lr."""

WITHOUT = {
    Nested: "the steps of Nested are those of its levels; `--theory` checks each",
    PFedBayes: "its steps are Adam's, whose size does not depend on the curvature",
    PFedGP: "its loss is a Gaussian process's, and its gradients are clipped",
}
"""Algorithms without a step that the curvature says anything about."""


def steps(algorithm: Algorithm) -> tuple[Step, ...]:
    """The step sizes on the data loss; fields that are lists, with one value per node, are left alone."""
    if not is_dataclass(algorithm):
        return ()
    known = _STEPS.get(type(algorithm))
    if known is None:
        names = [field.name for field in fields(algorithm)]
        known = tuple(Step(name) for name in names if re.fullmatch(r"(?!alpha_)([a-z]+_)?lr", name))
    return tuple(step for step in known if isinstance(getattr(algorithm, step.field), int | float))


def moves(algorithm: Algorithm, given: Algorithm, L: Curvature) -> Iterator[Proposal]:
    """Changes of the upper models' steps that the curvature suggests; reasons are relative to the `given` setting."""
    kind = type(algorithm)
    if kind in _OUTER_MOVES:
        yield from _OUTER_MOVES[kind](algorithm, given, L.typical)


def ties(algorithm: Algorithm, given: Algorithm, L: Curvature) -> Iterator[Proposal]:
    """Changes of the penalties, with the steps that must follow them."""
    kind = type(algorithm)
    if kind in _TIE_MOVES:
        yield from _TIE_MOVES[kind](algorithm, given, L.typical)


def neat(value: float) -> float:
    """A value with two digits.

    >>> neat(0.03449), neat(127.3)
    (0.034, 130.0)
    """
    return float(f"{value:.2g}")


def per_cent(share: float) -> str:
    """A share in words of a reason.

    >>> per_cent(0.034), per_cent(0.0004)
    ('3.4 %', '0.04 %')
    """
    return f"{float(f'{100 * share:.2g}'):g} %"


def _largest(value: Any) -> float:
    return float(max(value)) if isinstance(value, list | tuple) else float(value)


def _envelope(*curvatures: float) -> float:
    """The curvature of a loss seen through penalties: springs in series."""
    return 1 / sum(1 / max(h, _FLAT) for h in curvatures)


def _far(old: float, new: float) -> bool:
    """Whether a new value is worth a trial."""
    return not 0.6 < old / new < 1.7


def _pfedme_lr(lam: float, L: float) -> float:
    return neat(min(_OUTER / _envelope(lam, L), _OUTER / lam))


def _pfedme_outer(a: PFedMe, given: PFedMe, L: float) -> Iterator[Proposal]:
    new = _pfedme_lr(a.lam, L)
    if not _far(a.lr, new):
        return
    text = _moves_to("w_i moves lr*lam", "theta", new * a.lam, given.lr * given.lam)
    yield Proposal({"lr": new}, {"lr": text})


def _pfedme_ties(a: PFedMe, given: PFedMe, L: float) -> Iterator[Proposal]:
    for ratio in _TIES:
        lam = neat(ratio * max(L, _FLAT))
        if a.lam <= _LOOSER * lam:
            continue
        lr = _pfedme_lr(lam, L)
        moved = _moves_to("w_i moves lr*lam", "theta", lr * lam, given.lr * given.lam)
        reasons = {"lam": _held(given.lam, lam, L, "lam"), "lr": moved}
        yield Proposal({"lam": lam, "lr": lr}, reasons)


def _moves_to(what: str, goal: str, share: float, before: float) -> str:
    """Why an upper model's step."""
    return f"{what} = {per_cent(share)} of the way to {goal} at a time, was {per_cent(before)}"


def _held(old: float, new: float, L: float, name: str) -> str:
    """Why a smaller penalty."""
    share = f"L/({name} + L) = {per_cent(L / (new + L))}"
    return f"with L = {L:.2g} personal models go {share} of the way to their own minimum, was {per_cent(L / (old + L))}"


def _fedmac_outer(a: FedMac, given: FedMac, L: float) -> Iterator[Proposal]:
    new = neat(_OUTER / a.lam)
    if _far(a.lr, new):
        text = _moves_to("w_i moves lr*lam", "theta", new * a.lam, given.lr * given.lam)
        yield Proposal({"lr": new}, {"lr": text})


def _sfedhp_lr(lam1: float, lam2: float, L: float) -> float:
    both = _envelope(lam1, lam2)
    return neat(min(_OUTER / _envelope(lam1, lam2, L), _OUTER / both))


def _sfedhp_outer(a: SFedHP, given: SFedHP, L: float) -> Iterator[Proposal]:
    new = _sfedhp_lr(a.lam1, a.lam2, L)
    if _far(a.lr1, new):
        moved = new * _envelope(a.lam1, a.lam2)
        yield Proposal({"lr1": new}, {"lr1": _sfedhp_moves(moved, given)})


def _sfedhp_moves(moved: float, given: SFedHP) -> str:
    before = given.lr1 * _envelope(given.lam1, given.lam2)
    return _moves_to("an edge's w_i moves lr1*lam1*lam2/(lam1 + lam2)", "its devices", moved, before)


def _sfedhp_ties(a: SFedHP, given: SFedHP, L: float) -> Iterator[Proposal]:
    for ratio in _TIES:
        lam = neat(ratio * max(L, _FLAT))
        if min(a.lam1, a.lam2) <= _LOOSER * lam:
            continue
        lr1 = _sfedhp_lr(lam, lam, L)
        reasons = {
            "lam1": _held(given.lam1, lam, L, "lam1"),
            "lam2": "as lam1: an edge stands halfway between its devices and the server",
            "lr1": _sfedhp_moves(lr1 * lam / 2, given),
        }
        yield Proposal({"lam1": lam, "lam2": lam, "lr1": lr1}, reasons)


def _permfl_outer(a: PerMFL, given: PerMFL, L: float) -> Iterator[Proposal]:
    if not isinstance(a.edge_lr, int | float):
        return
    new = neat(_OUTER / (a.lam + a.gamma))
    if not _far(a.edge_lr, new):
        return
    text = _permfl_moves(new * (a.lam + a.gamma), given)
    yield Proposal({"edge_lr": new}, {"edge_lr": text})


def _permfl_moves(moved: float, given: PerMFL) -> str:
    before = _largest(given.edge_lr) * (given.lam + given.gamma)
    return _moves_to("an edge moves edge_lr*(lam + gamma)", "its minimum", moved, before)


def _permfl_ties(a: PerMFL, given: PerMFL, L: float) -> Iterator[Proposal]:
    if not isinstance(a.edge_lr, int | float) or not _far(a.lam, a.gamma):
        return
    edge_lr = neat(_OUTER / (2 * a.gamma))
    share = given.lam / (given.lam + given.gamma)
    reasons = {
        "lam": f"an edge goes lam/(lam + gamma) = {per_cent(share)} of the way to its devices; lam = gamma: halfway",
        "edge_lr": _permfl_moves(edge_lr * 2 * a.gamma, given),
    }
    yield Proposal({"lam": a.gamma, "edge_lr": edge_lr}, reasons)


def _perfedavg_outer(a: PerFedAvg, given: PerFedAvg, L: float) -> Iterator[Proposal]:
    new = neat(_OUTER / max(L, _FLAT))
    if _far(a.alpha, new):
        text = _moves_to("the personal step goes alpha*L", "the minimum", new * L, given.alpha * L)
        yield Proposal({"alpha": new}, {"alpha": text})


def _one_tie(a: Ditto | FedAMP | HeurFedAMP, given: Ditto | FedAMP | HeurFedAMP, L: float) -> Iterator[Proposal]:
    scale = a.alpha if isinstance(a, FedAMP) else 1.0
    for ratio in _TIES:
        lam = neat(ratio * max(L, _FLAT) * scale)
        if a.lam > _LOOSER * lam:
            yield Proposal({"lam": lam}, {"lam": _held(given.lam / scale, lam / scale, L, "lam")})


_Moves = Callable[[Any, Any, float], Iterator[Proposal]]
_OUTER_MOVES: dict[type[Algorithm], _Moves] = {
    FedMac: _fedmac_outer,
    PFedMe: _pfedme_outer,
    PerFedAvg: _perfedavg_outer,
    PerMFL: _permfl_outer,
    SFedHP: _sfedhp_outer,
}
_TIE_MOVES: dict[type[Algorithm], _Moves] = {
    Ditto: _one_tie,
    FedAMP: _one_tie,
    HeurFedAMP: _one_tie,
    PFedMe: _pfedme_ties,
    PerMFL: _permfl_ties,
    SFedHP: _sfedhp_ties,
}


def reason(step: Step, given: Algorithm, new: float, L: Curvature) -> str:
    """Why a step changes from the given one, by the curvature along the rounds that were tried."""
    product = step.product(given, L)
    if not math.isfinite(product):
        return "the given step is no number"
    formula = f"{step.formula} = {product:.2g}"
    where = f"L = {L.typical:.2g} along the rounds tried"
    old = float(getattr(given, step.field))
    if new < old and product >= 2:
        return f"{formula} is above 2 with {where}: steps overshoot"
    if new < old and product >= 1:
        return f"{formula} with {where}, and it grows in training: steps are about to overshoot"
    if new < old:
        return f"{formula} with {where}; shorter steps did better"
    if product < 0.5:
        return f"{formula} with {where}: a step goes only {per_cent(product)} of the way down the steepest direction"
    return f"{formula} with {where}; longer steps did better"
