"""The run folder of the server of a deployed tree: that of `covey run`, and who was missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from covey import rooms
from covey.deployed.node.missed import Missing
from covey.deployed.node.server_run import ending, replay_facts
from covey.errors import CheckpointError
from covey.files.config import Config
from covey.folder.outcome import write_commands, write_outcome
from covey.folder.own_code import own_modules, write_config
from covey.folder.recording import Recorder
from covey.folder.signals import Interrupted
from covey.folder.terminal import Console
from covey.runs.run import Run
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.status import StatusFile
from covey.runs.scores.record import Round
from covey.runs.tracker import RunTracker

RUN = "run"
"""The folder below the server's state that holds its metrics and models."""


@dataclass(eq=False)
class ServerFolder(RunTracker):
    """The run folder of a server, which alone writes to it."""

    config: Config
    folder: RunFolder
    command: list[str]

    def __post_init__(self) -> None:
        self._status = StatusFile(self.folder)
        self._done = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """With the folder locked. At the end its status says how the run has ended, if it began.

        It is written in one step: a run that was stopped is never finished.
        """
        self.folder.make()
        with self.folder.lock():
            self.folder.sweep()
            try:
                yield
            except BaseException as error:
                self._status.end(error)
                raise
            stopped = Interrupted("its server was stopped")
            self._status.end(None if self._done else stopped)

    def of(self, run: Run) -> ServerFolder:
        """This folder, which now follows a run.

        It must be that of the folder: files of another experiment would replace its own.
        """
        self._run = run
        self._recorder = Recorder(self.folder, run, self.config.method(), say=lambda line: None)
        return self

    def begin(self) -> None:
        """Write what is known before the first round that is left."""
        write_config(self.folder, self.config, own_modules(self.config))
        write_commands(self.config, self.folder, self.command)
        self._status.begin()
        self._recorder.begin()
        if self.folder.checkpoint.exists():
            with suppress(CheckpointError):  # one that is damaged is replaced
                self._run.append_to(self.folder.checkpoint)

    def log(self, records: Sequence[Round]) -> None:
        self._recorder.log(records)

    def save(self) -> None:
        """Every node has its rows on its own disk, so that no checkpoint of all is needed."""
        if not self._run.done:
            self._recorder.sync()

    def end(self, error: BaseException | None) -> None:
        """Write everything that `covey run` leaves behind, unless an error has ended the run.

        Of a run that was stopped before its last round, that is its checkpoint alone.
        """
        if error is not None:
            return
        run = self._run
        self.folder.write(self.folder.missing, json.dumps(replay_facts(run)) + "\n")
        with ending(run):
            self._recorder.end(None)
        self._done = run.done
        if run.done:
            history = [list(run.history)]
            write_outcome(self.config, self.folder, history, {}, run.engine, self.command)
            rooms.call("after_run", self.folder.path, Console(quiet=True))


@dataclass(frozen=True)
class ReplayFacts:
    """What a replay has to know: who was missing, and the rounds that were the last for a time.

    `changes` are the rounds after which the tree changed.
    """

    missing: list[Missing]
    ends: list[int]
    changes: list[int]

    @staticmethod
    def read(folder: Path) -> ReplayFacts:
        """From the folder of a deployed run."""
        path = RunFolder(folder).missing
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            missing = [Missing(*entry) for entry in facts["missing"]]
            return ReplayFacts(missing, list(facts["ends"]), list(facts["changes"]))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"cannot read {path}: {error!r}.") from error
