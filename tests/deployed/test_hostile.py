"""Hostile peers over real sockets: who refuses them, what is logged, and that others go on. Those
of `attacks.py` attack a whole run (test_attacks.py); here are single streams.

One parent serves all tests. The seat `device0` is held by an honest process from the first test to
the last; after every test it still answers, over the same stream.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from covey.deployed.operate.certificates import Identity
from covey.deployed.transport import admission
from covey.deployed.transport.grpc_transport import GrpcTransport, listed
from covey.deployed.transport.transport import CHUNK, MAX_FRAME, Answer, Patience
from covey.deployed.transport.wire import Key, Reply, Welcome
from tests.deployed.hostile import Peer, deaf, frame, hello, reply
from tests.deployed.tree import FAST, FINGERPRINT, Family, family, key, until

ROUNDS = iter(range(1_000))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    folder = tmp_path_factory.mktemp("hostile")
    with family(folder, count=24) as out:
        out.dial(0)
        out.wait(0)
        yield out
        assert out.served[0].port.joined == 1


@pytest.fixture(autouse=True)
def honest(tree: Family) -> Iterator[None]:
    """Whatever a test does, the honest device answers."""
    tree.parent.handshakes.refusals.clear()  # a refusal that was told before is told ever more rarely
    yield
    number = next(ROUNDS)
    answers = tree.parent.ask(key(number), b"c", {0: b"o"})
    assert answers == {0: Answer("answered", b"%d:c+o" % number)}
    assert tree.served[0].port.joined == 1


def identity(tree: Family, seat: int) -> Identity:
    out = tree.identity(f"device{seat}")
    assert out is not None
    return out


def peer(tree: Family, seat: int, *frames: bytes) -> Peer:
    """A process with the certificate of a seat."""
    return Peer(tree.parent.address, identity(tree, seat)).send(*frames)


def joined(tree: Family, seat: int) -> Peer:
    """A process that has taken its seat as it should."""
    out = peer(tree, seat, hello(f"device{seat}"))
    out.read()
    until(lambda: seat in tree.parent.members())
    return out


# Refused by covey: who it is


Refused = Callable[[tuple[str, str], str, str], None]


@pytest.fixture
def refused(caplog: pytest.LogCaptureFixture) -> Refused:
    """Asserts that a stream ended with a status, and that the reason was logged with the address."""

    def check(end: tuple[str, str], code: str, text: str) -> None:
        assert (end[0], text in end[1]) == (code, True), end
        words = ("refused", "127.0.0.1", text)
        lines = [record.getMessage() for record in caplog.records]
        assert any(all(word in line for word in words) for line in lines), lines

    return check


def test_a_revoked_certificate(tree: Family, refused: Refused) -> None:
    tree.authority.revoke("device2")
    end = peer(tree, 2, hello("device2")).end()
    refused(end, "UNAUTHENTICATED", "is revoked")
    assert "is revoked" in tree.parent.turned_away()[2]
    tree.authority.issue("device2")
    again = joined(tree, 2)
    assert 2 not in tree.parent.turned_away()
    again.close()


def test_a_certificate_that_is_revoked_while_its_stream_is_open(
    tree: Family, refused: Refused
) -> None:
    thief = joined(tree, 3)
    tree.authority.revoke("device3")
    refused(thief.end(), "UNAUTHENTICATED", "is revoked")
    until(lambda: 3 not in tree.parent.members())


def test_a_certificate_that_ends_while_its_stream_is_open(tree: Family, refused: Refused) -> None:
    tree.authority.renew("device4", days=1.5 / 86_400)
    refused(joined(tree, 4).end(), "UNAUTHENTICATED", "its certificate ended at")


# Refused by covey: what it says first


@pytest.mark.parametrize(
    ("first", "code", "text"),
    [
        (hello("device5", draws=1), "FAILED_PRECONDITION", "with draws = 1, this parent covey"),
        (hello("device5", version="9"), "FAILED_PRECONDITION", "it is covey '9' with draws = 2"),
        (hello(), "INVALID_ARGUMENT", "it asks for no seat"),
        (hello("device5", "device5"), "INVALID_ARGUMENT", "for one twice"),
        (frame(1, Reply(size=3)), "INVALID_ARGUMENT", "a message of 3 bytes, more than 0"),
        (frame(1, Welcome()), "INVALID_ARGUMENT", "its first message is no hello"),
        (b"GET / HTTP/1.1", "INVALID_ARGUMENT", "a Frame that cannot be read"),
        (b"", "INVALID_ARGUMENT", "without a head"),
    ],
    ids=["draws", "version", "nobody", "twice", "reply", "welcome", "text", "empty"],
)
def test_a_bad_hello(tree: Family, refused: Refused, first: bytes, code: str, text: str) -> None:
    refused(peer(tree, 5, first).end(), code, text)


def test_a_hello_that_is_longer_than_its_seats_need(
    tree: Family, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before it is read, however many seats it asks for."""
    names = [f"device{number}" for number in range(5_000)]
    monkeypatch.setattr(admission, "Assembler", None)  # which would read it
    end = peer(tree, 5, hello(*names)).end()
    refused(end, "INVALID_ARGUMENT", "bytes, more than its seats need")


