"""The processes of a tree on this machine: their ports, and how they end with their starter."""

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest

from covey.deployed.plan import local, plan_files
from covey.deployed.plan.local import LocalProcesses, ProcessFailed, free_ports, last_words
from covey.errors import CoveyError, TransportError

POSIX = pytest.mark.skipif(os.name != "posix", reason="processes are not forked")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone keeps ports reserved")


# Nodes and their starter


@contextmanager
def starter(*, lives: bool, before_look: bool = False) -> Iterator[int]:
    """A pipe that a node keeps open; its starter lives, or is a zombie.

    The starter of a killed test stays a zombie until somebody waits for it. With `before_look` it
    is one before the node looks for the first time.
    """
    reading, writing = os.pipe()
    number = fork()
    if not number:
        _start_node(writing, lives=lives, before_look=before_look)
    os.close(writing)
    node = int(os.read(reading, 20))
    try:
        yield reading
    finally:
        for process in (node, number):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os.waitpid(number, 0)
        os.close(reading)


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
        return os.fork()


def _start_node(writing: int, *, lives: bool, before_look: bool) -> None:
    """What a starter does: it forks a node, and ends unless it lives."""
    try:
        os.environ[local.STARTER] = str(os.getpid())
        own = os.getpid()
        if not fork():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            local._LOOK = 0.01
            while before_look and os.getppid() == own:
                time.sleep(0.01)
            os.write(writing, str(os.getpid()).encode())
            local.end_with_starter()
            time.sleep(60)
        os.close(writing)
        if lives:
            time.sleep(60)
    finally:
        os._exit(0)


def ends(reading: int, seconds: float) -> bool:
    """Whether the node has closed its end of a pipe, and so has ended."""
    ready, _, _ = select.select([reading], [], [], seconds)
    return bool(ready)


@POSIX
@pytest.mark.parametrize("before_look", [False, True])
def test_a_node_does_not_outlive_a_starter_that_is_a_zombie(before_look: bool) -> None:
    with starter(lives=False, before_look=before_look) as reading:
        assert ends(reading, 10)


@POSIX
def test_a_node_goes_on_while_its_starter_lives() -> None:
    with starter(lives=True) as reading:
        assert not ends(reading, 0.3)


# Ports


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@LINUX
def test_ports_need_open_files() -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (250, limits[1]))
    try:
        with pytest.raises(TransportError, match=r"ulimit -n 364.*devices_per_process"):
            free_ports(300)
        assert descriptors() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@LINUX
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_ports_are_given_back_where_files_run_out(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    made: list[socket.socket] = []

    def few() -> socket.socket:
        if len(made) == 5:
            raise OSError(number, os.strerror(number))
        made.append(plain())
        return made[-1]

    plain = socket.socket
    monkeypatch.setattr(socket, "socket", few)
    with pytest.raises(TransportError, match="ulimit -n"):
        free_ports(10)
    assert descriptors() == before


@LINUX
def test_ports_are_given_back_where_too_few_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_HIGHEST_PORT", local._LOWEST_PORT + 5)
    before = descriptors()
    with pytest.raises(TransportError, match="free ports of 10"):
        free_ports(10)
    assert descriptors() == before


@LINUX
def test_a_node_listens_on_a_port_that_stays_reserved() -> None:
    [port] = free_ports(1)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)) as node:
        assert node.getsockname()[1] == port


# Starts and ends


def test_a_process_that_cannot_be_started_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    (tmp_path / "server").mkdir()
    with (
        pytest.raises(ProcessFailed, match=r"server cannot be started: Resource.*ulimit -u"),
        LocalProcesses(tmp_path, ["server"]).started(),
    ):
        pass


def test_an_interrupt_before_the_first_process_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalProcesses, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt), LocalProcesses(tmp_path, ["server"]).started():
        pass


def test_a_log_that_is_gone_hides_no_failure(tmp_path: Path) -> None:
    assert "cannot be read" in last_words(tmp_path / "log.jsonl")


