"""`covey report`: runs as one HTML page that opens without a network."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from covey.errors import ConfigError, CoveyError
from covey.folder.terminal import Console


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="The folders of runs, finished or not."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="The page to write. Default: RUN/report.html; of several runs, report.html.",
        ),
    ] = None,
    open_page: Annotated[
        bool,
        typer.Option("--open", help="Open the page in the browser."),
    ] = False,
) -> None:
    """The page is a single file. It opens offline and asks the network for nothing. Several runs of
    the same data are shown side by side.

    Examples:

      covey report runs/demo-sfedhp-1 --open

      covey report runs/demo-sfedhp-1 runs/demo-permfl-1 --out both.html
    """
    from covey.report.facts import write
    from covey.runs.saved.run_folder import RunFolder

    for run in runs:
        if RunFolder(run).node.exists():
            rule = "has the models of one node, and no rounds"
            raise ConfigError(f"{run} {rule}; give the run folder of the server.")
    page = out or RunFolder(runs[0] if len(runs) == 1 else Path()).report
    write(runs, page)
    console = Console()
    console.print(f"report: {page} ({page.stat().st_size / 1e3:,.0f} kB)")
    if open_page and not webbrowser.open(page.resolve().as_uri()):
        console.print("note: there is no browser here; open the file in one.")


def write_after_run(folder: Path, console: Console) -> None:
    """Write the page of a run that has ended; the run is good even where that fails."""
    from covey.report.facts import write
    from covey.runs.saved.run_folder import RunFolder

    page = RunFolder(folder).report
    try:
        write([folder], page)
    except CoveyError as error:
        console.print(f"note: no {page.name}: {error}")
        return
    console.print(f"open first: {page}")