def test_a_hello_of_many_seats_is_read(tmp_path: Path) -> None:
    """With keys as long as any."""
    with family(tmp_path, count=300) as tree:
        names = [f"device{number}" for number in range(300)]
        folder = tree.authority.issue("gateway", seats=names, holders="revoke")
        first = hello(*names, last_key="k" * 1_900)
        one = Peer(tree.parent.address, Identity(folder)).send(first)
        tree.wait(*range(300))
        one.close()


def test_refusals_of_one_certificate_are_told_ever_more_rarely(
    tree: Family, caplog: pytest.LogCaptureFixture
) -> None:
    before = tree.parent.refused["FAILED_PRECONDITION"]
    for _ in range(12):
        end = peer(tree, 8, hello("device8", fingerprint="9" * 16)).end()
        assert end[0] == "FAILED_PRECONDITION"
    lines = [line for line in caplog.messages if line.startswith("refused device8")]
    assert len(lines) == 4  # the 1st, 2nd, 4th and 8th
    assert tree.parent.refused["FAILED_PRECONDITION"] == before + 12
    joined(tree, 8).close()
    tree.wait(0)
    peer(tree, 8, hello("device8", fingerprint="9" * 16)).end()
    assert len([line for line in caplog.messages if line.startswith("refused device8")]) == 5


def test_what_is_revoked_is_read_when_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dial reads it only then, and refuses at once who was revoked before."""
    reads = []
    revoked = Identity.revoked

    def counted(identity: Identity) -> frozenset[int]:
        if identity.folder == tmp_path / "certs" / "server":
            reads.append(identity)
        return revoked(identity)

    monkeypatch.setattr(Identity, "revoked", counted)
    with family(tmp_path, limits=replace(FAST, check_seconds=60)) as tree:
        assert tree.authority is not None
        reads.clear()
        for _ in range(5):
            joined(tree, 1).close()
            tree.wait()
        assert len(reads) == 1
        tree.authority.revoke("device1")
        end = peer(tree, 1, hello("device1")).end()
        assert end[0] == "UNAUTHENTICATED"
        assert len(reads) == 2


# Refused by covey: what it says then


@pytest.mark.parametrize(
    ("seat", "data", "text"),
    [
        (9, frame(3, Reply()), "message 3 after message 1"),
        (10, hello("device10"), "message 1 after message 1"),
        (12, frame(2, Welcome()), "a Welcome where a Reply should come"),
        (13, frame(2, Reply(key=Key(lane="x"))), "a key of an ask in the lane 'x'"),
    ],
    ids=["number", "hello again", "kind", "key"],
)
def test_a_bad_message(tree: Family, refused: Refused, seat: int, data: bytes, text: str) -> None:
    refused(joined(tree, seat).send(data).end(), "INVALID_ARGUMENT", text)
    until(lambda: seat not in tree.parent.members())


def test_a_frame_that_is_too_large(tree: Family) -> None:
    """gRPC's core refuses it before it is read."""
    end = joined(tree, 14).send(bytes(MAX_FRAME + 1)).end()
    assert end[0] in ("RESOURCE_EXHAUSTED", "CANCELLED", "UNAVAILABLE"), end
    until(lambda: 14 not in tree.parent.members())


def asked(tree: Family, seat: int, patience: float = 3) -> tuple[Any, list[Any]]:
    """Ask a seat in the background; the key, and a list that gets the answer."""
    name = key(next(ROUNDS))
    out: list[Any] = []

    def wait() -> None:
        own = {0: b"", seat: b""}  # the honest device is the quorum
        out.append(tree.parent.ask(name, b"", own, Patience(patience, 1))[seat])

    Thread(target=wait, daemon=True).start()
    return name, out


