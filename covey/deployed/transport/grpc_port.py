"""The child's end over gRPC: it dials its parent, takes seats and answers requests.

The connection may break and come back: requests that are being handled go on meanwhile. A handler
runs in a thread of its own, so that the stream stays alive while a device trains.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import covey
from covey import draws
from covey.deployed.faults import fault
from covey.deployed.operate.certificates import Identity, SeatCertificate
from covey.deployed.transport.admission import EVICTED, signed_text
from covey.deployed.transport.extras import grpc
from covey.deployed.transport.frames import Assembler, Message, cut
from covey.deployed.transport.grpc_options import (
    LOG,
    METHOD,
    SERVICE,
    Failures,
    Limits,
    Revoked,
    broken,
    channel_credentials,
    channel_options,
    check_plain,
    first_ended,
    next_frame,
    outcome,
    say,
    shared_loop,
    waits,
)
from covey.deployed.transport.transport import AskKey, Handler, Seat
from covey.deployed.transport.wire import (
    PROTOCOL,
    Hello,
    Reply,
    Request,
    Taken,
    Welcome,
    key_asked,
    key_sent,
)
from covey.errors import ConfigError, CoveyError, DecodeError, EvictedError, TransportError

_FINAL = ("PERMISSION_DENIED", "FAILED_PRECONDITION")
_QUEUED = 8  # requests of a seat that wait to be handled


class _Ended(CoveyError):
    """Why a stream ended, in a way that a later one may not."""


@dataclass(eq=False)
class HostedSeats:
    """The seats of this process: their requests wait in order, and run in threads of a pool."""

    handlers: Mapping[Seat, Handler]
    pool: ThreadPoolExecutor
    limits: Limits
    closing: asyncio.Event
    stream: ParentStream | None = None
    """On which answers go; None: there is no stream now."""
    busy: int = 0
    """Requests that are being handled."""

    def __post_init__(self) -> None:
        self._requests: dict[Seat, asyncio.Queue[tuple[AskKey, bytes, bytes]]] = {}
        self._known: dict[Seat, set[AskKey]] = {}
        """The keys that wait or are being handled."""
        for seat in self.handlers:
            self._requests[seat] = asyncio.Queue(_QUEUED)
            self._known[seat] = set()

    async def put(self, stream: ParentStream, message: Message) -> None:
        """Let the seats of a request handle it, unless they do so already."""
        head = message.head
        if not isinstance(head, Request):
            raise DecodeError(f"a {type(head).__name__} where a Request should come.")
        key = key_asked(head.key)
        common, *own = message.blobs
        for part, data in zip(head.parts, own, strict=True):
            known = self._known.get(part.seat)
            if known is None:
                raise DecodeError(f"a request for the seat {part.seat}, which is not held here.")
            stream.asked.add((part.seat, key))
            if key not in known:
                await self._requests[part.seat].put((key, common, data))
                known.add(key)  # only now: a stream may end while its queue is full

    async def handle(self, seat: Seat) -> None:
        """Handle the requests of one seat, in order."""
        loop = asyncio.get_running_loop()
        while True:
            key, whole, own = await self._requests[seat].get()
            common = cast(bytes, memoryview(whole))
            del whole
            if self.closing.is_set():
                continue  # the parent asks again, whoever holds the seat then
            self.busy += 1
            try:
                handler = self.handlers[seat]
                data = await loop.run_in_executor(
                    self.pool, _handled, seat, handler, key, common, own
                )
            finally:
                self.busy -= 1
            self._known[seat].discard(key)
            if len(data) > self.limits.message:
                limit = self.limits.message
                text = f"the seat {seat} answers {key} with {len(data)} bytes"
                raise TransportError(f"{text}, more than {limit}.")
            if self.stream is not None:
                self.stream.reply(seat, key, data)
            del common, own, data


@dataclass(eq=False)
class ParentStream:
    """One stream to the parent: requests come, and replies go as they are ready."""

    call: Any
    parent: str
    """The parent's name and address, for the log."""
    limits: Limits
    closing: asyncio.Event
    revoked: Revoked
    counts: Counter[str]
    certificate: SeatCertificate | None = None
    """That of the parent, once it is checked; None: the tree has none."""
    number: int = 0
    """Of the last message that was sent."""
    replies: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    sent: int = 0
    """Replies that were sent."""
    asked: set[tuple[Seat, AskKey]] = field(default_factory=set)
    """What was asked in this stream: a parent that has started anew has not asked the rest yet."""

    async def greet(self, hello: Hello, identity: Identity | None, name: str) -> None:
        """Say hello, and check the welcome of the parent of this name."""
        try:
            async with asyncio.timeout(self.limits.hello_seconds):
                await self.send(Message(hello))
                data = await next_frame(self.call, None)
        except TimeoutError:
            raise _Ended(f"no welcome in {self.limits.hello_seconds:g} s") from None
        if data is None:
            raise _Ended("the stream ends before its welcome")
        message = Assembler(limit=0).take(data)
        if message is None or not isinstance(message.head, Welcome):
            raise _Ended("its first message is no welcome")
        welcome = message.head
        if (welcome.protocol, welcome.fingerprint) != (PROTOCOL, hello.fingerprint):
            raise _Ended("its program is another one")
        if identity is not None:
            self.certificate = identity.verify(
                welcome.certificate, welcome.signature, signed_text(hello), name
            )

    async def converse(self, hosted: HostedSeats) -> None:
        """Take requests and send replies until the stream or this port ends."""
        work = (self.read(hosted), self.write(), self.check_parent(), self.drain(hosted))
        for task in await first_ended(*work):  # the reader's reason comes first: it is the parent's
            if task.cancelled():
                raise _Ended("the stream was cancelled")
            task.result()

    async def read(self, hosted: HostedSeats) -> None:
        """Take requests until the parent closes its side."""
        assembler = Assembler(limit=self.limits.message)
        assembler.skip_to(2)  # the welcome was the first message
        while True:
            limit = self.limits.stall_seconds if assembler.within else None
            try:
                data = await next_frame(self.call, limit)
            except TimeoutError:
                raise _Ended("a message stalls") from None
            if data is None:
                if self.closing.is_set():
                    return
                raise _Ended("the parent closes the stream")
            message = assembler.take(data)
            if message is not None and not self.closing.is_set():
                await hosted.put(self, message)
            del data, message  # a handler lets go of a large request when it has read it

    def reply(self, seat: Seat, key: AskKey, data: bytes) -> None:
        """Let an answer be sent, if it was asked for on this stream."""
        if (seat, key) in self.asked:
            self.asked.discard((seat, key))
            head = Reply(key=key_sent(key), seat=seat, size=len(data))
            self.replies.put_nowait(Message(head, (data,)))

    async def write(self) -> None:
        """Send replies as they come."""
        while True:
            message = await self.replies.get()
            try:
                await self.send(message)
            except broken() as error:
                self.counts["send_errors"] += 1
                text = f"a reply to {self.parent}: {_reason(error)}"
                say(logging.WARNING, "send_error", text, count=self.counts["send_errors"])
                raise
            self.sent += 1
            fault("answer-sent")
            self.replies.task_done()
            del message

    async def send(self, message: Message) -> None:
        """Send the frames of a message; gRPC's flow control holds the next one back."""
        self.number += 1
        for frame in cut(self.number, message):
            await self.call.write(frame)

    async def check_parent(self) -> None:
        """End the stream if the parent's certificate is revoked meanwhile, or ends."""
        while True:
            await asyncio.sleep(self.limits.check_seconds)
            if self.certificate is not None:
                revoked = self.revoked.read(anew=True)
                refusal = self.certificate.refusal(revoked, datetime.now(UTC))
                if refusal is not None:
                    raise _Ended(refusal)

    async def drain(self, hosted: HostedSeats) -> None:
        """Once the port closes, wait for the requests being handled and send their replies.

        The parent ends the stream when it has read them.
        """
        await self.closing.wait()
        while hosted.busy:
            await asyncio.sleep(0.01)
        await self.replies.join()
        await self.call.done_writing()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.stall_seconds):
                await self.call.code()


