"""After how many rounds a row passes its printed figure, where it ends above it.

`python -m experiments.papers.passing [--rows GLOB] [--data-dir DIR] [--device cuda]` runs rows of
all tables with a score every 5 rounds, adds them to passing.json, and writes passing.md. A row
is PAPER/TABLE/SETTING/METHOD. Of the rows that match it runs those with a published figure that is
more than a point above the printed one; with `--every` it runs all of them. Rows that are there
are not run again, and several processes share the work. `--rounds`, `--seeds` and `--score-every`
are as in `covey reproduce`.

Two models of a row that pass their printed figures in the same round speak for a table of fewer
rounds. Where one of them is far from its figure when the other passes, that is not the reason.
"""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.errors import ConfigError
from covey.papers import tables, verdicts
from covey.papers.measure import Options
from covey.papers.printed import cell
from covey.papers.results import Results, ResultStore, read, read_papers, valid
from covey.papers.tables import Row
from experiments.papers import curves

NAME = "passing"
HEAD = ("row", "model", "printed", "best round", "last round", "passes in", "other models then")

Curve = Mapping[str, float]
"""The mean accuracy of the seeds, by the number of rounds until then."""


def rows(pattern: str = "*") -> Iterator[Row]:
    """The rows with printed cells whose PAPER/TABLE/SETTING/METHOD matches, each once.

    Rows whose settings are searched are left out, and rows with a radio, which print latencies.
    """
    for name in tables.names():
        for row in tables.read(name).rows:
            named = replace(row, table=f"{row.paper}/{row.table}")
            shown_elsewhere = named.table != name
            if row.search or row.sections or shown_elsewhere or not _printed(row):
                continue
            if fnmatch.fnmatchcase(named.key, pattern):
                yield named


def _printed(row: Row) -> dict[str, float]:
    """The printed figures of a row, by our model."""
    cells = {model: cell(row, model) for model in row.cells}
    return {model: figure.value for model, figure in cells.items() if figure is not None}


def is_above(row: Row, published: Results) -> bool:
    """Whether a published figure of a row is more than a point above the printed one."""
    own = replace(row, table=row.table.partition("/")[2])
    models = valid(published, own).get("paper", {}).get("models", {})
    return any(
        statistics.mean(models[model]) > figure + verdicts.POINTS
        for model, figure in _printed(row).items()
        if models.get(model)
    )


def passes(curve: Curve, figure: float) -> tuple[int, int] | None:
    """The last scored round below a figure, and the first that reaches it; None: none does.

    Rounds are counted from 1, and the first is 0 where the first scored round reaches it.

    >>> passes({"5": 60.0, "10": 80.0, "15": 70.0}, 75.0)
    (5, 10)
    """
    before = 0
    for number in sorted(map(int, curve)):
        if curve[str(number)] >= figure:
            return before, number
        before = number
    return None


def lines(results: Results, pattern: str = "*") -> Iterator[Sequence[str]]:
    """A line under `HEAD` for every printed cell of the rows that were run."""
    for row in rows(pattern):
        result = valid(results, row).get("paper")
        if result is not None:
            yield from _lines_of(row, result)


def _lines_of(row: Row, result: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    figures = {model: value for model, value in _printed(row).items() if model in result["curve"]}
    for model in figures:
        curve = result["curve"][model]
        passed = passes(curve, figures[model])
        best = max(curve, key=lambda number: curve[number])
        last = max(curve, key=int)
        others = [other for other in figures if other != model]
        yield (
            row.key,
            model,
            str(cell(row, model)),
            f"{curve[best]:.2f} ({best})",
            f"{curve[last]:.2f} ({last})",
            _rounds_in_words(passed),
            ", ".join(_then(other, figures, result["curve"], passed) for other in others),
        )


def _rounds_in_words(passed: tuple[int, int] | None) -> str:
    """The round, or the rounds among which it is.

    >>> _rounds_in_words((5, 10)), _rounds_in_words((0, 1)), _rounds_in_words(None)
    ('6 to 10', '1', 'none')
    """
    if passed is None:
        return "none"
    below, reached = passed
    if reached == below + 1:
        return str(reached)
    return f"{below + 1} to {reached}"


def _then(
    model: str,
    figures: Mapping[str, float],
    curve: Mapping[str, Curve],
    passed: tuple[int, int] | None,
) -> str:
    """Another model when a figure is passed, and what is printed for it."""
    if passed is None:
        return "-"
    return f"{model} {curve[model][str(passed[1])]:.2f} (printed {figures[model]:.2f})"


def write_page(path: Path) -> None:
    """passing.md beside passing.json."""
    title = "# The round in which a row passes its printed figure"
    command = "`python -m experiments.papers.passing`; means of the seeds, with the round."
    table = curves.show(HEAD, lines(read(path)))
    path.with_suffix(".md").write_text(f"{title}\n\n{command}\n\n{table}\n", encoding="utf-8")


def wanted(pattern: str, *, every: bool) -> list[Row]:
    """The rows that match, or those of them that end above a printed figure; an error: none."""
    matching = list(rows(pattern))
    published = read_papers(curves.FOLDER, {row.paper for row in matching})
    above = [row for row in matching if every or is_above(row, published[row.paper])]
    if not matching:
        rule = "give PAPER/TABLE/SETTING/METHOD, also with *, of a row with a printed cell"
        raise ConfigError(f"no row matches {pattern!r}; {rule}.")
    if not above:
        fix = "with --every they are run all the same"
        raise ConfigError(f"no row that matches {pattern!r} ends above its printed figure; {fix}.")
    return above


def run(rows: Sequence[Row], options: Options, folder: Path) -> None:
    """Run what is missing; the page is written anew after each row."""
    with ResultStore(folder, NAME) as store:
        write_page(store.path)
        for row in rows:
            if curves.run(store, row, options):
                write_page(store.path)
    print(f"{len(rows)} rows are in {store.path}, or another process runs them")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing and write the page, or show what is there."""
    parser = curves.arguments(__doc__)
    parser.add_argument("--every", action="store_true", help="also rows that are not above")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="fewer rounds than the paper has")
    parser.add_argument("--score-every", type=int, default=5)
    asked = parser.parse_args(arguments)
    with curves.errors_in_words(parser):
        if asked.show:
            print(curves.show(HEAD, lines(read(asked.out / f"{NAME}.json"), asked.rows)))
            return
        options = Options(
            asked.seeds, asked.rounds, asked.score_every, asked.device, data_dir=asked.data_dir
        )
        run(wanted(asked.rows, every=asked.every), options, asked.out)


if __name__ == "__main__":
    main()
