"""A run over sockets with mutual TLS, of which every round is attacked, beside an undisturbed one.

    python -m tests.deployed.attacks        # every attack, as a table in Markdown

Strangers attack from outside while a round is under way. Others hold the certificate of `device1`
and take its seat while its own process is away: what they send is dropped. When the process is back
the round ends. After every attack all rows, the traffic and the history are compared with the
simulator's, bit by bit.
"""

import logging
import math
import re
import shutil
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import covey
from covey.codecs import CODECS
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.transport.frames import Assembler
from covey.deployed.transport.grpc_options import LOG
from covey.deployed.transport.transport import AskKey, Handler
from covey.deployed.transport.wire import Reply, Request, key_asked, key_sent
from covey.links.packed import Packed, Schema
from covey.runtimes.alone.envelope import open_sealed, seal
from tests.deployed.hostile import Peer, by_hand, frame, hello, reply
from tests.deployed.socket_tree import FINGERPRINT, SocketTree
from tests.deployed.tree import FAST, until
from tests.laws.cases import CASES, differences, experiment, state

SEAT = 1
"""The seat that attackers take."""
NAME = f"device{SEAT}"
SLOW = 7
"""The honest device that holds a round open while it is attacked."""
CASE = "PFedMe"
PARENT = "server0"
"""The name in the parent's certificate."""


class Siege:
    """A server and eight devices over sockets, and the same run in the simulator."""

    def __init__(self, folder: Path, rounds: int = 100) -> None:
        self.folder = folder
        self.go = threading.Event()
        self.reached = threading.Event()
        """Whether the slow device has the ask."""
        self.tree = SocketTree(folder / "nodes", folder / "certs", limits=FAST, wrap=self._wrap)
        changes: dict[str, Any] = {"rounds": rounds, "score_every": rounds}
        self.run = covey.run(experiment(CASES[CASE], **changes), runtime=self.tree)
        self.plain = covey.run(experiment(CASES[CASE], **changes))
        self.bounds: dict[int, float] = {}
        self.tree.nodes["server", 0].norm_bounds = self.bounds
        self.lines: list[str] = []
        self.told = ""
        """The reason that a stranger was told."""
        self._serial = 0
        self._round: threading.Thread | None = None
        self._errors: list[BaseException] = []
        self.go.set()
        self.begin()
        self.end()

    def _wrap(self, tier: str, seat: int, handler: Handler) -> Handler:
        if seat != SLOW:
            return handler

        def slow(key: AskKey, common: bytes, own: bytes) -> bytes:
            self.reached.set()
            self.go.wait()
            return handler(key, common, own)

        return slow

    @property
    def parent(self) -> Any:
        return self.tree.transports[0]

    @property
    def address(self) -> str:
        out: str = self.parent.address
        return out

    @property
    def failed(self) -> int:
        """Handshakes after which no stream was opened, so far."""
        knocks: dict[str, int] = self.parent.knocks
        return knocks["handshakes"] - knocks["streams"]

    @property
    def node(self) -> Any:
        """The honest node of the seat that attackers take."""
        return self.tree.nodes["device", SEAT]

    def begin(self) -> None:
        """Begin a round."""
        self.reached.clear()

        def play() -> None:
            try:
                next(self.run)
            except BaseException as error:
                self._errors.append(error)

        self._round = threading.Thread(target=play, daemon=True)
        self._round.start()

    def end(self) -> None:
        """End the round; it must be that of the undisturbed run."""
        self.go.set()
        self._round.join(30)
        assert not self._round.is_alive(), "the round does not end"
        if self._errors:
            raise self._errors[0]
        next(self.plain)
        assert differences(state(self.plain), state(self.run)) == []

    def close(self) -> None:
        self.go.set()
        self.tree.close()

    # Those who attack

    def certificate(self, *seats: str, **more: Any) -> Identity:
        """A certificate of the tree's own authority for these seats, with a name of its own."""
        assert self.tree.authority is not None
        self._serial += 1
        name = f"other{self._serial}"
        return Identity(self.tree.authority.issue(name, seats=seats, holders="keep", **more))

    def outside(self, attack: "Attack") -> None:
        """Attack a round that is under way; all seats are held by their own processes."""
        self.go.clear()
        self.begin()
        until(self.reached.is_set)
        attack.do(self)

    def inside(self, attack: "Attack") -> None:
        """Attack on the seat, whose own process is away until the attack is over."""
        port, thread = self.tree.ports.pop(SEAT)
        port.close()
        thread.join(10)
        until(lambda: SEAT not in self.parent.members())
        self.begin()
        attack.do(self)
        until(lambda: SEAT not in self.parent.members())
        self.parent.admit(NAME)
        self.tree.dial("server", 0, "device", [SEAT])
        self.tree.ports.insert(SEAT, self.tree.ports.pop())

    def intruder(self) -> "Intruder":
        """A process with the certificate of the seat, which it takes."""
        last_key = self.node.database.last_key
        first = hello(NAME, fingerprint=FINGERPRINT, last_key=last_key)
        peer = Peer(self.address, self.certificate(NAME), parent=PARENT).send(first)
        return Intruder(self, peer)


