"""Where a process stands: what its seats have done, for the status screen and for Prometheus."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, get_args

from covey.deployed.transport.extras import needed
from covey.deployed.transport.socket_bytes import SocketBytes
from covey.deployed.transport.transport import (
    Answer,
    AskKey,
    Blob,
    Check,
    Diverged,
    Handler,
    Patience,
    Seat,
    Transport,
    failed_in,
)
from covey.runs.scores.record import Round

State = Literal["starting", "dialling", "waiting", "working", "paused", "draining", "ended"]
STATES: tuple[State, ...] = get_args(State)
Clock = Callable[[], float]
_SHOWN = 4  # digits of a path
_TOLD = (
    "own",
    "last_key",
    "round",
    "rounds",
    "down_bytes",
    "up_bytes",
    "bad_reason",
    "turned_away",
)
"""What a status tells of a seat as it is."""
_RECENT = 20  # rounds of which the speed is told
_HELP = {
    "state": "1 for what the process does now, and 0 for everything else.",
    "uptime_seconds": "Since the process was started.",
    "certificate_left_seconds": "Until the certificate of the process ends.",
    "socket_bytes_total": "On the sockets to the children or the parent, as the kernel counts.",
    "knocks_total": "Handshakes begun, streams after one, and failures at the control port.",
    "round": "The last round that has ended.",
    "rounds_per_hour": "Over the last rounds, until now.",
    "loss": "Of a model on a part of the data, when it was last scored.",
    "accuracy": "Of a model on a part of the data, when it was last scored.",
    "seat_taken": "1 where a process has the seat.",
    "seat_evicted": "1 where the parent refuses the seat.",
    "rounds_total": "Rounds of training that the seat has answered in.",
    "bytes_total": "Of the messages of the seat.",
    "asks_total": "Asks of the seat by outcome: answered, late, absent, bad, diverged.",
    "ask_seconds_total": "That all asks of the seat took.",
    "lag_seconds": "Since the last answer of the seat.",
}


@dataclass
class SeatProgress:
    """What is known of one seat: of this process, or of a child."""

    own: bool
    """Whether this process hosts it."""
    working: bool = False
    taken: bool = False
    evicted: bool = False
    round: int | None = None
    last_key: str | None = None
    rounds: int = 0
    """How many different rounds of training it has answered in."""
    down_bytes: int = 0
    up_bytes: int = 0
    asks: Counter[str] = field(default_factory=Counter)
    """How many asks were answered, late or absent, and how many answers were bad or diverged."""
    bad_reason: str | None = None
    """Why its last bad answer was refused."""
    turned_away: str | None = None
    """Why its process was refused that dialled last, while nobody has the seat."""
    last_time: float | None = None
    seconds: float = 0.0
    """The time of all its asks together."""

    @property
    def awaited(self) -> bool:
        """Whether it is a child that owes an answer, and nobody is on its seat."""
        return self.working and not self.own and not self.taken

    def began(self, key: AskKey, size: int) -> None:
        """A request came."""
        self.working = True
        self.last_key = short(key)
        self.down_bytes += size

    def ended(
        self,
        key: AskKey,
        status: str,
        size: int,
        seconds: float,
        now: float,
    ) -> None:
        """The request was answered, or not."""
        self.working = False
        self.seconds += seconds
        if status == "bad":  # it was counted when it came
            return
        self.asks[status] += 1
        if status != "answered":
            return
        self.up_bytes += size
        self.last_time = now
        self.last_key = short(key)
        if key.lane == "train" and key.round != self.round:
            self.rounds += 1
            self.round = key.round

    def refused(self, reason: str) -> None:
        """Its answer was bad, or says that its training diverged."""
        if isinstance(reason, Diverged):
            self.asks["diverged"] += 1
        else:
            self.asks["bad"] += 1
            self.bad_reason = reason

    def as_dict(self, name: str, process: State, now: float) -> dict[str, Any]:
        """Its entry in the status of a process that is in this state."""
        state: str = "working" if self.working else "waiting"
        if self.own and process not in ("waiting", "working"):
            state = process
        elif self.evicted:
            state = "evicted"
        elif not self.taken:
            state = "empty"
        return {
            "seat": name,
            "state": state,
            **{told: getattr(self, told) for told in _TOLD},
            "asks": dict(self.asks),
            "lag": None if self.last_time is None else round(now - self.last_time, 3),
            "ask_seconds": round(self.seconds, 6),
        }


class Progress:
    """All that a process tells of itself. Threads may use it at the same time."""

    def __init__(self, process: str, tier: str, clock: Clock = time.monotonic) -> None:
        self.process = process
        self.tier = tier
        self.clock = clock
        self.seats: dict[str, SeatProgress] = {}
        self.lock = threading.Lock()
        """Held while seats change, or are read together."""
        self.sockets: SocketBytes | None = None
        """What the connections of the process have carried, where it has any."""
        self.certificate_left: Callable[[], float | None] = lambda: None
        """Seconds until the certificate of the process ends; None where it has none."""
        self.knocks: Counter[str] = Counter()
        """Connections by kind: handshakes and streams of children, failures at the control port."""
        self._began = clock()
        self._go = threading.Event()
        self._go.set()
        self._stopping = threading.Event()
        self.started = False
        """Whether the process is ready."""
        self.ended = False
        """Whether it has done its work."""
        self.connected: Callable[[], bool] = lambda: True
        """Whether it has its seats at its parent now, where it has one."""
        self._transports: list[WatchedTransport] = []
        self._round: int | None = None
        self._round_times: deque[float] = deque([self._began], maxlen=_RECENT)
        self._scores: dict[tuple[str, str], dict[str, float | None]] = {}

    # Orders

    def pause(self) -> None:
        """Begin nothing new until `resume`; a process that is about to end is not paused."""
        with self.lock:
            if not self.draining:
                self._go.clear()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._go.set()

    def drain(self) -> None:
        """End after what is under way: the server's round, or another node's request."""
        with self.lock:
            self._stopping.set()
            self._go.set()

    @property
    def draining(self) -> bool:
        """Whether the process is about to end."""
        return self._stopping.is_set()

    def wait_for_drain(self, seconds: float | None = None) -> bool:
        """Wait until the process is told to end; return whether it was."""
        return self._stopping.wait(seconds)

    def gate(self) -> None:
        """Wait while the process is paused."""
        self._go.wait()

    # What happens

    def handler(self, name: str, handle: Handler) -> Handler:
        """The handler of a seat of this process, watched: it waits while paused."""
        with self.lock:
            seat = self.seats.setdefault(name, SeatProgress(own=True, taken=True))

        def watched(key: AskKey, common: bytes, own: bytes) -> bytes:
            self.gate()
            began = self.clock()
            with self.lock:
                seat.began(key, len(common) + len(own))
            answer = handle(key, common, own)
            now = self.clock()
            with self.lock:
                seat.ended(key, "answered", len(answer), now - began, now)
            return answer

        return watched

    def transport(
        self,
        names: Mapping[Seat, str],
        transport: Transport,
        evicted: Callable[[], frozenset[Seat]] = frozenset,
        turned_away: Callable[[], Mapping[Seat, str]] = dict,
    ) -> WatchedTransport:
        """The transport to the children, watched; `names` are those of their seats."""
        with self.lock:
            for name in names.values():
                self.seats.setdefault(name, SeatProgress(own=False))
        watched = WatchedTransport(self, names, transport, evicted, turned_away)
        self._transports.append(watched)
        return watched

    def ended_round(self, record: Round) -> None:
        """A round of the server's run has ended; scores stay until there are others."""
        self._round = record.round + 1
        self._round_times.append(self.clock())
        for name, model in record.models.items():
            for part, score in model.scores.items():
                self._scores[name, part] = {"loss": score.loss, "accuracy": score.accuracy}

    # What is told

    @property
    def state(self) -> State:
        """What the process does now."""
        if self.ended:
            return "ended"
        if self.draining:
            return "draining"
        if not self._go.is_set():
            return "paused"
        if not self.started:
            return "starting"
        if not self.connected():
            return "dialling"
        if any(seat.working for seat in list(self.seats.values())):
            return "working"
        return "waiting"

    def as_dict(self) -> dict[str, Any]:
        """The status as JSON can hold it."""
        for transport in self._transports:
            transport.members()  # a child may have gone while an ask waits for it
        now = self.clock()
        with self.lock:
            state = self.state
            seats = [seat.as_dict(name, state, now) for name, seat in self.seats.items()]
            waits_for = [name for name, seat in self.seats.items() if seat.awaited]
        carried = {} if self.sockets is None else self.sockets.read()
        speed = None  # of the server's run, over its last rounds
        if self._round is not None:
            speed = 3600 * (len(self._round_times) - 1) / (now - self._round_times[0])
        return {
            "process": self.process,
            "tier": self.tier,
            "state": self.state,
            "seconds": round(now - self._began, 3),
            "waits_for": waits_for,
            "certificate_left": self.certificate_left(),
            "socket_bytes": {link: asdict(counts) for link, counts in carried.items()},
            "knocks": dict(self.knocks),
            "round": self._round,
            "rounds_per_hour": speed,
            "seats": seats,
        }

    def prometheus(self) -> str:
        """The status in the text format of Prometheus."""
        core = needed("prometheus_client.core")
        families: dict[str, Any] = {}
        for name, value, labels in self.metrics():
            if value is None:
                continue
            if name not in families:
                counts = name.endswith("_total")
                family = core.CounterMetricFamily if counts else core.GaugeMetricFamily
                families[name] = family(f"covey_{name}", _HELP[name], None, ["process", *labels])
            families[name].add_metric([self.process, *labels.values()], value)
        collector = SimpleNamespace(collect=families.values)
        text: bytes = needed("prometheus_client").generate_latest(collector)
        return text.decode()

    def metrics(self) -> Iterator[tuple[str, float | None, dict[str, str]]]:
        """Every metric: its name, its value where it is known, and its labels."""
        status = self.as_dict()
        for state in STATES:
            yield "state", int(status["state"] == state), {"state": state}
        yield "uptime_seconds", status["seconds"], {}
        yield "certificate_left_seconds", status["certificate_left"], {}
        for kind, count in status["knocks"].items():
            yield "knocks_total", count, {"kind": kind}
        for link, counts in status["socket_bytes"].items():
            for direction, count in counts.items():
                yield "socket_bytes_total", count, {"link": link, "direction": direction}
        yield "round", status["round"], {}
        yield "rounds_per_hour", status["rounds_per_hour"], {}
        for (model, part), figures in list(self._scores.items()):
            for figure, value in figures.items():
                yield figure, value, {"model": model, "part": part}
        for seat in status["seats"]:
            own = {"seat": seat["seat"]}
            yield "seat_taken", int(seat["state"] not in ("empty", "evicted")), own
            yield "seat_evicted", int(seat["state"] == "evicted"), own
            yield "rounds_total", seat["rounds"], own
            for direction in ("down", "up"):
                yield "bytes_total", seat[f"{direction}_bytes"], own | {"direction": direction}
            for outcome, count in sorted(seat["asks"].items()):
                yield "asks_total", count, own | {"status": outcome}
            yield "ask_seconds_total", seat["ask_seconds"], own
            yield "lag_seconds", seat["lag"], own


