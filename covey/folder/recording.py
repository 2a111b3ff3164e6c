"""What a run folder gets while a seed is run: its rounds, its nodes, its models, its checkpoints.

Figures of single nodes are for reports, see docs/watch.md. A run of more than `DEVICES` devices has
nodes.json alone, with a note in place of the devices.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import torch

from covey.atomic import refused
from covey.data import NO_TARGET, Shards
from covey.errors import CheckpointError, CoveyError, RankError
from covey.files.data_form import DataForm
from covey.runs.csv_text import csv_text
from covey.runs.models import Which
from covey.runs.run import Round
from covey.runs.saved import snapshot
from covey.runs.saved.run_folder import RunFolder
from covey.runs.scores import node_round
from covey.runs.scores.devices import to_csv
from covey.runs.scores.figures import PARTS
from covey.runs.scores.record import scored_rounds
from covey.runs.seed import Seed
from covey.runs.selection import Protocol, select
from covey.runs.tracker import RunTracker
from covey.runs.tracker import to_csv as rounds_csv

DEVICES = 10_000
"""With more devices than this, figures of single nodes are not written."""
MODEL = 2**28
"""Bytes of a model's rows in files; with more, no copy of them is written into models/."""
_SUMS = 50_000_000
"""Sums of single devices that one seed writes; of longer runs, not every scored round has a line.
The rounds that are the best so far have one in any case."""
_LABELS = 2_000_000
"""Numbers of examples by device and class; with more, they are left out."""


@dataclass(eq=False)
class Recorder(RunTracker):
    """Writes one seed into its folder: rounds as they come, its state, in the end its models."""

    folder: RunFolder
    run: Seed
    method: str
    """What the run's algorithm calls itself."""
    place: int = 0
    """Of the seed among those that run side by side."""
    say: Callable[[str], None] = print
    """Tells the user what the folder lacks."""
    lines: int = -1
    """The last round that has a line in nodes.jsonl."""

    def begin(self) -> None:
        """Write what is known before the first round that is left."""
        self._write_records()
        self.folder.write_json(self.folder.data, DataForm.of(self.run.trained).as_dict())
        if not self.folder.writes:
            return
        text = json.dumps(described(self.run, self.method))  # on one line: a number per device
        self.folder.write(self.folder.described, text + "\n")
        if _devices(self.run) > DEVICES:
            return
        self._write_nodes()
        self._write_totals()

    def log(self, records: Sequence[Round]) -> None:
        self.folder.append(self.folder.metrics, json.dumps(records[self.place].as_dict()))
        self._add_nodes()

    def save(self) -> None:
        """Write a checkpoint, once everything is on the disk that it counts on."""
        if not self.run.done:
            self.sync()
            self.run.save(self.folder.checkpoint, wait=False)

    def end(self, error: BaseException | None) -> None:
        """Save the state, whatever ended the run, but for a disk or another process that fails.

        The checkpoint comes last: one of the last round says that everything else is there. With
        an older one it is all redone.
        """
        # SystemExit: nobody reads the output any more.
        usual = error is None or isinstance(error, KeyboardInterrupt | SystemExit | CoveyError)
        if not usual or isinstance(error, CheckpointError | RankError):
            return
        left_out: list[str] = []
        if self.run.done:
            left_out = write_models(self.folder, self.run)
            self._write_devices()
        self._write_records()
        self.folder.write(self.folder.metrics_csv, rounds_csv(self.run.history))
        self.sync()
        self.run.save(self.folder.checkpoint)
        if error is not None:
            return
        for name in left_out:
            self.say(
                f"note: the rows of {name!r} are in checkpoint.rows alone, because they are large; "
                "covey predict and covey export read single nodes there."
            )
        scored = min(_devices(self.run), self.run.experiment.score_sample or math.inf)
        if scored > DEVICES:
            self.say(f"note: devices.csv has {DEVICES:,} of {scored:,} devices at most.")

    def sync(self) -> None:
        """Bring everything to the disk that a checkpoint counts on."""
        self._add_nodes()
        if not self.folder.writes or _devices(self.run) > DEVICES:
            return
        with refused(self.folder.nodes), open(self.folder.nodes, "a", encoding="utf-8") as file:
            os.fsync(file.fileno())
        self._write_totals()

    def _write_records(self) -> None:
        """All records so far; rounds that a crash wrote after the last checkpoint are run again."""
        lines = [json.dumps(record.as_dict()) + "\n" for record in self.run.history]
        self.folder.write(self.folder.metrics, "".join(lines))

    def _write_devices(self) -> None:
        """How every device does with every model, and which classes are taken for which."""
        run = self.run
        self.folder.write(self.folder.devices, to_csv(run.devices(DEVICES)))
        if "confusion" in run.experiment.metrics:
            data = run.experiment.data
            classes = list(data.names.classes) or [str(k) for k in range(data.classes or 0)]
            text = confusion_csv(run.history, classes, run.experiment.protocol)
            if text is not None:
                self.folder.write(self.folder.confusion, text)

    def _write_nodes(self) -> None:
        """The figures of nodes so far, without the lines of rounds that will be run again."""
        path = self.folder.nodes
        text = ""
        if path.exists():
            with refused(path):
                text = path.read_text(encoding="utf-8", errors="replace")
        kept = {}
        history = self.run.history
        for line in text.splitlines():
            with suppress(ValueError):  # half a line, of a process that was killed
                round = node_round.read(line).round
                if 0 <= round < len(history) and history[round].models:
                    kept[round] = line
        kept = dict(sorted(kept.items()))
        self.folder.write(path, "\n".join([*kept.values(), ""]))
        self.lines = max(kept, default=-1)

    def _add_nodes(self) -> None:
        """Append a line for the round that was run last, if it has one and it is not there yet."""
        run = self.run
        if not self.folder.writes or _devices(run) > DEVICES or run.round - 1 <= self.lines:
            return
        figures = node_round.of(run)
        if figures is None:
            return
        every = run.experiment.score_every
        scored = math.ceil(run.experiment.rounds / every)
        devices = sum(map(len, figures.devices.values()))
        stride = math.ceil(scored * devices / _SUMS)
        evenly_spaced = (figures.round + 1) // every % stride == 0
        best_so_far = bool(figures.holds)
        if not (evenly_spaced or best_so_far or run.done):
            return
        self.folder.append(self.folder.nodes, figures.line())
        self.lines = figures.round

    def _write_totals(self) -> None:
        """Write the sums of every node over all rounds so far."""
        by_tier: dict[str, dict[str, list[float]]] = {}
        for (tier, name), values in self.run.totals.items():
            by_tier.setdefault(tier, {})[name] = values.tolist()
        text = json.dumps({"rounds": self.run.round, "totals": by_tier})
        self.folder.write(self.folder.totals, text + "\n")


