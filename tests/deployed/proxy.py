"""A TCP proxy that can go silent, as a network does that loses every packet."""

import socket
import threading
from contextlib import suppress


class Proxy:
    """Forwards connections to an address, unless it is cut: then bytes go nowhere."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Lose everything that is sent from now on, on connections old and new."""
        self._open.clear()

    def mend(self) -> None:
        """Forward again; connections that lost bytes are closed."""
        self._open.set()
        self._close_all()

    def close(self) -> None:
        self._listener.close()
        self._open.set()
        self._close_all()

    def _close_all(self) -> None:
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if self._open.is_set():
                    sink.sendall(data)
        if self._open.is_set():
            with suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)
