"""All processes of a tree on this machine, watched: one that dies is started again.

What is started again is what the systemd units of a plan start again. Here it has a bound: then all
processes are stopped. One that its parent evicts, as `covey ctl evict` does, has none.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path

from covey.deployed.plan.plan_files import NO_RESTART, NODE, RESTART_SECONDS
from covey.deployed.plan.process import LOOPBACK, Process
from covey.errors import CoveyError, DivergedError, EvictedError, TransportError

STARTER = "COVEY_STARTER"
"""The process that watches a tree on this machine: none of its nodes outlives it."""
LOG = "log.jsonl"
OLD_LOG = "log.previous.jsonl"
_LOWEST_PORT = 10_000
_HIGHEST_PORT = 32_000
_OTHER_FILES = 64  # that this process has open beside the ports that it keeps reserved
_SHARE = "let devices share processes, as with deploy.devices_per_process=10"
_POLL = 0.1  # s between two looks at the processes
_LOOK = 1.0  # s between two looks at the process that has started a node
_DIVERGED = 3  # the exit code of a run that diverged
_REFUSED = 6  # the exit code of a node that its parent refuses, or that cannot listen
_KILLED = -9  # the code of a process that SIGKILL has ended
_TOLD = (0, -1, -2, -13, -15)  # codes that are no failure for systemd: it was told to end
_START_AGAIN = RESTART_SECONDS  # s after an error; a process that was killed does not wait
_MOST_STARTS = 5  # how often one process is started again after a kill or an error
_HEAD = 1 << 16  # bytes of a log in which a process says that it has started
_TOO_MANY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of a system that has no room for one more process or file."""
GRACE = 20.0  # s that processes have to end by themselves


class ProcessFailed(CoveyError):
    """A process of the tree has failed; all others were stopped.

    `code` is its exit code; the command that watches it ends with `exit_code`.
    """

    def __init__(self, text: str, code: int = _REFUSED) -> None:
        super().__init__(text)
        self.code = code

    @property
    def exit_code(self) -> int:
        """The code of the process where it is one of covey's errors, and not a signal."""
        if 1 <= self.code <= _REFUSED:
            return self.code
        return _REFUSED


def on_this_machine(processes: Sequence[Process], folder: Path) -> list[Process]:
    """The same processes with ports of this machine that are free, and with state in a folder."""
    parents = [process.name for process in processes if process.listen is not None]
    ports = iter(free_ports(len(parents) + len(processes)))
    listen: dict[str | None, str] = {name: f"{LOOPBACK}:{next(ports)}" for name in parents}
    return [
        replace(
            process,
            parent=listen.get(process.nodes[0].parent),
            listen=listen.get(process.name),
            control_host=LOOPBACK,
            control_port=next(ports),
            state=str((folder / process.name / "state").absolute()),
        )
        for process in processes
    ]


def free_ports(count: int) -> list[int]:
    """So many ports of this machine that nobody uses now.

    They are below those that systems give to outgoing connections. Children dial a parent before it
    listens, and a connection of theirs must not take its port. On Linux they stay reserved until
    this process ends: nodes can listen there, and no other tree gets them.
    """
    _check_open_files(count)
    candidates = list(range(_LOWEST_PORT, _HIGHEST_PORT))
    random.SystemRandom().shuffle(candidates)
    ports: list[int] = []
    with ExitStack() as reserved:
        for port in candidates:
            if len(ports) == count:
                break
            probe = _probe(port)
            if probe is None:
                continue
            ports.append(port)
            if sys.platform == "linux":
                reserved.enter_context(probe)
            else:
                probe.close()
        if len(ports) < count:
            raise TransportError(f"this machine has {len(ports)} free ports of {count}; {_SHARE}.")
        atexit.register(reserved.pop_all().close)
    return ports


def _check_open_files(ports: int) -> None:
    """Refuse more ports than this process may have files open: a reserved port is one."""
    if sys.platform != "linux":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = ports + _OTHER_FILES
    if limit != resource.RLIM_INFINITY and limit < needed:
        fix = f"ulimit -n {needed} allows more, or {_SHARE}"
        text = f"{ports} ports need {needed} open files, and {limit} are allowed"
        raise TransportError(f"{text}; {fix}.")


def _probe(port: int) -> socket.socket | None:
    """A socket that reserves a port; None where somebody uses the port."""
    try:
        probe = socket.socket()
    except OSError as error:
        fix = f"raise ulimit -n, or {_SHARE}"
        raise TransportError(f"no port can be reserved: {error.strerror}; {fix}.") from error
    try:
        probe.bind((LOOPBACK, port))
    except OSError:
        probe.close()
        return None
    # Linux lets a socket that listens share the port with one that does not, if both say so.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return probe


