"""`covey show` and `covey predict`: the results of a run, and predictions of its models."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from covey.cli import show
from covey.cli.folder import refused
from covey.cli.load import Loaded, load, summary
from covey.cli.options import AsJson
from covey.data.tables import Columns, Faults, Table
from covey.data.unlabelled import unlabelled
from covey.errors import ConfigError
from covey.runs.devices import DeviceScore

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run, finished or not.")
]
OfSeed = Annotated[int | None, typer.Option(help="Which of the run's seeds. Default: the first.")]


def show_run(
    run: RunFolder,
    devices: Annotated[
        bool, typer.Option("--devices", help="Every device on its test examples, worst first.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run has come to, finished or not: the table it printed, or how every device does.

    Examples:

      covey show runs/demo-sfedhp-1

      covey show runs/demo-sfedhp-1 --devices
    """
    seeds = _seeds(run)
    if devices:
        _show_devices(seeds, [seed.devices() for seed in seeds], as_json)
        return
    figures = summary(seeds)
    done = len(seeds[0].history)
    rounds = seeds[0].config.rounds
    if as_json:
        facts = {"folder": str(run), "finished": done >= rounds, **figures.as_dict()}
        print(json.dumps(facts))
        return
    console = Console(soft_wrap=True)
    if done < rounds:
        console.print(
            f"{done} of {rounds} rounds; go on with: covey run --resume {run}", highlight=False
        )
    show.table(console, figures)


def predict(
    run: RunFolder,
    file: Annotated[
        Path, typer.Option("--data", metavar="FILE", help="The examples: .csv, .parquet or .npz.")
    ],
    device: Annotated[
        str | None,
        typer.Option(help="Whose model. Default: the device column says it, row by row."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Default: personal, or what the run has nearest to it.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The .csv file to write. Default: to the terminal.")
    ] = None,
    seed: OfSeed = None,
    as_json: AsJson = False,
) -> None:
    """Predict new examples with the models of a run.

    Writes a table of classes with probabilities, or of values. The file has the columns of the
    features, by name and in the units of the training data; a column of labels may be missing. An
    .npz file has an array x.

    Examples:

      covey predict runs/own-data-permfl-1 --data new.csv

      covey predict runs/own-data-permfl-1 --data new.csv --device pump-03 --out predictions.csv

      covey predict runs/own-data-permfl-1 --data new.csv --model global
    """
    loaded = load(run, seed=seed)
    faults = Faults()
    table = _examples(loaded, file, faults)
    owners = _owners(loaded, table, file, device, model, faults)
    rows = _predictions(loaded, table, owners, model)
    if as_json:
        print(json.dumps(rows))
        return
    text = _csv(rows)
    if out is None:
        print(text, end="")
        return
    with refused(out):
        out.write_text(text)
    Console(stderr=True, soft_wrap=True).print(f"{len(rows)} predictions: {out}", highlight=False)


def _seeds(run: Path) -> list[Loaded]:
    """Every seed of a run."""
    first = load(run)
    return [first if seed == first.seed else load(run, seed=seed) for seed in first.seeds]


def _show_devices(
    seeds: Sequence[Loaded], scores: Sequence[Sequence[DeviceScore]], as_json: bool
) -> None:
    """A row per device, all models side by side; worst first by the most personal one."""
    if as_json:
        lines = [
            {"seed": seed.seed, **asdict(line)}
            for seed, part in zip(seeds, scores, strict=True)
            for line in part
        ]
        print(json.dumps(lines))
        return
    models = seeds[0].models()
    lines_of: dict[tuple[int, str], dict[str, DeviceScore]] = {}
    for seed, part in zip(seeds, scores, strict=True):
        for line in part:
            if line.part == "test":
                lines_of.setdefault((seed.seed, line.device), {})[line.model] = line
    own = seeds[0].snapshot().model
    kind = "accuracy" if seeds[0].classes is not None else "loss"
    if any(line.rmse is not None for by in lines_of.values() for line in by.values()):
        kind = "rmse"
    order = sorted(lines_of, key=lambda key: _badness(lines_of[key].get(own), kind))
    edges = any(line.edge is not None for by in lines_of.values() for line in by.values())
    heads = ["seed"] * (len(seeds) > 1) + ["device"] + ["edge"] * edges
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, no_wrap=True)
    unit = {"accuracy": "%", "rmse": "RMSE", "loss": "loss"}[kind]
    for head in ("test examples", *(f"{name} {unit}" for name in models)):
        table.add_column(head, justify="right", no_wrap=True)
    for key in order:
        line = next(iter(lines_of[key].values()))
        words = (
            [str(key[0])] * (len(seeds) > 1)
            + [escape(line.device)]
            + [escape(line.edge or "")] * edges
        )
        figures = [_figure(lines_of[key].get(name), kind) for name in models]
        table.add_row(*words, str(line.examples), *figures)
    show.print_wide(Console(soft_wrap=True), table)


