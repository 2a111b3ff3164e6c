"""`covey show`, `predict` and `personalize`: the results of a run, and the use of its models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.table import Table as RichTable

from covey.atomic import refused
from covey.cli.options import AsJson
from covey.data.tables.files import unlabelled
from covey.data.tables.options import ROLES, TableOptions
from covey.data.tables.tables import Table
from covey.errors import ConfigError
from covey.folder import personalize as newcomers
from covey.folder import show
from covey.folder.load import Loaded, load, summary
from covey.folder.terminal import Console, printable
from covey.runs.csv_text import csv_text
from covey.runs.scores.devices import DeviceScore
from covey.runs.scores.headline import asked_for, for_devices, headline

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
    if metric is not None and not devices:
        raise ConfigError(f"--metric {metric} is for --devices; the other table has all metrics.")
    first = load(run)
    seeds = [first if seed == first.seed else load(run, seed=seed) for seed in first.seeds]
    if devices:
        _show_devices(seeds, [seed.devices() for seed in seeds], metric, as_json)
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
    loaded = load(run, seed=seed, trust=trust)
    table = _examples(loaded, file)
    for note in table.notes:
        Console(stderr=True).print(f"{file}: {note}")
    owners = _owners(loaded, table, file, device, model, unknown)
    rows = _predictions(loaded, table, owners)
    if as_json:
        print(json.dumps(rows))
        return
    text = csv_text(list(rows[0]), rows)
    if out is None:
        print(printable(text), end="")
        return
    with refused(out):
        out.write_text(text, encoding="utf-8")
    Console(stderr=True).print(f"{len(rows)} predictions: {out}")


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
    done = newcomers.personalize(run, file, edge, out, changes or [], seed, trust=trust)
    facts = [one.as_dict() for one in done]
    if as_json:
        print(json.dumps(facts if len(facts) > 1 else facts[0]))
        return
    for one in done:
        show.newcomer(Console(), one)


def _show_devices(
    seeds: Sequence[Loaded],
    scores: Sequence[Sequence[DeviceScore]],
    wanted: str | None,
    as_json: bool,
) -> None:
    """A row per device, all models side by side; worst first by the most personal one."""
    lines = [(seed.seed, line) for seed, part in zip(seeds, scores, strict=True) for line in part]
    if as_json:
        print(json.dumps([{"seed": seed, **line.as_dict()} for seed, line in lines]))
        return
    tested = [(seed, line) for seed, line in lines if line.part == "test"]
    compared = [line for _, line in tested]
    metric = for_devices(headline(seeds[0].history), compared)
    if wanted is not None:
        metric = asked_for(wanted, headline(seeds[0].history), compared)
    figures: dict[tuple[int, str], dict[str, float | None]] = {}
    first: dict[tuple[int, str], DeviceScore] = {}
    for seed, line in tested:
        figures.setdefault((seed, line.device), {})[line.model] = metric.of_device(line)
        first.setdefault((seed, line.device), line)
    models = seeds[0].models()
    own = seeds[0].most_personal()
    with_seeds = len(seeds) > 1
    with_edges = any(line.edge is not None for line in compared)
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for head in ["seed"] * with_seeds + ["device"] + ["edge"] * with_edges:
        table.add_column(head, no_wrap=True)
    for head in ("test examples", *(f"{name} {metric.unit}" for name in models)):
        table.add_column(head, justify="right", no_wrap=True)

    def goodness(key: tuple[int, str]) -> float:
        """A number whose min is that of the worst device; devices without a figure come last."""
        figure = figures[key].get(own)
        return float("inf") if figure is None else -metric.badness(figure)

    for seed, device in sorted(figures, key=goodness):
        line = first[seed, device]
        words = [str(seed)] * with_seeds + [device] + [line.edge or ""] * with_edges
        cells = [metric.text(figures[seed, device].get(name), digits=1) for name in models]
        table.add_row(*words, str(line.examples), *cells)
    show.print_wide(Console(), table)


def _examples(run: Loaded, file: Path) -> Table:
    """The rows of the file, all of them fit to be predicted."""
    data = run.config.data
    names = [name for name in (*ROLES, "decimal") if isinstance(data.get(name), str | list)]
    table = unlabelled(
        file,
        TableOptions(**{name: data[name] for name in names}),
        features=run.names.features,
        shape=run.form.shape,
        encoding=run.form.encoding,
    )
    table.faults.refuse("correct or remove them")
    return table


def _owners(
    run: Loaded,
    table: Table,
    file: Path,
    device: str | None,
    model: str | None,
    unknown: str | None,
) -> list[tuple[str | None, str | None]]:
    """Whose model each row is predicted by, None where all have the same, and its name."""
    if device is not None:
        run.module(device=device)  # which refuses a name that the run does not know
        return [(device, model)] * len(table)
    if run.alike(model) and table.device is not None:
        return [(owner, model) for owner in run.owners(table.device, model)]
    if table.device is None and (run.alike(model) or run.source.only_device is not None):
        return [(None, model)] * len(table)
    if table.device is None:
        name = run.snapshot(model).model
        raise ConfigError(
            f"every device has a {name!r} model of its own or of its edge, "
            f"and {file} has no column of devices;"
            f" name a device, as in --device {run.device_names[0]}, or take --model global."
        )
    trained = set(run.device_names)
    reason = "did not train in this run"
    if run.source.only_device is not None:
        trained = {run.source.only_device}
        reason = f"has its models elsewhere; these are those of device {run.source.only_device}"
    if unknown is not None:
        if not run.experiment.algorithm.learns_global or not run.alike(unknown):
            fix = "train models for such devices by covey personalize, or give --device NAME"
            raise ConfigError(f"--unknown {unknown}: this run has no whole global model; {fix}.")
        return [(name, model) if name in trained else (None, unknown) for name in table.device]
    for row, name in enumerate(table.device):
        if name not in trained:
            table.reject([row], f"device {name!r} {reason}")
    table.faults.refuse(
        "correct them, or predict by --unknown global, --device NAME or --model global"
    )
    return [(name, model) for name in table.device]


def _predictions(
    run: Loaded, table: Table, owners: Sequence[tuple[str | None, str | None]]
) -> list[dict[str, Any]]:
    """A row for each example, in order."""
    rows: list[dict[str, Any]] = [{} for _ in owners]
    for owner, model in dict.fromkeys(owners):
        places = [row for row, pair in enumerate(owners) if pair == (owner, model)]
        answering = run.answering(owner, model)
        for row, cells in zip(places, _cells(run, table.x[places], owner, model), strict=True):
            name = owner if owner is not None or not table.device else table.device[row]
            rows[row] = ({} if name is None else {"device": name}) | {"model": answering} | cells
    return rows


def _cells(
    run: Loaded,
    x: Any,
    device: str | None,
    model: str | None,
) -> list[dict[str, Any]]:
    """The predictions of a model, a column each."""
    if run.classes is None:
        values = np.asarray(run.predict(x, device=device, model=model))
        heads = ["prediction"]
        table = values.reshape(len(values), -1)
        if values.ndim > 1:
            kind = "probability" if run.yes_no else "prediction"
            heads = [f"{kind}_{label}" for label in run.names.labels or range(table.shape[1])]
        return [dict(zip(heads, row, strict=True)) for row in table.tolist()]
    names = run.class_names
    shares = run.probabilities(x, device=device, model=model)
    if shares.ndim == 3:
        by_position = shares.argmax(2).tolist()
        return [{f"prediction_{t}": names[k] for t, k in enumerate(row)} for row in by_position]
    heads = [f"probability_{name}" for name in names]
    return [
        {"prediction": names[best], **dict(zip(heads, (round(p, 6) for p in row), strict=True))}
        for best, row in zip(shares.argmax(1).tolist(), shares.tolist(), strict=True)
    ]
