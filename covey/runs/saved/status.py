"""Where a run stands, for those who look at its folder from outside.

status.json says how the run ended. While it is under way it holds the lock of its folder, which the
system takes back however the process ends: a run that says that it is running and holds no lock was
killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from covey.errors import DivergedError
from covey.runs.saved.lock import is_locked

State = Literal["running", "finished", "stopped", "diverged"]
FILE = "status.json"
LOCK = ".lock"


@dataclass(frozen=True)
class Status:
    """The state of a run, when it was first started and when it ended (UTC, ISO 8601)."""

    state: State = "stopped"
    started: str | None = None
    ended: str | None = None
    reason: str | None = None
    """Why it diverged or stopped, where that is known."""

    def began(self) -> Status:
        """The same run, under way; it keeps the time of its first start."""
        return Status("running", started=self.started or _now())

    def finished(self) -> Status:
        """The same run, with all its rounds."""
        return replace(self, state="finished", ended=_now())

    def failed(self, error: BaseException) -> Status:
        """The same run, ended by an error or by the user."""
        reason = str(error) or None
        if isinstance(error, DivergedError):
            return replace(self, state="diverged", ended=_now(), reason=reason)
        return replace(self, state="stopped", ended=_now(), reason=reason)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def read(folder: Path) -> Status:
    """The status of the run in a folder, also of a run beside another one."""
    status = written(folder)
    if running(folder):
        if status.state == "running" or not _beside(folder):
            return replace(status, state="running", ended=None, reason=None)
        return status
    if status.state == "running":
        return replace(status, state="stopped", reason="its process was killed")
    return status


def written(folder: Path) -> Status:
    """What status.json says; the default where there is none, or it cannot be read."""
    try:
        facts = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return Status()
    if not isinstance(facts, Mapping) or facts.get("state") not in get_args(State):
        return Status()
    texts = {}
    for name in ("started", "ended", "reason"):
        text = facts.get(name)
        if isinstance(text, str):
            texts[name] = text
    return Status(facts["state"], **texts)


def running(folder: Path) -> bool:
    """Whether a process is writing to the folder, or to the one that it runs beside."""
    top = folder
    if _beside(folder):
        top = folder.parent.parent
    return is_locked(top / LOCK)


def _beside(folder: Path) -> bool:
    """Whether this is the folder of an algorithm that runs beside another one."""
    return folder.absolute().parent.name == "compare"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
