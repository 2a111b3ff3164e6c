"""All rounds of every seed of one algorithm.

Seeds that stand at the same round go on in one go, as many as memory allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.errors import DivergedError
from covey.files.assemble import Experiments, play_groups, side_by_side
from covey.files.config import Config
from covey.folder import recover
from covey.folder.recording import Recorder
from covey.folder.show import LINES, ProgressBar
from covey.folder.signals import StopSignal
from covey.folder.terminal import Console
from covey.folder.trackers import Maker, Past, Tracked
from covey.runs.run import Round, Runs
from covey.runs.saved.run_folder import RunFolder
from covey.runs.seed import Seed
from covey.runs.stopping import early_stop
from covey.runs.tracker import RunTracker, play

Histories = list[list[Round]]


Built = dict[tuple[int, ...], Runs]
"""Runs by their seeds that are ready to go; each is taken out before its first round."""


def first_runs(config: Config, experiments: Experiments) -> Built:
    """The runs of the first seeds that go in one go, built before the folder of a command is made.

    Whatever is wrong with them is said by then.
    """
    each = [experiments.of(config, seed) for seed in config.every_seed]
    group, *_ = side_by_side(config.every_seed, each, experiments.runtime)
    runs = Runs(each[: len(group)], runtime=experiments.runtime, store=config.store)
    return {tuple(group): runs}


@dataclass(eq=False)
class Seeds:
    """The seeds of one algorithm, each in a folder of its own."""

    config: Config
    folders: dict[int, RunFolder]
    experiments: Experiments
    console: Console
    stop: StopSignal
    built: Built = field(default_factory=dict)
    printed: set[str] = field(default_factory=set)  # lines that need not be printed again
    lines: int = LINES  # of progress without a terminal
    makers: Mapping[str, Maker] = field(default_factory=dict)  # of trackers, by name

    def run(self) -> tuple[Histories, dict[str, Any]]:
        """The history of every seed, and how training was computed."""
        done: dict[int, list[Round]] = {}
        engines: list[dict[str, Any]] = [{}]
        diverged: dict[int, DivergedError] = {}
        for seeds in self._waiting(done).values():
            each = [self.experiments.of(self.config, seed) for seed in seeds]
            groups = side_by_side(seeds, each, self.experiments.runtime)
            diverged |= play_groups(groups, lambda group: engines.append(self._run(group, done)))
        for seed, reason in diverged.items():
            if self.config.seeds == 1:
                raise reason
            raise DivergedError(f"seed {seed}: {reason}") from reason
        return [done[seed] for seed in self.folders], engines[-1]

    def _waiting(self, done: dict[int, list[Round]]) -> dict[int, list[int]]:
        """The seeds that have rounds left, by the round they stand at.

        The histories of the others are put into `done`.
        """
        waiting: dict[int, list[int]] = {}
        for seed, folder in self.folders.items():
            folder.make()
            experiment = self.experiments.of(self.config, seed)
            if not recover.finished(folder, experiment):
                waiting.setdefault(recover.rounds_run(folder), []).append(seed)
                continue
            done[seed] = recover.history(folder, experiment)
            early = recover.stopped_early(folder, experiment)
            if self.makers:
                with self._tracked(seed, Past(done[seed])):
                    pass
            self._note(f"{self._label([seed])}{self._ran_before(len(done[seed]), early)}")
        return waiting

    def _ran_before(self, rounds: int, early: bool) -> str:
        """That a seed has no rounds left, and how to give it some."""
        more = ""
        if early:
            stop = early_stop(self.config.stop)
            if self.config.seeds == 1 and stop is not None:
                more = f"; to go on, add stop.patience={stop.patience + 5}"
            return f"stopped early after round {rounds} of {self.config.rounds} before{more}"
        if self.config.seeds == 1 and self.config.schedule() is None:
            more = f"; for more, add rounds={self.config.rounds + 10}"
        return f"all {self.config.rounds} rounds were run before{more}"

    def _run(self, seeds: list[int], done: dict[int, list[Round]]) -> dict[str, Any]:
        """The rounds that some seeds have left, in one go; their histories into `done`."""
        runs = self._runs(seeds)
        label = self._label(seeds)
        self._print_once(f"engine: {runs.engine['sentence']}")
        play(
            runs,
            self._trackers(runs, seeds, label),
            every=self.config.checkpoint_every,
            together=self.experiments.ranks.together,
        )
        if runs.stopped is not None:
            self._note(f"{label}{runs.stopped}")
        for seed, run in zip(seeds, runs.seeds, strict=True):
            done[seed] = list(run.history)
        return runs.engine

    def _runs(self, seeds: list[int]) -> Runs:
        """The runs of some seeds: those that were built before the folder, or from checkpoints."""
        if tuple(seeds) in self.built:
            return self.built.pop(tuple(seeds))
        each = [self.experiments.of(self.config, seed) for seed in seeds]
        saved = [self.folders[seed].checkpoint for seed in seeds]
        resume = [path if path.exists() else None for path in saved]
        runtime = self.experiments.runtime
        return Runs(each, resume=resume, runtime=runtime, store=self.config.store)

    def _trackers(self, runs: Runs, seeds: list[int], label: str) -> list[RunTracker]:
        """Who follows these seeds."""
        out: list[RunTracker] = [self.stop]
        for place, (seed, run) in enumerate(zip(seeds, runs.seeds, strict=True)):
            folder = self.folders[seed]
            if self.makers:
                out.append(self._tracked(seed, run, place))
            method = self.config.method()
            out.append(Recorder(folder, run, method, place=place, say=self._print_once))
        progress = ProgressBar(
            self.console,
            self.config.rounds,
            runs.round,
            label=label,
            hidden=() if runs.experiment.algorithm.learns_global else ("global",),
            lines=self.lines,
            notes=runs.notes,
            say=self._print_once,
        )
        return [*out, progress]

    def _tracked(self, seed: int, run: Seed | Past, place: int = 0) -> Tracked:
        """The trackers of --log for one seed."""
        config = self.config.resolved() | {"seed": seed}
        return Tracked(self.makers, self.folders[seed], self.console, config, run, place)

    def _label(self, seeds: list[int]) -> str:
        if self.config.seeds == 1:
            return ""
        if len(seeds) == 1:
            return f"seed {seeds[0]}  "
        return f"seeds {seeds[0]}-{seeds[-1]}  "

    def _note(self, text: str) -> None:
        self.console.print(f"note: {text}")

    def _print_once(self, line: str) -> None:
        if line not in self.printed:
            self.printed.add(line)
            self.console.print(line)
