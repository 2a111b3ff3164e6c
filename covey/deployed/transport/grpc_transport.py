"""The parent's end over gRPC: children dial in, one stream per process, over mutual TLS.

All state is touched by one event loop alone; `ask` waits for it in the caller's thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote

from covey.deployed.node.memory import give_back_free
from covey.deployed.operate.certificates import FileMark, Identity, SeatCertificate
from covey.deployed.transport.admit import EVICTED, Doorkeeper, Refusal, signed_text
from covey.deployed.transport.extras import grpc
from covey.deployed.transport.frames import Assembler, Message, cut
from covey.deployed.transport.grpc_options import (
    LOG,
    METHOD,
    SERVICE,
    Failures,
    Limits,
    broken,
    check_plain,
    outcome,
    say,
    server_credentials,
    server_options,
    shared_loop,
)
from covey.deployed.transport.owed import Owed, failure_of
from covey.deployed.transport.stored import AnswerFile, Arrival, Stored
from covey.deployed.transport.transport import (
    Admission,
    Answer,
    AskKey,
    Blob,
    Check,
    Diverged,
    Patience,
    Seat,
    has_failed,
)
from covey.deployed.transport.wire import (
    PROTOCOL,
    Head,
    Hello,
    Reply,
    Request,
    SeatShare,
    Welcome,
    key_asked,
    key_sent,
)
from covey.errors import CoveyError, DecodeError, DivergedError, TransportError
from covey.runtimes.alone.envelope import Pieces

_T = TypeVar("_T")
_LONG = 1 << 16  # bytes of an answer that the event loop checks itself
_TRIM = 1 << 22  # bytes of answers after which free memory is given back
_HARMLESS = ("UNAVAILABLE", "ABORTED")  # a connection that broke, or an end that closes
_PASSING = ("ALREADY_EXISTS", "UNAVAILABLE", "RESOURCE_EXHAUSTED")  # what passes by itself
_SHOWN = 5  # names in a line of the log
_HELLO = 2**15  # bytes of a hello, and for each of its seats: a name and a key
_HELLO_SEAT = 2**11
_REASON = 200  # characters of what a child says
_LATE = 8  # trainings that are kept for late children, whose requests may be long
_READING = ("read", "freeze")  # orders that move nothing at a node
_WRITING = "write"  # the order after which an earlier one of its kind is of no use


@dataclass(eq=False)
class _Ask:
    """An ask that waits for answers."""

    key: AskKey
    common: Blob | Stored
    own: Mapping[Seat, bytes | Stored]
    check: Check | None = None
    most: int | None = None
    """Bytes of the longest answer that is taken; None: of any message."""
    file: AnswerFile | None = None
    """Where answers wait that are not to be held in memory; None: all are held."""
    held: int = 0
    """Bytes of the answers that are held in memory, and of those that arrive there."""
    answers: dict[Seat, bytes | Stored] = field(default_factory=dict)
    bad: set[Seat] = field(default_factory=set)
    """The seats whose answer was refused, and who are not asked again yet."""
    diverged: dict[Seat, Diverged] = field(default_factory=dict)
    """Those of them whose training diverged, and who are not asked again."""
    sent: set[Seat] = field(default_factory=set)
    error: Exception | None = None
    """Of this parent, while it checked an answer."""
    untrimmed: int = 0
    """Bytes of the answers that came since free memory was last given back."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False
    """Whether nobody waits for answers any more."""

    def end(self) -> None:
        """Keep what those need who still owe it, and nothing else."""
        self.over = True
        self.own = {seat: self.own[seat] for seat in self.owing()}
        self.answers = {}
        self.file = None

    def owing(self) -> list[Seat]:
        """The seats that owe it though nobody waits: an order, or a training that they were sent.

        Scores move nothing, and so do orders that only read.
        """
        if self.key.lane == "order" and self.key.program not in _READING:
            return self.missing()
        if self.key.lane == "train":
            return [seat for seat in self.missing() if seat in self.sent - self.bad]
        return []

    def excuse(self, seats: Collection[Seat]) -> None:
        """These seats owe it no more."""
        self.answers |= {seat: b"" for seat in seats if seat in self.own}

    def missing(self) -> list[Seat]:
        """The seats without an answer."""
        return [seat for seat in self.own if seat not in self.answers]

    def fitting(self, seats: list[Seat], limit: int) -> list[Seat]:
        """The first of these seats whose requests fit into one message; one in any case."""
        size = len(self.common)
        for position, seat in enumerate(seats):
            size += len(self.own[seat])
            if position and size > limit:
                return seats[:position]
        return seats

    def ended(self, patience: Patience | None, waited: float, gone: set[Seat]) -> bool:
        """Whether nothing more is waited for; `gone` are seats that have long been empty."""
        if len(self.answers) == len(self.own):
            return True
        if patience is None:
            return False
        if has_failed(self.check, self.answers):
            return True
        if len(self.answers) < patience.quorum:
            return False
        return waited >= patience.seconds or gone.union(self.bad).issuperset(self.missing())

    def wanted_again(self, patience: Patience | None, waited: float) -> list[Seat]:
        """The seats with a bad answer, where others cannot be a quorum, or were not in time."""
        in_time = patience is not None and waited < patience.seconds
        if in_time and len(self.own) - len(self.bad) >= self.quorum(patience):
            return []
        return sorted(self.bad - self.diverged.keys())

    def quorum(self, patience: Patience | None) -> int:
        """How many answers are enough."""
        if patience is None:
            return len(self.own)
        return patience.quorum

    def believe(self, seat: Seat, data: bytes | Stored) -> None:
        """A seat has given a good answer."""
        if self.over:
            data = b""
        self.answers.setdefault(seat, data)
        self.bad.discard(seat)
        self.diverged.pop(seat, None)

    def refuse(self, seat: Seat, reason: str) -> None:
        """A seat has given a bad answer; one that came before it counts still."""
        if seat in self.answers:
            return
        self.bad.add(seat)
        if isinstance(reason, Diverged):
            self.diverged[seat] = reason

    def result(self) -> dict[Seat, Answer]:
        """The answer of every seat."""
        out = {}
        for seat in self.own:
            if seat in self.answers:
                out[seat] = Answer("answered", self.answers[seat])
            elif seat in self.bad:
                out[seat] = Answer("bad")
            elif seat in self.sent:
                out[seat] = Answer("late")
            else:
                out[seat] = Answer("absent")
        return out


