"""The folder that the server of a deployed tree leaves behind: that of `covey run`."""

import errno
import io
import json
import os
import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch

import covey
from covey import rooms
from covey.deployed.commands.node import _rounds
from covey.deployed.commands.replay import run_folder
from covey.deployed.faults import set_fault
from covey.deployed.files import deploy_local
from covey.deployed.files.deployment import Deployment
from covey.deployed.files.server_folder import ServerFolder
from covey.deployed.node import asks, own_models
from covey.deployed.node.disk import Disk
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.node_rows import NodeRow
from covey.deployed.node.process import Member
from covey.deployed.node.server_run import finish, server_run
from covey.deployed.operate.events import EventLog
from covey.deployed.operate.progress import Progress
from covey.deployed.plan.plan import DeploySettings, processes_of
from covey.deployed.transport.transport import Patience
from covey.errors import CheckpointError, ConfigError, DivergedError
from covey.files.config import Config, load
from covey.folder import outcome
from covey.folder.terminal import Console
from covey.runs.run import Run
from covey.runs.saved import checkpoint, status
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.same_state import record_differences, state_differences
from covey.runs.scores.record import Round
from covey.runs.tracker import play
from tests.cli.command import BASE, SMALL, contents, exits, spawn
from tests.cli.command import covey as command

CHANGES = [*SMALL[1:], "rounds=3", "deploy.devices_per_process=2", 'metrics=["confusion"]']

SLOW = pytest.mark.skipif("COVEY_TEST_ALL" not in os.environ, reason="takes seconds")
ADDRESS = {"server": "server.example", "edge": "{seat}.example"}

TIMES = {"seconds", "spent", "started", "ended"}
"""Keys of JSON files that no two runs have in common."""
NAMED = {
    "metrics.jsonl": "times of rounds", "metrics.csv": "times of rounds", "summary.json": "times",
    "status.json": "times", "repeat.txt": "the name of the folder",
    "environment.json": "the command, and the runtime",
    "checkpoint.history.jsonl": "times of rounds",
    "checkpoint.safetensors": "rows in another order, and where the history lies",
    "checkpoint.previous.safetensors": "a deployed run saves at its end alone",
    "report.html": "times", "plot.png": "a panel with seconds",
    "replay.json": "a run of the simulator misses nobody",
}  # fmt: skip
"""Files that may differ, and why."""


def rounds_of(run: Run, folder: ServerFolder, stop: int | None = None) -> None:
    """What `covey node` does with the server's run."""

    def rounds() -> Iterator[tuple[Round]]:
        for record in run:
            yield (record,)
            if record.round + 1 == stop:
                break
        finish(run)

    play(rounds(), [folder.of(run)], every=folder.config.checkpoint_every)


@contextmanager
def without_pictures() -> Iterator[None]:
    """Pictures and pages take the longest."""
    with patch.object(outcome, "_draw"), patch.object(rooms, "call"):
        yield


def opened(config: Config, path: Path) -> ServerFolder:
    return ServerFolder(config, RunFolder(path), ["covey", "node"])


def played_into(path: Path, config: Config, nodes: Path, stop: int | None = None) -> None:
    """Play a run on the disks of a tree, which leaves this folder."""
    tree = LocalTree(nodes)
    folder = opened(config, path)
    with folder.open():
        run = server_run(config.experiment(config.seed), tree)
        rounds_of(run, folder, stop)
    tree.close()


@pytest.fixture(scope="module")
def config() -> Config:
    return load(BASE, CHANGES)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulated") / "run"
    exits(0, "run", BASE, *CHANGES, "--out", out)
    return out


