"""The tables of a comparison as text; the command and `python -m covey.cli.grid` print them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from covey.cli.grid.result import Pairs, Result, Row
from covey.cli.validate import spell
from covey.report.summary import Figure


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
    figure = "test %"
    if not result.classifies:
        figure = "test RMSE"
    seconds = "seconds"
    if result.modelled:
        seconds = "seconds on air"
    heads = ["method", "model", figure, "worst 10 %", "rounds", "gradients", "MB", seconds]
    rows = [_method(row, result) for row in ordered(result)]
    if result.has_perplexity:
        heads.insert(3, "perplexity")
        for cells, row in zip(rows, ordered(result), strict=True):
            cells.insert(3, _perplexity(row))
    title = f"equal budget: {budget} per seed; rounds and models chosen on validation data"
    failed = [row for row in result.rows if row.error]
    notes = tuple(f"{row.title}: {row.error}" for row in failed)
    return Table(title, heads, rows, left=2, notes=notes)


def ordered(result: Result) -> list[Row]:
    """The rows, the best on test first; those without a result last."""

    def badness(row: Row) -> float:
        figures = row.reported
        if figures is None:
            return float("inf")
        if figures.perplexity is not None:
            return figures.perplexity.mean
        if figures.accuracy is not None:
            return -figures.accuracy.mean
        return figures.rmse.mean if figures.rmse is not None else float("inf")

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
    unit = "points" if result.classifies else "% of RMSE"
    heads = ["method", "against", "devices", "gain", "lose", f"median ({unit})", "p", "p (Holm)"]
    rows = [_pair(each) for each in result.pairs]
    count = len(result.pairs)
    title = f"devices, Wilcoxon signed-rank, two-sided; p (Holm) is for {count} comparisons"
    return Table(title, heads, rows, left=2)


def _method(row: Row, result: Result) -> list[str]:
    figures = row.reported
    if figures is None:
        return [row.title, "-", "failed", "-", "-", "-", "-", "-"]
    if result.classifies:
        shown = _percent(figures.accuracy)
        worst = _percent(figures.worst_decile)
    else:
        shown = "-" if figures.rmse is None else str(figures.rmse)
        worst = "-"
    return [
        row.title,
        row.model,
        shown,
        worst,
        f"{row.rounds:.0f}",
        f"{row.gradients:,.0f}",
        f"{row.bytes / 1e6:.1f}",
        f"{row.seconds:.1f}",
    ]


def _perplexity(row: Row) -> str:
    if row.reported is None or row.reported.perplexity is None:
        return "-"
    return str(row.reported.perplexity)


def _amount(amount: float) -> str:
    """
    >>> _amount(1234567.0), _amount(1.23456)
    ('1,234,567', '1.235')
    """
    if amount >= 1000:
        return f"{amount:,.0f}"
    return f"{amount:.4g}"


def _percent(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return figure.percent()


def _pair(each: Pairs) -> list[str]:
    return [
        each.method,
        each.baseline,
        str(each.devices),
        str(each.better),
        str(each.worse),
        f"{each.median:+.2f}",
        _p(each.p),
        _p(each.p_holm),
    ]


def _p(value: float) -> str:
    if value < 1e-4:
        return f"{value:.0e}"
    return f"{value:.4f}"


def plain(tables: Sequence[Table]) -> str:
    """All tables, one below the other."""
    return "\n\n".join(table.text() for table in tables)
