"""`covey --help` and `covey --version` at once: they do not import torch.

All other commands are those of `covey/cli/main.py`. A test holds the lines here to the commands.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import covey
from covey import rooms

EXIT_CODES = {
    0: "success",
    1: "unexpected error (a bug), please report it; or covey replay has found differences",
    2: "invalid command, file or value; nothing was run",
    3: "training diverged; the last good state is saved",
    4: "a file could not be read or written; the state saved before is intact",
    5: "another process of a sharded run ended; the last checkpoint is intact",
    6: "a deployed node was refused, or could not listen or be reached; its disk is intact",
    130: "stopped by Ctrl-C or SIGTERM; the state is saved",
}
EPILOG = (
    "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + "."
)

# The panels of `covey --help`, in this order; rooms add to them, and panels of their own.
TRAIN = "Train"
LOOK = "Look at runs"
USE = "Use the models"
PREPARE = "Prepare and check"

_COMMANDS = {
    TRAIN: {
        "run": "Run an experiment into a folder.",
    },
    LOOK: {
        "show": "Show the results of a run, finished or not.",
        "runs": "List runs: their state, rounds, test figures, bytes and seconds.",
    },
    USE: {
        "predict": "Predict new examples with the models of a run.",
        "personalize": "Train personal models for devices that were not in training.",
        "export": "Export a model of a run, for use without covey.",
    },
    PREPARE: {
        "list": "List what an experiment file can name.",
        "doctor": "Show what this machine can run.",
        "data": "List every data set: present or missing, its folder, its size, and how to get it.",
        "new": "Write the files of something new, to start from.",
    },
}
"""The commands of the core, by panel; those of rooms follow in their panels."""


def new_app() -> typer.Typer:
    """The command without its subcommands."""
    return typer.Typer(
        help="Personalized federated learning on trees of machines.",
        epilog=EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _version(wanted: bool) -> None:
    if wanted:
        print(f"covey {covey.__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version",
        callback=_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
]


def overview() -> typer.Typer:
    """The command as `covey --help` shows it; its subcommands do nothing."""
    app = new_app()

    @app.callback()
    def _covey(version: Version = False) -> None:
        """Personalized federated learning on trees of machines."""

    for panel, commands in _COMMANDS.items():
        for name, line in commands.items():
            app.command(name, help=line, rich_help_panel=panel)(lambda: None)
    for each in rooms.commands():
        app.command(each.name, help=each.help, rich_help_panel=each.panel)(lambda: None)
    return app


def main() -> None:
    """The entry of `covey`."""
    if sys.argv[1:] in ([], ["-h"], ["--help"], ["--version"]):
        overview()(prog_name="covey")
        return
    try:
        from covey.cli.main import main as whole  # imports torch, which takes seconds
    except KeyboardInterrupt:
        sys.exit(130)
    whole()
