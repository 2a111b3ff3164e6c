"""What `covey compare` and `covey sweep` share: options, the line of progress, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from covey.cli.grid.pool import cores
from covey.cli.grid.tables import Table
from covey.cli.show import print_wide
from covey.cli.terminal import Console
from covey.errors import ConfigError

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


def check_words(
    path: Path | None, changes: list[str], out: Path | None, resume: Path | None
) -> None:
    """Refuse what a resumed grid cannot have."""
    if resume is None:
        return
    words = [*changes]
    if path is not None:
        words.insert(0, str(path))
    if out is not None:
        words.append(f"--out {out}")
    if words:
        raise ConfigError(f"--resume {resume} brings its own plan; leave out {words[0]}.")


def checked_jobs(jobs: int | None) -> int:
    """The number of processes."""
    if jobs is None:
        return cores()
    if jobs < 1:
        raise ConfigError(f"--jobs {jobs}: give 1 or more.")
    return jobs


@contextmanager
def progress(console: Console, label: str) -> Iterator[Callable[[int, int, str], None]]:
    """One line on a terminal; else a few lines, about one for every tenth of the cells."""
    if not console.is_terminal:
        yield _Lines(console, label)
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

        def told(finished: int, total: int, text: str) -> None:
            bar.update(task, completed=finished, total=total, note=text)

        yield told


class _Lines:
    """Prints a line when another tenth of the cells has ended."""

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label
        self._printed = -1

    def __call__(self, finished: int, total: int, text: str) -> None:
        tenth = _LINES * finished // max(total, 1)
        if tenth == self._printed:
            return
        self._printed = tenth
        self._console.print(f"{self._label}: {finished} of {total} cells  {text}")


def shown(console: Console, table: Table) -> None:
    """Print a table with its title and notes."""
    rich = RichTable(box=None, pad_edge=False, header_style="bold")
    for number, head in enumerate(table.heads):
        justify: Literal["left", "right"] = "right"
        if number < table.left:
            justify = "left"
        rich.add_column(head, justify=justify, no_wrap=True)
    for row in table.rows:
        rich.add_row(*row)
    console.print(f"\n{table.title}")
    print_wide(console, rich)
    for note in table.notes:
        console.print(f"note: {note}")
