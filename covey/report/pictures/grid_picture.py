"""The picture of a comparison: every method's reported model against what it used.

The colour of a line is the tier that keeps the model; style and marker are the method's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covey.report.pictures.compare import line_of, metric_of, zoom
from covey.report.pictures.picture_file import save
from covey.report.pictures.plot import Histories, Line, Used
from covey.runs.scores.headline import Headline

Runs = Mapping[str, tuple[str, str, Histories]]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p")
_MARKED = 6  # markers on a line
_PANEL = (4.1, 4.6)  # inches
_NAMES = 2.3  # inches for the names on the right


def draw(runs: Runs, path: Path, *, modelled: bool) -> None:
    """Draw a PNG of the test figure against rounds, bytes and effort.

    `runs` has the reported model, its label and the rounds of every method. Effort is gradients
    or the seconds that the environment counts.
    """
    panels: dict[str, Used] = {
        "rounds": lambda record: 1.0,
        "MB of all links": lambda record: record.bytes() / 1e6,
        "gradients in thousands": lambda record: record.gradients / 1e3,
    }
    if modelled:
        del panels["gradients in thousands"]
        panels["seconds over the air"] = lambda record: record.modelled_seconds
    width = len(panels) * _PANEL[0] + _NAMES
    figure = Figure(figsize=(width, _PANEL[1]), layout="constrained")
    every = figure.subplots(1, len(panels), sharey=True)
    metric = metric_of({title: histories for title, (_, _, histories) in runs.items()})
    for axes, (label, used) in zip(every, panels.items(), strict=True):
        drawn = lines(runs, used, metric)
        _plot(axes, drawn)
        axes.set_xlabel(label)
        axes.grid(axis="y", color="#e8ebee", lw=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    less = "" if metric.higher else ", less is better"
    every[0].set_ylabel(f"test {metric.axis}{less}")
    if metric.percent and drawn:
        zoom(every[0], drawn)
    _legend(figure, every[-1], drawn, metric)
    save(figure, path)


def lines(runs: Runs, used: Used, metric: Headline) -> list[Line]:
    """One line for the reported model of every method."""
    out = []
    for number, (method, (model, label, histories)) in enumerate(runs.items()):
        line = line_of(method, number, model, histories, metric, used=used)
        out.append(replace(line, label=f"{method} {label}"))
    return out


def _plot(axes: Axes, drawn: Sequence[Line]) -> None:
    """The means over seeds; a method that uses nothing is a level at its reported value."""
    furthest = max((line.rounds[-1] for line in drawn), default=0.0)
    for number, line in enumerate(drawn):
        places = list(line.rounds)
        values = line.values.mean(0).tolist()
        if not places[-1] and furthest:
            places = [0.0, furthest]
            values = [line.reported, line.reported]
        every = max(1, len(values) // _MARKED)
        axes.plot(
            places,
            values,
            ls=line.style,
            color=line.colour,
            lw=1.6,
            marker=_MARKERS[number % len(_MARKERS)],
            ms=5.5,
            mec="white",
            mew=0.6,
            markevery=(number % every, every),
            label=line.label,
        )
    axes.set_xlim(0, furthest or 1)


def _legend(figure: Figure, axes: Axes, drawn: Sequence[Line], metric: Headline) -> None:
    """The methods on the right with their reported values, the largest first."""
    number = "{:.1f}" if metric.percent else "{:.4g}"
    handles = axes.get_lines()
    pairs = sorted(zip(drawn, handles, strict=True), key=lambda pair: -pair[0].reported)
    figure.legend(
        [handle for _, handle in pairs],
        [f"{number.format(line.reported)}  {line.label}" for line, _ in pairs],
        loc="outside right upper",
        frameon=False,
        fontsize=9,
        handlelength=3.2,
        title="chosen rounds, mean of seeds",
        title_fontsize=9,
        alignment="left",
    )
