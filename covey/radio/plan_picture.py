"""One picture of a plan: every device's bandwidth share and pruning ratio, and a sweep's curves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from covey.radio.plan import Plan
from covey.report.pictures.picture_file import save

_NAMED = 40  # devices that have room for a name each


def draw(
    plan: Plan,
    path: Path,
    title: str,
    *,
    sweep: str = "",
    points: Sequence[dict[str, Any]] = (),
) -> None:
    """Draw a PNG: shares and ratios of the first round by device, best channel first.

    With a sweep, its curves stand beside them.
    """
    figure = Figure(figsize=(11, 5), layout="constrained")
    columns = figure.subplots(2, 2 if points else 1, squeeze=False)
    _devices(columns[:, 0], plan)
    if points:
        _sweep(columns[:, 1], sweep, points)
    figure.suptitle(title)
    for axes in columns.reshape(-1):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def _devices(axes: Any, plan: Plan) -> None:
    devices = plan.scenario.devices
    cells = devices.cell.tolist()
    gain = plan.gain[0].tolist()
    order = sorted(range(len(cells)), key=lambda k: (cells[k], -gain[k]))
    positions = range(len(order))
    shares = 100 * plan.share[0][order]
    ratios = 100 * plan.ratio[0][order]
    colours = ["C1" if asked else "lightgrey" for asked in plan.asked[0][order].tolist()]
    axes[0].bar(positions, shares.tolist(), color="C0")
    axes[1].bar(positions, ratios.tolist(), color=colours)
    axes[0].set(ylabel="share of the band (%)")
    which = ""
    if len(plan.rounds) != 1:
        which = f"; the first of {len(plan.rounds)} rounds"
    axes[1].set(
        ylabel="pruned (%); grey: not asked",
        ylim=(0, 100),
        xlabel=f"device, best channel first in each cell{which}",
    )
    for panel in axes:
        panel.set_xticks([])  # positions are no devices' numbers
        for position, (left, right) in enumerate(pairwise(order)):
            if cells[left] != cells[right]:
                panel.axvline(position + 0.5, color="lightgrey", linewidth=1)
    if len(order) <= _NAMED:
        names = [devices.name(k).removeprefix("device ") for k in order]
        axes[1].set_xticks(positions, names, rotation=90, fontsize=8)


def _sweep(axes: Any, name: str, points: Sequence[dict[str, Any]]) -> None:
    positions = range(len(points))
    for key, label in (("mean_ratio", "mean"), ("worst_ratio", "worst")):
        ratios = [100 * point[key] for point in points]
        axes[0].plot(positions, ratios, marker="o", label=label)
    milliseconds = [point["round_ms"] for point in points]
    axes[1].plot(positions, milliseconds, marker="o", color="C2")
    axes[0].set(ylabel="pruned (%)", ylim=(0, 100))
    axes[1].set(ylabel="round (ms)", xlabel=name, ylim=(0, None))
    axes[0].legend(frameon=False)
    labels = [str(point[name]) for point in points]
    for panel in axes:
        panel.set_xticks(positions, labels)
