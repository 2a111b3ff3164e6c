"""Why a device is left out, late or starved in a round, in one sentence with its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from covey.wireless.problem import MIN_SHARE, Problem, Reason

if TYPE_CHECKING:
    from covey.wireless.plan import Plan


def why(plan: Plan, device: int, row: int = 0) -> str:
    """The sentence on a device in the plan's round number `row`; empty where it has no problem."""
    reason = Reason(int(plan.reason[row, device]))
    if reason != Reason.ASKED:
        return _left_out(plan, device, row, reason)
    causes = []
    if plan.late()[row, device]:
        causes.append(_late(plan, device, row))
    if plan.starved[row, device]:
        causes.append(_starved(plan, device, row))
    return "; ".join(causes)


def _late(plan: Plan, device: int, row: int) -> str:
    """When it ends, and whether header and mask alone, which the paper omits, make it late."""
    ends = f"it ends after {_ms(plan.encoded.latency[row, device])}"
    deadline = f"the deadline is {_ms(plan.scenario.deadline)}"
    if plan.late(plan.formula)[row, device]:
        return f"{ends}, {deadline}"
    return f"with header and mask {ends}, {deadline}; mask = true plans for them"


def _left_out(plan: Plan, device: int, row: int, reason: Reason) -> str:
    problem = _problem_of(plan, device, row)
    deadline = _ms(plan.scenario.deadline)
    busy = _ms(plan.scenario.deadline - float(problem.budget))
    needed = f"{deadline} need a ratio above {plan.scenario.rho_max:g}"
    if reason == Reason.TIME:
        return f"its personal and probe steps take {busy}, the deadline is {deadline}"
    if reason == Reason.COMPUTING:
        return f"its steps take {busy} + (1 - ratio) {_ms(problem.compute)}: {needed}"
    if reason == Reason.CHANNEL:
        return f"its shared part takes {_ms(problem.send)} over the whole band: {needed}"
    share = float(problem.share(1 - plan.scenario.rho_max))
    return f"its min share {share:.3g} does not fit beside the smaller ones of the others"


def _starved(plan: Plan, device: int, row: int) -> str:
    """The value of more band to it and to the others, and how its channel differs from theirs."""
    cells = plan.scenario.devices.cell
    peers = plan.asked[row] & (cells == cells[device])
    sends = plan.problem.send.view(plan.gain.shape)[row]
    problem = _problem_of(plan, device, row)
    own = f"its shared part takes {_ms(problem.send)} over the whole band"
    cause = f"{own}, the median device's {_ms(sends[peers].median())}"
    price = float(plan.price[row, cells[device]])
    if not price:
        return cause
    share = plan.share[row, device : device + 1].clamp(min=MIN_SHARE)
    worth = float(problem.weight * problem.slope(share))
    return f"more band is worth {worth:.3g} to it and {price:.3g} to others; {cause}"


def _problem_of(plan: Plan, device: int, row: int) -> Problem:
    """The problem of one device in one round."""
    entry = row * plan.gain.shape[1] + device
    return plan.problem.take(torch.tensor([entry]))


def _ms(seconds: float | torch.Tensor) -> str:
    return f"{1e3 * float(seconds):.3g} ms"
