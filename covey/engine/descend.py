"""The inner solvers: an author says what is descended, the engine chooses how.

`descend` minimises f(x) + lam/2 |x - anchor|^2 + gamma phi_rho(x) + <linear, x> + decay/2 |x|^2 row
by row, where f is known by its gradient. Every term is evaluated at the same x; `start` is never
changed.

The choice is made in one place. A `Solver` says with `fits` in words why it does not take a
descent, or None if it does. Solvers are tried in order, the fastest first, and the last of every
list takes everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from covey import native
from covey.engine.solvers import gram, in_place, native_call
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
from covey.errors import ConfigError, ProgramError, meant
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.task import Task

__all__ = ["NO_DATA", "Stepper", "descend"]

_INSTRUCTIONS = {"plain": "plain C", "avx2": "AVX2", "avx512": "AVX-512"}
_TORCH = {
    "batched": "batched layers in torch",
    "each": "one device after the other in torch",
    "vmap": "vmap",
}
_VMAP = "on a CPU 3 to 25 times slower than fused layers"
"""Five plain steps of 10 to 20 models of 263 to 100,867 parameters, against the native kernel."""


@dataclass(frozen=True)
class Solver:
    """A way to compute a descent of this gradient from these rows."""

    name: str
    fits: Callable[[Any, Rows, Objective], str | None]
    run: Callable[[Any, Rows, Objective], Rows]


STEP_BY_STEP = Solver(
    "step by step",
    fits=lambda gradient, start, terms: None,
    run=lambda gradient, start, terms: METHODS[terms.method](start.clone(), gradient, terms),
)
WITHOUT_DATA = (
    Solver("native", native_call.refusal, native_call.without_data),
    Solver("in place", in_place.refusal, in_place.without_data),
    STEP_BY_STEP,
)
ON_DATA = (
    Solver(
        "factored native",
        partial(native_call.data_refusal, factored=True),
        partial(native_call.on_batches, factored=True),
    ),
    Solver("native", native_call.data_refusal, native_call.on_batches),
    Solver("factored", gram.refusal, gram.run),
    Solver("in place", in_place.data_refusal, in_place.on_batches),
    STEP_BY_STEP,
)


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
    return minimised(start, gradient, terms)


def minimised(start: Rows, gradient: Gradient, terms: Objective) -> Rows:
    """Rows after the steps of an objective, by the fastest solver that fits."""
    steps = terms.steps
    tol = terms.tol
    if not isinstance(steps, int | Tensor):
        raise ProgramError(
            f"descend with steps = {steps!r}: give a whole number, or one per row [n]."
        )
    if terms.longest < 0 or (tol is not None and tol < 0):
        raise ProgramError(f"descend with steps = {steps} and tol = {tol}: both must be 0 or more.")
    if terms.method not in METHODS:
        hint = meant(terms.method, METHODS)
        raise ProgramError(f"method = {terms.method!r}{hint}: choose one of {', '.join(METHODS)}.")
    if isinstance(gradient, DataLoss):
        return _on_data(start, gradient, terms)
    if gradient is torch.zeros_like:
        gradient = NO_DATA
    chosen, _ = choose(gradient, start, terms)
    return chosen.run(gradient, start, terms)


def _on_data(start: Rows, loss: DataLoss, terms: Objective) -> Rows:
    """A descent on examples; its task remembers which solver was chosen, and why no faster one."""
    optimiser = loss.task.optimiser
    used = loss.task.solvers
    is_plain = optimiser == PLAIN
    if not is_plain:
        if terms.method != "gradient":
            raise ConfigError(
                f'the algorithm has method = "{terms.method}", so the experiment\'s solver cannot '
                'take its steps; leave out solver, or set method = "gradient".'
            )
        if optimiser.epochs is not None:
            terms = replace(terms, steps=loss.epoch_steps(optimiser.epochs))
        terms = optimiser.adapted(terms, loss.round)
    loss.begin(start, terms)
    if not is_plain and optimiser.refusal is not None:
        # The steps of the experiment's solver, one by one.
        faster = [candidate.name for candidate in ON_DATA if candidate is not STEP_BY_STEP]
        used.setdefault(STEP_BY_STEP.name, dict.fromkeys(faster, optimiser.refusal))
        return optimiser.descend(start, loss, terms)
    chosen, reasons = choose(loss, start, terms)
    used.setdefault(chosen.name, reasons)
    rows = chosen.run(loss, start, terms)
    if chosen is not STEP_BY_STEP:
        loss.skip(terms.longest)
    return rows


def choose(gradient: Gradient, start: Rows, terms: Objective) -> tuple[Solver, dict[str, str]]:
    """The first solver that fits, and why the faster ones do not, by their names.

    >>> terms = Objective(steps=1, lr=0.1, tol=0.1)
    >>> solver, reasons = choose(NO_DATA, torch.zeros(1, 2), terms)
    >>> solver.name, reasons["in place"]
    ('step by step', 'tol is set')
    """
    candidates: tuple[Solver, ...] = (STEP_BY_STEP,)
    if gradient is NO_DATA:
        candidates = WITHOUT_DATA
    elif isinstance(gradient, DataLoss):
        candidates = ON_DATA
    reasons: dict[str, str] = {}
    for candidate in candidates:
        reason = candidate.fits(gradient, start, terms)
        if reason is None:
            return candidate, reasons
        reasons[candidate.name] = reason
    raise AssertionError("the last solver of a list takes everything")


# What a run says about it


def used(task: Task) -> dict[str, str]:
    """The solvers of the training steps until now, and why no faster one was chosen."""
    if not task.solvers:
        return {}
    out = {"solver": " and ".join(task.solvers)}
    reasons: dict[str, str] = {}
    for others in task.solvers.values():
        for name, reason in others.items():
            if name not in task.solvers:  # the first reason counts
                reasons.setdefault(name, f"{name}: {reason}")
    if reasons:
        out["why not faster"] = "; ".join(reasons.values())
    return out


def explanation(task: Task) -> str:
    """How the training steps of a task have been computed until now, and why not faster.

    Which solver takes them is known when the programs have run; a rehearsal on no rows is enough.
    Where no step was seen, it says what `descend` would use.
    """
    if task.path != "fused":
        reason = task.forward.graph if isinstance(task.forward.graph, str) else task.stack
        text = f"{_TORCH[task.path]}, because {reason}"
        if task.path == "vmap" and task.device.type == "cpu":
            text += f" ({_VMAP})"
        if task.precision.compute == "bf16":
            text += "; products in bf16"
        return text
    if isinstance(task.native, str):
        return f"fused layers in torch, because {task.native}"
    slow = [others for name, others in task.solvers.items() if "native" not in name]
    text = f"fused layers, native {_INSTRUCTIONS[native.status()]} kernel"
    if not slow:
        return text
    faster = ("native", "native by turns", "in place")
    reason = next(slow[0][name] for name in faster if name in slow[0])
    if len(slow) == len(task.solvers):
        return f"fused layers in torch, because {reason}"
    return f"{text}; some steps in torch, because {reason}"
