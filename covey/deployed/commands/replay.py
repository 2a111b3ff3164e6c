"""`covey replay`: a deployed run again in the simulator, compared with what the server wrote."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from covey.cli.options import AsJson
from covey.deployed.files.server_folder import RUN, ReplayFacts
from covey.deployed.node.replay import by_ask, replay
from covey.deployed.plan.plan_files import NODE
from covey.deployed.plan.process import Process
from covey.errors import ConfigError
from covey.files.config import Config, load
from covey.files.data_form import is_census
from covey.folder.terminal import Console
from covey.runs.run import Run, history
from covey.runs.saved import checkpoint
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.same_state import record_differences, state_differences

_SHOWN = 12  # differences that a terminal lists


def replay_command(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The server's run folder, or the folder of all nodes."),
    ],
    as_json: AsJson = False,
) -> None:
    """All rows, every record, the traffic and the notes must be those of the deployed run, bit for
    bit; only seconds differ. The exit code is 1 where anything else does. The data of all devices
    must be on this machine.

    Examples:

      covey replay local

      covey replay /var/lib/covey/server/run
    """
    console = Console(stderr=as_json)
    facts = _compared(run_folder(run))
    if as_json:
        print(json.dumps(facts))
    else:
        counts = f"{facts['late']} late, {facts['absent']} absent and {facts['bad']} bad answers"
        console.print(f"{facts['folder']}: {facts['rounds']} rounds, {counts}")
        differences = facts["differences"]
        if facts["equal"]:
            what = "rows, records, traffic and notes are those of the deployed run, bit for bit"
            console.print(f"equal: {what}")
        else:
            console.print("NOT equal; these differ:")
        for difference in differences[:_SHOWN]:
            console.print(f"  {difference}")
        if len(differences) > _SHOWN:
            console.print(f"  and {len(differences) - _SHOWN} more (--json lists all)")
    if not facts["equal"]:
        raise typer.Exit(1)


def run_folder(path: Path) -> Path:
    """The folder of the run in a folder that may hold all nodes."""
    # Where the nodes of a plan have their runs: the top of the tree alone has one.
    planned = [Path(Process.load(file).state) / RUN for file in sorted(path.glob(f"*/{NODE}"))]
    for folder in (path, path / RUN, *sorted(path.glob(f"*/state/{RUN}")), *planned):
        run = RunFolder(folder)
        if run.missing.exists() and run.checkpoint.exists():
            return folder
    run = RunFolder(path)
    if run.checkpoint.exists():
        fix = f"`covey run {run.config}` repeats it"
        raise ConfigError(f"{path} is a run of the simulator, without late nodes; {fix}.")
    raise ConfigError(
        f"{path} is no folder of a deployed run that has ended; give that of the server, such as "
        "local/server/state/run. The server writes it after its last round, or when it is stopped."
    )


def _compared(folder: Path) -> dict[str, Any]:
    """Run the replay, and compare it with what the server wrote."""
    deployed = RunFolder(folder)
    config = load(deployed.config)
    if is_census(config):
        rule = "a replay needs the examples of all devices on one machine"
        raise ConfigError(f"the data of this run stay with their devices, and {rule}.")
    lacks = deployed.saved_facts().get(checkpoint.LACKS)
    if lacks is not None:
        fix = "start its server again while all nodes are there"
        if not (config.deploy or {}).get("share_rows", True):
            fix = "a run that is to be compared needs deploy.share_rows = true from its start"
        raise ConfigError(f"{folder} lacks {lacks}, so it cannot be compared; {fix}.")
    facts = ReplayFacts.read(folder)
    if facts.changes:
        rule = "a replay has one tree"
        raise ConfigError(f"the tree of this run changed after round {facts.changes[0]}; {rule}.")
    written = history(deployed.checkpoint)
    with TemporaryDirectory() as scratch:
        run = _again(config, facts, len(written), Path(scratch))
        saved = RunFolder(Path(scratch)).checkpoint
        run.save(saved)
        state = state_differences(checkpoint.read(saved), checkpoint.read(deployed.checkpoint))
    differing = [*record_differences(written, run.history), *state]
    asks = by_ask(facts.missing).values()
    statuses = Counter(status for by_node in asks for status in by_node.values())
    return {
        "folder": str(folder),
        "rounds": len(written),
        "late": statuses["late"],
        "absent": statuses["absent"],
        "bad": statuses["bad"],
        "differences": differing,
        "equal": not differing,
    }


def _again(
    config: Config,
    facts: ReplayFacts,
    rounds: int,
    scratch: Path,
) -> Run:
    """As many rounds as the deployed run has; it got more of them as often as that run did."""
    experiment = config.experiment(config.seed)
    saved = None
    for end in facts.ends:
        run = replay(replace(experiment, rounds=end), facts.missing, saved)
        for _ in run:
            pass
        saved = scratch / f"{end}.safetensors"
        run.save(saved)
    run = replay(experiment, facts.missing, saved)
    while run.round < rounds:
        next(run)
    return run
