"""Two pictures of a sweep: the score against every key, and all keys side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from covey.errors import is_number
from covey.report.pictures.picture_file import save

_COLUMNS = 3
_PANEL = (3.9, 3.1)  # inches
_HEAD = 0.3  # inches for the legend
_DEPTH = 4.0  # what is shown below the best, in distances of the median from it
_BEST = "tab:red"
_MARKS = 6  # values that have room on one vertical axis
_WIDE = 30.0  # a list of numbers that spans more is drawn on a logarithmic scale


@dataclass(frozen=True)
class Point:
    """A trial: the value of every key, and its score, higher is better."""

    values: Mapping[str, Any]
    score: float


@dataclass(frozen=True)
class Scale:
    """Where the values of a key lie on an axis; words stand side by side."""

    key: str
    words: tuple[str, ...]
    log: bool

    @staticmethod
    def of(key: str, values: Sequence[Any], *, log: bool = False) -> Scale:
        """The scale of these values; `log` is what the user has asked for."""
        numbers = [value for value in values if is_number(value)]
        if len(numbers) < len(values):
            return Scale(key, tuple(dict.fromkeys(map(str, values))), log=False)
        positive = min(numbers) > 0
        wide = positive and max(numbers) / min(numbers) > _WIDE
        return Scale(key, (), log=positive and (log or wide))

    def place(self, value: Any) -> float:
        """The position of a value."""
        if self.words:
            return float(self.words.index(str(value)))
        return float(value)

    def dress(self, axes: Axes) -> None:
        """Prepare the horizontal axis of a panel."""
        axes.set_xlabel(self.key)
        if self.words:
            axes.set_xticks(range(len(self.words)), self.words)
        elif self.log:
            axes.set_xscale("log")


def draw_sensitivity(
    points: Sequence[Point],
    scales: Sequence[Scale],
    path: Path,
    label: str,
    *,
    lower: bool = False,
) -> None:
    """Draw a PNG with one panel per key: the score of every trial, and the median by value.

    Trials far below the median stand at the lower edge, as triangles. Where `lower` is better, a
    score is minus the figure that the axis shows: the best is at the top.
    """
    columns = 2 if len(scales) == 4 else min(len(scales), _COLUMNS)
    lines = -(-len(scales) // columns)
    size = (_PANEL[0] * columns, _PANEL[1] * lines + _HEAD)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False).flatten()
    scores = [point.score for point in points]
    best = max(scores)
    low = best - _DEPTH * (best - float(np.median(scores)))
    if low == best:
        low = min(scores)
    shown = _Shown(points, [max(score, low) for score in scores], [s < low for s in scores])
    for scale, axes in zip(scales, panels, strict=False):
        _panel(axes, shown, scale)
    for axes in panels[len(scales) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel(label)
        axes.yaxis.set_major_formatter(_formatter(lower))
    handles: dict[str, Artist] = {}
    for axes in panels[: len(scales)]:
        artists, names = axes.get_legend_handles_labels()
        handles |= dict(zip(names, artists, strict=True))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside upper right",
        ncols=len(handles),
        frameon=False,
        fontsize=9,
    )
    save(figure, path)


@dataclass(frozen=True)
class _Shown:
    """The trials with scores that fit on one scale; `below` says which are lower than shown."""

    points: Sequence[Point]
    scores: list[float]
    below: list[bool]


def _panel(axes: Axes, shown: _Shown, scale: Scale) -> None:
    places = [scale.place(point.values[scale.key]) for point in shown.points]
    for below, marker, label in ((False, "o", "trial"), (True, "v", "trial below the scale")):
        chosen = [number for number, lower in enumerate(shown.below) if lower == below]
        if chosen:
            axes.scatter(
                [places[number] for number in chosen],
                [shown.scores[number] for number in chosen],
                s=26,
                color="C0",
                alpha=0.55,
                lw=0,
                marker=marker,
                label=label,
            )
    distinct = sorted(set(places))
    if len(places) >= 2 * len(distinct):  # values have several trials each
        medians = []
        for place in distinct:
            own = [score for score, at in zip(shown.scores, places, strict=True) if at == place]
            medians.append(float(np.median(own)))
        axes.plot(distinct, medians, color="C0", lw=1.5, label="median")
    best = max(range(len(places)), key=lambda number: shown.scores[number])
    axes.scatter(
        [places[best]], [shown.scores[best]], s=90, marker="*", color=_BEST, zorder=3, label="best"
    )
    scale.dress(axes)
    axes.grid(axis="y", color="#e8ebee", lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def draw_parallel(
    points: Sequence[Point],
    scales: Sequence[Scale],
    path: Path,
    label: str,
    *,
    lower: bool = False,
) -> None:
    """Draw a PNG with parallel coordinates: a line per trial, coloured by its score.

    `lower` is as in `draw_sensitivity`.
    """
    figure = Figure(figsize=(2.2 * (len(scales) + 1) + 1.2, 4.2), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(points, key=lambda point: -point.score)[::-1]  # the first of the best is last
    scores = [point.score for point in ordered]
    shades = Normalize(min(scores), max(scores))
    colours = matplotlib.colormaps["viridis"]
    every = [_shares(scale, ordered) for scale in scales]
    every.append([float(shades(score)) if len(set(scores)) > 1 else 0.5 for score in scores])
    positions = range(len(every))
    for number, point in enumerate(ordered):
        heights = [shares[number] for shares in every]
        last = number == len(ordered) - 1
        axes.plot(
            positions,
            heights,
            color=_BEST if last else colours(shades(point.score)),
            lw=2.4 if last else 1.1,
            alpha=1.0 if last else 0.7,
            zorder=3 if last else 2,
        )
    for position, scale in enumerate(scales):
        values = [point.values[scale.key] for point in ordered]
        texts = [f"{value:g}" if is_number(value) else str(value) for value in values]
        _rail(axes, position, dict(zip(every[position], texts, strict=True)))
    spell = _formatter(lower)
    ends = {every[-1][0]: spell(scores[0]), every[-1][-1]: spell(scores[-1])}
    _rail(axes, len(scales), ends)
    axes.set_xticks(positions, [*(scale.key for scale in scales), label])
    axes.set_yticks([])
    axes.set_xlim(-0.35, len(scales) + 0.15)
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="x", length=0)
    shown = ScalarMappable(shades, colours)
    figure.colorbar(shown, ax=axes, format=spell, label=f"{label}; red: the best")
    save(figure, path)


def _shares(scale: Scale, points: Sequence[Point]) -> list[float]:
    """The height of every trial on the rail of a key, 0 to 1."""
    places = np.array([scale.place(point.values[scale.key]) for point in points])
    if scale.log:
        places = np.log(places)
    span = float(np.ptp(places))
    if not span:
        return [0.5] * len(points)
    shares: list[float] = ((places - places.min()) / span).tolist()
    return shares


def _rail(axes: Axes, position: int, marks: Mapping[float, str]) -> None:
    """A vertical axis with its values by height; of many, the smallest and the largest."""
    axes.axvline(position, color="#66707c", lw=1.0, zorder=1)
    heights = list(marks)
    if len(marks) > _MARKS:
        heights = [min(marks), max(marks)]
    for height in heights:
        axes.annotate(
            marks[height],
            (position, height),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=8.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8},
            zorder=4,
        )


def _formatter(lower: bool) -> FuncFormatter:
    """How scores are written; those of which `lower` is better with the other sign."""

    def text(score: float, position: int | None = None) -> str:
        value = -score if lower else score
        return f"{value:.4g}".replace("-", "\u2212")

    return FuncFormatter(text)
