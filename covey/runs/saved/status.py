"""Where a run stands, for those who look at its folder from outside.

status.json says how the run ended. While it is under way it holds the lock of its folder, which the
system takes back however the process ends: a run that says that it is running and holds no lock was
killed.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from covey.errors import CheckpointError, DivergedError
from covey.runs.saved.lock import is_locked
from covey.runs.saved.run_folder import RunFolder
from covey.runs.tracker import RunTracker

State = Literal["running", "finished", "stopped", "diverged"]


@dataclass(frozen=True)
class Status:
    """The state of a run, when it was first started and when it ended (UTC, ISO 8601)."""

    state: State = "stopped"
    started: str | None = None
    ended: str | None = None
    reason: str | None = None
    """Why it diverged or stopped, where that is known."""


@dataclass(eq=False)
class StatusFile(RunTracker):
    """Writes down that a run is under way and, in the end, how it ended."""

    folder: RunFolder
    began: Status | None = None

    def begin(self) -> None:
        """The run is under way; it keeps the time of its first start."""
        self.began = Status("running", written(self.folder.path).started or _now())
        self.folder.write_json(self.folder.status, asdict(self.began))

    def end(self, error: BaseException | None) -> None:
        """The run has ended with all its rounds, or by an error or the user, if it ever began."""
        if self.began is None:
            return
        ended = replace(self.began, state="finished", ended=_now())
        if error is not None:
            state: State = "diverged" if isinstance(error, DivergedError) else "stopped"
            ended = replace(ended, state=state, reason=str(error) or None)
        # An error itself says more than one of the disk.
        with suppress(CheckpointError) if error is not None else nullcontext():
            self.folder.write_json(self.folder.status, asdict(ended))


def read(path: Path) -> Status:
    """The status of the run in a folder, also of a run beside another one."""
    folder = RunFolder(path)
    status = written(path)
    if running(path):
        if status.state == "running" or folder.main is folder:
            return replace(status, state="running", ended=None, reason=None)
        return status
    if status.state == "running":
        return replace(status, state="stopped", reason="its process was killed")
    return status


def written(path: Path) -> Status:
    """What the file says; the default where there is none, or it cannot be read."""
    folder = RunFolder(path)
    try:
        facts = folder.read_json(folder.status) or {}
    except CheckpointError:
        return Status()
    if facts.get("state") not in get_args(State):
        return Status()
    texts = {name: facts.get(name) for name in ("started", "ended", "reason")}
    known = {name: text for name, text in texts.items() if isinstance(text, str)}
    return Status(facts["state"], **known)


def running(path: Path) -> bool:
    """Whether a process is writing to the folder, or to the one that it runs beside."""
    return is_locked(RunFolder(path).main.lock_file)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
