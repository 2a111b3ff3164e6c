"""`covey show`, `predict` and `personalize`: their options. What they do imports torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from covey.cli.options import AsJson
from covey.errors import ConfigError
from covey.folder.terminal import Console, printable

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run, finished or not.")
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run code that a folder of another user or machine names."),
]
OfSeed = Annotated[int | None, typer.Option(help="Which of the run's seeds. Default: the first.")]


def show_run(
    run: RunFolder,
    devices: Annotated[
        bool, typer.Option("--devices", help="Every device on its test examples, worst first.")
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(help="The metric of --devices. Default: the one that rounds are chosen by."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the table of models and links or, with --devices, a table of devices.

    Examples:

      covey show runs/demo-sfedhp-1

      covey show runs/demo-sfedhp-1 --devices

      covey show runs/demo-sfedhp-1 --devices --metric loss
    """
    from covey.folder import show
    from covey.folder.load import load, summary

    if metric is not None and not devices:
        raise ConfigError(f"--metric {metric} is for --devices; the other table has all metrics.")
    first = load(run)
    seeds = [first if seed == first.seed else load(run, seed=seed) for seed in first.seeds]
    if devices and as_json:
        lines = [{"seed": seed.seed, **line.as_dict()} for seed in seeds for line in seed.devices()]
        print(json.dumps(lines))
        return
    if devices:
        show.devices(Console(), seeds, metric)
        return
    figures = summary(seeds)
    unfinished = [seed for seed in seeds if not seed.finished]
    rounds = seeds[0].config.rounds
    if as_json:
        facts = {"folder": str(run), "finished": not unfinished, **figures.as_dict()}
        print(json.dumps(facts))
        return
    console = Console()
    if unfinished:
        done = min(len(seed.history) for seed in unfinished)
        console.print(f"{done} of {rounds} rounds; resume with: covey run --resume {run}")
    stopped = [str(len(seed.history)) for seed in seeds if seed.stopped_early]
    if stopped:
        console.print(f"stopped early after round {', '.join(stopped)} of {rounds}, as stop says")
    show.table(console, figures)


def predict(
    run: RunFolder,
    file: Annotated[
        Path, typer.Option("--data", metavar="FILE", help="The examples: .csv, .parquet or .npz.")
    ],
    device: Annotated[
        str | None,
        typer.Option(help="The device whose model predicts. Default: each row's device column."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model. Default: personal, else edge, else global.")
    ] = None,
    unknown: Annotated[
        Literal["global"] | None,
        typer.Option(help="The model for devices that did not train. Default: they are refused."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The .csv file to write. Default: to the terminal.")
    ] = None,
    seed: OfSeed = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Write a table of classes with probabilities, or of values.

    Its column `model` says which model answered; that is global where a device has no model of its
    own. The file has the columns of the features, by name and in the units of the training data; a
    column of labels may be missing. An .npz file has an array x.

    Examples:

      covey predict runs/own-data-permfl-1 --data new.csv

      covey predict runs/own-data-permfl-1 --data new.csv --device pump-03 --out predictions.csv

      covey predict runs/own-data-permfl-1 --data new.csv --model global

      covey predict runs/own-data-permfl-1 --data new.csv --unknown global
    """
    from covey.atomic import refused
    from covey.folder.load import load
    from covey.folder.predictions import predictions
    from covey.runs.csv_text import csv_text

    console = Console(stderr=True)
    loaded = load(run, seed=seed, trust=trust)
    rows = predictions(loaded, file, device, model, unknown, say=console.print)
    if as_json:
        print(json.dumps(rows))
        return
    text = csv_text(list(rows[0]), rows)
    if out is None:
        print(printable(text), end="")
        return
    with refused(out):
        out.write_text(text, encoding="utf-8")
    console.print(f"{len(rows)} predictions: {out}")


def personalize(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
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
    seed: OfSeed = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """A file whose column of devices names several gives each a model of its own.

    Takes a few steps of the algorithm's own inner problem. It starts from the global model
    or, where the run has edge models, from the one that fits the device's training examples best. A
    quarter of the device's examples are kept for testing, and never trained on.

    Examples:

      covey personalize runs/own-data-permfl-1 --data pump-17.csv

      covey personalize runs/own-data-permfl-1 --data pump-17.csv --edge harbour algorithm.steps=50
    """
    from covey.folder import personalize as newcomers
    from covey.folder import show

    done = newcomers.personalize(run, file, edge, out, changes or [], seed, trust=trust)
    facts = [one.as_dict() for one in done]
    if as_json:
        print(json.dumps(facts if len(facts) > 1 else facts[0]))
        return
    for one in done:
        show.newcomer(Console(), one)
