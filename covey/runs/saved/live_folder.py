"""The folder in which a running process has its rows.

Its files are gone when the process ends: a checkpoint has links of its own to those it needs.
"""

from __future__ import annotations

import os
import shutil
import uuid
import weakref
from pathlib import Path
from typing import IO

from covey.errors import CheckpointError, ConfigError
from covey.kernel.store.store import Store
from covey.runs.experiment import Experiment
from covey.runs.saved.lock import is_locked, open_lock, try_lock
from covey.runs.saved.run_folder import RunFolder

_LOCK = "in-use"


class LiveFolder:
    """A new folder inside `parent`, removed with this object or by the next process after it."""

    def __init__(self, parent: Path) -> None:
        self.path = parent / f"live-{uuid.uuid4().hex}"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for folder in parent.glob("live-*"):
                lock = folder / _LOCK
                if lock.exists() and not is_locked(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            self.path.mkdir()
            self._lock = open_lock(self.path / _LOCK)
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


def disk_note(store: Store, parent: Path) -> str | None:
    """A note where the disk has less room than the rows of all nodes take; None: it has enough."""
    total = 0
    for column in store.columns.values():
        total += column.nodes * column.segments.row_bytes
    free = shutil.disk_usage(parent).free
    if total <= free:
        return None
    return (
        f"the rows of all nodes take {total / 1e9:,.1f} GB, those of the best round and of "
        f"checkpoints more, and {parent} has {free / 1e9:,.1f} GB free."
    )


def check_store(parent: Path, folder: Path) -> None:
    """Raise unless checkpoints in a run's folder can link files in `parent`.

    The run's folder need not be there yet. `parent` is created if it is not there.
    """
    if RunFolder(parent).config.exists() and parent.absolute() != folder.absolute():
        raise ConfigError(
            f"store = {str(parent)!r} is the folder of another run; give a folder of its own."
        )
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        name = f".link-{uuid.uuid4().hex}"
        source = parent / name
        target = existing / f"{name}.2"
        try:
            source.touch(exist_ok=False)
            os.link(source, target)
        finally:
            target.unlink(missing_ok=True)
            source.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"store = {str(parent)!r}: a file there cannot be linked into {existing} ({error}); "
            "give a folder on the disk of the run's folder, or another --out."
        ) from error


def _remove(path: Path, lock: IO[str]) -> None:
    lock.close()
    shutil.rmtree(path, ignore_errors=True)
