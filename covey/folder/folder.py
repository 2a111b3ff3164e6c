"""A run folder: the experiment, its records and its last state.

Every file is replaced whole or not at all, or only grows.

    config.toml                 the resolved experiment: `covey run config.toml` repeats it
    repeat.txt                  that line, and the one that continues this run
    environment.json            versions, machine, threads
    status.json                 whether the run is under way, and how it ended
    metrics.jsonl               one line per round, everything in it
    metrics.csv                 one row per round, its figures; written when a run ends or stops
    trackers.json               how many rounds each tracker of --log has
    checkpoint.safetensors      everything needed to go on, bit for bit
    checkpoint.history.jsonl    the records of the rounds up to it
    checkpoint.part-R-of-N...   the rows of rank R, where N ranks wrote the checkpoint
    checkpoint.previous...      the checkpoint before it
    models/NAME.safetensors     the parameters of every node that keeps this model, in the round
                                that the table reports
    models/last/...             the same in the last round; rows in files of more than 256 MB
                                are in the checkpoint alone
    data.json                   the form of the data (classes, names, scaling), for new devices
    devices.csv                 how every device does with every model
    confusion.csv               examples by class and predicted class, where metrics has confusion
    nodes.json, nodes.jsonl, totals.json
                                figures of single nodes, for reports (covey/folder/recording.py)
    summary.json, plot.png      what it came to
    devices.png                 who gains and who loses by a model of its own
    report.html                 all of it as one page, for a browser

With several seeds each has a folder of its own, seed-0, seed-1, ..., beside the summary and the
picture of all.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch
from safetensors import SafetensorError

import covey
from covey import atomic
from covey.errors import CheckpointError, ConfigError
from covey.runs.run import Round, Seed, Which
from covey.runs.saved import snapshot, status
from covey.runs.saved.lock import locked

NODE_FACTS = "node.json"
"""The file of a deployed node's folder that says which node it is, and the rounds of its models."""
MODEL = 2**28
"""Bytes of a model's rows in files; with more, no copy of them is written into models/."""
WHERE: dict[Which, str] = {"chosen": "models", "last": "models/last"}
_LEFT = re.compile(r"\.lock|\.(config\.toml|grid\.json)\.\d+\.part")
"""What a command that was killed at its very start leaves in a folder."""


@dataclass(eq=False)
class Folder:
    """One folder of one seed, or the folder of all of them.

    Of several processes that run one experiment, rank 0 alone writes.
    """

    path: Path
    writes: bool = field(default=True, kw_only=True)

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def seed(self, seed: int) -> Folder:
        """The folder of one seed of several."""
        return Folder(self.path / f"seed-{seed}", writes=self.writes)

    def beside(self, name: str) -> Folder:
        """The folder of another algorithm that runs beside this one."""
        return Folder(self.path / "compare" / name, writes=self.writes)

    def make(self) -> None:
        """The folder itself, if it is not there."""
        if self.writes:
            with refused(self.path):
                self.path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def status(self) -> Iterator[None]:
        """Write down that a run is under way and, in the end, how it ended."""
        began = status.written(self.path).began()
        self.write_json(status.FILE, began.as_dict())
        try:
            yield
        except BaseException as error:
            with suppress(CheckpointError):  # the error itself says more than this one
                self.write_json(status.FILE, began.failed(error).as_dict())
            raise
        self.write_json(status.FILE, began.finished().as_dict())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time writes here; the lock goes with the process, however it ends."""
        if not self.writes:
            yield
            return
        busy = f"another run is writing to {self.path}; wait for it, or give another folder"
        with locked(self.path / status.LOCK, busy):
            yield

    def sweep(self) -> None:
        """Remove what a killed run left half-written; only who holds the lock may."""
        if not self.writes:
            return
        with refused(self.path):
            for part in self.path.glob("**/.*.part"):
                part.unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """Replace a file in one step."""
        if not self.writes:
            return
        with refused(self.path / name):
            atomic.write(self.path / name, text)

    def write_json(self, name: str, value: Any) -> None:
        """Replace a JSON file in one step."""
        self.write(name, json.dumps(value, indent=1) + "\n")

    def metrics(self, history: Iterable[Round]) -> None:
        """Replace metrics.jsonl by these rounds.

        Rounds that a crash wrote after the last checkpoint are run again.
        """
        self.write(
            "metrics.jsonl",
            "".join(json.dumps(record.as_dict()) + "\n" for record in history),
        )

    def append(self, record: Round) -> None:
        """One more line of metrics.jsonl."""
        if not self.writes:
            return
        with (
            refused(self.path / "metrics.jsonl"),
            open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file,
        ):
            file.write(json.dumps(record.as_dict()) + "\n")

    def models(self, run: Seed) -> list[str]:
        """Write every kept model in its chosen round, and below `last` in the last round.

        The format is that of covey/runs/saved/snapshot.py. The names of those are returned whose
        rows stay in the checkpoint alone, because they are too many.
        """
        algorithm = type(run.experiment.algorithm).__name__
        space = run.runtime.task.space
        left_out = []
        for name in run.models(scored=False):
            if run.stored_bytes(name) > MODEL and not space.norms:
                left_out.append(name)
                continue
            for which, subfolder in WHERE.items():
                kept = run.snapshot(name, which)  # all ranks together
                if self.writes:
                    path = self.path / subfolder / f"{name}.safetensors"
                    snapshot.write(path, kept, space, algorithm)
        return left_out


def create(path: Path) -> Folder:
    """A new run folder.

    A folder that holds anything is refused, except what a run killed at its very start leaves.
    """
    with refused(path):
        path.mkdir(parents=True, exist_ok=True)
        if any(_LEFT.fullmatch(entry.name) is None for entry in path.iterdir()):
            raise ConfigError(
                f"{path} is not empty; give another --out, or continue it with --resume {path}."
            )
    return Folder(path)


def unused(name: str, algorithm: str) -> Path:
    """runs/NAME-ALGORITHM-1, or the next number that is free.

    The folder is runs/NAME-1 where the name says the algorithm.
    """
    word = re.sub(r"[^A-Za-z0-9_.-]", "-", algorithm)
    says = not name or word.lower() in re.split(r"[-_.]", name.lower())
    base = (name or word) if says else f"{name}-{word}"
    number = 1
    while (path := Path("runs") / f"{base}-{number}").exists():
        number += 1
    return path


def environment(command: list[str]) -> dict[str, Any]:
    """What a run ran on."""
    cuda = None
    if torch.cuda.is_available():
        cuda = torch.cuda.get_device_name()
    packages = (covey, torch, numpy, safetensors)
    versions = {package.__name__: package.__version__ for package in packages}
    versions["python"] = platform.python_version()
    machine = {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": cuda,
    }
    return {
        "versions": versions,
        "machine": machine,
        "command": command,
        "executable": sys.executable,
    }


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Disk and permission errors as one kind, with the path and what remains."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write {path}: {error}; the state saved before is intact."
        ) from error
