"""The command `covey`: every command is imported when it runs, and not for `covey --help`."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import covey
from covey.errors import (
    CheckpointError,
    ConfigError,
    CoveyError,
    DivergedError,
    ProgramError,
    RankError,
    TransportError,
)
from covey.rooms import Command, commands
from covey.runtimes.ranks import launch

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


COMMANDS = {
    command.name: command
    for command in (
        Command("run", TRAIN, "Run an experiment into a folder.", "covey.cli.run:run"),
        Command(
            "show",
            LOOK,
            "Show the results of a run, finished or not.",
            "covey.cli.results:show_run",
        ),
        Command(
            "runs",
            LOOK,
            "List runs: their state, rounds, test figures, bytes and seconds.",
            "covey.cli.runs:list_runs",
        ),
        Command(
            "predict",
            USE,
            "Predict new examples with the models of a run.",
            "covey.cli.results:predict",
        ),
        Command(
            "personalize",
            USE,
            "Train personal models for devices that were not in training.",
            "covey.cli.results:personalize",
        ),
        Command(
            "export",
            USE,
            "Export a model of a run, for use without covey.",
            "covey.cli.export:export_command",
        ),
        Command(
            "list",
            PREPARE,
            "List what an experiment file can name.",
            "covey.cli.listing:list_",
        ),
        Command("doctor", PREPARE, "Show what this machine can run.", "covey.cli.doctor:doctor"),
        Command(
            "data",
            PREPARE,
            "List every data set: present or missing, its folder, its size, and how to get it.",
            "covey.cli.data:app",
        ),
        Command(
            "new",
            PREPARE,
            "Write the files of something new, to start from.",
            "covey.cli.new:app",
        ),
        *commands(),
    )
}
"""The commands of the core and of the rooms; a panel has its commands in this order."""


class LazyGroup(TyperGroup):
    """Commands by their help lines; one that is called is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=command.help, rich_help_panel=command.panel)
            for name, command in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names, with all its options."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:  # else a shell completes an unknown word
            command = load(name)
        return name, command, rest


def load(name: str) -> Any:
    """The command of this name, imported."""
    made = COMMANDS[name].load()
    if isinstance(made, typer.Typer):
        command: Any = typer.main.get_group(made)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name)(made)
        command = typer.main.get_command(alone)
    command.help = f"{COMMANDS[name].help}\n\n{command.help or ''}".strip()
    command.epilog = EPILOG
    return command


app = typer.Typer(
    cls=LazyGroup,
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


@app.callback()
def _covey(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Personalized federated learning on trees of machines."""
    command = context.invoked_subcommand
    if command != "run" and launch.several():
        raise ConfigError(f"covey {command} runs in one process; torchrun is for covey run alone.")


def main() -> None:
    """The command, with covey's own errors as one line and an exit code."""
    try:
        app(prog_name="covey")  # as `python -m covey` too
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(4)
    except PermissionError as error:
        if error.filename is None:
            raise
        # The state of a node is closed to all other users.
        fix = "run the command as its owner, such as covey, or as root"
        _exit(ConfigError(f"{error.filename} is closed to this user; {fix}."))
    except CoveyError as error:
        _exit(error)


def _exit(error: CoveyError) -> NoReturn:
    """End with an error as one line, and with its exit code."""
    from rich.markup import escape

    from covey.folder.terminal import Console
    from covey.runtimes.ranks.ranks import joined

    code = getattr(error, "exit_code", None)
    if code is None:
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
    if joined().speaks_of(error):
        text = f"[bold red]{_WORDS.get(code, 'error')}[/]: {escape(str(error))}"
        Console(stderr=True).print(text, markup=True)
    sys.exit(code)


_CODES: dict[type[CoveyError], int] = {
    DivergedError: 3,
    CheckpointError: 4,
    ConfigError: 2,
    ProgramError: 2,
    RankError: 5,
    TransportError: 6,
    CoveyError: 1,
}
"""The codes of errors that state no `exit_code` of their own; the first that fits counts."""
_WORDS = {3: "diverged", 130: "stopped"}
