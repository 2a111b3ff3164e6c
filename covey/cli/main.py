"""The commands of covey: `covey --help` lists them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tomli_w
import torch
import typer
from rich.markup import escape
from rich.table import Table

from covey import native, rooms
from covey.cli import data, export, new, results, runs
from covey.cli.options import AsJson, What, load_and_note, split
from covey.cli.overview import EPILOG, LOOK, PREPARE, TRAIN, USE, Version, new_app
from covey.data.published import inventory
from covey.errors import (
    CheckpointError,
    ConfigError,
    CoveyError,
    DivergedError,
    ProgramError,
    RankError,
    TransportError,
)
from covey.files import registry
from covey.files.assemble import Experiments
from covey.files.config import SECTIONS, Config, defaults, explain
from covey.files.registry import Listed
from covey.files.settings import SETTINGS as SETTINGS  # which `covey list` shows
from covey.folder import personalize as personal
from covey.folder import show, trackers
from covey.folder.execute import Interrupted, resume, start
from covey.folder.folder import environment
from covey.folder.terminal import Console
from covey.runs.build import AUTO, chosen
from covey.runs.run import Run
from covey.runtimes.ranks import launch
from covey.runtimes.ranks.heartbeat import EXIT_CODE
from covey.runtimes.ranks.ranks import ALONE, join, joined

app = new_app()


@app.callback()
def _covey(
    context: typer.Context,
    version: Version = False,
) -> None:
    """Personalized federated learning on trees of machines."""
    command = context.invoked_subcommand
    if command != "run" and launch.several():
        raise ConfigError(f"covey {command} runs in one process; torchrun is for covey run alone.")


class Kind(StrEnum):
    """What can be listed."""

    algorithms = "algorithms"
    data = "data"
    models = "models"
    partitions = "partitions"
    codecs = "codecs"
    policies = "policies"
    settings = "settings"


@app.command(epilog=EPILOG, rich_help_panel=TRAIN)
def run(
    arguments: What = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder to write; it must be new or empty. Default: runs/NAME-ALGORITHM-N."
        ),
    ] = None,
    resume_from: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIR", help="Resume the run in this folder."),
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Resume even where code of your own has changed since."),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Start even where the settings are certain to diverge.",
        ),
    ] = False,
    runtime: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="simulator (all devices at once), sharded (under torchrun) or loopback (slow).",
        ),
    ] = AUTO,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the nodes' rows in files of this folder, not in memory (docs/scale.md).",
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACKER",
            help="tensorboard, mlflow, wandb, parquet or package.module:Class. May be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment into a folder.

    Writes metrics, checkpoints, the models of every tier, a table and pictures.

    Examples:

      covey run                                          the demo: sparse sFedHP on digits

      covey run examples/permfl.toml rounds=20           a file with a change

      covey run algorithm.name=pfedme seeds=5            another algorithm, five seeds

      covey run my.toml 'compare=["local", "fedavg"]'    compared with two algorithms

      covey run my.toml score_sample=100                 scored on 100 random devices

      covey run my.toml rounds=500 stop.patience=10      until validation improves no more

      covey run examples/radio.toml                      over the air: seconds and joules

      covey run --resume runs/demo-sfedhp-1 rounds=100   resumed for more rounds

      covey run my.toml --runtime loopback               nodes that share nothing

      covey run my.toml --log tensorboard                logged while it runs

      covey run my.toml --store rows                     with rows in files, for many devices

      torchrun --nproc-per-node 2 -m covey run my.toml   on two processes
    """
    runtime = chosen(runtime)
    ranks = ALONE
    if runtime == "sharded":
        ranks = join()
    console = Console(stderr=as_json, quiet=not ranks.leads)
    path, changes = split(arguments)
    if store is not None:
        changes.append(f"store={json.dumps(str(store))}")
    forced = False
    with ranks.together():
        makers = trackers.makers(log or [])
        if not ranks.leads:
            makers = {}
        experiments = Experiments(runtime, ranks)
        if resume_from is not None:
            _check_resumed(resume_from, out, path)
            folder, summary = resume(
                resume_from, changes, console, sys.argv, experiments, makers, anyway=anyway
            )
        elif anyway:
            raise ConfigError("--anyway is for a run that goes on; give --resume DIR too.")
        else:
            config = load_and_note(console, path, changes, demo=True)
            experiment = experiments.of(config, config.seed)
            forced = any(rooms.call("before_run", console, experiment, force))
            folder, summary = start(config, out, console, sys.argv, experiments, makers)
    if not ranks.leads:
        return
    if not as_json:
        show.table(console, summary)
    rooms.call("after_run", folder.path, console)
    if as_json:
        print(json.dumps({"folder": str(folder.path), **summary.as_dict()}))
        return
    pictures = [folder.plot, folder.devices_plot]
    if summary.yardsticks:
        pictures.append(folder.compare_plot)
    console.print(f"folder: {folder.path}   pictures: {', '.join(path.name for path in pictures)}")
    console.print(f"look again: covey show {folder.path} --devices")
    again = " --force" if forced else ""
    console.print(f"repeat: covey run {folder.config}{again}")


