"""A parent and children over real sockets, with certificates, and what tests do with trees."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import covey
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.replay import replay
from covey.deployed.node.server_run import missing_of
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.transport.grpc_options import Limits
from covey.deployed.transport.grpc_port import GrpcPort
from covey.deployed.transport.grpc_transport import GrpcTransport, listed
from covey.deployed.transport.transport import Answer, AskKey, Blob, Handler, Seat
from tests.laws.cases import differences, state

FINGERPRINT = "0123456789abcdef"
FAST = Limits(
    hello_seconds=1, stall_seconds=0.5, keepalive_seconds=1, keepalive_timeout=1, check_seconds=0.05,
    message=8 * 2**20,
)  # fmt: skip


def key(number: int = 0, lane: Any = "train") -> AskKey:
    return AskKey("run", number, lane, 0, "algorithm.device", "ab")


def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until this holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.005)


def echo(asked: AskKey, common: bytes, own: bytes) -> bytes:
    """Answers what it got."""
    return b"%d:" % asked.round + common + b"+" + own


class Gated:
    """A handler that notes what it is asked, and answers once its gate is open."""

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = answer
        self.asked: list[AskKey] = []
        self.begun = threading.Event()
        self.gate = threading.Event()

    def __call__(self, asked: AskKey, common: bytes, own: bytes) -> bytes:
        self.asked.append(asked)
        self.begun.set()
        self.gate.wait(30)
        return self.answer


@dataclass
class Served:
    """A port that serves in a thread of its own."""

    port: GrpcPort
    thread: threading.Thread
    errors: list[BaseException] = field(default_factory=list)

    def end(self) -> None:
        self.port.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


@dataclass
class Family:
    """A parent with certificates in a folder, and whoever dials it."""

    folder: Path
    count: int = 2
    secure: bool = True
    limits: Limits = FAST
    admission: Any = None
    keeps: Path | None = None
    """Where answers may wait."""
    served: list[Served] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parent_identity: Identity | None = None
        self.authority: Authority | None = None
        if self.secure:
            self.authority = Authority.create(self.folder / "certs")
            self.parent_identity = Identity(self.authority.issue("server"))
            for seat in range(self.count):
                self.authority.issue(f"device{seat}")
        self.parent = GrpcTransport(
            "127.0.0.1:0",
            listed("device", range(self.count)),
            fingerprint=FINGERPRINT,
            identity=self.parent_identity,
            limits=self.limits,
            admission=self.admission,
            folder=self.keeps,
        )

    def identity(self, name: str) -> Identity | None:
        return Identity(self.folder / "certs" / name) if self.secure else None

    def dial(
        self,
        *seats: Seat,
        handler: Handler = echo,
        identity: Identity | None = None,
        fingerprint: str = FINGERPRINT,
        address: str | None = None,
        last_key: Callable[[str], str | None] = lambda _: None,
        names: dict[str, Seat] | None = None,
    ) -> Served:
        """Start a process's port for these seats, in a thread."""
        port = GrpcPort(
            address or self.parent.address,
            "server",
            names or listed("device", iter(seats)),
            fingerprint=fingerprint,
            identity=identity or self.identity(f"device{seats[0]}"),
            limits=self.limits,
            last_key=last_key,
        )
        return self.serve(port, dict.fromkeys(port.seats.values(), handler))

    def serve(self, port: GrpcPort, handlers: dict[Seat, Handler]) -> Served:
        def run() -> None:
            try:
                port.serve(handlers)
            except BaseException as error:
                out.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        out = Served(port, thread)
        self.served.append(out)
        thread.start()
        return out

    def wait(self, *seats: Seat) -> None:
        """Until exactly these seats are taken."""
        until(lambda: self.parent.members() == set(seats))

    def close(self) -> None:
        for served in self.served:
            served.port.close()
        for served in self.served:
            served.thread.join(10)
        self.parent.close()


@contextmanager
def family(folder: Path, count: int = 2, **more: Any) -> Iterator[Family]:
    out = Family(folder, count, **more)
    try:
        yield out
    finally:
        out.close()


class Silent:
    """A transport to nobody."""

    def ask(
        self, key: AskKey, common: Blob, own: Mapping[Seat, bytes], *more: Any
    ) -> Mapping[Seat, Answer]:
        return {}

    def owe(self, key: AskKey, own: Mapping[Seat, bytes]) -> None:
        """Nothing is owed."""

    def members(self) -> frozenset[Seat]:
        return frozenset()

    def close(self) -> None:
        """Nothing is open."""


def check_replay(run: covey.Run, local: LocalTree, described: covey.Experiment) -> covey.Run:
    """The rows and records of a run, so far, are those of its replay, which is given."""
    missing = missing_of(local.nodes["server", 0].database)
    for node in local.nodes.values():
        node.asks.patience = None  # for those who look at the rows
    deployed = state(run)
    local.close()
    again = replay(described, missing)
    while again.round < run.round:
        next(again)
    assert differences(state(again), deployed) == []
    return again
