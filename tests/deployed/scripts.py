"""Scripts of a plan, run for real: `covey` runs in this process, other tools only note their words.

Starting `covey` anew for every line would take seconds each.
"""

import contextlib
import os
import select
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cli.command import covey

COVEY = """#!/bin/sh
printf '%s\\n' "$@" > "$TOOLS/words"
echo > "$TOOLS/call"
read -r code < "$TOOLS/code"
exit "$code"
"""
OTHER = """#!/bin/sh
printf '%s\\n' "$(basename "$0") $*" >> "$TOOLS/log"
if test -e "$TOOLS/off"; then exit 255; fi
"""
NAMES = ("rsync", "ssh", "systemctl", "chown", "mkdir")


@dataclass
class Tools:
    """A folder of tools that come first in the path of a script."""

    folder: Path
    calls: int = 0
    """How often `covey` was called."""
    said: str = ""
    """What the last script and its `covey` wrote to standard error."""

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name in ("call", "code"):
            os.mkfifo(self.folder / name)
        for name, text in {"covey": COVEY, **dict.fromkeys(NAMES, OTHER)}.items():
            (self.folder / name).write_text(text, encoding="utf-8")
            (self.folder / name).chmod(0o755)

    def log(self) -> list[str]:
        """The lines of other tools than `covey`, in order."""
        return (self.folder / "log").read_text(encoding="utf-8").splitlines()

    def run(self, script: Path, *words: object, cwd: Path | None = None) -> int:
        """Run a script in a folder, by default that of the tools; return its exit code."""
        cwd = cwd or self.folder
        path = f"{self.folder}:{os.environ['PATH']}"
        self.said = ""
        calls = os.open(self.folder / "call", os.O_RDWR)
        codes = os.open(self.folder / "code", os.O_RDWR)  # so that writing never waits
        process = subprocess.Popen(
            ["sh", str(script), *map(str, words)],
            env={"PATH": path, "TOOLS": str(self.folder)},
            cwd=cwd,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            while process.poll() is None:
                if select.select([calls], [], [], 0.01)[0]:
                    os.read(calls, 1)
                    with contextlib.chdir(cwd):
                        os.write(codes, f"{self._call()}\n".encode())
        finally:
            os.close(calls)
            os.close(codes)
        self.said += process.communicate()[1]
        return process.returncode

    def _call(self) -> int:
        """Run `covey` with the words of the script; return its exit code."""
        self.calls += 1
        words = (self.folder / "words").read_text(encoding="utf-8").splitlines()
        result = covey(*words)
        self.said += result.err
        return result.code