app.command(name="show", epilog=EPILOG, rich_help_panel=LOOK)(results.show_run)
app.command(name="runs", epilog=EPILOG, rich_help_panel=LOOK)(runs.list_runs)
app.command(epilog=EPILOG, rich_help_panel=USE)(results.predict)


@app.command(epilog=EPILOG, rich_help_panel=USE)
def personalize(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The folder of a finished run."),
    ],
    file: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FILE",
            help="The new devices' examples: .csv, .parquet or .npz.",
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE ...]", help="Changes to the algorithm."),
    ] = None,
    edge: Annotated[
        str | None,
        typer.Option(help="The device's edge. Default: the edge whose model fits best."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The model to write; for several devices, a folder. "
            "Default: RUN/personal-FILE.safetensors, or with DEVICE for FILE."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Which of the run's seeds. Default: the first."),
    ] = None,
    trust: results.Trust = False,
    as_json: AsJson = False,
) -> None:
    """Train personal models for devices that were not in training.

    A file whose column of devices names several gives each a model of its own. Takes a few steps of
    the algorithm's own inner problem. It starts from the global model or, where the run has edge
    models, from the one that fits the device's training examples best. A quarter of the device's
    examples are kept for testing, and never trained on.

    Examples:

      covey personalize runs/own-data-permfl-1 --data pump-17.csv

      covey personalize runs/own-data-permfl-1 --data pump-17.csv --edge harbour algorithm.steps=50
    """
    done = personal.personalize(run, file, edge, out, changes or [], seed, trust=trust)
    facts = [one.as_dict() for one in done]
    if as_json:
        print(json.dumps(facts if len(facts) > 1 else facts[0]))
        return
    for one in done:
        show.newcomer(Console(), one)


app.command(name="export", epilog=EPILOG, rich_help_panel=USE)(export.export_command)
app.add_typer(data.app, name="data", epilog=EPILOG, rich_help_panel=PREPARE)
app.add_typer(new.app, name="new", epilog=EPILOG, rich_help_panel=PREPARE)


