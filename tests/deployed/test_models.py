"""The models of a deployed run on the disks of its nodes, loaded and used."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import covey
from covey.deployed.files.node_folder import NodeModels, write_form, write_forms
from covey.deployed.node import own_models
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.server_run import finish, server_run
from covey.deployed.plan.process import Process
from covey.errors import CheckpointError, ConfigError
from covey.files.config import Config, load
from covey.runs.saved import checkpoint
from covey.runs.saved.run_folder import RunFolder
from tests.cli.command import BASE, SMALL, exits
from tests.cli.command import covey as command
from tests.given import drained

ALL = "COVEY_TEST_ALL" in os.environ
CHANGES = [*SMALL[1:], "rounds=3", "algorithm.name=permfl"]


@pytest.fixture(scope="module")
def config() -> Config:
    return load(BASE, CHANGES)


@pytest.fixture(scope="module")
def simulated(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run in the simulator."""
    out = tmp_path_factory.mktemp("simulated") / "run"
    exits(0, "run", BASE, *CHANGES, "--out", out)
    return out


@pytest.fixture(scope="module")
def nodes(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTree]:
    """A tree whose run has ended."""
    tree = LocalTree(tmp_path_factory.mktemp("nodes"))
    experiment = config.experiment(config.seed)
    run = server_run(experiment, tree)
    for tier, number in tree.nodes:
        write_form(tree.folder / f"{tier}{number}", config, experiment.data)
    with pytest.raises(ConfigError, match="without models yet"):
        covey.load(tree.folder / "device0")
    drained(run)
    for node in tree.nodes.values():
        node.shares_rows = False
    finish(run)
    yield tree
    tree.close()


def finished(experiment: covey.Experiment, folder: Path) -> LocalTree:
    """A tree whose run has ended, and whose disks are closed."""
    tree = LocalTree(folder)
    run = drained(server_run(experiment, tree))
    finish(run)
    tree.close()
    return tree


def test_a_device_predicts_with_its_own_disk(nodes: LocalTree, simulated: Path) -> None:
    """As the server's folder would, with every model that it uses."""
    whole = covey.load(simulated)
    examples = whole.experiment.data.x[:20].numpy()
    for number in (0, 5):
        device = covey.load(nodes.folder / f"device{number}")
        assert isinstance(device.source, NodeModels)
        assert device.models() == whole.models()
        assert device.chosen == whole.chosen
        assert f"<device {number} of small" in repr(device)
        for model in [None, *whole.models()]:
            own = device.probabilities(examples, model=model)
            assert np.array_equal(own, whole.probabilities(examples, device=number, model=model))
        assert np.array_equal(device.predict(examples), whole.predict(examples, device=number))


def test_a_nodes_module_takes_the_units_of_the_table(tmp_path: Path) -> None:
    """Gaps, words, scaled columns and scaled targets, from the state folder of a device alone."""
    rng = np.random.default_rng(0)
    rows = ["device,price,carat,cut"]
    for number in range(80):
        carat = rng.uniform(0.2, 2)
        shown = "" if number % 9 == 0 else f"{carat:.3f}"
        rows.append(f"{'abcd'[number % 4]},{3000 * carat + 900:.0f},{shown},{'xy'[number % 2]}")
    (tmp_path / "prices.csv").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "prices.toml").write_text(
        'rounds = 2\nloss = "mse"\n[algorithm]\nname = "pfedme"\n[model]\nname = "linear"\n'
        '[data]\nname = "files"\npath = "prices.csv"\nlabel = "price"\nmissing = "mean"\n',
        encoding="utf-8",
    )
    config = load(tmp_path / "prices.toml")
    experiment = config.experiment(config.seed)
    tree = finished(experiment, tmp_path / "nodes")
    shards = experiment.data
    assert shards.target is not None
    cells = [row.split(",") for row in rows[1:]]
    columns = {"carat": [row[2] for row in cells], "cut": [row[3] for row in cells]}
    for number in (0, 3):
        folder = tree.folder / f"device{number}"
        write_form(folder, config, shards)
        device = covey.load(folder)
        assert isinstance(device.source, NodeModels)
        for model in device.models():
            bare = device.module(model, scaled=True)
            expected = shards.target.undone(bare(shards.x).double()).float()
            answers = device.module(model)(columns)
            torch.testing.assert_close(answers, expected, rtol=1e-5, atol=1e-2)
            assert float(answers.detach().mean()) > 1000


def test_an_edge_has_its_own_model(nodes: LocalTree, simulated: Path) -> None:
    whole = covey.load(simulated)
    read = whole.snapshot("edge")
    for number in (0, 1):
        edge = covey.load(nodes.folder / f"edge{number}")
        assert edge.models() == ["edge"]
        row = edge.snapshot().row(number)
        assert row is not None
        assert torch.equal(row, read.rows[number])
    assert covey.load(nodes.folder / "server0").models() == ["global"]


