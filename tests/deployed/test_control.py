"""The control port: status, metrics and orders, for operators alone; and logs without secrets."""

import http.client
import io
import json
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from covey.deployed.certificates import Authority, Identity
from covey.deployed.control import Control, call, drained
from covey.deployed.events import HIDDEN, EventLog
from covey.deployed.progress import Progress
from covey.deployed.transport import Answer, AskKey, Check, Patience
from covey.errors import ConfigError
from tests.cli.command import covey

NAMES = {0: "device0", 1: "device1"}


def key(round: int, lane: str = "train") -> AskKey:
    return AskKey.from_dict(AskKey("r", round, "train", 0, "algorithm.device", "").as_dict() | {"lane": lane})  # fmt: skip


class Children:
    """A transport whose first seat answers and whose second is empty."""

    def ask(
        self,
        key: AskKey,
        common: bytes,
        own: Mapping[int, bytes],
        patience: Patience | None = None,
        check: Check | None = None,
    ) -> Mapping[int, Answer]:
        return {0: Answer("answered", b"four"), 1: Answer("absent")}

    def members(self) -> frozenset[int]:
        return frozenset({0})

    def close(self) -> None:
        pass


@pytest.fixture
def progress() -> Progress:
    """An edge that was asked in two rounds, and has asked its children as often."""
    out = Progress("edge0", "edge")
    transport = out.transport(NAMES, Children())

    def handle(key: AskKey, common: bytes, own: bytes) -> bytes:
        transport.ask(key, common, {0: b"", 1: b"x"})
        return b"answer"

    watched = out.handler("edge0", handle)
    out.start()
    for request in (key(0), key(0, "score"), key(1)):
        watched(request, b"common", b"own")
    return out


@pytest.fixture
def control(progress: Progress) -> Iterator[Control]:
    evicted: list[str] = []
    out = Control(progress, evict=evicted.append)
    yield out
    out.close()


def seats(progress: Progress) -> dict[str, dict[str, object]]:
    return {seat["seat"]: seat for seat in progress.as_dict()["seats"]}


def test_progress_counts_rounds_bytes_and_absences(progress: Progress) -> None:
    told = seats(progress)
    assert told["edge0"]["rounds"] == 2  # scores are no round
    assert told["edge0"]["up_bytes"] == 3 * len(b"answer")
    assert told["edge0"]["last_key"] == "1/train/0/algorithm.device"
    assert told["device0"]["down_bytes"] == 3 * len(b"common")
    assert told["device1"]["asks"] == {"absent": 3}
    assert (told["device0"]["state"], told["device1"]["state"]) == ("waiting", "empty")
    assert told["device1"]["lag"] is None


def test_metrics_are_in_the_format_of_prometheus(progress: Progress) -> None:
    line = re.compile(r'covey_\w+\{(\w+="[^"\n]*",?)+\} [0-9.e+-]+')
    lines = progress.prometheus().splitlines()
    values = [text for text in lines if not text.startswith("#")]
    assert all(line.fullmatch(text) for text in values)
    assert 'covey_rounds_total{process="edge0",seat="device0"} 2' in values
    assert 'covey_state{process="edge0",state="waiting"} 1' in values
    types = [text.split()[2] for text in lines if text.startswith("#")]
    assert len(types) == len(set(types))


def test_a_paused_node_begins_nothing_until_it_is_resumed(progress: Progress) -> None:
    progress.pause()
    assert progress.state == "paused"
    transport = progress.transport(NAMES, Children())
    asking = threading.Thread(target=transport.ask, args=(key(2), b"", {0: b""}))
    asking.start()
    asking.join(0.05)
    assert asking.is_alive()
    transport.ask(key(2, "order"), b"", {0: b""})  # a commit is no new work
    progress.resume()
    asking.join(5)
    assert not asking.is_alive()


def test_a_draining_node_ends_what_is_under_way(progress: Progress) -> None:
    progress.pause()
    progress.drain()
    assert progress.state == "draining"
    answers = progress.transport(NAMES, Children()).ask(key(2), b"", {0: b""})
    assert answers[0].status == "answered"