def test_an_answer_for_another(tree: Family, caplog: pytest.LogCaptureFixture) -> None:
    """An answer for the seat of another, and to a key that was asked of another."""
    liar = joined(tree, 17)
    honest = joined(tree, 18)
    name, out = asked(tree, 18)
    honest.read()
    liar.send(*reply(2, name, 18, b"bad"), *reply(3, name, 17, bytes(2 * CHUNK)))
    until(lambda: f"an answer to {name}, which was not asked" in caplog.text)
    assert "an answer for the seat 18" in caplog.text
    honest.send(*reply(2, name, 18, b"good"))
    until(lambda: out == [Answer("answered", b"good")])
    mended, more = asked(tree, 17)
    liar.read()
    liar.send(*reply(4, mended, 17, b"true"))  # behind the long one that was dropped
    until(lambda: more == [Answer("answered", b"true")])
    liar.close()
    honest.close()


def test_an_evicted_seat(tree: Family, refused: Refused) -> None:
    thief = joined(tree, 20)
    tree.parent.evict("device20")
    refused(thief.end(), "PERMISSION_DENIED", "device20 is evicted")


# A parent that is not the parent


def test_a_parent_of_another_name(
    tree: Family, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A device plays the parent: TLS refuses it on the child's side."""
    seats = listed("device", range(21, 22))
    false = GrpcTransport(
        "127.0.0.1:0", seats, fingerprint=FINGERPRINT, identity=identity(tree, 22), limits=FAST
    )
    child = tree.dial(21, address=false.address)
    until(lambda: "server at 127.0.0.1" in caplog.text)
    time.sleep(0.1)
    assert child.port.joined == 0
    assert not false.members()
    child.end()
    false.close()


def test_a_parent_whose_certificate_is_revoked(
    tree: Family, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not know that it is revoked, and lets the child in; the child leaves."""
    stolen = tree.authority.issue("stolen", seats=["server"], holders="keep")
    copy = shutil.copytree(stolen, tmp_path / "stolen")
    tree.authority.revoke("stolen")
    seats = listed("device", range(21, 22))
    false = GrpcTransport(
        "127.0.0.1:0", seats, fingerprint=FINGERPRINT, identity=Identity(copy), limits=FAST
    )
    child = tree.dial(21, address=false.address)
    until(lambda: "server: its certificate" in caplog.text)
    assert child.port.joined == 0
    child.end()
    false.close()


# Those who do not read

PATIENT = replace(FAST, hello_seconds=0.3, keepalive_seconds=60)  # nobody answers a ping


def test_a_welcome_that_nobody_takes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It takes no place from others, however often its sender dials, and no seat for long."""
    with family(tmp_path, count=2, limits=PATIENT) as tree, ExitStack() as open_streams:
        folder = identity(tree, 1).folder
        for _ in range(4 * tree.count + 64 + 4):  # more than a parent has places for
            stream = deaf(tree.parent.address, folder, hello("device1"))
            open_streams.enter_context(stream)
        until(lambda: "device1 dials too often at once" in caplog.text)
        until(lambda: "it takes no welcome in 0.3 s" in caplog.text)
        until(lambda: not tree.parent.members(), 5)
        tree.dial(0)
        tree.dial(1)
        until(lambda: tree.parent.members() == {0, 1})


def test_a_revoked_holder_that_reads_nothing_loses_its_seat(tmp_path: Path) -> None:
    """At once, and not when its welcome has waited long enough."""
    with family(tmp_path, limits=replace(PATIENT, hello_seconds=30)) as tree:
        assert tree.authority is not None
        with deaf(tree.parent.address, identity(tree, 1).folder, hello("device1")):
            tree.wait(1)
            tree.authority.issue("device1", holders="revoke")
            tree.wait()
            tree.dial(1)
            tree.wait(1)


def test_a_request_that_nobody_takes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = replace(PATIENT, frame_seconds=0.3)
    with family(tmp_path, limits=limits) as tree:
        folder = identity(tree, 1).folder
        with deaf(tree.parent.address, folder, hello("device1"), 2048):
            tree.dial(0)
            tree.wait(0, 1)
            answers = tree.parent.ask(key(), bytes(8192), {0: b"", 1: b""}, Patience(0.1, 1))
            assert answers[1].status == "late"
            tree.wait(0)
            assert "it does not read what it is sent" in caplog.text
