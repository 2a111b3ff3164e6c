"""Why a device is left out, late or starved in a round, in one sentence with its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from covey.wireless.problem import LEAST_SHARE, Reason

if TYPE_CHECKING:
    from covey.wireless.plan import Plan


def why(plan: Plan, at: int, row: int = 0) -> str:
    """The sentence on device `at` in the plan's round number `row`; empty where all is well with
    it.
    """
    reason = Reason(int(plan.reason[row, at]))
    if reason != Reason.ASKED:
        return _left_out(plan, at, row, reason)
    causes = []
    if plan.late()[row, at]:
        causes.append(_late(plan, at, row))
    if plan.starved[row, at]:
        causes.append(_starved(plan, at, row))
    return "; ".join(causes)


def _late(plan: Plan, at: int, row: int) -> str:
    """When it ends, and whether only what the paper's formula leaves out makes it late."""
    ends = f"it ends after {_ms(plan.encoded.latency[row, at])}"
    deadline = f"the deadline is {_ms(plan.scenario.deadline)}"
    if plan.late(plan.formula)[row, at]:
        return f"{ends}, {deadline}"
    return f"with header and mask {ends}, {deadline}; mask = true plans for them"


def _left_out(plan: Plan, at: int, row: int, reason: Reason) -> str:
    deadline, most = plan.scenario.deadline, f"{plan.scenario.rho_max:g}"
    mine = plan.problem.take(torch.tensor([row * plan.gain.shape[1] + at]))
    busy = _ms(deadline - float(mine.budget))
    if reason == Reason.TIME:
        return f"its personal and probe steps take {busy}, the deadline is {_ms(deadline)}"
    if reason == Reason.COMPUTING:
        return f"its steps take {busy} + (1 - ratio) {_ms(mine.compute)}: {_ms(deadline)} need a ratio above {most}"
    if reason == Reason.CHANNEL:
        return f"its shared part takes {_ms(mine.send)} over the whole band: {_ms(deadline)} need a ratio above {most}"
    share = float(mine.share(1 - plan.scenario.rho_max))
    return f"its least share {share:.3g} does not fit beside the smaller ones of the others"


def _starved(plan: Plan, at: int, row: int) -> str:
    """What one more band would be worth to it, to the others, and what sets it apart from them."""
    cells = plan.scenario.devices.cell
    mine = plan.problem.take(torch.tensor([row * plan.gain.shape[1] + at]))
    worth = float(mine.weight * mine.slope(plan.share[row, at : at + 1].clamp(min=LEAST_SHARE)))
    peers = plan.asked[row] & (cells == cells[at])
    median = plan.problem.send.view(plan.gain.shape)[row][peers].median()
    cause = f"its shared part takes {_ms(mine.send)} over the whole band, the median device's {_ms(median)}"
    price = float(plan.price[row, cells[at]])
    return (
        f"more band is worth {worth:.3g} to it and {price:.3g} to others; {cause}"
        if price
        else cause
    )


def _ms(seconds: float | torch.Tensor) -> str:
    return f"{1e3 * float(seconds):.3g} ms"
