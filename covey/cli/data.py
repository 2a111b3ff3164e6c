"""`covey data`: which data sets this machine has, and who holds what in an experiment.

It also says how to get the other sets, and checks files against the published checksums.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from covey.atomic import refused
from covey.cli.options import AsJson, What, split
from covey.folder.terminal import Console

if TYPE_CHECKING:
    from covey.data import Shards
    from covey.tree import Tree

_BARS = " ▁▂▃▄▅▆▇█"
app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="The data folder. Default: COVEY_DATA, else the user's own.",
    ),
]


@app.callback(invoke_without_command=True)
def sets(context: typer.Context, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """It also compares files with published checksums, and shows who holds what in an experiment.

    Examples:

      covey data

      covey data --data-dir /data/images --json

      covey data check mnist

      covey data show examples/permfl.toml
    """
    if context.invoked_subcommand is not None:
        return
    from covey.data.published import inventory, locations

    statuses = inventory.present(data_dir)
    if as_json:
        print(json.dumps([asdict(status) for status in statuses], default=str))
        return
    console = Console()
    console.print(f"data folder: {locations.folder(data_dir)}")
    for status in statuses:
        counts = f"{status.train:,} + {status.test:,}" if status.test else f"{status.train:,}"
        state = "[green]present[/]" if status.present else "[yellow]missing[/]"
        facts = f"{counts} images, {status.classes} classes"
        console.print(f"[bold]{status.name:15}[/]{state}  {facts}", markup=True)
        if status.present:
            console.print(f"{'':15}{status.source}")
            continue
        if status.files:
            lacking = ", ".join(status.missing)
            console.print(f"{'':15}lacks {lacking} in {status.files[0].parent}")
        console.print(f"{'':15}[dim]{escape(status.get)}[/]", markup=True)


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A data set, as `covey data` lists it.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare a set's files with the published checksums.

    A set without published checksums is read and counted. Exit code 2 if a file is missing or
    differs.

    Examples:

      covey data check mnist

      covey data check emnist-byclass --data-dir /data/images
    """
    from covey.data.published import inventory, locations
    from covey.data.published.catalog import known

    verdicts = inventory.check(name, data_dir)
    bad = sum(not verdict.good for verdict in verdicts)
    if as_json:
        print(json.dumps([verdict._asdict() for verdict in verdicts], default=str))
    else:
        console = Console()
        for verdict in verdicts:
            colour = "green" if verdict.good else "bold red"
            console.print(
                f"[{colour}]{escape(verdict.text)}[/]  {escape(str(verdict.file))}", markup=True
            )
        if bad:
            advice = locations.advice(known(name), locations.folder(data_dir))
            console.print(
                f"{name}: {bad} of {len(verdicts)} files are missing or differ; {advice}."
            )
    if bad:
        raise typer.Exit(2)


