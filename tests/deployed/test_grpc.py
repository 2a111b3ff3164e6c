"""The gRPC transport over real sockets: order, retries, limits, renewal, and the end of a stream."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import REVOKED, Identity, SeatCertificate
from covey.deployed.operate.progress import Progress
from covey.deployed.transport import grpc_transport
from covey.deployed.transport.frames import Assembler, Message
from covey.deployed.transport.grpc_options import check_plain, server_credentials, waits
from covey.deployed.transport.grpc_port import GrpcPort, ParentStream
from covey.deployed.transport.grpc_transport import GrpcTransport, listed
from covey.deployed.transport.stored import AnswerFile, Arrival, Stored
from covey.deployed.transport.transport import CHUNK, Answer, AskKey, Diverged, Patience, Seat
from covey.deployed.transport.wire import Reply, key_sent
from covey.errors import ConfigError, CoveyError, EvictedError, TransportError
from tests.deployed.hostile import Peer, frame, hello
from tests.deployed.proxy import Proxy
from tests.deployed.tree import FAST, FINGERPRINT, Family, Gated, echo, family, key, until

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[True, False], ids=["tls", "plain"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Family]:
    with family(tmp_path, count=3, secure=request.param) as out:
        yield out


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Family]:
    with family(tmp_path, count=3, secure=False) as out:
        yield out


def test_answers_come_by_seat(tree: Family) -> None:
    for seat in range(3):
        tree.dial(seat)
    tree.wait(0, 1, 2)
    for number in range(3):
        answers = tree.parent.ask(key(number), b"all", {2: b"c", 0: b"a"})
        assert answers == {
            0: Answer("answered", b"%d:all+a" % number),
            2: Answer("answered", b"%d:all+c" % number),
        }


def test_a_process_with_several_seats_gets_common_bytes_once(tmp_path: Path) -> None:
    with family(tmp_path, count=3) as tree:
        assert tree.authority is not None
        gateway = tree.authority.issue(
            "gateway", seats=["device0", "device1", "device2"], holders="keep"
        )
        tree.dial(0, 1, 2, identity=Identity(gateway))
        tree.wait(0, 1, 2)
        before = tree.parent.carried["sent"]
        common = bytes(2 * CHUNK)
        answers = tree.parent.ask(key(), common, {0: b"a", 1: b"b", 2: b"c"})
        assert tree.parent.carried["sent"] - before < 2 * CHUNK + 1000
        assert [answer.read()[-2:] for answer in answers.values()] == [b"+a", b"+b", b"+c"]


def test_long_messages_arrive_in_chunks(plain: Family) -> None:
    plain.dial(0)
    plain.wait(0)
    common = bytes(range(256)) * (3 * CHUNK // 256)
    answers = plain.parent.ask(key(), common, {0: b"x"})
    assert answers[0].data == b"0:" + common + b"+x"


def test_answers_of_many_children_wait_in_a_file(tmp_path: Path) -> None:
    limits = replace(FAST, held=10, held_requests=0)
    with family(tmp_path, secure=False, limits=limits, keeps=tmp_path) as tree:
        tree.dial(0, 1)
        tree.wait(0, 1)
        answers = tree.parent.ask(key(), b"common", {0: b"a", 1: b"b"})
        answered = [answers[seat] for seat in (0, 1)]
        assert {type(answer.data) for answer in answered} == {bytes, Stored}  # one has room
        assert [answer.read() for answer in answered] == [b"0:common+a", b"0:common+b"]
        assert [len(answer.data) for answer in answered] == [10, 10]
        assert list(tmp_path.iterdir()) == []  # the file has no name


class Counted(Assembler):
    """Counts the bytes that all parents' ends hold of messages that have not ended."""

    kept_by: ClassVar[dict[int, int]] = {}
    peak: ClassVar[int] = 0

    def take(self, data: bytes) -> Message | None:
        message = super().take(data)
        self.kept_by[id(self)] = self.kept
        Counted.peak = max(Counted.peak, sum(self.kept_by.values()))
        return message

    def divert(self, sink: Callable[[bytes], None]) -> None:
        super().divert(sink)
        self.kept_by[id(self)] = self.kept