@dataclass(frozen=True)
class _WatchedCheck:
    """A check that tells of every answer that it refuses."""

    check: Check
    watched: WatchedTransport

    @property
    def failed(self) -> Collection[Seat]:
        """The seats whose answer is an error that ends the round."""
        return failed_in(self.check)

    def __call__(self, seat: Seat, data: bytes) -> str | None:
        """Why the answer of a seat is refused; None: it is good."""
        reason = self.check(seat, data)
        if reason is not None:
            self.watched.refused(seat, reason)
        return reason


@dataclass(eq=False)
class WatchedTransport:
    """A transport that tells a process's progress of its asks, and waits while it is paused."""

    _progress: Progress
    _names: Mapping[Seat, str]
    _inner: Transport
    _evicted: Callable[[], frozenset[Seat]] = frozenset
    _turned_away: Callable[[], Mapping[Seat, str]] = dict

    def ask(
        self,
        key: AskKey,
        common: Blob,
        own: Mapping[Seat, bytes],
        patience: Patience | None = None,
        check: Check | None = None,
        most: int | None = None,
    ) -> Mapping[Seat, Answer]:
        """Ask as the transport below does; answers that are refused are counted."""
        progress = self._progress
        if check is not None:
            check = _WatchedCheck(check, self)
        if key.lane != "order":
            progress.gate()
        with progress.lock:
            for seat, part in own.items():
                self._child(seat).began(key, len(common) + len(part))
        began = progress.clock()
        answers = self._inner.ask(key, common, own, patience, check, most)
        now = progress.clock()
        with progress.lock:
            for seat, answer in answers.items():
                self._child(seat).ended(key, answer.status, len(answer.data), now - began, now)
        self.members()
        return answers

    def _child(self, seat: Seat) -> SeatProgress:
        return self._progress.seats[self._names[seat]]

    def refused(self, seat: Seat, reason: str) -> None:
        """The answer of a seat was bad."""
        with self._progress.lock:
            self._child(seat).refused(reason)

    def owe(self, key: AskKey, own: Mapping[Seat, bytes]) -> None:
        """An order that seats have not followed."""
        self._inner.owe(key, own)

    def members(self) -> frozenset[Seat]:
        """The seats that are taken now."""
        members, evicted, turned_away = self._inner.members(), self._evicted(), self._turned_away()
        with self._progress.lock:
            for seat in self._names:
                child = self._child(seat)
                child.taken = seat in members
                child.evicted = seat in evicted
                child.turned_away = turned_away.get(seat)
        return members

    def close(self) -> None:
        """End all connections."""
        self._inner.close()


def short(key: AskKey) -> str:
    """A key as a screen shows it: round, lane, the end of the path, program."""
    path = f"{key.path:x}"[-_SHOWN:]
    return f"{key.round}/{key.lane}/{path}/{key.program}"
