"""Processes of a deployed tree over sockets, and the commands that start them."""

import io
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import covey
from covey.deployed.files import deploy_local
from covey.deployed.files.deploy_local import StartProgress
from covey.deployed.node import assemble
from covey.deployed.node import process as process_module
from covey.deployed.node.node_rows import open_order
from covey.deployed.node.process import Member
from covey.deployed.operate.authority import Authority
from covey.deployed.operate.certificates import Identity
from covey.deployed.operate.events import EventLog
from covey.deployed.plan.local import LOG, LocalProcesses, free_ports, last_words
from covey.deployed.plan.plan import DeploySettings, processes_of
from covey.deployed.plan.plan_files import complete_certificates, write
from covey.deployed.plan.process import Process
from covey.errors import ConfigError
from covey.files.config import load
from covey.folder.terminal import Console
from covey.runs.experiment import Experiment
from covey.runs.run import Run
from covey.runtimes.alone.envelope import open_sealed
from covey.tree import Tree
from tests.cli.command import BASE, SMALL, Result, contents, exits, spawn
from tests.cli.command import covey as command
from tests.deployed.forked import start_by_forks
from tests.deployed.members import ADDRESS, member, planned, serving
from tests.deployed.tree import key

pytest.importorskip("grpc")
pytest.importorskip("cryptography")
SLOW = pytest.mark.skipif("COVEY_TEST_ALL" not in os.environ, reason="starts many processes")
LOCAL = (*SMALL, "rounds=3", "data.devices=4", "deploy.devices_per_process=2")


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load(BASE, [*LOCAL[1:]]).experiment(0)


@contextmanager
def tree(experiment: Experiment, folder: Path) -> Iterator[dict[str, Member]]:
    """All processes of a tree as threads of this one; the server's has to be run."""
    settings = DeploySettings(address=ADDRESS, devices_per_process=2)
    members = {
        described.name: member(described, experiment)
        for described in planned(experiment, folder, settings)
    }
    with serving(members):
        yield members


def facts(run: Run) -> list[dict[str, object]]:
    records = [record.as_dict() for record in run.history]
    for record in records:
        del record["spent"], record["seconds"]
    return records


def test_processes_over_sockets_are_the_simulator(experiment: Experiment, tmp_path: Path) -> None:
    simulated = covey.run(experiment)
    list(simulated)
    with tree(experiment, tmp_path) as members:
        run = members["server"].run()
        rounds = members["server"].rounds(run)
        next(rounds)
        members["server"].progress.drain()
        assert len(list(rounds)) == 0  # a drained server ends after its round
        assert len(run.history) == 1
        seats = {seat["seat"]: seat for seat in members["edge0"].progress.as_dict()["seats"]}
        assert seats["edge0"]["rounds"] == seats["device0"]["rounds"] == 1
        assert seats["device0"]["up_bytes"] > 0
        members["server"].close()
        again = members["server"] = member(members["server"].process, experiment)
        rest = again.run()
        assert len(list(again.rounds(rest))) == 2  # it goes on from its disk
        assert facts(rest) == facts(simulated)
        kept = rest.snapshot("personal", "last").rows
        assert kept.equal(simulated.snapshot("personal", "last").rows)


def test_a_local_plan_has_ports_of_its_own(experiment: Experiment, tmp_path: Path) -> None:
    processes = planned(experiment, tmp_path, DeploySettings(address=ADDRESS))
    ports = [one.control_port for one in processes]
    ports += [int(one.listen.rpartition(":")[2]) for one in processes if one.listen]
    assert len(set(ports)) == len(ports)
    listening = {one.name: one.listen for one in processes}
    for one in processes:
        if one.parent is not None:
            assert one.parent == listening[str(one.nodes[0].parent)]


