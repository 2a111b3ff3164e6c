"""A TCP proxy that does what networks do: it delays, stalls, loses everything, and breaks off."""

import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

Inside = Callable[[], AbstractContextManager[None]]
ANSWER = 400
"""Bytes: what a child sends at once and is longer is no ping, but an answer."""


class Proxy:
    """Forwards connections to an address, and can be told to do so badly.

    A child dials the proxy, and the proxy dials the child's parent. `inside` is the context in
    which the proxy makes its sockets, such as that of a network namespace.
    """

    def __init__(
        self, target: str, host: str = "127.0.0.1", inside: Inside = nullcontext, seed: int = 0
    ) -> None:
        address, _, port = target.rpartition(":")
        self._target = (address, int(port))
        self._inside = inside
        self._draw = random.Random(seed)
        self._open = threading.Event()
        self._open.set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._sockets: list[socket.socket] = []
        self.delay = 0.0
        """Seconds that everything takes longer, in both directions."""
        self.late_share = 0.0
        """The share of answers that are late."""
        self.late_seconds = 0.0
        """By how much they are."""
        self.late = 0
        """How many answers were late so far."""
        with inside():
            self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Lose everything that is sent from now on, on connections old and new."""
        self._open.clear()

    def mend(self) -> None:
        """Forward again; connections that lost bytes are closed."""
        self._open.set()
        self._close_all()

    def stall(self) -> None:
        """Forward nothing until `flow`, and lose nothing."""
        self._flowing.clear()

    def flow(self) -> None:
        """Forward what has come meanwhile, and go on."""
        self._flowing.set()

    def reset(self) -> None:
        """Break off all connections."""
        self._close_all()

    def close(self) -> None:
        self._listener.close()
        self._open.set()
        self._flowing.set()
        self._close_all()

    def _close_all(self) -> None:
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets.clear()

    def _accept(self) -> None:
        with suppress(OSError), self._inside():
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:  # the parent does not listen yet: the child dials again
                    near.close()
                    continue
                self._sockets += [near, far]
                for source, sink, up in ((near, far, True), (far, near, False)):
                    arguments = (source, sink, up)
                    threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._wait(data, up)
                if self._open.is_set():
                    sink.sendall(data)
        if self._open.is_set():
            with suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)

    def _wait(self, data: bytes, up: bool) -> None:
        """Wait as long as these bytes are to take."""
        self._flowing.wait()
        if self.delay:
            time.sleep(self.delay)
        if up and len(data) >= ANSWER and self._draw.random() < self.late_share:
            self.late += 1
            time.sleep(self.late_seconds)