class Ended:
    """A process that has ended with a code, or runs (None)."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def wait(self, seconds: float | None = None) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        pass


EVICTED = '{"level": "error", "event": "failed", "kind": "EvictedError", "text": "evicted"}\n'
BEHIND = '{"level": "error", "event": "failed", "kind": "TransportError", "text": "behind"}\n'


class Scripted:
    """A server and a device, one of which runs; the starts of the other end as the script says."""

    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        script: Sequence[tuple[int | None, str]],
        name: str = "device0",
    ) -> None:
        """The script has the code and the log of each start of the process `name`."""
        self._script = list(script)
        self._name = name
        self.starts = 0
        self.said: list[str] = []
        for name in ("server", "device0"):
            (folder / name).mkdir()
        patch.setattr(subprocess, "Popen", self._start)
        self.tree = LocalProcesses(folder, ["server", "device0"], say=self.said.append)

    def _start(self, command: list[str], *, stdout: BinaryIO, **_: object) -> Ended:
        if Path(command[-1]).parent.name != self._name:
            return Ended(None)
        self.starts += 1
        code, log = self._script.pop(0)
        stdout.write(log.encode())
        return Ended(code)

    def watch(self, looks: int = 9) -> None:
        with self.tree.started():
            for _ in zip(range(looks), self.tree.watch(), strict=False):
                pass


Make = Callable[..., Scripted]


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes such a tree; nothing waits before it looks, or before it starts a process again."""
    monkeypatch.setattr(local, "_START_AGAIN", 0.0)
    monkeypatch.setattr(local, "_POLL", 0.0)
    return partial(Scripted, tmp_path, monkeypatch)


def test_a_process_that_is_evicted_is_started_again(scripted: Make) -> None:
    """As after `covey ctl evict`: systemd does the same, and `covey ctl admit` lets it back in."""
    tree = scripted([(6, EVICTED)] * 3 + [(None, "")])
    tree.watch()
    assert tree.starts == 4
    assert tree.said == ["device0 ended with code 6: evicted (it is started again every 0 s)"]


STARTED = '{"level": "info", "event": "started"}\n'


@pytest.mark.parametrize("name", ["server", "device0"])
def test_a_process_that_is_killed_is_started_again(name: str, scripted: Make) -> None:
    tree = scripted([(-9, STARTED), (-11, STARTED), (None, "")], name)
    tree.watch()
    ends = ("killed; started again (1)", "killed by signal 11; started again (2)")
    assert tree.said == [f"{name} was {end}" for end in ends]
    assert tree.tree.started_again == {name: 2}


def test_a_process_that_is_killed_too_often_ends_the_command(scripted: Make) -> None:
    tree = scripted([(-9, STARTED)] * 9)
    text = r"device0 was killed, after it was started again 5 times; .*devices_per_process"
    with pytest.raises(ProcessFailed, match=text):
        tree.watch()
    assert (tree.starts, len(tree.said)) == (6, 5)


@pytest.mark.parametrize("code", [0, -15, *plan_files.NO_RESTART])
def test_what_systemd_leaves_ended_is_not_started_again(code: int, scripted: Make) -> None:
    tree = scripted([(code, STARTED)] * 9)
    with pytest.raises(CoveyError, match=r"device0 (was told to end|ended with code)") as failed:
        tree.watch()
    assert tree.starts == 1
    assert "{" not in str(failed.value)  # an event that is no error is no reason


@pytest.mark.parametrize(("words", "starts"), [(["no room"] * 9, 2), (list("abcdefghi"), 6)])
def test_an_error_that_does_not_pass_ends_the_command(
    words: list[str], starts: int, scripted: Make
) -> None:
    tree = scripted([(4, f"{word}\n") for word in words])
    with pytest.raises(ProcessFailed, match=f"device0 ended with code 4: {words[starts - 1]}"):
        tree.watch()
    assert tree.starts == starts
    assert tree.said[0] == f"device0 ended with code 4: {words[0]}; it is started again in 0 s (1)"


def test_a_refusal_that_does_not_pass_ends_the_command(scripted: Make) -> None:
    tree = scripted([(6, EVICTED)] + [(6, BEHIND)] * 9)
    with pytest.raises(ProcessFailed, match="device0 ended with code 6: behind") as failed:
        tree.watch()
    assert (tree.starts, failed.value.exit_code) == (3, 6)


def test_a_death_is_not_explained_by_an_earlier_start(scripted: Make) -> None:
    tree = scripted([(6, EVICTED), (4, ""), (None, "")])
    tree.watch()
    assert "device0 ended with code 4: its log has no reason" in tree.said[-1]


@pytest.mark.parametrize(("code", "exit_code"), [(4, 4), (-9, 6), (130, 6), (6, 6)])
def test_a_process_that_fails_gives_its_code(
    code: int, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalProcesses, "_start", lambda self, name: Ended(code))
    tree = LocalProcesses(tmp_path, ["server"])
    text = rf"server (was killed|ended with code {code})"
    with pytest.raises(ProcessFailed, match=text) as failed, tree.started():
        list(tree.watch())
    assert failed.value.exit_code == exit_code