def test_the_command_predicts_on_the_device(nodes: LocalTree, simulated: Path) -> None:
    x = covey.load(simulated).experiment.data.x[:3].numpy()
    file = nodes.folder / "new.npz"
    np.savez(file, x=x)
    own = command("predict", nodes.folder / "device4", "--data", file)
    whole = command("predict", simulated, "--data", file, "--device", "4")
    assert own.code == 0, own.err
    columns = [line.partition(",")[2] for line in whole.out.splitlines()]
    assert own.out.splitlines() == columns


def test_rows_of_other_devices_are_refused(nodes: LocalTree, simulated: Path) -> None:
    x = covey.load(simulated).experiment.data.x[:2].numpy()
    file = nodes.folder / "named.npz"
    np.savez(file, x=x, device=np.array(["4", "5"]))
    result = exits(2, "predict", nodes.folder / "device4", "--data", file)
    assert "device '5' has its models elsewhere; these are those of device 4" in result.err
    np.savez(file, x=x, device=np.array(["4", "4"]))
    exits(0, "predict", nodes.folder / "device4", "--data", file)
    exits(0, "predict", nodes.folder / "edge0", "--data", file)


def test_what_a_node_does_not_have_is_refused(nodes: LocalTree) -> None:
    device = covey.load(nodes.folder / "device1")
    with pytest.raises(ConfigError, match="the models of device 1 alone, not 'pump'"):
        device.module(device="pump")
    with pytest.raises(ConfigError, match="there is no model 'private'"):
        device.module("private")
    with pytest.raises(ConfigError, match="look in the server's folder"):
        device.table()
    with pytest.raises(ConfigError, match="chosen rounds alone"):
        device.snapshot(which="last")
    with pytest.raises(ConfigError, match="of a process; give the folder of a node in it"):
        covey.load(nodes.folder)
    exits(2, "show", nodes.folder / "device1")
    assert "give the run folder of the server" in exits(2, "report", nodes.folder / "device1").err


def test_what_a_killed_process_left_half_written_goes(config: Config, tmp_path: Path) -> None:
    models = RunFolder(tmp_path / "device0").models
    models.mkdir(parents=True)
    (models / ".personal.safetensors.7.part").write_bytes(b"half")
    process = Process(name="device0", seats=["device0"], state=str(tmp_path))
    write_forms(config, process, config.experiment(config.seed).data, {})
    assert not list(models.iterdir())


def test_a_node_is_exported_by_the_name_of_its_seat(nodes: LocalTree) -> None:
    place = nodes.folder / "device1"
    out = nodes.folder / "seat.safetensors"
    exits(0, "export", place, "--node", "device1", "--to", "safetensors", "--out", out)
    assert out.exists()


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    nodes: LocalTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a file is written, then the disk is full."""
    node = nodes.nodes["device", 3]
    folder = nodes.folder / "device3"
    before = {path: path.read_bytes() for path in (folder / "models").iterdir()}
    assert before
    facts = RunFolder(folder).node.read_bytes()

    def full(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        save_file(tensors, path, metadata)
        os.truncate(path, os.path.getsize(path) // 2)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    model = own_models.ChosenModel("personal", "device", "present", 0, ())
    with pytest.raises(CheckpointError, match="No space left on device"):
        own_models.write(node, own_models.as_arguments([model]), [])
    assert {path: path.read_bytes() for path in (folder / "models").iterdir()} == before
    assert RunFolder(folder).node.read_bytes() == facts


OTHERS = ["fedrep", "pfedbayes", "pfedgp", "fedavg", "demlearn", "fedamp"]


@pytest.mark.parametrize("name", OTHERS if ALL else OTHERS[:1])
def test_devices_predict_as_their_algorithm_does(name: str, tmp_path: Path) -> None:
    """With private layers, with a variance or a kernel beside the model, or by the global model."""
    changes = [*SMALL[1:], "rounds=2", f"algorithm.name={name}"]
    changes = [change for change in changes if "edge_rounds" not in change]
    changes += ["model.name=mlp", "model.hidden=[8]"]
    whole = tmp_path / "whole"
    exits(0, "run", BASE, *changes, "--out", whole)
    config = load(BASE, changes)
    experiment = config.experiment(config.seed)
    tree = finished(experiment, tmp_path / "nodes")
    simulated = covey.load(whole)
    x = experiment.data.x[:20].numpy()
    for number in (1, 4):
        folder = tree.folder / f"device{number}"
        write_form(folder, config, experiment.data)
        device = covey.load(folder)
        assert device.models() == simulated.models()
        for model in device.models():
            expected = simulated.probabilities(x, device=number, model=model)
            assert np.array_equal(device.probabilities(x, model=model), expected)