def write_models(folder: RunFolder, run: Seed) -> list[str]:
    """Write every kept model in its chosen round, and below `last` in the last round.

    The format is that of covey/runs/saved/snapshot.py. The names of those are returned whose rows
    stay in the checkpoint alone, because they are too many.
    """
    algorithm = type(run.experiment.algorithm).__name__
    space = run.runtime.task.space
    left_out = []
    for name in run.models(scored=False):
        if run.stored_bytes(name) > MODEL and not space.norms:
            left_out.append(name)
            continue
        for which in get_args(Which):
            kept = run.snapshot(name, which)  # all ranks together
            if folder.writes:
                snapshot.write(folder.model(name, which), kept, space, algorithm)
    return left_out


def confusion_csv(
    history: Sequence[Round], classes: Sequence[str], protocol: Protocol = "honest"
) -> str | None:
    """The confusion matrices of every model, on test, in its reported round.

    There is a row per model and class: the examples of the class by predicted class. None where the
    run has no such matrices.
    """
    scored = scored_rounds(history)
    rows: list[list[str | int]] = []
    for name in scored[-1].models if scored else ():
        chosen = select(history, name, protocol).chosen
        score = chosen.models[name].scores.get("test")
        if score is None or score.confusion is None:
            continue
        for label, counts in zip(classes, score.confusion, strict=True):
            rows.append([name, chosen.round + 1, label, *counts])
    if not rows:
        return None
    predicted = [f"predicted {label}" for label in classes]
    return csv_text(["model", "round", "class", *predicted], rows)


def _devices(run: Seed) -> int:
    """The number of devices of a run."""
    return run.sizes[run.runtime.tree.tiers[-1]]


def described(run: Seed, method: str) -> dict[str, Any]:
    """What is known of the nodes of a run before its first round, as JSON can hold it."""
    task = run.runtime.task
    algorithm = run.experiment.algorithm
    out: dict[str, Any] = {
        "method": method,
        "metric": task.metrics[0].name,
        "learns_global": algorithm.learns_global,
        "private": private_layers(run),
        "parameters": task.space.width,
        "slots": {slot.name: slot.stop - slot.start for slot in task.space.slots},
        "tiers": list(run.sizes),
        "sizes": list(run.sizes.values()),
    }
    if metrics := node_round.metric_names(run):
        out["metrics"] = metrics
    devices = _devices(run)
    if devices > DEVICES:
        out["note"] = (
            f"The run has {devices:,} devices. "
            f"Figures of single nodes are recorded up to {DEVICES:,} devices."
        )
        return out
    trained = run.trained
    tree = run.runtime.tree
    parents = {}
    for above, tier in pairwise(tree.tiers):
        ids = torch.arange(run.sizes[above])
        parents[tier] = torch.repeat_interleave(ids, tree.counts(above, ids)).tolist()
    out["parents"] = parents
    tiers = list(run.sizes)
    names_by_tier = {}
    if trained.names.devices:
        names_by_tier[tiers[-1]] = list(trained.names.devices)
    if len(tiers) > 2 and len(trained.names.edges) == run.sizes[tiers[-2]]:
        names_by_tier[tiers[-2]] = list(trained.names.edges)
    out["names"] = names_by_tier
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


def _population(shards: Shards) -> dict[str, Any]:
    """The number of examples of every device, by part and by label.

    Where labels are per position, the positions with a label are counted.
    """
    out: dict[str, Any] = {}
    for part in PARTS:
        out[part] = shards.target_counts(part).tolist()
    classes = shards.classes
    if classes is not None and shards.devices * classes <= _LABELS:
        total = torch.zeros(shards.devices * classes, dtype=torch.int64)
        for piece in PARTS:
            examples = shards.part(piece)
            owner = torch.repeat_interleave(torch.arange(shards.devices), examples.counts())
            labels = shards.y[examples.index].long()
            if shards.by_position:
                owner = owner[:, None].expand_as(labels)[labels != NO_TARGET]
                labels = labels[labels != NO_TARGET]
            cells = owner * classes + labels
            total += torch.bincount(cells, minlength=len(total))
        out["labels"] = total.reshape(shards.devices, classes).tolist()
        out["classes"] = list(shards.names.classes) or list(map(str, range(classes)))
    return out
