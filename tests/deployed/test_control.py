"""The control port: status, metrics and orders, for operators alone; and logs without secrets."""

import errno
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from covey.deployed.commands import ctl
from covey.deployed.commands.ctl_screen import merged, waiting
from covey.deployed.operate import control as control_module
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import KEY, Identity
from covey.deployed.operate.control import Control, drained
from covey.deployed.operate.control_port import (
    AnotherProcess,
    ControlPort,
    NotListening,
    ports_of,
)
from covey.deployed.operate.events import HIDDEN, EventLog
from covey.deployed.operate.progress import Progress, SeatProgress
from covey.deployed.transport.transport import Answer, AskKey
from covey.errors import ConfigError, TransportError
from tests.cli.command import covey, exits
from tests.deployed.members import call
from tests.deployed.tree import Silent

NAMES = {0: "device0", 1: "device1"}


def key(round: int, lane: str = "train") -> AskKey:
    return AskKey.from_dict(AskKey("r", round, "train", 0, "algorithm.device", "").as_dict() | {"lane": lane})  # fmt: skip


class Children(Silent):
    """A transport whose first seat answers and whose second is empty."""

    def ask(self, *_: Any) -> Mapping[int, Answer]:
        return {0: Answer("answered", b"four"), 1: Answer("absent")}

    def members(self) -> frozenset[int]:
        return frozenset({0})


@pytest.fixture
def progress() -> Progress:
    """An edge that was asked in two rounds, and has asked its children as often."""
    out = Progress("edge0", "edge")
    transport = out.transport(NAMES, Children())

    def handle(key: AskKey, common: bytes, own: bytes) -> bytes:
        transport.ask(key, common, {0: b"", 1: b"x"})
        return b"answer"

    watched = out.handler("edge0", handle)
    out.started = True
    for request in (key(0), key(0, "score"), key(1)):
        watched(request, b"common", b"own")
    return out


@pytest.fixture
def control(progress: Progress, tmp_path: Path) -> Iterator[Control]:
    evicted: list[str] = []
    out = Control(progress, state=tmp_path / "state", evict=evicted.append)
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
    assert 'covey_rounds_total{process="edge0",seat="device0"} 2.0' in values
    assert 'covey_state{process="edge0",state="waiting"} 1.0' in values
    types = [text.split()[2] for text in lines if text.startswith("# TYPE")]
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
    shown = exits(0, "ctl", "status", "--node", node)
    words = {line.split()[0]: line.split() for line in shown.out.splitlines()}
    assert set(words) == {"seat", "edge0", "device0", "device1"}
    assert words["device1"][1] == "empty"
    assert words["device1"][-3:] == ["3", "0", "-"]  # absent, bad, no lag
    assert json.loads(covey("ctl", "status", "--node", node, "--json").out)[0]["tier"] == "edge"


def test_an_edge_stands_above_its_devices(progress: Progress) -> None:
    """Also where the server does not run, whose status names all edges first."""
    server = {"process": "server", "state": "not running", "seats": []}
    seats = [seat["seat"] for seat in merged([server, progress.as_dict()])]
    assert seats == ["server", "edge0", "device0", "device1"]


def test_orders_of_the_command_are_obeyed(control: Control) -> None:
    node = ("--node", f"127.0.0.1:{control.port}")
    exits(0, "ctl", "pause", *node)
    assert control.progress.state == "paused"
    exits(0, "ctl", "resume", *node)
    assert control.progress.as_dict()["state"] == "waiting"
    assert "evicted device1" in covey("ctl", "evict", "device1", *node).out
    assert "device0, device1" in exits(2, "ctl", "evict", "device7", *node).err
    exits(0, "ctl", "stop", *node)
    assert control.progress.draining


def test_a_node_that_is_not_there_is_an_error_that_says_so() -> None:
    assert "is the node running" in exits(2, "ctl", "status", "--node", "127.0.0.1:1").err


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


