"""The trackers of `--log`, of one seed: every round comes once, and none of them can end a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from covey import atomic
from covey.errors import CheckpointError
from covey.folder.terminal import Console
from covey.folder.trackers import Maker
from covey.origin import FAULTS, told
from covey.report.summary import summarise
from covey.runs.saved.run_folder import RunFolder
from covey.runs.scores.record import Round
from covey.runs.seed import Seed
from covey.runs.tracker import RunTracker, Tracker


@dataclass(frozen=True)
class Past:
    """A seed that has been run before."""

    history: Sequence[Round]
    done: bool = True


@dataclass(eq=False)
class Tracked(RunTracker):
    """The trackers of one seed, told of every round once.

    How many rounds each has is kept in the folder: a resumed run logs from there on, and a tracker
    that is new to the run gets the rounds that it has missed.
    """

    makers: Mapping[str, Maker]
    folder: RunFolder
    console: Console
    config: Mapping[str, Any]
    """The resolved experiment file of the seed."""
    run: Seed | Past
    place: int = 0
    """Of the seed among those that run side by side."""

    _trackers: dict[str, Tracker] = field(default_factory=dict)
    _logged: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Start all trackers; each gets the rounds of the history that it has not."""
        with suppress(CheckpointError, ValueError, TypeError):  # a damaged count is none
            known = self.folder.read_json(self.folder.trackers) or {}
            self._logged = {name: int(rounds) for name, rounds in known.items()}
        for name, make in self.makers.items():
            self._try(name, partial(self._start, name, make))
        for record in self.run.history:
            self._log(record)

    def log(self, records: Sequence[Round]) -> None:
        self._log(records[self.place])

    def end(self, error: BaseException | None) -> None:
        history = list(self.run.history)
        summary: dict[str, Any] = {"finished": self.run.done, "rounds": len(history)}
        if any(record.models for record in history):
            summary |= summarise([history], self.config["protocol"]).as_dict()
        for name, tracker in list(self._trackers.items()):
            self._try(name, partial(tracker.finish, summary))
        self._trackers.clear()

    def _start(self, name: str, make: Maker) -> None:
        tracker = make(self.folder.path)
        tracker.start(self.config)
        self._trackers[name] = tracker
        rounds = getattr(tracker, "rounds", None)
        if isinstance(rounds, int):
            self._logged[name] = rounds

    def _log(self, record: Round) -> None:
        """One round, to all trackers that have not had it."""
        new = record.round + 1
        for name, tracker in list(self._trackers.items()):
            if new <= self._logged.get(name, 0):
                continue
            if self._try(name, partial(tracker.log, record)):
                self._logged[name] = new
                with suppress(OSError):  # a disk that fails is the checkpoint's to report
                    atomic.write(self.folder.trackers, json.dumps(self._logged) + "\n")

    def _try(self, name: str, call: Callable[[], None]) -> bool:
        """Whether a call succeeded; a tracker that fails is shown once and called no more."""
        try:
            call()
        except FAULTS as error:
            self._trackers.pop(name, None)
            text = f"the tracker {name} failed: {told(error)} The run goes on without it."
            self.console.print(f"note: {text}")
            return False
        return True
