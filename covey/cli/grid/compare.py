"""Running a comparison into its folder, and writing what it came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from covey.cli.grid import pool, store
from covey.cli.grid.cells import metric_of, play
from covey.cli.grid.comparing import Comparison
from covey.cli.grid.planning import Options, plan
from covey.cli.grid.pool import Answer, Job
from covey.cli.grid.result import Result, collect
from covey.cli.grid.store import Store
from covey.cli.grid.tables import plain, tables
from covey.runs.headline import named

Told = Callable[[int, int, str], None]
"""Receives how many cells have ended, of how many, and the last one in words."""


def start(
    path: Path | None,
    changes: list[str],
    options: Options,
    out: Path | None,
    told: Callable[[str], None] = lambda text: None,
) -> Store:
    """A new folder with the plan of a comparison; everything wrong with it is said before."""
    planned = plan(path, changes, options, told)
    name = str(planned["config"].get("name", ""))
    return store.new(planned, out, name)


def run(folder: Store, jobs: int, told: Told, model: str = "") -> Result:
    """All cells that are left, then the tables and figures as files.

    `model` is reported where a method has it; "": the plan's, or the best on validation data.
    """
    with store.locked(folder):
        folder.retry_failures()
        with store.understood(folder):
            comparison = Comparison(folder, jobs)
            comparison.jobs()
        run_cells(comparison, jobs, told)
        with store.understood(folder):
            result = collect(comparison, model or comparison.model)
        write(folder, result)
    return result


class Cells(Protocol):
    """The cells of a comparison or a sweep."""

    @property
    def finished(self) -> int: ...

    @property
    def total(self) -> int: ...

    def jobs(self) -> Sequence[Job]: ...

    def add(self, job: Job, answer: Answer) -> None: ...


def run_cells(cells: Cells, processes: int, told: Told) -> None:
    """Run the cells that are left, and tell of each one that ends."""

    def done(job: Job, answer: Answer) -> None:
        cells.add(job, answer)
        told(cells.finished, cells.total, in_words(job, answer))

    told(cells.finished, cells.total, "")
    pool.run(play, cells.jobs, done, processes)


def write(folder: Store, result: Result) -> None:
    """compare.json, compare.csv and compare.txt."""
    folder.folder.write_json("compare.json", result.as_dict())
    folder.folder.write("compare.csv", result.csv())
    folder.folder.write("compare.txt", plain(list(tables(result))) + "\n")


def in_words(job: Job, answer: Answer) -> str:
    """A cell that has ended, for the line of progress."""
    if "score" in answer:
        metric = named(metric_of(answer))
        score = float(answer["score"])
        value = score if metric.higher else -score
        return f"{job.name}: {metric.with_unit(value)} on validation"
    if "error" in answer:
        return f"{job.name}: {'diverged' if answer.get('diverged') else 'failed'}"
    return f"{job.name}: done"
