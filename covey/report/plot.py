"""The picture of a run: every model by round, or by virtual seconds and joules where there is a radio; and what links carried."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covey.run import Round
from covey.score import Score

Table = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def draw(histories: Sequence[Sequence[Round]], path: Path, title: str = "") -> None:
    """A PNG with one line per model (the mean over seeds, a band of one standard deviation) and one per link."""
    against = ("seconds", "joules") if histories[0][0].radio is not None else ("round",)
    figure = Figure(figsize=(5.5 * (len(against) + 1), 4.2), layout="constrained")
    *left, right = figure.subplots(1, len(against) + 1)
    for axes, what in zip(left, against, strict=True):
        _models(axes, histories, what)
    left[0].set(title=title)
    for at, link in enumerate(dict.fromkeys(key[0] for record in histories[0] for key in record.traffic if key[2] == "train")):
        right.plot([r.round + 1 for r in histories[0]], [r.bytes(link) / 1e6 for r in histories[0]], label=link, color=f"C{at}")
        dense = [sum(t.dense for k, t in r.traffic.items() if k[0] == link and k[2] == "train") / 1e6 for r in histories[0]]
        right.plot([r.round + 1 for r in histories[0]], dense, ":", color=f"C{at}", label=f"{link}, if dense")
    right.set(xlabel="round", ylabel="MB per round, measured", title="what the links carried", ylim=(0, None))
    for axes in (*left, right):
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    part = path.with_name(f".{path.name}.part")
    figure.savefig(part, dpi=120, format="png")
    os.replace(part, path)


LABELS = {"round": "round", "seconds": "seconds over the air", "joules": "joules of all devices"}


def _models(axes: Axes, histories: Sequence[Sequence[Round]], against: str) -> None:
    """Every model against rounds, seconds or joules; of several seeds, whose seconds differ, against their mean."""
    scored = [[record for record in history if record.models] for history in histories]
    shortest = min(map(len, scored))
    spent = np.array([_spent(history, against)[:shortest] for history in histories]).mean(0)
    for at, name in enumerate(scored[0][-1].models if scored[0] else ()):
        curves = _curves(scored, name, shortest)
        mean, spread = curves.mean(0), curves.std(0)
        (line,) = axes.plot(spent, mean, label=name, color=f"C{at}")
        if len(curves) > 1:
            axes.fill_between(spent, mean - spread, mean + spread, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel=LABELS[against], ylabel=_figure(scored[0][-1]) if scored[0] else "test loss")


def _figure(record: Round) -> str:
    """What is drawn of the models of a run."""
    score = next(iter(record.models.values())).scores.get("test")
    if score is not None and score.accuracy is not None:
        return "test accuracy (%)"
    if score is not None and score.rmse is not None:
        return "test RMSE"
    return "test loss"


def _spent(history: Sequence[Round], what: str) -> list[float]:
    """What was spent until the end of each round that is scored."""
    each = [1.0 if what == "round" or record.radio is None else getattr(record.radio, what) for record in history]
    return [total for record, total in zip(history, accumulate(each), strict=True) if record.models]


def _curves(scored: Sequence[Sequence[Round]], name: str, length: int) -> Table:
    """One curve per seed: accuracy in percent, RMSE where numbers are predicted, else the loss."""
    curves = []
    for history in scored:
        scores = [record.models[name].scores.get("test") or next(iter(record.models[name].scores.values())) for record in history]
        curves.append([_value(score) for score in scores[:length]])
    return np.array(curves)


def _value(score: Score) -> float:
    if score.accuracy is not None:
        return 100 * score.accuracy
    if score.rmse is not None:
        return score.rmse
    return score.loss or 0.0
