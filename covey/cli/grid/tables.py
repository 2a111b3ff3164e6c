"""The tables of a comparison as text; the command and `python -m covey.cli.grid` print them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from covey.cli.grid.result import Pairs, Result, Row
from covey.cli.validate import spell
from covey.report.summary import ModelFigures
from covey.runs.headline import named


@dataclass(frozen=True)
class Table:
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


def tables(result: Result) -> Iterator[Table]:
    """The methods, their settings, and every device against the baselines."""
    yield methods(result)
    yield settings(result)
    if result.pairs:
        yield pairs(result)


def methods(result: Result) -> Table:
    """One row per method, the best first."""
    budget = f"{_amount(result.budget['amount'])} {result.budget['unit']}"
    metrics = _shown(result)
    figures = [_head(metric) for metric in metrics]
    seconds = "seconds"
    if result.modelled:
        seconds = "seconds on air"
    heads = ["method", "model", *figures, "rounds", "gradients", "MB", seconds]
    rows = [_method(row, metrics) for row in ordered(result)]
    by = ""
    if result.selected:
        by = f" by {result.metric.title}"
    title = f"equal budget: {budget} per seed; rounds and models chosen{by} on validation data"
    failed = [row for row in result.rows if row.error]
    notes = tuple(f"{row.title}: {row.error}" for row in failed)
    return Table(title, heads, rows, left=2, notes=notes)


def ordered(result: Result) -> list[Row]:
    """The rows, the best on test first; those without a result last."""

    def badness(row: Row) -> float:
        figures = row.reported
        figure = None if figures is None else figures.figure(result.metric.name)
        return result.metric.badness(None if figure is None else figure.mean)

    return sorted(result.rows, key=badness)


def settings(result: Result) -> Table:
    """What was tuned, and how often it was tried."""
    rows = []
    for row in ordered(result):
        trials = str(row.trials)
        if row.failed_trials:
            trials += f" ({row.failed_trials} failed)"
        tuned = ", ".join(f"{key} = {spell(value)}" for key, value in row.settings.items())
        rows.append([row.title, trials, tuned or "-"])
    title = "settings, tuned on the validation data of the first seed"
    return Table(title, ["method", "trials", "settings"], rows, left=3)


def pairs(result: Result) -> Table:
    """Paired differences of devices against the baselines."""
    unit = named(result.pairs[0].metric).gain_unit
    heads = ["method", "against", "devices", "gain", "lose", f"median ({unit})", "p", "p (Holm)"]
    rows = [_pair(each) for each in result.pairs]
    count = len(result.pairs)
    title = f"devices, Wilcoxon signed-rank, two-sided; p (Holm) is for {count} comparisons"
    return Table(title, heads, rows, left=2)


_WORST = "worst_decile"


def _shown(result: Result) -> list[str]:
    """The figures that have a column, the one by which methods are ordered first."""
    names = [result.metric.name]
    if result.classifies and not result.selected:
        names.insert(0, "accuracy")
    elif result.classifies:
        names.append("accuracy")
    if result.classifies:
        names.append(_WORST)
    return list(dict.fromkeys([*names, *result.metrics]))


def _head(name: str) -> str:
    if name == _WORST:
        return "worst 10 %"
    return f"test {named(name).unit}"


def _method(row: Row, metrics: Sequence[str]) -> list[str]:
    figures = row.reported
    if figures is None:
        empty = ["-"] * (len(metrics) + 3)
        return [row.title, "-", "failed", *empty]
    return [
        row.title,
        row.model,
        *(_cell(figures, name) for name in metrics),
        f"{row.rounds:.0f}",
        f"{row.gradients:,.0f}",
        f"{row.bytes / 1e6:.1f}",
        f"{row.seconds:.1f}",
    ]


def _cell(figures: ModelFigures, name: str) -> str:
    figure = figures.figure(name)
    if figure is None:
        return "-"
    if name == _WORST or named(name).percent:
        return figure.percent()
    return str(figure)


def _amount(amount: float) -> str:
    """
    >>> _amount(1234567.0), _amount(1.23456)
    ('1,234,567', '1.235')
    """
    if amount >= 1000:
        return f"{amount:,.0f}"
    return f"{amount:.4g}"


def _pair(each: Pairs) -> list[str]:
    return [
        each.method,
        each.baseline,
        str(each.devices),
        str(each.better),
        str(each.worse),
        _median(each),
        _p(each.p),
        _p(each.p_holm),
    ]


def _median(each: Pairs) -> str:
    metric = named(each.metric)
    if metric.percent or metric.relative:
        return f"{each.median:+.2f}"
    return f"{each.median:+.4f}"


def _p(value: float) -> str:
    if value < 1e-4:
        return f"{value:.0e}"
    return f"{value:.4f}"


def plain(tables: Sequence[Table]) -> str:
    """All tables, one below the other."""
    return "\n\n".join(table.text() for table in tables)
