"""Figures 2 to 5 as one picture, from what `run.py` wrote: `python -m experiments.pruned.picture
OUT.json docs/pruned.png`.

Lines are means over seeds of the personal models' test figures, in every second round.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.pool import Found
from experiments.pruned.settings import DEADLINE, DEADLINES, RATIOS, SCHEMES, SETS
from experiments.pruned.table import Seed, average, mean, seeds, threshold


def curve(group: Sequence[Seed], name: str) -> tuple[list[int], list[float]]:
    """Rounds that were scored, and the mean of a figure over seeds."""
    scored = [at for at, value in enumerate(group[0][name]) if value is not None]
    return [at + 1 for at in scored], [
        statistics.fmean(seed[name][at] for seed in group) for at in scored
    ]


def draw(
    axis: Any,
    title: str,
    groups: Sequence[tuple[str, Sequence[Seed]]],
    name: str,
    *,
    by_seconds: bool = False,
) -> None:
    """A line for each group that there is."""
    for at, (label, group) in enumerate(groups):
        if not group:
            continue
        rounds, y = curve(group, name)
        clock = [list(accumulate(seed["seconds"])) for seed in group] if by_seconds else []
        x = (
            [statistics.fmean(one[r - 1] for one in clock) for r in rounds]
            if by_seconds
            else rounds
        )
        percent = 1 if name.endswith("loss") else 100
        axis.plot(x, [percent * value for value in y], label=label, linewidth=1.2, color=f"C{at}")
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("seconds on the air" if by_seconds else "round", fontsize=8)
    axis.set_ylabel("test loss" if name.endswith("loss") else "test accuracy, %", fontsize=8)
    if name.endswith("loss"):
        axis.set_yscale("log")
    if by_seconds:
        axis.set_xscale("log")
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)
    if axis.get_lines():
        axis.legend(fontsize=6)


def bars(axis: Any, title: str, values: dict[str, float], unit: str) -> None:
    axis.bar(
        range(len(values)), list(values.values()), color=[f"C{at}" for at in range(len(values))]
    )
    axis.set_xticks(range(len(values)), list(values), rotation=30, ha="right", fontsize=6)
    axis.set_title(title, fontsize=9)
    axis.set_ylabel(unit, fontsize=8)
    axis.tick_params(axis="y", labelsize=7)


def picture(found: Found, path: Path) -> None:
    figure = Figure(figsize=(13, 14))
    axes = figure.subplots(4, 3)
    for at, data in enumerate(SETS):
        pruned = [
            (f"ratio {ratio:g}", seeds(found, "ratios", data, f"{ratio:g}")) for ratio in RATIOS
        ]
        draw(axes[0, at], f"2: loss, fixed ratios, {data}", pruned, "personal_test_loss")
    draw(axes[0, 2], f"2: accuracy, fixed ratios, {SETS[1]}", pruned, "personal_test")
    for at, data in enumerate(SETS):
        both = [("alternate", seeds(found, "ratios", data, "0.5"))]
        both += [
            (name, seeds(found, "orders", data, f"{name}, 0.5"))
            for name in ("together", "together, twice the steps")
        ]
        draw(axes[1, at], f"3: order of the parts, ratio 0.5, {data}", both, "personal_test")
    compared = [(name, seeds(found, "schemes", "fashion_mnist", name)) for name in SCHEMES]
    there = {name: group for name, group in compared if group}
    sent = {name: mean(group, lambda s: average(s, "bytes")) / 1e6 for name, group in there.items()}
    bars(axes[1, 2], "4: sent in a round, fashion_mnist", sent, "MB")
    draw(axes[2, 0], "4: loss of schemes, fashion_mnist", compared, "personal_test_loss")
    draw(axes[2, 1], "4: accuracy of schemes, fashion_mnist", compared, "personal_test")
    draw(
        axes[2, 2], "4: accuracy by time, fashion_mnist", compared, "personal_test", by_seconds=True
    )
    timed = [(f"{1e3 * t:g} ms", threshold(found, t)) for t in sorted((*DEADLINES, DEADLINE))]
    draw(axes[3, 0], "5: loss by deadline, fashion_mnist", timed, "personal_test_loss")
    draw(axes[3, 1], "5: accuracy by deadline, fashion_mnist", timed, "personal_test")
    ratio = {name: 1 - mean(group, lambda s: average(s, "kept")) for name, group in timed if group}
    bars(axes[3, 2], "5: mean ratio by deadline", ratio, "ratio")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("png", type=Path)
    asked = parser.parse_args()
    picture(json.loads(asked.json.read_text()), asked.png)


if __name__ == "__main__":
    main()
