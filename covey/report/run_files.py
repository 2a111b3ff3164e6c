"""The files of a run folder that a report reads: of a run that has ended, or that is being written.

What was read once is not read again: files that only grow are read from where they ended before.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from covey.errors import CheckpointError, ConfigError, CoveyError
from covey.runs.scores import node_round, record
from covey.runs.scores.node_round import NodeRound
from covey.runs.scores.record import Round
from covey.runs.selection import Protocol

T = TypeVar("T")
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError)
"""Errors that a damaged file leads to."""


@contextmanager
def intact(what: str) -> Iterator[None]:
    """A CheckpointError where what is read here turns out to be damaged: `what` is."""
    try:
        yield
    except CoveyError:
        raise
    except DAMAGE as error:
        raise CheckpointError(f"{what} is damaged: {error!r}.") from error


class GrowingFile(Generic[T]):
    """The lines of a file to which others append; a last line without its end is not read yet."""

    def __init__(self, path: Path, parse: Callable[[str], T]) -> None:
        self.path = path
        self._parse = parse
        self._lines: list[T] = []
        self._identity: tuple[int, int] | None = None
        self._length = 0

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
                self._lines.append(self._parse(line.decode()))
            except DAMAGE as error:
                damage = f"{self.path} is damaged in line {len(self._lines) + 1}"
                raise CheckpointError(f"{damage}: {error!r}.") from error
        self._length += end
        return list(self._lines)


@dataclass(frozen=True, eq=False)
class SeedRecord:
    """What one seed of a run has written so far."""

    seed: int
    folder: Path
    described: Mapping[str, Any]
    """nodes.json."""
    history: list[Round]
    nodes: dict[int, NodeRound]
    """Figures of nodes by round, of rounds in the history."""
    totals: Mapping[str, Mapping[str, list[float]]]
    """The sums of every node, by tier and name; empty where they are not known."""
    totals_rounds: int


class SeedFiles:
    """The files of one seed."""

    def __init__(self, folder: Path, seed: int, run: Path) -> None:
        """The files in a folder; `run` is that of all seeds."""
        self.folder = folder
        self.seed = seed
        self._run = run
        self._history = GrowingFile(
            folder / "metrics.jsonl", lambda line: record.read(json.loads(line))
        )
        self._nodes = GrowingFile(folder / "nodes.jsonl", node_round.read)

    def read(self) -> SeedRecord | None:
        """What there is so far; None where the seed has not begun."""
        described = _json(self.folder / "nodes.json")
        # A run writes its history first: read last, it has every round of the other files.
        totals = _json(self.folder / "totals.json")
        nodes = self._nodes.read()
        history = self._history.read()
        if described is None:
            if history:
                raise ConfigError(
                    f"{self.folder} has no nodes.json; "
                    f"repeat the run: covey run {self._run / 'config.toml'}"
                )
            return None
        if [round.round for round in history] != list(range(len(history))):
            raise CheckpointError(f"{self._history.path} is damaged: it lacks rounds.")
        known = {figures.round: figures for figures in nodes}
        by_round = {number: known[number] for number in sorted(known) if number < len(history)}
        rounds = 0
        sums: Mapping[str, Any] = {}
        if totals is not None and totals.get("rounds", 0) <= len(history):
            rounds = int(totals["rounds"])
            sums = totals["totals"]
        return SeedRecord(self.seed, self.folder, described, history, by_round, sums, rounds)


class RunFiles:
    """The files of one run: its experiment, its seeds, and the algorithms beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "config.toml"
        try:
            self.settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConfigError(
                f"{folder} is not a run folder: it has no config.toml; "
                "give the folder that `covey run` named."
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"cannot read {path}: {error}.") from error
        try:
            first = int(self.settings["seed"])
            count = int(self.settings["seeds"])
            self.rounds = int(self.settings["rounds"])
            self.protocol: Protocol = self.settings["protocol"]
        except DAMAGE as error:
            raise ConfigError(f"{path} is not that of a run: {error!r}.") from error
        self.seeds = []
        for seed in range(first, first + count):
            place = folder
            if count > 1:
                place = folder / f"seed-{seed}"
            self.seeds.append(SeedFiles(place, seed, folder))

    def read(self) -> list[SeedRecord]:
        """The seeds that have begun."""
        records = [files.read() for files in self.seeds]
        return [record for record in records if record is not None]


def _json(path: Path) -> dict[str, Any] | None:
    """The table in a JSON file; None where there is no file."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, *DAMAGE) as error:
        raise CheckpointError(f"cannot read {path}: {error}.") from error
    if not isinstance(facts, dict):
        raise CheckpointError(f"{path} is damaged: it holds no table.")
    return facts