@dataclass(eq=False)
class GrpcPort:
    """The seats of this process, held by one stream to the parent, which it dials."""

    address: str
    """Where the parent listens, which is dialled when `serve` is called."""
    parent: str
    """The seat of the parent."""
    seats: Mapping[str, Seat]
    _: KW_ONLY
    fingerprint: str
    identity: Identity | None
    """None: there is no TLS, and the address must be one of this machine."""
    last_key: Callable[[str], str | None] = lambda _: None
    """Tells the last key that the disk of a seat has written."""
    limits: Limits = field(default_factory=Limits)
    workers: int | None = None
    joined: int = 0
    """How many times the parent has let this process take its seats."""
    hosted: HostedSeats | None = None
    """The seats while they are served."""

    def __post_init__(self) -> None:
        if self.identity is None:
            check_plain(self.address)
        else:
            certified = self.identity.check().seats
            lacking = sorted(set(self.seats) - set(certified))
            if lacking:
                fix = f"covey certs issue with --seat {lacking[0]}"
                raise ConfigError(
                    f"the certificate is of {', '.join(certified)}, not of {lacking[0]}; {fix}."
                )
        self.counts: Counter[str] = Counter(send_errors=0)
        """Replies that could not be sent."""
        self.revoked = Revoked(self.identity)
        self._instance = os.urandom(16)
        self._pauses = waits()
        self._failures = Failures()
        self._loop = shared_loop()
        self._closing = asyncio.Event()

    def serve(self, handlers: Mapping[Seat, Handler]) -> None:
        """Take the seats and answer requests until it is closed.

        Each handler is called by one thread at a time; those of different seats may overlap. A
        TransportError says why the parent refuses, where dialling again would not help.
        """
        if set(handlers) != set(self.seats.values()):
            raise ConfigError(f"handlers for {sorted(handlers)}, seats {sorted(self.seats)}.")
        workers = self.workers or min(len(self.seats), os.cpu_count() or 1)
        pool = ThreadPoolExecutor(workers, "covey-seat")
        hosted = HostedSeats(handlers, pool, self.limits, self._closing)
        self.hosted = hosted
        future = asyncio.run_coroutine_threadsafe(self._serve(hosted), self._loop)
        try:
            outcome(future)
        except BaseException:
            future.cancel()
            # An edge waits for its children within a request: nobody waits for the edge here.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()

    @property
    def connected(self) -> bool:
        """Whether this process has its seats now."""
        return self.hosted is not None and self.hosted.stream is not None

    def close(self) -> None:
        """Leave the seats, after the requests that are being handled."""
        self._loop.call_soon_threadsafe(self._closing.set)

    async def _serve(self, hosted: HostedSeats) -> None:
        handling = [hosted.handle(seat) for seat in hosted.handlers]
        for task in await first_ended(self._dial(hosted), *handling):
            task.result()

    async def _dial(self, hosted: HostedSeats) -> None:
        """Hold a stream to the parent; dial again, ever more slowly, when it ends.

        An error is raised where dialling again would not help. A parent that is away for hours is
        few lines of the log, each with the number of attempts.
        """
        ends: tuple[type[Exception], ...] = (CoveyError, *broken())
        while not self._closing.is_set():
            try:
                await self._stream(hosted)
            except ends as error:
                if self._closing.is_set():
                    return
                text = f"{self.parent} at {self.address}: {_reason(error)}"
                if isinstance(error, grpc().aio.AioRpcError) and error.code().name in _FINAL:
                    evicted = EVICTED in (error.trailing_metadata() or ())
                    final = EvictedError if evicted else TransportError
                    raise final(f"{text.rstrip('.')}.") from None
                self._failures.note(logging.WARNING, "dial_again", text)
            with suppress(TimeoutError):
                async with asyncio.timeout(next(self._pauses)):
                    await self._closing.wait()

    async def _stream(self, hosted: HostedSeats) -> None:
        """One stream, from the hello to its end."""
        hello = await asyncio.to_thread(self._hello)
        library = grpc().aio
        if self.identity is None:
            plain = channel_options(self.limits, None)
            opened = library.insecure_channel(self.address, options=plain)
        else:  # with the certificate that lies in the folder now
            credentials = channel_credentials(self.identity)
            secure = channel_options(self.limits, self.parent)
            opened = library.secure_channel(self.address, credentials, options=secure)
        async with opened as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            parent = f"{self.parent} at {self.address}"
            stream = ParentStream(
                call, parent, self.limits, self._closing, self.revoked, self.counts
            )
            try:
                greeting = asyncio.ensure_future(stream.greet(hello, self.identity, self.parent))
                await first_ended(greeting, self._closing.wait())
                if not greeting.cancelled():  # this port does not close meanwhile
                    greeting.result()
                    await self._hold(stream, hosted)
            except asyncio.InvalidStateError as error:  # writing says only that the call is over
                if not call.done():
                    raise
                code, trailing = await call.code(), await call.trailing_metadata()
                details = await call.details()
                raise library.AioRpcError(code, library.Metadata(), trailing, details) from error
            finally:
                call.cancel()

    async def _hold(self, stream: ParentStream, hosted: HostedSeats) -> None:
        """Have the seats until the stream ends.

        After a stream that was of use, the next attempt is a first one again.
        """
        self.joined += 1
        hosted.stream = stream
        LOG.info("joined %s", stream.parent)
        began = time.monotonic()
        try:
            await stream.converse(hosted)
        finally:
            hosted.stream = None
            if stream.sent or time.monotonic() - began >= self.limits.settled_seconds:
                self._pauses = waits()
                self._failures.clear()

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL,
            fingerprint=self.fingerprint,
            instance=self._instance,
            nonce=os.urandom(32),
            seats=[Taken(name=name, last_key=self.last_key(name) or "") for name in self.seats],
            draws=draws.VERSION,
            covey=covey.__version__,
        )


def _handled(
    seat: Seat,
    handler: Handler,
    key: AskKey,
    common: bytes,
    own: bytes,
) -> bytes:
    """What a handler answers; its errors are logged, and none of them can end the event loop."""
    try:
        return handler(key, common, own)
    except BaseException as error:
        text = f"the handler of the seat {seat} failed: {type(error).__name__}: {error}"
        say(logging.ERROR, "handler_failed", text, seat=seat, asked=str(key))
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise TransportError(f"{text}.") from error


def _reason(error: Exception) -> str:
    """Why a stream has ended, in a few words."""
    if isinstance(error, CoveyError):
        return str(error)
    if isinstance(error, grpc().aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
