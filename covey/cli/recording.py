"""What a run folder holds of single nodes, for reports: see docs/watch.md.

    nodes.json    written when the run starts: the tree, names, examples and labels of every device
    nodes.jsonl   a line per scored round: the sums of every device (covey/runs/node_round.py)
    totals.json   written with each checkpoint: the bytes of every node in all rounds so far

A run of more than `DEVICES` devices has nodes.json alone, with a note in place of the devices.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covey.cli.folder import Folder, refused
from covey.data import NO_TARGET, Names, Shards
from covey.runs import node_round
from covey.runs.devices import PARTS
from covey.runs.record import Round
from covey.runs.seed import Seed

DEVICES = 10_000
"""With more devices than this, figures of single nodes are not written."""
_SUMS = 50_000_000
"""Sums of single devices that one seed writes; of longer runs, not every scored round has a line.
The rounds that are the best so far have one in any case."""
_LABELS = 2_000_000
"""Numbers of examples by device and class; with more, they are left out."""


@dataclass(eq=False)
class Recorder:
    """Writes the figures of one seed's nodes into its folder."""

    folder: Folder
    lines: int = -1
    """The last round that has a line."""

    def begin(self, run: Seed, method: str) -> None:
        """Write what is known before the first round; drop lines of rounds that will be run again.

        `method` is what the run's algorithm calls itself.
        """
        if not self.folder.writes:
            return
        text = json.dumps(described(run, method))  # on one line: it has a number per device
        self.folder.write("nodes.json", text + "\n")
        if not _small(run):
            return
        kept = self._lines_of(run.history)
        self.folder.write("nodes.jsonl", "".join(line + "\n" for line in kept.values()))
        self.lines = max(kept, default=-1)
        self._write_totals(run)

    def add(self, run: Seed) -> None:
        """Append a line for the round that was run last, if it has one and it is not there yet."""
        if not self.folder.writes or not _small(run) or run.round - 1 <= self.lines:
            return
        figures = node_round.of(run)
        if figures is None or not _wanted(run, figures):
            return
        path = self.folder.path / "nodes.jsonl"
        with refused(path), open(path, "a", encoding="utf-8") as file:
            file.write(figures.line() + "\n")
        self.lines = figures.round

    def sync(self, run: Seed) -> None:
        """Bring everything to the disk that a checkpoint counts on."""
        self.add(run)
        if not self.folder.writes or not _small(run):
            return
        path = self.folder.path / "nodes.jsonl"
        with refused(path), open(path, "a", encoding="utf-8") as file:
            os.fsync(file.fileno())
        self._write_totals(run)

    def _lines_of(self, history: Sequence[Round]) -> dict[int, str]:
        """The lines in the folder that are of scored rounds of this history, by round."""
        path = self.folder.path / "nodes.jsonl"
        out = {}
        if path.exists():
            with refused(path):
                text = path.read_text(encoding="utf-8", errors="replace")
            for line in text.splitlines():
                try:
                    round = node_round.read(line).round
                except ValueError:  # half a line, of a process that was killed
                    continue
                if 0 <= round < len(history) and history[round].models:
                    out[round] = line
        return dict(sorted(out.items()))

    def _write_totals(self, run: Seed) -> None:
        """Write the sums of every node over all rounds so far, where they are known."""
        if run.totals is None:
            return
        by_tier: dict[str, dict[str, list[float]]] = {}
        for (tier, name), values in run.totals.items():
            by_tier.setdefault(tier, {})[name] = values.tolist()
        text = json.dumps({"rounds": run.round, "totals": by_tier})
        self.folder.write("totals.json", text + "\n")


def _small(run: Seed) -> bool:
    """Whether a run has few enough devices for figures of single nodes."""
    return run.sizes[run.runtime.tree.tiers[-1]] <= DEVICES


def _wanted(run: Seed, figures: node_round.NodeRound) -> bool:
    """Whether a round has a line: those evenly spaced, the best so far and the last."""
    experiment = run.experiment
    number = figures.round + 1
    last = run.done
    scored = math.ceil(experiment.rounds / experiment.score_every)
    devices = sum(len(sums) for sums in figures.devices.values())
    stride = math.ceil(scored * devices / _SUMS)
    regular = number // experiment.score_every % stride == 0
    return regular or last or bool(figures.holds)


def described(run: Seed, method: str) -> dict[str, Any]:
    """What is known of the nodes of a run before its first round, as JSON can hold it."""
    task = run.runtime.task
    algorithm = run.experiment.algorithm
    out: dict[str, Any] = {
        "method": method,
        "metric": node_round.metric_of(run),
        "learns_global": algorithm.learns_global,
        "private": private_layers(run),
        "parameters": task.space.width,
        "slots": {slot.name: slot.stop - slot.start for slot in task.space.slots},
        "tiers": list(run.sizes),
        "sizes": list(run.sizes.values()),
    }
    metrics = node_round.metric_names(run)
    if metrics:
        out["metrics"] = metrics
    if not _small(run):
        devices = list(run.sizes.values())[-1]
        out["note"] = (
            f"The run has {devices:,} devices. "
            f"Figures of single nodes are recorded up to {DEVICES:,} devices."
        )
        return out
    trained = run.trained
    out["parents"] = _parents(run)
    out["names"] = _names(run, trained.names)
    out["population"] = _population(trained)
    new = run.newcomer_data
    if new is not None:
        out["newcomers"] = {"names": list(new.names.devices), **_population(new)}
    return out


def private_layers(run: Seed) -> str:
    """The layers that every device keeps to itself: "head", "private layers", or nothing."""
    patterns = run.experiment.private
    if not patterns:
        return ""
    if patterns == ("head",):
        return "head"
    return "private layers"


def _parents(run: Seed) -> dict[str, list[int]]:
    """For each tier below the top, the id of the node above every node."""
    tree = run.runtime.tree
    out = {}
    for above, tier in zip(tree.tiers, tree.tiers[1:], strict=False):
        ids = torch.arange(run.sizes[above])
        out[tier] = torch.repeat_interleave(ids, tree.counts(above, ids)).tolist()
    return out


def _names(run: Seed, names: Names) -> dict[str, list[str]]:
    """What the data calls devices and edges, by tier."""
    tiers = list(run.sizes)
    out = {}
    if names.devices:
        out[tiers[-1]] = list(names.devices)
    if len(tiers) > 2 and len(names.edges) == run.sizes[tiers[-2]]:
        out[tiers[-2]] = list(names.edges)
    return out


def _population(shards: Shards) -> dict[str, Any]:
    """The number of examples of every device, by part and by label.

    Where labels are per position, the positions with a label are counted.
    """
    out: dict[str, Any] = {}
    for part in PARTS:
        out[part] = shards.target_counts(part).tolist()
    classes = shards.classes
    if classes is not None and shards.devices * classes <= _LABELS:
        out["labels"] = _labels(shards, classes).tolist()
        out["classes"] = list(shards.names.classes) or [str(k) for k in range(classes)]
    return out


def _labels(shards: Shards, classes: int) -> Tensor:
    """The number of examples of each class that every device holds, in all parts."""
    total = torch.zeros(shards.devices * classes, dtype=torch.int64)
    for part in PARTS:
        examples = shards.part(part)
        owner = torch.repeat_interleave(torch.arange(shards.devices), examples.counts())
        labels = shards.y[examples.index].long()
        if shards.by_position:
            owner = owner[:, None].expand_as(labels)[labels != NO_TARGET]
            labels = labels[labels != NO_TARGET]
        cells = owner * classes + labels
        total += torch.bincount(cells, minlength=len(total))
    return total.reshape(shards.devices, classes)
