"""`covey advise`: better step sizes and penalties for a file, measured and tried.

The conditions of the theorems are printed on demand.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from covey import advice
from covey.advice import Advice, Findings, edit
from covey.cli.options import AsJson, What, load_and_note, split
from covey.errors import ConfigError
from covey.folder.terminal import Console
from covey.runs.experiment import Experiment


def advise(
    arguments: What = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Make the changes in the file; its comments and order stay.",
        ),
    ] = False,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Run nothing: report settings that are certain or likely to diverge.",
        ),
    ] = False,
    theory: Annotated[
        bool,
        typer.Option(
            "--theory",
            help="Also check the file against the theorems' conditions.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a few rounds of the file, and measure the curvature of the loss.

    Tries the steps and penalties that the curvature suggests, and advises what
    does better on validation data, never on test data. On the digits this takes
    less than 10 s; else about as long as 150 rounds of the file.

    Examples:

      covey advise examples/permfl.toml

      covey advise my.toml --write                    change the file

      covey advise my.toml --fast --theory            the theorems' conditions alone, nothing is run

      covey advise algorithm.name=pfedme algorithm.lam=30 algorithm.personal_lr=0.05
    """
    path, changes = split(arguments)
    if write:
        _check_writable(path, changes, fast)
    console = Console(stderr=as_json)
    config = load_and_note(console, path, changes, demo=True)
    experiment = config.experiment(config.seed)
    began = time.monotonic()
    findings = Findings(nothing="--fast tries nothing")
    if not fast:
        with Console(stderr=True, soft_wrap=False).status("measuring the curvature") as status:
            findings = advice.improve(
                experiment, told=lambda text: status.update(f"trying {escape(text)}")
            )
    seconds = time.monotonic() - began
    written = path if write and findings.changes else None
    if written is not None:
        values = {change.field: change.new for change in findings.changes}
        edit.rewrite(written, "algorithm", values)
    theorems = quick(experiment, smoothness=findings.smoothness)
    if as_json:
        facts = {
            "seconds": seconds,
            "written": None if written is None else str(written),
            "advice": [asdict(item) for item in theorems],
        }
        print(json.dumps(findings.as_dict() | facts))
    else:
        _show(console, findings, experiment.rounds, seconds)
        if written is not None:
            console.print(f"{path} is changed")
        elif findings.changes and path is not None:
            console.print(f"the file is unchanged; to change it: covey advise {path} --write")
        plain = [item for item in quick(experiment) if item.level != "note"]
        print_advice(console, theorems if theory else plain)
    if write and findings.advised is not None:
        experiment = replace(experiment, algorithm=findings.advised.algorithm)
    if any(item.level == "error" for item in quick(experiment)):
        raise typer.Exit(2)


def quick(experiment: Experiment, *, smoothness: float | None = None) -> list[Advice]:
    """The theorems' advice for an experiment, which knows how many examples its devices have."""
    optimiser = experiment.optimiser()
    solver = optimiser.refusal
    if optimiser.epochs is not None:
        solver = "the number of steps follows from epochs"
    if solver is not None:
        text = f"{solver}, and the theorems are about plain steps; nothing was checked."
        return [Advice("note", "solver", text, {})]
    sizes = filter(None, experiment.data.train.counts().tolist())
    return advice.advise(
        experiment.algorithm,
        smoothness=smoothness,
        strong=advice.strong_convexity(experiment),
        examples=min(sizes, default=None),
        devices=experiment.tree.devices,
        rounds=experiment.rounds,
        scheduled=bool(experiment.rates().schedules) or optimiser.schedule != "constant",
    )


def print_advice(console: Console, items: list[Advice]) -> None:
    """One line for each."""
    colours = {"error": "bold red", "warning": "yellow", "note": "cyan"}
    for item in items:
        text = escape(f"({item.about}) {item.text}")
        console.print(f"[{colours[item.level]}]{item.level}[/] {text}", markup=True)


def refuse(console: Console, experiment: Experiment, force: bool) -> bool:
    """Show warnings, and refuse what is certain to diverge unless forced; return whether it was."""
    items = quick(experiment)
    errors = [item for item in items if item.level == "error"]
    print_advice(console, [item for item in items if item.level == "warning"])
    if errors and not force:
        texts = " ".join(item.text for item in errors)
        raise ConfigError(f"{texts} To start it nevertheless: covey run --force.")
    print_advice(console, errors)
    return bool(errors)


def _check_writable(path: Path | None, changes: list[str], fast: bool) -> None:
    """Refuse a --write that has no file of the user's own to change, before anything is run."""
    if path is None:
        raise ConfigError(
            "--write changes a file, but none was given: covey advise my.toml --write."
        )
    with resources.as_file(resources.files("covey.files").joinpath("demo.toml")) as demo:
        if path.exists() and path.resolve() == demo.resolve():
            raise ConfigError(
                f"{path} is the demo that covey ships; "
                f"copy it and advise the copy: cp {path} my.toml."
            )
    if changes:
        listed = " ".join(changes)
        raise ConfigError(
            f"--write changes {path}, which does not say {listed}; write that into the file first."
        )
    if fast:
        raise ConfigError(
            "--fast tries nothing, so that --write has nothing to write; leave out one of them."
        )


def _show(console: Console, findings: Findings, rounds: int, seconds: float) -> None:
    """The curvature, the changes, and what they come to."""
    if findings.given is None or findings.advised is None or findings.start is None:
        console.print(f"no change is advised: {findings.nothing}")
        return
    console.print(
        f"curvature of the data loss (median device): L = {findings.start.typical:.2g} at the "
        f"start, {findings.advised.curvature.typical:.2g} along the rounds tried"
    )
    for change in findings.changes:
        console.print(str(change))
    if not findings.changes:
        because = f": {findings.nothing}" if findings.nothing else ""
        console.print(f"nothing to change{because}")
    tried = f"tried {findings.rounds} of {rounds} rounds"
    console.print(f"{tried}, {findings.part}: {_compared(findings)}")
    more = findings.advised.bytes / max(findings.given.bytes, 1)
    if findings.changes and findings.given.bytes and not 0.95 < more < 1.05:
        console.print(f"bytes sent: {more:.2g} times as many as before")
    if findings.part == "train":
        console.print(
            "no device has validation examples: settings were compared on training data, "
            "which favours overfitting"
        )
    console.print(f"{len(findings.trials)} settings tried in {seconds:.1f} s")


def _compared(findings: Findings) -> str:
    """Every judged model's figure, before and after the changes if there are any."""
    assert findings.given is not None
    assert findings.advised is not None
    before = findings.given.figures
    if not findings.changes:
        return ", ".join(f"{name} {_figure(value, findings)}" for name, value in before.items())
    old = {name: _figure(value, findings, unit=False) for name, value in before.items()}
    return ", ".join(
        f"{name} {old.get(name, 'diverged')} -> {_figure(value, findings)}"
        for name, value in findings.advised.figures.items()
    )


def _figure(value: float, findings: Findings, *, unit: bool = True) -> str:
    if findings.classifies:
        figure = f"{value:.1f}"
        return f"{figure} % {findings.metric}".rstrip() if unit else figure
    figure = f"{value:.4g}"
    return f"{findings.metric or 'loss'} {figure}" if unit else figure
