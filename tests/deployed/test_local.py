"""The processes of a tree on this machine: their ports, and how they end with their starter."""

import os
import select
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from covey.deployed import local

POSIX = pytest.mark.skipif(os.name != "posix", reason="processes are not forked")


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
