"""Nothing ends in silence: whatever fails is logged, and tried again or raised."""

import asyncio
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from covey.deployed.operate.control import Control
from covey.deployed.operate.events import EventLog
from covey.deployed.operate.progress import Progress
from covey.deployed.plan.local import free_ports
from covey.deployed.plan.plan import DeploySettings
from covey.deployed.transport import grpc_options
from covey.deployed.transport.frames import Message
from covey.deployed.transport.grpc_options import Failures, Limits, outcome
from covey.deployed.transport.grpc_port import GrpcPort, ParentStream
from covey.deployed.transport.grpc_transport import GrpcTransport, listed
from covey.deployed.transport.local_transport import LocalTransport
from covey.deployed.transport.transport import Answer, AskKey, Patience
from covey.deployed.transport.wire import Reply
from covey.errors import TransportError
from covey.files.config import load
from tests.cli.command import BASE, SMALL
from tests.cli.command import covey as command
from tests.deployed.members import ADDRESS, member, planned, serving
from tests.deployed.tree import FAST, FINGERPRINT, Family, Gated, echo, family, key, until

LOCAL = (*SMALL[1:], "rounds=2", "data.devices=4")


@pytest.fixture
def events() -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """The events of a name that were logged."""
    stream = io.StringIO()
    with EventLog("test", stream).library():
        yield lambda name: [
            event for event in map(json.loads, stream.getvalue().splitlines())
            if event["event"] == name
        ]  # fmt: skip


@contextmanager
def occupied() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one.getsockname()[1]


# Dialling


