"""What the commands take alike: an experiment file with changes, and --json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.errors import ConfigError

if TYPE_CHECKING:
    from covey.files.config import Config
    from covey.folder.terminal import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE.toml] [KEY=VALUE ...]",
        help="An experiment file (the demo if none), and changes to it.",
    ),
]


def split(arguments: list[str] | None) -> tuple[Path | None, list[str]]:
    """The one word that is a file, if any, and the changes."""
    from covey.runs.saved.run_folder import RunFolder  # imports torch, which options do without

    words = arguments or []
    files = [word for word in words if "=" not in word or Path(word).is_file()]
    if len(files) > 1:
        raise ConfigError(
            f"{files[0]} and {files[1]}: give one file; changes are written as algorithm.lam1=15."
        )
    if files and RunFolder(Path(files[0])).config.is_file():
        run = Path(files[0])
        raise ConfigError(
            f"{run} is the folder of a run; resume it with covey run --resume {run},"
            f" repeat it with covey run {RunFolder(run).config}, or show it with covey show {run}."
        )
    changes = [word for word in words if word not in files]
    if not files:
        return None, changes
    return Path(files[0]), changes


def load_and_note(
    console: Console, path: Path | None, changes: list[str], *, demo: bool = False
) -> Config:
    """The experiment of a command; the fields that the changes have dropped are printed.

    `demo` says that the command runs the demo without a file.
    """
    from covey.files.config import load  # it imports torch, which options have no need of

    fix = "give the path of an experiment file"
    if demo:
        fix += ", or none for the demo"
    notes: list[str] = []
    config = load(path, changes, notes, fix=fix)
    for note in notes:
        console.print(f"note: {note}")
    return config
