"""MB a second that one child sends over a slow connection, by the number of its siblings' seats."""

from __future__ import annotations

import queue
import socket
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from covey.deployed.transport.grpc_options import Limits
from tests.deployed.tree import family, key

SIZE = 40 * 2**20
"""Bytes of an answer."""
ROUND_TRIPS = (0.0, 0.02, 0.1)
"""Seconds from a request to its answer on the connection."""
SEATS = (4, 12, 100)
ASKS = 3
_PIECE = 2**16
Late = queue.SimpleQueue[tuple[float, bytes]]


class Distance:
    """Forwards a connection; every byte arrives later, and none waits for another."""

    def __init__(self, target: str, seconds: float) -> None:
        """`seconds` is the delay of one direction."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._seconds = seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no connections any more."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                child, _ = self._listener.accept()
                parent = socket.create_connection(self._target)
                for source, sink in ((child, parent), (parent, child)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    late: Late = queue.SimpleQueue()
                    threading.Thread(target=self._take, args=(source, late), daemon=True).start()
                    threading.Thread(target=self._give, args=(late, sink), daemon=True).start()

    def _take(self, source: socket.socket, late: Late) -> None:
        data = b"-"
        while data:
            data = b""
            with suppress(OSError):
                data = source.recv(_PIECE)
            late.put((time.monotonic() + self._seconds, data))

    def _give(self, late: Late, sink: socket.socket) -> None:
        with suppress(OSError):
            while True:
                due, data = late.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)


def run() -> list[dict[str, Any]]:
    """Every number of seats at every distance."""
    return [_speed(seats, trip) for seats in SEATS for trip in ROUND_TRIPS]


def _speed(seats: int, trip: float) -> dict[str, Any]:
    answer = b"x" * SIZE
    speeds = []
    with (
        tempfile.TemporaryDirectory() as folder,
        family(Path(folder), count=seats, secure=False, limits=Limits()) as tree,
    ):
        distance = Distance(tree.parent.address, trip / 2)
        tree.dial(0, handler=lambda *_: answer, address=distance.address)
        tree.wait(0)
        for number in range(ASKS):
            began = time.monotonic()
            tree.parent.ask(key(number), b"", {0: b""})
            speeds.append(SIZE / 1e6 / (time.monotonic() - began))
        distance.close()
    middle = round(statistics.median(speeds), 1)
    return {"seats": seats, "ms there and back": 1e3 * trip, "MB/s": middle}
