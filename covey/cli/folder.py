"""A run folder: what a run was, how it went and where it stands; every file is replaced whole or not at all.

    config.toml             the resolved experiment: `covey run config.toml` repeats it
    repeat.txt              that line, and the one that continues this run
    environment.json        versions, machine, threads
    metrics.jsonl           one line per round
    checkpoint.safetensors  everything needed to go on, bit for bit
    models/NAME.safetensors the parameters of every node that keeps this model
    data.json               the form of the data: classes, names, scaling; what a new device needs
    summary.json, plot.png  what it came to

With several seeds each has a folder of its own, seed-0, seed-1, ..., beside the summary and the picture of all.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

import covey
from covey.errors import CheckpointError, ConfigError
from covey.run import Round, Seed


class Folder:
    """One folder of one seed, or the folder of all of them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def seed(self, seed: int) -> Folder:
        """The folder of one seed of several."""
        return Folder(self.path / f"seed-{seed}")

    def make(self) -> None:
        """The folder itself, if it is not there."""
        _mkdir(self.path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time writes here; the lock goes with the process, however it ends."""
        with refused(self.path / ".lock"):
            file = open(self.path / ".lock", "w")  # noqa: SIM115
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(f"another run is writing to {self.path}; wait for it, or give another folder.") from error
            yield

    def sweep(self) -> None:
        """Remove what a killed run left half-written; only who holds the lock may."""
        with refused(self.path):
            for part in self.path.glob("**/.*.part"):
                part.unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """Replace a file in one step."""
        part = self.path / f".{name}.part"
        with refused(self.path / name):
            try:
                with open(part, "w") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, self.path / name)
            finally:
                part.unlink(missing_ok=True)

    def write_json(self, name: str, value: Any) -> None:
        """Replace a JSON file in one step."""
        self.write(name, json.dumps(value, indent=1) + "\n")

    def metrics(self, history: Iterable[Round]) -> None:
        """Replace metrics.jsonl by these rounds: what a crash wrote after the last checkpoint happens again."""
        self.write("metrics.jsonl", "".join(json.dumps(record.as_dict()) + "\n" for record in history))

    def append(self, record: Round) -> None:
        """One more line of metrics.jsonl."""
        with refused(self.path / "metrics.jsonl"), open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record.as_dict()) + "\n")

    def models(self, run: Seed) -> None:
        """Every kept model: its parameters stacked over the nodes that keep it, and their ids."""
        _mkdir(self.path / "models")
        above = run.experiment.algorithm.above()  # may be several models of one node, which are not scored
        for name in dict.fromkeys([*run.models(), above]):
            ids, rows = run.rows(name)
            rows = rows.cpu()
            tensors = {"ids": ids}
            for slot in run.simulator.task.space.slots:
                view = slot.view(rows)
                tensors[slot.name] = (view.transpose(1, 2) if slot.transposed else view).contiguous()
            part = self.path / "models" / f".{name}.part"
            with refused(part):
                save_file(tensors, part, metadata={"model": name, "algorithm": type(run.experiment.algorithm).__name__})
                os.replace(part, self.path / "models" / f"{name}.safetensors")


def create(path: Path) -> Folder:
    """A new run folder; one that holds anything already is refused, except what a run killed at its very start leaves."""
    _mkdir(path)
    with refused(path):
        if any(entry.name not in (".lock", ".config.toml.part") for entry in path.iterdir()):
            raise ConfigError(f"{path} is not empty; give another --out, or continue it with --resume {path}.")
    return Folder(path)


def unused(name: str) -> Path:
    """runs/NAME-1, or the next number that is free."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path


def environment(command: list[str]) -> dict[str, Any]:
    """What a run ran on."""
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {"covey": covey.__version__, "torch": torch.__version__, "numpy": numpy.__version__}
    versions |= {"safetensors": safetensors.__version__, "python": platform.python_version()}
    machine = {"system": platform.platform(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "cuda": cuda}
    return {"versions": versions, "machine": machine, "command": command, "executable": sys.executable}


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Disk and permission errors as one kind, with the path and what remains."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {path}: {error}; what was saved before is untouched.") from error


def _mkdir(path: Path) -> None:
    with refused(path):
        path.mkdir(parents=True, exist_ok=True)