class Intruder:
    """A hostile process on a seat. It has the honest node's answers, and changes them."""

    def __init__(self, siege: Siege, peer: Peer) -> None:
        self.siege = siege
        self.peer = peer
        self.number = 1
        self._assembler = Assembler()
        peer.read()
        self._assembler.skip_to(2)
        until(lambda: SEAT in siege.parent.members())
        self.key, self.common, self.own = self.asked()

    def asked(self) -> tuple[AskKey, bytes, bytes]:
        """The next request."""
        message = None
        while message is None:
            message = self._assembler.take(self.peer.read())
        assert isinstance(message.head, Request)
        common, own = message.blobs
        return key_asked(message.head.key), common, own

    def truth(self) -> bytes:
        """What the honest node answers."""
        out: bytes = self.siege.node.answer(self.key, self.common, self.own)
        return out

    def say(self, data: bytes, key: AskKey | None = None, seat: int = SEAT) -> None:
        """Send an answer."""
        self.number += 1
        self.peer.send(*reply(self.number, key or self.key, seat, data))

    def raw(self, data: bytes) -> None:
        """Send a frame."""
        self.number += 1
        self.peer.send(data)

    def leave_when_asked_again(self) -> None:
        """The parent has dropped the answer, and asks the seat again for the same."""
        key, _, _ = self.asked()
        assert key == self.key
        self.peer.close()


@dataclass(frozen=True)
class Attack:
    """One attack: who refuses it, and the line that is logged."""

    name: str
    who: str
    logged: str
    """A part of the line."""
    do: Callable[[Siege], None]
    inside: bool = False

    def __str__(self) -> str:
        return self.name


CORE = "TLS core"
COVEY = "covey"
COUNTED = "nothing; a handshake without a stream in covey_knocks_total"


# From outside


def stranger(code: str, *first: bytes, **how: Any) -> Callable[[Siege], None]:
    """A peer that says something, and is refused with this status."""

    def do(siege: Siege) -> None:
        peer = Peer(
            siege.address, parent=PARENT, **{name: make(siege) for name, make in how.items()}
        )
        end = peer.send(*first).end()
        assert end[0] == code, end
        siege.told = end[1]

    return do


GREETING = hello(NAME, fingerprint=FINGERPRINT)


def other_authority(siege: Siege) -> Identity:
    folder = Path(tempfile.mkdtemp(dir=siege.folder))
    issued = Authority.create(folder / "authority").issue(NAME)
    shutil.copy(siege.folder / "certs" / NAME / "ca.pem", issued / "ca.pem")
    return Identity(issued)


def revoked(siege: Siege) -> Identity:
    out = siege.certificate(NAME)
    siege.tree.authority.revoke(out.folder.name)
    return out


def old_tls(siege: Siege) -> None:
    folder = siege.certificate(NAME).folder
    agreed, answer = by_hand(siege.address, folder, ssl.TLSVersion.TLSv1_2, PARENT)
    assert agreed == "TLSv1.2"
    assert b"grpc-status" in answer


def second_process(siege: Siege) -> None:
    last_key = siege.node.database.last_key
    greeting = hello(NAME, fingerprint=FINGERPRINT, last_key=last_key)
    stranger("ALREADY_EXISTS", greeting, identity=own)(siege)


def many_streams(siege: Siege) -> None:
    identity = siege.certificate(NAME)
    silent = [Peer(siege.address, identity, parent=PARENT) for _ in range(6)]
    assert {peer.end()[0] for peer in silent} == {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}


def own(siege: Siege) -> Identity:
    return siege.certificate(NAME)


