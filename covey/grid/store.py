"""The folder of a grid: its plan, and every finished cell in a file of its own.

grid.json           the whole plan; it is written first and never changed
cells/NAME.json     the answer of one cell, written in one step when the cell has ended
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from covey.atomic import refused
from covey.errors import CheckpointError, ConfigError, CoveyError
from covey.grid.pool import Answer
from covey.runs.saved.run_folder import Folder, RunFolder

PLAN = "grid.json"
_VERSION = 1


class GridStore:
    """A grid's folder; the answers so far are in memory too."""

    def __init__(self, folder: Folder, plan: dict[str, Any]) -> None:
        self.folder = folder
        self.plan = plan
        self.answers: dict[str, Answer] = {}

    @property
    def path(self) -> Path:
        return self.folder.path

    def add(self, name: str, answer: Answer) -> None:
        """Remember an answer; its file is written in one step."""
        path = self.path / "cells" / f"{name}.json"
        folder = Folder(path.parent)
        folder.make()
        folder.write_json(path.name, answer)
        self.answers[name] = answer

    def load(self) -> None:
        """Read the answers of an earlier command, and remove what a kill left half-written."""
        self.folder.sweep()
        cells = self.path / "cells"
        for path in sorted(cells.glob("**/*.json")):
            name = str(path.relative_to(cells).with_suffix(""))
            self.answers[name] = _read_json(path)

    def retry_failures(self) -> None:
        """Forget cells whose process died or met an unexpected error, so that they run again."""
        for name, answer in list(self.answers.items()):
            if answer.get("retry"):
                del self.answers[name]


def new(plan: dict[str, Any], out: Path | None) -> GridStore:
    """A new folder that holds the plan: `out`, or the first unused runs/NAME-KIND-N."""
    path = out or RunFolder.unused(str(plan["config"].get("name", "")), str(plan["kind"]))
    folder = RunFolder.new(path)
    folder.write_json(PLAN, {"version": _VERSION, **plan})
    return GridStore(folder, plan)


def resumed(path: Path, kind: str) -> GridStore:
    """The folder of a grid that was begun before."""
    file = path / PLAN
    if not file.is_file():
        raise ConfigError(f"{path} is not the folder of a covey {kind}: it has no {PLAN}.")
    plan = _read_json(file)
    if plan.get("version") != _VERSION or plan.get("kind") not in ("compare", "sweep"):
        raise CheckpointError(f"{file} is damaged, or was written by another version of covey.")
    if plan["kind"] != kind:
        raise ConfigError(f"{path} is a {plan['kind']}; resume it with covey {plan['kind']}.")
    return GridStore(Folder(path), plan)


@contextmanager
def locked(store: GridStore) -> Iterator[GridStore]:
    """The store with the answers of before; no other command writes to it meanwhile."""
    with store.folder.lock():
        store.load()
        yield store


@contextmanager
def understood(store: GridStore) -> Iterator[None]:
    """Files of the folder that do not hold what they should, as one kind of error."""
    try:
        yield
    except CoveyError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"a file of its plan or of its cells is damaged ({error!r})"
        raise CheckpointError(f"{store.path}: {reason}; start again with --out.") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with refused(path):
            values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; remove it, and resume.") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is damaged: it holds no table; remove it, and resume.")
    return values
