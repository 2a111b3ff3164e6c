"""The one choice of solver: the fastest way to compute a descent, and why a faster one does not do.

A solver says with `fits` in words why it does not take a descent, or None if it does. They are
tried in order, the fastest first, and the last of every list takes everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from covey.engine import gram, in_place, native_call
from covey.engine.methods import METHODS
from covey.engine.objective import NO_DATA, DataLoss, Gradient, Objective
from covey.types import Rows


@dataclass(frozen=True)
class Solver:
    """A way to compute a descent of this gradient from these rows."""

    name: str
    fits: Callable[[Any, Rows, Objective], str | None]
    run: Callable[[Any, Rows, Objective], Rows]


def _takes_all(gradient: Gradient, start: Rows, terms: Objective) -> None:
    return None


def _step_by_step(gradient: Gradient, start: Rows, terms: Objective) -> Rows:
    return METHODS[terms.method](start.clone(), gradient, terms)


STEP_BY_STEP = Solver("step by step", _takes_all, _step_by_step)
WITHOUT_DATA = (
    Solver("native", native_call.refusal, native_call.without_data),
    Solver("in place", in_place.refusal, in_place.without_data),
    STEP_BY_STEP,
)
ON_DATA = (
    Solver("factored native", native_call.factored_refusal, native_call.factored),
    Solver("native", native_call.data_refusal, native_call.on_batches),
    Solver("factored", gram.refusal, gram.run),
    Solver("in place", in_place.data_refusal, in_place.on_batches),
    STEP_BY_STEP,
)
ANY_GRADIENT = (STEP_BY_STEP,)


def solvers(gradient: Gradient) -> tuple[Solver, ...]:
    """The solvers for such a gradient, the fastest first."""
    if gradient is NO_DATA:
        return WITHOUT_DATA
    if isinstance(gradient, DataLoss):
        return ON_DATA
    return ANY_GRADIENT


def solver(gradient: Gradient, start: Rows, terms: Objective) -> Solver:
    """The first solver that fits.

    >>> import torch
    >>> terms = Objective(steps=1, lr=0.1, tol=0.1)
    >>> solver(NO_DATA, torch.zeros(1, 2), terms).name
    'step by step'
    """
    for candidate in solvers(gradient):
        if candidate.fits(gradient, start, terms) is None:
            return candidate
    raise AssertionError("the last solver of a list takes everything")


def refusals(gradient: Gradient, start: Rows, terms: Objective) -> dict[str, str]:
    """Why the solvers that are faster than the one chosen do not fit, by their names.

    >>> import torch
    >>> terms = Objective(steps=1, lr=0.1, tol=0.1)
    >>> refusals(NO_DATA, torch.zeros(1, 2), terms)["in place"]
    'tol is set'
    """
    out: dict[str, str] = {}
    for candidate in solvers(gradient):
        reason = candidate.fits(gradient, start, terms)
        if reason is None:
            break
        out[candidate.name] = reason
    return out