def test_a_file_of_a_node_without_seats_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[node]\nname = "a"\nseats = []\nstate = "s"\n', encoding="utf-8")
    (tmp_path / "experiment.toml").write_text(load(BASE, [*LOCAL[1:]]).text(), encoding="utf-8")
    assert "node.seats = [] is empty" in exits(2, "node", file, "--insecure", "--data", "d.csv").err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "--name"),
        (["--name", "device9", "--parent", "localhost:1"], "no seat 'device9'"),
        (["--name", "device0"], "give --parent, the address of edge0"),
        (["--name", "server", "--parent", "localhost:1", "--listen", "h:1"], "leave out --parent"),
        (["--name", "edge1", "--parent", "localhost:1"], "give --listen"),
        (["--name", "device0", "--parent", "localhost:1", "--listen", "h:1"], "leave out --listen"),
        (["--name", "device0", "--parent", "localhost:99999"], "1 to 65535"),
        (["--name", "device0", "--parent", "edge0.example:1"], "without certificates"),
        (["--name", "device0", "--parent", "localhost:1", "--data", "d.csv"], "census"),
    ],
    ids=str,
)  # fmt: skip
def test_a_node_says_what_it_lacks(words: list[str], error: str, tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(load(BASE, [*LOCAL[1:]]).text(), encoding="utf-8")
    given = ["--insecure", "--experiment", file, "--state", tmp_path / "state"]
    assert error in exits(2, "node", *words, *given).err
    assert not (tmp_path / "state").exists()  # nothing was begun


def test_a_node_without_a_certificate_is_refused(tmp_path: Path) -> None:
    assert "certificate.pem" in exits(2, "node", "--name", "device0", "--certs", tmp_path).err


def test_a_node_with_the_certificate_of_another_is_refused(tmp_path: Path) -> None:
    folder = Authority.create(tmp_path / "certs").issue("device1")
    result = exits(2, "node", "--name", "device0", "--parent", "localhost:1", "--certs", folder)
    assert "certificate.pem is of device1; give --certs the folder of device0" in result.err


def test_a_node_waits_for_its_clock_or_a_renewal(tmp_path: Path) -> None:
    """Code 6: systemd starts it again, which it does not after an invalid file (code 2)."""
    folder = Authority.create(tmp_path / "certs").issue("device0", days=-1)
    result = exits(6, "node", "--name", "device0", "--parent", "localhost:1", "--certs", folder)
    assert "ended at" in result.err
    assert "the clock of this machine says" in result.err.replace("\n", " ")


def test_a_state_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(load(BASE, [*LOCAL[1:]]).text(), encoding="utf-8")
    words = ["--name", "device0", "--parent", "localhost:1", "--experiment", file, "--insecure"]
    words += ["--control-port", free_ports(1)[0]]
    result = exits(4, "node", *words, "--state", file / "state")
    assert f"cannot write {file}/state/device0: " in result.err


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"deadline": 3.0}, "give both"),
        ({"quorum": 1}, "give both"),
        ({"deadline": 3.0, "quorum": 3}, "node.quorum = 3: there are 2 children"),
    ],
)
def test_a_node_file_with_half_a_quorum_is_refused(settings: dict[str, Any], error: str) -> None:
    table = {"name": "edge0", "seats": ["edge0"], "state": "s", "parent": "a:1", "listen": "b:1"}
    with pytest.raises(ConfigError, match=error):
        Process.read(table | settings).placed(Tree.grouped([2, 1]))


def test_a_model_above_the_limit_of_a_message_is_refused_before_work(
    experiment: Experiment, tmp_path: Path
) -> None:
    """Before processes start; and by the server, which alone knows what nodes keep."""
    size = experiment.initial().nbytes
    beside = assemble._BESIDE
    with patch.object(assemble, "MAX_VALUE", beside + 3 * size - 1):
        with pytest.raises(ConfigError, match=r"a model of 0 MB is above 0 MB: 3 of them .*"):
            member(planned(experiment, tmp_path, DeploySettings(address=ADDRESS))[0], experiment)
        result = exits(2, "deploy", "local", BASE, *LOCAL[1:], "--out", tmp_path / "out")
        assert "lie in one message or value on a disk" in result.err
        assert not (tmp_path / "out").exists()
    with patch.object(assemble, "MAX_VALUE", beside + 3 * size):
        server = member(
            planned(experiment, tmp_path, DeploySettings(address=ADDRESS))[0], experiment
        )
        with pytest.raises(ConfigError, match="9 of them lie in one message"):
            server.run()
        server.close()


