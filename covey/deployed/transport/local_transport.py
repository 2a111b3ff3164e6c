"""A transport between objects of one process: a thread for every seat, and no sockets."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from covey.deployed.transport.transport import (
    Answer,
    AskKey,
    Blob,
    Check,
    Diverged,
    Handler,
    Patience,
    Seat,
    has_failed,
)
from covey.errors import DivergedError, TransportError
from covey.runtimes.alone.envelope import Pieces

STRIKES = 3
"""Bad answers after which nobody is on a seat any more."""


class SeatLost(BaseException):
    """The node on a seat is gone, as if its process had been killed; for tests."""


@dataclass(eq=False)
class _Job:
    """One request of an ask."""

    key: AskKey
    common: bytes
    own: bytes
    ask: _LocalAsk
    seat: Seat
    begun: bool = False

    @property
    def settled(self) -> bool:
        """Whether its answer is not needed any more."""
        return self.ask.closed or self.seat in self.ask.answers


@dataclass(eq=False)
class _LocalAsk:
    """An ask that is under way."""

    count: int
    """Of the seats that are asked."""
    patience: Patience | None = None
    check: Check | None = None
    most: int | None = None
    """Bytes of the longest answer that is taken."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    answers: dict[Seat, Answer] = field(default_factory=dict)
    closed: bool = False
    error: BaseException | None = None
    """Of a handler, which owes answers and not errors; or of the check."""
    failed: str = ""
    """Whose error it is."""

    def fail(self, failed: str, error: BaseException) -> None:
        """No answer will come of a seat."""
        with self.changed:
            self.failed = failed
            self.error = error
            self.changed.notify_all()

    def put(self, seat: Seat, data: bytes) -> str | None:
        """Take an answer, or return why it is refused."""
        reason = None
        if self.most is not None and len(data) > self.most:
            reason = f"an answer of {len(data)} bytes, more than {self.most}."
        elif self.check is not None:
            reason = self.check(seat, data)
        with self.changed:
            if not self.closed and reason is None:
                self.answers[seat] = Answer("answered", data)
            elif not self.closed and self.enough_others:
                self.answers[seat] = Answer("bad")
            elif isinstance(reason, Diverged):
                self.error = DivergedError(f"seat {seat}: {reason}; the others are no quorum.")
            self.changed.notify_all()
        return reason

    @property
    def good(self) -> int:
        """How many have answered well."""
        return sum(answer.status == "answered" for answer in self.answers.values())

    @property
    def enough_others(self) -> bool:
        """Whether there can be a quorum without one more seat."""
        bad = len(self.answers) - self.good
        return self.patience is not None and self.count - bad > self.patience.quorum


class _Worker:
    """The thread of one seat: it handles requests one after the other."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._handler: Handler | None = None
        self._taken = threading.Event()
        self._lost = lost
        self._ended = False
        self.bad: list[str] = []
        """Why answers were refused."""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def take(self, handler: Handler) -> None:
        self._handler = handler
        self._taken.set()

    def leave(self) -> None:
        self._taken.clear()
        self._handler = None

    @property
    def taken(self) -> bool:
        return self._taken.is_set()

    def end(self) -> None:
        self._ended = True
        self.jobs.put(None)
        self._taken.set()

    def _work(self) -> None:
        while True:
            job = self.jobs.get()
            if job is None or self._ended:
                return
            self._do(job)

    def _do(self, job: _Job) -> None:
        """Handle a request, again and again until the node survives it."""
        while True:
            self._taken.wait()
            handler = self._handler
            if self._ended:
                return
            if handler is None:
                continue
            with job.ask.changed:
                if job.ask.closed and not job.begun and job.key.lane != "order":
                    return  # nobody waits for it, and its seat has never had it
                job.begun = True
            failed = f"the seat {job.seat}"
            try:
                data = handler(job.key, job.common, job.own)
                failed = f"the check of the answer of the seat {job.seat}"
                reason = job.ask.put(job.seat, data)
            except SeatLost:
                self.leave()
                self._lost()
                continue
            except BaseException as error:
                job.ask.fail(failed, error)
                return
            if reason is not None:
                self._refuse(reason)
            if reason is None or isinstance(reason, Diverged) or job.settled:
                return

    def _refuse(self, reason: str) -> None:
        """Count a bad answer; the seat is empty after too many, until another takes it."""
        self.bad.append(reason)
        lies = [text for text in self.bad if not isinstance(text, Diverged)]
        if not isinstance(reason, Diverged) and len(lies) % STRIKES == 0:
            self.leave()


class LocalTransport:
    """Reaches seats in this process.

    `lost` is called with the seat whose node raised SeatLost; it may put another node there.
    """

    def __init__(self, lost: Callable[[Seat], None] | None = None) -> None:
        self._lost = lost or (lambda _: None)
        self._workers: dict[Seat, _Worker] = {}
        self._asks: set[_LocalAsk] = set()
        self._closed = False

    def take(self, seat: Seat, handler: Handler) -> None:
        """Put a node on a seat, in place of the one that is there."""
        self._worker(seat).take(handler)

    def leave(self, seat: Seat) -> None:
        """Nobody is on a seat any more."""
        self._worker(seat).leave()

    def refused(self, seat: Seat) -> list[str]:
        """Why answers of a seat were refused."""
        return self._worker(seat).bad

    def members(self) -> frozenset[Seat]:
        """The seats that are taken now."""
        taken = [seat for seat, worker in self._workers.items() if worker.taken]
        return frozenset(taken)

    def close(self) -> None:
        """End all threads, after the request that each is handling."""
        self._closed = True
        for worker in self._workers.values():
            worker.end()
        for ask in list(self._asks):
            with ask.changed:
                ask.changed.notify_all()

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
        ask = _LocalAsk(len(own), patience, check, most)
        whole = common.joined() if isinstance(common, Pieces) else common
        jobs = [_Job(key, whole, request, ask, seat) for seat, request in own.items()]
        self._asks.add(ask)
        for job in jobs:
            self._worker(job.seat).jobs.put(job)
        try:
            self._wait(ask, patience)
        finally:
            out = {}
            with ask.changed:
                ask.closed = True
                for job in jobs:
                    missing = Answer("absent")
                    if job.begun:
                        missing = Answer("late")
                    out[job.seat] = ask.answers.get(job.seat, missing)
            self._asks.discard(ask)
        return out

    def owe(self, key: AskKey, own: Mapping[Seat, bytes]) -> None:
        """An order that these seats have not followed."""
        ask = _LocalAsk(len(own), closed=True)
        for seat, request in own.items():
            self._worker(seat).jobs.put(_Job(key, b"", request, ask, seat))

    def _wait(self, ask: _LocalAsk, patience: Patience | None) -> None:
        """Wait for all answers or, when time is up, for a quorum of them."""
        began = time.monotonic()
        with ask.changed:
            while len(ask.answers) < ask.count:
                if self._closed:
                    raise TransportError("the transport was closed before all had answered.")
                if isinstance(ask.error, DivergedError):
                    raise ask.error
                if ask.error is not None:
                    raise TransportError(f"{ask.failed} failed: {ask.error!r}.") from ask.error
                left = None
                if patience is not None and has_failed(ask.check, ask.answers):
                    return
                if patience is not None and ask.good >= patience.quorum:
                    left = began + patience.seconds - time.monotonic()
                    if left <= 0:
                        return
                ask.changed.wait(left)

    def _worker(self, seat: Seat) -> _Worker:
        if seat not in self._workers:
            self._workers[seat] = _Worker(lambda: self._lost(seat))
        return self._workers[seat]
