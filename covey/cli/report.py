"""`covey report`: runs as one HTML page that opens without a network."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.errors import ConfigError, CoveyError
from covey.folder.terminal import Console
from covey.report.facts import facts
from covey.report.page.page import build
from covey.runs.saved.run_folder import RunFolder


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


def write(runs: Sequence[Path], page: Path) -> None:
    """Write the page of these runs, in one step."""
    folder = RunFolder(page.parent)
    if page.is_dir():
        raise ConfigError(f"--out {page} is a folder; name a file, as in {RunFolder(page).report}.")
    if not page.parent.is_dir():
        raise ConfigError(f"--out {page}: there is no folder {page.parent}; create it first.")
    value = facts(runs)
    first = value["runs"][0]
    if not any(seed["models"] for run in value["runs"] for seed in run["seeds"]):
        raise ConfigError(
            f"{first['folder']} has no scored round yet "
            f"({first['done']} of {first['planned']} rounds run); "
            f"wait, or resume it with covey run --resume {first['folder']}."
        )
    for other in value["runs"][1:]:
        _check_data(first, other)
    folder.write(page, build(value))


def write_after_run(folder: Path, console: Console) -> None:
    """Write the page of a run that has ended; the run is good even where that fails."""
    page = RunFolder(folder).report
    try:
        write([folder], page)
    except CoveyError as error:
        console.print(f"note: no {page.name}: {error}")
        return
    console.print(f"open first: {page}")


def _check_data(first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Refuse runs of different data: their figures cannot be compared."""
    ours = _data_settings(first)
    theirs = _data_settings(other)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise ConfigError(
                f"{first['folder']} and {other['folder']} have different data: {name} = "
                f"{ours.get(name)!r} and {theirs.get(name)!r}; write one report for each."
            )


def _data_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """What decides which examples the devices of a run have."""
    settings = run["settings"]
    out = {f"data.{name}": value for name, value in settings.get("data", {}).items()}
    out["holdout_devices"] = settings.get("holdout_devices")
    return out
