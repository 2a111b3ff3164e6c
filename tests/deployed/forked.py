"""Real processes of `covey node`, forked from one that has imported everything.

Each has its own memory, sockets, signals and exit code. Importing torch costs seconds, and is done
once for all.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from covey.deployed.faults import FAULT_VARIABLE
from covey.deployed.plan.local import LOG, LocalProcesses
from covey.deployed.plan.plan_files import NODE

_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = [
    "covey.deployed.commands.node",
    "covey.deployed.transport.grpc_port",
    "covey.deployed.transport.grpc_transport",
    "cryptography.x509",
    "grpc.aio",
    "tests.deployed.forked",
    "torch._dynamo",  # which the first model imports
]


def run_node(words: list[str], log: str, fault: str) -> None:
    """The command, with both outputs in a file; the end of a forked process."""
    os.setsid()
    os.environ[FAULT_VARIABLE] = fault
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    sys.argv = ["covey", *words]
    from covey.cli.main import main

    main()


class Forked:
    """A forked process, with as much of Popen as `LocalProcesses` uses."""

    def __init__(self, words: list[str], log: Path, fault: str) -> None:
        given = (words, str(log), fault)
        self._process = _SERVER.Process(target=run_node, args=given, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.pid is not None and self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("covey node", seconds or 0.0)
        return code


def start_by_forks(
    patch: pytest.MonkeyPatch, faults: Mapping[str, str] | None = None
) -> dict[str, Forked]:
    """Let `covey deploy local` fork its processes; they are in the table that is returned.

    `faults` are the points of their work at which processes are killed, once each.
    """
    left = dict(faults or {})
    _SERVER.set_forkserver_preload(_PRELOADED)
    started: dict[str, Forked] = {}

    def start(self: LocalProcesses, name: str) -> Any:
        folder = self.folder / name
        words = ["node", str(folder / NODE)]
        if self.insecure:
            words.append("--insecure")
        (folder / LOG).touch()
        started[name] = Forked(words, folder / LOG, left.pop(name, ""))
        return started[name]

    patch.setattr(LocalProcesses, "_start", start)
    return started
