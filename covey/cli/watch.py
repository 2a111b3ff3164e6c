"""`covey watch`: the report of a run that is under way, in a browser of this machine."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from covey.cli.options import AsJson
from covey.errors import ConfigError
from covey.folder.terminal import Console

_WAIT = 0.2  # s between two looks at a run that has not begun


def watch(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN ...]",
            help="Folders of runs, under way or ended. Default: list those under way in runs/.",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="The port to listen on. Default: a free one."),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the page's address on this machine, and serve it until Ctrl-C. The page is that of
    `covey report`, and follows the run. Nothing is written, and the run does not notice.

    Examples:

      covey watch

      covey watch runs/demo-sfedhp-1

      covey watch runs/demo-sfedhp-1 runs/fedavg-1 --port 8000
    """
    from covey.folder.listed import print_runs
    from covey.report.facts import Facts
    from covey.report.page import live
    from covey.report.page.page import build

    if not folders:
        print_runs(Path("runs"), as_json, only="running")
        return
    facts = Facts(folders)
    begun = False
    while not begun:
        try:
            facts.read()
            begun = True
        except ConfigError:
            if not facts.running:  # nothing is going to be written
                raise
            time.sleep(_WAIT)
    current = live.LiveFacts(facts)
    listener = live.listen(port)
    address = f"http://{live.HOST}:{listener.getsockname()[1]}/"
    console = Console()
    if as_json:
        console.print_json(data={"address": address}, indent=None)
    else:
        console.print(f"{address}   (Ctrl-C ends)")
    console.file.flush()
    server, _ = live.server(current, lambda value: build(value, live=True))
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
