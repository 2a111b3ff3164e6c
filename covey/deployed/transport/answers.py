"""The answers of children: what arrives is dropped or taken, checked, and put where it waits."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from covey.deployed.memory import give_back_free
from covey.deployed.node.node_rows import open_order
from covey.deployed.transport.admission import Refusal
from covey.deployed.transport.ask import Ask, Asks
from covey.deployed.transport.frames import Assembler, Message
from covey.deployed.transport.grpc_options import LOG, Failures, Limits, begin, say
from covey.deployed.transport.seat_table import ChildStream, SeatTable
from covey.deployed.transport.stored import AnswerFile, Arrival, Stored
from covey.deployed.transport.transport import AskKey, Diverged, Seat
from covey.deployed.transport.wire import Head, Reply, key_asked
from covey.errors import DecodeError

REMEMBERED = 64
"""Keys of a seat; an answer to an older one is a lie."""
_LONG = 1 << 16  # bytes of an answer that the event loop checks itself
_TRIM = 1 << 22  # bytes of answers after which free memory is given back
_REASON = 200  # characters of what a child says


@dataclass
class SentKeys:
    """The keys that were sent to every seat, and how many answers each may still have.

    A request is sent again where a stream has ended before its answer came. A process that was
    working on it may then answer twice.
    """

    by_seat: dict[Seat, OrderedDict[AskKey, int]] = field(default_factory=dict)

    def send(self, seat: Seat, key: AskKey) -> None:
        """A request with this key is sent to a seat."""
        keys = self.by_seat.setdefault(seat, OrderedDict())
        keys[key] = keys.get(key, 0) + 1
        keys.move_to_end(key)
        while len(keys) > REMEMBERED:
            keys.popitem(last=False)

    def answered(self, seat: Seat, key: AskKey) -> None:
        """A seat has answered this key."""
        keys = self.by_seat[seat]
        if key in keys:
            keys[key] -= 1

    def lie(self, head: Head | None, seats: Collection[Seat]) -> str | None:
        """Why a reply from a process with these seats is none that is owed; None: it is.

        What is no reply at all is a DecodeError.
        """
        if not isinstance(head, Reply):
            raise DecodeError(f"a {type(head).__name__} where a Reply should come.")
        key = key_asked(head.key)
        if head.seat not in seats:
            return f"an answer for the seat {head.seat}"
        left = self.by_seat.get(head.seat, OrderedDict()).get(key)
        if left is None:
            return f"an answer to {key}, which was not asked"
        if left < 1:
            return f"a second answer to {key}"
        return None


@dataclass(eq=False)
class Incoming:
    """The reply that a stream receives in several frames."""

    wanted: bool = True
    late: bool = False
    """Whether its ask has ended before it began."""
    ask: Ask | None = None
    size: int = 0
    """Bytes of the whole answer."""
    reserved: int = 0
    """Bytes of its ask's memory that are kept free for it."""
    arrival: Arrival | None = None
    """Where its bytes go; None: to memory."""
    pieces: list[bytes] = field(default_factory=list)
    """Those that are to be written."""

    def reserve(self) -> None:
        """Keep as much of its ask's memory free as it takes."""
        if self.ask is not None and not self.reserved:
            self.reserved = self.size
            self.ask.in_memory += self.size

    def release(self) -> None:
        """Give its ask that memory back."""
        if self.ask is not None:
            self.ask.in_memory -= self.reserved
            self.reserved = 0

    def add(self, piece: bytes) -> None:
        """Take bytes that are to be written."""
        self.pieces.append(piece)

    async def write(self) -> None:
        """Write the bytes that came since; where no file takes them, they count as held."""
        pieces = self.pieces
        if self.arrival is not None and pieces:
            self.pieces = []
            await asyncio.to_thread(self.arrival.write, pieces)
            if self.arrival.error is not None:
                self.reserve()


