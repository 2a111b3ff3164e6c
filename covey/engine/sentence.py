"""How a task is computed, in one plain sentence: the path, and why it is not a faster one."""

from __future__ import annotations

from covey import native
from covey.engine.task import Task

_INSTRUCTIONS = {"plain": "plain C", "avx2": "AVX2", "avx512": "AVX-512"}
_TORCH = {
    "batched": "batched layers in torch",
    "each": "one device after the other in torch",
    "vmap": "vmap",
}
_VMAP = "on a CPU 3 to 25 times slower than fused layers"
"""Five plain steps of 10 to 20 models of 263 to 100,867 parameters, against the native kernel."""


def sentence(task: Task) -> str:
    """How the training steps of a task have been computed until now.

    Which solver takes them is known when the programs have run; a rehearsal on no rows is enough.
    Where no step was seen, the sentence says what `descend` would use.
    """
    if task.path != "fused":
        return _other_layers(task)
    if isinstance(task.native, str):
        return f"fused layers in torch, because {task.native}"
    reason = _slow_steps(task)
    any_native = any("native" in name for name in task.solvers)
    if reason is not None and not any_native:
        return f"fused layers in torch, because {reason}"
    text = f"fused layers, native {_INSTRUCTIONS[native.status()]} kernel"
    if reason is not None:
        text += f"; some steps in torch, because {reason}"
    return text


def solvers(task: Task) -> dict[str, str]:
    """The solvers of the training steps until now, and why no faster one was chosen."""
    if not task.solvers:
        return {}
    out = {"solver": " and ".join(task.solvers)}
    reasons = [f"{name}: {reason}" for name, reason in _refusals(task).items()]
    if reasons:
        out["why not faster"] = "; ".join(reasons)
    return out


def _refusals(task: Task) -> dict[str, str]:
    """Of the solvers that no step was taken by, the first reason why they did not fit."""
    out: dict[str, str] = {}
    for refusals in task.solvers.values():
        for name, reason in refusals.items():
            if name not in task.solvers:
                out.setdefault(name, reason)
    return out


def _slow_steps(task: Task) -> str | None:
    """Why some steps were not taken by the native kernel; None if all were."""
    for name, refusals in task.solvers.items():
        if "native" not in name:
            reasons = [refusals.get(faster) for faster in ("native", "native by turns", "in place")]
            return next(reason for reason in reasons if reason is not None)
    return None


def _other_layers(task: Task) -> str:
    reason = task.stack
    if isinstance(task.forward.graph, str):
        reason = task.forward.graph
    text = f"{_TORCH[task.path]}, because {reason}"
    if task.path == "vmap" and task.device.type == "cpu":
        text += f" ({_VMAP})"
    if task.precision.compute == "bf16":
        text += "; products in bf16"
    return text