@app.command(name="list", epilog=EPILOG, rich_help_panel=PREPARE)
def list_(
    kind: Annotated[
        Kind | None,
        typer.Argument(help="What to list. Default: the names of every kind."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(help="One of them: its table, with defaults and meanings."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what an experiment file can name.

    With a name, show its table: every field, its default and its meaning.

    Examples:

      covey list

      covey list algorithms

      covey list algorithms pfedme

      covey list codecs --json
    """
    if kind is None:
        _list_kinds(as_json)
    elif name is None:
        _list_entries(kind, as_json)
    elif as_json:
        print(json.dumps(defaults(kind, name)))
    else:
        print(_table_with_meanings(kind, name), end="")


def _list_kinds(as_json: bool) -> None:
    names = {kind.value: registry.names(kind) for kind in Kind}
    if as_json:
        print(json.dumps(names))
        return
    console = Console()
    for kind, entries in names.items():
        console.print(
            f"[bold]{kind}[/] ({len(entries)}): {escape(', '.join(entries))}", markup=True
        )
    console.print("more: covey list algorithms; every field of one: covey list algorithms pfedme")


def _list_entries(kind: Kind, as_json: bool) -> None:
    rows = [
        {"name": entry.name, "about": entry.line, **_more(kind, entry)}
        for entry in registry.entries(kind)
    ]
    if as_json:
        print(json.dumps(rows))
        return
    console = Console()
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        console.print(f"[bold]{row['name']:{width}}[/] {escape(row['about'])}", markup=True)
        for key in list(row)[2:]:
            console.print(f"{'':{width}} [dim]{key}:[/] {escape(row[key])}", markup=True)
    if kind == Kind.algorithms:
        console.print(
            "of a deployed tree, a device's scores and its number of examples leave it too: "
            "its parent and the server see them"
        )


def _table_with_meanings(kind: Kind, name: str) -> str:
    """The TOML table of one entry, every field with its meaning as a comment."""
    fields = defaults(kind, name)
    meanings = explain(kind, name)
    lines = {key: tomli_w.dumps({key: value}).rstrip("\n") for key, value in fields.items()}
    width = max(len(line) for line in lines.values() if "\n" not in line)
    out = [f"[{SECTIONS.get(kind, kind)}]"]
    for key, line in lines.items():
        meaning = meanings.get(key, "")
        if meaning and "\n" in line:
            out += [f"# {meaning}", line]
        elif meaning:
            out.append(f"{line:{width}}  # {meaning}")
        else:
            out.append(line)
    return "\n".join(out) + "\n"


@app.command(epilog=EPILOG, rich_help_panel=PREPARE)
def doctor(arguments: What = None, as_json: AsJson = False) -> None:
    """Show what this machine can run.

    Prints versions, devices, the compiled kernel, extras, data sets, the engine, disk and memory.

    Examples:

      covey doctor

      covey doctor examples/permfl.toml
    """
    path, changes = split(arguments)
    console = Console(stderr=True)
    config = load_and_note(console, path, changes, demo=True)
    facts = _diagnose(config)
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        text = str(value)
        if isinstance(value, dict):
            text = ", ".join(f"{key} {fact}" for key, fact in value.items())
        table.add_row(name, text)
    Console(soft_wrap=False).print(table)


for _command in rooms.commands():
    _made = _command.load()
    if isinstance(_made, typer.Typer):
        app.add_typer(_made, name=_command.name, epilog=EPILOG, rich_help_panel=_command.panel)
    else:
        app.command(_command.name, epilog=EPILOG, rich_help_panel=_command.panel)(_made)


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
        _exit(_closed(error))
    except (Interrupted, CoveyError) as error:
        _exit(error)


def _closed(error: PermissionError) -> ConfigError:
    """A file that is not this user's; the state of a node is closed to all others."""
    fix = "run the command as its owner, such as covey, or as root"
    return ConfigError(f"{error.filename} is closed to this user; {fix}.")


def _exit(error: Interrupted | CoveyError) -> NoReturn:
    """End with an error as one line, and with its exit code."""
    code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
    code = getattr(error, "exit_code", code)  # that of a process of a tree that failed
    if joined().speaks_of(error):
        text = f"[bold red]{_WORDS[code]}[/]: {escape(str(error))}"
        Console(stderr=True).print(text, markup=True)
    sys.exit(code)


_CODES: dict[type[BaseException], int] = {
    Interrupted: 130,
    DivergedError: 3,
    CheckpointError: 4,
    ConfigError: 2,
    ProgramError: 2,
    RankError: EXIT_CODE,
    TransportError: 6,
    CoveyError: 1,
}
_WORDS = {1: "error", 2: "error", 3: "diverged", 4: "error", 5: "error", 6: "error", 130: "stopped"}


def _check_resumed(folder: Path, out: Path | None, path: Path | None) -> None:
    """Refuse what a resumed run brings itself."""
    if out is not None:
        raise ConfigError(f"--resume {folder} resumes in its own folder; leave out --out {out}.")
    if path is not None:
        raise ConfigError(f"--resume {folder} brings its own file; leave out {path}.")


def _more(kind: Kind, entry: Listed) -> dict[str, str]:
    package = {"package": entry.package} if entry.package else {}
    if kind != Kind.algorithms or entry.broken:
        return package
    make: Any = entry.make
    names = [tier for tier in ("server", "edge", "device") if hasattr(make, tier)]
    tiers = "any"
    if len(names) > 1 and not make.any_depth:
        tiers = ", ".join(names)
    return {"tiers": tiers, "leaves the device in training": make.sends} | package


def _diagnose(config: Config) -> dict[str, Any]:
    facts = environment(sys.argv)
    experiment = config.experiment(config.seed)
    run = Run(experiment)
    disk = shutil.disk_usage(".")
    return {
        "versions": facts["versions"],
        "machine": facts["machine"],
        "experiment": f"{config.name or 'unnamed'}: "
        f"{type(experiment.algorithm).__name__} on {run.runtime.tree}",
        "engine": run.engine,
        "compiled kernel": native.status(),
        "data": f"{experiment.data.name}: {len(experiment.data.x)} examples, "
        f"{experiment.data.devices} devices",
        "data built in": "digits, synthetic",
        "data sets": _data_sets(),
        "extras": {extra: _extra(extra, modules) for extra, modules in _EXTRAS.items()},
        "devices": _devices(),
        "disk free": f"{disk.free / 2**30:.1f} GiB",
        "memory free": _memory_free(),
    }


def _memory_free() -> str:
    """The free memory, where the system says it: macOS and Windows do not."""
    if sys.platform == "win32" or "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return "unknown on this system"
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{pages / 2**30:.1f} GiB"


_EXTRAS = {
    "hub": ("datasets", "PIL"),
    "parquet": ("pyarrow",),
    "images": ("PIL",),
    "demlearn": ("scipy",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "optuna": ("optuna",),
    "deploy": ("grpc", "cryptography"),
}
"""The modules of every optional extra of pyproject.toml that a user may want."""


def _extra(extra: str, modules: tuple[str, ...]) -> str:
    lacking = [module for module in modules if find_spec(module) is None]
    if lacking:
        return f"lacks {', '.join(lacking)} (in the clone: pip install '.[{extra}]')"
    return "installed"


def _data_sets() -> dict[str, str]:
    """Which of the sets that are not built in lie on this machine, and where."""
    sets = inventory.present()
    present = [f"{status.name} ({status.source})" for status in sets if status.present]
    lacking = [status.name for status in sets if not status.present]
    out = {"here": ", ".join(present) or "none"}
    if lacking:
        out["not here"] = f"{', '.join(lacking)} (covey data says how to get them)"
    return out


def _devices() -> str:
    cuda = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return ", ".join(["cpu", *(f"cuda:{k} {name}" for k, name in enumerate(cuda))])
