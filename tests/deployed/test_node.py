"""`covey node`: its settings, and what it writes before and after its experiment is compared."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("grpc")

from covey.deployed.commands import node
from covey.deployed.files.server_folder import ServerFolder
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.process import Member
from covey.deployed.node.server_run import server_run
from covey.deployed.plan.local import free_ports
from covey.deployed.plan.plan import DeploySettings
from covey.deployed.plan.process import Process
from covey.deployed.transport.transport import Patience
from covey.errors import CoveyError
from covey.files.config import load
from covey.runs.saved.run_folder import RunFolder
from tests.cli.command import BASE, SMALL, contents
from tests.cli.command import covey as command
from tests.deployed.members import ADDRESS, member, planned
from tests.deployed.test_folder import rounds_of, without_pictures

LOCAL = (*SMALL[1:], "data.devices=4", "rounds=2")


def written(path: Path, *changes: str) -> Path:
    """A file with an experiment."""
    path.write_text(load(BASE, [*LOCAL, *changes]).text(), encoding="utf-8")
    return path


def started(monkeypatch: pytest.MonkeyPatch, *words: object) -> Process:
    """The process that a command would run."""
    processes: list[Process] = []

    def stop(process: Process, *_: Any, **__: Any) -> None:
        processes.append(process)
        raise CoveyError("enough")

    monkeypatch.setattr(node, "Member", stop)
    result = command("node", "--insecure", *words)
    assert processes, result.err
    return processes[0]


def test_a_node_without_a_file_has_the_settings_of_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(
        tmp_path / "tree.toml",
        "deploy.share_rows=false",
        'deploy.durability="power"',
        "deploy.quorum.edge=0.5",
        "deploy.deadline.edge=3",
        "deploy.norm_bound.device=7",
        "deploy.strikes=5",
        'deploy.diverged="drop"',
        "deploy.control_port=9555",
        "deploy.state=/srv/covey",
        "algorithm={name='hierfavg'}",
        "tree.edges=[2, 2]",
    )
    words = ["--experiment", file, "--parent", "localhost:1"]
    edge = started(monkeypatch, "--name", "edge1", "--listen", "localhost:2", *words)
    assert edge.share_rows is False
    assert edge.durability == "power"
    assert edge.state == "/srv/covey/edge1"
    assert edge.control_port == 9555
    assert edge.patience == Patience(3.0, 1)
    assert edge.norm_bounds == {"device2": 7.0, "device3": 7.0}
    assert edge.strikes == 5
    assert edge.diverged == "drop"
    bare = ["--experiment", file, "--parent", "localhost", "--listen", "::1"]
    edge = started(monkeypatch, "--name", "edge1", *bare)
    assert (edge.parent, edge.listen) == ("localhost:8443", "[::1]:8443")
    device = started(monkeypatch, "--name", "device0", "--control-port", 9666, *words)
    assert device.share_rows is False
    assert device.control_port == 9666  # the command line comes first
    assert (device.patience, device.diverged) == (None, "end")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a server whose run has ended."""
    state = tmp_path_factory.mktemp("state")
    config = load(BASE, [*LOCAL])
    tree = LocalTree(state / "nodes")
    folder = ServerFolder(config, RunFolder(state / "run"), ["covey", "node"])
    with folder.open(), without_pictures():
        rounds_of(server_run(config.experiment(config.seed), tree), folder)
    tree.close()
    (state / "nodes" / "server0").rename(state / "server")
    return state


def test_a_server_with_another_experiment_changes_nothing(served: Path, tmp_path: Path) -> None:
    """Code 2: systemd does not start it again."""
    state = tmp_path / "state"
    shutil.copytree(served, state)
    file = written(tmp_path / "experiment.toml", "algorithm.edge_rounds=5")
    before = contents(state / "run")
    port, control = free_ports(2)
    words = ["--name", "server", "--listen", f"127.0.0.1:{port}", "--control-port", control]
    result = command("node", "--insecure", *words, "--experiment", file, "--state", state)
    assert result.code == 2, result.err
    assert "restore experiment.toml, or give another state" in result.err
    assert contents(state / "run") == before
    assert not (state / "server" / "config.toml").exists()


def test_a_device_that_is_refused_keeps_its_files(tmp_path: Path) -> None:
    """Its models are those of the experiment before."""
    experiment = load(BASE, [*LOCAL]).experiment(0)
    processes = planned(experiment, tmp_path, DeploySettings(address=ADDRESS))
    parent = member(next(one for one in processes if one.name == "edge0"), experiment)
    file = written(tmp_path / "experiment.toml", "algorithm.edge_rounds=5")
    own = tmp_path / "own" / "device0" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text("before", encoding="utf-8")
    words: list[object] = ["--name", "device0", "--parent", parent.process.listen]
    words += ["--experiment", file, "--state", tmp_path / "own", "--control-port", free_ports(1)[0]]
    with parent.running():
        parent.node(parent.process.nodes[0])
        result = command("node", "--insecure", *words)
    assert result.code == 6, result.err
    assert own.read_text(encoding="utf-8") == "before"


def test_other_users_cannot_read_a_state(tmp_path: Path) -> None:
    state = tmp_path / "state"
    file = written(tmp_path / "experiment.toml")
    words: list[object] = ["--name", "device0", "--parent", "localhost:1", "--experiment", file]
    words += ["--control-port", free_ports(1)[0], "--state", state / "device0"]
    with patch.object(Member, "serve"):
        assert command("node", "--insecure", *words).code == 0
    for folder in (state / "device0", state / "device0" / "device0"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_run_that_is_stopped_is_never_finished(served: Path, tmp_path: Path) -> None:
    """A command that is killed between two words on its end must find the run to go on."""
    config = load(BASE, [*LOCAL])
    states = []
    folder = ServerFolder(config, RunFolder(tmp_path / "run"), ["covey", "node"])
    write = folder.folder.write_json

    def seen(file: Path, value: Any) -> None:
        if file == folder.folder.status:
            states.append(value["state"])
        write(file, value)

    tree = LocalTree(tmp_path)
    with patch.object(folder.folder, "write_json", seen), folder.open():
        rounds_of(server_run(config.experiment(config.seed), tree), folder, stop=1)
    tree.close()
    assert states == ["running", "stopped"]


def test_a_missing_experiment_is_no_word_on_the_demo(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    words = ["--name", "device0", "--insecure", "--experiment", absent]
    assert "; give --experiment." in command("node", *words).err
    planning = command("deploy", "plan", absent, "--out", tmp_path / "out")
    assert "; give the path of an experiment file." in planning.err
    assert "or none for the demo" in command("run", absent).err
