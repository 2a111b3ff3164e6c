"""The files of a run folder that a report reads: of a run that has ended, or that is being written.

What was read once is not read again: files that only grow are read from where they ended before.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.errors import CheckpointError, ConfigError, CoveyError
from covey.runs.saved.run_folder import DAMAGE, GrowingFile, RunFolder
from covey.runs.scores import node_round
from covey.runs.scores.node_round import NodeRound
from covey.runs.scores.record import Round
from covey.runs.selection import Protocol


@contextmanager
def intact(what: str) -> Iterator[None]:
    """A CheckpointError where what is read here turns out to be damaged: `what` is."""
    try:
        yield
    except CoveyError:
        raise
    except DAMAGE as error:
        raise CheckpointError(f"{what} is damaged: {error!r}.") from error


@dataclass(frozen=True, eq=False)
class SeedRecord:
    """What one seed of a run has written so far."""

    seed: int
    folder: Path
    described: Mapping[str, Any]
    """The nodes, as `RunFolder.described` has them."""
    history: list[Round]
    nodes: dict[int, NodeRound]
    """Figures of nodes by round, of rounds in the history."""
    totals: Mapping[str, Mapping[str, list[float]]]
    """The sums of every node, by tier and name; empty where they are not known."""
    totals_rounds: int


class SeedFiles:
    """The files of one seed."""

    def __init__(self, folder: RunFolder, seed: int, run: RunFolder) -> None:
        """The files in a folder; `run` is that of all seeds."""
        self.folder = folder
        self.seed = seed
        self._run = run
        self._history = folder.growing_records()
        self._nodes = GrowingFile(folder.nodes, node_round.read)

    def read(self) -> SeedRecord | None:
        """What there is so far; None where the seed has not begun."""
        described = self.folder.read_json(self.folder.described)
        # A run writes its history first: read last, it has every round of the other files.
        totals = self.folder.read_json(self.folder.totals)
        nodes = self._nodes.read()
        history = self._history.read()
        if described is None:
            if history:
                raise ConfigError(
                    f"{self.folder.path} has no {self.folder.described.name}; "
                    f"repeat the run: covey run {self._run.config}"
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
        return SeedRecord(self.seed, self.folder.path, described, history, by_round, sums, rounds)


class RunFiles:
    """The files of one run: its experiment, its seeds, and the algorithms beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run = RunFolder.found(folder)
        path = run.config
        try:
            self.settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"cannot read {path}: {error}.") from error
        try:
            first = int(self.settings["seed"])
            seeds = range(first, first + int(self.settings["seeds"]))
            self.rounds = int(self.settings["rounds"])
            self.protocol: Protocol = self.settings["protocol"]
        except DAMAGE as error:
            raise ConfigError(f"{path} is not that of a run: {error!r}.") from error
        self.seeds = [SeedFiles(place, seed, run) for seed, place in run.of_seeds(seeds).items()]

    def read(self) -> list[SeedRecord]:
        """The seeds that have begun."""
        records = [files.read() for files in self.seeds]
        return [record for record in records if record is not None]
