"""What the sockets of a process carry, as the kernel counts it."""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from covey.deployed.commands.ctl_screen import on_sockets
from covey.deployed.operate.progress import Progress
from covey.deployed.transport import socket_bytes
from covey.deployed.transport.socket_bytes import SocketBytes, SocketCounts, counted

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells the counts")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as out:
        yield out


def exchanged(listener: socket.socket, up: bytes, down: bytes) -> ExitStack:
    """A connection that has carried bytes both ways, open until the stack is closed."""
    stack = ExitStack()
    child = stack.enter_context(closing(socket.create_connection(listener.getsockname())))
    parent = stack.enter_context(closing(listener.accept()[0]))
    for sender, receiver, data in ((child, parent, up), (parent, child, down)):
        sender.sendall(data)
        left = len(data)
        while left:
            left -= len(receiver.recv(left))
    return stack


@LINUX
def test_both_ends_count_the_same_bytes(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    parent = SocketBytes(listen=port, parent=None)
    child = SocketBytes(listen=None, parent=port)
    with exchanged(listener, bytes(5000), bytes(70_000)):
        assert parent.read()["children"].received == 5000
        assert child.read()["parent"].received == 70_000
        # An acknowledgement may be under way; the first of all is that of the connection itself.
        assert child.read()["parent"].sent <= 5001
    assert set(parent.read()) == {"children"}


@LINUX
def test_connections_that_have_ended_still_count(listener: socket.socket) -> None:
    child = SocketBytes(listen=None, parent=listener.getsockname()[1])
    for _ in range(3):
        with exchanged(listener, bytes(10), bytes(1000)):
            child.read()
    assert child.read()["parent"].received == 3000


@LINUX
def test_other_sockets_are_left_out(listener: socket.socket) -> None:
    other = SocketBytes(listen=1, parent=2)
    with exchanged(listener, bytes(10), bytes(10)):
        assert other.read() == {"children": SocketCounts(), "parent": SocketCounts()}


@LINUX
def test_metrics_and_the_screen_have_them(listener: socket.socket) -> None:
    progress = Progress("device0", "device")
    with counted(None, f"127.0.0.1:{listener.getsockname()[1]}") as sockets:
        progress.sockets = sockets
        with exchanged(listener, bytes(10), bytes(2000)):
            text = progress.prometheus()
            status = progress.as_dict()
    labels = 'direction="received",link="parent",process="device0"'
    assert f"covey_socket_bytes_total{{{labels}}} 2000.0\n" in text
    assert "2 kB received" in on_sockets([status])[0]
    assert on_sockets([{"process": "device1", "state": "not running", "seats": []}]) == []


@LINUX
def test_a_descriptor_that_becomes_a_file_meanwhile_leaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a descriptor and its copy, another file may get its number."""
    monkeypatch.setattr(os, "readlink", lambda path: "socket:[1]")
    counts = SocketBytes(listen=1, parent=None)
    with (tmp_path / "file").open("w", encoding="utf-8"):
        before = os.listdir("/proc/self/fd")
        counts.read()
        assert os.listdir("/proc/self/fd") == before


@LINUX
@pytest.mark.parametrize("name", ["listdir", "dup"])
def test_without_a_free_descriptor_no_count_is_lost(
    listener: socket.socket, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    progress = Progress("device0", "device")
    child = progress.sockets = SocketBytes(listen=None, parent=listener.getsockname()[1])
    with exchanged(listener, bytes(10), bytes(1000)):
        assert child.read()["parent"].received == 1000
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            assert progress.as_dict()["socket_bytes"] == {}
        assert child.read()["parent"].received == 1000


@LINUX
def test_a_system_without_proc_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_bytes, "_DESCRIPTORS", "/nowhere")
    assert SocketBytes(listen=1, parent=2).read() == {}
