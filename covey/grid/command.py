"""`covey compare` and `covey sweep`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from covey.cli.options import AsJson, What, split
from covey.errors import ConfigError
from covey.folder.terminal import Console

if TYPE_CHECKING:
    from covey.grid.grid import Came, Grid, Told
    from covey.grid.tables import TextTable
    from covey.runs.saved.run_folder import Folder

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


class Planned(Protocol):
    """Makes the plan of a grid."""

    def __call__(
        self,
        path: Path | None,
        changes: list[str],
        *,
        told: Callable[[str], None],
    ) -> dict[str, Any]:
        """The plan for a file with changes; `told` hears what is being done."""


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
    ] = 8,
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
    from covey.grid import plan, result, tables

    words = _Words(arguments, jobs, out, resume, as_json)
    planned = partial(plan.comparison, budget=budget, trials=trials, model=model)
    collect = partial(result.collect, model=model)
    folder, found = words.play("compare", planned, collect, tables.write, tables.draw)
    files = "compare.png, compare.csv, compare.json"
    words.show(folder, found.as_dict(), tables.tables(found), files)


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
    from covey.grid import plan
    from covey.grid import sweep as sweeps

    words = _Words(arguments, jobs, out, resume, as_json)
    planned = partial(plan.sweep, name=search, trials=trials)
    folder, found = words.play("sweep", planned, sweeps.collect, sweeps.write, sweeps.draw)
    files = "sweep.csv, sweep.json, sensitivity.png, parallel.png"
    words.show(folder, found.as_dict(), [sweeps.table(found)], files)
    if found.best is not None and not as_json:
        words.console.print(f"run the best: covey run {folder / 'best.toml'}")


@dataclass(frozen=True)
class _Words:
    """What both commands are given."""

    arguments: list[str] | None
    jobs: int | None
    out: Path | None
    resume: Path | None
    as_json: bool

    @cached_property
    def console(self) -> Console:
        """Where to tell of the progress; the results too, unless they are JSON."""
        return Console(stderr=self.as_json)

    def play(
        self,
        kind: str,
        planned: Planned,
        collect: Callable[[Grid], Came],
        write: Callable[[Came, Folder], None],
        draw: Callable[[Path, Came], None],
    ) -> tuple[Path, Came]:
        """Run a new grid, or what is left of one; its folder and what it came to."""
        from covey.folder.signals import Interrupted, stoppable
        from covey.grid import grid, store
        from covey.grid.pool import cores

        path, changes = split(self.arguments)
        brought = [*([] if path is None else [path]), *changes]
        if self.out is not None:
            brought.append(f"--out {self.out}")
        if self.resume is not None and brought:
            raise ConfigError(
                f"--resume {self.resume} brings its own plan; leave out {brought[0]}."
            )
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"--jobs {self.jobs}: give 1 or more.")
        if self.resume is not None:
            folder = store.resumed(self.resume, kind)
        else:
            with self.console.status("reading the file") as status:
                folder = store.new(planned(path, changes, told=status.update), self.out)
        try:
            with stoppable(self.console), _progress(self.console, kind) as told:
                found = grid.run(folder, self.jobs or cores(), told, collect, write)
                draw(folder.path, found)
        except KeyboardInterrupt as error:
            cells = {"compare": "cells", "sweep": "trials"}[kind]
            go_on = f"covey {kind} --resume {folder.path}"
            raise Interrupted(f"the finished {cells} are saved; resume with: {go_on}") from error
        return folder.path, found

    def show(
        self, folder: Path, facts: dict[str, Any], listed: Iterable[TextTable], files: str
    ) -> None:
        """Print the tables, with their titles and notes, or all as JSON."""
        from covey.folder.show import print_wide, table_of

        if self.as_json:
            print(json.dumps({"folder": str(folder), **facts}))
            return
        for table in listed:
            rich = table_of(table.heads, table.heads[: table.left])
            for row in table.rows:
                rich.add_row(*row)
            self.console.print(f"\n{table.title}")
            print_wide(self.console, rich)
            for note in table.notes:
                self.console.print(f"note: {note}")
        self.console.print(f"\nfolder: {folder}   files: {files}")


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
