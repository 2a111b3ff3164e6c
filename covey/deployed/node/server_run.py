"""A run on a deployed tree, which goes on from the server's disk after a crash."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any

from safetensors.torch import load, save

from covey.deployed.node.disk import Disk
from covey.deployed.node.missed import Missing
from covey.deployed.node.own_models import chosen_models
from covey.deployed.node.tree_runtime import Capture, TreeRuntime
from covey.errors import CheckpointError
from covey.runs.build import RuntimeFactory
from covey.runs.experiment import Experiment
from covey.runs.run import Run
from covey.runs.saved.checkpoint import Checkpoint
from covey.runs.scores import record
from covey.runs.scores.record import Round

FACTS = "facts"
"""The key of a state's metadata under which its facts stand."""


CHANGES = "tree changes"
"""The fact that lists the rounds after which the tree changed."""


def server_run(experiment: Experiment, tree: RuntimeFactory) -> Run:
    """The run of an experiment on a deployed tree; where the server's disk has one, its rest.

    A round that a crash has interrupted is run again: what children answered is in the journal.
    """
    run = Run(experiment, runtime=tree)
    runtime = _tree_of(run)
    disk = runtime.server.database
    written = disk.records()
    captured = captured_in(disk)
    changed = 0
    if captured is not None:
        changed = run.stand(captured, [json.loads(text) for text in written])
    ends = disk.fact("ends") or []
    if changed and len(written) not in ends:
        disk.note(ends=[*ends, len(written)])
    runtime.capture = _capture(run, disk, len(written) - changed)
    return run


def finish(run: Run) -> None:
    """End a run: the last round is good, and every node has its models as files in its folder.

    It may be repeated after a crash.
    """
    runtime = _tree_of(run)
    runtime.commit()
    with runtime.ending():
        runtime.write_models(*chosen_models(run))
    runtime.commit()  # with what late nodes told


def ending(run: Run) -> AbstractContextManager[None]:
    """While a run ends, what it reads of its nodes may lack those that are away."""
    return _tree_of(run).ending()


def missing_of(disk: Disk) -> list[Missing]:
    """Who was missing in the good rounds of a server's disk."""
    return [Missing(*entry) for entry in disk.missing()]


def replay_facts(run: Run) -> dict[str, Any]:
    """What a replay of a run on a deployed tree has to know, as JSON can hold it.

    `ends` are the numbers of rounds after which the run was over, before it got more of them: a
    last round is always scored. `changes` are those after which its tree changed.
    """
    disk = _tree_of(run).server.database
    ends = disk.fact("ends") or []
    return {"ends": ends, "changes": disk.fact(CHANGES) or [], "missing": disk.missing()}


def captured_in(disk: Disk) -> Checkpoint | None:
    """Where the run of a server's disk stands; None before its first round is good."""
    state = disk.state
    if state is None:
        return None
    length = int.from_bytes(state[:8], "little")
    header = json.loads(state[8 : 8 + length])
    return Checkpoint(load(state), json.loads(header["__metadata__"][FACTS]))


def _capture(run: Run, disk: Disk, written: int) -> Capture:
    """Says where a run stands, and which records are not on the disk yet; it holds no others."""

    def read(round: int) -> Round:
        (text,) = disk.records(round, 1)
        return record.read(json.loads(text))

    def capture() -> tuple[bytes, list[tuple[int, str]]]:
        nonlocal written
        captured = run.captured()
        tensors = {
            name: tensor.detach().cpu().contiguous() for name, tensor in captured.tensors.items()
        }
        state = save(tensors, {FACTS: json.dumps(captured.facts)})
        new = run.hold_records(written, read)
        written += len(new)
        return state, [(one.round, json.dumps(one.as_dict())) for one in new]

    return capture


def _tree_of(run: Run) -> TreeRuntime:
    if not isinstance(run.runtime, TreeRuntime):
        raise CheckpointError("this run is not that of a deployed tree.")
    return run.runtime
