"""A fleet goes on without its worst member, and tells how it is."""

import http.client
import io
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import covey
from covey import Algorithm, Nodes, Rows
from covey.deployed.node.disk_store import DiskStore
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.replay import replay
from covey.deployed.node.server_run import finish, missing_of, server_run
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.operate.control import Control
from covey.deployed.operate.events import EventLog
from covey.deployed.operate.progress import Progress, SeatProgress
from covey.deployed.plan.seats import check_name
from covey.deployed.transport.transport import AskKey, Patience
from covey.errors import ConfigError, CoveyError, DivergedError, OtherExperiment, ProgramError
from covey.runtimes.alone.envelope import seal
from tests.deployed.members import call
from tests.deployed.tree import until
from tests.given import drained
from tests.laws.cases import CASES, PLAIN, Case, differences, experiment
from tests.laws.test_deployed import rows_of
from tests.laws.test_loopback import Failing

# An error of one child


@pytest.mark.parametrize("how", ["value", "diverged"])
def test_a_quorum_goes_on_without_a_device_that_fails(how: str, local: LocalTree) -> None:
    """Its error is a bad answer: it is counted, and the replay without it is equal."""
    case = Case("Failing", Failing(how=how))
    local.patience = {"edge": Patience(20.0, 1)}
    run = drained(server_run(experiment(case), local))
    finish(run)
    (reason,) = local.transport_above("device", 5).refused(5)
    assert "an error of its own, " in reason
    assert "device 5" in reason
    missing = missing_of(local.nodes["server", 0].database)
    assert [(entry.number, entry.round, entry.status) for entry in missing] == [(5, 1, "bad")]
    rows = rows_of(run)
    local.close()
    again = drained(replay(experiment(case), missing))
    assert differences(rows_of(again), rows) == []


@pytest.mark.parametrize("kind", ["DivergedError", "nonsense"])
def test_one_lying_error_stops_nobody(kind: str, local: LocalTree) -> None:
    local.patience = {"server": Patience(20.0, 3)}
    run = covey.run(experiment(PLAIN["PFedMe"], rounds=3), runtime=local)
    transport = local.transport_above("device", 5)
    honest = local.nodes["device", 5].answer

    def lies(key: AskKey, common: bytes, own: bytes) -> bytes:
        if key.lane == "train" and key.round:
            return seal({"error": [kind, "device 2: boom"]}, [])
        return honest(key, common, own)

    transport.take(5, lies)
    drained(run)
    assert run.round == 3
    assert len(transport.refused(5)) == 2


@dataclass(frozen=True)
class Broken(Algorithm):
    """FedAvg with a fault that some devices meet in the second round."""

    sends: ClassVar[str] = "its model"
    devices: int = 8

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Rows) -> Rows:
        if me.round == 1 and bool((me.ids < self.devices).any()):
            raise ValueError("a fault of the program")
        return w + 1


@pytest.mark.parametrize(("devices", "ends"), [(4, False), (5, True), (8, True)])
def test_an_error_that_more_than_half_give_ends_the_run(
    devices: int, ends: bool, local: LocalTree
) -> None:
    """It is a fault of the program, which nobody but its author can mend."""
    local.patience = {"server": Patience(20.0, 1)}
    run = covey.run(experiment(Case("Broken", Broken(devices))), runtime=local)
    next(run)
    if ends:
        with pytest.raises(ProgramError, match=r"device \d: ValueError: a fault of the program"):
            next(run)
    else:
        next(run)
        assert [len(local.transport_above("device", d).refused(d)) for d in range(8)] == [
            1, 1, 1, 1, 0, 0, 0, 0
        ]  # fmt: skip


@pytest.mark.parametrize(("how", "kind"), [("value", ProgramError), ("diverged", DivergedError)])
def test_without_a_quorum_an_error_of_one_device_ends_the_run(
    how: str, kind: type[CoveyError], local: LocalTree
) -> None:
    run = covey.run(experiment(Case("Failing", Failing(how=how))), runtime=local)
    next(run)
    with pytest.raises(kind):
        next(run)


