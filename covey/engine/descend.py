"""The inner solvers: an author says what is descended, the engine chooses how (`solver.py`).

`descend` minimises f(x) + lam/2 |x - anchor|^2 + gamma phi_rho(x) + <linear, x> + decay/2 |x|^2 row
by row, where f is known by its gradient. Every term is evaluated at the same x; `start` is never
changed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from covey.engine.solvers.methods import METHODS, Stepper
from covey.engine.solvers.objective import (
    NO_DATA,
    Coefficient,
    DataLoss,
    Gradient,
    Method,
    Objective,
)
from covey.engine.solvers.optimiser import PLAIN
from covey.engine.solvers.solver import ON_DATA, STEP_BY_STEP, refusals, solver
from covey.errors import ConfigError, ProgramError, meant
from covey.types import Rows

__all__ = ["NO_DATA", "Stepper", "descend"]


def descend(
    start: Rows,
    gradient: Gradient,
    *,
    steps: int | Tensor,
    lr: Coefficient,
    prox: tuple[Coefficient, Rows] | None = None,
    l1: tuple[Coefficient, float] | None = None,
    linear: Rows | None = None,
    mask: Tensor | None = None,
    part: slice | None = None,
    decay: float = 0.0,
    method: Method = "gradient",
    tol: float | None = None,
) -> Rows:
    """Rows after `steps` steps from `start`, or fewer for a row whose gradient norm falls to `tol`.

    The gradient is that of the data loss: `me.grad(...)`, a function of the rows, or `NO_DATA`.
    `prox` is (lam, anchor), `l1` is (gamma, rho): smooth for rho > 0, a soft threshold with exact
    zeros for rho = 0. `mask` and `part` (a column slice) say which coordinates move. Steps may be
    [n], lr, lam and gamma [n, 1]; lr also a row [1, P].

    >>> descend(torch.zeros(1, 2), lambda x: x - 1, steps=2, lr=0.5).tolist()
    [[0.75, 0.75]]
    """
    if l1 is not None:
        gamma, _ = l1
        if not isinstance(gamma, Tensor) and gamma == 0:
            l1 = None
    if not isinstance(lr, Tensor):
        lr = float(lr)
    if part is not None:
        width = start.shape[1]
        columns = range(*part.indices(width))
        if not columns:
            return start.clone()
        if len(columns) == width:
            part = None
    terms = Objective(
        steps,
        lr,
        prox=prox,
        l1=l1,
        linear=linear,
        mask=mask,
        part=part,
        decay=decay,
        method=method,
        tol=tol,
    )
    _check(terms)
    if isinstance(gradient, DataLoss):
        return _on_data(start, gradient, terms)
    if gradient is torch.zeros_like:
        gradient = NO_DATA
    return solver(gradient, start, terms).run(gradient, start, terms)


def _check(terms: Objective) -> None:
    """Refuse steps, a tolerance or a method that mean nothing."""
    steps = terms.steps
    tol = terms.tol
    if not isinstance(steps, int | Tensor):
        wanted = "give a whole number, or one per row [n]"
        raise ProgramError(f"descend with steps = {steps!r}: {wanted}.")
    if terms.longest < 0 or (tol is not None and tol < 0):
        raise ProgramError(f"descend with steps = {steps} and tol = {tol}: both must be 0 or more.")
    if terms.method not in METHODS:
        hint = meant(terms.method, METHODS)
        listed = ", ".join(METHODS)
        raise ProgramError(f"method = {terms.method!r}{hint}: choose one of {listed}.")


def _on_data(start: Rows, loss: DataLoss, terms: Objective) -> Rows:
    """A descent on examples; its task remembers which solver was chosen, and why no faster one."""
    optimiser = loss.task.optimiser
    if optimiser != PLAIN:
        if terms.method != "gradient":
            raise ConfigError(
                f'the algorithm has method = "{terms.method}", so the experiment\'s solver cannot '
                'take its steps; leave out solver, or set method = "gradient".'
            )
        if optimiser.epochs is not None:
            terms = replace(terms, steps=loss.epoch_steps(optimiser.epochs))
        terms = optimiser.adapted(terms, loss.round)
    loss.begin(start, terms)
    if optimiser.refusal is not None:
        # The steps of the experiment's solver, one by one.
        faster = [candidate.name for candidate in ON_DATA if candidate is not STEP_BY_STEP]
        loss.task.solvers.setdefault(STEP_BY_STEP.name, dict.fromkeys(faster, optimiser.refusal))
        return optimiser.descend(start, loss, terms)
    chosen = solver(loss, start, terms)
    used = loss.task.solvers
    if chosen.name not in used:
        used[chosen.name] = refusals(loss, start, terms)
    rows = chosen.run(loss, start, terms)
    if chosen is not STEP_BY_STEP:
        loss.skip(terms.longest)
    return rows
