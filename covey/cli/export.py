"""`covey export`: a model of a run as a file, for use without covey."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from covey.cli.options import AsJson
from covey.cli.results import OfSeed, RunFolder, Trust
from covey.folder.terminal import Console


def export_command(
    run: RunFolder,
    node: Annotated[
        str,
        typer.Option(help="A device, an edge or the server, by name or number: pump-03, d17, all."),
    ],
    to: Annotated[
        str,
        typer.Option(metavar="FORMAT", help="safetensors, onnx, torchscript, torch.export."),
    ] = "safetensors",
    model: Annotated[
        str | None,
        typer.Option(help="The model. Default: the most personal one that the node has."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write; with --node all, the folder. Default: RUN/export/NODE-MODEL."
        ),
    ] = None,
    seed: OfSeed = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """The model is the one that the table reports.

    Inputs are in the units of the training data: the scaling is part of the file or, in a
    safetensors file, stated in its metadata. The file is read again and compared with the model; a
    file that disagrees is not kept.

    Examples:

      covey export runs/own-data-permfl-1 --node pump-03

      covey export runs/own-data-permfl-1 --node pump-03 --to onnx --out pump.onnx

      covey export runs/demo-sfedhp-1 --node e2 --to torch.export

      covey export runs/demo-sfedhp-1 --node all
    """
    from covey.folder import nodes
    from covey.folder.export import ALL, export, export_all, format_of
    from covey.folder.load import load

    format = format_of(to)
    loaded = load(run, seed=seed, trust=trust)
    if node == ALL:
        written = export_all(loaded, format, model, out)
    else:
        written = [export(loaded, nodes.find(loaded, node), format, model, out)]
    if as_json:
        print(json.dumps([asdict(one) for one in written]))
        return
    console = Console()
    if not loaded.finished:
        done = f"{len(loaded.history)} of {loaded.config.rounds} rounds"
        console.print(f"note: the run is unfinished ({done}); this is its model so far.")
    first = written[0]
    who = f"the {first.model} model of {first.node}"
    where = f"file: {first.file} ({first.bytes:,} bytes)"
    if len(written) > 1:
        who = f"the {first.model} models of {len(written)} {first.tier}s"
        size = sum(one.bytes for one in written)
        where = f"folder: {Path(first.file).parent} ({size:,} bytes)"
    console.print(f"{who} in round {min(one.round for one in written)}, as {first.format}")
    worst = max(one.difference for one in written)
    largest = max(one.largest for one in written)
    compared = f"read again and compared on {first.examples} examples"
    console.print(f"{compared}: max difference {worst:.1e}, outputs up to {largest:.3g}")
    console.print(where)
