"""The one choice of solver: the fastest way to compute a descent, and why a faster one does not do.

A solver says with `fits` in words why it does not take a descent, or None if it does. They are
tried in order, the fastest first, and the last of every list takes everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from covey import native
from covey.engine.solvers import gram, in_place, native_call
from covey.engine.solvers.methods import METHODS
from covey.engine.solvers.objective import NO_DATA, DataLoss, Gradient, Objective
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.task import Task

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
        native_call.factored_refusal,
        partial(native_call.on_batches, factored=True),
    ),
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


def sentence(task: Task) -> str:
    """How the training steps of a task have been computed until now, and why not faster.

    Which solver takes them is known when the programs have run; a rehearsal on no rows is enough.
    Where no step was seen, the sentence says what `descend` would use.
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
