"""Bytes on the sockets of a process, as the kernel counts them; Linux alone tells them.

The meter counts payload, as in the simulator. On a socket there are also heads, facts, scores,
frames and TLS.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Link = Literal["children", "parent"]
_DESCRIPTORS = "/proc/self/fd"
_COUNTS = struct.Struct("=QQ")  # bytes that were acknowledged, and bytes that were received
_COUNTS_OFFSET = 120  # of both in the kernel's struct tcp_info
_LONGEST = 256  # bytes of a struct tcp_info that are read
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_LOOK = 10.0  # s between two looks: what a connection carries after the last one is not counted


@dataclass(frozen=True)
class SocketCounts:
    """Bytes that were sent and received, without those that TCP sent again."""

    sent: int = 0
    received: int = 0

    def __add__(self, other: SocketCounts) -> SocketCounts:
        return SocketCounts(self.sent + other.sent, self.received + other.received)


class SocketBytes:
    """Counts the bytes between a process and its parent, and between it and its children."""

    def __init__(self, listen: int | None, parent: int | None) -> None:
        """The port that the process listens on, and the port of its parent."""
        self._listen = listen
        self._parent = parent
        self._lock = threading.Lock()
        self._ended: dict[Link, SocketCounts] = {}
        if listen is not None:
            self._ended["children"] = SocketCounts()
        if parent is not None:
            self._ended["parent"] = SocketCounts()
        self._open: dict[tuple[int, Link], SocketCounts] = {}

    def watch(self, stop: threading.Event) -> None:
        """Look now and then until `stop`, so that little is missed of connections that end."""
        while not stop.wait(_LOOK):
            self.read()

    def read(self) -> dict[Link, SocketCounts]:
        """What every link has carried so far; empty where the system does not tell now."""
        if sys.platform != "linux":
            return {}
        with self._lock:
            try:
                now = self._look()
            except OSError:  # there is no /proc, or no descriptor is free to look with
                return {}
            for connection, counts in self._open.items():
                later = now.get(connection)
                if later is None or later.received < counts.received:  # another has its number
                    self._ended[connection[1]] += counts
            self._open = now
            totals = dict(self._ended)
            for (_, link), counts in now.items():
                totals[link] += counts
            return totals

    def _look(self) -> dict[tuple[int, Link], SocketCounts]:
        """The counts of all open connections, by the number of the socket and its link."""
        out: dict[tuple[int, Link], SocketCounts] = {}
        for name in os.listdir(_DESCRIPTORS):
            try:
                out |= self._counted(int(name))
            except OSError as error:  # it was closed meanwhile, or is no connection
                if error.errno in _NO_DESCRIPTOR:  # an open connection would count as ended
                    raise
        return out

    def _counted(self, descriptor: int) -> dict[tuple[int, Link], SocketCounts]:
        """The counts of one file descriptor; empty unless it is a connection of the tree."""
        if not os.readlink(f"{_DESCRIPTORS}/{descriptor}").startswith("socket:"):
            return {}
        copy = os.dup(descriptor)
        try:
            connection = socket.socket(fileno=copy)
        except OSError:  # another file has got the descriptor meanwhile
            os.close(copy)
            raise
        with connection:
            link = self._link(connection)
            if link is None:
                return {}
            number = os.fstat(connection.fileno()).st_ino
            facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LONGEST)
            if len(facts) < _COUNTS_OFFSET + _COUNTS.size:
                return {}
            sent, received = _COUNTS.unpack_from(facts, _COUNTS_OFFSET)
            return {(number, link): SocketCounts(sent, received)}

    def _link(self, connection: socket.socket) -> Link | None:
        """Whom a socket leads to; None: neither to a child nor to the parent."""
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        other = connection.getpeername()[1]  # an error where it only listens
        if self._listen is not None and connection.getsockname()[1] == self._listen:
            return "children"
        if self._parent is not None and other == self._parent:
            return "parent"
        return None


@contextmanager
def counted(listen: str | None, parent: str | None) -> Iterator[SocketBytes]:
    """The counts of a process that has these addresses, looked at now and then."""
    out = SocketBytes(_port(listen), _port(parent))
    stop = threading.Event()
    threading.Thread(target=out.watch, args=(stop,), daemon=True).start()
    try:
        yield out
    finally:
        stop.set()


def _port(address: str | None) -> int | None:
    if address is None:
        return None
    return int(address.rpartition(":")[2])