@dataclass(eq=False)
class _Stream:
    """An open stream of a process that has taken seats."""

    seats: Mapping[str, Seat]
    instance: bytes
    peer: str
    certificate: SeatCertificate | None
    number: int = 0
    """Of the last message that was sent."""
    pending: dict[_Ask, list[Seat]] = field(default_factory=dict)
    unanswered: dict[Seat, set[AskKey]] = field(default_factory=lambda: defaultdict(set))
    """The keys that were sent and not answered: a key that is sent twice has one answer."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    end: asyncio.Event = field(default_factory=asyncio.Event)
    reason: Refusal | None = None

    def __str__(self) -> str:
        names = list(self.seats)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"{', '.join(names[:3])}{more} ({self.peer})"

    def close(self, code: str, text: str, *, evicted: bool = False) -> None:
        """End the stream with this reason."""
        if self.reason is None:
            self.reason = Refusal(code, text, evicted=evicted)
        self.end.set()

    def queue(self, ask: _Ask) -> None:
        """Let the sender send what an ask still wants of these seats."""
        own = set(self.seats.values())
        seats = [seat for seat in ask.missing() if seat in own]
        if seats:
            self.pending[ask] = seats
            self.wake.set()

    def queue_again(self, ask: _Ask, seat: Seat) -> None:
        """Let the sender send an ask to one seat again."""
        self.pending[ask] = [*self.pending.get(ask, []), seat]
        self.wake.set()

    def forget(self, ask: _Ask) -> None:
        """An ask is over: only those are sent it who still owe it."""
        if ask not in self.pending:
            return
        owing = [seat for seat in self.pending[ask] if seat in ask.own]
        if owing:
            self.pending[ask] = owing  # before the requests that came since
        else:
            del self.pending[ask]

    def take(self, window: int, limit: int) -> tuple[_Ask, list[Seat]] | None:
        """The next ask with the seats that it can be sent to now, in a message within a limit.

        A seat gets requests in the order of the asks, and no more than `window` without an answer.
        """
        waiting: set[Seat] = set()
        for ask, seats in self.pending.items():
            free = [seat for seat in seats if seat not in waiting]
            ready = [seat for seat in free if self._has_room(seat, ask.key, window)]
            waiting.update(seats)
            if ready:
                ready = ask.fitting(ready, limit)
                self._remove(ask, ready)
                for seat in ready:
                    self.unanswered[seat].add(ask.key)
                return ask, ready
        return None

    def _has_room(self, seat: Seat, key: AskKey, window: int) -> bool:
        """Whether a request can be sent to a seat now."""
        keys = self.unanswered[seat]
        return key in keys or len(keys) < window

    def _remove(self, ask: _Ask, seats: list[Seat]) -> None:
        left = [seat for seat in self.pending[ask] if seat not in seats]
        if left:
            self.pending[ask] = left
        else:
            del self.pending[ask]


@dataclass(eq=False)
class _Incoming:
    """The reply that a stream receives in several frames."""

    wanted: bool = True
    late: bool = False
    """Whether its ask has ended before it began."""
    ask: _Ask | None = None
    size: int = 0
    """Bytes of the whole answer."""
    reserved: int = 0
    """Bytes of its ask's memory that are kept free for it."""
    arrival: Arrival | None = None
    """Where its bytes go; None: to memory."""
    _pieces: list[bytes] = field(default_factory=list)

    def reserve(self) -> None:
        """Keep as much of its ask's memory free as it takes."""
        if self.ask is not None and not self.reserved:
            self.reserved = self.size
            self.ask.held += self.size

    def release(self) -> None:
        """Give its ask that memory back."""
        if self.ask is not None:
            self.ask.held -= self.reserved
            self.reserved = 0

    def add(self, piece: bytes) -> None:
        """Take bytes that are to be written."""
        self._pieces.append(piece)

    async def write(self) -> None:
        """Write the bytes that came since; where no file takes them, they count as held."""
        pieces = self._pieces
        if self.arrival is not None and pieces:
            self._pieces = []
            await asyncio.to_thread(self.arrival.write, pieces)
            if self.arrival.error is not None:
                self.reserve()