def test_a_device_that_could_not_follow_an_order_trains_only_after_it(
    local: LocalTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold the rows of a later round, and call them the chosen ones."""
    local.patience = {"server": Patience(0.5, 3)}
    run = server_run(experiment(CASES["PFedMe"], rounds=3, score_every=1), local)
    device = local.nodes["device", 2]
    hold = DiskStore.hold
    full = [True]

    def on_a_full_disk(store: DiskStore, label: str, columns: Any) -> None:
        if full and store.place == device.place:
            raise OSError("No space left on device")
        hold(store, label, columns)

    monkeypatch.setattr(DiskStore, "hold", on_a_full_disk)
    next(run)
    next(run)
    transport = local.transport_above("device", 2)
    first, *later = transport.refused(2)
    assert "No space left on device" in first
    assert any("could not follow an order" in reason for reason in later)
    next(run)
    missing = missing_of(local.nodes["server", 0].database)  # of the rounds that are good
    assert {(entry.number, entry.round, entry.lane) for entry in missing} >= {(2, 1, "train")}


# Strangers

FLOOD = """
import socket, sys, time
from pathlib import Path
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.transport.grpc_transport import GrpcTransport

identity = Identity(Authority.create(Path(sys.argv[1])).issue("edge0"))
parent = GrpcTransport("127.0.0.1:0", {"device0": 0}, fingerprint="f", identity=identity)
host, _, port = parent.address.rpartition(":")
for words in (b"GET / HTTP/1.1\\r\\n\\r\\n", bytes(64), b""):
    for _ in range(10):
        with socket.create_connection((host, int(port)), 5) as stranger:
            stranger.sendall(words)
until = time.monotonic() + 20
while parent.knocks["handshakes"] < 30 and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.2)
print(dict(parent.knocks))
parent.close()
"""


def test_strangers_are_counted_and_fill_no_log(tmp_path: Path) -> None:
    """The core of gRPC would write a line for each, and it can be thousands a second."""
    pytest.importorskip("grpc")
    pytest.importorskip("cryptography")
    words = [sys.executable, "-c", FLOOD, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == "{'handshakes': 30, 'streams': 0}\n"
    assert done.stderr == ""


def test_strangers_at_the_control_port_fill_no_log(
    progress: Progress, authority: Authority
) -> None:
    identity = Identity(authority.issue("edge0"))
    stream = io.StringIO()
    with closing(
        Control(progress, host="0.0.0.0", identity=identity, log=EventLog("edge0", stream))
    ) as control:
        for words in (b"GET / HTTP/1.1\r\n\r\n", bytes(64)):
            with socket.create_connection(("127.0.0.1", control.port), 5) as stranger:
                stranger.sendall(words)
        until(lambda: progress.knocks["control_failures"] == 2)
    assert stream.getvalue() == ""
    counted = 'covey_knocks_total{kind="control_failures",process="edge0"} 2.0'
    assert counted in progress.prometheus()


# The control port


@pytest.fixture
def progress() -> Progress:
    """An edge with one child."""
    out = Progress("edge0", "edge")
    out.seats["device0"] = SeatProgress(own=False)
    return out


def asked(control: Control, method: str, path: str, **headers: str) -> tuple[int, str]:
    """What a local user gets without covey ctl."""
    connection = http.client.HTTPConnection("127.0.0.1", control.port, timeout=5)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connection):
        connection.request(method, path, headers=named)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_orders_on_loopback_are_for_who_can_read_the_state_folder(
    progress: Progress, tmp_path: Path
) -> None:
    evicted: list[str] = []
    state = tmp_path / "state"
    with closing(Control(progress, state=state, evict=evicted.append)) as control:
        token = state / "control.token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert asked(control, "GET", "/token") == (200, str(token))  # where, and not what
        secret = token.read_text(encoding="ascii")
        for guess in ("1", secret[:-1], secret[:-1] + "é"):
            for path in ("/pause", "/evict/device0", "/stop"):
                assert asked(control, "POST", path, X_Covey_Control=guess)[0] == 403
        assert (progress.state, evicted) == ("starting", [])
        place = ("127.0.0.1", control.port)
        call("POST", place, "/evict/device0")
        assert evicted == ["device0"]
        token.write_text("x", encoding="ascii")
        with pytest.raises(ConfigError, match=rf"{token} is not of the control port"):
            call("POST", place, "/pause")
        token.unlink()
        with pytest.raises(ConfigError, match="for the user of the node, and for root"):
            call("POST", place, "/pause")
    with closing(Control(progress, state=state)) as control:
        assert token.read_text(encoding="ascii") != secret  # of a process that has ended


def test_a_process_on_a_port_does_not_get_the_token_of_another_node(
    progress: Progress, tmp_path: Path
) -> None:
    """It names the folder of the node that it wants to give orders to."""
    with closing(Control(progress, state=tmp_path)), closing(Control(progress)) as other:
        other.state = tmp_path
        with pytest.raises(ConfigError, match="is not of the control port"):
            call("POST", ("127.0.0.1", other.port), "/pause")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_orders_nothing(progress: Progress) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with closing(Control(progress, state=Path(folder))) as control:
            code = (
                "import http.client\n"
                f"control = http.client.HTTPConnection('127.0.0.1', {control.port}, timeout=5)\n"
                "control.request('POST', '/pause', headers={'X-Covey-Control': '1'})\n"
                "print(control.getresponse().status)\n"
                f"open({str(Path(folder) / 'control.token')!r})\n"
            )
            words = ["/usr/bin/env", "python3", "-c", code]
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=30, user=65534, group=65534
            )
    assert done.stdout == "403\n"
    assert "Permission denied" in done.stderr
    assert progress.state == "starting"


def test_an_observer_looks_and_orders_nothing(progress: Progress, authority: Authority) -> None:
    observer = authority.issue("observer")
    identity = Identity(authority.issue("edge0"))
    with closing(Control(progress, host="0.0.0.0", identity=identity)) as control:
        place = ("127.0.0.1", control.port)
        for path in ("/status", "/metrics", "/healthz"):
            assert call("GET", place, path, observer)
        with pytest.raises(ConfigError, match="certificate of operator, not of observer"):
            call("POST", place, "/stop", observer)
        assert not progress.draining
        call("POST", place, "/stop", authority.issue("operator"))
        assert progress.draining
    with pytest.raises(ConfigError, match="'observer' cannot name a seat"):
        check_name("observer")


# Health


def test_a_process_says_whether_it_is_ready(progress: Progress, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with closing(Control(progress, state=state)) as control:
        assert asked(control, "GET", "/healthz") == (200, "ok\n")
        assert asked(control, "GET", "/readyz") == (503, "no seat is taken: it is starting\n")
        progress.started = True
        assert asked(control, "GET", "/readyz") == (200, "ok\n")
        connected = [False]
        progress.connected = lambda: connected[0]
        assert asked(control, "GET", "/readyz") == (503, "no seat is taken: it is dialling\n")
        connected[0] = True
        progress.certificate_left = lambda: -1.0
        assert asked(control, "GET", "/readyz") == (503, "its certificate has ended\n")
        progress.certificate_left = lambda: 1.0
        shutil.rmtree(state)
        code, text = asked(control, "GET", "/readyz")
        assert (code, "its disk takes nothing: " in text) == (503, True)
        state.mkdir()
        assert asked(control, "GET", "/readyz") == (200, "ok\n")
        progress.drain()
        assert asked(control, "GET", "/readyz")[0] == 503
        assert asked(control, "GET", "/healthz")[0] == 200  # it ends by itself


def test_metrics_have_the_run_and_say_what_they_are() -> None:
    seconds = [0.0]
    progress = Progress("server", "server", clock=lambda: seconds[0])
    run = covey.run(experiment(PLAIN["PFedMe"], rounds=2, score_every=2))
    for record in run:
        seconds[0] += 30
        progress.ended_round(record)
    text = progress.prometheus()
    lines = text.splitlines()
    assert 'covey_round{process="server"} 2.0' in lines
    assert 'covey_rounds_per_hour{process="server"} 120.0' in lines
    (scored,) = [
        line for line in lines if line.startswith('covey_accuracy{model="global",part="test"')
    ]
    assert float(scored.split()[-1]) == record.accuracy()
    assert 'covey_loss{model="personal",part="test",process="server"} ' in text
    families = {line.split("{")[0] for line in lines if not line.startswith("#")}
    for comment in ("HELP", "TYPE"):
        assert {line.split()[2] for line in lines if line.startswith(f"# {comment}")} == families
    seconds[0] += 60
    assert 'covey_rounds_per_hour{process="server"} 60.0' in progress.prometheus()  # it waits


# Versions


def test_a_run_stays_with_the_covey_that_began_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree that was stopped does not go on with another version, and does with its own."""
    wanted = experiment(PLAIN["PFedMe"], rounds=2)
    local = LocalTree(folder)
    next(server_run(wanted, local))
    local.close()
    monkeypatch.setattr(covey, "__version__", "9.9.9")
    upgraded = LocalTree(folder)
    with pytest.raises(OtherExperiment, match=r"go on with the covey that wrote it"):
        server_run(wanted, upgraded)
    upgraded.close()
    monkeypatch.undo()
    again = LocalTree(folder)
    run = drained(server_run(wanted, again))
    rows = rows_of(run)
    again.close()
    assert differences(rows_of(drained(covey.run(wanted))), rows) == []
