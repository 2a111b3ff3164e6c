"""`covey replay`: a deployed run again in the simulator, compared with what the server wrote."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape

from covey.cli.options import AsJson, load_and_note
from covey.deployed.disk import Disk
from covey.deployed.replay import by_ask, missing_of, replay
from covey.deployed.server_run import captured_in
from covey.errors import ConfigError
from covey.runs.run import Run


def replay_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.toml", help="The experiment file of the run.")
    ],
    disk: Annotated[
        Path, typer.Argument(metavar="DISK", help="The server's disk: its file node.sqlite.")
    ],
    as_json: AsJson = False,
) -> None:
    """Repeat a deployed run in the simulator, with the same nodes late and absent.

    The global model and the scores of every round must be those of the deployed run, bit for bit;
    the exit code is 1 where they are not.

    Examples:

      covey replay tree.toml deploy/server/state/server/node.sqlite
    """
    console = Console(stderr=as_json, soft_wrap=True, highlight=False)
    facts = _compared(console, file, disk)
    if as_json:
        print(json.dumps(facts))
    else:
        console.print(escape(_sentence(facts)))
    if not facts["equal"]:
        raise typer.Exit(1)


def _compared(console: Console, file: Path, path: Path) -> dict[str, Any]:
    """Run the replay, and compare it with the server's disk."""
    if not path.is_file():
        raise ConfigError(f"{path} is no file; give node.sqlite of the server.")
    config = load_and_note(console, file, [])
    disk = Disk(path)
    try:
        captured = captured_in(disk)
        records = [json.loads(record) for record in disk.records()]
        missing = missing_of(disk)
    finally:
        disk.close()
    if captured is None:
        raise ConfigError(f"{path} has no round of a server; give the disk of the server.")
    run = replay(config.experiment(config.seed), missing)
    differing = _differing_rounds(run, records)
    same_model = torch.equal(run.w, captured.tensors["server"])
    asks = by_ask(missing).values()
    statuses = Counter(status for by_node in asks for status in by_node.values())
    return {
        "rounds": len(records),
        "late": statuses["late"],
        "absent": statuses["absent"],
        "bad": statuses["bad"],
        "differing_rounds": differing,
        "global_model_equal": same_model,
        "equal": same_model and not differing,
    }


def _differing_rounds(run: Run, records: list[dict[str, Any]]) -> list[int]:
    """The rounds whose scores are others than those of the deployed run, counted from 1."""
    out = []
    for written in records:
        again = json.loads(json.dumps(next(run).as_dict()))
        if again["models"] != written["models"]:
            out.append(int(written["round"]) + 1)
    return out


def _sentence(facts: dict[str, Any]) -> str:
    """The result in words."""
    missing = f"{facts['late']} late, {facts['absent']} absent and {facts['bad']} bad answers"
    repeated = f"{facts['rounds']} rounds, {missing}"
    if facts["equal"]:
        return f"{repeated}: the replay equals the deployed run, bit for bit."
    differences = []
    if facts["differing_rounds"]:
        rounds = ", ".join(map(str, facts["differing_rounds"]))
        differences.append(f"other scores in rounds {rounds}")
    if not facts["global_model_equal"]:
        differences.append("another global model")
    return f"{repeated}: the replay has {' and '.join(differences)}."