def _badness(line: DeviceScore | None, kind: str) -> float:
    """A number that is least for the device that does worst."""
    figure: float | None = getattr(line, kind, None)
    if figure is None:
        return float("inf")
    return figure if kind == "accuracy" else -figure


def _figure(line: DeviceScore | None, kind: str) -> str:
    figure: float | None = getattr(line, kind, None)
    if figure is None:
        return "-"
    return f"{100 * figure:.1f}" if kind == "accuracy" else f"{figure:.4g}"


def _examples(run: Loaded, file: Path, faults: Faults) -> Table:
    """The rows of the file, all of them fit to be predicted."""
    data = run.config.data
    columns = Columns()
    for role in ("label", "device", "edge", "part"):
        if isinstance(data.get(role), str):
            columns = replace(columns, **{role: data[role]})
    table = unlabelled(file, columns, features=run.names.features, shape=run.shape, faults=faults)
    faults.refuse("correct or remove them")
    return table


def _owners(
    run: Loaded, table: Table, file: Path, device: str | None, model: str | None, faults: Faults
) -> list[str | None]:
    """Whose model each row is predicted by; None where it is the same for all."""
    if device is not None:
        return [_known(run, device)] * len(table)
    if run.alike(model):
        return [None] * len(table)
    if table.device is None:
        name = run.snapshot(model).model
        raise ConfigError(
            f"every device has a {name!r} model of its own or above it, "
            f"and {file} has no column of devices;"
            f" say whose, as in --device {run.device_names[0]}, or take --model global."
        )
    trained = set(run.device_names)
    for row, name in enumerate(table.device):
        if name not in trained:
            faults.add(
                table.source[row], table.position[row], f"device {name!r} did not train in this run"
            )
    faults.refuse("correct them, or predict by --device NAME or --model global")
    return list(table.device)


def _known(run: Loaded, device: str) -> str:
    run.module(device=device)  # which refuses a name that the run does not know
    return device


def _predictions(
    run: Loaded, table: Table, owners: Sequence[str | None], model: str | None
) -> list[dict[str, Any]]:
    """A row for each example, in order."""
    rows: list[dict[str, Any]] = [{} for _ in owners]
    for owner in dict.fromkeys(owners):
        places = [row for row, name in enumerate(owners) if name == owner]
        for row, cells in zip(places, _cells(run, table.x[places], owner, model), strict=True):
            name = owner if owner is not None else table.device[row] if table.device else None
            rows[row] = ({} if name is None else {"device": name}) | cells
    return rows


def _cells(run: Loaded, x: Any, device: str | None, model: str | None) -> list[dict[str, Any]]:
    if run.classes is None:
        values = np.asarray(run.predict(x, device=device, model=model))
        if values.ndim == 1:
            return [{"prediction": value} for value in values.tolist()]
        flat = values.reshape(len(values), -1).tolist()
        return [{f"prediction_{k}": value for k, value in enumerate(row)} for row in flat]
    names = run.class_names
    shares = run.probabilities(x, device=device, model=model)
    best = shares.argmax(1).tolist()
    return [
        {
            "prediction": names[k],
            **{f"probability_{name}": round(p, 6) for name, p in zip(names, row, strict=True)},
        }
        for k, row in zip(best, shares.tolist(), strict=True)
    ]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