def test_an_answer_above_the_limit_is_an_error_in_its_place() -> None:
    with patch.object(process_module, "MAX_VALUE", 3):
        long = process_module._short(lambda *_: b"four")
        assert process_module._short(lambda *_: b"two")(key(), b"", b"") == b"two"
        header, _ = open_sealed(long(key(), b"", b""))
        assert header["error"][1] == "the answer to algorithm.device has 4 bytes, more than 3."
        assert open_order(long(key(1, "order"), b"", b""))[0] == header


def test_the_last_words_of_a_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        '{"level": "error", "text": "why"}\n{"level": "info"}\nTraceback\n', encoding="utf-8"
    )
    assert last_words(log) == "why"
    log.write_text('Segmentation fault\n\n{"level": "info"}\n', encoding="utf-8")
    assert last_words(log) == "Segmentation fault"


def test_a_killed_command_leaves_no_half_set_of_certificates(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    processes = processes_of(Tree.grouped([2]), DeploySettings(address=ADDRESS))
    write(processes, {}, tmp_path / "local", "covey")
    for gone in ("server/certificate.pem", "device1/certificate.pem", "issued.json", "ca.pem"):
        complete_certificates(processes, tmp_path / "local")
        (tmp_path / "local" / gone).unlink()
    complete_certificates(processes, tmp_path / "local")
    before = contents(tmp_path / "local")
    complete_certificates(processes, tmp_path / "local")
    assert contents(tmp_path / "local") == before
    for process in processes:
        identity = Identity(tmp_path / "local" / process.name)
        assert identity.check().seats == (process.name,)
        assert identity.authority() == before["ca.pem"]


def test_more_processes_than_the_machine_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_local, "_PROCESS_BYTES", 10**12)
    refused = exits(2, "deploy", "local", *SMALL, "--out", tmp_path / "local")
    assert "deploy.devices_per_process=" in refused.err
    assert not (tmp_path / "local").exists()


def test_a_system_that_does_not_tell_its_memory_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sysconf_names")
    deploy_local._check_memory(processes_of(Tree.grouped([2]), DeploySettings(address=ADDRESS)))


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


# Real processes


SEVEN = (*SMALL, "rounds=2", "data.devices=4", "tree.edges=2", "checkpoint_every=9")
PERMFL = ("algorithm={name='permfl', edge_rounds=2, steps=2}", "codec=int8")


FAULTS = {"device3": "after-commit:1", "server": "round-ended:1"}


