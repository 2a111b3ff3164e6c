"""A room deleted in a copy of the repository, where everything else must go on.

    python -m tools.weight --without radio

All that `room.toml` lists as the room's own is deleted. Then mypy checks what is left, pytest
collects it, which imports every module, and the laws of two algorithms run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from covey.rooms import Room, rooms

ROOT = Path(__file__).parents[1]
NOT_COPIED = (".git", ".venv", ".carry", "build", "dist", ".ruff_cache", ".hypothesis")
CAPTURED = Path("tests", "laws", "captured.json")
LAWS = (
    "(test_captured or test_chunks or test_loopback or test_resume) and (FedAvg or PFedMe)"
    " and not (PerFedAvg or FedAvgM)"
)
"""The laws that run, as pytest selects them by -k."""
ALONE = """
import runpy, sys
own = [each for each in sys.meta_path if "__editable__" not in getattr(each, "__module__", "")]
sys.meta_path[:] = own
sys.argv[:] = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module where an editable installation of covey does not stand in for what is deleted."""
COMMANDS = {
    "mypy": ("mypy", "covey"),
    "pytest": ("pytest", "-q", "--no-header", "-k", LAWS),
}
"""The modules that are run, and their arguments."""


def without(name: str) -> int:
    """Delete a room in a copy, and say what does not go on; how many commands fail."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "covey")
        print(f"deleted: {', '.join(deleted(name, place))}")
        for command in COMMANDS:
            began = time.monotonic()
            done = ran(command, place)
            print(f"{command}: {time.monotonic() - began:.0f} s, exit code {done.returncode}")
            if done.returncode:
                failed += 1
                print(done.stdout[-20_000:], done.stderr[-5_000:])
    return failed


def deleted(name: str, place: Path) -> list[str]:
    """Copy the repository without a room and those that need it; the paths that are not there."""
    shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(*NOT_COPIED))
    gone = []
    for room in with_dependents(name):
        for path in paths(room):
            there = place / path
            if there.is_dir():
                shutil.rmtree(there)
            else:
                there.unlink()
            gone.append(path)
        forget(room, place / CAPTURED)
    return gone


def with_dependents(name: str) -> list[Room]:
    """A room and all that import it."""
    by_name = {room.name: room for room in rooms()}
    out = [by_name[name]]
    for room in out:
        out += [other for other in by_name.values() if room.name in other.needs]
    return out


def paths(room: Room) -> Iterator[str]:
    """What lies in the repository and is a room's own; what an earlier one has is left out."""
    for kind in ("code", "tests", "examples", "docs"):
        yield from (path for path in room.own[kind] if (ROOT / path).exists())


def forget(room: Room, file: Path) -> None:
    """Take a room's cases out of captured.json.

    The hashes hold the key of the room in every record, so the outlines of runs are compared alone,
    as on another machine.
    """
    captured = json.loads(file.read_text())
    for case in room.own["captured"]:
        del captured["runs"][case]
    file.write_text(json.dumps({**captured, "machine": f"without {room.name}"}))


def ran(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    """One of the commands in the copy, to its end."""
    words = [sys.executable, "-c", ALONE, *COMMANDS[command]]
    return subprocess.run(
        words, cwd=place, env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
