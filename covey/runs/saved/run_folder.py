"""A run folder: the files it has, and the one way in which they are read and written.

Every file is replaced whole or not at all, or only grows. With several seeds each has a folder of
its own, seed-0, seed-1, ..., beside the summary and the picture of all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from covey import atomic
from covey.atomic import refused
from covey.errors import CheckpointError, ConfigError
from covey.runs.saved import checkpoint
from covey.runs.saved.lock import locked
from covey.runs.scores import record
from covey.runs.scores.record import Round

if TYPE_CHECKING:
    from covey.runs.models import Which

T = TypeVar("T")
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)
"""Errors that a damaged file leads to."""


@dataclass(frozen=True)
class FileName:
    """A file of a folder, as an attribute: its path."""

    name: str

    def __get__(self, folder: Folder, kind: object) -> Path:
        return folder.path / self.name


@dataclass(eq=False)
class Folder:
    """A folder that one process at a time writes to.

    Of several processes that run one experiment, rank 0 alone `writes`.
    """

    path: Path
    writes: bool = field(default=True, kw_only=True)

    lock_file = FileName(".lock")

    def make(self) -> None:
        """The folder itself, if it is not there."""
        if self.writes:
            with refused(self.path):
                self.path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process at a time writes here; the lock goes with the process, however it ends."""
        if not self.writes:
            yield
            return
        busy = f"another run is writing to {self.path}; wait for it, or give another folder"
        with locked(self.lock_file, busy):
            yield

    def sweep(self) -> None:
        """Remove what a killed run left half-written; only who holds the lock may."""
        if not self.writes:
            return
        with refused(self.path):
            for entry in self.path.rglob(".*"):
                if atomic.LEFT.fullmatch(entry.name):
                    entry.unlink(missing_ok=True)

    def write(self, file: str | Path, text: str) -> None:
        """Replace a file in one step; it is given by its name in the folder, or as a path."""
        if not self.writes:
            return
        path = file if isinstance(file, Path) else self.path / file
        with refused(path):
            atomic.write(path, text)

    def write_json(self, file: str | Path, value: Any) -> None:
        """Replace a JSON file in one step."""
        self.write(file, json.dumps(value, indent=1) + "\n")

    def append(self, file: Path, line: str) -> None:
        """One more line of a file that only grows."""
        if not self.writes:
            return
        with refused(file), open(file, "a", encoding="utf-8") as lines:
            lines.write(line + "\n")


