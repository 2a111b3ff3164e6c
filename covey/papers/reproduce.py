"""Run the rows of tables that are missing, and save each when it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

from covey import atomic
from covey.data.published import inventory
from covey.errors import ConfigError, DataError
from covey.papers import report, tables
from covey.papers.measure import Options, Protocol, load, measure
from covey.papers.results import (
    Entry,
    ResultStore,
    has,
    is_better,
    read,
    read_papers,
    size_in_words,
    valid,
)
from covey.papers.search import search
from covey.papers.tables import Row
from covey.runs.checks import check_device


class Watcher(Interface):
    """What is told of the progress."""

    def begin(self, row: Row, protocol: Protocol) -> None:
        """A row begins."""

    def tick(self, done: float) -> None:
        """A round of it is over; `done` is the share of the row."""

    def stays(self, row: Row, protocol: Protocol, reason: str) -> None:
        """A better result than the one that was asked for is there, and stays."""

    def end(
        self,
        row: Row,
        protocol: Protocol,
        result: Mapping[str, Any] | None,
    ) -> None:
        """A row is over; None where there was a result already, or another process runs it."""


def reproduce(
    rows: Sequence[Row],
    protocols: Sequence[Protocol],
    options: Options,
    folder: Path,
    watcher: Watcher,
) -> None:
    """All rows by the first protocol, then all by the next.

    A device that is not here and a damaged file of results are errors before the first row. A row
    that cannot run does not stop the others; the error comes at the end.
    """
    check_device(options.device)
    failures = []
    papers = read_papers(folder, (row.paper for row in rows))
    with ExitStack() as stack:
        stores = {paper: stack.enter_context(ResultStore(folder, paper)) for paper in papers}
        for protocol in protocols:
            for row in rows:
                watcher.begin(row, protocol)
                result = None
                try:
                    result = _one(stores[row.paper], row, protocol, options, watcher)
                except ConfigError as error:
                    failures.append(f"{row.paper}/{row.key}: {error}")
                watcher.end(row, protocol, result)
        for store in stores.values():
            write_page(store.path)
    if failures:
        count = f"{len(failures)} of {len(rows) * len(protocols)} rows"
        raise ConfigError(f"{count} could not run. The first was {failures[0]}")


def write_page(path: Path) -> None:
    """Write the tables of a paper as Markdown beside its results."""
    page = path.with_suffix(".md")
    atomic.write(page, report.markdown(tables.of_paper(path.stem), read(path)))


def _one(
    store: ResultStore, row: Row, protocol: Protocol, options: Options, watcher: Watcher
) -> Mapping[str, Any] | None:
    """Run and save a row, unless a result as good is there or another process runs it."""
    with store.claim(row, protocol) as claimed:
        stored = store.read()
        if not claimed or has(stored, row, protocol, options):
            return None
        before = valid(stored, row).get(protocol)
        missing = _missing(row, options)
        wanted = options.size_of(row)
        if missing:
            wanted = {"rounds": 0, "seeds": 0}
        if before is not None and is_better(before, wanted):
            watcher.stays(row, protocol, _reason(before, wanted, missing))
            return None
        result: dict[str, Any] = {**wanted, "seconds": 0.0, "missing": missing}
        if not missing and not row.search:
            result = measure(row, protocol, options, watcher.tick)
        elif not missing:
            chosen = search(row, store, options, lambda done: watcher.tick(done / 2))
            if chosen is None:
                return None  # another process searches the grid
            result = measure(chosen, protocol, options, lambda done: watcher.tick((1 + done) / 2))
        better = store.put(row, protocol, result)  # of another folder's process, merged meanwhile
        if better is not None:
            watcher.stays(row, protocol, _reason(better, result, missing))
            return None
        return result


def _reason(stays: Entry, lesser: Entry, missing: str) -> str:
    """Why a result stays."""
    text = f"the result of {size_in_words(stays)} stays"
    if missing:
        return f"{text}; {missing} is not here"
    return f"{text}; {size_in_words(lesser)} are less: choose another --out for them"


def _missing(row: Row, options: Options) -> str:
    """The name of a row's data set if it is not here and cannot be fetched, else ""."""
    name: str = row.data["name"]
    if name == "emnist":
        name = f"emnist-{row.data.get('kind', 'digits')}"
    absent = [status.name for status in inventory.present(options.data_dir) if not status.present]
    if name in absent:
        try:
            load(row, 0, options)
        except DataError:
            return name
    return ""