OUTSIDE = [
    Attack("a certificate of another authority", CORE, COUNTED, stranger("UNAVAILABLE", GREETING, identity=other_authority)),
    Attack(
        "a certificate that has ended",
        CORE,
        COUNTED,
        stranger("UNAVAILABLE", GREETING, identity=lambda siege: siege.certificate(NAME, days=-1)),
    ),
    Attack("no certificate", CORE, COUNTED, stranger("UNAVAILABLE", GREETING, authority=lambda siege: own(siege).authority())),
    Attack("plain text, without TLS", CORE, COUNTED, stranger("UNAVAILABLE", GREETING)),
    Attack("TLS 1.2", COVEY, "it uses TLSv1.2; TLSv1.3 is needed", old_tls),
    Attack("a revoked certificate", COVEY, "is revoked", stranger("UNAUTHENTICATED", GREETING, identity=revoked)),
    Attack(
        "the name of another",
        COVEY,
        f"it asks for '{NAME}' and is device2",
        stranger("PERMISSION_DENIED", GREETING, identity=lambda siege: siege.certificate("device2")),
    ),
    Attack(
        "a seat that is not listed",
        COVEY,
        "its certificate is of device99, not listed here",
        stranger("PERMISSION_DENIED", hello("device99", fingerprint=FINGERPRINT), identity=lambda siege: siege.certificate("device99")),
    ),
    Attack("a second process on a seat", COVEY, f"{NAME} is taken by", second_process),
    Attack(
        "another program", COVEY, "its program has the fingerprint 'ffffffffffffffff'",
        stranger("FAILED_PRECONDITION", hello(NAME, fingerprint="f" * 16), identity=own),
    ),
    Attack(
        "another protocol",
        COVEY,
        "it speaks protocol 99",
        stranger("FAILED_PRECONDITION", hello(NAME, fingerprint=FINGERPRINT, protocol=99), identity=own),
    ),
    Attack("a truncated hello", COVEY, "a Frame that cannot be read", stranger("INVALID_ARGUMENT", GREETING[:-3], identity=own)),
    Attack("a stream without a word", COVEY, "no hello in 1 s", stranger("DEADLINE_EXCEEDED", identity=own)),
    Attack("many streams at once", COVEY, f"{NAME} dials too often at once", many_streams),
]  # fmt: skip


# On a seat


def rows_of(data: bytes) -> torch.Tensor:
    """The first row of an answer."""
    _, (packed, *_) = open_sealed(data)
    row, _ = CODECS["dense"].decode(packed.messages[0], limit=packed.schema.width)
    return row


def with_message(data: bytes, packed: Packed) -> bytes:
    """An answer with another first message."""
    header, (_, *others) = open_sealed(data)
    return seal(header, [packed, *others])


def with_row(data: bytes, row: torch.Tensor, copies: int = 1) -> bytes:
    """An answer with another row."""
    schema = Schema("rows", len(row), row.dtype)
    encoded = CODECS["dense"].encode(row)
    return with_message(data, Packed(schema, (encoded,) * copies))


def with_value(data: bytes, value: float) -> bytes:
    row = rows_of(data).clone()
    row[3] = value
    return with_row(data, row)


def with_inner_width(data: bytes) -> bytes:
    """An answer whose envelope states the right width, and whose row has another one."""
    _, (packed, *_) = open_sealed(data)
    encoded = CODECS["dense"].encode(rows_of(data)[:-1])
    return with_message(data, Packed(packed.schema, (encoded,)))


def with_tag(data: bytes) -> bytes:
    """An answer whose row has the tag of no codec."""
    _, (packed, *_) = open_sealed(data)
    encoded = b"\x2f" + packed.messages[0][1:]
    return with_message(data, Packed(packed.schema, (encoded,)))


