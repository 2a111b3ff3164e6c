"""The control port of a process: its status, its metrics, and the orders of an operator.

It listens on loopback. There all users of the machine may look, and orders need a token that lies
in the state folder, for the user of the node alone. On another address it asks for a certificate of
the tree's authority that names `operator`, or to look `observer`. It never shares a port with the
nodes.

    GET /status   GET /metrics   GET /healthz   GET /readyz   GET /token
    POST /pause   POST /resume   POST /stop   POST /evict/SEAT   POST /admit/SEAT
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import secrets
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from covey import atomic
from covey.deployed.operate.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    Identity,
    SeatCertificate,
)
from covey.deployed.operate.events import EventLog
from covey.deployed.operate.progress import Progress
from covey.deployed.plan.process import LOOPBACK, host_of, is_loopback
from covey.deployed.plan.seats import OBSERVER, OPERATOR
from covey.errors import ConfigError, CoveyError, TransportError

ORDERS = ("pause", "resume", "stop", "evict", "admit")
CONTROL_HEADER = "X-Covey-Control"
"""A header that no page of a browser can send to another site without being asked first.

On loopback it holds the token.
"""
TOKEN = "control.token"
"""The file of the state folder with the port and a secret of the process that runs now."""
_PROBE = 4096  # bytes that a disk must take
SECONDS = 10.0  # that a request may take
_MOST = 64  # connections at a time: each takes a thread and a descriptor of the node
_POLL = 0.05  # s between two looks whether the port is to be closed
PROCESS_HEADER = "X-Covey-Process"
"""A header with the name of the process that is meant: other nodes may have its port elsewhere."""
MISDIRECTED = 421
"""The HTTP status of a request to a process that is not this one."""
_NO_SIGNAL = 0
_TEXT = "text/plain"
_Answer = tuple[int, str, str]
"""The HTTP status, the text, and its kind."""
SeatOrder = Callable[[str], None]


@dataclass(eq=False)
class Control:
    """The control port of one process; `port` 0 takes a free one, which stands there then."""

    progress: Progress
    _: KW_ONLY
    host: str = LOOPBACK
    port: int = 0
    identity: Identity | None = None
    """It is needed beyond loopback, and used there alone."""
    log: EventLog = field(default_factory=partial(EventLog, "control"))
    state: Path | None = None
    """The state folder, for orders on loopback."""
    evict: SeatOrder | None = None
    """Puts a child out of its seat."""
    admit: SeatOrder | None = None
    """Lets it back in."""

    def __post_init__(self) -> None:
        context = None
        if is_loopback(self.host):
            self.identity = None
        elif self.identity is None:
            fix = f"use {LOOPBACK}, or give the node a certificate and leave out --insecure"
            raise ConfigError(f"the control port on {self.host} needs a certificate; {fix}.")
        else:
            context = tls_context(self.identity, ssl.PROTOCOL_TLS_SERVER)
        try:
            self._server = _Server((self.host, self.port), self, context)
        except OSError as error:
            fix = "give another control_host or control_port"
            if error.errno == errno.EADDRINUSE:
                fix = "end the process that has it, or give another control_port"
            raise TransportError(
                f"the control port {self.host}:{self.port}: {error.strerror or error}; {fix}."
            ) from error
        self.port = int(self._server.server_address[1])
        state = self.state
        if state is not None:
            with suppress(OSError):  # the node says next that its state takes nothing
                state.mkdir(parents=True, exist_ok=True, mode=0o700)
                (state / TOKEN).unlink(missing_ok=True)
                # A new token of this port: whoever can read it may give orders.
                atomic.write(state / TOKEN, f"{self.port} {secrets.token_hex()}", 0o600)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Answer until the port is closed; a process without its control port says so."""
        try:
            self._server.serve_forever(_POLL)
        except Exception as error:
            self.log.error("control_ended", text=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def knows(self, token: str) -> bool:
        """Whether this is the token that lies in the state folder now."""
        with suppress(OSError):
            if self.state is not None:
                return hmac.compare_digest(token.encode(), (self.state / TOKEN).read_bytes())
        return False

    def unready(self) -> list[str]:
        """Why the process cannot do its work now; nothing: it can."""
        out = []
        if self.progress.state in ("starting", "dialling", "draining", "ended"):
            out.append(f"no seat is taken: it is {self.progress.state}")
        left = self.progress.certificate_left()
        if left is not None and left <= 0:
            out.append("its certificate has ended")
        try:
            with tempfile.TemporaryFile(dir=self.state, buffering=0) as file:
                file.write(bytes(_PROBE))
        except OSError as error:
            out.append(f"its disk takes nothing: {error}")
        return out

    def obey(self, order: str, seat: str | None) -> str:
        """Carry out an order; return what was done."""
        if order == "pause":
            if self.progress.draining:
                raise ConfigError(f"{self.progress.process} is draining, and cannot be paused.")
            self.progress.pause()
            return "paused: what is under way ends, nothing new begins"
        if order == "resume":
            self.progress.resume()
            return "resumed"
        if order == "stop":
            self.progress.drain()
            return "draining: the process ends after what is under way"
        obey = self.evict if order == "evict" else self.admit
        if obey is None or seat is None or seat not in self._children():
            children = ", ".join(self._children()) or "none"
            raise ConfigError(
                f"{self.progress.process} cannot {order} {seat!r}; its children: {children}."
            )
        obey(seat)
        if order == "admit":
            return f"admitted {seat}: its process may take the seat again"
        return f"evicted {seat}: its stream is closed, and it is refused until it is admitted"

    def _children(self) -> list[str]:
        return [name for name, seat in list(self.progress.seats.items()) if not seat.own]


class _Server(ThreadingHTTPServer):
    """The HTTP server behind a control port."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, address: tuple[str, int], control: Control, context: ssl.SSLContext | None
    ) -> None:
        self.control = control
        self._context = context
        self._until: dict[Any, float] = {}
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Requests)
        if context is not None:
            # A handshake is in the thread of its connection: a silent peer stops no other.
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def get_request(self) -> Any:
        """The next connection, with the certificate that lies in the folder now."""
        identity = self.control.identity
        if self._context is not None and identity is not None:
            try:
                _load(self._context, identity)
            except (CoveyError, OSError) as error:  # while it is being renewed
                self.control.log.error("control_certificate", text=str(error))
        return super().get_request()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, within a time; the oldest make room."""
        for oldest in list(self._until)[: max(0, len(self._until) - _MOST + 1)]:
            self._end(oldest)
        self._until[request] = time.monotonic() + SECONDS
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection has ended."""
        self._until.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that take too long: a peer may send a byte every now and then."""
        now = time.monotonic()
        for request, until in list(self._until.items()):
            if now > until:
                self._end(request)

    def _end(self, request: Any) -> None:
        """End a connection; its thread sees that it has ended."""
        self._until.pop(request, None)
        with suppress(OSError):
            socket.socket.shutdown(request, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Count connections that fail, such as those of strangers, and log what is unforeseen."""
        self.control.progress.knocks["control_failures"] += 1
        error = sys.exception()
        if not isinstance(error, OSError):
            text = f"{type(error).__name__}: {error}"
            self.control.log.warning("control_connection_failed", peer=client_address[0], text=text)


class _Requests(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: _Server
    timeout = SECONDS

    def do_GET(self) -> None:
        self._answer(*self._refusal() or self._told())

    def do_POST(self) -> None:
        self._answer(*self._refusal() or self._obeyed())

    def _told(self) -> _Answer:
        """What the process tells of itself."""
        control = self.server.control
        if self.path == "/status":
            return 200, json.dumps(control.progress.as_dict()), "application/json"
        if self.path == "/metrics":
            return 200, control.progress.prometheus(), "text/plain; version=0.0.4"
        if self.path == "/healthz":
            return 200, "ok\n", _TEXT
        if self.path == "/readyz":
            reasons = control.unready()
            return 503 if reasons else 200, "\n".join(reasons or ["ok"]) + "\n", _TEXT
        if self.path == "/token" and control.state is not None:
            return 200, str((control.state / TOKEN).absolute()), _TEXT
        return 404, "GET /status, /metrics, /healthz, /readyz or /token", _TEXT

    def _obeyed(self) -> _Answer:
        """What an order came to."""
        control = self.server.control
        order, _, name = self.path.removeprefix("/").partition("/")
        seat = name or None
        if order not in ORDERS or self.headers.get(CONTROL_HEADER) is None:
            return 404, f"POST {', '.join(ORDERS)}, by covey ctl", _TEXT
        if control.identity is None and not control.knows(self.headers[CONTROL_HEADER]):
            return 403, f"orders need what {TOKEN} in the node's state folder holds", _TEXT
        try:
            done = control.obey(order, seat)
        except CoveyError as error:
            return 409, str(error), _TEXT
        control.log.info("order", order=order, seat=seat)
        return 200, done, _TEXT

    def _refusal(self) -> _Answer | None:
        """Why a request is refused: of no operator, or to another process; None: it is not."""
        control = self.server.control
        if control.identity is None:
            # A page whose host name leads to loopback is of another site.
            if not is_loopback(host_of(self.headers.get("Host") or "")):
                return 403, "the control port answers requests to loopback alone", _TEXT
        else:
            assert isinstance(self.connection, ssl.SSLSocket)
            peer = shown_by(self.connection)
            roles = {OPERATOR} if self.command == "POST" else {OPERATOR, OBSERVER}
            if not roles & {*peer.seats} or peer.serial in control.identity.revoked():
                needed = f"this needs the certificate of {OPERATOR}, not of {', '.join(peer.seats)}"
                return 403, f"{needed}; covey certs issue {OPERATOR}", _TEXT
        own = control.progress.process
        meant = self.headers.get(PROCESS_HEADER, own)
        if meant != own:
            what = f"this is the control port of {own}, not of {meant!r:.80}"
            return MISDIRECTED, what, _TEXT
        return None

    def _answer(self, code: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: orders are events of the process's own log."""


def shown_by(peer: ssl.SSLSocket) -> SeatCertificate:
    """The certificate of the other side of a connection."""
    der = peer.getpeercert(binary_form=True)
    return SeatCertificate.of(ssl.DER_cert_to_PEM_cert(der or b"").encode())


def tls_context(identity: Identity, protocol: int) -> ssl.SSLContext:
    """TLS 1.3 with a certificate on both sides."""
    identity.check()
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The names in certificates are seats, not hosts; the other side must be of the same authority.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    _load(context, identity)
    context.load_verify_locations(identity.folder / AUTHORITY)
    return context


def _load(context: ssl.SSLContext, identity: Identity) -> None:
    """Let new connections show the certificate that lies in the folder now."""
    folder = identity.folder
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)


@contextmanager
def drained(progress: Progress, log: EventLog) -> Iterator[None]:
    """SIGTERM and Ctrl-C let the process end after what is under way; a second one ends it now.

    A signal comes in the middle of anything, also while this thread has the lock of the log. So the
    handler takes no lock: it tells a thread that waits for it.
    """
    reading, writing = os.pipe()
    asked = False

    def hear(number: int, frame: object) -> None:
        nonlocal asked
        if asked or progress.draining:
            raise KeyboardInterrupt
        asked = True
        os.write(writing, bytes([number]))

    def obey() -> None:
        number = os.read(reading, 1)[0]
        if number != _NO_SIGNAL:
            log.info("draining", signal=signal.Signals(number).name)
            progress.drain()

    thread = threading.Thread(target=obey, name="covey-signals", daemon=True)
    with ExitStack() as stack:
        stack.callback(os.close, reading)
        stack.callback(os.close, writing)
        thread.start()
        stack.callback(thread.join)
        stack.callback(os.write, writing, bytes([_NO_SIGNAL]))
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, hear)  # an error outside of the main thread
            stack.callback(signal.signal, number, before)
        yield