def test_beyond_loopback_only_the_operator_is_heard(
    progress: Progress, tmp_path: Path, authority: Authority
) -> None:
    with pytest.raises(ConfigError, match="needs a certificate"):
        Control(progress, host="0.0.0.0")
    other = Authority.create(tmp_path / "other")
    identity = Identity(authority.issue("edge0"))
    operator = authority.issue("operator")
    device = authority.issue("device0")
    with closing(Control(progress, host="0.0.0.0", identity=identity)) as control:
        place = ("127.0.0.1", control.port)
        assert json.loads(call("GET", place, "/status", operator))["process"] == "edge0"
        with pytest.raises(ConfigError, match="certificate of operator, not of device0"):
            call("GET", place, "/status", device)
        with pytest.raises(ConfigError, match="no answer"):
            call("GET", place, "/status", other.issue("operator"))
        with pytest.raises(ConfigError, match="no answer"):
            call("GET", place, "/status")  # without TLS
        authority.revoke("operator")
        with pytest.raises(ConfigError):
            call("POST", place, "/stop", operator)
        assert not progress.draining


def test_a_signal_drains_and_a_second_one_ends(progress: Progress) -> None:
    stream = io.StringIO()
    with drained(progress, EventLog("edge0", stream)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert progress.wait_for_drain(5)
        assert progress.state == "draining"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert json.loads(stream.getvalue())["signal"] == "SIGTERM"


def test_a_signal_while_a_line_is_written_stops_nothing_else(progress: Progress) -> None:
    """The handler runs in this thread, which has the lock of the log then."""

    class Signalled(io.StringIO):
        def write(self, text: str) -> int:
            if "round" in text:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().write(text)

    def stuck(number: int, frame: object) -> None:
        raise AssertionError("the handler waits for its own thread")

    before = signal.signal(signal.SIGALRM, stuck)
    signal.alarm(10)
    try:
        log = EventLog("server", Signalled())
        with drained(progress, log):
            log.info("round", round=1)
            assert progress.wait_for_drain(5)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


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


def test_a_log_that_cannot_be_written_ends_nothing() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    EventLog("server", Full()).info("round", round=1)
    closed = io.StringIO()
    closed.close()
    EventLog("server", closed).error("failed", text="why")


def test_the_status_of_many_children_is_whole(progress: Progress) -> None:
    for number in range(6000):
        progress.seats[f"device{number}"] = SeatProgress(own=False)
    with closing(Control(progress)) as control:
        shown = covey("ctl", "status", "--node", f"127.0.0.1:{control.port}", "--json")
        assert len(json.loads(shown.out)[0]["seats"]) > 6000


def test_an_order_to_a_strange_seat_is_refused(control: Control) -> None:
    for name in ("gerät", "a b", "x\ny", "../stop"):
        refused = exits(2, "ctl", "evict", name, "--node", f"127.0.0.1:{control.port}")
        assert "its children: device0, device1" in refused.err
    assert status_of(control, "POST", "*", {"X-Covey-Control": "1"}) == 404


def planned(folder: Path, **ports: int) -> Path:
    """A folder of node files with these control ports."""
    for name, port in ports.items():
        text = f'[node]\nname = "{name}"\nseats = ["{name}"]\nstate = "s"\ncontrol_port = {port}\n'
        (folder / name).mkdir(parents=True)
        (folder / name / "node.toml").write_text(text, encoding="utf-8")
    return folder


def test_orders_of_a_plan_reach_the_nodes_that_are_meant(control: Control, tmp_path: Path) -> None:
    """On a machine with one node of a plan, the ports of the others are its own port too."""
    plan = planned(tmp_path / "fleet", server=control.port, edge0=control.port, edge1=1)
    paused = exits(0, "ctl", "pause", "--plan", plan)
    assert "edge0: paused" in paused.out
    assert "server: it is not running on this machine\n" in paused.out
    assert "edge1: it is not running\n" in paused.out
    shown = exits(0, "ctl", "status", "--plan", plan)
    states = {line.split()[0]: line for line in shown.out.splitlines()}
    assert "paused" in states["edge0"]
    assert "not running" in states["edge1"]
    assert "not running here: edge1, server" in shown.out
    stopped = covey("ctl", "stop", "--plan", planned(tmp_path / "ended", edge1=1))
    assert (stopped.code, stopped.out) == (0, "edge1: it is not running\n")


def test_nodes_of_several_machines_with_one_port_are_in_the_order_of_their_names(
    tmp_path: Path,
) -> None:
    names = [f"edge{number}" for number in range(8)]
    plan = planned(tmp_path, **dict.fromkeys(reversed(names), 9443))
    assert [port.name for port in ports_of(None, plan, None)] == names


def test_a_node_of_a_plan_that_refuses_an_order_is_named(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are given the order too, and the command fails."""
    plan = planned(tmp_path / "fleet", server=1, edge0=control.port, edge1=2)

    real = ControlPort.call

    def refusing(port: ControlPort, method: str, path: str) -> str:
        if port.address == ("127.0.0.1", 2):
            raise ConfigError("no answer")
        return real(port, method, path)

    monkeypatch.setattr(ControlPort, "call", refusing)
    for order in ("pause", "resume", "stop"):
        result = exits(2, "ctl", order, "--plan", plan)
        assert "edge1: no answer" in result.err
        assert "server: it is not running\n" in result.out
        assert "edge0: " in result.out
    nobody = covey("ctl", "pause", "--plan", planned(tmp_path / "ended", server=1))
    assert (nobody.code, "nothing was done" in nobody.err) == (2, True)


def test_a_server_that_ends_its_round_for_long_is_named(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctl, "DRAIN_SECONDS", 0)
    monkeypatch.setattr(f"{ControlPort.__module__}.DRAIN_SECONDS", 0)
    stopped = exits(0, "ctl", "stop", "--plan", planned(tmp_path / "fleet", edge0=control.port))
    assert "edge0: still ends its round after 0 s" in stopped.out


def test_a_server_that_is_busy_has_not_ended(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its control port may not answer in time; the others must not end before it."""
    asked: list[str] = []
    real = ControlPort.call

    def busy(port: ControlPort, method: str, path: str) -> str:
        asked.append(f"{method} {path}")
        if path in ("/stop", "/token"):
            return real(port, method, path)
        if len(asked) < 5:
            raise ConfigError("no answer (timed out)")
        raise NotListening("nothing listens")

    monkeypatch.setattr(ControlPort, "call", busy)
    monkeypatch.setattr(f"{ControlPort.__module__}._POLL", 0)
    exits(0, "ctl", "stop", "--plan", planned(tmp_path / "fleet", edge0=control.port))
    assert asked == ["POST /stop", "GET /token", *["GET /status"] * 3]


def test_a_host_that_is_no_name_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    operator = Authority.create(tmp_path / "certs").issue("operator")
    words = ("--node", "edge0@edge0..example:9443", "--certs", operator)
    assert "no answer from edge0..example:9443" in exits(2, "ctl", "status", *words).err


def test_a_parent_that_cannot_be_asked_is_told_with_its_reason() -> None:
    words = ["--node", "edge0.example:9443", "--node", "edge1.example:9443"]
    result = exits(2, "ctl", "evict", "device0", *words)
    assert "edge0.example:9443 is not on this machine; give --certs" in result.err


def test_a_plan_finds_the_parent_of_a_seat(control: Control, tmp_path: Path) -> None:
    plan = planned(tmp_path / "fleet", edge0=control.port, edge1=1)
    evicted = covey("ctl", "evict", "device1", "--plan", plan).out
    assert "evicted device1" in evicted
    again = f"covey ctl admit device1 --node 127.0.0.1:{control.port} lets it back in"
    assert again in evicted  # as typed, it reaches the same parent
    strange = covey("ctl", "evict", "device7", "--plan", plan)
    assert (strange.code, "their children: device0, device1" in strange.err) == (2, True)
    ended = planned(tmp_path / "ended", edge0=1, edge1=1)
    nobody = covey("ctl", "admit", "device1", "--plan", ended)
    assert (nobody.code, "is not running on this machine" in nobody.err) == (2, True)


def test_the_screen_says_how_to_let_a_seat_in_again() -> None:
    seats = [
        {"seat": "device0", "state": "evicted", "bad_reason": None},
        {"seat": "device1", "state": "evicted", "bad_reason": "a row with a NaN."},
        {"seat": "device2", "state": "empty", "bad_reason": None},
        {"seat": "device3", "state": "empty", "turned_away": "its certificate is revoked"},
    ]
    status = {"process": "edge0", "state": "working", "seats": seats, "control": "127.0.0.1:7"}
    lines = waiting([status | {"waits_for": [seat["seat"] for seat in seats]}])
    assert lines == [
        "edge0 waits for device3, whose process it refuses: its certificate is revoked",
        "edge0 waits for device2: no process has taken the seat yet.",
        "edge0 waits for device0, which an operator evicted; end that: "
        "covey ctl admit device0 --node 127.0.0.1:7",
        "edge0 waits for device1, which is evicted: a row with a NaN.",
        "  mend its node, then: covey ctl admit device1 --node 127.0.0.1:7",
    ]


def test_a_plan_says_where_its_control_ports_are(control: Control, tmp_path: Path) -> None:
    plan = planned(tmp_path / "fleet", edge0=control.port)
    file = plan / "edge0" / "node.toml"
    file.write_text(
        file.read_text(encoding="utf-8") + 'control_host = "localhost"\n', encoding="utf-8"
    )
    exits(0, "ctl", "pause", "--plan", plan)
    file.write_text("[node]\n", encoding="utf-8")
    assert f"{file}: node." in exits(2, "ctl", "status", "--plan", plan).err


def test_a_control_port_with_a_revoked_certificate_is_refused(
    progress: Progress, tmp_path: Path, authority: Authority
) -> None:
    identity = Identity(authority.issue("edge0"))
    operator = authority.issue("operator")
    stolen = shutil.copytree(identity.folder, tmp_path / "stolen")
    with closing(Control(progress, host="0.0.0.0", identity=Identity(stolen))) as control:
        authority.revoke("edge0")
        with pytest.raises(ConfigError, match="is revoked"):
            call("POST", ("127.0.0.1", control.port), "/stop", operator)
        assert not progress.draining


def test_a_control_port_must_show_the_seat_that_is_meant(
    progress: Progress, tmp_path: Path, authority: Authority
) -> None:
    """A device has a certificate of the same authority, and may not answer for its edge."""
    operator = authority.issue("operator")
    with closing(
        Control(progress, host="0.0.0.0", identity=Identity(authority.issue("device7")))
    ) as control:
        place = f"127.0.0.1:{control.port}"
        certs = ("--certs", operator)
        plan = planned(tmp_path / "fleet", edge0=control.port)
        with pytest.raises(AnotherProcess, match="shows the certificate of device7, not of edge0"):
            call("POST", ("127.0.0.1", control.port), "/stop", operator, "edge0", ("edge0",))
        meant = covey("ctl", "stop", "--node", f"edge0@{place}", *certs)
        assert (meant.code, "certificate of device7, not of edge0" in meant.err) == (2, True)
        stopped = covey("ctl", "stop", "--plan", plan, *certs)
        assert "it is not running on this machine" in stopped.out
        assert not progress.draining
        exits(0, "ctl", "status", "--node", f"device7@{place}", *certs)
    anybody = covey("ctl", "stop", "--node", "edge0.example:9443", *certs)
    assert "give --node SEAT@edge0.example:9443" in anybody.err
    unchecked = covey("ctl", "stop", "--node", f"edge0@{place}")
    assert "a seat is checked against a certificate; give --certs" in unchecked.err


def test_a_control_port_of_ipv6(progress: Progress) -> None:
    try:
        control = Control(progress, host="::1")
    except TransportError as error:  # this machine has none
        pytest.skip(str(error))
    try:
        assert call("GET", ("::1", control.port), "/status")
    finally:
        control.close()


def test_a_peer_that_sends_a_byte_now_and_then_is_cut(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "SECONDS", 0.3)
    until = time.monotonic() + 5
    with socket.create_connection(("127.0.0.1", control.port), timeout=5) as peer:
        with suppress(ConnectionError):
            while time.monotonic() < until:
                peer.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() < until
    assert call("GET", ("127.0.0.1", control.port), "/status")


def test_the_screen_says_that_a_certificate_ends_soon(
    progress: Progress, authority: Authority
) -> None:
    identity = Identity(authority.issue("edge0", days=3))
    progress.certificate_left = identity.seconds_left
    soon = "edge0: its certificate ends in 3.0 days; covey certs renew edge0"
    assert waiting([progress.as_dict()]) == [soon]
    assert 'covey_certificate_left_seconds{process="edge0"} 259' in progress.prometheus()
    ended = waiting([progress.as_dict() | {"certificate_left": -86_400.0}])
    assert ended == ["edge0: its certificate ended 1.0 days ago; covey certs renew edge0"]
    authority.renew("edge0")
    assert waiting([progress.as_dict()]) == []
    (identity.folder / "certificate.pem").unlink()
    assert progress.as_dict()["certificate_left"] is None


def test_signals_that_cannot_be_taken_leave_nothing_open(progress: Progress) -> None:
    """Python lets the main thread alone take signals."""
    errors = []

    def elsewhere() -> None:
        try:
            with drained(progress, EventLog("edge0", io.StringIO())):
                pass
        except ValueError as error:
            errors.append(str(error))

    before = open_pipes()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]
    assert open_pipes() == before
    assert "covey-signals" not in [thread.name for thread in threading.enumerate()]


def open_pipes() -> set[str]:
    """The pipes of this process, where the system tells them."""
    out = set()
    for path in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            out.add(os.readlink(path))
    return {target for target in out if target.startswith("pipe:")}


def test_a_control_port_without_a_valid_certificate_listens_nowhere(
    progress: Progress, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    identity = Identity(Authority.create(tmp_path).issue("edge0"))
    (identity.folder / KEY).write_text("none", encoding="utf-8")
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConfigError, match="no private key") as raised:
        Control(progress, host="0.0.0.0", port=port, identity=identity)
    socket.create_server(("0.0.0.0", port)).close()  # while the error is still looked at
    del raised


def test_a_seat_that_comes_during_a_look_breaks_nothing(progress: Progress) -> None:
    """The control port answers while a process still makes its nodes."""

    class Slow(SeatProgress):
        """A seat during whose look another thread adds seats."""

        @property
        def awaited(self) -> bool:
            thread.start()
            thread.join(0.1)
            return False

    def add() -> None:
        progress.handler("late", lambda key, common, own: b"")
        progress.transport({7: "later"}, Children())

    thread = threading.Thread(target=add)
    progress.seats["device0"] = Slow(own=False)
    assert "late" not in str(progress.as_dict())
    thread.join()
    assert {"late", "later"} <= set(progress.seats)


def test_a_draining_node_is_not_paused(control: Control) -> None:
    """It would wait in the middle of its end."""
    place = ("127.0.0.1", control.port)
    call("POST", place, "/stop")
    with pytest.raises(ConfigError, match="is draining"):
        call("POST", place, "/pause")
    control.progress.pause()
    control.progress.gate()
    assert control.progress.state == "draining"


def test_silent_connections_make_room_for_an_operator(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a thread and a descriptor of the node, for as long as a request may take."""
    monkeypatch.setattr(control_module, "_MOST", 4)
    place = ("127.0.0.1", control.port)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(place, 5)) for _ in range(10)]
        assert json.loads(call("GET", place, "/status"))["process"] == "edge0"
        assert silent[0].recv(1) == b""  # the oldest was ended
        assert sum(connection_ended(connection) for connection in silent) >= 6
        assert not connection_ended(silent[-1])


def connection_ended(connection: socket.socket) -> bool:
    """Whether the other side has ended a connection that is silent otherwise."""
    connection.settimeout(0.1)
    with suppress(TimeoutError):
        return connection.recv(1) == b""
    return False


def test_an_error_of_a_device_moves_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a control port answers, and as a device may have said."""
    said = "device1: \x1b[2J\x1b]8;;http://evil\x07[/red] \x9b31m"
    monkeypatch.setattr(ControlPort, "call", lambda *_: said)
    assert exits(0, "ctl", "pause").out == "127.0.0.1:9443: device1: [2J]8;;http://evil[/red] 31m\n"

    def fails(*_: object) -> str:
        raise ConfigError(said)

    monkeypatch.setattr(ControlPort, "call", fails)
    assert covey("ctl", "pause").err == "error: device1: [2J]8;;http://evil[/red] 31m\n"
