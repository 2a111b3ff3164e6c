"""`covey sweep`: the settings of one file over lists and ranges, chosen on validation data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from covey.cli.folder import refused
from covey.cli.grid import store
from covey.cli.grid import sweep as grid
from covey.cli.grid.store import Store
from covey.cli.grid.sweep import Result
from covey.cli.grid_options import Jobs, Out, Resume, check_words, checked_jobs, progress, shown
from covey.cli.options import AsJson, What, split
from covey.cli.stop import Interrupted, stoppable
from covey.cli.terminal import Console


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
    """Try settings of a file, and write the best as a file of its own.

    A key may have a list of values, a,b,c, or a range, low:high or low:high:log.
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
    check_words(path, changes, out, resume)
    processes = checked_jobs(jobs)
    if resume is not None:
        folder = store.resumed(resume, "sweep")
    else:
        folder = grid.start(path, changes, search, trials, out)
    result = _run(console, folder, processes)
    if as_json:
        print(json.dumps({"folder": str(folder.path), **result.as_dict()}))
        return
    shown(console, grid.table(result))
    files = "sweep.csv, sweep.json, sensitivity.png, parallel.png"
    console.print(f"\nfolder: {folder.path}   files: {files}")
    if result.best is not None:
        console.print(f"run the best: covey run {folder.path / 'best.toml'}")


def _run(console: Console, folder: Store, jobs: int) -> Result:
    """All trials; however it ends, the user is told how to go on."""
    try:
        with stoppable(console), progress(console, "sweep") as told:
            return grid.run(folder, jobs, told, draw)
    except KeyboardInterrupt as error:
        go_on = f"covey sweep --resume {folder.path}"
        raise Interrupted(f"the finished trials are saved; resume with: {go_on}") from error


def draw(folder: Store, result: Result) -> None:
    """sensitivity.png and parallel.png, of the trials that ended well."""
    from covey.report.sweep_picture import Point, Scale, draw_parallel, draw_sensitivity

    whole = [trial for trial in result.trials if math.isfinite(trial.score)]
    metric = result.metric
    if not whole or metric is None:
        return
    points = [Point(trial.settings, metric.scaled(trial.score)) for trial in whole]
    scales = []
    for axis in result.axes:
        values = [trial.settings[axis.key] for trial in whole]
        scales.append(Scale.of(axis.key, values, log=axis.log))
    label = f"validation {metric.axis}"
    if not metric.higher:
        label += ", less is better"
    for name, picture in (
        ("sensitivity.png", draw_sensitivity),
        ("parallel.png", draw_parallel),
    ):
        path = Path(folder.path / name)
        with refused(path):
            picture(points, scales, path, label, lower=not metric.higher)
