"""The tables of a comparison as text, and its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from covey.atomic import refused
from covey.fields import spelled
from covey.grid.result import MethodRow, Result
from covey.report.paired import EXACT, LEAST
from covey.report.summary import ModelFigures
from covey.runs.saved.run_folder import Folder
from covey.runs.scores.headline import Headline, named

_P = ("p", "p (Holm)")
_WORST = "worst_decile"


@dataclass(frozen=True)
class TextTable:
    """Columns and their cells; the first `left` columns are words, the others numbers."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    left: int = 1
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The table in columns."""
        lines = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        out = [self.title]
        for line in lines:
            cells = []
            for number, (cell, width) in enumerate(zip(line, widths, strict=True)):
                cells.append(cell.ljust(width) if number < self.left else cell.rjust(width))
            out.append("  ".join(cells).rstrip())
        return "\n".join([*out, *self.notes])


def write(result: Result, folder: Folder) -> None:
    """compare.json, compare.csv and compare.txt."""
    folder.write_json("compare.json", result.as_dict())
    folder.write("compare.csv", result.csv())
    folder.write("compare.txt", "\n\n".join(table.text() for table in tables(result)) + "\n")


def draw(folder: Path, result: Result) -> None:
    """compare.png, with a line for every method that has a result."""
    from covey.report.pictures import grid_picture

    rows = [row for row in result.rows if row.model]
    runs = {row.title: (row.model, row.label, result.histories[row.title]) for row in rows}
    path = folder / "compare.png"
    if runs:
        with refused(path):
            grid_picture.draw(runs, path, modelled=result.modelled)


def tables(result: Result) -> Iterator[TextTable]:
    """The methods, their settings, and their differences over seeds and over devices."""
    yield methods(result)
    yield settings(result)
    if result.pairs:
        yield over_seeds(result)
        yield over_devices(result)


def methods(result: Result) -> TextTable:
    """One row per method, the best first."""
    amount = result.budget["amount"]
    budget = f"{amount:,.0f}" if amount >= 1000 else f"{amount:.4g}"
    names = [result.metric.name]  # that by which methods are ordered first
    if result.classifies:
        names = [*names, "accuracy", _WORST] if result.selected else ["accuracy", *names, _WORST]
    shown = {name: f"test {named(name).unit}" for name in [*names, *result.metrics]}
    if result.classifies:
        shown[_WORST] = "worst 10 %"
    seconds = "seconds on air" if result.modelled else "seconds"
    heads = ["method", "model", *shown.values(), "rounds", "gradients", "MB", seconds]
    rows = []
    for row in ordered(result):
        if row.reported is None:
            rows.append([row.title, "-", "failed", *["-"] * (len(shown) + 3)])
            continue
        figures = [_cell(row.reported, name) for name in shown]
        used = [f"{row.rounds:.0f}", f"{row.gradients:,.0f}"]
        used += [f"{row.bytes / 1e6:.1f}", f"{row.seconds:.1f}"]
        rows.append([row.title, row.label, *figures, *used])
    by = f" by {result.metric.title}" if result.selected else ""
    what = "rounds and models"
    if result.asked:
        what = f"{result.asked} models where there are some; rounds and other models"
    spent = f"equal budget: {budget} {result.budget['unit']} per seed"
    title = f"{spent}; {what} chosen{by} on validation data"
    notes = tuple(f"{row.title}: {row.error}" for row in result.rows if row.error)
    return TextTable(title, heads, rows, left=2, notes=notes)


def ordered(result: Result) -> list[MethodRow]:
    """The rows, the best on test first; those without a result last."""

    def badness(row: MethodRow) -> float:
        figures = row.reported
        figure = None if figures is None else figures.figure(result.metric.name)
        return result.metric.badness(None if figure is None else figure.mean)

    return sorted(result.rows, key=badness)


def settings(result: Result) -> TextTable:
    """What was tuned, and how often it was tried."""
    rows = []
    for row in ordered(result):
        trials = str(row.trials)
        if row.failed_trials:
            trials += f" ({row.failed_trials} failed)"
        tuned = ", ".join(f"{key} = {spelled(value)}" for key, value in row.settings.items())
        rows.append([row.title, trials, tuned or "-"])
    title = "settings, tuned on the validation data of the first seed"
    return TextTable(title, ["method", "trials", "settings"], rows, left=3)


def over_seeds(result: Result) -> TextTable:
    """Paired differences of seeds: what new seeds, and so new models, would give."""
    unit = _unit(result.metric)
    heads = ["method", "against", "seeds", "df", f"mean ({unit})", "95 % interval", *_P]
    rows = []
    for each in result.pairs:
        ends = "-"
        if each.interval is not None:
            ends = " to ".join(_signed(result.metric, end) for end in each.interval)
        figures = [_signed(result.metric, each.mean), ends, _p(each.p_seeds), _p(each.p_seeds_holm)]
        rows.append([each.method, each.baseline, str(each.seeds), str(each.seeds - 1), *figures])
    title = f"over seeds: paired t test on seed means, two-sided; {_corrected(result)}"
    first = result.pairs[0]
    notes = [f"{first.baseline} is the best on validation data besides {first.method}"]
    if first.seeds < LEAST:
        notes.append(f"seeds = {first.seeds}: no test below {LEAST} seeds")
    return TextTable(title, heads, rows, left=2, notes=tuple(notes))


def over_devices(result: Result) -> TextTable:
    """Paired differences of devices, which share the models of these seeds."""
    metric = named(result.pairs[0].metric)
    heads = ["method", "against", "devices", "gain", "lose", f"median ({_unit(metric)})", *_P]
    rows = []
    for each in result.pairs:
        counts = [str(count) for count in (each.devices, each.better, each.worse)]
        figures = [_signed(metric, each.median), _p(each.p), _p(each.p_holm)]
        rows.append([each.method, each.baseline, *counts, *figures])
    counted = all(each.better + each.worse <= EXACT for each in result.pairs)
    test = "exact signed-rank test" if counted else "signed-rank test"
    title = f"over devices, for these models only: {test}, two-sided; {_corrected(result)}"
    return TextTable(title, heads, rows, left=2)


def _cell(figures: ModelFigures, name: str) -> str:
    figure = figures.figure(name)
    if figure is None:
        return "-"
    if name == _WORST or named(name).percent:
        return figure.percent()
    return str(figure)


def _corrected(result: Result) -> str:
    return f"p (Holm) is for {len(result.pairs)} comparisons"


def _unit(metric: Headline) -> str:
    return "points" if metric.percent else metric.title


def _signed(metric: Headline, value: float | None) -> str:
    """A difference; more is better."""
    if value is None:
        return "-"
    return f"{value:+.2f}" if metric.percent else f"{value:+.4g}"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0e}" if value < 1e-4 else f"{value:.4f}"