def test_the_command_shows_every_seat(control: Control) -> None:
    node = f"127.0.0.1:{control.port}"
    shown = covey("ctl", "status", "--node", node)
    assert shown.code == 0, shown.err
    words = {line.split()[0]: line.split() for line in shown.out.splitlines()}
    assert set(words) == {"seat", "edge0", "device0", "device1"}
    assert words["device1"][1] == "empty"
    assert words["device1"][-3:] == ["3", "0", "-"]  # absent, bad, no lag
    assert json.loads(covey("ctl", "status", "--node", node, "--json").out)[0]["tier"] == "edge"


def test_orders_of_the_command_are_obeyed(control: Control) -> None:
    node = ("--node", f"127.0.0.1:{control.port}")
    assert covey("ctl", "pause", *node).code == 0
    assert control.progress.state == "paused"
    assert covey("ctl", "resume", *node).code == 0
    assert control.progress.as_dict()["state"] == "waiting"
    assert "evicted device1" in covey("ctl", "evict", "device1", *node).out
    refused = covey("ctl", "evict", "device7", *node)
    assert (refused.code, "device0, device1" in refused.err) == (2, True)
    assert covey("ctl", "stop", *node).code == 0
    assert control.progress.draining


def test_a_node_that_is_not_there_is_an_error_that_says_so() -> None:
    result = covey("ctl", "status", "--node", "127.0.0.1:1")
    assert result.code == 2
    assert "is the node running" in result.err


def status_of(control: Control, method: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", control.port, timeout=5)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def test_pages_of_a_browser_are_refused(control: Control) -> None:
    assert status_of(control, "GET", "/status", {"Host": "evil.example:80"}) == 403
    assert status_of(control, "POST", "/stop", {}) == 404
    assert status_of(control, "GET", "/../etc", {}) == 404
    assert not control.progress.draining


def test_beyond_loopback_only_the_operator_is_heard(progress: Progress, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    with pytest.raises(ConfigError, match="needs a certificate"):
        Control(progress, host="0.0.0.0")
    authority = Authority.create(tmp_path / "certs")
    other = Authority.create(tmp_path / "other")
    identity = Identity(authority.issue("edge0"))
    operator = authority.issue("operator")
    device = authority.issue("device0")
    control = Control(progress, host="0.0.0.0", identity=identity)
    place = ("127.0.0.1", control.port)
    try:
        assert json.loads(call("GET", place, "/status", operator))["process"] == "edge0"
        with pytest.raises(ConfigError, match="certificate of operator"):
            call("GET", place, "/status", device)
        with pytest.raises(ConfigError, match="no answer"):
            call("GET", place, "/status", other.issue("operator"))
        with pytest.raises(ConfigError, match="no answer"):
            call("GET", place, "/status")  # without TLS
        authority.revoke("operator")
        with pytest.raises(ConfigError):
            call("POST", place, "/stop", operator)
        assert not progress.draining
    finally:
        control.close()


def test_a_signal_drains_and_a_second_one_ends(progress: Progress) -> None:
    stream = io.StringIO()
    with drained(progress, EventLog("edge0", stream)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert progress.wait_for_drain(5)
        assert progress.state == "draining"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert json.loads(stream.getvalue())["signal"] == "SIGTERM"


def test_logs_are_lines_of_json_without_secrets() -> None:
    stream = io.StringIO()
    log = EventLog("server", stream)
    pem = "-----BEGIN PRIVATE KEY-----\nabc"
    log.warning("refused", peer="10.0.0.1", why="line\nbreak", token="abc", text=pem, data=b"abc")
    log.info("done", seats=["a", pem], long="x" * 10_000)
    lines = stream.getvalue().splitlines()
    first, second = map(json.loads, lines)
    assert (first["token"], first["text"], first["data"]) == (HIDDEN, HIDDEN, "(3 bytes)")
    assert second["seats"] == ["a", HIDDEN]
    assert len(lines[1]) < 1000
    assert "abc" not in stream.getvalue()
