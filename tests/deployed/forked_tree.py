"""A deployed tree of real processes over sockets, started cheaply and started again when they die.

This process has torch imported, and every node is a fork of it: a process of its own, which can be
killed as any other. It must not use gRPC itself, which does not survive a fork.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from covey.deployed.faults import set_fault
from covey.deployed.node.node import Node
from covey.deployed.node.process import Member, parts_of
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.operate.events import EventLog
from covey.deployed.plan.local import last_words, on_this_machine
from covey.deployed.plan.plan import DeploySettings, processes_of
from covey.deployed.plan.process import Durability, Process
from covey.deployed.transport.transport import AskKey
from covey.runs.experiment import Experiment
from covey.runs.parts import Parts
from tests.laws.cases import state

Hook = Callable[[str], None]
RESULT = "result.pt"
LOG = "log.jsonl"
TRAININGS = "trainings.txt"
SECONDS = 240  # that one tree may take


@dataclass(frozen=True)
class Life:
    """One life of a process: what is done to it, called in the new process, or None.

    The function gives the hook for the fault points.
    """

    name: str
    arm: Callable[[], Hook] | None = None


@dataclass
class Ended:
    """How a tree has ended."""

    state: dict[str, Any] | None
    """What the server's run holds; None where a process has failed."""
    failed: str = ""
    """The process that failed."""
    words: str = ""
    """Why it failed."""
    doubted: int = 0
    """How many messages of honest nodes were dropped as lies."""
    seconds: float = 0.0


@dataclass(eq=False)
class ForkedTree:
    """The processes of one experiment, whose state lies in folders below `folder / "nodes"`."""

    experiment: Experiment
    folder: Path
    durability: Durability = "process"
    secure: bool = False
    next_life: Callable[[Process], Life] = lambda process: Life("")
    died: Callable[[Process, Life], None] = lambda process, life: None
    settings: DeploySettings = field(default_factory=DeploySettings)
    _running: dict[int, tuple[Process, Life]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts: Parts = parts_of(self.experiment)
        tiers = self.parts.tree.tiers
        address = dict.fromkeys(tiers[:-1], "{seat}")
        settings = replace(self.settings, address=address, durability=self.durability)
        planned = processes_of(self.parts.tree, settings)
        self.nodes = self.folder / "nodes"
        self.logs = self.folder / "logs"
        self.processes = on_this_machine(planned, self.nodes)
        self._authority: Authority | None = None
        if self.secure:
            self._authority = Authority.create(self.folder / "certs")
        for process in self.processes:
            (self.nodes / process.name).mkdir(parents=True)
            (self.logs / process.name).mkdir(parents=True)
            if self._authority is not None:
                self._authority.issue(process.name)

    # This process

    def run(self) -> Ended:
        """Start all processes, and those that are killed again, until the server's run is over."""
        began = time.monotonic()
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(SECONDS)
        ended = Ended(None, "all", f"the tree has not ended in {SECONDS} s")
        try:
            for process in self.processes:
                self._start(process)
            ended = self._watch()
        except TimeoutError:
            pass
        finally:
            signal.alarm(0)
            self._stop(drain=ended.state is not None)
        ended.seconds = time.monotonic() - began
        ended.doubted = sum(self._log(process).count("dropped of") for process in self.processes)
        return ended

    def _log(self, process: Process) -> str:
        path = self.logs / process.name / LOG
        if not path.exists():
            return ""
        return path.read_text(encoding="utf-8", errors="replace")

    def _watch(self) -> Ended:
        """Wait for processes: one that is killed starts again, one that fails ends everything."""
        while True:
            pid, status = os.wait()
            process, life = self._running.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGKILL and life.arm is not None:
                self.died(process, life)
                self._start(process)
            elif code == 0 and process.parent is None:
                held = torch.load(self.folder / RESULT, weights_only=False)
                return Ended(held)
            else:
                words = last_words(self.logs / process.name / LOG)
                return Ended(None, process.name, f"code {code}: {words}")

    def _start(self, process: Process) -> None:
        life = self.next_life(process)
        pid = os.fork()
        if pid == 0:
            self._live(process, life)
        self._running[pid] = (process, life)

    def _stop(self, *, drain: bool) -> None:
        """End the processes that are left; where the tree has failed, some cannot drain."""
        numbers = [signal.SIGKILL]
        if drain:
            numbers = [signal.SIGTERM, signal.SIGKILL]
        for number in numbers:
            for pid in self._running:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            self._reap(10.0)

    def _reap(self, seconds: float) -> None:
        """Wait for processes that were told to end."""
        until = time.monotonic() + seconds
        while self._running and time.monotonic() < until:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                time.sleep(0.01)
                continue
            self._running.pop(pid)

    # A node's process

    def _live(self, process: Process, life: Life) -> None:
        """What a node's process does; it never returns."""
        code = 1
        try:
            signal.alarm(0)
            with open(self.logs / process.name / LOG, "ab") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            self._member(process, life)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _member(self, process: Process, life: Life) -> None:
        identity = None
        if self._authority is not None:
            identity = Identity(self._authority.folder / process.name)
        log = EventLog(process.name, sys.stderr)
        member = Member(process, self.parts, identity, log)
        with log.library(), member.running():
            trainings = _Trainings(self.logs / process.name / TRAININGS)
            if process.parent is not None:
                _install(life, trainings)
                member.serve()
                return
            run = member.run()
            _install(life, trainings)
            for _ in member.rounds(run):
                pass
            set_fault(None)
            written = self.folder / f"{RESULT}.new"
            torch.save(state(run), written)
            written.rename(self.folder / RESULT)

    def trainings(self) -> list[tuple[str, str, str]]:
        """(process, "begun" or "ended", key) of all trainings, in the order of each process."""
        out = []
        for process in self.processes:
            path = self.logs / process.name / TRAININGS
            if not path.exists():
                continue
            for line in path.read_text(encoding="utf-8").splitlines():
                what, key = line.split(" ", 1)
                out.append((process.name, what, key))
        return out


class _Trainings:
    """Writes down which trainings of this process begin and end."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._key: AskKey | None = None
        answered = Node._answered

        def watched_answer(node: Node, key: AskKey, common: bytes, own: bytes) -> bytes:
            self._key = key
            return answered(node, key, common, own)

        setattr(Node, "_answered", watched_answer)  # noqa: B010 (a method)

    def passed(self, point: str) -> None:
        """A fault point was passed."""
        if self._key is None or self._key.lane != "train":
            return
        if point == "inside-ask":
            self._write("begun")
        elif point == "after-commit":
            self._write("ended")

    def _write(self, what: str) -> None:
        os.write(self._file, f"{what} {self._key}\n".encode())


def _install(life: Life, trainings: _Trainings) -> None:
    """Set the faults of this life, after the trainings are written down."""
    hook = None
    if life.arm is not None:
        hook = life.arm()

    def both(point: str) -> None:
        trainings.passed(point)
        if hook is not None:
            hook(point)

    set_fault(both)


def _too_long(signum: int, frame: object) -> None:
    raise TimeoutError
