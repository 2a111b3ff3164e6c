"""`covey run`: its options. What it does imports torch, and stands in covey/cli/begin.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from covey.cli.options import AsJson, What


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
    ] = "auto",
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
    """Write metrics, checkpoints, the models of every tier, a table and pictures.

    Examples:

      covey run                                          the demo: sparse sFedHP on digits

      covey run examples/permfl.toml rounds=20           a file with a change

      covey run algorithm.name=pfedme seeds=5            another algorithm, five seeds

      covey run my.toml 'compare=["local", "fedavg"]'    compared with two algorithms

      covey run my.toml score_sample=100                 scored on 100 random devices

      covey run my.toml rounds=500 stop.patience=10      until validation improves no more

      covey run --resume runs/demo-sfedhp-1 rounds=100   resumed for more rounds

      covey run my.toml --runtime loopback               nodes that share nothing

      covey run my.toml --log tensorboard                logged while it runs

      covey run my.toml --store rows                     with rows in files, for many devices

      torchrun --nproc-per-node 2 -m covey run my.toml   on two processes
    """
    from covey.cli.begin import begin

    begin(
        arguments,
        out=out,
        resume_from=resume_from,
        anyway=anyway,
        force=force,
        runtime=runtime,
        store=store,
        log=log or [],
        as_json=as_json,
    )