@dataclass(eq=False)
class LocalProcesses:
    """The processes of a tree, each with a log in its folder. The first one is the server."""

    folder: Path
    names: Sequence[str]
    _: KW_ONLY
    insecure: bool = False
    say: Callable[[str], None] = lambda _: None
    """Gets what the user should know while they run."""
    started_again: Counter[str] = field(default_factory=Counter)
    """How often a process was started again after it was killed or has failed."""
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _log_offsets: dict[str, int] = field(default_factory=dict)
    """Where the log of a process has what it has written since it was last started."""
    _reasons: dict[str, str] = field(default_factory=dict)
    """Why a process has ended the last time."""
    _due: dict[str, float] = field(default_factory=dict)
    """When a process that has ended is started again."""

    @contextmanager
    def started(self) -> Iterator[None]:
        """With all processes running; whatever happens, none is left."""
        try:
            for name in self.names:
                self._running[name] = self._start(name)
            yield
        except KeyboardInterrupt:
            # The server ends its round and writes everything down, while the others are there.
            server = self._running.get(self.names[0])
            if server is not None:
                with suppress(ProcessLookupError):
                    server.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    server.wait(GRACE)
            raise
        finally:
            self.stop()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        folder = self.folder / name
        command = [sys.executable, "-m", "covey", "node", str(folder / NODE)]
        if self.insecure:
            command.append("--insecure")
        # Many processes share the machine: each has one thread, unless the user says otherwise.
        environment = {"OMP_NUM_THREADS": "1", **os.environ, STARTER: str(os.getpid())}
        log_file = folder / LOG
        try:
            if log_file.exists() and name not in self._log_offsets:
                log_file.replace(folder / OLD_LOG)
            with open(log_file, "ab") as log:
                self._log_offsets[name] = log.tell()
                # A session of its own: Ctrl-C reaches this process alone, which stops the others.
                return subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            fix = "all processes are stopped"
            if error.errno in _TOO_MANY:
                fix += f"; raise ulimit -u and ulimit -n, or {_SHARE}"
            text = f"{name} cannot be started: {error.strerror or error} ({fix})."
            raise ProcessFailed(text) from error

    def watch(self) -> Iterator[None]:
        """A look every now and then until the server has ended; an error where one stays ended.

        What has ended before the server is started again.
        """
        server = self.names[0]
        while True:
            ended = self._running[server].poll()
            yield
            if ended == 0:
                return
            if self._running[server].poll() == 0:
                continue  # it has had all it needs of the others
            for name, process in self._running.items():
                code = process.poll()
                if code is None:
                    continue
                if name not in self._due:
                    self._due[name] = time.monotonic() + self._pause(name, code)
                if time.monotonic() >= self._due[name]:
                    del self._due[name]
                    self._running[name] = self._start(name)
            time.sleep(_POLL)

    def started_count(self) -> tuple[int, int]:
        """How many processes have started, as their logs say, and how many there are."""
        started = 0
        for name in self.names:
            with open(self.folder / name / LOG, "rb") as log:
                started += b'"event": "started"' in log.read(_HEAD)
        return started, len(self.names)

    def _pause(self, name: str, code: int) -> float:
        """Seconds until a process is started again, which is said; an error where it is not."""
        reason, evicted = self._reason(name, code)
        before = self._reasons.get(name)
        self._reasons[name] = reason
        if code == _REFUSED and evicted:  # it may be admitted at any time
            if reason != before:
                self.say(f"{reason} (it is started again every {_START_AGAIN:.0f} s)")
            return _START_AGAIN
        count = self.started_again[name] + 1
        # An error with the words of the last one does not pass by itself.
        same = code > 0 and reason == before
        if code in (*_TOLD, *NO_RESTART) or same or count > _MOST_STARTS:
            raise self._end(name, code, reason)
        self.started_again[name] = count
        if code < 0:
            self.say(f"{reason}; started again ({count})")
            return 0.0
        self.say(f"{reason}; it is started again in {_START_AGAIN:.0f} s ({count})")
        return _START_AGAIN

    def _reason(self, name: str, code: int) -> tuple[str, bool]:
        """How a process has ended, in words, and whether its seat is evicted."""
        if code in _TOLD:
            return f"{name} was told to end, by covey ctl stop or a kill without -9", False
        if code < 0:
            return f"{name} was killed" + f" by signal {-code}" * (code != _KILLED), False
        words, evicted = _end_of(self.folder / name / LOG, self._log_offsets.get(name, 0))
        return f"{name} ended with code {code}: {words}", evicted

    def _end(self, name: str, code: int, reason: str) -> CoveyError:
        """The end of a process as that of the tree."""
        if self.started_again[name] == _MOST_STARTS:
            reason += f", after it was started again {_MOST_STARTS} times"
        if code == _KILLED:  # mostly by the system
            reason += f"; if memory is short, {_SHARE}"
        text = f"{reason} (all processes are stopped; its log: {self.folder / name / LOG})."
        if code == _DIVERGED:
            return DivergedError(text)
        return ProcessFailed(text, code)

    def stop(self) -> None:
        """Let all processes drain, children first; end those that take too long."""
        left = list(reversed(self._running.values()))
        for process in left:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + GRACE
        for process in left:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
                process.wait()
        self._running.clear()


def end_with_starter() -> None:
    """Let this process end soon after the one that watches it, however that one ends."""
    starter = os.environ.get(STARTER, "")
    if not starter.isdecimal() or os.name != "posix":
        return

    def follow() -> None:
        # A node is a child of its starter, and gets another parent as soon as that one ends.
        # The starter's number would say less: a zombie still has it, and later another process may.
        while os.getppid() == int(starter):
            time.sleep(_LOOK)
        # All nodes drain then, so that some wait in vain for others.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, daemon=True).start()


def last_words(path: Path, since: int = 0) -> str:
    """Why a process has ended, as its log says: the text of its last error, or its last words.

    Events that are no errors tell no reason. Bytes before `since` are of an earlier start.
    """
    return _end_of(path, since)[0]


def _end_of(path: Path, since: int) -> tuple[str, bool]:
    """The last words in a log, and whether it says that the seat is evicted."""
    try:
        with open(path, "rb") as log:
            log.seek(since)
            lines = log.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"its log cannot be read: {error.strerror}", False
    errors = []
    words = "its log has no reason"
    for line in lines:
        event = None
        with suppress(ValueError):
            event = json.loads(line)
        if isinstance(event, dict):
            errors += [event] if event.get("level") == "error" else []
        elif line.strip():
            words = line
    if errors:
        words = str(errors[-1].get("text"))
    return words, EvictedError.__name__ in [event.get("kind") for event in errors]