@pytest.mark.parametrize(
    ("changes", "faults"), [((), {}), (PERMFL, FAULTS)], ids=["sfedhp", "permfl, two are killed"]
)
def test_seven_processes_are_the_simulator(
    changes: tuple[str, ...],
    faults: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1 + 2 + 4 processes with certificates, each with its own memory, disk and signals."""
    started = start_by_forks(monkeypatch, faults)
    local = _is_the_simulator(tmp_path, *SEVEN, *changes)
    for name in faults:
        assert f"{name} was killed; started again (1)\n" in local.err
    assert json.loads(local.out)["started_again"] == dict.fromkeys(faults, 1)
    assert len(started) == 7
    assert {process.poll() for process in started.values()} == {0}  # all were drained


@SLOW
def test_a_tree_of_real_processes_is_the_simulator(tmp_path: Path) -> None:
    _is_the_simulator(tmp_path, *LOCAL)


def _is_the_simulator(tmp_path: Path, *words: str) -> Result:
    local = exits(0, "deploy", "local", *words, "--out", tmp_path / "local", "--json")
    run = Path(json.loads(local.out)["folder"])
    exits(0, "run", *words, "--out", tmp_path / "run")
    records = [_records(run), _records(tmp_path / "run")]
    assert records[0] == records[1]
    for model in (tmp_path / "run" / "models").rglob("*.safetensors"):
        relative = model.relative_to(tmp_path / "run")
        assert (run / relative).read_bytes() == model.read_bytes()
    logs = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("log.jsonl"))
    assert all(json.loads(line) for line in logs.splitlines())
    assert "BEGIN" not in logs
    return local


def _records(folder: Path) -> list[dict[str, object]]:
    records = [json.loads(line) for line in _lines(folder / "metrics.jsonl")]
    for record in records:
        del record["spent"], record["seconds"]
    return records


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@SLOW
def test_five_random_kills_change_nothing(tmp_path: Path) -> None:
    """Any process, at any time; also the server, and the same one twice."""
    out = tmp_path / "local"
    started = spawn("deploy", "local", *LOCAL, "rounds=150", "--out", out)
    metrics = out / "server" / "state" / "run" / "metrics.jsonl"
    draw = random.Random(8)
    killed = Counter[str]()
    rounds = 0
    until = time.monotonic() + 300
    for _ in range(5):
        while not metrics.exists() or len(_lines(metrics)) <= rounds:
            assert time.monotonic() < until, f"no round after {killed}"
            time.sleep(0.1)
        time.sleep(draw.uniform(0, 0.5))
        name = draw.choice(["server", "edge0", "edge1", "device0-1", "device2-3"])
        rounds = len(_lines(metrics))
        os.kill(_pid(out, name), signal.SIGKILL)
        killed[name] += 1
    said, error = started.communicate(timeout=300)
    assert started.returncode == 0, error
    for name, count in killed.items():
        assert f"{name} was killed; started again ({count})\n" in said
    assert "started again: " + ", ".join(f"{name} {n}" for name, n in killed.items()) in said
    exits(0, "replay", out)
    assert not _alive(out)


@SLOW
def test_a_process_that_is_told_to_end_stops_all_with_its_message(tmp_path: Path) -> None:
    out = tmp_path / "local"
    started = spawn("deploy", "local", *LOCAL, "rounds=100000", "--out", out)
    status = _until_rounds(out)
    assert {seat["seat"] for seat in status[0]["seats"]} == {"edge0", "edge1"}
    os.kill(_pid(out, "edge1"), signal.SIGTERM)
    _, error = started.communicate(timeout=120)
    assert started.returncode == 6
    assert "edge1 was told to end" in error
    assert '{"' not in error
    assert not _alive(out)


@SLOW
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "local"
    started = spawn("deploy", "local", *LOCAL, "rounds=100000", "--out", out)
    _until_rounds(out)
    started.send_signal(number)
    _, error = started.communicate(timeout=120)
    assert started.returncode == 130
    assert "all processes are stopped" in error
    assert not _alive(out)


@SLOW
def test_no_node_outlives_who_watches_it(tmp_path: Path) -> None:
    out = tmp_path / "local"
    started = spawn("deploy", "local", *LOCAL, "rounds=100000", "--out", out)
    _until_rounds(out)
    started.kill()
    started.communicate(timeout=120)
    until = time.monotonic() + 60
    while _alive(out):
        assert time.monotonic() < until, "nodes without their starter"
        time.sleep(1)


def _until_rounds(out: Path) -> list[dict[str, Any]]:
    """The status of all nodes, once the first rounds are over."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        time.sleep(1)
        if not (out / "device2-3" / "log.jsonl").exists():
            continue
        result = command("ctl", "status", "--plan", out, "--json")
        status = json.loads(result.out or "[]")
        if status and all(seat["rounds"] for seat in status[0]["seats"]) and status[0]["seats"]:
            return status
    raise AssertionError("no round in 300 s")


def _pid(out: Path, name: str) -> int:
    """The process that was started with the file of a node."""
    return next(pid for pid, words in _commands() if str(out / name / "node.toml") in words)


def _alive(out: Path) -> list[int]:
    return [pid for pid, words in _commands() if any(word.startswith(f"{out}/") for word in words)]


def _commands() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        yield int(path.parent.name), words


def test_the_screen_says_how_many_processes_have_started(tmp_path: Path) -> None:
    """They take seconds each, and more where many share a machine."""
    names = ["server", "device0"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / LOG).write_bytes(b"")
    said = io.StringIO()
    words = StartProgress(Console(file=said), LocalProcesses(tmp_path, names))
    words.report_if_due()
    assert said.getvalue() == ""  # it is too soon
    for started in names:
        with (tmp_path / started / LOG).open("w", encoding="utf-8") as file:
            EventLog(started, file).info("started", seats=[started])
        with patch("covey.deployed.files.deploy_local._START_WORDS", 0.0):
            words = StartProgress(Console(file=said), LocalProcesses(tmp_path, names))
            words.report_if_due()
            words.report_if_due()
    lines = [line.partition(" after")[0] for line in said.getvalue().splitlines()]
    some = "1 of 2 processes have started"
    assert lines == [some, some, "2 of 2 processes have started"]