def test_answers_that_arrive_at_once_go_to_a_file_while_they_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four have room in memory; of the others the first frame is there at most."""
    monkeypatch.setattr(grpc_transport, "Assembler", Counted)
    files = []
    write = Arrival.write

    def written(arrival: Arrival, pieces: Sequence[bytes]) -> None:
        write(arrival, pieces)
        if arrival.file.stream not in files:
            files.append(arrival.file.stream)

    monkeypatch.setattr(Arrival, "write", written)
    barrier = threading.Barrier(4)
    checked = []

    def handler(asked: AskKey, common: bytes, own: bytes) -> bytes:
        barrier.wait(10)
        return own * (4 * CHUNK)

    def check(seat: Seat, data: bytes) -> str | None:
        checked.append(data == b"%d" % seat * (4 * CHUNK))
        return None

    limits = replace(FAST, held=8 * CHUNK, held_requests=0)
    with family(tmp_path, count=4, secure=False, limits=limits, keeps=tmp_path) as tree:
        for seat in range(4):
            tree.dial(seat, handler=handler)
        tree.wait(0, 1, 2, 3)
        Counted.peak = 0
        own = {seat: b"%d" % seat for seat in range(4)}
        for number in range(2):
            answers = tree.parent.ask(key(number), b"", own, check=check)
            kinds = Counter(type(answer.data) for answer in answers.values())
            assert kinds == {bytes: 2, Stored: 2}
            assert [answers[seat].read() for seat in own] == [
                own[seat] * (4 * CHUNK) for seat in own
            ]
        assert CHUNK <= Counted.peak <= (8 + 4) * CHUNK
        assert checked == [True] * 8
        assert len(files) == 4
        assert all(file.closed for file in files)
        assert list(tmp_path.iterdir()) == []


def test_no_child_waits_for_one_that_stops_within_its_answer(tmp_path: Path) -> None:
    """It has taken all room of the ask; its place is free again when its stream has ended."""
    limits = replace(FAST, held=3 * CHUNK, held_requests=0, stall_seconds=2)
    with family(tmp_path, count=3, limits=limits, keeps=tmp_path) as tree:
        slow = Peer(tree.parent.address, tree.identity("device0")).send(hello("device0"))
        slow.read()
        begun = threading.Event()

        def handler(*_: object) -> bytes:
            begun.wait(10)
            return bytes(3 * CHUNK)

        for seat in (1, 2):
            tree.dial(seat, handler=handler)
        tree.wait(0, 1, 2)
        own = dict.fromkeys(range(3), b"")
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(tree.parent.ask, key(), b"", own, Patience(1.0, 2))
            slow.read()
            slow.send(frame(2, Reply(key=key_sent(key()), size=3 * CHUNK), bytes(CHUNK)))
            ask = tree.parent.asks.open[key()]
            until(lambda: ask.in_memory == 3 * CHUNK)
            begun.set()
            answers = asked.result()
            slow.close()
        assert [answers[seat].status for seat in own] == ["late", "answered", "answered"]
        assert [answers[seat].read() for seat in (1, 2)] == [bytes(3 * CHUNK)] * 2
        until(lambda: ask.in_memory == 0)


def test_a_slow_disk_does_not_stop_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream ends while a frame of its answer is written; other threads do the disk's work."""
    writes = threading.Event()
    gate = threading.Event()
    opened: list[int] = []
    add = AnswerFile.add

    def adds(file: AnswerFile, data: bytes) -> Stored:
        opened.append(threading.get_ident())
        writes.set()
        gate.wait(60)
        return add(file, data)

    monkeypatch.setattr(AnswerFile, "add", adds)
    limits = replace(FAST, held=CHUNK, held_requests=0)
    with ThreadPoolExecutor() as threads, family(tmp_path, limits=limits, keeps=tmp_path) as tree:
        slow = Peer(tree.parent.address, tree.identity("device0")).send(hello("device0"))
        slow.read()
        tree.wait(0)
        asked = threads.submit(tree.parent.ask, key(), b"", {0: b"", 1: b""}, Patience(0.1, 1))
        slow.read()
        slow.send(frame(2, Reply(key=key_sent(key()), size=3 * CHUNK), bytes(CHUNK)))
        try:
            assert writes.wait(10)
            slow.close()
            until(lambda: not tree.parent.members(), 3)
            alive = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), tree.parent._loop)
            alive.result(3)
            tree.dial(1)
            assert asked.result(5)[1].status == "answered"
        finally:
            gate.set()
        in_loop = asyncio.run_coroutine_threadsafe(_thread(), tree.parent._loop).result()
        assert opened
        assert in_loop not in opened