@pytest.fixture(scope="module")
def deployed(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its second round, and went on."""
    nodes = tmp_path_factory.mktemp("nodes")
    out = nodes / "server" / "state" / "run"
    for stop in (2, None):
        played_into(out, config, nodes, stop)
    return out


def without_times(value: Any) -> Any:
    """A JSON value without times, at any depth."""
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    if isinstance(value, list):
        return [without_times(item) for item in value]
    return value


def assert_same_folder(deployed: Path, simulated: Path) -> None:
    """The same files, with the same bytes but for a named list, which are equal but for times."""
    ours = contents(deployed)
    theirs = contents(simulated)
    unlike = ours.keys() ^ theirs.keys()
    assert unlike <= {"replay.json", "checkpoint.previous.safetensors"}
    for name in sorted(ours.keys() & theirs.keys() - NAMED.keys()):
        assert ours[name] == theirs[name], name
    for name in ("summary.json", "metrics.jsonl"):
        one, other = (
            [json.loads(line) for line in _lines(folder / name)] for folder in (deployed, simulated)
        )
        assert without_times(one) == without_times(other), name
    saved = [folder / "checkpoint.safetensors" for folder in (deployed, simulated)]
    assert state_differences(*(checkpoint.read(path) for path in saved)) == []
    assert record_differences(*(covey.history(path) for path in saved)) == []


def test_the_folder_is_that_of_the_simulator(deployed: Path, simulated: Path) -> None:
    assert_same_folder(deployed, simulated)
    assert set(contents(deployed)) - set(NAMED) >= {
        "config.toml", "data.json", "devices.csv", "confusion.csv", "nodes.json", "nodes.jsonl",
        "totals.json", "devices.png", "models/personal.safetensors", "models/last/edge.safetensors",
    }  # fmt: skip
    status = json.loads((deployed / "status.json").read_text(encoding="utf-8"))
    assert status["state"] == "finished"
    engine = json.loads((deployed / "environment.json").read_text(encoding="utf-8"))["engine"]
    assert engine["runtime"] == "deployed"


def _lines(path: Path) -> list[str]:
    """The lines of a file of records; another file as one line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return text.splitlines()
    return [text.replace("\n", "")]


@pytest.mark.parametrize("words", [("show",), ("show", "--devices"), ("runs",)], ids=str)
def test_commands_say_the_same_of_both(
    words: tuple[str, ...], deployed: Path, simulated: Path
) -> None:
    name, *options = words
    ours, theirs = (command(name, folder, *options, "--json") for folder in (deployed, simulated))
    assert ours.code == theirs.code == 0, ours.err
    facts = [without_times(json.loads(result.out)) for result in (ours, theirs)]
    for value in facts:
        for entry in value if isinstance(value, list) else [value]:
            entry.pop("folder", None)
    assert facts[0] == facts[1]


def test_a_report_has_both(deployed: Path, simulated: Path, tmp_path: Path) -> None:
    assert (deployed / "report.html").exists()
    page = tmp_path / "both.html"
    exits(0, "report", deployed, simulated, "--out", page)
    assert page.stat().st_size > 10_000


def test_the_simulator_goes_on_from_it(deployed: Path, simulated: Path, tmp_path: Path) -> None:
    histories: list[list[Round]] = []
    for number, folder in enumerate((deployed, simulated)):
        copy = tmp_path / str(number)
        shutil.copytree(folder, copy)
        exits(0, "run", "--resume", copy, "rounds=4")
        histories.append(covey.history(copy / "checkpoint.safetensors"))
    assert len(histories[0]) == 4
    assert record_differences(*histories) == []


@SLOW
def test_a_tree_that_has_ended_gets_more_rounds(tmp_path: Path) -> None:
    """Its last round, scored because it was the last, is then one like the others."""
    out = tmp_path / "server" / "state" / "run"
    changes = [*SMALL[1:], "score_every=2"]
    for rounds in (3, 5):
        played_into(out, load(BASE, [*changes, f"rounds={rounds}"]), tmp_path)
    again = tmp_path / "again"
    exits(0, "run", BASE, *changes, "rounds=3", "--out", again)
    exits(0, "run", "--resume", again, "rounds=5")
    saved = [folder / "checkpoint.safetensors" for folder in (out, again)]
    assert state_differences(*(checkpoint.read(path) for path in saved)) == []
    assert record_differences(*(covey.history(path) for path in saved)) == []
    exits(0, "replay", tmp_path)


def test_a_full_disk_keeps_what_it_held(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    small = NodeRow("device", 0, "personal", "present", 0, torch.ones(4))
    disk.replace([small])
    disk.file.query("PRAGMA max_page_count = 30")
    large = NodeRow("device", 0, "personal", "present", 1, torch.ones(2**20))
    with pytest.raises(CheckpointError, match=r"node.sqlite: database or disk is full; what it"):
        disk.replace([large])
    (kept,) = disk.rows("device", 0)
    assert kept.row is not None
    assert len(kept.row) == 4
    disk.close()


@SLOW
def test_a_full_disk_ends_the_round_everywhere(tmp_path: Path) -> None:
    """With room again, the tree goes on as if nothing had happened."""
    config = load(BASE, CHANGES)
    out = tmp_path / "server" / "state" / "run"
    tree = LocalTree(tmp_path)
    folder = opened(config, out)
    run = server_run(config.experiment(config.seed), tree)

    def full(point: str) -> None:
        below = threading.current_thread() is not threading.main_thread()
        if below and point == "inside-commit" and run.round == 1:
            raise sqlite3.OperationalError("database or disk is full")

    set_fault(full)
    text = r"node.sqlite: database or disk is full; what it held before is intact"
    with pytest.raises(CheckpointError, match=text), folder.open():
        rounds_of(run, folder)
    set_fault(None)
    assert status.read(out).state == "stopped"
    tree.close()
    played_into(out, config, tmp_path)
    exits(0, "replay", tmp_path)


def test_a_run_ends_without_nodes_that_are_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a quorum. The folder says what it lacks; with all nodes back, it is completed."""
    monkeypatch.setattr(asks, "END_SECONDS", 0.05)
    config = load(BASE, [*SMALL[1:], "rounds=1"])
    out = tmp_path / "server" / "state" / "run"
    place = (tmp_path, True, "", Console(quiet=True))
    local = deploy_local.LocalDeployment(Deployment.of(config, local=True), *place)
    for away in (True, False):
        quorum = {"edge": Patience(0.05, 1), "server": Patience(5, 2)}
        tree = LocalTree(tmp_path, patience=quorum if away else None)
        folder = opened(config, out)
        with folder.open(), without_pictures():
            run = server_run(config.experiment(config.seed), tree)
            if away:
                tree.transport_above("device", 2).leave(2)
            rounds_of(run, folder)
        tree.close()
        assert local._finished() is not away  # `covey deploy local` goes on
        if not away:
            assert run.runtime.lacks is None
            continue
        assert "device" in str(run.runtime.lacks)  # and perhaps others, on a busy machine
        exits(0, "show", out)
        with pytest.raises(ConfigError, match="load the models of device 2 on its own machine"):
            covey.load(out).module(device=2)
        resumed = exits(4, "run", "--resume", out, "rounds=2")
        assert "they are on the disks of their nodes" in resumed.err
        exits(2, "replay", out)
    assert covey.load(out).module(device=2) is not None
    exits(0, "replay", out)


def server_member() -> tuple[Mock, io.StringIO]:
    """What `covey node` needs of the server's process, and its log."""
    text = io.StringIO()
    member = Mock(log=EventLog("server", text), progress=Progress("server", "server"))
    return member, text


def diverge_in(run: Run, round: int) -> None:
    """Let the training of all devices diverge in a round; `set_fault(None)` ends it."""

    def diverge(point: str) -> None:
        below = threading.current_thread() is not threading.main_thread()
        if below and point == "inside-ask" and run.round == round:
            raise DivergedError("the rows are not finite.")

    set_fault(diverge)


@pytest.mark.parametrize("full", [False, True])
def test_nodes_get_their_models_though_the_run_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Those that are there; the error is the divergence, also where a node cannot write."""
    monkeypatch.setattr(asks, "END_SECONDS", 0.5)
    config = load(BASE, [*SMALL[1:], "rounds=4"])
    tree = LocalTree(tmp_path, patience={"edge": Patience(9, 1), "server": Patience(9, 2)})
    folder = opened(config, tmp_path / "run")
    member, log = server_member()
    run = server_run(config.experiment(config.seed), tree)
    diverge_in(run, round=2)
    if full:
        monkeypatch.setattr(own_models, "write", Mock(side_effect=CheckpointError("it is full.")))

    def one_leaves(record: Round) -> Round:
        if record.round == 1:
            tree.transport_above("device", 2).leave(2)
            tree.nodes["edge", 0].asks.patience = Patience(0.5, 1)
        return record

    member.rounds = lambda run: map(one_leaves, Member.rounds(member, run))
    with pytest.raises(DivergedError, match="not finite"), folder.open(), without_pictures():
        _rounds(member, run, folder)
    set_fault(None)
    tree.close()
    events = [json.loads(line) for line in log.getvalue().splitlines()]
    diverged, *incomplete = events[2:]  # after two rounds
    assert diverged["event"] == "run_diverged"
    assert "not finite" in diverged["text"]
    assert {event["event"] for event in incomplete} == {"incomplete"}
    assert ("it is full" in incomplete[0]["text"]) is full
    written = [path.parent.parent.name for path in tmp_path.glob("device*/models/personal.*")]
    devices = [f"device{number}" for number in range(run.runtime.tree.size("device"))]
    devices.remove("device2")
    assert sorted(written) == ([] if full else sorted(devices))
    assert status.read(folder.folder.path).state == "diverged"
    assert covey.load(folder.folder.path).chosen


def test_nodes_may_keep_their_rows_to_themselves(tmp_path: Path) -> None:
    """The server's folder has the global model alone, and says why it has no other."""
    config = load(BASE, [*SMALL[1:], "rounds=2", "deploy.share_rows=false"])
    settings = replace(DeploySettings.read(config.deploy or {}), address=ADDRESS)
    experiment = config.experiment(config.seed)
    planned = processes_of(experiment.tree, settings)
    assert all(process.as_dict()["share_rows"] is False for process in planned)
    tree = LocalTree(tmp_path)
    folder = opened(config, tmp_path / "run")
    with folder.open(), without_pictures():
        run = server_run(experiment, tree)
        for (tier, _), one in tree.nodes.items():
            one.shares_rows = tier == "server"
        rounds_of(run, folder)
    tree.close()
    loaded = covey.load(folder.folder.path)
    x = experiment.data.x[:2].numpy()
    assert len(loaded.predict(x, device=1, model="global")) == 2
    with pytest.raises(ConfigError, match=r"lacks the rows of device 0, .* and edge 0, 1; load"):
        loaded.predict(x, device=1)
    exits(0, "show", folder.folder.path, "--devices")
    assert (tmp_path / "device1" / "models" / "personal.safetensors").exists()


# Replay


def test_a_replay_of_a_whole_folder(deployed: Path) -> None:
    result = exits(0, "replay", deployed)
    assert "3 rounds, 0 late, 0 absent and 0 bad answers" in result.out
    assert "equal: rows, records, traffic and notes" in result.out


@pytest.fixture(scope="module")
def missed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all nodes of a run in which device 2 was absent in the second round."""
    nodes = tmp_path_factory.mktemp("absent")
    config = load(BASE, [*SMALL[1:], "rounds=2"])
    tree = LocalTree(nodes, patience={"edge": Patience(0.05, 1)})
    folder = opened(config, nodes / "server" / "state" / "run")
    with folder.open(), without_pictures():
        run = server_run(config.experiment(config.seed), tree)
        with folder.of(run):
            folder.log([next(run)])
            tree.transport_above("device", 2).leave(2)
            folder.log([next(run)])
            tree.transport_above("device", 2).take(2, tree.nodes["device", 2].answer)
            finish(run)
    tree.close()
    return nodes


@pytest.fixture
def absent(missed: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    shutil.copytree(missed / "server" / "state", tmp_path / "server" / "state")
    return tmp_path


def test_a_replay_with_an_absent_node(absent: Path) -> None:
    facts = json.loads(command("replay", absent, "--json").out)
    assert facts["absent"] > 0
    assert facts["equal"] is True
    assert facts["differences"] == []


def test_a_replay_that_differs_is_told(absent: Path) -> None:
    missing = absent / "server" / "state" / "run" / "replay.json"
    missing.write_text('{"ends": [], "changes": [], "missing": []}', encoding="utf-8")
    result = exits(1, "replay", absent)
    assert "NOT equal; these differ:" in result.out
    assert "the global model" in result.out
    assert "traffic of round 2" in result.out
    assert "the rows 'personal' of devices" in result.out
    missing.write_text("{}\n", encoding="utf-8")
    exits(4, "replay", absent)


def test_the_run_is_found_whatever_the_top_of_the_tree_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "cloud" / "state" / "run"
    folder.mkdir(parents=True)
    for name in ("replay.json", "checkpoint.safetensors"):
        (folder / name).touch()
    for given in (tmp_path, tmp_path / "cloud" / "state", folder):
        assert run_folder(given) == folder
    own = tmp_path / "plan" / "cloud"  # a plan says where its nodes have their disks
    own.mkdir(parents=True)
    text = f'[node]\nname = "cloud"\nseats = ["cloud"]\nstate = "{folder.parent}"\n'
    (own / "node.toml").write_text(text, encoding="utf-8")
    assert run_folder(tmp_path / "plan") == folder


def test_what_cannot_be_replayed_is_refused(absent: Path, simulated: Path, tmp_path: Path) -> None:
    facts = absent / "server" / "state" / "run" / "replay.json"
    facts.write_text('{"ends": [], "changes": [1], "missing": []}', encoding="utf-8")
    assert "the tree of this run changed after round 1" in exits(2, "replay", absent).err
    assert "a run of the simulator" in exits(2, "replay", simulated).err
    result = exits(2, "replay", tmp_path / "nothing")
    assert "no folder of a deployed run that has ended" in result.err


# Real processes

LOCAL = (*SMALL, "data.devices=4", "deploy.devices_per_process=2")


@SLOW
def test_real_processes_leave_the_folder_of_the_simulator(tmp_path: Path) -> None:
    out = tmp_path / "local"
    whole = tmp_path / "whole"
    exits(0, "run", *LOCAL, "--out", whole)
    local = exits(0, "deploy", "local", *LOCAL, "--out", out)
    run = out / "server" / "state" / "run"
    assert_same_folder(run, whole)
    assert f"open first: {run}/report.html" in local.out
    exits(0, "replay", out)
    simulated = covey.load(whole)
    x = simulated.experiment.data.x[:20].numpy()
    for number in range(4):
        process = "device0-1" if number < 2 else "device2-3"
        device = covey.load(out / process / "state" / f"device{number}")
        expected = simulated.probabilities(x, device=number)
        assert (device.probabilities(x) == expected).all()
    again = command("deploy", "local", *LOCAL, "--out", out)
    assert "has run all rounds before" in again.out
    compared = exits(0, "deploy", "local", *LOCAL, 'compare=["local"]', "--out", out)
    assert "Local personal" in compared.out
    assert (run / "compare.png").exists()
    other = exits(2, "deploy", "local", *LOCAL, "algorithm.lam1=9", "--out", out)
    assert "algorithm.lam1" in other.err


@SLOW
def test_the_same_command_goes_on_after_ctrl_c(tmp_path: Path) -> None:
    out = tmp_path / "local"
    words = ("deploy", "local", *LOCAL, "--out", out)
    started = spawn(*words, "rounds=400")
    metrics = out / "server" / "state" / "run" / "metrics.jsonl"
    until = time.monotonic() + 120
    while not metrics.exists() or not metrics.stat().st_size:
        assert time.monotonic() < until, "no round"
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    _, error = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "go on with: covey deploy local" in error
    run = metrics.parent
    status = json.loads((run / "status.json").read_text(encoding="utf-8"))
    assert status["state"] == "stopped"
    done = len(covey.history(run / "checkpoint.safetensors"))
    assert 0 < done < 400
    assert covey.load(out / "device0-1" / "state" / "device0").models()
    result = command("show", run)
    assert f"{done} of 400 rounds" in result.out
    exits(0, "replay", out)
    assert "holds a run of 400 rounds" in exits(2, *words, f"rounds={done}").err


@pytest.mark.skipif(sys.platform == "win32", reason="it has other users")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="a closed folder looks empty there")
@pytest.mark.parametrize(
    "words",
    [
        ("predict", "FOLDER", "--data", "x.csv"),
        ("export", "FOLDER", "--node", "device3"),
        ("show", "FOLDER"),
        ("replay", "FOLDER"),
        ("deploy", "change", BASE, "--server", "FOLDER"),
    ],
    ids=lambda words: words[0],
)
def test_a_folder_that_is_closed_to_this_user_is_named(
    words: tuple[object, ...], tmp_path: Path
) -> None:
    """The state of a node belongs to the user covey."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0)
    with patch.object(os, "stat", closed(folder, os.stat)):
        result = command(*[folder if word == "FOLDER" else word for word in words])
    assert result.code == 2
    assert f"{folder}/" in result.err
    assert "is closed to this user; run the command as its owner" in result.err


def closed(folder: Path, stat: Any) -> Any:
    """What the system says of files in a folder that is closed; root is told no such thing."""

    def refused(path: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(path, int) and folder in Path(os.fspath(path)).parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    return refused
