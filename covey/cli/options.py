"""What the commands take alike: an experiment file with changes, and --json."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covey.errors import ConfigError

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
    files = [word for word in arguments or () if "=" not in word or Path(word).is_file()]
    if len(files) > 1:
        raise ConfigError(
            f"{files[0]} and {files[1]}: give one file; changes are written as algorithm.lam1=15."
        )
    if files and (Path(files[0]) / "config.toml").is_file():
        run = files[0].rstrip("/")
        raise ConfigError(
            f"{run} is the folder of a run; go on with it by covey run --resume {run},"
            f" repeat it by covey run {run}/config.toml, or look at it by covey show {run}."
        )
    return Path(files[0]) if files else None, [
        word for word in arguments or () if word not in files
    ]
