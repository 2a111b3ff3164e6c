"""Processes of a deployed tree over sockets, and the commands that start them."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.cli.config import load
from covey.deployed.local import free_ports, last_words
from covey.deployed.plan import Settings
from covey.deployed.process import Member
from covey.runs.experiment import Experiment
from covey.runs.run import Run
from tests.cli.command import BASE, SMALL, spawn
from tests.cli.command import covey as command
from tests.deployed.forked import start_by_forks
from tests.deployed.members import ADDRESS, member, planned, serving

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
    settings = Settings(address=ADDRESS, devices_per_process=2)
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
    processes = planned(experiment, tmp_path, Settings(address=ADDRESS))
    ports = [one.control_port for one in processes]
    ports += [int(one.listen.rpartition(":")[2]) for one in processes if one.listen]
    assert len(set(ports)) == len(ports)
    listening = {one.name: one.listen for one in processes}
    for one in processes:
        if one.parent is not None:
            assert one.parent == listening[str(one.seats[0].parent)]


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
    result = command("node", *words, *given)
    assert result.code == 2
    assert error in result.err


def test_a_node_without_a_certificate_is_refused(tmp_path: Path) -> None:
    result = command("node", "--name", "device0", "--certs", tmp_path)
    assert result.code == 2
    assert "certificate.pem" in result.err


def test_the_last_words_of_a_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        '{"level": "error", "text": "why"}\n{"level": "info"}\nTraceback\n', encoding="utf-8"
    )
    assert last_words(log) == "why"
    log.write_text("Segmentation fault\n\n", encoding="utf-8")
    assert last_words(log) == "Segmentation fault"


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20


# Real processes


SEVEN = (*SMALL, "rounds=2", "data.devices=4", "tree.edges=2", "checkpoint_every=9")
PERMFL = ("algorithm={name='permfl', edge_rounds=2, steps=2}", "codec=int8")


@pytest.mark.parametrize("changes", [(), PERMFL], ids=["sfedhp", "permfl"])
def test_seven_processes_are_the_simulator(
    changes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 + 2 + 4 processes with certificates, each with its own memory, disk and signals."""
    started = start_by_forks(monkeypatch)
    _is_the_simulator(tmp_path, *SEVEN, *changes)
    assert len(started) == 7
    assert {process.poll() for process in started.values()} == {0}  # all were drained


@SLOW
def test_a_tree_of_real_processes_is_the_simulator(tmp_path: Path) -> None:
    _is_the_simulator(tmp_path, *LOCAL)


def _is_the_simulator(tmp_path: Path, *words: str) -> None:
    local = command("deploy", "local", *words, "--out", tmp_path / "local", "--json")
    assert local.code == 0, local.err
    run = Path(json.loads(local.out)["folder"])
    assert command("run", *words, "--out", tmp_path / "run").code == 0
    records = [_records(run), _records(tmp_path / "run")]
    assert records[0] == records[1]
    for model in (tmp_path / "run" / "models").rglob("*.safetensors"):
        relative = model.relative_to(tmp_path / "run")
        assert (run / relative).read_bytes() == model.read_bytes()
    logs = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("log.jsonl"))
    assert all(json.loads(line) for line in logs.splitlines())
    assert "BEGIN" not in logs


def _records(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        del record["spent"], record["seconds"]
    return records


@SLOW
def test_a_process_that_fails_stops_all_with_its_message(tmp_path: Path) -> None:
    out = tmp_path / "local"
    started = spawn("deploy", "local", *LOCAL, "rounds=100000", "--out", out)
    status = _until_rounds(out)
    assert {seat["seat"] for seat in status[0]["seats"]} == {"edge0", "edge1"}
    os.kill(_pid(out, "edge1"), signal.SIGKILL)
    _, error = started.communicate(timeout=120)
    assert started.returncode == 1
    assert "edge1 ended with code -9" in error
    assert not _alive(out)


@SLOW
def test_ctrl_c_stops_all(tmp_path: Path) -> None:
    out = tmp_path / "local"
    started = spawn("deploy", "local", *LOCAL, "rounds=100000", "--out", out)
    _until_rounds(out)
    started.send_signal(signal.SIGINT)
    _, error = started.communicate(timeout=120)
    assert started.returncode == 130
    assert "all processes are stopped" in error
    assert not _alive(out)


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
