"""The child's end over gRPC: it dials its parent, takes seats and answers requests.

The connection may break and come back: requests that are being handled go on meanwhile. A handler
runs in a thread of its own, so that the stream stays alive while a device trains.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import covey
from covey import draws
from covey.deployed.node.faults import fault
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
    broken,
    channel_credentials,
    channel_options,
    check_plain,
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
class _Work:
    """The requests of one seat, handled one after the other."""

    seat: Seat
    handler: Handler
    requests: asyncio.Queue[tuple[AskKey, bytes, bytes]] = field(
        default_factory=lambda: asyncio.Queue(_QUEUED)
    )
    known: set[AskKey] = field(default_factory=set)
    """The keys that wait or are being handled."""


@dataclass(eq=False)
class _Session:
    """One stream to the parent."""

    call: Any
    parent: SeatCertificate | None = None
    number: int = 0
    replies: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    sent: int = 0
    """Replies that were sent."""
    asked: set[tuple[Seat, AskKey]] = field(default_factory=set)
    """What was asked in this stream: a parent that has started anew has not asked the rest yet."""


class GrpcPort:
    """A `Port`: the seats of this process, held by one stream to the parent."""

    def __init__(
        self,
        address: str,
        parent: str,
        seats: Mapping[str, Seat],
        *,
        fingerprint: str,
        identity: Identity | None,
        last_key: Callable[[Seat], str | None] | None = None,
        limits: Limits | None = None,
        workers: int | None = None,
    ) -> None:
        """Dial `address`, where the seat `parent` listens, when `serve` is called.

        Without an identity there is no TLS, and the address must be one of this machine.
        `last_key` tells the last key that the disk of a seat has written.
        """
        if identity is None:
            check_plain(address)
        else:
            _check_held(identity.check(), seats)
        self.address = address
        self.parent = parent
        self.seats = dict(seats)
        self.joined = 0
        """How many times the parent has let this process take its seats."""
        self._fingerprint = fingerprint
        self._identity = identity
        self._last_key = last_key
        self._limits = limits or Limits()
        self._workers = workers or min(len(seats), os.cpu_count() or 1)
        self._instance = os.urandom(16)
        self._session: _Session | None = None
        self._busy = 0
        self.send_errors = 0
        """Replies that could not be sent."""
        self._pauses = waits()
        self._failures = Failures()
        self._unread = Failures()
        self._loop = shared_loop()
        self._closing = asyncio.Event()
        self._served: Future[None] | None = None

    # The protocol

    def serve(self, handlers: Mapping[Seat, Handler]) -> None:
        """Take the seats and answer requests until it is closed.

        A TransportError says why the parent refuses, where dialling again would not help.
        """
        if set(handlers) != set(self.seats.values()):
            raise ConfigError(f"handlers for {sorted(handlers)}, seats {sorted(self.seats)}.")
        pool = ThreadPoolExecutor(self._workers, "covey-seat")
        future = asyncio.run_coroutine_threadsafe(self._serve(handlers, pool), self._loop)
        self._served = future
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
        return self._session is not None

    def close(self) -> None:
        """Leave the seats, after the requests that are being handled."""
        self._loop.call_soon_threadsafe(self._closing.set)

    # Dialling

    async def _serve(self, handlers: Mapping[Seat, Handler], pool: ThreadPoolExecutor) -> None:
        works = {seat: _Work(seat, handler) for seat, handler in handlers.items()}
        tasks = [asyncio.ensure_future(self._handle(work, pool)) for work in works.values()]
        dialling = asyncio.ensure_future(self._dial(works))
        try:
            done, _ = await asyncio.wait([dialling, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (dialling, *tasks):
                task.cancel()
            await asyncio.gather(dialling, *tasks, return_exceptions=True)

    async def _dial(self, works: Mapping[Seat, _Work]) -> None:
        """Hold a stream to the parent; dial again, ever more slowly, when it ends."""
        ends: tuple[type[Exception], ...] = (CoveyError, *broken())
        while not self._closing.is_set():
            try:
                await self._stream(works)
            except ends as error:
                self._judge(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(next(self._pauses)):
                    await self._closing.wait()

    def _judge(self, error: Exception) -> None:
        """Log why a stream ended; raise it where dialling again would not help.

        A parent that is away for hours is few lines, each with the number of attempts.
        """
        if self._closing.is_set():
            return
        text = f"{self.parent} at {self.address}: {_reason(error)}"
        if isinstance(error, grpc().aio.AioRpcError) and error.code().name in _FINAL:
            text = f"{text.rstrip('.')}."
            if EVICTED in (error.trailing_metadata() or ()):
                raise EvictedError(text)
            raise TransportError(text)
        if self._failures.add(text):
            say(logging.WARNING, "dial_again", text, count=self._failures.count)

    def _channel(self) -> Any:
        """A channel with the certificate that lies in the folder now."""
        library = grpc()
        if self._identity is None:
            plain = channel_options(self._limits, None)
            return library.aio.insecure_channel(self.address, options=plain)
        credentials = channel_credentials(self._identity)
        secure = channel_options(self._limits, self.parent)
        return library.aio.secure_channel(self.address, credentials, options=secure)

    async def _stream(self, works: Mapping[Seat, _Work]) -> None:
        """One stream, from the hello to its end."""
        hello = await asyncio.to_thread(self._hello)
        async with self._channel() as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            session = _Session(call)
            try:
                if await self._before_closing(self._greet(session, hello)):
                    await self._hold(session, works)
            except asyncio.InvalidStateError as error:
                raise await _end_of(call, error) from None
            finally:
                call.cancel()

    async def _hold(self, session: _Session, works: Mapping[Seat, _Work]) -> None:
        """Have the seats until the stream ends.

        After a stream that was of use, the next attempt is a first one again.
        """
        self.joined += 1
        self._session = session
        LOG.info("joined %s at %s", self.parent, self.address)
        began = time.monotonic()
        try:
            await self._converse(session, works)
        finally:
            self._session = None
            if session.sent or time.monotonic() - began >= self._limits.settled_seconds:
                self._pauses = waits()
                self._failures.clear()

    async def _before_closing(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do something unless this port closes meanwhile; return whether it was done."""
        working = asyncio.ensure_future(work)
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait([working, closing], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            for task in (working, closing):
                task.cancel()
            await asyncio.gather(working, closing, return_exceptions=True)

    async def _greet(self, session: _Session, hello: Hello) -> None:
        """Say hello, and check the parent's welcome."""
        try:
            async with asyncio.timeout(self._limits.hello_seconds):
                await self._send(session, Message(hello))
                data = await session.call.read()
        except TimeoutError:
            raise _Ended(f"no welcome in {self._limits.hello_seconds:g} s") from None
        if data is grpc().aio.EOF:
            raise _Ended("the stream ends before its welcome")
        message = Assembler(limit=0).take(data)
        if message is None or not isinstance(message.head, Welcome):
            raise _Ended("its first message is no welcome")
        welcome = message.head
        if (welcome.protocol, welcome.fingerprint) != (PROTOCOL, self._fingerprint):
            raise _Ended("its program is another one")
        if self._identity is not None:
            signed = signed_text(hello)
            session.parent = self._identity.verify(
                welcome.certificate, welcome.signature, signed, self.parent
            )

    def _hello(self) -> Hello:
        taken = []
        for name, seat in self.seats.items():
            last = self._last_key(seat) if self._last_key is not None else None
            taken.append(Taken(name=name, last_key=last or ""))
        return Hello(
            protocol=PROTOCOL,
            fingerprint=self._fingerprint,
            instance=self._instance,
            nonce=os.urandom(32),
            seats=taken,
            draws=draws.VERSION,
            covey=covey.__version__,
        )

    # A stream

    async def _converse(self, session: _Session, works: Mapping[Seat, _Work]) -> None:
        """Take requests and send replies until the stream or this port ends."""
        tasks = [
            asyncio.ensure_future(self._read(session, works)),
            asyncio.ensure_future(self._write(session)),
            asyncio.ensure_future(self._check_parent(session)),
            asyncio.ensure_future(self._drain(session)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:  # the reader's reason comes first: it is the parent's
                if task.cancelled():
                    raise _Ended("the stream was cancelled")
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, session: _Session, works: Mapping[Seat, _Work]) -> None:
        """Take requests until the parent closes its side."""
        end = grpc().aio.EOF
        assembler = Assembler(limit=self._limits.message)
        assembler.skip_to(2)  # the welcome was the first message
        while True:
            limit = self._limits.stall_seconds if assembler.within else None
            try:
                async with asyncio.timeout(limit):
                    data = await session.call.read()
            except TimeoutError:
                raise _Ended("a message stalls") from None
            if data is end and self._closing.is_set():
                return
            if data is end:
                raise _Ended("the parent closes the stream")
            message = assembler.take(data)
            if message is not None and not self._closing.is_set():
                await self._queue(session, message, works)
            del data, message  # a handler lets go of a large request when it has read it

    async def _queue(
        self, session: _Session, message: Message, works: Mapping[Seat, _Work]
    ) -> None:
        """Let the seats of a request handle it, unless they do so already."""
        head = message.head
        if not isinstance(head, Request):
            raise DecodeError(f"a {type(head).__name__} where a Request should come.")
        key = key_asked(head.key)
        common, *own = message.blobs
        for part, data in zip(head.parts, own, strict=True):
            work = works.get(part.seat)
            if work is None:
                raise DecodeError(f"a request for the seat {part.seat}, which is not held here.")
            session.asked.add((part.seat, key))
            if key not in work.known:
                await work.requests.put((key, common, data))
                work.known.add(key)  # only now: a stream may end while its queue is full

    async def _handle(self, work: _Work, pool: ThreadPoolExecutor) -> None:
        """Handle the requests of one seat, in order."""
        while True:
            key, whole, own = await work.requests.get()
            common = cast(bytes, memoryview(whole))
            del whole
            if self._closing.is_set():
                continue  # the parent asks again, whoever holds the seat then
            self._busy += 1
            try:
                data = await self._loop.run_in_executor(pool, _handled, work, key, common, own)
            finally:
                self._busy -= 1
            work.known.discard(key)
            if len(data) > self._limits.message:
                limit = self._limits.message
                text = f"the seat {work.seat} answers {key} with {len(data)} bytes"
                raise TransportError(f"{text}, more than {limit}.")
            session = self._session
            if session is not None and (work.seat, key) in session.asked:
                session.asked.discard((work.seat, key))
                head = Reply(key=key_sent(key), seat=work.seat, size=len(data))
                session.replies.put_nowait(Message(head, (data,)))
            del common, own, data

    async def _write(self, session: _Session) -> None:
        """Send replies as they come."""
        while True:
            message = await session.replies.get()
            try:
                await self._send(session, message)
            except broken() as error:
                self.send_errors += 1
                text = f"a reply to {self.parent} at {self.address}: {_reason(error)}"
                say(logging.WARNING, "send_error", text, count=self.send_errors)
                raise
            session.sent += 1
            fault("answer-sent")
            session.replies.task_done()
            del message

    async def _send(self, session: _Session, message: Message) -> None:
        """Send the frames of a message; gRPC's flow control holds the next one back."""
        session.number += 1
        for frame in cut(session.number, message):
            await session.call.write(frame)

    async def _check_parent(self, session: _Session) -> None:
        """End the stream if the parent's certificate is revoked meanwhile, or ends.

        While what is revoked cannot be read, what was read before counts.
        """
        revoked: frozenset[int] = frozenset()
        while True:
            await asyncio.sleep(self._limits.check_seconds)
            if self._identity is None or session.parent is None:
                continue
            try:
                revoked = self._identity.revoked()
            except (CoveyError, OSError, ValueError) as error:
                text = f"the revoked certificates are not read anew: {error}"
                if self._unread.add(text):
                    say(logging.ERROR, "revoked_unread", text, count=self._unread.count)
            else:
                self._unread.clear()
            refusal = session.parent.refusal(revoked, datetime.now(UTC))
            if refusal is not None:
                raise _Ended(refusal)

    async def _drain(self, session: _Session) -> None:
        """Once this port closes, wait for the requests being handled and send their replies.

        The parent ends the stream when it has read them.
        """
        await self._closing.wait()
        while self._busy:
            await asyncio.sleep(0.01)
        await session.replies.join()
        await session.call.done_writing()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.stall_seconds):
                await session.call.code()


def _handled(work: _Work, key: AskKey, common: bytes, own: bytes) -> bytes:
    """What a handler answers; its errors are logged, and none of them can end the event loop."""
    try:
        return work.handler(key, common, own)
    except BaseException as error:
        text = f"the handler of the seat {work.seat} failed: {type(error).__name__}: {error}"
        say(logging.ERROR, "handler_failed", text, seat=work.seat, asked=str(key))
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise TransportError(f"{text}.") from error


async def _end_of(call: Any, error: Exception) -> Exception:
    """Why a call is over; writing to it says only that it is."""
    if not call.done():
        return error
    library = grpc().aio
    code = await call.code()
    trailing = await call.trailing_metadata()
    details = await call.details()
    out: Exception = library.AioRpcError(code, library.Metadata(), trailing, details)
    return out


def _reason(error: Exception) -> str:
    """Why a stream has ended, in a few words."""
    if isinstance(error, CoveyError):
        return str(error)
    if isinstance(error, grpc().aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


def _check_held(certificate: SeatCertificate, seats: Mapping[str, Seat]) -> None:
    """Refuse seats that the certificate does not name, before dialling."""
    lacking = sorted(set(seats) - set(certificate.seats))
    if lacking:
        held = ", ".join(certificate.seats)
        fix = f"covey certs issue with --seat {lacking[0]}"
        raise ConfigError(f"the certificate is of {held}, not of {lacking[0]}; {fix}.")