class GrpcTransport:
    """A `Transport`: processes dial in at an address and take the seats of the tier below."""

    def __init__(
        self,
        address: str,
        seats: Mapping[str, Seat],
        *,
        fingerprint: str,
        identity: Identity | None,
        admission: Admission | None = None,
        limits: Limits | None = None,
        evicted: frozenset[str] = frozenset(),
        remember: Callable[[frozenset[str]], None] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Listen at `address`; port 0 takes a free one.

        `seats` is the allow-list. Without an identity there is no TLS, and the address must be one
        of this machine. `evicted` are the seats that are refused from the beginning; `remember` is
        told whenever they change. `folder` is on a disk where answers may wait; without it they
        wait in memory.
        """
        self._folder = folder
        self._limits = limits or Limits()
        self._identity = identity
        self._revoked: frozenset[int] = frozenset()
        self._revoked_files: tuple[FileMark, ...] | None = None
        """The files that say what is revoked, as they were when they were last read."""
        if identity is None:
            check_plain(address)
        else:
            identity.check()
            self._revoked = identity.revoked()
        strikes = self._limits.strikes
        self.doorkeeper = Doorkeeper(dict(seats), fingerprint, admission, strikes, evicted)
        self._names = {seat: name for name, seat in seats.items()}
        self._remember = remember
        self._remembering = threading.Lock()
        self.refused: Counter[str] = Counter()
        """Refused processes and dropped messages, by the reason's status."""
        self.knocks: Counter[str] = Counter(handshakes=0, streams=0)
        """TLS handshakes that began, and streams that were opened after one."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self._streams: dict[Seat, _Stream] = {}
        self._knocking: Counter[int] = Counter()
        self._asks: dict[AskKey, _Ask] = {}
        self._ended: dict[AskKey, _Ask] = {}
        """Asks that have ended, and which some seats still owe, in their order.

        Of a seat they are no more trainings than its window: it is sent no others before. Of all
        seats the last `_LATE` are kept.
        """
        self._owed = Owed()
        self._unchecked = 0
        """Bytes of the answers that are not checked and put away yet."""
        self._checked = asyncio.Event()
        self._reading = asyncio.Lock()
        """Held while an answer that has arrived in a file is in memory to be checked."""
        self._tasks: set[asyncio.Future[None]] = set()
        """Work that nobody waits for: checks of answers, ends of files, notes of the evicted."""
        self._empty_since: dict[Seat, float] = {}
        self._members: frozenset[Seat] = frozenset()
        self._closed = False
        self._unread = Failures()
        self._refusals: dict[tuple[str, ...], Failures] = defaultdict(Failures)
        """Why processes were refused, by the first seat of their certificate, where it is known."""
        self._unwritten = Failures()
        self._loop = shared_loop()
        self.address: str = self._do(self._start(address))

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
        unknown = set(own) - set(self.doorkeeper.seats.values())
        if unknown:
            raise TransportError(f"{key} asks the seat {min(unknown)}, which is not listed here.")
        size = len(common) + max(map(len, own.values()), default=0)
        if size > self._limits.message:
            limit = self._limits.message
            raise TransportError(f"{key}: a request of {size} bytes, more than {limit}.")
        file = None
        if self._folder is not None:
            file = AnswerFile(self._folder)
        return self._do(self._ask(_Ask(key, common, own, check, most, file), patience))

    def owe(self, key: AskKey, own: Mapping[Seat, bytes]) -> None:
        """An order that these seats have not followed."""
        self._do(self._owe(_Ask(key, b"", own)))

    def members(self) -> frozenset[Seat]:
        """The seats that are taken now."""
        return self._members

    def evict(self, name: str) -> None:
        """Close the stream of a seat, with all seats of its process; refuse it from now on."""
        self._do(self._evict(name))

    def admit(self, name: str) -> None:
        """Let an evicted seat be taken again."""
        self._do(self._admit(name))

    def turned_away(self) -> dict[Seat, str]:
        """Why processes were refused that have a certificate of an empty seat."""
        seats = self.doorkeeper.seats
        return {seats[name]: text for name, text in list(self.doorkeeper.turned_away.items())}

    def evicted(self) -> frozenset[Seat]:
        """The seats that are refused, by an order or after too many bad messages."""
        return frozenset(self.doorkeeper.seats[name] for name in self.doorkeeper.evicted)

    def close(self) -> None:
        """End all connections; asks that wait raise a TransportError."""
        if not self._closed:
            self._closed = True
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

    # Start and end

    async def _start(self, address: str) -> str:
        library = grpc()
        children = len(self.doorkeeper.seats)
        self._server = library.aio.server(
            options=server_options(self._limits, children),
            maximum_concurrent_rpcs=4 * children + 64,
        )
        join = library.stream_stream_rpc_method_handler(self._join)
        handler = library.method_handlers_generic_handler(SERVICE, {METHOD: join})
        self._server.add_generic_rpc_handlers((handler,))
        try:
            if self._identity is None:
                port = self._server.add_insecure_port(address)
            else:
                begun = partial(self.knocks.update, ["handshakes"])
                credentials = server_credentials(self._identity, begun)
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise TransportError(_not_listening(address, str(error))) from None
        await self._server.start()
        self._watch = asyncio.ensure_future(self._check_streams())
        return f"{address.rpartition(':')[0]}:{port}"

    async def _stop(self) -> None:
        self._watch.cancel()
        for stream in self._open_streams():
            stream.close("UNAVAILABLE", "the parent ends")
        for ask in self._asks.values():
            ask.changed.set()
        await asyncio.sleep(0)
        await self._server.stop(1)

    async def _evict(self, name: str) -> None:
        self.doorkeeper.evict(name)
        stream = self._streams.get(self.doorkeeper.seats[name])
        if stream is not None:
            fix = f"an operator lets it in again: covey ctl admit {name}"
            self._close(stream, "PERMISSION_DENIED", f"{name} is evicted; {fix}", evicted=True)
        await self._remember_evicted()

    async def _admit(self, name: str) -> None:
        self.doorkeeper.readmit(name)
        await self._remember_evicted()

    async def _remember_evicted(self) -> None:
        """Write who is evicted, in another thread: the disk may be busy."""
        if self._remember is not None:
            await asyncio.to_thread(self._write_evicted, self._remember)

    def _write_evicted(self, remember: Callable[[frozenset[str]], None]) -> None:
        with self._remembering:
            remember(self.doorkeeper.evicted)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something for which nobody waits."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open_streams(self) -> list[_Stream]:
        return list(dict.fromkeys(self._streams.values()))

    async def _check_streams(self) -> None:
        """Close streams whose certificate is revoked, or has ended."""
        while self._identity is not None:
            await asyncio.sleep(self._limits.check_seconds)
            self._revoked_files = None
            self._read_revoked(self._identity)
            for stream in self._open_streams():
                try:
                    self._check_stream(stream)
                except Exception as error:  # a stream that cannot be checked is closed
                    text = f"its certificate cannot be checked: {error!r}"
                    self._close(stream, "UNAUTHENTICATED", text)

    def _check_stream(self, stream: _Stream) -> None:
        if stream.certificate is None:
            return
        refusal = stream.certificate.refusal(self._revoked, datetime.now(UTC))
        if refusal is not None:
            self._close(stream, "UNAUTHENTICATED", refusal)

    def _read_revoked(self, identity: Identity) -> None:
        """Read what is revoked, if its files are other ones than before.

        Where that fails, what was revoked before stays so.
        """
        try:
            files = identity.revoked_files()
            if files == self._revoked_files:
                return
            self._revoked |= identity.revoked()
            self._revoked_files = files
        except (CoveyError, OSError, ValueError) as error:
            text = f"the revoked certificates are not read anew: {error}"
            if self._unread.add(text):
                say(logging.ERROR, "revoked_unread", text, count=self._unread.count)
        else:
            self._unread.clear()

    # Asking

    async def _ask(self, ask: _Ask, patience: Patience | None) -> dict[Seat, Answer]:
        key = ask.key
        if key in self._asks:
            raise TransportError(f"{key} is being asked already.")
        self._asks[key] = ask
        for seat in ask.own:
            if seat not in self._streams:
                self._empty_since.setdefault(seat, time.monotonic())
        for stream in self._open_streams():
            stream.queue(ask)
        try:
            await self._answered(ask, patience)
            return ask.result()
        finally:
            del self._asks[key]
            ask.end()
            self._keep_owed(ask)
            for stream in self._open_streams():
                stream.forget(ask)

    async def _owe(self, order: _Ask) -> None:
        self._keep_owed(order)
        for stream in self._open_streams():
            stream.queue(order)

    def _keep_owed(self, ask: _Ask) -> None:
        """Keep an ask that has ended for the seats that owe it; one to write replaces the last."""
        for other in self._ended.values():
            if other.key.lane == "order" and other.key.program == ask.key.program == _WRITING:
                other.excuse(ask.own)
        self._ended[ask.key] = ask
        self._forget_settled()
        trainings = [key for key in self._ended if key.lane == "train"]
        for key in trainings[:-_LATE]:  # whoever owes it may never come back
            del self._ended[key]
        if ask.key in self._ended and ask.key.lane == "train":
            self._begin(self._put_away(ask))

    def _forget_settled(self) -> None:
        """Forget the asks that nobody owes any more."""
        self._ended = {key: ask for key, ask in self._ended.items() if ask.missing()}

    async def _put_away(self, ask: _Ask) -> None:
        """Move a long request to a file: a seat that is late may never come back."""
        size = len(ask.common) + sum(map(len, ask.own.values()))
        if self._folder is None or size <= _LONG:
            return
        try:
            ask.common, ask.own = await asyncio.to_thread(
                _written, AnswerFile(self._folder), ask.common, ask.own
            )
        except OSError as error:  # such as of a full disk
            self._note_unwritten(error)

    async def _answered(self, ask: _Ask, patience: Patience | None) -> None:
        """Wait for as many answers as patience wants."""
        began = time.monotonic()
        note = self._limits.note_seconds
        while not ask.ended(patience, time.monotonic() - began, self._gone(ask, patience)):
            if self._closed:
                raise TransportError(f"{ask.key}: the transport is closed.")
            if ask.error is not None:
                raise TransportError(f"{ask.key}: {ask.error!r} in a check.") from ask.error
            self._check_diverged(ask, patience)
            waited = time.monotonic() - began
            for seat in ask.wanted_again(patience, waited):
                self._ask_again(ask, seat)
            if waited >= note:
                self._note_waiting(ask, waited)
                note = 2 * waited
            ask.changed.clear()
            left = note - waited
            if patience is not None and waited < patience.seconds:
                left = min(left, patience.seconds - waited, self._next_gone(ask, patience))
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await ask.changed.wait()

    def _check_diverged(self, ask: _Ask, patience: Patience | None) -> None:
        """Raise what a seat says of its training where the others are too few for a quorum."""
        if not ask.diverged or len(ask.own) - len(ask.diverged) >= ask.quorum(patience):
            return
        seat = min(ask.diverged)
        fix = "the others are no quorum; lower the step sizes, the penalties or the quorum"
        raise DivergedError(f"{self._names[seat]}: {ask.diverged[seat]}; {fix}.")

    def _gone(self, ask: _Ask, patience: Patience | None) -> set[Seat]:
        """The seats of an ask that have been empty for as long as patience lasts."""
        if patience is None:
            return set()
        longest = time.monotonic() - patience.seconds
        return {seat for seat in ask.missing() if self._empty_since.get(seat, math.inf) <= longest}

    def _next_gone(self, ask: _Ask, patience: Patience) -> float:
        """The seconds until one more seat of an ask has been empty for so long."""
        now = time.monotonic()
        ends = []
        for seat in ask.missing():
            end = self._empty_since.get(seat, math.inf) + patience.seconds
            if end > now:
                ends.append(end - now)
        return min(ends, default=math.inf)

    def _note_waiting(self, ask: _Ask, waited: float) -> None:
        """Log which seats an ask waits for."""
        missing = ask.missing()
        empty = [self._names[seat] for seat in missing if seat not in self._streams]
        shown = ", ".join(self._names[seat] for seat in missing[:_SHOWN])
        text = f"{len(missing)} of {len(ask.own)} seats have not answered {ask.key}: {shown}"
        seconds = round(waited, 1)
        say(logging.WARNING, "waiting", text, seconds=seconds, empty=empty[:_SHOWN])

    def _ask_again(self, ask: _Ask, seat: Seat) -> None:
        """Ask a seat once more after a bad answer; an empty seat is asked when it is taken."""
        ask.bad.discard(seat)
        if seat in self._streams:
            self._streams[seat].queue_again(ask, seat)

    # A process dials in

    async def _join(self, _: Any, context: Any) -> None:
        """The stream of one process, from its hello to its end."""
        peer = unquote(context.peer())
        self.knocks["streams"] += 1
        certificate = None
        try:
            certificate = self._authenticated(context)
            if certificate is not None:
                peer = f"{certificate.seats[0]} ({peer})"
            stream = await self._admitted(context, certificate)
        except Refusal as refusal:
            names = refusal.seats
            if certificate is not None:
                names = certificate.seats
            self._turn_away(names, refusal)
            await self._refuse(context, peer, refusal, self._refusals[names[:1]])
            return
        except Exception as error:
            await self._refuse(context, peer, _judged(error))
            return
        self._refusals.pop(certificate.seats[:1] if certificate is not None else (), None)
        LOG.info("joined: %s", stream)
        try:
            await self._converse(stream, context)
        finally:
            self._leave(stream)
            LOG.info("left: %s", stream)
        if stream.reason is not None:
            await self._refuse(context, str(stream), stream.reason)

    def _turn_away(self, names: Sequence[str], refusal: Refusal) -> None:
        """Remember why seats stay empty; a process that may take its seat later says nothing."""
        if refusal.code in _PASSING:
            return
        taken = {self._names[seat] for seat in self._streams}
        self.doorkeeper.turn_away(set(names) - taken, str(refusal))

    async def _refuse(
        self, context: Any, peer: str, refusal: Refusal, earlier: Failures | None = None
    ) -> None:
        """End a stream with a reason, which is logged: ever more rarely where `earlier` has it."""
        if refusal.code in _HARMLESS:
            LOG.info("closed %s: %s", peer, refusal)
        else:
            self.refused[refusal.code] += 1
        if refusal.code not in _HARMLESS and (earlier is None or earlier.add(str(refusal))):
            facts = {"code": refusal.code, "count": self.refused[refusal.code]}
            level = logging.WARNING
            if refusal.code == "INTERNAL":
                level = logging.ERROR
            LOG.log(level, "refused %s: %s", peer, refusal, extra={"facts": facts})
        metadata: tuple[tuple[str, str], ...] = ()
        if refusal.evicted:
            metadata = ((EVICTED, "yes"),)
        code = getattr(grpc().StatusCode, refusal.code)
        # A process that reads nothing gets no reason: gRPC ends its stream when this returns.
        with suppress(TimeoutError, grpc().aio.InternalError):
            async with asyncio.timeout(self._limits.hello_seconds):
                await context.abort(code, str(refusal), metadata)

    def _authenticated(self, context: Any) -> SeatCertificate | None:
        """The certificate of a peer; None where the tree has none."""
        if self._closed:
            raise Refusal("UNAVAILABLE", "the parent ends")
        if self._identity is None:
            return None
        self._read_revoked(self._identity)
        return self.doorkeeper.certificate(context.auth_context(), self._revoked)

    async def _admitted(self, context: Any, certificate: SeatCertificate | None) -> _Stream:
        """The stream of a process that says hello and may take its seats."""
        serial = certificate.serial if certificate is not None else 0
        if certificate is not None and self._knocking[serial] >= 2:
            raise Refusal("RESOURCE_EXHAUSTED", f"{certificate.seats[0]} dials too often at once")
        self._knocking[serial] += 1
        try:
            hello = await self._hello(context, self._most_of_hello(certificate))
            # First: the disk of a second process is always behind one that answers meanwhile.
            self._held(self.doorkeeper.check(hello, certificate), hello.instance)
            await asyncio.to_thread(self.doorkeeper.check_disks, hello)
            # Again: a seat may have been evicted meanwhile. Nothing is awaited before it is taken.
            seats = self.doorkeeper.check(hello, certificate)
            stream = _Stream(seats, hello.instance, unquote(context.peer()), certificate)
            self._take_seats(stream)
            # Before anything is awaited: an ask that begins meanwhile comes after what is owed.
            for ask in (*self._ended.values(), *self._asks.values()):
                stream.queue(ask)
            await self._say_welcome(stream, context, hello)
        finally:
            self._knocking[serial] -= 1
        return stream

    async def _say_welcome(self, stream: _Stream, context: Any, hello: Hello) -> None:
        """Send the welcome to a process that has taken its seats; it keeps them only with it."""
        seconds = self._limits.hello_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._send(stream, context, Message(self._welcome(hello)))
        except TimeoutError:
            self._leave(stream)
            text = f"it takes no welcome in {seconds:g} s"
            raise Refusal("DEADLINE_EXCEEDED", text) from None
        except BaseException:
            self._leave(stream)
            raise

    def _most_of_hello(self, certificate: SeatCertificate | None) -> int:
        """The bytes of the longest hello of a process that asks for all seats it may take."""
        names: Collection[str] = self.doorkeeper.seats
        if certificate is not None:
            names = certificate.seats
        return _HELLO + _HELLO_SEAT * len(names)

    async def _hello(self, context: Any, most: int) -> Hello:
        """The first message of a process; one of more bytes than `most` is not read."""
        try:
            async with asyncio.timeout(self._limits.hello_seconds):
                data = await context.read()
            if data is grpc().aio.EOF:
                raise Refusal("INVALID_ARGUMENT", "it ends before its hello")
            if len(data) > most:
                text = f"a hello of {len(data)} bytes, more than its seats need ({most})"
                raise Refusal("INVALID_ARGUMENT", text)
            message = Assembler(limit=0).take(data)
        except TimeoutError:
            seconds = self._limits.hello_seconds
            raise Refusal("DEADLINE_EXCEEDED", f"no hello in {seconds:g} s") from None
        except DecodeError as error:
            raise Refusal("INVALID_ARGUMENT", str(error)) from None
        if message is None or not isinstance(message.head, Hello):
            raise Refusal("INVALID_ARGUMENT", "its first message is no hello")
        return message.head

    def _welcome(self, hello: Hello) -> Welcome:
        welcome = Welcome(protocol=PROTOCOL, fingerprint=self.doorkeeper.fingerprint)
        if self._identity is not None:
            welcome.certificate = self._identity.certificate()
            welcome.signature = self._identity.sign(signed_text(hello))
        return welcome

    def _held(self, seats: Mapping[str, Seat], instance: bytes) -> set[_Stream]:
        """The streams of a process that hold some seats; refused where another process has one."""
        held = {self._streams[seat] for seat in seats.values() if seat in self._streams}
        for other in held:
            if other.instance != instance:
                text = f"{', '.join(set(other.seats) & set(seats))} is taken by {other.peer}"
                raise Refusal("ALREADY_EXISTS", f"{text}; one process may hold a seat")
        return held

    def _take_seats(self, stream: _Stream) -> None:
        """Give a process its seats, unless another process has one of them."""
        for other in self._held(stream.seats, stream.instance):
            self._close(other, "ABORTED", "its process has dialled again")
        for seat in stream.seats.values():
            self._streams[seat] = stream
            self._empty_since.pop(seat, None)
        self._members = frozenset(self._streams)
        self.doorkeeper.let_in(stream.seats)

    def _close(self, stream: _Stream, code: str, text: str, *, evicted: bool = False) -> None:
        """End a stream with this reason; its seats are empty at once, whatever its process does."""
        stream.close(code, text, evicted=evicted)
        self._leave(stream)

    def _leave(self, stream: _Stream) -> None:
        """Empty the seats of a stream."""
        for seat in stream.seats.values():
            if self._streams.get(seat) is stream:
                del self._streams[seat]
                self._empty_since[seat] = time.monotonic()
        self._members = frozenset(self._streams)

    # A stream

    async def _converse(self, stream: _Stream, context: Any) -> None:
        """Send requests and take replies until either end closes the stream."""
        tasks = [
            asyncio.ensure_future(self._read(stream, context)),
            asyncio.ensure_future(self._write(stream, context)),
            asyncio.ensure_future(stream.end.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                refusal = _judged(result)
                stream.close(refusal.code, str(refusal), evicted=refusal.evicted)

    async def _write(self, stream: _Stream, context: Any) -> None:
        """Send requests as they come."""
        while True:
            stream.wake.clear()
            batch = stream.take(self._limits.window, self._limits.message)
            if batch is None:
                await stream.wake.wait()
                continue
            ask, seats = batch
            ask.sent.update(seats)
            for seat in seats:
                self._owed.ask(seat, ask.key)
            if isinstance(ask.common, Stored):
                message = await asyncio.to_thread(_request, ask, seats)
            else:
                message = _request(ask, seats)
            await self._send(stream, context, message)
            del batch, ask, message  # with all its answers

    async def _send(self, stream: _Stream, context: Any, message: Message) -> None:
        """Send the frames of a message; gRPC's flow control holds the next one back.

        A process that takes none for long would keep its request in memory.
        """
        stream.number += 1
        for frame in cut(stream.number, message):
            try:
                async with asyncio.timeout(self._limits.frame_seconds):
                    await context.write(frame)
            except TimeoutError:
                raise Refusal("DEADLINE_EXCEEDED", "it does not read what it is sent") from None
            self.sent_bytes += len(frame)

    async def _read(self, stream: _Stream, context: Any) -> None:
        """Take replies until the process closes its side."""
        end = grpc().aio.EOF
        assembler = Assembler(limit=self._limits.message)
        assembler.skip_to(2)  # the hello was the first message
        incoming = _Incoming()
        try:
            while True:
                limit = self._limits.stall_seconds if assembler.within else None
                try:
                    async with asyncio.timeout(limit):
                        data = await context.read()
                except TimeoutError:
                    raise Refusal("DEADLINE_EXCEEDED", "a message stalls") from None
                if data is end:
                    return
                self.received_bytes += len(data)
                message = self._take(stream, assembler, incoming, data)
                del data  # before the next frame is waited for
                await incoming.write()
                if message is not None:
                    received = incoming
                    incoming = _Incoming()
                    self._receive(stream, received, message)
                    del received, message
                await self._wait_for_checks()
        finally:
            self._forget(incoming)

    def _forget(self, incoming: _Incoming) -> None:
        """Forget a reply of which the rest will not come, or that came too late."""
        incoming.release()
        if incoming.arrival is not None:
            self._begin(asyncio.to_thread(incoming.arrival.end))

    async def _wait_for_checks(self) -> None:
        """Read no more while many answers wait to be checked and put away."""
        while self._unchecked > self._limits.unchecked:
            self._checked.clear()
            await self._checked.wait()

    def _take(
        self, stream: _Stream, assembler: Assembler, incoming: _Incoming, data: bytes
    ) -> Message | None:
        """Take one frame; return the message that it ends.

        A reply that nobody wants is dropped, and counted if it is a lie.
        """
        begins = not assembler.within
        try:
            message = assembler.take(data)
            head = assembler.head if message is None else message.head
            if begins:
                incoming.wanted = self._wanted(stream, head)
            if begins and message is None:
                self._place(incoming, assembler, head)
        except DecodeError as error:
            self._strike(stream, str(error))
            raise Refusal("INVALID_ARGUMENT", str(error)) from None
        return message

    def _wanted(self, stream: _Stream, head: Head | None) -> bool:
        """Whether a reply is the answer to a key that was asked of its seat."""
        lie = self._owed.lie(head, stream.seats.values())
        if lie is not None:
            return self._lie(stream, lie)
        assert isinstance(head, Reply)
        ask = self._asks.get(key_asked(head.key))
        if ask is not None and ask.most is not None and head.size > ask.most:
            text = f"an answer of {head.size} bytes to {ask.key}"
            raise DecodeError(f"{text}, more than {ask.most}.")
        return True

    def _place(self, incoming: _Incoming, assembler: Assembler, head: Head | None) -> None:
        """Decide where the bytes of a reply go that comes in several frames.

        They go to memory as long as its ask has room there, so that it never has more, however slow
        or hostile some children are. No child waits for another one.
        """
        ask = None
        if incoming.wanted and isinstance(head, Reply):
            ask = self._asks.get(key_asked(head.key))
        if ask is None:
            incoming.late = True
            assembler.discard()
            return
        incoming.ask = ask
        (incoming.size,) = assembler.sizes
        if self._folder is not None and ask.held + incoming.size > self._room(ask):
            incoming.arrival = Arrival(self._folder)
            assembler.divert(incoming.add)
        else:
            incoming.reserve()

    def _receive(self, stream: _Stream, incoming: _Incoming, message: Message) -> None:
        """Take a reply that is complete."""
        head = message.head
        if not incoming.wanted or not isinstance(head, Reply):
            return
        key = key_asked(head.key)
        self._owed.settle(head.seat, key)
        stream.unanswered[head.seat].discard(key)
        stream.wake.set()
        ask = self._asks.get(key)
        if ask is None or incoming.late:
            self._forget(incoming)
            self._note_late(stream, head.seat, key, message)
        elif incoming.arrival is not None:
            self._begin(self._check_arrived(stream, ask, head.seat, incoming, incoming.arrival))
        else:
            data = message.blobs[0]
            self._unchecked += len(data)
            self._begin(self._check(stream, ask, head.seat, data, incoming.reserved))

    def _lie(self, stream: _Stream, text: str) -> bool:
        """Drop a message and count it; evict the sender of too many."""
        self.refused["dropped"] += 1
        LOG.warning("dropped of %s: %s", stream, text)
        if self._strike(stream, text):
            reason = f"evicted; the last reason: {text}"
            raise Refusal("PERMISSION_DENIED", reason, evicted=True)
        return False

    def _strike(self, stream: _Stream, text: str) -> bool:
        evicted = self.doorkeeper.strike(frozenset(stream.seats))
        if evicted:
            seats = list(stream.seats)
            facts = {"seats": seats, "peer": stream.peer, "reason": text}
            LOG.warning("evicted %s: %s", stream, text, extra={"facts": facts})
            self._begin(self._remember_evicted())
        return evicted

    def _note_late(self, stream: _Stream, seat: Seat, key: AskKey, message: Message) -> None:
        """An answer has come after its ask; the seat owes it no more, unless an order failed."""
        LOG.info("late: %s to %s", stream, key)
        if key.lane == "order" and message.kept:
            failure = failure_of(message.blobs[0])
            if failure is not None:
                text = f"{self._names[seat]} has not followed {key}: {failure[:_REASON]}"
                say(logging.WARNING, "order_failed", text, seat=self._names[seat])
                return
        if key in self._ended:
            self._ended[key].excuse([seat])
            self._forget_settled()

    async def _check_arrived(
        self, stream: _Stream, ask: _Ask, seat: Seat, incoming: _Incoming, arrival: Arrival
    ) -> None:
        """Check an answer that has arrived in a file; one such answer at a time is in memory."""
        async with self._reading:
            try:
                data = await asyncio.to_thread(arrival.take)
            except Exception as error:
                incoming.release()
                ask.error = error
                ask.changed.set()
                return
            finally:
                if arrival.error is not None:
                    self._note_unwritten(arrival.error)
            self._unchecked += len(data)
            await self._check(stream, ask, seat, data, incoming.reserved)

    async def _check(
        self, stream: _Stream, ask: _Ask, seat: Seat, data: bytes, reserved: int
    ) -> None:
        """Believe an answer, or drop it: a long one is checked by another thread.

        So much of the memory of its ask is `reserved` for it until it is put away.
        """
        size = len(data)
        try:
            try:
                reason = await self._reason(ask, seat, data)
            finally:
                ask.held -= reserved
            if reason is None:
                ask.believe(seat, await self._moved(ask, data))
                del data
                await self._trim(ask, size)
            else:
                ask.refuse(seat, reason)
                self._drop(stream, ask, seat, reason)
        except Exception as error:  # a bug: whoever asks gets it, since no answer will come
            ask.error = error
        finally:
            self._unchecked -= size
            self._checked.set()
        ask.changed.set()
        if ask.over:
            self._forget_settled()

    async def _moved(self, ask: _Ask, data: bytes) -> bytes | Stored:
        """An answer; it goes to a file where others fill the memory that answers may take."""
        if ask.file is not None and ask.held + len(data) > self._room(ask):
            try:
                return await asyncio.to_thread(ask.file.add, data)
            except OSError as error:  # such as of a full disk
                self._note_unwritten(error)
        ask.held += len(data)
        return data

    def _room(self, ask: _Ask) -> int:
        """The bytes of memory that answers to an ask may take."""
        limits = self._limits
        return max(limits.held, limits.held_requests * len(ask.common))

    def _note_unwritten(self, error: OSError) -> None:
        text = f"answers are held in memory, since {self._folder} takes none: {error}"
        if self._unwritten.add(text):
            say(logging.WARNING, "answers_held", text, count=self._unwritten.count)

    async def _trim(self, ask: _Ask, size: int) -> None:
        """Give back the memory in which gRPC has put answers together, after some of them."""
        ask.untrimmed += size
        if ask.untrimmed > _TRIM:
            ask.untrimmed = 0
            await asyncio.to_thread(give_back_free)

    async def _reason(self, ask: _Ask, seat: Seat, data: bytes) -> str | None:
        """Why an answer is refused."""
        if ask.check is None:
            return None
        if len(data) > _LONG:
            return await asyncio.to_thread(ask.check, seat, data)
        return ask.check(seat, data)

    def _drop(self, stream: _Stream, ask: _Ask, seat: Seat, reason: str) -> None:
        """Count a bad answer, and evict the sender of too many; a divergence is none of them."""
        name = self._names[seat]
        facts = {"seat": name, "peer": stream.peer, "key": str(ask.key), "reason": reason}
        if isinstance(reason, Diverged):
            self.refused["diverged"] += 1
            LOG.warning("diverged of %s: %s", name, reason, extra={"facts": facts})
            return
        self.refused["bad"] += 1
        LOG.warning("bad_answer of %s: %s", name, reason, extra={"facts": facts})
        if self._strike(stream, reason):
            text = f"evicted; the last reason: {reason}"
            self._close(stream, "PERMISSION_DENIED", text, evicted=True)


def _judged(error: Exception) -> Refusal:
    """Why a stream has ended: a refusal, a connection that broke, or an error of this parent."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, broken()):
        return Refusal("UNAVAILABLE", f"its connection broke: {error!r}")
    return Refusal("INTERNAL", f"the parent failed: {type(error).__name__}: {error}")


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


def _request(ask: _Ask, seats: list[Seat]) -> Message:
    """The request of an ask for some seats of one process; it may wait for the disk."""
    own = [_read(ask.own[seat]) for seat in seats]
    parts = [SeatShare(seat=seat, size=len(data)) for seat, data in zip(seats, own, strict=True)]
    head = Request(key=key_sent(ask.key), common=len(ask.common), parts=parts)
    return Message(head, (_read(ask.common), *own))


def _read(data: Blob | Stored) -> bytes:
    """What frames are cut from."""
    if isinstance(data, Stored):
        return data.read()
    return cast(bytes, data)  # several pieces are cut like bytes


def _written(
    file: AnswerFile, common: Blob | Stored, own: Mapping[Seat, bytes | Stored]
) -> tuple[Blob | Stored, dict[Seat, bytes | Stored]]:
    """A request whose bytes lie in a file."""
    parts: dict[Seat, bytes | Stored] = {}
    for seat, data in own.items():
        parts[seat] = file.add(_read(data))
    if isinstance(common, Pieces):
        common = common.joined()
    return file.add(_read(common)), parts


def listed(tier: str, numbers: Iterator[int] | range) -> dict[str, Seat]:
    """The default names of seats: the tier and the number.

    >>> listed("device", range(2))
    {'device0': 0, 'device1': 1}
    """
    return {f"{tier}{number}": number for number in numbers}
