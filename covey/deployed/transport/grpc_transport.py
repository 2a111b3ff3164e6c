"""The parent's end over gRPC: children dial in, one stream per process, over mutual TLS.

All state is touched by one event loop alone; `ask` waits for it in the caller's thread.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from covey.deployed.operate.certificates import Identity, SeatCertificate
from covey.deployed.transport.admission import AllowList, Handshakes, Refusal, judged
from covey.deployed.transport.answers import Incoming, Receiver
from covey.deployed.transport.ask import Ask, Asks, as_sent
from covey.deployed.transport.extras import grpc
from covey.deployed.transport.frames import Assembler, Message, cut
from covey.deployed.transport.grpc_options import (
    LOG,
    METHOD,
    SERVICE,
    Limits,
    begin,
    check_plain,
    first_ended,
    next_frame,
    outcome,
    server_credentials,
    server_options,
    shared_loop,
)
from covey.deployed.transport.seat_table import ChildStream, SeatTable
from covey.deployed.transport.stored import Stored
from covey.deployed.transport.transport import (
    Admission,
    Answer,
    AskKey,
    Blob,
    Check,
    Patience,
    Seat,
)
from covey.deployed.transport.wire import Request, SeatShare, key_sent
from covey.errors import TransportError

_T = TypeVar("_T")


@dataclass(eq=False)
class GrpcTransport:
    """A `Transport`: processes dial in at an address and take the seats of the tier below."""

    address: str
    """Where it listens; port 0 takes a free one, which stands here then."""
    seats: Mapping[str, Seat]
    """The allow-list."""
    _: KW_ONLY
    fingerprint: str
    identity: Identity | None
    """None: there is no TLS, and the address must be one of this machine."""
    admission: Admission | None = None
    limits: Limits = field(default_factory=Limits)
    evicted_before: frozenset[str] = frozenset()
    """The seats that are refused from the beginning."""
    remember: Callable[[frozenset[str]], None] = lambda _: None
    """Told whenever the evicted change."""
    folder: Path | None = None
    """On a disk where answers may wait; without it they wait in memory."""

    def __post_init__(self) -> None:
        identity, limits = self.identity, self.limits
        if identity is None:
            check_plain(self.address)
        self.refused: Counter[str] = Counter()
        """Refused processes and dropped messages, by the reason's status."""
        self.knocks: Counter[str] = Counter(handshakes=0, streams=0)
        """TLS handshakes that began, and streams that were opened after one."""
        self.carried: Counter[str] = Counter(sent=0, received=0)
        """Bytes of the frames of all streams, by direction."""
        self.allowed = AllowList(
            dict(self.seats), self.fingerprint, self.admission, limits.strikes, self.evicted_before
        )
        self.handshakes = Handshakes(identity, self.allowed, limits, self.refused)
        self.table = SeatTable(self.allowed, self.remember)
        self.asks = Asks()
        self._answers = Receiver(self.asks, self.table, limits, self.refused, self.folder)
        self._loop = shared_loop()
        self.address = self._do(self._start())

    # The protocol

    def ask(
        self,
        key: AskKey,
        common: Blob,
        own: Mapping[Seat, bytes],
        patience: Patience | None = None,
        check: Check | None = None,
        most: int | None = None,
    ) -> Mapping[Seat, Answer]:
        """Send a request to every seat in `own`, all at once, and wait for the answers."""
        try:
            key_sent(key)
        except ValueError as error:
            raise TransportError(f"{key} cannot be sent: {error}.") from None
        unknown = set(own) - set(self.table.names)
        if unknown:
            raise TransportError(f"{key} asks the seat {min(unknown)}, which is not listed here.")
        size = len(common) + max(map(len, own.values()), default=0)
        limit = self.limits.message
        if size > limit:
            raise TransportError(f"{key}: a request of {size} bytes, more than {limit}.")
        ask = Ask(key, common, own, check, most, self._answers.file())
        return self._do(self._ask(ask, patience))

    def owe(self, key: AskKey, own: Mapping[Seat, bytes]) -> None:
        """An order that these seats have not followed."""

        async def keep(order: Ask) -> None:
            self.asks.keep(order)
            self.table.queue(order)

        self._do(keep(Ask(key, b"", own)))

    def members(self) -> frozenset[Seat]:
        """The seats that are taken now."""
        return self.table.members

    def evict(self, name: str) -> None:
        """Close the stream of a seat, with all seats of its process; refuse it from now on."""
        self._do(self.table.evict(name))

    def admit(self, name: str) -> None:
        """Let an evicted seat be taken again."""
        self._do(self.table.admit(name))

    def turned_away(self) -> dict[Seat, str]:
        """Why processes were refused that have a certificate of an empty seat."""
        seats = self.allowed.seats
        return {seats[name]: text for name, text in list(self.allowed.turned_away.items())}

    def evicted(self) -> frozenset[Seat]:
        """The seats that are refused, by an order or after too many bad messages."""
        return frozenset(self.allowed.seats[name] for name in self.allowed.evicted)

    def close(self) -> None:
        """End all connections; asks that wait raise a TransportError."""
        if not self.asks.closed:
            self.asks.closed = True
            with suppress(TransportError):  # of an event loop that has ended
                self._do(self._stop())

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the event loop, and wait for it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return outcome(future)
        except BaseException:
            future.cancel()
            raise

    # In the event loop

    async def _start(self) -> str:
        library = grpc()
        address = self.address
        children = len(self.allowed.seats)
        self._server = library.aio.server(
            options=server_options(self.limits, children),
            maximum_concurrent_rpcs=4 * children + 64,
        )
        join = library.stream_stream_rpc_method_handler(self._join)
        handler = library.method_handlers_generic_handler(SERVICE, {METHOD: join})
        self._server.add_generic_rpc_handlers((handler,))
        identity = self.identity
        try:
            if identity is None:
                port = self._server.add_insecure_port(address)
            else:
                begun = partial(self.knocks.update, ["handshakes"])
                credentials = server_credentials(identity, begun)
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise TransportError(_not_listening(address, str(error))) from None
        await self._server.start()
        self._watch = asyncio.ensure_future(self._check_streams())
        return f"{address.rpartition(':')[0]}:{port}"

    async def _stop(self) -> None:
        self._watch.cancel()
        for stream in self.table.open_streams():
            stream.close("UNAVAILABLE", "the parent ends")
        for ask in self.asks.open.values():
            ask.changed.set()
        await asyncio.sleep(0)
        await self._server.stop(1)

    async def _check_streams(self) -> None:
        """Close streams whose certificate is revoked, or has ended."""
        while self.handshakes.identity is not None:
            await asyncio.sleep(self.limits.check_seconds)
            self.handshakes.revoked.read(anew=True)
            for stream in self.table.open_streams():
                try:
                    refusal = self.handshakes.refusal(stream.certificate)
                except Exception as error:  # a stream that cannot be checked is closed
                    refusal = f"its certificate cannot be checked: {error!r}"
                if refusal is not None:
                    self.table.close(stream, "UNAUTHENTICATED", refusal)

    async def _ask(self, ask: Ask, patience: Patience | None) -> dict[Seat, Answer]:
        self.asks.begin(ask)
        self.table.note_empty(ask.own)
        self.table.queue(ask)
        try:
            await self._enough(ask, patience)
            return ask.result()
        finally:
            self.asks.end(ask)
            if ask.key.lane == "train" and ask.key in self.asks.pending:
                begin(self._answers.put_away(ask))
            for stream in self.table.open_streams():
                stream.forget(ask)

    async def _enough(self, ask: Ask, patience: Patience | None) -> None:
        """Wait for as many answers as patience wants."""
        began = time.monotonic()
        note = self.limits.note_seconds
        while True:
            seconds = math.inf if patience is None else patience.seconds
            gone = self.table.empty_for(seconds, ask.missing())
            if ask.ended(patience, time.monotonic() - began, gone):
                return
            if self.asks.closed:
                raise TransportError(f"{ask.key}: the transport is closed.")
            if ask.error is not None:
                raise TransportError(f"{ask.key}: {ask.error!r} in a check.") from ask.error
            ask.check_diverged(patience, self.table.names)
            waited = time.monotonic() - began
            for seat in ask.wanted_again(patience, waited):
                ask.bad.discard(seat)
                if seat in self.table.streams:  # an empty seat is asked when it is taken
                    self.table.streams[seat].queue_again(ask, seat)
            if waited >= note:
                self.table.note_waiting(ask, waited)
                note = 2 * waited
            ask.changed.clear()
            left = note - waited
            if waited < seconds:
                next_gone = self.table.next_empty_for(seconds, ask.missing())
                left = min(left, seconds - waited, next_gone)
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await ask.changed.wait()

    # A process dials in

    async def _join(self, _: Any, context: Any) -> None:
        """The stream of one process, from its hello to its end."""
        peer = unquote(context.peer())
        self.knocks["streams"] += 1
        handshakes = self.handshakes
        certificate = None
        try:
            if self.asks.closed:
                raise Refusal("UNAVAILABLE", "the parent ends")
            certificate = handshakes.certificate(context)
            if certificate is not None:
                peer = f"{certificate.seats[0]} ({peer})"
            conversation = await self._admitted(context, certificate)
        except Refusal as refusal:
            await handshakes.turn_away(context, peer, refusal, certificate, self.members())
            return
        except Exception as error:
            await handshakes.refuse(context, peer, judged(error))
            return
        handshakes.welcomed(certificate)
        stream = conversation.stream
        LOG.info("joined: %s", stream)
        try:
            await conversation.run()
        finally:
            self.table.leave(stream)
            LOG.info("left: %s", stream)
        if stream.reason is not None:
            await handshakes.refuse(context, str(stream), stream.reason)

    async def _admitted(self, context: Any, certificate: SeatCertificate | None) -> Conversation:
        """The conversation with a process that says hello and may take its seats."""
        with self.handshakes.dialling(certificate):
            hello = await self.handshakes.hello(context, certificate)
            # First: the disk of a second process is always behind one that answers meanwhile.
            self.table.streams_of(self.allowed.check(hello, certificate), hello.instance)
            await asyncio.to_thread(self.allowed.check_disks, hello)
            # Again: a seat may have been evicted meanwhile. Nothing is awaited before it is taken.
            seats = self.allowed.check(hello, certificate)
            stream = ChildStream(seats, hello.instance, unquote(context.peer()), certificate)
            self.table.take(stream)
            # Before anything is awaited: an ask that begins meanwhile comes after what is owed.
            for ask in self.asks.in_order():
                stream.queue(ask)
            out = Conversation(stream, context, self._answers, self.limits, self.carried)
            seconds = self.limits.hello_seconds
            try:  # it keeps its seats only with its welcome
                async with asyncio.timeout(seconds):
                    await out.send(Message(self.handshakes.welcome(hello)))
            except TimeoutError:
                self.table.leave(stream)
                text = f"it takes no welcome in {seconds:g} s"
                raise Refusal("DEADLINE_EXCEEDED", text) from None
            except BaseException:
                self.table.leave(stream)
                raise
        return out