@dataclass(eq=False)
class Receiver:
    """Takes the replies of all streams: no seat is believed before its answer is checked."""

    asks: Asks
    table: SeatTable
    limits: Limits
    refused: Counter[str]
    """Dropped messages and bad answers."""
    folder: Path | None
    """On a disk where answers may wait; None: they wait in memory."""
    sent: SentKeys = field(default_factory=SentKeys)
    _unchecked: int = 0
    """Bytes of the answers that are not checked and put away yet."""
    _checked: asyncio.Event = field(default_factory=asyncio.Event)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while an answer that has arrived in a file is in memory to be checked."""
    _unwritten: Failures = field(default_factory=Failures)

    def file(self) -> AnswerFile | None:
        """Where the answers to an ask wait that are not to be held in memory."""
        if self.folder is None:
            return None
        return AnswerFile(self.folder)

    async def put_away(self, ask: Ask) -> None:
        """Move a long request to a file: a seat that is late may never come back."""
        file = self.file()
        if file is None or ask.size <= _LONG:
            return
        try:
            ask.common, ask.own = await asyncio.to_thread(ask.written, file)
        except OSError as error:  # such as of a full disk
            self._note_unwritten(error)

    async def wait_for_checks(self) -> None:
        """Read no more while many answers wait to be checked and put away."""
        while self._unchecked > self.limits.unchecked:
            self._checked.clear()
            await self._checked.wait()

    # What a stream receives

    def take(
        self,
        stream: ChildStream,
        assembler: Assembler,
        incoming: Incoming,
        data: bytes,
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
            self.table.strike(stream, str(error))
            raise Refusal("INVALID_ARGUMENT", str(error)) from None
        return message

    def _wanted(self, stream: ChildStream, head: Head | None) -> bool:
        """Whether a reply is the answer to a key that was asked of its seat.

        Any other is dropped and counted; the sender of too many is evicted.
        """
        lie = self.sent.lie(head, stream.seats.values())
        if lie is not None:
            self.refused["dropped"] += 1
            LOG.warning("dropped of %s: %s", stream, lie)
            if self.table.strike(stream, lie):
                reason = f"evicted; the last reason: {lie}"
                raise Refusal("PERMISSION_DENIED", reason, evicted=True)
            return False
        assert isinstance(head, Reply)
        ask = self.asks.open.get(key_asked(head.key))
        if ask is not None and ask.most is not None and head.size > ask.most:
            text = f"an answer of {head.size} bytes to {ask.key}"
            raise DecodeError(f"{text}, more than {ask.most}.")
        return True

    def _place(self, incoming: Incoming, assembler: Assembler, head: Head | None) -> None:
        """Decide where the bytes of a reply go that comes in several frames.

        They go to memory as long as its ask has room there, so that it never has more, however slow
        or hostile some children are. No child waits for another one.
        """
        ask = None
        if incoming.wanted and isinstance(head, Reply):
            ask = self.asks.open.get(key_asked(head.key))
        if ask is None:
            incoming.late = True
            assembler.discard()
            return
        incoming.ask = ask
        (incoming.size,) = assembler.sizes
        if self.folder is not None and ask.in_memory + incoming.size > self._room(ask):
            incoming.arrival = Arrival(self.folder)
            assembler.divert(incoming.add)
        else:
            incoming.reserve()

    def forget(self, incoming: Incoming) -> None:
        """Forget a reply of which the rest will not come, or that came too late."""
        incoming.release()
        if incoming.arrival is not None:
            begin(asyncio.to_thread(incoming.arrival.end))

    def receive(self, stream: ChildStream, incoming: Incoming, message: Message) -> None:
        """Take a reply that is complete."""
        head = message.head
        if not incoming.wanted or not isinstance(head, Reply):
            return
        key = key_asked(head.key)
        self.sent.answered(head.seat, key)
        stream.unanswered[head.seat].discard(key)
        stream.wake.set()
        ask = self.asks.open.get(key)
        if ask is None or incoming.late:
            self.forget(incoming)
            self._take_late(stream, head.seat, key, message)
        elif incoming.arrival is not None:
            begin(self._check_arrived(stream, ask, head.seat, incoming, incoming.arrival))
        else:
            data = message.blobs[0]
            self._unchecked += len(data)
            begin(self._check(stream, ask, head.seat, data, incoming.reserved))

    def _take_late(
        self,
        stream: ChildStream,
        seat: Seat,
        key: AskKey,
        message: Message,
    ) -> None:
        """An answer has come after its ask; the seat owes it no more, unless an order failed."""
        LOG.info("late: %s to %s", stream, key)
        if key.lane == "order" and message.kept:
            failure = failure_of(message.blobs[0])
            if failure is not None:
                name = self.table.names[seat]
                text = f"{name} has not followed {key}: {failure[:_REASON]}"
                say(logging.WARNING, "order_failed", text, seat=name)
                return
        self.asks.excuse(key, seat)

    # Checks

    async def _check_arrived(
        self,
        stream: ChildStream,
        ask: Ask,
        seat: Seat,
        incoming: Incoming,
        arrival: Arrival,
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
        self,
        stream: ChildStream,
        ask: Ask,
        seat: Seat,
        data: bytes,
        reserved: int,
    ) -> None:
        """Believe an answer, or drop it: a long one is checked by another thread.

        So much of the memory of its ask is `reserved` for it until it is put away.
        """
        size = len(data)
        try:
            reason = None
            try:
                if ask.check is not None and size > _LONG:
                    reason = await asyncio.to_thread(ask.check, seat, data)
                elif ask.check is not None:
                    reason = ask.check(seat, data)
            finally:
                ask.in_memory -= reserved
            if reason is None:
                ask.believe(seat, await self._stored(ask, data))
                del data
                ask.untrimmed += size
                if ask.untrimmed > _TRIM:  # what gRPC has put answers together in
                    ask.untrimmed = 0
                    await asyncio.to_thread(give_back_free)
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
            self.asks.forget_settled()

    async def _stored(self, ask: Ask, data: bytes) -> bytes | Stored:
        """An answer; it goes to a file where others fill the memory that answers may take."""
        if ask.file is not None and ask.in_memory + len(data) > self._room(ask):
            try:
                return await asyncio.to_thread(ask.file.add, data)
            except OSError as error:  # such as of a full disk
                self._note_unwritten(error)
        ask.in_memory += len(data)
        return data

    def _room(self, ask: Ask) -> int:
        """The bytes of memory that answers to an ask may take."""
        return max(self.limits.held, self.limits.held_requests * len(ask.common))

    def _note_unwritten(self, error: OSError) -> None:
        text = f"answers are held in memory, since {self.folder} takes none: {error}"
        self._unwritten.note(logging.WARNING, "answers_held", text)

    def _drop(
        self,
        stream: ChildStream,
        ask: Ask,
        seat: Seat,
        reason: str,
    ) -> None:
        """Count a bad answer, and evict the sender of too many; a divergence is none of them."""
        name = self.table.names[seat]
        facts = {"seat": name, "peer": stream.peer, "key": str(ask.key), "reason": reason}
        if isinstance(reason, Diverged):
            self.refused["diverged"] += 1
            LOG.warning("diverged of %s: %s", name, reason, extra={"facts": facts})
            return
        self.refused["bad"] += 1
        LOG.warning("bad_answer of %s: %s", name, reason, extra={"facts": facts})
        if self.table.strike(stream, reason):
            text = f"evicted; the last reason: {reason}"
            self.table.close(stream, "PERMISSION_DENIED", text, evicted=True)


def failure_of(answer: bytes) -> str | None:
    """Why an order was not followed, as the answer to it says; None: it says no such thing.

    >>> from covey.deployed.node.node_rows import seal_order
    >>> failure_of(seal_order({"error": ["CheckpointError", "the disk is full"]}))
    'the disk is full'
    """
    try:
        header, _ = open_order(answer)
        _, text = header["error"]
        return str(text)
    except (DecodeError, KeyError, TypeError, ValueError):
        return None
