"""A transport between objects of one process: a thread for every seat, and no sockets."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from covey.deployed.transport.ask import Ask
from covey.deployed.transport.transport import (
    Answer,
    AskKey,
    Blob,
    Check,
    Diverged,
    Handler,
    Patience,
    Seat,
)
from covey.errors import TransportError
from covey.runtimes.alone.envelope import Pieces

STRIKES = 3
"""Bad answers after which nobody is on a seat any more."""


class SeatLost(BaseException):
    """The node on a seat is gone, as if its process had been killed; for tests."""


@dataclass
class _Job:
    """One request of an ask."""

    ask: Ask
    common: bytes
    patience: Patience | None = None


@dataclass(eq=False)
class _LocalSeat:
    """A seat, whose thread handles requests one after the other."""

    number: Seat
    jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    handler: Handler | None = None
    """The node that has it; None: nobody."""
    bad: list[str] = field(default_factory=list)
    """Why answers were refused."""

    def refuse(self, reason: str) -> None:
        """Count a bad answer; the seat is empty after too many, until another takes it."""
        self.bad.append(reason)
        lies = sum(not isinstance(text, Diverged) for text in self.bad)
        if not isinstance(reason, Diverged) and lies % STRIKES == 0:
            self.handler = None


class LocalTransport:
    """Reaches seats in this process.

    `lost` is called with the seat whose node raised SeatLost; it may put another node there.
    """

    def __init__(self, lost: Callable[[Seat], object] = lambda _: None) -> None:
        self._lost = lost
        self._seats: dict[Seat, _LocalSeat] = {}
        self._changed = threading.Condition()
        """Held while seats and asks change."""
        self._closed = False

    def take(self, seat: Seat, handler: Handler) -> None:
        """Put a node on a seat, in place of the one that is there."""
        with self._changed:
            self._seat(seat).handler = handler
            self._changed.notify_all()

    def leave(self, seat: Seat) -> None:
        """Nobody is on a seat any more."""
        self._seat(seat).handler = None

    def refused(self, seat: Seat) -> list[str]:
        """Why answers of a seat were refused."""
        return self._seat(seat).bad

    def members(self) -> frozenset[Seat]:
        """The seats that are taken now."""
        return frozenset(one.number for one in list(self._seats.values()) if one.handler)

    def close(self) -> None:
        """End all threads, after the request that each is handling."""
        with self._changed:
            self._closed = True
            for seat in self._seats.values():
                seat.jobs.put(None)
            self._changed.notify_all()

    def ask(
        self,
        key: AskKey,
        common: Blob,
        own: Mapping[Seat, bytes],
        patience: Patience | None = None,
        check: Check | None = None,
        most: int | None = None,
    ) -> dict[Seat, Answer]:
        """Send a request to every seat in `own`, all at once, and wait for the answers."""
        ask = Ask(key, common, own, check, most)
        whole = common.joined() if isinstance(common, Pieces) else common
        names = {seat: f"seat {seat}" for seat in own}
        began = time.monotonic()
        with self._changed:
            self._put(_Job(ask, whole, patience))
            try:
                while not ask.ended(patience, time.monotonic() - began, set()):
                    if self._closed:
                        raise TransportError("the transport was closed before all had answered.")
                    if ask.error is not None:
                        raise ask.error
                    ask.check_diverged(patience, names)
                    left = None
                    if patience is not None and len(ask.answers) >= patience.quorum:
                        left = max(0.0, began + patience.seconds - time.monotonic())
                    self._changed.wait(left)
                return ask.result()
            finally:
                ask.end()

    def owe(self, key: AskKey, own: Mapping[Seat, bytes]) -> None:
        """An order that these seats have not followed."""
        with self._changed:
            order = Ask(key, b"", own, over=True)
            self._put(_Job(order, b""))

    def _put(self, job: _Job) -> None:
        """Let the threads of all seats of an ask handle their requests."""
        for number in job.ask.own:
            self._seat(number).jobs.put(job)

    def _seat(self, number: Seat) -> _LocalSeat:
        with self._changed:
            if number not in self._seats:
                seat = self._seats[number] = _LocalSeat(number)
                threading.Thread(target=self._work, args=[seat], daemon=True).start()
            return self._seats[number]

    def _work(self, seat: _LocalSeat) -> None:
        """Handle requests, each again and again until nobody wants another answer."""
        while (job := seat.jobs.get()) is not None:
            while self._wants_more(seat, job):
                pass

    def _wants_more(self, seat: _LocalSeat, job: _Job) -> bool:
        """Handle a request once; whether it is to be handled again."""
        ask, number = job.ask, seat.number
        with self._changed:
            self._changed.wait_for(lambda: self._closed or seat.handler is not None)
            if seat.handler is None or self._closed or number not in ask.own:
                return False
            ask.sent.add(number)
            handler, request = seat.handler, ask.own[number]
        failed = f"the seat {number}"
        reason = None
        try:
            assert isinstance(request, bytes)
            data = handler(ask.key, job.common, request)
            failed = f"the check of the answer of {failed}"
            if ask.most is not None and len(data) > ask.most:
                reason = f"an answer of {len(data)} bytes, more than {ask.most}."
            elif ask.check is not None:
                reason = ask.check(number, data)
        except SeatLost:
            self.leave(number)
            self._lost(number)
            return True
        except BaseException as error:
            with self._changed:
                ask.error = TransportError(f"{failed} failed: {error!r}.")
                ask.error.__cause__ = error
                self._changed.notify_all()
            return False
        with self._changed:
            self._changed.notify_all()
            if reason is None:
                ask.believe(number, data)
                return False
            seat.refuse(reason)
            ask.refuse(number, reason)
            again = not ask.over and number in ask.wanted_again(job.patience, 0.0)
            if again:
                ask.bad.discard(number)
            return again
