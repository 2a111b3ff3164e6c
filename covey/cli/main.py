"""The command `covey`: every command is imported when it runs, and not for `covey --help`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple, NoReturn

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

# The panels of `covey --help`, in this order.
TRAIN = "Train"
LOOK = "Look at runs"
USE = "Use the models"
PREPARE = "Prepare and check"
DEPLOY = "Deploy"


class Command(NamedTuple):
    """A command: its panel, the function or the group of functions that it is, and its help line.

    The docstring of the function has the rest of the help.
    """

    panel: str
    place: str  # MODULE:NAME
    line: str


COMMANDS = {
    "run": Command(TRAIN, "covey.cli.run:run", "Run an experiment into a folder."),
    "compare": Command(
        TRAIN,
        "covey.grid.command:compare",
        "Compare algorithms at equal budget, each with tuned steps and penalty.",
    ),
    "sweep": Command(
        TRAIN,
        "covey.grid.command:sweep",
        "Try settings of a file, and write the best as a file of its own.",
    ),
    "reproduce": Command(
        TRAIN,
        "covey.papers.command:reproduce",
        "Run tables of the papers again, and compare every cell with the printed figure.",
    ),
    "advise": Command(
        TRAIN,
        "covey.advice.command:advise",
        "Say which step sizes and penalties to change, and why: one line per change.",
    ),
    "plan": Command(
        TRAIN,
        "covey.radio.command:plan",
        "Plan rounds over the air: bandwidth, pruning ratio, latency and energy per device.",
    ),
    "report": Command(
        LOOK,
        "covey.cli.report:report",
        "Write runs as one HTML page: curves, the tree, every device, bytes, settings.",
    ),
    "watch": Command(
        LOOK, "covey.cli.watch:watch", "Show a run while it is under way, as a page in a browser."
    ),
    "show": Command(
        LOOK, "covey.cli.results:show_run", "Show the results of a run, finished or not."
    ),
    "runs": Command(
        LOOK,
        "covey.cli.runs:list_runs",
        "List runs: their state, rounds, test figures, bytes and seconds.",
    ),
    "replay": Command(
        LOOK,
        "covey.deployed.commands.replay:replay_command",
        "Repeat a deployed run in the simulator, with the same nodes late and absent.",
    ),
    "predict": Command(
        USE, "covey.cli.results:predict", "Predict new examples with the models of a run."
    ),
    "personalize": Command(
        USE,
        "covey.cli.results:personalize",
        "Train personal models for devices that were not in training.",
    ),
    "export": Command(
        USE,
        "covey.cli.export:export_command",
        "Export a model of a run, for use without covey.",
    ),
    "list": Command(PREPARE, "covey.cli.listing:list_", "List what an experiment file can name."),
    "doctor": Command(PREPARE, "covey.cli.doctor:doctor", "Show what this machine can run."),
    "data": Command(
        PREPARE,
        "covey.cli.data:app",
        "List every data set: present or missing, its folder, its size, and how to get it.",
    ),
    "new": Command(
        PREPARE, "covey.cli.new:app", "Write the files of something new, to start from."
    ),
    "node": Command(
        DEPLOY,
        "covey.deployed.commands.node:node",
        "Run one node of a deployed tree: a device, an edge, or the server.",
    ),
    "deploy": Command(
        DEPLOY, "covey.deployed.commands.deploy_change:app", "Run a tree on real machines."
    ),
    "ctl": Command(
        DEPLOY,
        "covey.deployed.commands.ctl:app",
        "Look at running nodes, and pause, resume, stop, evict or admit them.",
    ),
    "certs": Command(
        DEPLOY,
        "covey.deployed.commands.certs:app",
        "Make, renew and revoke the certificates of a tree.",
    ),
}
"""All commands, in the order of `covey --help`."""


class LazyGroup(TyperGroup):
    """Commands by their help lines; one that is called is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=entry.line, rich_help_panel=entry.panel)
            for name, entry in COMMANDS.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names, with all its options."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:  # else a shell completes an unknown word
            command = load(name)
        return name, command, rest


def load(name: str) -> Any:
    """The command of this name, imported."""
    entry = COMMANDS[name]
    module, _, attribute = entry.place.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_group(found)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        command = typer.main.get_command(alone)
    command.help = f"{entry.line}\n\n{command.help or ''}".strip()
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