def with_header(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    header, messages = open_sealed(data)
    change(header)
    return seal(header, messages)


def lying(change: Callable[[bytes], bytes]) -> Callable[[Siege], None]:
    """A process that sends its own answer, changed."""

    def do(siege: Siege) -> None:
        intruder = siege.intruder()
        intruder.say(change(intruder.truth()))
        intruder.leave_when_asked_again()

    return do


def facts(change: Callable[[dict[str, Any]], None]) -> Callable[[Siege], None]:
    return lying(lambda data: with_header(data, change))


def of_another(header: dict[str, Any]) -> None:
    header["facts"]["node_bytes"] = [["device", "up", [SEAT + 1], [10]]]


def not_a_number(header: dict[str, Any]) -> None:
    header["facts"]["gradients"] = math.nan


def false_error(header: dict[str, Any]) -> None:
    header["error"] = {"DivergedError": 1}


def evicted(siege: Siege) -> None:
    """The third bad answer closes the stream; the seat stays empty until it is admitted."""
    intruder = siege.intruder()
    bad = with_value(intruder.truth(), math.nan)
    for attempt in range(3):
        intruder.say(bad)
        if attempt < 2:
            intruder.asked()
    code, text = intruder.peer.end()
    assert (code, "evicted" in text) == ("PERMISSION_DENIED", True)
    assert SEAT in siege.parent.evicted()
    again = Peer(siege.address, own(siege), parent=PARENT).send(GREETING)
    assert again.end()[0] == "PERMISSION_DENIED"


def replayed(siege: Siege) -> None:
    """The answer of the round before, to the ask of this one."""
    before = siege.node.database.answer
    intruder = siege.intruder()
    old = replace_round(intruder.key, intruder.key.round - 1)
    data = before(old)
    assert data is not None
    intruder.say(data)
    intruder.leave_when_asked_again()


def replace_round(key: AskKey, round: int) -> AskKey:
    return AskKey.from_dict({**key.as_dict(), "round": round})


def second_answer(siege: Siege) -> None:
    """A good answer, and then another one to the same ask."""
    intruder = siege.intruder()
    truth = intruder.truth()
    dropped = siege.parent.refused["dropped"]
    siege.go.clear()
    intruder.say(truth)
    intruder.say(with_value(truth, 7.0))
    until(lambda: any("a second answer" in line for line in siege.lines))
    assert siege.parent.refused["dropped"] == dropped + 1
    siege.go.set()
    intruder.peer.close()


def old_key(siege: Siege) -> None:
    intruder = siege.intruder()
    intruder.say(intruder.truth(), key=replace_round(intruder.key, 10**6))
    until(lambda: any("was not asked" in line for line in siege.lines))
    intruder.peer.close()


def for_another(siege: Siege) -> None:
    intruder = siege.intruder()
    intruder.say(intruder.truth(), seat=SEAT + 1)
    until(lambda: any("an answer for the seat" in line for line in siege.lines))
    intruder.peer.close()


def flood(siege: Siege) -> None:
    intruder = siege.intruder()
    for _ in range(300):
        intruder.say(bytes(10_000), key=replace_round(intruder.key, 10**6))
    assert intruder.peer.end()[0] == "PERMISSION_DENIED"
    assert siege.parent.carried["received"] < 2**28


def sends(make: Callable[[Intruder], bytes]) -> Callable[[Siege], None]:
    """A process that sends a frame which is none."""

    def do(siege: Siege) -> None:
        intruder = siege.intruder()
        intruder.raw(make(intruder))
        assert intruder.peer.end()[0] in ("INVALID_ARGUMENT", "DEADLINE_EXCEEDED")

    return do


def half(intruder: Intruder) -> bytes:
    # no bytes of the answer follow
    return frame(2, Reply(key=key_sent(intruder.key), seat=SEAT, size=2**18))


def behind(siege: Siege) -> None:
    peer = Peer(siege.address, own(siege), parent=PARENT).send(GREETING)
    assert peer.end()[0] == "FAILED_PRECONDITION"


def too_long(data: bytes) -> bytes:
    return with_row(data, 1e6 * rows_of(data))


def bounded(siege: Siege) -> None:
    siege.bounds[SEAT] = 100.0
    try:
        lying(too_long)(siege)
    finally:
        siege.bounds.clear()


NOT_FINITE = "a row that is not finite, of a child that does not say that it diverged"


def answer(name: str, logged: str, change: Callable[[bytes], bytes]) -> Attack:
    """An answer that covey drops after the rest of the round has it in its hands."""
    return Attack(name, COVEY, f"bad_answer of {NAME}: {logged}", lying(change), inside=True)


def in_facts(name: str, logged: str, change: Callable[[dict[str, Any]], None]) -> Attack:
    return Attack(name, COVEY, f"bad_answer of {NAME}: {logged}", facts(change), inside=True)


def on_the_wire(name: str, logged: str, do: Callable[[Siege], None]) -> Attack:
    return Attack(name, COVEY, logged, do, inside=True)


INSIDE = [
    answer("an answer with a NaN", NOT_FINITE, lambda data: with_value(data, math.nan)),
    answer("an infinite answer", NOT_FINITE, lambda data: with_value(data, -math.inf)),
    on_the_wire("a NaN three times", f"evicted {NAME}", evicted),
    answer(
        "a wrong shape",
        "a message of rows,",
        lambda data: with_row(data, torch.cat([rows_of(data), torch.ones(1)])),
    ),
    answer("a wrong shape inside", "a row of", with_inner_width),
    answer("a wrong dtype", "a message of rows", lambda data: with_row(data, rows_of(data).double())),
    answer("two rows", "a message of 2 rows, expected 1", lambda data: with_row(data, rows_of(data), 2)),
    answer("a truncated answer", "an envelope with a row of", lambda data: data[:-9]),
    answer("garbage as an answer", "an envelope with a header of", lambda data: b"\xff" * 999),
    answer("an empty answer", "an envelope of 0 bytes", lambda data: b""),
    answer("another codec", "message with tag 15", with_tag),
    on_the_wire("a row beyond norm_bound", "more than norm_bound = 100", bounded),
    on_the_wire("a replayed answer", f"bad_answer of {NAME}: an answer of seat 1 to", replayed),
    on_the_wire("a second answer", "a second answer to", second_answer),
    on_the_wire("an answer to another's key", "which was not asked", old_key),
    on_the_wire("an answer for another's seat", "an answer for the seat 2", for_another),
    in_facts("facts of another's subtree", "a fact of node 2, which is not", of_another),
    in_facts("facts that are no numbers", "gradients with nan", not_a_number),
    in_facts("an error without a kind", "an error with", false_error),
    on_the_wire("garbage as a frame", "a Frame that cannot be read", sends(lambda _: b"\xff" * 100)),
    on_the_wire("an oversized message", "more than 8388608", sends(lambda _: frame(2, Reply(size=2**40)))),
    on_the_wire("a message that stops in the middle", "a message stalls", sends(half)),
    on_the_wire("a flood of answers", f"evicted {NAME}", flood),
    on_the_wire("a disk that is behind", "its disk is behind its parent's journal (empty)", behind),
]  # fmt: skip
ATTACKS = [*OUTSIDE, *INSIDE]


# Looking on


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextmanager
def covey_lines(lines: list[str]) -> Iterator[None]:
    """Collect what covey logs."""
    handler = _Lines(lines)
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)


