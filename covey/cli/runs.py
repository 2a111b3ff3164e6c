"""`covey runs`: the run folders in a folder, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covey.cli.options import AsJson


def list_runs(
    folder: Annotated[
        Path,
        typer.Argument(metavar="[DIR]", help="The folder that holds run folders."),
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Figures are those of `covey show`: the chosen round, the mean of all seeds.

    Bytes are those of training in one seed.

    Examples:

      covey runs

      covey runs experiments/out --json
    """
    from covey.folder.listed import print_runs

    print_runs(folder, as_json)
