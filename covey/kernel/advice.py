"""The language in which an algorithm states advice on its steps and penalties.

`advice` of an algorithm or its paper yields what theory says: findings as `Advice`, and as
`RoundFactor` the factor of one round on quadratic losses, which `covey.advice` holds against every
curvature. `levers` names the fields that are steps and penalties; `covey.advice` measures the
curvature of the losses and tries other values of these fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

Excess = Callable[[Vector], Vector]
"""The factor by which one round multiplies the distance to the optimum, minus 1, by curvature.

Minus 1, because at small curvatures the factor differs from 1 by less than a float can hold.
"""

HALFWAY = 0.5
"""The share of its way per step of an upper model: it moves, and cannot overshoot its goal."""

FLAT = 1e-2
"""A curvature below it asks for no longer steps."""


@dataclass(frozen=True)
class Advice:
    """One finding; an "error" is certain divergence, a "note" needs no action."""

    level: Literal["error", "warning", "note"]
    about: str
    text: str
    numbers: dict[str, float]

    def __str__(self) -> str:
        return f"{self.level}: {self.about}: {self.text}"


@dataclass(frozen=True)
class RoundFactor:
    """One round on losses of one curvature; it is checked over all curvatures, or up to a known L.

    `certain` is False where nodes differ in their steps: then the factor of those that go furthest
    proves no divergence.
    """

    excess: Excess
    certain: bool = True


Statement = Advice | RoundFactor
"""What `advice` yields."""


@dataclass(frozen=True)
class Loss:
    """The devices' losses: smoothness L, strong convexity mu, whether L is exact.

    `examples` is the size of the smallest training set, `devices` and `rounds` are those of the
    run. None: not known. `scheduled` says that later rounds have smaller rates.
    """

    L: float | None
    mu: float | None
    exact: bool
    examples: int | None = None
    devices: int | None = None
    rounds: int | None = None
    scheduled: bool = False

    @property
    def guess(self) -> str:
        """The words a text adds where L is an estimate."""
        if self.exact:
            return ""
        return " (if the estimate is right)"


@dataclass(frozen=True)
class Step:
    """A field that is a step size on the data loss, and the curvature `tie` that penalties add.

    The step taken is the field's value times `times`, as where steps are taken rarely but far.
    """

    field: str
    tie: float = 0.0
    tie_name: str = ""
    times: float = 1.0

    @property
    def formula(self) -> str:
        """The share of the way to the minimum, as reasons write it.

        >>> Step("lr").formula, Step("lr", 2.0, "lam").formula
        ('lr*L', 'lr*(lam + L)')
        """
        if self.tie_name:
            return f"{self.field}*({self.tie_name} + L)"
        return f"{self.field}*L"


@dataclass(frozen=True)
class Upper:
    """A field that is the step of an upper model, which goes the field times `per_unit` of its way.

    `best` is the size to try; `moves` and `goal` say in a reason which model goes where.
    """

    field: str
    best: float
    per_unit: float
    moves: str
    goal: str


@dataclass(frozen=True)
class Tie:
    """A field that holds personal models; the search tries smaller values, multiples of L.

    The curvature of the penalty is the field's value over `scale`. `alike` names further fields
    that take the same value, each with its reason.
    """

    field: str
    scale: float = 1.0
    alike: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Proposal:
    """New values of some fields, and why."""

    values: dict[str, float]
    reasons: dict[str, str]


@dataclass(frozen=True)
class Levers:
    """The fields that a search may change; `without` says why there is no step size among them.

    A penalty is a `Tie`, or a `Proposal` of a value of its own. Upper steps follow the penalties.
    """

    steps: tuple[Step, ...] = ()
    uppers: tuple[Upper, ...] = ()
    penalties: tuple[Tie | Proposal, ...] = ()
    without: str = ""


def envelope(*curvatures: float) -> float:
    """The curvature of a loss seen through penalties: springs in series."""
    return 1 / sum(1 / max(curvature, FLAT) for curvature in curvatures)


def per_cent(share: float) -> str:
    """A share in words of a reason.

    >>> per_cent(0.034), per_cent(0.0004)
    ('3.4 %', '0.04 %')
    """
    rounded = float(f"{100 * share:.2g}")
    return f"{rounded:g} %"


def far(old: float, new: float) -> bool:
    """Whether a new value is worth a trial."""
    return not 0.6 < old / new < 1.7
