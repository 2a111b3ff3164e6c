"""`covey compare` and `covey sweep`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from covey.cli.options import AsJson, What, split
from covey.errors import ConfigError
from covey.folder.folder import refused
from covey.folder.show import print_wide
from covey.folder.stop import Interrupted, stoppable
from covey.folder.terminal import Console
from covey.grid import grid, plan, result, store, tables
from covey.grid import sweep as sweeps
from covey.grid.grid import Told
from covey.grid.pool import cores
from covey.grid.result import Result
from covey.grid.store import GridStore
from covey.grid.sweep import SweepResult
from covey.grid.tables import TextTable

Jobs = Annotated[
    int | None,
    typer.Option(help="Processes, each with one thread. Default: one per core."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="The folder to write; it must be new or empty. Default: runs/NAME-N."),
]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Go on in this folder; finished cells are not run again."),
]
_LINES = 10  # of progress without a terminal


def compare(
    arguments: What = None,
    budget: Annotated[
        str,
        typer.Option(
            metavar="UNIT[=N]",
            help="What every method may use in one seed: gradients, examples (gradients times the "
            "batch), bytes, or modelled seconds. "
            "Default N: what the file's own algorithm uses in its rounds.",
        ),
    ] = "gradients",
    trials: Annotated[
        int,
        typer.Option(help="Settings tried for each method; 1 tunes nothing."),
    ] = plan.TRIALS,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The model that is tuned and reported, such as personal, where a method has it. "
            "Default: each method's best on validation data. With --resume it is reported alone.",
        ),
    ] = "",
    jobs: Jobs = None,
    out: Out = None,
    resume: Resume = None,
    as_json: AsJson = False,
) -> None:
    """Every method gets the same number of trials, judged on validation data alone.

    The best setting runs on all seeds. Local and FineTune are always compared.
    The file's own method is tested against the best other one, and every method
    against Local and FineTune: over seeds, from three seeds on, and over devices.
    A field of the algorithm with several values is tuned over these values.

    Examples:

      covey compare my.toml algorithm.name=fedavg,pfedme,ditto seeds=5

      covey compare my.toml algorithm.name=pfedme,ditto algorithm.lam=0.5,2,8

      covey compare my.toml --budget bytes=50e6 --trials 12 --jobs 8

      covey compare --resume runs/my-compare-1     after a crash, or to draw again
    """
    console = Console(stderr=as_json)
    path, changes = split(arguments)
    processes = _processes(jobs, path, changes, out, resume)
    if resume is not None:
        folder = store.resumed(resume, "compare")
    else:
        with console.status("reading the file") as status:
            planned = plan.comparison(path, changes, budget, trials, model, status.update)
            folder = store.new(planned, out)
    with _under_way(console, folder, "cells") as told:
        found = grid.run(
            folder, processes, told, lambda done: result.collect(done, model), tables.write
        )
        _draw_comparison(folder.path, found)
    if as_json:
        print(json.dumps({"folder": str(folder.path), **found.as_dict()}))
        return
    for table in tables.tables(found):
        _show(console, table)
    files = "compare.png, compare.csv, compare.json"
    console.print(f"\nfolder: {folder.path}   files: {files}")


def sweep(
    arguments: What = None,
    search: Annotated[
        str,
        typer.Option(help="grid (all combinations; five values of a range), random, or optuna."),
    ] = "grid",
    trials: Annotated[
        int | None,
        typer.Option(help="Settings that random and optuna try. Default: 20."),
    ] = None,
    jobs: Jobs = None,
    out: Out = None,
    resume: Resume = None,
    as_json: AsJson = False,
) -> None:
    """A key may have a list of values, a,b,c, or a range, low:high or low:high:log.

    A trial runs the file with one setting on all its seeds. Validation data choose;
    test data are not looked at.

    Examples:

      covey sweep my.toml algorithm.lr=0.01:1:log algorithm.lam=1,5,15

      covey sweep my.toml algorithm.lr=0.01:1:log --search random --trials 30

      covey sweep my.toml algorithm.lr=0.01:1:log seeds=3 --search optuna

      covey sweep --resume runs/my-sweep-1       after a crash, or to draw again

      covey run runs/my-sweep-1/best.toml        the best setting, on test data
    """
    console = Console(stderr=as_json)
    path, changes = split(arguments)
    processes = _processes(jobs, path, changes, out, resume)
    if resume is not None:
        folder = store.resumed(resume, "sweep")
    else:
        folder = store.new(plan.sweep(path, changes, search, trials), out)
    with _under_way(console, folder, "trials") as told:
        found = grid.run(folder, processes, told, sweeps.collect, sweeps.write)
        _draw_sweep(folder.path, found)
    if as_json:
        print(json.dumps({"folder": str(folder.path), **found.as_dict()}))
        return
    _show(console, sweeps.table(found))
    files = "sweep.csv, sweep.json, sensitivity.png, parallel.png"
    console.print(f"\nfolder: {folder.path}   files: {files}")
    if found.best is not None:
        console.print(f"run the best: covey run {folder.path / 'best.toml'}")


def _processes(
    jobs: int | None, path: Path | None, changes: list[str], out: Path | None, resume: Path | None
) -> int:
    """The number of processes; an error for words that a resumed grid cannot have."""
    words = [] if path is None else [str(path)]
    words += changes if out is None else [*changes, f"--out {out}"]
    if resume is not None and words:
        raise ConfigError(f"--resume {resume} brings its own plan; leave out {words[0]}.")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: give 1 or more.")
    return jobs or cores()


@contextmanager
def _under_way(console: Console, folder: GridStore, cells: str) -> Iterator[Told]:
    """The line of progress; however the grid ends, the user is told how to go on."""
    command = str(folder.plan["kind"])
    try:
        with stoppable(console), _progress(console, command) as told:
            yield told
    except KeyboardInterrupt as error:
        go_on = f"covey {command} --resume {folder.path}"
        raise Interrupted(f"the finished {cells} are saved; resume with: {go_on}") from error


@contextmanager
def _progress(console: Console, label: str) -> Iterator[Told]:
    """One line on a terminal; else a few lines, about one for every tenth of the cells."""
    printed = -1

    def print_tenth(finished: int, total: int, text: str) -> None:
        nonlocal printed
        tenth = _LINES * finished // max(total, 1)
        if tenth != printed:
            printed = tenth
            console.print(f"{label}: {finished} of {total} cells  {text}")

    if not console.is_terminal:
        yield print_tenth
        return
    columns = (
        TextColumn(label, markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=None, note="")
        yield lambda finished, total, text: bar.update(
            task, completed=finished, total=total, note=text
        )


def _show(console: Console, table: TextTable) -> None:
    """Print a table with its title and notes."""
    rich = RichTable(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(table.heads):
        justify: Literal["left", "right"] = "left" if number < table.left else "right"
        rich.add_column(head, justify=justify, no_wrap=True)
    for row in table.rows:
        rich.add_row(*row)
    console.print(f"\n{table.title}")
    print_wide(console, rich)
    for note in table.notes:
        console.print(f"note: {note}")


def _draw_comparison(folder: Path, found: Result) -> None:
    """compare.png, with a line for every method that has a result."""
    from covey.report.pictures import grid_picture

    rows = [row for row in found.rows if row.model]
    runs = {row.title: (row.model, row.label, found.histories[row.title]) for row in rows}
    path = folder / "compare.png"
    if runs:
        with refused(path):
            grid_picture.draw(runs, path, modelled=found.modelled)


def _draw_sweep(folder: Path, found: SweepResult) -> None:
    """sensitivity.png and parallel.png, of the trials that ended well."""
    from covey.report.pictures.sweep_picture import Point, Scale, draw_parallel, draw_sensitivity

    whole = [trial for trial in found.trials if math.isfinite(trial.score)]
    metric = found.metric
    if not whole or metric is None:
        return
    points = [Point(trial.settings, metric.scaled(trial.score)) for trial in whole]
    scales = []
    for axis in found.axes:
        values = [trial.settings[axis.key] for trial in whole]
        scales.append(Scale.of(axis.key, values, log=axis.log))
    label = f"validation {metric.axis}"
    if not metric.higher:
        label += ", less is better"
    for name, draw in (("sensitivity.png", draw_sensitivity), ("parallel.png", draw_parallel)):
        with refused(folder / name):
            draw(points, scales, folder / name, label, lower=not metric.higher)
