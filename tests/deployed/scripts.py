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
NOTE = """#!/bin/sh
printf '%s\\n' "$(basename "$0") $*" >> "$TOOLS/log"
"""
OTHERS = {
    **dict.fromkeys(("chown", "mkdir"), NOTE),
    "rsync": NOTE + 'for last; do :; done; host=${last%%:/*}; ! test -e "$TOOLS/${host#root@}.off"',
    "ssh": NOTE
    + """
machine=${1#root@}
if test -e "$TOOLS/$machine.off"; then exit 255; fi
sh -c "$(printf '%s' "$2" | sed "s#/srv/covey#$TOOLS/$machine#g")"
""",
    "systemctl": NOTE + 'test "$1" != is-active || test -e "$TOOLS/$3.running"',
    "install": NOTE + 'for last; do :; done; /bin/mkdir -p "$last"',
}
"""The tools of other machines. `ssh` has a folder for each, in place of its /srv/covey."""


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
        for name, text in {"covey": COVEY, **OTHERS}.items():
            (self.folder / name).write_text(text, encoding="utf-8")
            (self.folder / name).chmod(0o755)

    def disk(self, machine: str, name: str) -> Path:
        """The disk of PROCESS/SEAT on a machine."""
        return self.folder / machine / name / "node.sqlite"

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
