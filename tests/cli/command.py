"""The command in this process, or in one of its own."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from covey.cli.main import main

ROOT = Path(__file__).parents[2]
FASHION = ROOT / "examples" / "fashion.toml"  # whose data are not in the repository
SPEECH = ROOT / "examples" / "speech.toml"  # which has tests and an experiment of its own
EXAMPLES = sorted(
    set((ROOT / "examples").rglob("*.toml"))
    - set((ROOT / "examples" / "plan").rglob("*.toml"))
    - set((ROOT / "examples" / "deploy").rglob("*.toml"))  # tests/deployed
    - {FASHION, SPEECH}
)
DEMO = ROOT / "covey" / "files" / "demo.toml"
# the demo of every test in this process; another process has to name it
BASE = ROOT / "tests" / "base.toml"
SMALL = (
    str(BASE), "name=small", "rounds=4", "score_every=1", "checkpoint_every=2",
    "data.devices=6", "tree.edges=2", "model.name=linear", "algorithm.edge_rounds=2",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def covey(*words: object) -> Result:
    """`covey WORDS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    arguments = ["covey", *map(str, words)]
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    with (
        patch.object(sys, "argv", arguments),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code: Any = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Result(code, out.getvalue(), err.getvalue())


def exits(code: int, *words: object) -> Result:
    """`covey WORDS` in this process, which must end with this exit code."""
    ended = covey(*words)
    assert ended.code == code, ended.err
    return ended


def said(*words: object) -> str:
    """What `covey WORDS` prints, which must end well."""
    return exits(0, *words).out


def spawn(*words: object, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    """`covey WORDS` in a process of its own, one thread as in the tests; it hears Ctrl-C even if
    these run in the background.
    """

    def fresh() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if before is not None:
            before()

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "covey", *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=pipe, stderr=pipe, preexec_fn=fresh
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder but the lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