@dataclass(eq=False)
class Conversation:
    """What is said on one open stream: requests as they come, and the replies of a process."""

    stream: ChildStream
    context: Any
    answers: Receiver
    limits: Limits
    carried: Counter[str]

    async def run(self) -> None:
        """Send requests and take replies until either end closes the stream."""
        stream = self.stream
        for task in await first_ended(self.read(), self.write(), stream.end.wait()):
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Exception):
                refusal = judged(error)
                stream.close(refusal.code, str(refusal), evicted=refusal.evicted)

    async def write(self) -> None:
        """Send requests as they come."""
        stream = self.stream
        while True:
            stream.wake.clear()
            batch = stream.take(self.limits.window, self.limits.message)
            if batch is None:
                await stream.wake.wait()
                continue
            ask, seats = batch
            ask.sent.update(seats)
            for seat in seats:
                self.answers.sent.send(seat, ask.key)
            if isinstance(ask.common, Stored):
                message = await asyncio.to_thread(_request, ask, seats)
            else:
                message = _request(ask, seats)
            await self.send(message)
            del batch, ask, message  # with all its answers

    async def send(self, message: Message) -> None:
        """Send the frames of a message; gRPC's flow control holds the next one back.

        A process that takes none for long would keep its request in memory.
        """
        self.stream.number += 1
        for frame in cut(self.stream.number, message):
            try:
                async with asyncio.timeout(self.limits.frame_seconds):
                    await self.context.write(frame)
            except TimeoutError:
                raise Refusal("DEADLINE_EXCEEDED", "it does not read what it is sent") from None
            self.carried["sent"] += len(frame)

    async def read(self) -> None:
        """Take replies until the process closes its side."""
        assembler = Assembler(limit=self.limits.message)
        assembler.skip_to(2)  # the hello was the first message
        incoming = Incoming()
        try:
            while True:
                limit = self.limits.stall_seconds if assembler.within else None
                try:
                    data = await next_frame(self.context, limit)
                except TimeoutError:
                    raise Refusal("DEADLINE_EXCEEDED", "a message stalls") from None
                if data is None:
                    return
                self.carried["received"] += len(data)
                message = self.answers.take(self.stream, assembler, incoming, data)
                del data  # before the next frame is waited for
                await incoming.write()
                if message is not None:
                    received = incoming
                    incoming = Incoming()
                    self.answers.receive(self.stream, received, message)
                    del received, message
                await self.answers.wait_for_checks()
        finally:
            self.answers.forget(incoming)


def _request(ask: Ask, seats: list[Seat]) -> Message:
    """The request for some seats of one process; it may wait for the disk."""
    own = [as_sent(ask.own[seat]) for seat in seats]
    sizes = zip(seats, map(len, own), strict=True)
    shares = [SeatShare(seat=seat, size=size) for seat, size in sizes]
    head = Request(key=key_sent(ask.key), common=len(ask.common), parts=shares)
    return Message(head, (as_sent(ask.common), *own))


def _not_listening(address: str, error: str) -> str:
    """Why a parent cannot listen at an address, and what to do about it."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason = error
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), int(port)))
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or str(failure)
    fix = f"end the process that has the port {port}, or listen at another one"
    return f"{address} cannot be listened at: {reason}; {fix}."


def listed(tier: str, numbers: Iterator[int] | range) -> dict[str, Seat]:
    """The default names of seats: the tier and the number.

    >>> listed("device", range(2))
    {'device0': 0, 'device1': 1}
    """
    return {f"{tier}{number}": number for number in numbers}
