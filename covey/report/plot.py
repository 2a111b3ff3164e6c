"""One picture of a run: accuracy of every model by round, and what every link carried."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from covey.run import Round


def draw(histories: Sequence[Sequence[Round]], path: Path, title: str = "") -> None:
    """A PNG with one line per model (the mean over seeds, a band of one standard deviation) and one per link."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    scored = [[record for record in history if record.models] for history in histories]
    for at, name in enumerate(scored[0][-1].models if scored[0] else ()):
        rounds, curves = _curves(scored, name)
        mean, spread = curves.mean(0), curves.std(0)
        (line,) = left.plot(rounds, mean, label=name, color=f"C{at}")
        if len(curves) > 1:
            left.fill_between(rounds, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0)
    for at, link in enumerate(dict.fromkeys(key[0] for record in histories[0] for key in record.traffic if key[2] == "train")):
        right.plot([r.round + 1 for r in histories[0]], [r.bytes(link) / 1e6 for r in histories[0]], label=link, color=f"C{at}")
        dense = [sum(t.dense for k, t in r.traffic.items() if k[0] == link and k[2] == "train") / 1e6 for r in histories[0]]
        right.plot([r.round + 1 for r in histories[0]], dense, ":", color=f"C{at}", label=f"{link}, if dense")
    accuracy = bool(scored[0]) and scored[0][-1].accuracy() is not None
    left.set(xlabel="round", ylabel="test accuracy (%)" if accuracy else "test loss", title=title)
    right.set(xlabel="round", ylabel="MB per round, measured", title="what the links carried", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    part = path.with_name(f".{path.name}.part")
    figure.savefig(part, dpi=120, format="png")
    os.replace(part, path)


def _curves(scored: Sequence[Sequence[Round]], name: str) -> tuple[list[int], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Rounds, and one curve per seed: accuracy in percent, or loss where there is none."""
    curves = []
    for history in scored:
        scores = [record.models[name].scores.get("test") or next(iter(record.models[name].scores.values())) for record in history]
        curves.append([100 * s.accuracy if s.accuracy is not None else s.loss or 0.0 for s in scores])
    shortest = min(map(len, curves))
    return [record.round + 1 for record in scored[0][:shortest]], np.array([curve[:shortest] for curve in curves])
