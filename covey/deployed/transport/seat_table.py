"""The seats below a parent: which stream has each of them now, and which are evicted."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from covey.deployed.operate.certificates import SeatCertificate
from covey.deployed.transport.admission import AllowList, Refusal
from covey.deployed.transport.ask import Ask
from covey.deployed.transport.grpc_options import LOG, begin, say
from covey.deployed.transport.transport import AskKey, Seat

_SHOWN = 5  # names in a line of the log


@dataclass(eq=False)
class ChildStream:
    """An open stream of a process that has taken seats, and what is to be sent on it."""

    seats: Mapping[str, Seat]
    instance: bytes
    peer: str
    certificate: SeatCertificate | None
    number: int = 0
    """Of the last message that was sent."""
    pending: dict[Ask, list[Seat]] = field(default_factory=dict)
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

    def queue(self, ask: Ask) -> None:
        """Let the sender send what an ask still wants of these seats."""
        own = set(self.seats.values())
        seats = [seat for seat in ask.missing() if seat in own]
        if seats:
            self.pending[ask] = seats
            self.wake.set()

    def queue_again(self, ask: Ask, seat: Seat) -> None:
        """Let the sender send an ask to one seat again."""
        self.pending[ask] = [*self.pending.get(ask, []), seat]
        self.wake.set()

    def forget(self, ask: Ask) -> None:
        """An ask is over: only those are sent it who still owe it."""
        if ask in self.pending:
            owing = [seat for seat in self.pending[ask] if seat in ask.own]
            self._put(ask, owing)  # before the requests that came since

    def take(self, window: int, limit: int) -> tuple[Ask, list[Seat]] | None:
        """The next ask with the seats that it can be sent to now, in a message within a limit.

        A seat gets requests in the order of the asks, and no more than `window` without an answer.
        """
        waiting: set[Seat] = set()
        for ask, seats in self.pending.items():
            ready = []
            for seat in seats:
                keys = self.unanswered[seat]
                if seat not in waiting and (ask.key in keys or len(keys) < window):
                    ready.append(seat)
            waiting.update(seats)
            if ready:
                ready = ask.fitting(ready, limit)
                self._put(ask, [seat for seat in seats if seat not in ready])
                for seat in ready:
                    self.unanswered[seat].add(ask.key)
                return ask, ready
        return None

    def _put(self, ask: Ask, seats: list[Seat]) -> None:
        """An ask is still to be sent to these seats alone, in its place among the others."""
        if seats:
            self.pending[ask] = seats
        else:
            del self.pending[ask]


@dataclass(eq=False)
class SeatTable:
    """The seats below a parent, by their ids, and the streams of those who have taken them."""

    allowed: AllowList
    remember: Callable[[frozenset[str]], None] = lambda _: None
    """Told whenever the evicted change."""
    streams: dict[Seat, ChildStream] = field(default_factory=dict)
    members: frozenset[Seat] = frozenset()
    """The seats that are taken now; other threads may look."""
    _empty_since: dict[Seat, float] = field(default_factory=dict)
    _remembering: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.names = {seat: name for name, seat in self.allowed.seats.items()}

    def open_streams(self) -> list[ChildStream]:
        """Every stream once."""
        return list(dict.fromkeys(self.streams.values()))

    def streams_of(self, seats: Mapping[str, Seat], instance: bytes) -> set[ChildStream]:
        """The streams of a process that hold some seats; refused where another process has one."""
        out = {self.streams[seat] for seat in seats.values() if seat in self.streams}
        for other in out:
            if other.instance != instance:
                text = f"{', '.join(set(other.seats) & set(seats))} is taken by {other.peer}"
                raise Refusal("ALREADY_EXISTS", f"{text}; one process may hold a seat")
        return out

    def take(self, stream: ChildStream) -> None:
        """Give a process its seats, unless another process has one of them."""
        for other in self.streams_of(stream.seats, stream.instance):
            self.close(other, "ABORTED", "its process has dialled again")
        for seat in stream.seats.values():
            self.streams[seat] = stream
            self._empty_since.pop(seat, None)
        self.members = frozenset(self.streams)
        for name in stream.seats:
            self.allowed.turned_away.pop(name, None)

    def close(
        self,
        stream: ChildStream,
        code: str,
        text: str,
        *,
        evicted: bool = False,
    ) -> None:
        """End a stream with this reason; its seats are empty at once, whatever its process does."""
        stream.close(code, text, evicted=evicted)
        self.leave(stream)

    def leave(self, stream: ChildStream) -> None:
        """Empty the seats of a stream."""
        for seat in stream.seats.values():
            if self.streams.get(seat) is stream:
                del self.streams[seat]
                self._empty_since[seat] = time.monotonic()
        self.members = frozenset(self.streams)

    # Who is evicted

    async def evict(self, name: str) -> None:
        """Close the stream of a seat, with all seats of its process; refuse it from now on."""
        self.allowed.evicted |= {name}
        stream = self.streams.get(self.allowed.seats[name])
        if stream is not None:
            fix = f"an operator lets it in again: covey ctl admit {name}"
            self.close(stream, "PERMISSION_DENIED", f"{name} is evicted; {fix}", evicted=True)
        await self._remember_evicted()

    async def admit(self, name: str) -> None:
        """Let an evicted seat be taken again."""
        self.allowed.readmit(name)
        await self._remember_evicted()

    def strike(self, stream: ChildStream, text: str) -> bool:
        """Count a bad message; return whether it was one too many, and its sender is evicted."""
        evicted = self.allowed.strike(frozenset(stream.seats))
        if evicted:
            facts = {"seats": list(stream.seats), "peer": stream.peer, "reason": text}
            LOG.warning("evicted %s: %s", stream, text, extra={"facts": facts})
            begin(self._remember_evicted())
        return evicted

    async def _remember_evicted(self) -> None:
        """Write who is evicted, in another thread: the disk may be busy."""

        def write() -> None:
            with self._remembering:
                self.remember(self.allowed.evicted)

        await asyncio.to_thread(write)

    # Asks and empty seats

    def queue(self, ask: Ask) -> None:
        """Let every stream send what an ask still wants of its seats."""
        for stream in self.open_streams():
            stream.queue(ask)

    def note_empty(self, seats: Collection[Seat]) -> None:
        """The time of seats that were never taken counts from the first ask of them."""
        for seat in seats:
            if seat not in self.streams:
                self._empty_since.setdefault(seat, time.monotonic())

    def empty_for(self, seconds: float, seats: Collection[Seat]) -> set[Seat]:
        """Those of some seats that have been empty for so long, counted from their first ask."""
        longest = time.monotonic() - seconds
        return {seat for seat in seats if self._empty_since.get(seat, math.inf) <= longest}

    def next_empty_for(self, seconds: float, seats: Collection[Seat]) -> float:
        """Seconds until one more of some seats has been empty for so long."""
        now = time.monotonic()
        ends = [self._empty_since.get(seat, math.inf) + seconds for seat in seats]
        return min((end - now for end in ends if end > now), default=math.inf)

    def note_waiting(self, ask: Ask, waited: float) -> None:
        """Log which seats an ask waits for."""
        missing = ask.missing()
        empty = [self.names[seat] for seat in missing if seat not in self.streams]
        shown = ", ".join(self.names[seat] for seat in missing[:_SHOWN])
        text = f"{len(missing)} of {len(ask.own)} seats have not answered {ask.key}: {shown}"
        seconds = round(waited, 1)
        say(logging.WARNING, "waiting", text, seconds=seconds, empty=empty[:_SHOWN])