@dataclass(frozen=True)
class Outcome:
    """What became of an attack."""

    attack: Attack
    covey: list[str] = field(default_factory=list)
    failed: int = 0
    """Handshakes after which no stream was opened."""

    @property
    def line(self) -> str | None:
        """The line that was logged, where covey had to refuse; else whether it was counted."""
        if self.attack.who == CORE:
            return COUNTED if self.failed > 0 else None
        found = [line for line in self.covey if self.attack.logged in line]
        return found[0] if found else None


def attacked(siege: Siege, attack: Attack) -> Outcome:
    """One round under attack, which ends with the rows of the undisturbed run."""
    siege.lines, siege.told = [], ""
    before = siege.failed
    with covey_lines(siege.lines):
        if attack.inside:
            siege.inside(attack)
        else:
            siege.outside(attack)
        siege.end()
    if attack.who == COVEY and siege.told:
        assert attack.logged in siege.told
    return Outcome(attack, list(siege.lines), siege.failed - before)


def plain(line: str) -> str:
    """A line of a log without what differs from run to run."""
    line = re.sub(r"ipv4:127\.0\.0\.1:\d+", "ADDRESS", line)
    line = re.sub(r"certificate [0-9a-f]{24,}", "certificate NUMBER", line)
    line = re.sub(r"[0-9a-f]{32}(/[\w.]+)*", "KEY", line)
    line = line.replace("covey.Frame", "Frame")  # protobuf's name of it, which is no module
    return line.replace("|", "/")


def table(outcomes: list[Outcome]) -> str:
    """The outcomes in Markdown."""
    rows = ["| attack | refused by | logged |", "|---|---|---|"]
    for outcome in outcomes:
        line = plain(outcome.line or "(nothing)")
        if len(line) > 110:
            line = f"{line[:110]} ..."
        rows.append(f"| {outcome.attack.name} | {outcome.attack.who} | `{line}` |")
    return "\n".join(rows)


def main() -> None:
    logging.getLogger("covey.deployed").propagate = False
    with tempfile.TemporaryDirectory() as folder:
        siege = Siege(Path(folder))
        try:
            outcomes = []
            for attack in ATTACKS:
                print(attack, file=sys.stderr, flush=True)
                outcomes.append(attacked(siege, attack))
        finally:
            siege.close()
    print(table(outcomes))


if __name__ == "__main__":
    main()
