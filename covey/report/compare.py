"""Other algorithms beside a run, on the same data and tree: rows of its table, and one picture.

The colour of a line is the tier that keeps the model, the style is the algorithm.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covey.report.plot import COLOURS
from covey.report.reported import models as models
from covey.report.summary import Yardstick, summarise
from covey.runs.headline import Headline, headline
from covey.runs.run import Round

Histories = Sequence[Sequence[Round]]
"""The rounds of every seed."""
STYLES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (4, 1.5, 1, 1.5)))
OTHER = "C4"
"""The colour of tiers that only deeper trees have."""
_BELOW = 6.0  # points of accuracy below the worst line's end that the axis still shows
_GAP = 0.048  # of the axis' height between two labels


def yardsticks(
    others: Mapping[str, Histories], protocol: Literal["honest", "paper"]
) -> list[Yardstick]:
    """The results of every other algorithm, by method."""
    out = []
    for method, histories in others.items():
        names = models(histories[0])
        summary = summarise(histories, protocol)
        figures = [figure for figure in summary.models if figure.model in names]
        out.append(Yardstick(method, figures))
    return out


@dataclass(frozen=True)
class Line:
    """A model by round, in the metric by which runs are judged; accuracies in percent.

    `values` are [seeds, scored rounds].
    """

    label: str
    colour: str
    style: str | tuple[int, tuple[float, ...]]
    rounds: Sequence[float]
    values: npt.NDArray[np.float64]

    @property
    def end(self) -> float:
        """The mean over seeds in the last round."""
        return float(self.values[:, -1].mean())


def lines(runs: Mapping[str, Histories]) -> list[Line]:
    """One line for every model of every algorithm.

    A model that lies on another of its tier all the way is left out.
    """
    out: list[Line] = []
    metric = metric_of(runs)
    for k, (method, histories) in enumerate(runs.items()):
        scored = [[record for record in history if record.models] for history in histories]
        length = min(map(len, scored))
        rounds = [record.round + 1 for record in scored[0][:length]]
        for name in models(histories[0]):
            tier = scored[0][-1].models[name].tier
            values = [_values(history[:length], name, metric) for history in scored]
            line = Line(
                label=f"{method} {name}",
                colour=COLOURS.get(tier, OTHER),
                style=STYLES[k % len(STYLES)],
                rounds=rounds,
                values=np.array(values),
            )
            if not any(_same(line, other) for other in out):
                out.append(line)
    return out


def _same(line: Line, other: Line) -> bool:
    """Whether a line can hardly be told from another of its colour and style."""
    if line.colour != other.colour or line.style != other.style:
        return False
    return np.allclose(line.values, other.values, rtol=0.01, atol=0.0)


def metric_of(runs: Mapping[str, Histories]) -> Headline:
    """The metric by which these runs are judged."""
    return headline(chain(*chain(*runs.values())))


def _values(history: Sequence[Round], name: str, metric: Headline) -> list[float]:
    return [value_of(record, name, metric) for record in history]


def value_of(record: Round, name: str, metric: Headline) -> float:
    """The test figure of a model, accuracies in per cent; NaN where it is not known."""
    scores = record.models[name].scores
    score = scores.get("test") or next(iter(scores.values()))
    value = metric.of(score)
    if value is None:
        return float("nan")
    return metric.scaled(value)


def draw(runs: Mapping[str, Histories], path: Path, title: str = "") -> None:
    """Draw a PNG of the test figure by round, with one line for every algorithm's models.

    A band shows one standard deviation over seeds.
    """
    figure = Figure(figsize=(8.0, 4.4), layout="constrained")
    axes = figure.subplots()
    metric = metric_of(runs)
    plot(axes, lines(runs), percent=metric.percent)
    axes.set(xlabel="round", ylabel=f"test {metric.axis}", title=title)
    part = path.with_name(f".{path.name}.part")
    figure.savefig(part, dpi=120, format="png")
    os.replace(part, path)


def plot(
    axes: Axes,
    drawn: Sequence[Line],
    *,
    percent: bool = True,
    size: float = 9.0,
) -> None:
    """Plot the lines, each with its name and its last value at its end.

    Of percentages, the axis shows the part in which the lines end.
    """
    for line in drawn:
        mean = line.values.mean(0)
        axes.plot(line.rounds, mean, ls=line.style, color=line.colour, lw=2.0)
        if len(line.values) > 1:
            spread = line.values.std(0, ddof=1)
            axes.fill_between(
                line.rounds,
                mean - spread,
                mean + spread,
                color=line.colour,
                alpha=0.12,
                lw=0,
            )
    axes.spines[["top", "right"]].set_visible(False)
    if not drawn:
        return
    if percent:
        zoom(axes, drawn)
    axes.set_xlim(0, max(line.rounds[-1] for line in drawn))
    _name_lines(axes, drawn, "{:.1f}" if percent else "{:.4g}", size)


def zoom(axes: Axes, drawn: Sequence[Line]) -> None:
    """Show the percentages in which the lines end."""
    highest = max(float(line.values.mean(0).max()) for line in drawn)
    lowest = min(line.end for line in drawn)
    axes.set_ylim(max(0.0, lowest - _BELOW), min(100.0, highest + 2.0))


def _name_lines(axes: Axes, drawn: Sequence[Line], number: str, size: float) -> None:
    """Write each line's last value, in the format `number`, and its name at its end."""
    low, high = axes.get_ylim()
    ordered = sorted(drawn, key=lambda line: line.end)
    heights = _apart([(line.end - low) / (high - low) for line in ordered])
    for line, height in zip(ordered, heights, strict=True):
        axes.text(
            1.02,
            height,
            f"{number.format(line.end)}  {line.label}",
            transform=axes.transAxes,
            color=line.colour,
            fontsize=size,
            va="center",
        )


def _apart(heights: Sequence[float]) -> list[float]:
    """Ascending heights of labels, moved so that none lies on another."""
    out = list(heights)
    for _ in range(200):
        for k in range(len(out) - 1):
            lack = _GAP - (out[k + 1] - out[k])
            if lack > 0:
                out[k] -= lack / 2
                out[k + 1] += lack / 2
    return out
