"""The trackers of one seed: every round comes once, and none of them can end a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from covey import atomic
from covey.folder.terminal import Console
from covey.folder.trackers import Maker
from covey.origin import FAULTS, told
from covey.runs.scores.record import Round
from covey.runs.tracker import Tracker

_FILE = "trackers.json"


class Tracked:
    """The trackers of one seed, told of every round once.

    How many rounds each has is kept in the folder: a resumed run logs from there on, and a tracker
    that is new to the run gets the rounds that it has missed.
    """

    def __init__(self, makers: Mapping[str, Maker], folder: Path, console: Console) -> None:
        self._makers = makers
        self._folder = folder
        self._console = console
        self._trackers: dict[str, Tracker] = {}
        self._logged = _read(folder / _FILE)

    def start(self, config: Mapping[str, Any], history: Sequence[Round]) -> None:
        """Start all trackers; each gets the rounds of the history that it has not."""
        for name, make in self._makers.items():
            self._try(name, partial(self._start, name, make, config))
        for record in history:
            self.log(record)

    def _start(self, name: str, make: Maker, config: Mapping[str, Any]) -> None:
        tracker = make(self._folder)
        tracker.start(config)
        self._trackers[name] = tracker
        rounds = getattr(tracker, "rounds", None)
        if isinstance(rounds, int):
            self._logged[name] = rounds

    def log(self, record: Round) -> None:
        """One round, to all trackers that have not had it."""
        new = record.round + 1
        for name, tracker in list(self._trackers.items()):
            if new <= self._logged.get(name, 0):
                continue
            if self._try(name, partial(tracker.log, record)):
                self._logged[name] = new
                with suppress(OSError):  # a disk that fails is the checkpoint's to report
                    atomic.write(self._folder / _FILE, json.dumps(self._logged) + "\n")

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The end of the run, however it came."""
        for name, tracker in list(self._trackers.items()):
            self._try(name, partial(tracker.finish, summary))
        self._trackers.clear()

    def _try(self, name: str, call: Callable[[], None]) -> bool:
        """Whether a call succeeded; a tracker that fails is shown once and called no more."""
        try:
            call()
        except FAULTS as error:
            self._trackers.pop(name, None)
            text = f"the tracker {name} failed: {told(error)} The run goes on without it."
            self._console.print(f"note: {text}")
            return False
        return True


def _read(path: Path) -> dict[str, int]:
    """How many rounds each tracker has; none where the file is missing or no such file."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): int(rounds) for name, rounds in facts.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
