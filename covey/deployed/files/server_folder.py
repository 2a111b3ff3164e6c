"""The folder that the server of a deployed tree writes: that of `covey run`, and who was missing.

replay.json    who was late or absent in which ask, and when the tree changed, for `covey replay`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from covey import rooms
from covey.deployed.node.missed import Missing
from covey.deployed.node.server_run import ending, replay_facts
from covey.errors import CheckpointError
from covey.files.config import Config
from covey.folder.folder import Folder
from covey.folder.outcome import write_commands, write_outcome
from covey.folder.own_code import own_modules, write_config
from covey.folder.recording import Recorder
from covey.folder.stop import Interrupted
from covey.folder.terminal import Console
from covey.runs.run import Run
from covey.runs.saved import status
from covey.runs.saved.status import Status
from covey.runs.scores.record import Round

RUN = "run"
"""The folder below the server's state that holds its metrics and models."""
REPLAY = "replay.json"


@dataclass(eq=False)
class ServerFolder:
    """The run folder of a server, which alone writes to it."""

    config: Config
    folder: Folder
    command: list[str]

    def __post_init__(self) -> None:
        self._done = False
        self._began: Status | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """With the folder locked. At the end its status says how the run has ended, if it began."""
        self.folder.make()
        with self.folder.lock():
            self.folder.sweep()
            try:
                yield
            except BaseException as error:
                with suppress(CheckpointError):  # the error itself says more than this one
                    self._write_end(error)
                raise
            if self._done:
                self._write_end(None)
            else:
                self._write_end(Interrupted("its server was stopped"))

    def _write_end(self, error: BaseException | None) -> None:
        """Write how the run has ended, in one step: one that was stopped is never finished."""
        if self._began is None:
            return
        ended = self._began.finished()
        if error is not None:
            ended = self._began.failed(error)
        self.folder.write_json(status.FILE, ended.as_dict())

    def begin(self, run: Run) -> None:
        """Write what is known before the first round that is left.

        The run must be that of the folder: files of another experiment would replace its own.
        """
        write_config(self.folder, self.config, own_modules(self.config))
        write_commands(self.config, self.folder, self.command)
        self._began = status.written(self.folder.path).began()
        self.folder.write_json(status.FILE, self._began.as_dict())
        self._recorder = Recorder(self.folder, run, self.config.method())
        self._recorder.begin()
        if self.folder.checkpoint.exists():
            with suppress(CheckpointError):  # one that is damaged is replaced
                run.append_to(self.folder.checkpoint)

    def add(self, run: Run, record: Round) -> None:
        """Write one more round.

        Every node has its rows on its own disk, so that no checkpoint of all is needed here.
        """
        self._recorder.log([record])
        if run.round % self.config.checkpoint_every == 0 and not run.done:
            self._recorder.sync()

    def end(self, run: Run) -> None:
        """Write everything that `covey run` leaves behind.

        Of a run that was stopped before its last round, that is its checkpoint alone.
        """
        self.folder.write(REPLAY, json.dumps(replay_facts(run)) + "\n")
        with ending(run):
            self._recorder.save()
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
        path = folder / REPLAY
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            missing = [Missing(*entry) for entry in facts["missing"]]
            return ReplayFacts(missing, list(facts["ends"]), list(facts["changes"]))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"cannot read {path}: {error!r}.") from error
