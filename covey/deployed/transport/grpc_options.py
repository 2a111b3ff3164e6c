"""What both ends of a gRPC stream have in common: limits, options, and one event loop."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from covey.deployed.operate.certificates import FileMark, Identity
from covey.deployed.plan.process import host_of, is_loopback
from covey.deployed.transport.extras import grpc
from covey.deployed.transport.transport import MAX_FRAME, MAX_MESSAGE
from covey.errors import ConfigError, CoveyError, TransportError

SERVICE = "covey.Tree"
METHOD = "Join"
TLS = b"TLSv1.3"
LOG = logging.getLogger("covey.deployed")
Option = tuple[str, int | str]
_T = TypeVar("_T")
_AHEAD = 2**24
"""Bytes that all children together may send beyond the frames that their parent reads.

gRPC would let this grow with the speed of the connection, and hold many answers in its own memory.
"""
_LEAST_AHEAD = 2**18
_MOST_AHEAD = 2**22
_LOOK = 1.0  # s between two looks whether the event loop is alive


@dataclass(frozen=True)
class Limits:
    """What a stream may take: bytes, seconds and mistakes."""

    message: int = MAX_MESSAGE
    """Bytes of a message."""
    held: int = 2**23
    """Bytes of answers to an ask that are held in memory; others wait in a file."""
    held_requests: int = 2
    """Answers are held in any case until they take as much as so many requests."""
    unchecked: int = 2**22
    """Bytes of answers that wait to be checked, above which no more are read."""
    window: int = 2
    """Requests that a seat may have without an answer; the next one waits."""
    hello_seconds: float = 10
    """From the opening of a stream to its first message."""
    stall_seconds: float = 60
    """Between two frames of a message."""
    frame_seconds: float = 300
    """Until a child has taken a frame that is sent to it; many children may share a slow link."""
    keepalive_seconds: float = 10
    """Between two pings; both ends ping."""
    keepalive_timeout: float = 5
    """Until a ping without an answer ends the connection."""
    check_seconds: float = 2
    """Between two checks of the certificates of open streams."""
    strikes: int = 3
    """Bad messages after which a seat is evicted."""
    settled_seconds: float = 10
    """A stream that has lived so long was a good one: the next pause is a short one again."""
    note_seconds: float = 30
    """An ask that waits so long is logged with the seats it waits for; then ever more rarely."""


def options(limits: Limits) -> list[Option]:
    """The options of both ends."""
    milliseconds = int(1000 * limits.keepalive_seconds)
    return [
        ("grpc.max_receive_message_length", MAX_FRAME),
        ("grpc.max_send_message_length", MAX_FRAME),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", int(1000 * limits.keepalive_timeout)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.ping_timeout_ms", int(1000 * limits.keepalive_timeout)),
        ("grpc.http2.max_ping_strikes", 0),  # both ends ping, and gRPC pings after data too
    ]


def server_options(limits: Limits, children: int) -> list[Option]:
    """The options of a parent with so many children at most."""
    share = _AHEAD // max(1, children)
    ahead = min(max(share, _LEAST_AHEAD), _MOST_AHEAD)
    return [
        *options(limits),
        ("grpc.so_reuseport", 0),  # a second parent on a port must fail
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", ahead),
        ("grpc.max_concurrent_streams", 2),
        ("grpc.max_connection_idle_ms", 60_000),
        ("grpc.server_handshake_timeout_ms", int(1000 * limits.hello_seconds)),
    ]


def channel_options(limits: Limits, parent: str | None) -> list[Option]:
    """The options of a child; its parent must show a certificate of this name."""
    out = [
        *options(limits),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    if parent is not None:
        out.append(("grpc.ssl_target_name_override", parent))
    return out


def server_credentials(identity: Identity, begun: Callable[[], None]) -> Any:
    """Mutual TLS with the certificate that lies in the folder at every handshake.

    `begun` is called at each of them: gRPC does not tell which ones fail.
    """
    library = grpc()
    unread = Failures()

    def files() -> tuple[bytes, bytes, bytes]:
        return identity.key(), identity.certificate(), identity.authority()

    shown = files()

    def configuration() -> Any:
        key, certificate, authority = shown
        return library.ssl_server_certificate_configuration([(key, certificate)], authority)

    def renewed() -> Any:
        """The new configuration, or None where the files are the same or cannot be read."""
        nonlocal shown
        begun()
        try:
            now = files()
        except CoveyError as error:
            text = f"the certificate is not renewed: {error}"
            unread.note(logging.ERROR, "certificate_unread", text)
            return None
        unread.clear()
        if now == shown:
            return None
        shown = now
        return configuration()

    return library.dynamic_ssl_server_credentials(
        configuration(), renewed, require_client_authentication=True
    )


def channel_credentials(identity: Identity) -> Any:
    """Mutual TLS with the certificate that lies in the folder now."""
    return grpc().ssl_channel_credentials(
        identity.authority(), identity.key(), identity.certificate()
    )


def check_plain(address: str) -> None:
    """Refuse an address that other machines reach, where there are no certificates.

    >>> check_plain("127.0.0.1:8443")
    """
    if not is_loopback(host_of(address)):
        fix = "use certificates (covey certs), or an address such as 127.0.0.1"
        raise ConfigError(f"{address} without certificates would be open to others; {fix}.")


def waits(base: float = 0.1, most: float = 5.0) -> Iterator[float]:
    """Seconds to wait before each attempt: random, up to a bound that doubles."""
    draw = random.Random()
    bound = base
    while True:
        yield draw.uniform(base / 2, bound)
        bound = min(2 * bound, most)


@dataclass
class Failures:
    """How many times in a row the same thing has failed, and when that is worth a line."""

    count: int = 0
    _text: str = ""

    def add(self, text: str) -> bool:
        """Count a failure; return whether to log it: a new text, and then ever more rarely."""
        self.count += 1
        new = text != self._text
        self._text = text
        return new or self.count & (self.count - 1) == 0 or self.count % 128 == 0

    def note(self, level: int, event: str, text: str) -> None:
        """Count a failure, and log it as an event where that is worth a line."""
        if self.add(text):
            say(level, event, text, count=self.count)

    def clear(self) -> None:
        """It went well."""
        self.count = 0
        self._text = ""


@dataclass
class Revoked:
    """The numbers of revoked certificates, as they were read last; there may be none to read."""

    identity: Identity | None
    numbers: frozenset[int] = frozenset()
    unread: Failures = field(default_factory=Failures)
    _files: tuple[FileMark, ...] | None = None
    """The files that say what is revoked, as they were when they were last read."""

    def read(self, *, anew: bool = False) -> frozenset[int]:
        """What is revoked, read if its files are other ones than before, or `anew`.

        Where that fails, what was revoked before stays so.
        """
        if self.identity is None:
            return self.numbers
        try:
            files = self.identity.revoked_files()
            if anew or files != self._files:
                self.numbers |= self.identity.revoked()
                self._files = files
                self.unread.clear()
        except (CoveyError, OSError, ValueError) as error:
            self._files = None
            text = f"the revoked certificates are not read anew: {error}"
            self.unread.note(logging.ERROR, "revoked_unread", text)
        return self.numbers


def say(level: int, event: str, text: str, **facts: Any) -> None:
    """Log an event with its facts; the log of a process writes them as JSON."""
    LOG.log(level, "%s: %s", event, text, extra={"facts": facts})


def broken() -> tuple[type[Exception], ...]:
    """What gRPC raises where a stream has ended, from either side."""
    aio = grpc().aio
    return (aio.AioRpcError, aio.BaseError, asyncio.InvalidStateError, OSError)


@dataclass
class _Loop:
    """An event loop with its thread, and what has ended it."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.loop.set_exception_handler(_unseen)
        self.thread = threading.Thread(target=self._run, name="covey-grpc", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        except BaseException as error:
            self.error = error
            say(logging.CRITICAL, "loop_ended", f"the event loop has ended: {error!r}")


def _unseen(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no caller of the event loop sees."""
    error = context.get("exception")
    say(logging.ERROR, "unseen_error", f"{context['message']}: {error!r}")


_LOCK = threading.Lock()
_LOOP: list[_Loop] = []


def shared_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process, in a thread of its own.

    grpc.aio knows one loop per process, so all ends of streams share it.
    """
    with _LOCK:
        if not _LOOP:
            _LOOP.append(_Loop())
        return _LOOP[0].loop


async def first_ended(*work: Awaitable[Any]) -> list[asyncio.Future[Any]]:
    """Do several things until one of them has ended, or more; the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def next_frame(call: Any, seconds: float | None) -> bytes | None:
    """The next frame of a stream, or a TimeoutError; None: the other end has closed its side."""
    async with asyncio.timeout(seconds):
        data: bytes = await call.read()
    return None if data is grpc().aio.EOF else data


_BACKGROUND: set[asyncio.Future[None]] = set()


def begin(work: Coroutine[Any, Any, None]) -> None:
    """Do something for which nobody waits: a check, the end of a file, a note of the evicted."""
    task = asyncio.ensure_future(work)
    _BACKGROUND.add(task)
    task.add_done_callback(_BACKGROUND.discard)


def outcome(future: Future[_T]) -> _T:
    """What a coroutine of the event loop returns; an error too if the loop itself has ended."""
    while True:
        try:
            return future.result(_LOOK)
        except CancelledError:
            raise TransportError("the transport is closed.") from None
        except TimeoutError:
            if future.done():
                return future.result()
            if not _LOOP[0].thread.is_alive():
                raise TransportError(
                    f"the event loop has ended: {_LOOP[0].error!r}; start the process again."
                ) from _LOOP[0].error
