"""Rows that are run with the accuracy after each scored round, and kept in a file of their own."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from covey import Algorithm
from covey.papers import measure, report
from covey.papers.measure import Options
from covey.papers.results import Store, has
from covey.papers.tables import Row

FOLDER = Path(__file__).parent


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every script of this kind can be asked."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rows", default="*", help="only rows whose PAPER/TABLE/ROW matches this")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--show", action="store_true", help="print what is there, and run nothing")
    return parser


def run(store: Store, row: Row, options: Options, kind: type[Algorithm] | None = None) -> bool:
    """Run a row unless its result is there or another process runs it; whether it was run."""
    with store.claim(row, "paper") as mine:
        if not mine or has(store.read(), row, "paper", options):
            return False
        result = measure.measure(row, "paper", options, curves=True, kind=kind)
        store.put(row, "paper", result)
        return True


def run_all(store: Store, rows: Iterable[tuple[Row, Options, type[Algorithm] | None]]) -> None:
    """Run what is missing, and print the means of every row that was run.

    An algorithm beside a row is run in place of the row's own.
    """
    for row, options, kind in rows:
        if run(store, row, options, kind):
            figures = store.read()[row.key]["paper"]["models"]
            means = {model: statistics.mean(values) for model, values in figures.items()}
            print(row.key, means, flush=True)


def show(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    return "\n".join(report.rows_of_markdown(head, list(lines)))
