"""Rows that are run with the accuracy after each scored round, and kept in a file of their own."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from covey import Algorithm, CoveyError
from covey.papers import measure, report
from covey.papers.measure import Options
from covey.papers.results import ResultStore, has, is_better, valid
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


@contextmanager
def errors_in_words(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End with the message of an error instead of a trace."""
    try:
        yield
    except CoveyError as error:
        parser.exit(2, f"error: {error}\n")


def run(
    store: ResultStore, row: Row, options: Options, kind: type[Algorithm] | None = None
) -> bool:
    """Run a row and print its means; whether it was run.

    It is not where a result as good or better is there, or another process runs it. `kind` is run
    in place of the row's algorithm.
    """
    with store.claim(row, "paper") as claimed:
        if not claimed or _is_there(store, row, options):
            return False
        result = measure.measure(row, "paper", options, curves=True, kind=kind)
        store.put(row, "paper", result)
    means = {model: statistics.mean(values) for model, values in result["models"].items()}
    print(row.key, means, flush=True)
    return True


def _is_there(store: ResultStore, row: Row, options: Options) -> bool:
    """Whether a result is there that a run would not replace."""
    stored = store.read()
    before = valid(stored, row).get("paper")
    if before is None:
        return False
    return has(stored, row, "paper", options) or is_better(before, options.size_of(row))


def show(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    return "\n".join(report.rows_of_markdown(head, list(lines)))
