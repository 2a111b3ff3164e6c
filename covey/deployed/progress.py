"""Where a process stands: what its seats have done, for the status screen and for Prometheus."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from covey.deployed.extras import needed
from covey.deployed.socket_bytes import SocketBytes
from covey.deployed.transport import (
    Answer,
    AskKey,
    Blob,
    Check,
    Diverged,
    Handler,
    Patience,
    Seat,
    Transport,
)
from covey.runs.record import Round

State = Literal["starting", "dialling", "waiting", "working", "paused", "draining", "ended"]
STATES = ("starting", "dialling", "waiting", "working", "paused", "draining", "ended")
Clock = Callable[[], float]
_SHOWN = 4  # digits of a path
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
    counts: dict[str, int] = field(default_factory=dict)
    """How many asks were answered, late or absent, and how many answers were bad or diverged."""
    reason: str | None = None
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

    def ended(self, key: AskKey, status: str, size: int, seconds: float, now: float) -> None:
        """The request was answered, or not."""
        self.working = False
        self.seconds += seconds
        if status == "bad":  # it was counted when it came
            return
        self.count(status)
        if status != "answered":
            return
        self.up_bytes += size
        self.last_time = now
        self.last_key = short(key)
        if key.lane == "train" and key.round != self.round:
            self.rounds += 1
            self.round = key.round

    def count(self, status: str) -> None:
        """Count an outcome."""
        self.counts[status] = self.counts.get(status, 0) + 1


class Progress:
    """All that a process tells of itself. Threads may use it at the same time."""

    def __init__(self, process: str, tier: str, clock: Clock = time.monotonic) -> None:
        self.process = process
        self.tier = tier
        self.seats: dict[str, SeatProgress] = {}
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._go = threading.Event()
        self._go.set()
        self._stopping = threading.Event()
        self._started = False
        self._ended = False
        self._connected: Callable[[], bool] | None = None
        self._transports: list[WatchedTransport] = []
        self.sockets: SocketBytes | None = None
        """What the connections of the process have carried, where it has any."""
        self.certificate_left: Callable[[], float | None] = lambda: None
        """Seconds until the certificate of the process ends; None where it has none."""
        self.knocks: Counter[str] = Counter()
        """Connections by kind: handshakes and streams of children, failures at the control port."""
        self._round: int | None = None
        self._round_times: deque[float] = deque([self._began], maxlen=_RECENT)
        self._scores: dict[tuple[str, str], dict[str, float | None]] = {}

    # Orders

    def start(self) -> None:
        """The process is ready."""
        self._started = True

    def dials(self, connected: Callable[[], bool]) -> None:
        """The process has a parent; `connected` says whether it has its seats there now."""
        self._connected = connected

    def end(self) -> None:
        """The process has done its work."""
        self._ended = True

    def pause(self) -> None:
        """Begin nothing new until `resume`; a process that is about to end is not paused."""
        with self._lock:
            if not self.draining:
                self._go.clear()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._go.set()

    def drain(self) -> None:
        """End after what is under way: the server's round, or another node's request."""
        with self._lock:
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
        with self._lock:
            seat = self.seats.setdefault(name, SeatProgress(own=True, taken=True))

        def watched(key: AskKey, common: bytes, own: bytes) -> bytes:
            self.gate()
            began = self._clock()
            with self._lock:
                seat.began(key, len(common) + len(own))
            answer = handle(key, common, own)
            now = self._clock()
            with self._lock:
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
        with self._lock:
            for name in names.values():
                self.seats.setdefault(name, SeatProgress(own=False))
        watched = WatchedTransport(self, names, transport, evicted, turned_away)
        self._transports.append(watched)
        return watched

    def asked(self, names: Mapping[Seat, str], key: AskKey, sizes: Mapping[Seat, int]) -> float:
        """An ask begins; return the time."""
        with self._lock:
            for seat, size in sizes.items():
                self.seats[names[seat]].began(key, size)
        return self._clock()

    def heard(
        self,
        names: Mapping[Seat, str],
        key: AskKey,
        answers: Mapping[Seat, Answer],
        began: float,
    ) -> None:
        """An ask has ended."""
        now = self._clock()
        with self._lock:
            for seat, answer in answers.items():
                child = self.seats[names[seat]]
                child.ended(key, answer.status, len(answer.data), now - began, now)

    def ended_round(self, record: Round) -> None:
        """A round of the server's run has ended; scores stay until there are others."""
        self._round = record.round + 1
        self._round_times.append(self._clock())
        for name, model in record.models.items():
            for part, score in model.scores.items():
                self._scores[name, part] = {"loss": score.loss, "accuracy": score.accuracy}

    def refused(self, name: str, reason: str) -> None:
        """An answer of a child was bad, or says that its training diverged."""
        with self._lock:
            if isinstance(reason, Diverged):
                self.seats[name].count("diverged")
            else:
                self.seats[name].count("bad")
                self.seats[name].reason = reason

    def members(
        self,
        names: Mapping[Seat, str],
        taken: frozenset[Seat],
        evicted: frozenset[Seat],
        turned_away: Mapping[Seat, str],
    ) -> None:
        """Which of these children have taken their seats now, and which are refused."""
        with self._lock:
            for seat, name in names.items():
                self.seats[name].taken = seat in taken
                self.seats[name].evicted = seat in evicted
                self.seats[name].turned_away = turned_away.get(seat)

    # What is told

    @property
    def state(self) -> State:
        """What the process does now."""
        if self._ended:
            return "ended"
        if self.draining:
            return "draining"
        if not self._go.is_set():
            return "paused"
        if not self._started:
            return "starting"
        if self._connected is not None and not self._connected():
            return "dialling"
        if any(seat.working for seat in list(self.seats.values())):
            return "working"
        return "waiting"

    def as_dict(self) -> dict[str, Any]:
        """The status as JSON can hold it."""
        for transport in self._transports:
            transport.members()  # a child may have gone while an ask waits for it
        now = self._clock()
        with self._lock:
            seats = [self._seat(name, seat, now) for name, seat in self.seats.items()]
            waits_for = [name for name, seat in self.seats.items() if seat.awaited]
        return {
            "process": self.process,
            "tier": self.tier,
            "state": self.state,
            "seconds": round(now - self._began, 3),
            "waits_for": waits_for,
            "certificate_left": self.certificate_left(),
            "socket_bytes": self._socket_bytes(),
            "knocks": dict(self.knocks),
            "round": self._round,
            "rounds_per_hour": self._speed(now),
            "seats": seats,
        }

    def _speed(self, now: float) -> float | None:
        """The rounds per hour of the server's run, over its last ones."""
        if self._round is None:
            return None
        return 3600 * (len(self._round_times) - 1) / (now - self._round_times[0])

    def _socket_bytes(self) -> dict[str, dict[str, int]]:
        """Bytes on the sockets to the children and to the parent."""
        if self.sockets is None:
            return {}
        return {link: asdict(counts) for link, counts in self.sockets.read().items()}

    def _seat(self, name: str, seat: SeatProgress, now: float) -> dict[str, Any]:
        lag = None
        if seat.last_time is not None:
            lag = round(now - seat.last_time, 3)
        return {
            "seat": name,
            "own": seat.own,
            "state": self._seat_state(seat),
            "last_key": seat.last_key,
            "round": seat.round,
            "rounds": seat.rounds,
            "down_bytes": seat.down_bytes,
            "up_bytes": seat.up_bytes,
            "asks": dict(seat.counts),
            "bad_reason": seat.reason,
            "turned_away": seat.turned_away,
            "lag": lag,
            "ask_seconds": round(seat.seconds, 6),
        }

    def _seat_state(self, seat: SeatProgress) -> str:
        if seat.own and self.state not in ("waiting", "working"):
            return self.state
        if seat.evicted:
            return "evicted"
        if not seat.taken:
            return "empty"
        if seat.working:
            return "working"
        return "waiting"

    def prometheus(self) -> str:
        """The status in the text format of Prometheus."""
        status = self.as_dict()
        metrics = _Metrics(self.process)
        for state in STATES:
            metrics.add("state", int(status["state"] == state), state=state)
        metrics.add("uptime_seconds", status["seconds"])
        metrics.add("certificate_left_seconds", status["certificate_left"])
        for kind, count in status["knocks"].items():
            metrics.add("knocks_total", count, kind=kind)
        for link, counts in status["socket_bytes"].items():
            for direction, count in counts.items():
                metrics.add("socket_bytes_total", count, link=link, direction=direction)
        metrics.add("round", status["round"])
        metrics.add("rounds_per_hour", status["rounds_per_hour"])
        for (model, part), figures in list(self._scores.items()):
            for figure, value in figures.items():
                metrics.add(figure, value, model=model, part=part)
        for seat in status["seats"]:
            name = seat["seat"]
            metrics.add("seat_taken", int(seat["state"] not in ("empty", "evicted")), seat=name)
            metrics.add("seat_evicted", int(seat["state"] == "evicted"), seat=name)
            metrics.add("rounds_total", seat["rounds"], seat=name)
            for direction in ("down", "up"):
                count = seat[f"{direction}_bytes"]
                metrics.add("bytes_total", count, seat=name, direction=direction)
            for outcome, count in sorted(seat["asks"].items()):
                metrics.add("asks_total", count, seat=name, status=outcome)
            metrics.add("ask_seconds_total", seat["ask_seconds"], seat=name)
            metrics.add("lag_seconds", seat["lag"], seat=name)
        return metrics.text()


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
        if key.lane != "order":
            self._progress.gate()
        sizes = {seat: len(common) + len(part) for seat, part in own.items()}
        began = self._progress.asked(self._names, key, sizes)
        watched = None
        if check is not None:
            watched = self._watched(check)
        answers = self._inner.ask(key, common, own, patience, watched, most)
        self._progress.heard(self._names, key, answers, began)
        self.members()
        return answers

    def owe(self, key: AskKey, own: Mapping[Seat, bytes]) -> None:
        """An order that seats have not followed."""
        self._inner.owe(key, own)

    def _watched(self, check: Check) -> Check:
        """The same check, which tells of answers that are refused."""

        def watched(seat: Seat, data: bytes) -> str | None:
            reason = check(seat, data)
            if reason is not None:
                self._progress.refused(self._names[seat], reason)
            return reason

        return watched

    def members(self) -> frozenset[Seat]:
        """The seats that are taken now."""
        members = self._inner.members()
        self._progress.members(self._names, members, self._evicted(), self._turned_away())
        return members

    def close(self) -> None:
        """End all connections."""
        self._inner.close()


class _Metrics:
    """What prometheus-client writes as text: families of values by name."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._families: dict[str, Any] = {}

    def add(self, name: str, value: float | None, **labels: str) -> None:
        """One value, where it is known."""
        if value is None:
            return
        if name not in self._families:
            core = needed("prometheus_client.core")
            counts = name.endswith("_total")
            family = core.CounterMetricFamily if counts else core.GaugeMetricFamily
            self._families[name] = family(f"covey_{name}", _HELP[name], None, ["process", *labels])
        self._families[name].add_metric([self._process, *labels.values()], value)

    def text(self) -> str:
        """All lines."""
        families = SimpleNamespace(collect=self._families.values)
        text: bytes = needed("prometheus_client").generate_latest(families)
        return text.decode()


def short(key: AskKey) -> str:
    """A key as a screen shows it: round, lane, the end of the path, program."""
    path = f"{key.path:x}"[-_SHOWN:]
    return f"{key.round}/{key.lane}/{path}/{key.program}"