def test_a_child_that_dials_too_early_dials_again(
    plain: Family, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC refuses to write to a call that is over; a busy machine is enough for that."""
    greet = ParentStream.greet

    async def late(stream: ParentStream, *facts: Any) -> None:
        await asyncio.sleep(0.1)
        await greet(stream, *facts)

    monkeypatch.setattr(ParentStream, "greet", late)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    port = GrpcPort(
        address, "server", {"device0": 0}, fingerprint=FINGERPRINT, identity=None, limits=FAST
    )
    served = plain.serve(port, {0: echo})
    until(lambda: bool(events("dial_again")))
    assert "Connection refused" in events("dial_again")[0]["text"]
    parent = GrpcTransport(
        address, {"device0": 0}, fingerprint=FINGERPRINT, identity=None, limits=FAST
    )
    try:
        assert parent.ask(key(), b"c", {0: b"o"})[0] == Answer("answered", b"0:c+o")
    finally:
        served.end()
        parent.close()
    assert not served.errors


def test_a_parent_that_is_gone_for_good_is_counted(plain: Family, events: Any) -> None:
    served = plain.dial(0)
    until(lambda: served.port.connected)
    plain.parent.close()
    until(lambda: len(events("dial_again")) >= 3)
    counts = [event["count"] for event in events("dial_again")]
    assert counts == sorted(counts)
    assert counts[-1] >= 2
    assert not served.port.connected
    served.end()  # it ends when it is told to, also while it dials
    assert not served.errors


def test_a_child_of_a_silent_parent_ends_when_it_is_told(plain: Family) -> None:
    """Something accepts its connection and says nothing."""
    with occupied() as port:
        served = plain.dial(0, address=f"127.0.0.1:{port}")
        time.sleep(0.2)
        began = time.monotonic()
        served.end()
        assert time.monotonic() - began < 1
    assert not served.errors


def test_failures_are_logged_ever_more_rarely() -> None:
    failures = Failures()
    logged = [failures.add("away") for _ in range(1000)]
    assert [count + 1 for count, line in enumerate(logged[:100]) if line] == [1, 2, 4, 8, 16, 32, 64]  # fmt: skip
    assert sum(logged) < 20
    assert failures.add("something else")


def test_a_reply_that_cannot_be_sent_is_counted_and_not_hurried(
    plain: Family, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = ParentStream.send
    mended = threading.Event()

    async def mute(stream: ParentStream, message: Message) -> None:
        if isinstance(message.head, Reply) and not mended.is_set():
            raise asyncio.InvalidStateError("no reply leaves this process")
        await send(stream, message)

    monkeypatch.setattr(ParentStream, "send", mute)
    address = plain.parent.address
    port = GrpcPort(
        address, "server", {"device0": 0}, fingerprint=FINGERPRINT, identity=None, limits=FAST
    )
    served = plain.serve(port, {0: echo})
    answers: dict[int, Answer] = {}
    asking = threading.Thread(target=lambda: answers.update(plain.parent.ask(key(), b"", {0: b""})))
    asking.start()
    began = time.monotonic()
    until(lambda: port.counts["send_errors"] >= 3)
    time.sleep(max(0.0, 1 - (time.monotonic() - began)))
    assert port.counts["send_errors"] < 12  # pauses grow though each stream is let in
    errors = events("send_error")
    assert [event["count"] for event in errors[:3]] == [1, 2, 3]
    assert "no reply leaves this process" in errors[0]["text"]
    mended.set()
    asking.join(10)
    assert answers == {0: Answer("answered", b"0:+")}
    assert not served.errors


# Handlers


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("a bug"), "a bug"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(), "StopIteration"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_handler_that_fails_ends_its_process_and_no_other(
    plain: Family, events: Any, error: BaseException, text: str
) -> None:
    def failing(asked: AskKey, common: bytes, own: bytes) -> bytes:
        raise error

    first = plain.dial(0, handler=failing)
    plain.dial(1)
    plain.wait(0, 1)
    answers = plain.parent.ask(key(), b"", {0: b"", 1: b""}, Patience(0.05, 1))
    assert answers[1].status == "answered"
    first.thread.join(5)
    assert not first.thread.is_alive()
    assert text in str(first.errors[0])
    (event,) = events("handler_failed")
    assert (event["level"], event["seat"], event["asked"]) == ("error", 0, str(key()))
    assert plain.parent.ask(key(1), b"", {1: b""})[1].status == "answered"


def test_an_evicted_edge_ends_though_its_children_do_not_answer(plain: Family) -> None:
    """Its handler waits for a child that never comes."""
    waits = Gated()
    served = plain.dial(0, handler=waits)
    plain.wait(0)
    asking = threading.Thread(target=_ignored(plain, {0: b""}))
    asking.start()
    assert waits.begun.wait(5)
    plain.parent.evict("device0")
    served.thread.join(5)
    assert not served.thread.is_alive()
    waits.gate.set()
    assert "PERMISSION_DENIED: device0 is evicted" in str(served.errors[0])
    plain.parent.close()
    asking.join(5)


def _ignored(tree: Family, own: dict[int, bytes]) -> Callable[[], None]:
    def ask() -> None:
        with pytest.raises(TransportError):
            tree.parent.ask(key(), b"", own)

    return ask


# Parents


def test_a_port_that_is_taken_is_named() -> None:
    with occupied() as port:
        with pytest.raises(TransportError, match=f"{port} cannot be listened at: Address already"):
            GrpcTransport(f"127.0.0.1:{port}", {}, fingerprint="", identity=None)
        with pytest.raises(TransportError, match=f"the control port 127.0.0.1:{port}: Address"):
            Control(Progress("edge0", "edge"), port=port)


class Broken:
    """The admission of a parent whose disk fails."""

    broken = True

    def refusal(self, seat: int, last_key: str | None) -> str | None:
        if self.broken:
            raise RuntimeError("the disk is gone")
        return None


def test_an_error_of_the_parent_is_its_own(tmp_path: Path, events: Any) -> None:
    admission = Broken()
    with family(tmp_path, count=1, secure=False, admission=admission) as tree:
        served = tree.dial(0)
        until(lambda: tree.parent.refused["INTERNAL"] >= 2)
        event = events("refused")[1]
        assert (event["level"], event["code"], event["count"]) == ("error", "INTERNAL", 2)
        assert "the parent failed: RuntimeError: the disk is gone" in event["text"]
        assert "INTERNAL" in events("dial_again")[0]["text"]
        admission.broken = False
        tree.wait(0)
        assert not served.errors


class Slow:
    """Looks at disks until it is told to end."""

    def __init__(self) -> None:
        self.looks = threading.Event()
        self.end = threading.Event()

    def refusal(self, seat: int, last_key: str | None) -> str | None:
        self.looks.set()
        self.end.wait(10)
        return None


def test_a_seat_that_is_evicted_while_it_is_taken_stays_empty(tmp_path: Path) -> None:
    admission = Slow()
    with family(tmp_path, count=2, secure=False, admission=admission) as tree:
        served = tree.dial(0)
        assert admission.looks.wait(10)
        tree.parent.evict("device0")
        admission.end.set()
        served.thread.join(10)
        assert "device0 is evicted" in str(served.errors[0])
        assert tree.parent.members() == set()


def test_a_request_above_the_limit_is_an_error_and_several_are_several_messages(
    tmp_path: Path,
) -> None:
    limits = replace(FAST, message=1000)
    with family(tmp_path, count=3, secure=False, limits=limits) as tree:
        tree.dial(0, 1)
        tree.dial(2)
        tree.wait(0, 1, 2)
        with pytest.raises(TransportError, match="a request of 1001 bytes, more than 1000"):
            tree.parent.ask(key(), bytes(600), {0: b"", 2: bytes(401)})
        answers = tree.parent.ask(key(1), bytes(300), {0: bytes(500), 1: bytes(500)})
        assert [len(answer.data) for answer in answers.values()] == [803, 803]
        assert tree.served[0].port.joined == 1


def test_an_answer_above_the_limit_ends_its_process_and_evicts_nobody(tmp_path: Path) -> None:
    limits = replace(FAST, message=1000)
    with family(tmp_path, count=2, secure=False, limits=limits) as tree:
        served = tree.dial(0, handler=lambda *_: bytes(1001))
        tree.dial(1)
        tree.wait(0, 1)
        own = {0: b"", 1: b""}
        assert tree.parent.ask(key(), b"", own, Patience(0.5, 1))[0].status == "late"
        served.thread.join(10)
        assert "with 1001 bytes, more than 1000" in str(served.errors[0])
        assert not tree.parent.evicted()


def broken_check(seat: int, data: bytes) -> str | None:
    raise RuntimeError("a bug in the check")


def test_a_check_that_fails_ends_its_ask(plain: Family) -> None:
    """No answer would ever be believed."""
    plain.dial(0)
    plain.wait(0)
    with pytest.raises(TransportError, match="a bug in the check"):
        plain.parent.ask(key(), b"", {0: b""}, check=broken_check)
    assert plain.parent.ask(key(1), b"", {0: b""})[0].status == "answered"


def test_a_seat_in_this_process_that_fails_ends_its_ask() -> None:
    def failing(asked: AskKey, common: bytes, own: bytes) -> bytes:
        raise RuntimeError("a bug")

    local = LocalTransport()
    local.take(0, failing)
    local.take(1, echo)
    with pytest.raises(TransportError, match="the seat 0 failed: RuntimeError"):
        local.ask(key(), b"", {0: b"", 1: b""})
    with pytest.raises(TransportError, match="the check of the answer of the seat 1 failed: Runt"):
        local.ask(key(), b"", {1: b""}, check=broken_check)
    local.take(0, echo)  # its thread lives on
    assert local.ask(key(1), b"", {0: b""})[0].status == "answered"
    local.close()


def test_an_ask_that_waits_says_for_whom(tmp_path: Path, events: Any) -> None:
    limits = Limits(note_seconds=0.05)
    with family(tmp_path, count=3, secure=False, limits=limits) as tree:
        tree.dial(0)
        own = dict.fromkeys(range(3), b"")
        tree.parent.ask(key(), b"", own, Patience(0.4, 1))
        lines = events("waiting")
        assert 2 <= len(lines) <= 5  # ever more rarely
        assert lines[0]["empty"][-2:] == ["device1", "device2"]
        assert "device1, device2" in lines[-1]["text"]


def test_an_event_loop_that_has_ended_is_an_error(
    monkeypatch: pytest.MonkeyPatch, events: Any
) -> None:
    loop = grpc_options._Loop()
    monkeypatch.setattr(grpc_options, "_LOOP", [loop])

    def end() -> None:
        raise SystemExit(1)

    loop.loop.call_soon_threadsafe(end)
    with pytest.raises(TransportError, match=r"the event loop has ended: SystemExit\(1\)"):
        outcome(Future[None]())  # which nobody fulfils
    loop.loop.close()
    assert events("loop_ended")


def test_an_error_that_nobody_sees_is_logged(events: Any) -> None:
    def fail() -> None:
        raise RuntimeError("in a callback")

    grpc_options.shared_loop().call_soon_threadsafe(fail)
    until(lambda: bool(events("unseen_error")))
    assert "in a callback" in events("unseen_error")[0]["text"]


# Processes


def test_a_member_that_dies_fails_the_test(tmp_path: Path) -> None:
    """The server would wait for edge1 without end."""
    experiment = load(BASE, [*LOCAL]).experiment(0)
    processes = planned(experiment, tmp_path, DeploySettings(address=ADDRESS))
    members = {described.name: member(described, experiment) for described in processes}
    began = time.monotonic()
    address = str(members["edge1"].process.listen)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, _, port = address.rpartition(":")
        other.bind((host, int(port)))
        other.listen()
        with pytest.raises(TransportError, match=f"{address} cannot be listened at"):
            _run_all(members)
    assert time.monotonic() - began < 20


def _run_all(members: Any) -> None:
    with serving(members):
        list(members["server"].rounds(members["server"].run()))


def node(tmp_path: Path, *words: object) -> Any:
    """`covey node --insecure` in this process."""
    file = tmp_path / "experiment.toml"
    file.write_text(load(BASE, [*LOCAL]).text(), encoding="utf-8")
    control = ("--control-port", free_ports(1)[0])
    return command(
        "node", "--insecure", "--experiment", file, "--state", tmp_path / "state", *control, *words
    )


def test_a_node_that_cannot_listen_has_an_exit_code(tmp_path: Path) -> None:
    with occupied() as port:
        words = ("--name", "edge0", "--parent", "localhost:1")
        result = node(tmp_path, *words, "--listen", f"127.0.0.1:{port}")
        assert result.code == 6
        assert f"127.0.0.1:{port} cannot be listened at: Address already in use" in result.err
        assert "Traceback" not in result.err
        failed = json.loads(next(line for line in result.err.splitlines() if '"failed"' in line))
        assert failed["kind"] == "TransportError"


def test_a_node_without_its_control_port_has_an_exit_code(tmp_path: Path) -> None:
    with occupied() as port:
        words = ("--name", "device0", "--parent", "localhost:1", "--control-port", port)
        result = node(tmp_path, *words)
        assert result.code == 6
        assert f"the control port 127.0.0.1:{port}: Address already in use" in result.err


def test_a_node_that_is_refused_has_an_exit_code(tmp_path: Path) -> None:
    parent = GrpcTransport(
        "127.0.0.1:0", listed("device", range(4)), fingerprint="another", identity=None
    )
    try:
        result = node(tmp_path, "--name", "device0", "--parent", parent.address)
    finally:
        parent.close()
    assert result.code == 6
    assert "use the same experiment file" in result.err
    assert result.err.splitlines()[-1].startswith("error: ")


def test_a_node_refuses_an_open_control_port(tmp_path: Path) -> None:
    words = ("--name", "device0", "--parent", "localhost:1", "--control-host", "0.0.0.0")
    result = node(tmp_path, *words)
    assert result.code == 2
    assert "the control port on 0.0.0.0 needs a certificate" in result.err
