"""The folder in which a running process has its rows.

Its files are gone when the process ends: a checkpoint has links of its own to those it needs.
"""

from __future__ import annotations

import shutil
import uuid
import weakref
from pathlib import Path
from typing import IO

from covey.errors import CheckpointError, ConfigError
from covey.runs.experiment import Experiment
from covey.runs.lock import is_locked, try_lock

_LOCK = "in-use"


class LiveFolder:
    """A new folder inside `parent`, removed with this object or by the next process after it."""

    def __init__(self, parent: Path) -> None:
        self.path = parent / f"live-{uuid.uuid4().hex}"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_unused(parent)
            self.path.mkdir()
            self._lock: IO[str] = open(self.path / _LOCK, "w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise CheckpointError(
                f"cannot make a folder for kept rows in {parent}: {error}; give store= another one."
            ) from error
        try_lock(self._lock)
        weakref.finalize(self, _remove, self.path, self._lock)


def live_folder(experiment: Experiment, runtime: str, parent: Path) -> LiveFolder:
    """A folder for the rows of a run; an error where its rows cannot lie in files."""
    if runtime != "simulator":
        raise ConfigError(f"store = {str(parent)!r}, but runtime = {runtime!r}; leave store= out.")
    if not experiment.device.startswith("cpu"):
        raise ConfigError(
            f"store = {str(parent)!r}, but device = {experiment.device!r} keeps rows in its own "
            "memory; leave store= out, or use device = 'cpu'."
        )
    return LiveFolder(parent.absolute())


def _remove_unused(parent: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in parent.glob("live-*"):
        lock = folder / _LOCK
        if lock.exists() and not is_locked(lock):
            shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path, lock: IO[str]) -> None:
    lock.close()
    shutil.rmtree(path, ignore_errors=True)
