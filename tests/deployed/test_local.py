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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from covey.deployed import local
from covey.deployed.local import LocalProcesses, ProcessFailed, free_ports, last_words
from covey.errors import TransportError

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