class RunFolder(Folder):
    """The folder of one seed, or that of all seeds; of a deployed node, what it has of them."""

    config = FileName("config.toml")
    """The resolved experiment: `covey run config.toml` repeats it."""
    mark = FileName("made_here.txt")
    """That this user made the folder, whose code may therefore run (covey/folder/own_code.py)."""
    repeat = FileName("repeat.txt")
    """The command that repeats the run, and the one that continues it."""
    environment = FileName("environment.json")
    """Versions, machine, threads."""
    status = FileName("status.json")
    """Whether the run is under way, and how it ended (covey/runs/saved/status.py)."""
    metrics = FileName("metrics.jsonl")
    """One line per round, everything in it."""
    metrics_csv = FileName("metrics.csv")
    """One row per round, its figures; written when a run ends or stops."""
    trackers = FileName("trackers.json")
    """How many rounds each tracker of --log has."""
    checkpoint = FileName("checkpoint.safetensors")
    """Everything needed to go on, bit for bit. Beside it lie checkpoint.history.jsonl, the records
    of the rounds up to it; checkpoint.part-R-of-N..., the rows of rank R, where N ranks wrote it;
    and checkpoint.previous..., the checkpoint before it.
    """
    damaged = FileName("checkpoint.damaged.safetensors")
    """A damaged checkpoint, once the one before it has taken its place."""
    models = FileName("models")
    """The parameters of every node that keeps a model, in the round that the table reports."""
    last_models = FileName("models/last")
    """The same in the last round; rows in files of more than 256 MB are in the checkpoint alone."""
    data = FileName("data.json")
    """The form of the data (classes, names, scaling), for new devices."""
    devices = FileName("devices.csv")
    """How every device does with every model."""
    confusion = FileName("confusion.csv")
    """Examples by class and predicted class, where `metrics` has confusion."""
    described = FileName("nodes.json")
    """Written when the run starts: the tree, names, examples and labels of every device."""
    nodes = FileName("nodes.jsonl")
    """A line per scored round: the sums of every device (covey/runs/scores/node_round.py)."""
    totals = FileName("totals.json")
    """Written with each checkpoint: the bytes of every node in all rounds so far."""
    summary = FileName("summary.json")
    """What it came to."""
    plot = FileName("plot.png")
    devices_plot = FileName("devices.png")
    """Who gains and who loses by a model of its own."""
    compare_plot = FileName("compare.png")
    """The run and the algorithms beside it."""
    report = FileName("report.html")
    """All of it as one page, for a browser."""
    compared = FileName("compare")
    """The folders of the algorithms that ran beside this one."""
    export = FileName("export")
    """Models for use without covey (`covey export`)."""
    missing = FileName("replay.json")
    """Of a deployed run: who was late or absent in which ask, and when the tree changed."""
    node = FileName("node.json")
    """Of a deployed node: which node it is, and the rounds of its models."""
    own_data = FileName("own_data.json")
    """Of a deployed device: its own file, where it has one."""

    @staticmethod
    def found(path: Path) -> RunFolder:
        """The run folder that a user names; an error where it is none."""
        folder = RunFolder(path)
        if not folder.config.exists():
            raise ConfigError(
                f"{path} is not a run folder: it has no {folder.config.name}; "
                "give the folder that `covey run` named."
            )
        return folder

    @staticmethod
    def new(path: Path) -> RunFolder:
        """A new run folder.

        A folder that holds anything is refused, except what a run killed at its start leaves.
        """
        folder = RunFolder(path)
        with refused(path):
            path.mkdir(parents=True, exist_ok=True)
            entries = [entry for entry in path.iterdir() if entry != folder.lock_file]
            if not all(atomic.LEFT.fullmatch(entry.name) for entry in entries):
                raise ConfigError(
                    f"{path} is not empty; give another --out, or continue it with --resume {path}."
                )
        return folder

    @staticmethod
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

    @staticmethod
    def inside(path: Path) -> list[RunFolder]:
        """The run folders right in a folder, by name."""
        runs = [RunFolder(entry) for entry in sorted(path.glob("*"))]
        return [run for run in runs if run.config.exists()]

    def of_seeds(self, seeds: Sequence[int]) -> dict[int, RunFolder]:
        """The folder of every seed: this one itself where there is one seed alone."""
        if len(seeds) == 1:
            return {seeds[0]: self}
        return {seed: RunFolder(self.path / f"seed-{seed}", writes=self.writes) for seed in seeds}

    def seeds_there(self) -> dict[int, RunFolder]:
        """The folders of single seeds that there are."""
        suffixes = [path.name.removeprefix("seed-") for path in self.path.glob("seed-*")]
        seeds = [int(suffix) for suffix in suffixes if suffix.lstrip("-").isdigit()]
        return {seed: RunFolder(self.path / f"seed-{seed}") for seed in seeds}

    def beside(self, name: str) -> RunFolder:
        """The folder of another algorithm that runs beside this one."""
        return RunFolder(self.compared / name, writes=self.writes)

    @property
    def main(self) -> RunFolder:
        """The folder that this one is beside; itself where it is beside none."""
        main = RunFolder(self.path.parent.parent)
        is_beside = self.path.absolute().parent.name == main.compared.name
        return main if is_beside else self

    def model(self, name: str, which: Which = "chosen") -> Path:
        """The file of a model as it was in its chosen round, or in the last (saved/snapshot.py)."""
        folder = self.last_models if which == "last" else self.models
        return folder / f"{name}.safetensors"

    def saved_facts(self) -> dict[str, Any]:
        """The facts of the last checkpoint; none where there is none yet."""
        return checkpoint.read_facts(self.checkpoint) if self.checkpoint.exists() else {}

    def newcomer(self, device: str) -> Path:
        """The personal model of a device that was not in training (`covey personalize`)."""
        return self.path / f"personal-{device}.safetensors"

    def read_json(self, file: Path) -> dict[str, Any] | None:
        """The table in a JSON file; None where there is no file."""
        try:
            facts = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, *DAMAGE) as error:
            raise CheckpointError(f"cannot read {file}: {error}.") from error
        if not isinstance(facts, dict):
            raise CheckpointError(f"{file} is damaged: it holds no table.")
        return facts

    def growing_records(self) -> GrowingFile[Round]:
        """The records of the rounds, of a run that may be under way."""
        return GrowingFile(self.metrics, lambda line: record.read(json.loads(line)))


@dataclass(eq=False)
class GrowingFile(Generic[T]):
    """The lines of a file to which others append; a last line without its end is not read yet."""

    path: Path
    parse: Callable[[str], T]
    _lines: list[T] = field(default_factory=list)
    _identity: tuple[int, int] | None = None
    _length: int = 0

    def read(self) -> list[T]:
        """All lines so far; none where there is no file yet."""
        try:
            with open(self.path, "rb") as file:
                state = os.fstat(file.fileno())
                identity = (state.st_dev, state.st_ino)
                if identity != self._identity or state.st_size < self._length:
                    self._lines = []  # another file has taken its place
                    self._length = 0
                    self._identity = identity
                file.seek(self._length)
                data = file.read()
        except FileNotFoundError:
            self._identity = None
            return []
        except OSError as error:
            raise CheckpointError(f"cannot read {self.path}: {error}.") from error
        end = data.rfind(b"\n") + 1
        for line in data[:end].splitlines():
            try:
                self._lines.append(self.parse(line.decode()))
            except DAMAGE as error:
                damage = f"{self.path} is damaged in line {len(self._lines) + 1}"
                raise CheckpointError(f"{damage}: {error!r}.") from error
        self._length += end
        return list(self._lines)
