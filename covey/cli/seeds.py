"""All rounds of every seed of one algorithm.

Seeds that stand at the same round go on in one go, as many as memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import covey
from covey.cli import recover
from covey.cli.assemble import Experiments, side_by_side
from covey.cli.config import Config
from covey.cli.data_form import DataForm
from covey.cli.folder import Folder
from covey.cli.recording import DEVICES, Recorder
from covey.cli.show import LINES, progress
from covey.cli.stop import Stop
from covey.cli.terminal import Console
from covey.cli.tracked import Tracked
from covey.cli.trackers import Maker
from covey.errors import CheckpointError, CoveyError, DivergedError, RankError
from covey.report.summary import summarise
from covey.runs import confusion
from covey.runs.devices import to_csv
from covey.runs.run import Round, Runs
from covey.runs.seed import Seed
from covey.runs.tracker import to_csv as rounds_csv

Histories = list[list[Round]]


def folders_of(config: Config, folder: Folder) -> dict[int, Folder]:
    """The folder of every seed."""
    seeds = range(config.seed, config.seed + config.seeds)
    return {seed: folder if config.seeds == 1 else folder.seed(seed) for seed in seeds}


@dataclass(eq=False)
class Start:
    """The first runs of a command, built before its folder is made.

    Whatever is wrong with them is said by then.

    They are handed out once, so that nothing holds them after their last round.
    """

    groups: list[list[int]]
    first: Runs | None

    @staticmethod
    def of(config: Config, experiments: Experiments) -> Start:
        """The runs of the first seeds that go in one go."""
        seeds = list(range(config.seed, config.seed + config.seeds))
        each = [experiments.of(config, seed) for seed in seeds]
        groups = side_by_side(seeds, each, experiments.runtime)
        return Start(
            groups,
            covey.runs(each[: len(groups[0])], runtime=experiments.runtime, store=config.store),
        )

    def take(self, seeds: list[int]) -> Runs | None:
        """The runs of these seeds, if they are the first and were not taken before."""
        if self.groups[0] != seeds:
            return None
        runs = self.first
        self.first = None
        return runs


@dataclass(eq=False)
class Seeds:
    """The seeds of one algorithm, each in a folder of its own."""

    config: Config
    folders: dict[int, Folder]
    experiments: Experiments
    console: Console
    stop: Stop
    start: Start | None = None
    printed: set[str] = field(default_factory=set)  # lines that need not be printed again
    lines: int = LINES  # of progress without a terminal
    makers: Mapping[str, Maker] = field(default_factory=dict)  # of trackers, by name
    stopped: set[int] = field(default_factory=set)  # seeds that stopped early

    def run(self) -> tuple[Histories, dict[str, Any]]:
        """The history of every seed, and how training was computed."""
        done: dict[int, list[Round]] = {}
        engine: dict[str, Any] = {}
        diverged: dict[int, DivergedError] = {}
        for seeds in self._waiting(done).values():
            groups = self._groups(seeds)
            while groups:
                group = groups.pop(0)
                try:
                    engine = self._run(group, done)
                except DivergedError as error:
                    if len(group) == 1:
                        diverged[group[0]] = error
                    else:  # the others need not stop for the one that diverged
                        groups = [[seed] for seed in group] + groups
        for seed, reason in diverged.items():
            if self.config.seeds == 1:
                raise reason
            raise DivergedError(f"seed {seed}: {reason}") from reason
        return [done[seed] for seed in self.folders], engine

    def _waiting(self, done: dict[int, list[Round]]) -> dict[int, list[int]]:
        """The seeds that have rounds left, by the round they stand at.

        The histories of the others are put into `done`.
        """
        waiting: dict[int, list[int]] = {}
        for seed, folder in self.folders.items():
            folder.make()
            experiment = self.experiments.of(self.config, seed)
            if recover.finished(folder, experiment):
                done[seed] = recover.history(folder, experiment)
                if recover.stopped_early(folder, experiment):
                    self.stopped.add(seed)
                self._track_again(seed, done[seed])
                self._note(f"{self._label([seed])}{self._ran_before(seed, len(done[seed]))}")
            else:
                waiting.setdefault(recover.rounds_run(folder), []).append(seed)
        return waiting

    def _ran_before(self, seed: int, rounds: int) -> str:
        """That a seed has no rounds left, and how to give it some."""
        more = ""
        if seed in self.stopped:
            if self.config.seeds == 1 and self.config.stop is not None:
                more = f"; to go on, add stop.patience={self.config.stop['patience'] + 5}"
            return f"stopped early after round {rounds} of {self.config.rounds} before{more}"
        if self.config.seeds == 1 and self.config.schedule() is None:
            more = f"; for more, add rounds={self.config.rounds + 10}"
        return f"all {self.config.rounds} rounds were run before{more}"

    def _groups(self, seeds: list[int]) -> list[list[int]]:
        if self.start is not None:
            return list(self.start.groups)
        each = [self.experiments.of(self.config, seed) for seed in seeds]
        return side_by_side(seeds, each, self.experiments.runtime)

    def _run(self, seeds: list[int], done: dict[int, list[Round]]) -> dict[str, Any]:
        """The rounds that some seeds have left, in one go; their histories into `done`."""
        folders = [self.folders[seed] for seed in seeds]
        runs = self._build(seeds, folders)
        self._print_once(f"engine: {runs.engine['sentence']}")
        for note in runs.notes:
            self._print_once(f"note: {note}")
        recorders = [Recorder(folder) for folder in folders]
        for run, recorder in zip(runs.seeds, recorders, strict=True):
            begin(run, recorder, self.config)
        with self._tracking(seeds, lambda: [run.history for run in runs.seeds]) as tracked:
            self._rounds(runs, seeds, recorders, tracked)
            for name in _save(runs, recorders):
                self._print_once(f"note: {_left_out(name)}")
            self._note_devices(runs)
            if runs.stopped is not None:
                self.stopped.update(seeds)
                self._note(f"{self._label(seeds)}{runs.stopped}")
        done |= {seed: list(run.history) for seed, run in zip(seeds, runs.seeds, strict=True)}
        return runs.engine

    def _note_devices(self, runs: Runs) -> None:
        """Say that the table of devices is not of all, where so many were scored."""
        scored = runs.seeds[0].sizes[runs.runtime.tree.tiers[-1]]
        if runs.experiment.score_sample is not None:
            scored = min(scored, runs.experiment.score_sample)
        if scored > DEVICES:
            self._print_once(f"note: devices.csv has {DEVICES:,} of {scored:,} devices at most.")

    def _build(self, seeds: list[int], folders: list[Folder]) -> Runs:
        if self.start is not None and (runs := self.start.take(seeds)):
            return runs
        saved = [folder.checkpoint if folder.checkpoint.exists() else None for folder in folders]
        each = [self.experiments.of(self.config, seed) for seed in seeds]
        runtime = self.experiments.runtime
        return covey.runs(each, resume=saved, runtime=runtime, store=self.config.store)

    @contextmanager
    def _tracking(
        self, seeds: Sequence[int], histories: Callable[[], Sequence[Sequence[Round]]]
    ) -> Iterator[list[Tracked]]:
        """The trackers of some seeds, told of the rounds so far and, at last, of the end."""
        tracked = []
        for seed, history in zip(seeds, histories(), strict=True):
            tracker = Tracked(self.makers, self.folders[seed].path, self.console)
            tracker.start(self.config.resolved() | {"seed": seed}, history)
            tracked.append(tracker)
        try:
            yield tracked
        finally:
            for seed, tracker, history in zip(seeds, tracked, histories(), strict=True):
                tracker.finish(self._ended(seed, history))

    def _track_again(self, seed: int, history: Sequence[Round]) -> None:
        """Tell trackers of a seed that ended before: of the rounds that they lack."""
        with self._tracking([seed], lambda: [history]):
            pass

    def _ended(self, seed: int, history: Sequence[Round]) -> dict[str, Any]:
        """What a seed has come to, for its trackers."""
        rounds = len(history)
        finished = rounds >= self.config.rounds or seed in self.stopped
        out = {"finished": finished, "rounds": rounds}
        if self.makers and any(record.models for record in history):
            out |= summarise([list(history)], self.config.protocol).as_dict()
        return out

    def _rounds(
        self,
        runs: Runs,
        seeds: list[int],
        recorders: list[Recorder],
        tracked: Sequence[Tracked],
    ) -> None:
        """Every round, shown and written down.

        Whatever stops it, but for a disk that fails, the state is saved.
        """
        hidden = () if runs.experiment.algorithm.learns_global else ("global",)
        rounds = self.config.rounds
        label = self._label(seeds)
        with progress(
            self.console,
            label=label,
            rounds=rounds,
            done=runs.round,
            hidden=hidden,
            lines=self.lines,
        ) as show:
            try:
                for records in runs:
                    with self.experiments.ranks.together():
                        self.stop.check()
                        show(records)
                        for note in runs.notes:
                            self._print_once(f"note: {note}")
                        parts = zip(runs.seeds, records, recorders, tracked, strict=True)
                        for run, record, recorder, trackers in parts:
                            recorder.folder.append(record)
                            recorder.add(run)
                            trackers.log(record)
                        self._checkpoint(runs, recorders)
            except (KeyboardInterrupt, SystemExit, CoveyError) as error:
                # SystemExit: nobody reads the output any more.
                if not isinstance(error, CheckpointError | RankError):
                    _save(runs, recorders)
                raise

    def _checkpoint(self, runs: Runs, recorders: list[Recorder]) -> None:
        """Save every so many rounds; the last is saved with everything else."""
        due = runs.round % self.config.checkpoint_every == 0
        if due and not runs.done:
            for run, recorder in zip(runs.seeds, recorders, strict=True):
                recorder.sync(run)
                run.save(recorder.folder.checkpoint, wait=False)

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


def begin(run: Seed, recorder: Recorder, config: Config) -> None:
    """Write what is known before the first round that is left."""
    recorder.folder.metrics(run.history)
    recorder.folder.write_json("data.json", DataForm.of(run.trained).as_dict())
    recorder.begin(run, config.method())


def _left_out(name: str) -> str:
    """That a model has no file of its own, and where it is."""
    return (
        f"the rows of {name!r} are in checkpoint.rows alone, because they are large; "
        "covey predict and covey export read single nodes there."
    )


def _save(runs: Runs, recorders: list[Recorder]) -> list[str]:
    """Save every run; return the names of models that were not written apart."""
    left_out: list[str] = []
    for run, recorder in zip(runs.seeds, recorders, strict=True):
        left_out += save(run, recorder)
    return left_out


def save(run: Seed, recorder: Recorder) -> list[str]:
    """Save a run; the checkpoint comes last.

    One of the last round says that everything else is there; with an older one it is all redone.
    The names of models are returned that were not written apart.
    """
    left_out: list[str] = []
    folder = recorder.folder
    if run.done:
        left_out += folder.models(run)
        folder.write("devices.csv", to_csv(run.devices(DEVICES)))
        _write_confusion(folder, run)
    folder.metrics(run.history)
    folder.write("metrics.csv", rounds_csv(run.history))
    recorder.sync(run)
    run.save(folder.checkpoint)
    return left_out


def _write_confusion(folder: Folder, run: Seed) -> None:
    """Write the confusion matrices, where the experiment asks for them."""
    if "confusion" not in run.experiment.metrics:
        return
    data = run.experiment.data
    classes = list(data.names.classes) or [str(number) for number in range(data.classes or 0)]
    text = confusion.to_csv(run.history, classes, run.experiment.protocol)
    if text is not None:
        folder.write("confusion.csv", text)
