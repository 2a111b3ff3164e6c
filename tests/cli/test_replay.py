"""`covey replay`: a deployed run with missing nodes, again in the simulator."""

import json
from pathlib import Path

import pytest

from covey.cli.config import load
from covey.deployed.disk import Disk
from covey.deployed.local_tree import LocalTree
from covey.deployed.server_run import finish, server_run
from covey.deployed.transport import Patience
from tests.cli.command import SMALL, covey


@pytest.fixture
def deployed(tmp_path: Path) -> tuple[Path, Path]:
    """(experiment file, the server's disk) of a run in which device 2 was absent in a round."""
    file = tmp_path / "experiment.toml"
    config = load(Path(SMALL[0]), [*SMALL[1:], "rounds=2"])
    file.write_text(config.text(), encoding="utf-8")
    tree = LocalTree(tmp_path / "nodes", patience={"edge": Patience(0.05, 1)})
    rounds = server_run(config.experiment(config.seed), tree)
    next(rounds)
    tree.transport_above("device", 2).leave(2)
    next(rounds)
    tree.transport_above("device", 2).take(2, tree.nodes["device", 2].answer)
    finish(rounds)
    tree.close()
    return file, tree.folder / "server0" / "node.sqlite"


def test_a_replay_equals_the_run(deployed: tuple[Path, Path]) -> None:
    file, disk = deployed
    result = covey("replay", str(file), str(disk))
    assert result.code == 0
    assert "2 rounds" in result.out
    assert "the replay equals the deployed run, bit for bit" in result.out
    facts = json.loads(covey("replay", str(file), str(disk), "--json").out)
    assert facts["absent"] > 0
    assert facts["equal"] is True


def test_a_run_that_is_not_its_replay_is_told(deployed: tuple[Path, Path]) -> None:
    file, path = deployed
    disk = Disk(path)
    disk._query("DELETE FROM missing")
    disk.close()
    result = covey("replay", str(file), str(path))
    assert result.code == 1
    assert "another global model" in result.out


def test_a_disk_that_is_no_servers_is_refused(deployed: tuple[Path, Path], tmp_path: Path) -> None:
    file, _ = deployed
    device = tmp_path / "nodes" / "device1" / "node.sqlite"
    result = covey("replay", str(file), str(device))
    assert result.code == 2
    assert "give the disk of the server" in result.err
    assert covey("replay", str(file), str(tmp_path / "none")).code == 2