@app.command()
def show(
    arguments: What = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The picture to write. Default: NAME-data.png here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show who holds what in an experiment.

    Draws the labels per device and edge; prints sizes, overlaps and leaks.

    Examples:

      covey data show examples/permfl.toml

      covey data show data.name=mnist data.partition=legacy2020 --out legacy.png
    """
    from covey.files.config import load
    from covey.report.pictures.data_picture import draw

    path, changes = split(arguments)
    config = load(path, changes)
    experiment = config.experiment(config.seed)
    # By the papers' protocol nothing validates; the count of leaks has to be that of the run.
    shards = experiment.data
    if experiment.protocol == "paper":
        shards = experiment.data.paper()
    tree = experiment.tree
    facts = _facts(shards, tree)
    picture = out or Path(f"{config.title}-data.png")
    leaks = _leaks(facts)
    title = f"{shards.name}: {tree}"
    if leaks:
        title += "\nleaks: " + leaks.replace("; ", "\n")
    with refused(picture):
        draw(shards, tree, picture, title=title)
    if as_json:
        print(json.dumps({**facts, "picture": str(picture)}))
        return
    goal = "numbers to predict"
    if shards.yes_no:
        goal = f"{len(shards.names.labels)} yes-or-no labels"
    if shards.classes is not None:
        goal = f"{shards.classes} classes"
    console = Console()
    console.print(f"{shards.name}: {tree}; {len(shards.x):,} examples, {goal}")
    _print_facts(console, facts)
    colour = "bold red" if leaks else "green"
    console.print(f"[{colour}]{'leaks':12}[/] {leaks or 'none'}", markup=True)
    console.print(f"{'picture':12} {picture}")


def _print_facts(console: Console, facts: dict[str, Any]) -> None:
    """Sizes, labels, targets, scaling and overlaps."""
    for name, (smallest, median, largest, total) in facts["sizes"].items():
        counts = f"{smallest:,} to {largest:,} examples per device, median {median:,}"
        console.print(f"{name:12} {counts}; {total:,} in all")
    if facts["labels"]:
        fewest, median, most = facts["labels"]
        console.print(f"{'labels':12} {fewest} to {most} per device, median {median}")
    if targets := facts["targets"]:
        most = max(targets["counts"])
        bars = "".join(_BARS[-(-8 * count // most)] for count in targets["counts"])
        spread = f"mean {targets['mean']:.4g}, standard deviation {targets['deviation']:.4g}"
        ends = f"{targets['min']:.4g} |{bars}| {targets['max']:.4g}"
        console.print(f"{'targets':12} {ends}; {spread}")
    if facts["scaling"]:
        console.print(f"{'scaling':12} {facts['scaling']}")
    for note in facts["notes"]:
        console.print(f"{'rows':12} {note}")
    shared = facts["overlaps"]["shared"]
    overlap = "none: no example is held by two devices"
    if shared:
        held = facts["overlaps"]["held"]
        overlap = f"{shared:,} of {held:,} examples are held by several devices"
    console.print(f"{'overlaps':12} {overlap}")
    counts = facts["copies"]
    equal = counts["held"] - counts["different"]
    if equal:
        of_all = f"{equal:,} of {counts['held']:,} examples equal an earlier one in all features"
        console.print(f"{'copies':12} {of_all}")


def _targets(shards: Shards) -> dict[str, Any] | None:
    """What numbers there are to predict in training, with a histogram; None for classes."""
    if shards.classes is not None:
        return None
    from covey.report.pictures.data_picture import target_histogram

    limits, counts = target_histogram(shards)
    values = shards.y[shards.train.index].double()
    return {
        "min": float(values.min()),
        "mean": float(values.mean()),
        "deviation": float(values.std(correction=0)),
        "max": float(values.max()),
        "limits": limits.tolist(),
        "counts": counts.sum(0).tolist(),
    }


def _leaks(facts: dict[str, Any]) -> str:
    """How much leaks, or nothing."""
    counts = facts["overlaps"]
    lines = []
    if counts["leaks"]:
        count = f"{counts['leaks']:,} of {counts['tested']:,} test examples"
        pairs = f"{counts['pairs']:,} pairs of devices"
        lines.append(f"{count} are in another device's training or validation part ({pairs})")
    if counts["validation_leaks"]:
        count = f"{counts['validation_leaks']:,} of {counts['validated']:,} validation examples"
        pairs = f"{counts['validation_pairs']:,} pairs of devices"
        lines.append(f"{count} are in another device's training part ({pairs})")
    if counts["reused"]:
        lines.append(f"{counts['reused']:,} examples are in two parts of the same device")
    counts = facts["copies"]
    if counts["leaks"]:
        count = f"{counts['leaks']:,} of {counts['tested']:,} test examples"
        lines.append(f"{count} equal, in all features, one of a training or validation part")
    return "; ".join(lines)


def _facts(shards: Shards, tree: Tree) -> dict[str, Any]:
    """What a partition comes to, as JSON can hold it."""
    import numpy as np

    from covey.data import overlaps
    from covey.data.partitions.leaks import copies
    from covey.data.shards import SPLITS

    sizes = {}
    for part in SPLITS:
        counts = shards.part(part).counts()
        figures = (counts.min(), counts.median(), counts.max(), counts.sum())
        sizes[part] = [int(figure) for figure in figures]
    kind = shards.scaling.kind if shards.scaling else None
    labels = None
    if shards.classes:
        counts = (shards.labels() > 0).sum(1)
        labels = [int(counts.min()), int(np.median(counts)), int(counts.max())]
    return {
        "data": shards.name,
        "devices": shards.devices,
        "edges": list(tree.children[-1]) if tree.depth > 2 else None,
        "sizes": sizes,
        "labels": labels,
        "targets": _targets(shards),
        "scaling": "paper, over test examples too" if kind == "paper" else kind,
        "notes": [*shards.notes, *shards.receiver_notes()],
        "overlaps": asdict(overlaps(shards)),
        "copies": asdict(copies(shards)),
    }
