"""A page of runs that are under way, served to this machine alone.

The server only reads. It listens on 127.0.0.1, and answers no request for another host: a page from
elsewhere, whose name was made to resolve to this machine, learns nothing. Starlette and uvicorn are
imported when a server starts.
"""

from __future__ import annotations

import hashlib
import html
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from covey.errors import ConfigError, CoveyError
from covey.report.facts import Facts, as_json
from covey.runs.saved import status

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
_POLL = 0.5  # s between two looks at the folders
_HEARTBEAT = 15.0  # s without an event after which a comment is sent
_NAMES = ("127.0.0.1", "localhost")
_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_NO_CONTENT = "default-src 'none'; frame-ancestors 'none'"
_META = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)"', re.IGNORECASE)
Build = Callable[[Mapping[str, Any]], str]
"""Makes a page of facts."""
InThread = Callable[[Callable[[], "Edition"]], Awaitable["Edition"]]
"""Calls a function in a thread of its own."""


@dataclass(frozen=True, eq=False)
class Edition:
    """The facts at one time: the value, its text, and a tag for browsers that have the text."""

    value: dict[str, Any]
    text: str
    tag: str
    running: bool

    @staticmethod
    def of(facts: Facts) -> Edition:
        """The facts as they are now."""
        running = facts.running
        value = facts.read() | {"live": {"running": running}}
        text = as_json(value)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Edition(value, text, f'"{digest[:16]}"', running)


class LiveFacts:
    """The facts of runs as they are now, read again where their folders have changed.

    What was read last stays while a folder cannot be read, as when a run has just been removed.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._stamp = self._seen()
        self._edition = Edition.of(facts)
        self._rest_until = 0.0

    def edition(self) -> Edition:
        """The facts; the folders are read again if they have changed, by one thread at a time.

        The machine may be that of the run, so this takes a tenth of the time at most.
        """
        with self._lock:
            began = time.monotonic()
            if began >= self._rest_until:
                with suppress(CoveyError):
                    stamp = self._seen()
                    if stamp != self._stamp:
                        self._edition = Edition.of(self._facts)
                        self._stamp = stamp
                took = time.monotonic() - began
                self._rest_until = began + 10 * took
            return self._edition

    def _seen(self) -> tuple[object, ...]:
        """Sizes and times of every file that the facts are read from, and who is running."""
        out: list[object] = []
        for folder in self._facts.folders:
            out.append(status.running(folder))
            for pattern in ("*.json*", "seed-*/*.json*", "compare/**/*.json*"):
                out += [_stamp(path) for path in sorted(folder.glob(pattern))]
        return tuple(out)


def _stamp(path: Path) -> tuple[str, int, int]:
    """The name, time and size of a file; zeros where it is gone."""
    try:
        state = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), state.st_mtime_ns, state.st_size


def listen(port: int) -> socket.socket:
    """A socket on this machine alone; port 0 is one that is free."""
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise ConfigError(
            f"--port {port}: {error.strerror or error}; give another port, or none for a free one."
        ) from error


def server(live: LiveFacts, build: Build) -> tuple[uvicorn.Server, threading.Event]:
    """A server, and an event that ends its streams; a signal to stop sets it."""
    import uvicorn

    stopping = threading.Event()

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            stopping.set()
            super().handle_exit(sig, frame)

    settings = uvicorn.Config(
        application(live, build, stopping),
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return Server(settings), stopping


def application(live: LiveFacts, build: Build, stopping: threading.Event) -> Starlette:
    """The three addresses: the page, its facts, and events that say when these have changed."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    def page(request: Request) -> Response:
        text = build(live.edition().value)
        headers = {**_HEADERS, "content-security-policy": policy(text)}
        return Response(text, media_type="text/html", headers=headers)

    def facts(request: Request) -> Response:
        now = live.edition()
        headers = {**_HEADERS, "content-security-policy": _NO_CONTENT, "etag": now.tag}
        headers["cache-control"] = "no-cache"
        if request.headers.get("if-none-match") == now.tag:
            return Response(status_code=304, headers=headers)
        return Response(now.text, media_type="application/json", headers=headers)

    def events(request: Request) -> Response:
        headers = {**_HEADERS, "content-security-policy": _NO_CONTENT}
        changes = _events(live, stopping, run_in_threadpool)
        return StreamingResponse(changes, media_type="text/event-stream", headers=headers)

    routes = [Route("/", page), Route("/facts.json", facts), Route("/events", events)]
    return Starlette(routes=routes, middleware=[Middleware(LoopbackOnly)])


async def _events(
    live: LiveFacts, stopping: threading.Event, in_thread: InThread
) -> AsyncIterator[str]:
    """An event for the facts as they are, for every change of them, and in the end."""
    import asyncio

    sent = ""
    silent = 0.0
    while not stopping.is_set():
        now = await in_thread(live.edition)
        silent += _POLL
        if now.tag != sent:
            sent = now.tag
            silent = 0.0
            yield f"event: facts\ndata: {now.tag}\n\n"
        elif silent >= _HEARTBEAT:
            silent = 0.0
            yield ": still here\n\n"
        if not now.running:
            yield "event: end\ndata: {}\n\n"
            return
        await asyncio.sleep(_POLL)


class LoopbackOnly:
    """Refuses requests that name another host than this machine."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 unless the one header Host is a name of this machine."""
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":  # no web sockets
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        app = self._app
        if len(hosts) != 1 or not is_loopback(hosts[0]):
            text = f"this page is for http://{HOST} on the machine that serves it.\n"
            app = PlainTextResponse(text, status_code=403, headers=_HEADERS)
        await app(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether a header Host names this machine, with a port or without.

    >>> is_loopback("127.0.0.1:8000"), is_loopback("localhost"), is_loopback("rebound.example:80")
    (True, True, False)
    """
    name, colon, port = host.partition(":")
    if colon and not (port.isascii() and port.isdigit()):
        return False
    return name.lower() in _NAMES


def policy(page: str) -> str:
    """The content policy of a page, as its own text states it, and that no frame may hold it."""
    stated = _META.search(page)
    if stated is None:
        return _NO_CONTENT
    return f"{html.unescape(stated[1])}; frame-ancestors 'none'"