async def _thread() -> int:
    return threading.get_ident()


def test_an_answer_above_the_bound_of_its_ask_is_refused_at_its_first_frame(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with family(tmp_path, secure=False, limits=replace(FAST, strikes=2)) as tree:
        liar = tree.dial(0, handler=lambda *_: bytes(6 * CHUNK))
        tree.dial(1, handler=lambda *_: bytes(CHUNK))
        tree.wait(0, 1)
        own = {0: b"", 1: b""}
        answers = tree.parent.ask(key(), b"", own, Patience(1.0, 1), most=CHUNK)
        assert answers[1].status == "answered"
        until(lambda: tree.parent.evicted() == {0})
        assert tree.parent.carried["received"] < 4 * CHUNK
        text = f"an answer of {6 * CHUNK} bytes to {key()}, more than {CHUNK}"
        assert text in caplog.text
        liar.thread.join(5)
        assert isinstance(liar.errors[0], EvictedError)


def test_an_answer_that_arrives_is_held_where_its_file_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrival = Arrival(tmp_path)
    arrival.write([b"ab"])

    def full(*_: object) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr(AnswerFile, "add", full)
    arrival.write([b"cd"])
    monkeypatch.undo()
    arrival.write([b"e"])
    assert "no space" in str(arrival.error)
    assert arrival.file.stream is None  # what it had of the disk is free
    assert arrival.take() == b"abcde"


def test_an_answer_that_ends_gives_its_space_back_while_others_arrive(tmp_path: Path) -> None:
    first = Arrival(tmp_path)
    second = Arrival(tmp_path)
    for arrival in (first, second):
        arrival.write([b"abc"])
    stream = second.file.stream
    assert stream is not None
    second.end()
    assert stream.closed
    second.write([b"late"])  # by a thread that had begun
    assert second.file.stream is None
    assert first.take() == b"abc"


def test_an_answer_that_no_file_takes_counts_as_held_while_it_arrives(tmp_path: Path) -> None:
    limits = replace(FAST, held=0, held_requests=0)
    with (
        ThreadPoolExecutor() as threads,
        family(tmp_path, limits=limits, keeps=tmp_path / "gone") as tree,
    ):
        peer = Peer(tree.parent.address, tree.identity("device0")).send(hello("device0"))
        peer.read()
        tree.wait(0)
        asked = threads.submit(tree.parent.ask, key(), b"", {0: b""})
        peer.read()
        peer.send(frame(2, Reply(key=key_sent(key()), size=2 * CHUNK), bytes(CHUNK)))
        ask = tree.parent.asks.open[key()]
        until(lambda: ask.in_memory == 2 * CHUNK)
        peer.close()
        until(lambda: ask.in_memory == 0)
        tree.dial(0, handler=lambda *_: bytes(2 * CHUNK))
        assert asked.result()[0].data == bytes(2 * CHUNK)
        assert ask.in_memory == 2 * CHUNK


def test_no_answers_are_read_while_others_wait_to_be_checked(tmp_path: Path) -> None:
    began = []
    let_on = threading.Event()

    def check(seat: Seat, data: bytes) -> None:
        began.append(seat)
        let_on.wait(10)

    with family(tmp_path, count=3, secure=False, limits=replace(FAST, unchecked=0)) as tree:
        tree.dial(0, 1, 2)
        tree.wait(0, 1, 2)
        own = dict.fromkeys(range(3), bytes(100_000))
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(tree.parent.ask, key(), b"", own, check=check)
            until(lambda: len(began) > 0)
            time.sleep(0.3)
            assert len(began) == 1
            assert tree.parent.carried["received"] < 200_000
            let_on.set()
            answers = asked.result()
    assert sorted(began) == [0, 1, 2]
    assert [answer.status for answer in answers.values()] == 3 * ["answered"]


def test_answers_stay_in_memory_where_no_file_takes_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = replace(FAST, held=0, held_requests=0)
    gone = tmp_path / "gone"
    with family(tmp_path, secure=False, limits=limits, keeps=gone) as tree:
        tree.dial(0, 1)
        tree.wait(0, 1)
        answers = tree.parent.ask(key(), b"common", {0: b"a", 1: b"b"})
        assert [answers[seat].data for seat in (0, 1)] == [b"0:common+a", b"0:common+b"]
    assert f"answers are held in memory, since {gone} takes none" in caplog.text


def test_an_answer_that_was_cut_off_in_its_file_is_an_error(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path)
    stored = file.add(b"abc")
    assert file.stream is not None
    file.stream.truncate(1)
    with pytest.raises(OSError, match=r"an answer of 3 bytes in .* ends after 1"):
        stored.read()


def test_a_quorum_above_the_number_of_seats_wants_all_of_them(plain: Family) -> None:
    """Nobody has diverged, though fewer seats are asked than a quorum has."""
    plain.dial(0)
    plain.wait(0)
    answers = plain.parent.ask(key(), b"", {0: b"a"}, Patience(0.1, 2))
    assert answers == {0: Answer("answered", b"0:+a")}


def test_a_training_that_diverged_is_no_bad_answer(
    plain: Family, caplog: pytest.LogCaptureFixture
) -> None:
    """The status, the metrics and the log have it apart from the answers that were bad."""
    names = {0: "device0", 1: "device1"}
    progress = Progress("server", "server")
    transport = progress.transport(names, plain.parent)

    def check(seat: Seat, data: bytes) -> str | None:
        if seat == 1:
            return Diverged("its training diverged")
        return None

    plain.dial(0, 1)
    plain.wait(0, 1)
    answers = transport.ask(key(), b"", {0: b"", 1: b""}, Patience(20, 1), check)
    assert [answers[seat].status for seat in (0, 1)] == ["answered", "bad"]
    child = progress.as_dict()["seats"][1]
    assert child["asks"] == {"diverged": 1}
    assert child["bad_reason"] is None
    labels = 'process="server",seat="device1",status="diverged"'
    assert f"covey_asks_total{{{labels}}} 1.0" in progress.prometheus()
    assert plain.parent.refused == {"diverged": 1}
    assert "diverged of device1: its training diverged" in caplog.text
    assert "bad_answer" not in caplog.text


def test_an_empty_seat_is_waited_for(plain: Family) -> None:
    timer = threading.Timer(0.2, lambda: plain.dial(1))
    timer.start()
    assert plain.parent.ask(key(), b"", {1: b""})[1].status == "answered"
    timer.join()


def test_late_and_absent_are_told_apart(plain: Family) -> None:
    slow = Gated(b"late")
    plain.dial(0)
    plain.dial(1, handler=slow)
    plain.wait(0, 1)
    patience = Patience(seconds=0.2, quorum=1)
    answers = plain.parent.ask(key(1), b"", dict.fromkeys(range(3), b""), patience)
    assert [answers[seat].status for seat in range(3)] == ["answered", "late", "absent"]
    slow.gate.set()
    second = plain.parent.ask(key(2), b"", {0: b"", 1: b""})
    assert second[1] == Answer("answered", b"late")  # of this ask: the first one's is dropped


def test_an_ask_waits_for_its_quorum_beyond_the_deadline(plain: Family) -> None:
    plain.dial(0)
    plain.wait(0)
    timer = threading.Timer(0.3, lambda: plain.dial(1))
    timer.start()
    own = dict.fromkeys(range(3), b"")
    answers = plain.parent.ask(key(), b"", own, Patience(seconds=0.05, quorum=2))
    assert [answers[seat].status for seat in range(3)] == ["answered", "answered", "absent"]
    timer.join()


def test_a_seat_has_a_window(plain: Family) -> None:
    """Requests beyond the window are not sent, so that they move nothing."""
    slow = Gated()
    plain.dial(0, handler=slow)
    plain.dial(1)
    plain.wait(0, 1)
    patience = Patience(seconds=0.05, quorum=1)
    own = {0: b"", 1: b""}
    states = [plain.parent.ask(key(n), b"", own, patience)[0].status for n in range(4)]
    assert states == ["late", "late", "absent", "absent"]
    slow.gate.set()
    plain.parent.ask(key(9), b"", {0: b""})
    assert [asked.round for asked in slow.asked] == [0, 1, 9]


def test_a_request_goes_on_over_a_broken_stream(plain: Family) -> None:
    """The stream ends while a seat is busy: the work is done once, and its answer arrives.

    An answer goes only to a parent that has asked in the stream that is open.
    """
    slow = Gated(b"done")
    served = plain.dial(0, handler=slow)
    plain.wait(0)

    def cut() -> None:
        slow.begun.wait(10)
        stream = plain.parent.table.streams[0]
        plain.parent._loop.call_soon_threadsafe(stream.close, "UNAVAILABLE", "a cut")
        until(lambda: served.port.joined == 2)
        until(lambda: served.port.connected and bool(served.port.hosted.stream.asked))
        slow.gate.set()

    thread = threading.Thread(target=cut)
    thread.start()
    assert plain.parent.ask(key(), b"", {0: b""})[0] == Answer("answered", b"done")
    thread.join()
    assert slow.asked == [key()]


def test_a_parent_that_starts_anew_gets_no_answer_that_it_has_not_asked(plain: Family) -> None:
    """A seat is busy while its parent ends and starts again: its answer would be a lie."""
    slow = Gated(b"done")
    served = plain.dial(0, handler=slow)
    plain.wait(0)
    asking = threading.Thread(target=_ask_in_vain, args=(plain,))
    asking.start()
    slow.begun.wait(10)
    address = plain.parent.address
    plain.parent.close()
    asking.join(10)
    plain.parent = GrpcTransport(
        address, listed("device", range(3)), fingerprint=FINGERPRINT, identity=None, limits=FAST
    )
    until(lambda: served.port.joined == 2)
    slow.gate.set()
    until(lambda: served.port.hosted.busy == 0)
    assert plain.parent.ask(key(), b"", {0: b""})[0] == Answer("answered", b"done")
    assert plain.parent.refused["dropped"] == 0


def _ask_in_vain(tree: Family) -> None:
    with pytest.raises(TransportError, match="closed"):
        tree.parent.ask(key(), b"", {0: b""})


def test_a_process_that_returns_gets_the_open_ask(plain: Family) -> None:
    began = threading.Event()
    out: dict[int, Answer] = {}

    def never(asked: AskKey, common: bytes, own: bytes) -> bytes:
        began.set()
        time.sleep(0.3)
        raise RuntimeError("the process dies")

    asking = threading.Thread(target=lambda: out.update(plain.parent.ask(key(), b"c", {0: b"o"})))
    first = plain.dial(0, handler=never)
    plain.wait(0)
    asking.start()
    began.wait(10)
    first.thread.join(10)
    assert str(first.errors[0]) == "the process dies"
    plain.dial(0)
    asking.join(10)
    assert out == {0: Answer("answered", b"0:c+o")}


CHILD = """
import os, sys, time
from pathlib import Path
from covey.deployed.operate.certificates import Identity
from covey.deployed.transport.grpc_port import GrpcPort
from tests.deployed.tree import FAST, FINGERPRINT, echo

def handler(key, common, own):
    if not Path(sys.argv[3]).exists():
        Path(sys.argv[3]).touch()
        time.sleep(60)
    return echo(key, common, own)

port = GrpcPort(sys.argv[1], "server", {"device0": 0}, fingerprint=FINGERPRINT,
                identity=Identity(Path(sys.argv[2])), limits=FAST)
port.serve({0: handler})
"""


def test_a_process_that_is_killed_returns(tmp_path: Path) -> None:
    """SIGKILL while it handles a request; the next process of the seat is asked again."""
    with family(tmp_path, count=1) as tree:
        flag = tmp_path / "begun"
        folder = tmp_path / "certs" / "device0"
        command = [sys.executable, "-c", CHILD, tree.parent.address, str(folder), str(flag)]
        out: dict[int, Answer] = {}
        thread = Thread(target=lambda: out.update(tree.parent.ask(key(4), b"c", {0: b"o"})))
        first = subprocess.Popen(command, cwd=ROOT)
        try:
            thread.start()
            until(flag.exists, 30)
        finally:
            first.kill()
            first.wait()
        second = subprocess.Popen(command, cwd=ROOT)
        try:
            thread.join(30)
            assert out == {0: Answer("answered", b"4:c+o")}
        finally:
            second.kill()
            second.wait()


def test_a_second_process_on_a_seat_is_refused(
    tree: Family, caplog: pytest.LogCaptureFixture
) -> None:
    first = tree.dial(0)
    tree.wait(0)
    second = tree.dial(0)
    until(lambda: "device0 is taken by" in caplog.text)
    assert tree.parent.ask(key(), b"", {0: b""})[0].status == "answered"
    assert second.port.joined == 0
    assert not tree.parent.turned_away()  # the seat is not empty because of it
    first.end()
    until(lambda: second.port.joined == 1)
    assert tree.parent.refused["ALREADY_EXISTS"] >= 1


def test_a_port_closes_after_the_request_in_hand(plain: Family) -> None:
    begun = threading.Event()

    def slow(asked: AskKey, common: bytes, own: bytes) -> bytes:
        begun.set()
        time.sleep(0.2)
        return bytes(7 * CHUNK)

    served = plain.dial(0, handler=slow)
    plain.dial(1)
    plain.wait(0, 1)

    def close() -> None:
        begun.wait(10)
        served.end()

    closing = threading.Thread(target=close)
    closing.start()
    answer = plain.parent.ask(key(), b"", {0: b"", 1: b""}, Patience(5, 1))[0]
    assert answer == Answer("answered", bytes(7 * CHUNK))  # also what was still under way
    closing.join(10)
    plain.wait(1)
    assert not served.errors


def test_a_partition_is_found_and_mended(tmp_path: Path) -> None:
    """Nothing is closed: packets are lost. Both ends find out by their pings."""
    with family(tmp_path, count=2) as tree:
        proxy = Proxy(tree.parent.address)
        try:
            tree.dial(0)
            lost = tree.dial(1, address=proxy.address)
            tree.wait(0, 1)
            until(lambda: lost.port.joined == 1)  # its welcome may still be under way
            began = time.monotonic()
            proxy.cut()
            own = dict.fromkeys(range(2), b"")
            answers = tree.parent.ask(key(1), b"", own, Patience(0.1, 1))
            assert [answers[seat].status for seat in range(2)] == ["answered", "late"]
            tree.wait(0)
            assert time.monotonic() - began < 8  # a ping every second, a second for its answer
            proxy.mend()
            assert tree.parent.ask(key(2), b"", own)[1].status == "answered"
            assert lost.port.joined >= 2
        finally:
            proxy.close()


def test_a_closed_transport_ends_its_asks(plain: Family) -> None:
    timer = threading.Timer(0.1, plain.parent.close)
    timer.start()
    with pytest.raises(TransportError, match="the transport is closed"):
        plain.parent.ask(key(), b"", {0: b""})
    timer.join()


def test_a_parent_that_returns_finds_its_children(plain: Family) -> None:
    plain.dial(0)
    plain.wait(0)
    plain.parent.close()
    again = GrpcTransport(
        plain.parent.address,
        listed("device", range(3)),
        fingerprint=FINGERPRINT,
        identity=None,
        limits=FAST,
    )
    try:
        assert again.ask(key(), b"", {0: b"x"})[0].status == "answered"
    finally:
        again.close()


def test_a_second_parent_on_a_port_is_an_error(plain: Family) -> None:
    with pytest.raises(TransportError, match="cannot be listened at: Address already in use"):
        GrpcTransport(plain.parent.address, {}, fingerprint="", identity=None)


def test_renewal_without_a_restart(tmp_path: Path) -> None:
    """Certificates of both ends end soon; the renewed ones are taken, and no answer is lost."""
    with family(tmp_path, count=1) as tree:
        assert tree.authority is not None
        second = 1 / 86_400
        for name in ("server", "device0"):
            tree.authority.renew(name, days=2 * second)
        served = tree.dial(0)
        tree.wait(0)
        assert tree.parent.ask(key(1), b"", {0: b""})[0].status == "answered"
        for name in ("server", "device0"):
            tree.authority.renew(name)
        until(lambda: served.port.joined >= 2)
        until(lambda: tree.parent.members() == {0})
        assert tree.parent.ask(key(2), b"", {0: b""})[0].status == "answered"


def test_a_revoked_parent_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with family(tmp_path, count=1) as tree:
        assert tree.authority is not None
        served = tree.dial(0)
        tree.wait(0)
        tree.authority.revoke("server")
        until(lambda: "is revoked" in caplog.text)
        tree.wait()
        joined = served.port.joined
        time.sleep(0.3)
        assert served.port.joined == joined


def watched(port: GrpcPort, server: SeatCertificate) -> ParentStream:
    limits = replace(FAST, check_seconds=0.001)
    return ParentStream(None, "", limits, asyncio.Event(), port.revoked, Counter(), server)


def test_a_damaged_list_of_revoked_certificates_is_told_ever_more_rarely(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """By the child, whose stream stays open; the list counts again when it is whole."""
    server = Identity(authority.issue("server")).check()
    identity = Identity(authority.issue("device0"))
    port = GrpcPort("127.0.0.1:9", "server", {"device0": 0}, fingerprint="", identity=identity)
    damaged = identity.folder / REVOKED
    whole = damaged.read_bytes()

    async def watch(enough: Callable[[], bool]) -> None:
        watching = asyncio.create_task(watched(port, server).check_parent())
        while not enough():
            assert not watching.done()
            await asyncio.sleep(0.001)
        watching.cancel()

    damaged.write_bytes(b"damaged")
    asyncio.run(watch(lambda: port.revoked.unread.count >= 20))
    lines = [record.message for record in caplog.records if str(damaged) in record.message]
    assert 1 < len(lines) < port.revoked.unread.count / 2
    assert all(line.startswith("revoked_unread: ") for line in lines)
    damaged.write_bytes(whole)
    asyncio.run(watch(lambda: port.revoked.unread.count == 0))


def test_a_parent_whose_certificate_ends_is_left_though_the_list_is_damaged(
    authority: Authority,
) -> None:
    server = replace(Identity(authority.issue("server")).check(), ends=datetime.now(UTC))
    identity = Identity(authority.issue("device0"))
    port = GrpcPort("127.0.0.1:9", "server", {"device0": 0}, fingerprint="", identity=identity)
    (identity.folder / REVOKED).write_bytes(b"damaged")
    watching = asyncio.wait_for(watched(port, server).check_parent(), 5)
    with pytest.raises(CoveyError, match="its certificate ended at"):
        asyncio.run(watching)


def test_a_certificate_that_cannot_be_renewed_is_told_ever_more_rarely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are read at every handshake."""
    import grpc

    identity = Identity(Authority.create(tmp_path / "certs").issue("server"))
    monkeypatch.setattr(
        grpc, "dynamic_ssl_server_credentials", lambda first, renewed, **more: renewed
    )
    renewed = server_credentials(identity, lambda: None)
    (identity.folder / "key.pem").chmod(0o644)
    assert [renewed() for _ in range(6)] == [None] * 6
    assert len(caplog.messages) == 3  # the 1st, 2nd and 4th time
    assert all(line.startswith("certificate_unread: ") for line in caplog.messages)


def test_no_key_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with family(tmp_path, count=2) as tree:
        tree.dial(0)
        tree.wait(0)
        tree.dial(1, fingerprint="other")
        until(lambda: tree.parent.refused["FAILED_PRECONDITION"] > 0)
    for file in tmp_path.rglob("key.pem"):
        assert file.read_text().splitlines()[1] not in caplog.text


@pytest.mark.parametrize("address", ["0.0.0.0:80", "[::]:80", "edge3.example:8443", "10.0.0.1:1"])
def test_no_certificates_on_loopback_alone(address: str) -> None:
    for good in ("127.0.0.1:0", "localhost:80", "[::1]:80"):
        check_plain(good)
    with pytest.raises(ConfigError, match="would be open to others"):
        GrpcTransport(address, {}, fingerprint="", identity=None)
    with pytest.raises(ConfigError, match="would be open to others"):
        GrpcPort(address, "server", {"device0": 0}, fingerprint="", identity=None)


def test_pauses_grow_and_differ() -> None:
    pauses = waits(base=0.1, most=5)
    first = [next(pauses) for _ in range(30)]
    assert all(0.05 <= pause <= 5 for pause in first)
    assert first[0] <= 0.1
    assert max(first[8:]) > 1
    assert len(set(first)) == 30


def test_a_certificate_of_other_seats_is_refused_before_dialling(tmp_path: Path) -> None:
    with family(tmp_path, count=2) as tree:
        with pytest.raises(ConfigError, match="the certificate is of device0, not of device1"):
            tree.dial(1, identity=tree.identity("device0"))
        with pytest.raises(TransportError, match="asks the seat 7, which is not listed"):
            tree.parent.ask(key(), b"", {7: b""})
        with pytest.raises(TransportError, match="cannot be sent: Value out of range"):
            tree.parent.ask(key(2**64), b"", {0: b""})


def test_handlers_must_be_of_the_seats(plain: Family) -> None:
    port = GrpcPort(plain.parent.address, "server", {"device0": 0}, fingerprint="", identity=None)
    with pytest.raises(ConfigError, match="handlers for"):
        port.serve({1: echo})
