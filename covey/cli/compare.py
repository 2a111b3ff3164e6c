"""`covey compare`: algorithms at equal budget, tuned alike, with tests of the differences."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from covey.cli.folder import refused
from covey.cli.grid import compare as grid
from covey.cli.grid import store
from covey.cli.grid.planning import TRIALS, options
from covey.cli.grid.result import Result
from covey.cli.grid.store import Store
from covey.cli.grid.tables import tables
from covey.cli.grid_options import Jobs, Out, Resume, check_words, checked_jobs, progress, shown
from covey.cli.options import AsJson, What, split
from covey.cli.stop import Interrupted, stoppable
from covey.cli.terminal import Console


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
    ] = TRIALS,
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
    """Compare algorithms at equal budget, each with tuned steps and penalty.

    Every method gets the same number of trials, judged on validation data alone.
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
    check_words(path, changes, out, resume)
    processes = checked_jobs(jobs)
    if resume is not None:
        folder = store.resumed(resume, "compare")
    else:
        with console.status("reading the file") as status:
            chosen = options(budget, trials, model)
            folder = grid.start(path, changes, chosen, out, status.update)
    result = _run(console, folder, processes, model)
    if as_json:
        print(json.dumps({"folder": str(folder.path), **result.as_dict()}))
        return
    for table in tables(result):
        shown(console, table)
    files = "compare.png, compare.csv, compare.json"
    console.print(f"\nfolder: {folder.path}   files: {files}")


def _run(console: Console, folder: Store, jobs: int, model: str) -> Result:
    """All cells, and the picture; however it ends, the user is told how to go on."""
    try:
        with stoppable(console), progress(console, "compare") as told:
            result = grid.run(folder, jobs, told, model)
    except KeyboardInterrupt as error:
        go_on = f"covey compare --resume {folder.path}"
        raise Interrupted(f"the finished cells are saved; resume with: {go_on}") from error
    draw(folder, result)
    return result


def draw(folder: Store, result: Result) -> None:
    """compare.png, with a line for every method that has a result."""
    from covey.report import grid_picture

    rows = [row for row in result.rows if row.model]
    runs = {row.title: (row.model, row.label, result.histories[row.title]) for row in rows}
    path = folder.path / "compare.png"
    if runs:
        with refused(path):
            grid_picture.draw(runs, path, modelled=result.modelled)
