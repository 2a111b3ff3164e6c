"""The picture of other algorithms beside a run, on the same data and tree.

The colour of a line is the tier that keeps the model, the style is the algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covey.report.pictures.picture_file import save
from covey.report.pictures.plot import Histories, Used, model_line, of_chosen, plot_line
from covey.report.pictures.plot import Line as Line
from covey.report.summary import Gain, compared_models
from covey.runs.scores.headline import Headline, headline
from covey.runs.selection import Protocol

models = compared_models  # the name by which scripts import it
STYLES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (4, 1.5, 1, 1.5)))
_BELOW = 6.0  # points of accuracy below the worst line's end that the axis still shows
_GAP = 0.048  # of the axis' height between two labels


def lines(runs: Mapping[str, Histories], protocol: Protocol = "honest") -> list[Line]:
    """One line for every model of every algorithm.

    A model that lies on another of its tier all the way is left out.
    """
    out: list[Line] = []
    metric = metric_of(runs)
    for number, (method, histories) in enumerate(runs.items()):
        for name in models(histories[0]):
            line = line_of(method, number, name, histories, metric, protocol)
            if not any(_same(line, other) for other in out):
                out.append(line)
    return out


def line_of(
    method: str,
    number: int,
    model: str,
    histories: Histories,
    metric: Headline,
    protocol: Protocol = "honest",
    used: Used = lambda record: 1.0,
) -> Line:
    """One model of the method of a number."""
    line = model_line(model, histories, metric, protocol, used)
    return replace(line, label=f"{method} {model}", style=STYLES[number % len(STYLES)])


def _same(line: Line, other: Line) -> bool:
    """Whether a line can hardly be told from another of its colour and style."""
    if line.colour != other.colour or line.style != other.style:
        return False
    return np.allclose(line.values, other.values, rtol=0.01, atol=0.0)


def metric_of(runs: Mapping[str, Histories]) -> Headline:
    """The metric by which these runs are judged."""
    return headline(chain(*chain(*runs.values())))


def draw(
    runs: Mapping[str, Histories],
    path: Path,
    gains: Sequence[Gain] = (),
    protocol: Protocol = "honest",
) -> None:
    """Draw a PNG of the test figure by round, with one line for every algorithm's models.

    A band shows one standard deviation over seeds. The gains of the first algorithm stand above.
    """
    figure = Figure(figsize=(8.0, 4.4 + 0.2 * len(gains)), layout="constrained")
    axes = figure.subplots()
    metric = metric_of(runs)
    plot(axes, lines(runs, protocol), percent=metric.percent)
    own, histories = next(iter(runs.items()))
    axes.set(xlabel=f"round; {of_chosen(len(histories))}", ylabel=f"test {metric.axis}")
    told = [f"{own} {each.model} against {each.other}: {each.difference}" for each in gains]
    axes.set_title("\n".join(told), loc="left", fontsize=9)
    save(figure, path)


def plot(
    axes: Axes,
    drawn: Sequence[Line],
    *,
    percent: bool = True,
    size: float = 9.0,
) -> None:
    """Plot the lines, each with its name and its value in the chosen round at its end.

    A ring marks the round. Of percentages, the axis shows the part in which lines are reported.
    """
    for line in drawn:
        plot_line(axes, line, lw=2.0)
    axes.spines[["top", "right"]].set_visible(False)
    if not drawn:
        return
    if percent:
        zoom(axes, drawn)
    axes.set_xlim(0, max(line.rounds[-1] for line in drawn))
    _name_lines(axes, drawn, "{:.1f}" if percent else "{:.4g}", size)


def zoom(axes: Axes, drawn: Sequence[Line]) -> None:
    """Show the percentages in which lines are reported and end."""
    highest = max(float(line.values.mean(0).max()) for line in drawn)
    lowest = min(min(line.end, line.reported) for line in drawn)
    axes.set_ylim(max(0.0, lowest - _BELOW), min(100.0, highest + 2.0))


def _name_lines(axes: Axes, drawn: Sequence[Line], number: str, size: float) -> None:
    """Write each line's reported value, in the format `number`, and its name at its end."""
    low, high = axes.get_ylim()
    ordered = sorted(drawn, key=lambda line: line.end)
    heights = [(line.end - low) / (high - low) for line in ordered]
    for _ in range(200):  # no label lies on another
        for k in range(len(heights) - 1):
            lack = _GAP - (heights[k + 1] - heights[k])
            if lack > 0:
                heights[k] -= lack / 2
                heights[k + 1] += lack / 2
    for line, height in zip(ordered, heights, strict=True):
        axes.text(
            1.02,
            height,
            f"{number.format(line.reported)}  {line.label}",
            transform=axes.transAxes,
            color=line.colour,
            fontsize=size,
            va="center",
        )
