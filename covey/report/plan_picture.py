"""One picture of a plan: every device's share and ratio in a round, and what a sweep changes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from covey.wireless import Plan

_NAMED = 40  # devices that have room for a name each


def draw(
    plan: Plan,
    path: Path,
    title: str,
    *,
    sweep: str = "",
    points: Sequence[dict[str, Any]] = (),
) -> None:
    """A PNG: shares and ratios of the first round by device, best channel first; with a sweep, its
    curves beside them.
    """
    figure = Figure(figsize=(11, 5), layout="constrained")
    columns = figure.subplots(2, 2 if points else 1, squeeze=False)
    _devices(columns[:, 0], plan)
    if points:
        _sweep(columns[:, 1], sweep, points)
    figure.suptitle(title)
    for axes in columns.reshape(-1):
        axes.spines[["top", "right"]].set_visible(False)
    part = path.with_name(f".{path.name}.part")
    figure.savefig(part, dpi=120, format="png")
    os.replace(part, path)


def _devices(axes: Any, plan: Plan) -> None:
    devices = plan.scenario.devices
    order = sorted(
        range(len(devices)), key=lambda k: (int(devices.cell[k]), -float(plan.gain[0, k]))
    )
    places, asked = range(len(order)), plan.asked[0][order]
    axes[0].bar(places, (100 * plan.share[0][order]).tolist(), color="C0")
    colours = ["C1" if on else "lightgrey" for on in asked.tolist()]
    axes[1].bar(places, (100 * plan.ratio[0][order]).tolist(), color=colours)
    axes[0].set(ylabel="share of the band (%)")
    which = "" if len(plan.rounds) == 1 else f"; the first of {len(plan.rounds)} rounds"
    axes[1].set(
        ylabel="pruned (%); grey: not asked",
        ylim=(0, 100),
        xlabel=f"device, best channel first in each cell{which}",
    )
    cell = [int(devices.cell[k]) for k in order]
    ends = [place - 0.5 for place in places if place and cell[place] != cell[place - 1]]
    for one in axes:
        one.set_xticks([])  # places are no devices' numbers
        for end in ends:
            one.axvline(end, color="lightgrey", linewidth=1)
    if len(order) <= _NAMED:
        axes[1].set_xticks(
            places,
            [devices.name(k).removeprefix("device ") for k in order],
            rotation=90,
            fontsize=8,
        )


def _sweep(
    axes: Any,
    name: str,
    points: Sequence[dict[str, Any]],
) -> None:
    places = range(len(points))
    for key, label in (("mean_ratio", "mean"), ("worst_ratio", "worst")):
        axes[0].plot(places, [100 * point[key] for point in points], marker="o", label=label)
    axes[1].plot(places, [point["round_ms"] for point in points], marker="o", color="C2")
    axes[0].set(ylabel="pruned (%)", ylim=(0, 100))
    axes[1].set(ylabel="round (ms)", xlabel=name, ylim=(0, None))
    axes[0].legend(frameon=False)
    for one in axes:
        one.set_xticks(places, [str(point[name]) for point in points])
