"""`covey.load`: a run folder opened again predicts what the run scored, by names, in the units of
the data.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey.errors import CheckpointError, ConfigError, DataError
from covey.folder.load import Loaded
from covey.runs.scores.devices import from_csv
from tests.cli.command import ROOT, exits

OWN = ROOT / "examples" / "own_data" / "own.toml"
FEATURES = ["temperature", "vibration", "pressure", "flow", "current", "noise"]
DIGITS = (
    "data.name=digits", "data.devices=5", "model.name=mlp", "model.hidden=[6]", "tree.edges=none",
)  # fmt: skip
QUICK = ("rounds=3", "score_every=1", "checkpoint_every=1")


def made(folder: Path, *words: object) -> Loaded:
    """The loaded run of `covey run WORDS`."""
    exits(0, "run", *words, "--out", folder)
    return covey.load(folder)


def numbers(run: Loaded, predicted: np.ndarray[Any, Any]) -> torch.Tensor:
    """Predicted classes as the data numbers them."""
    names = list(run.names.classes)
    return torch.tensor([names.index(name) for name in predicted] if names else predicted)


def raw(run: Loaded, x: torch.Tensor) -> np.ndarray[Any, Any]:
    """Inputs in the units of the data before scaling."""
    scaling = run.experiment.data.scaling
    if scaling is None:
        return x.numpy()
    return (x.double() / scaling.factor + scaling.shift).numpy()


def check_scores(run: Loaded, which: Any = "chosen") -> None:
    """Predictions for every device's test examples have the accuracy that devices.csv states."""
    lines = [line for line in run.devices() if line.part == "test"]
    assert {line.model for line in lines} == set(run.models())
    shards = run.source.run.trained
    assert len(lines) == len(run.models()) * shards.devices
    for line in lines:
        number = run.device_names.index(line.device)
        index = shards.test.held(number)
        values = raw(run, shards.x[index])
        predicted = run.predict(values, device=line.device, model=line.model, which=which)
        right = float((numbers(run, predicted) == shards.y[index]).double().mean())
        wanted = line.accuracy if which == "chosen" else line.last_accuracy
        assert right == pytest.approx(wanted, abs=1e-9), (line.device, line.model)
        probabilities = run.probabilities(values, device=line.device, model=line.model, which=which)
        np.testing.assert_allclose(probabilities.sum(1), 1)
        chosen = probabilities[np.arange(len(index)), shards.y[index].numpy()]
        loss = line.loss if which == "chosen" else line.last_loss
        assert -np.log(chosen).mean() == pytest.approx(loss, rel=1e-3, abs=1e-5), (
            line.device,
            line.model,
        )


@pytest.fixture(scope="module")
def pumps(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """PerMFL on the example's table; its models are chosen in different rounds."""
    return made(tmp_path_factory.mktemp("pumps") / "run", OWN, *QUICK, "rounds=8")


@pytest.mark.parametrize(
    "words",
    [
        ("algorithm.name=fedavg", "algorithm.sample=2"),
        ("algorithm.name=pfedme", "algorithm.sample=2"),
        ("algorithm.name=fedper", "private=head"),
        ("algorithm.name=hierfavg", "tree.edges=[2,3]", "algorithm.edge_rounds=2"),
        ("algorithm.name=pfedgp", "algorithm.support=20"),
        ("algorithm.name=pfedbayes", "algorithm.draws=3", "algorithm.local_rounds=3", "algorithm.lr=0.05"),
        ("algorithm.name=finetune", "holdout_devices=2"),
    ],
    ids=["FedAvg", "pFedMe", "FedPer", "HierFAVG", "pFedGP", "pFedBayes", "held-out devices"],
)  # fmt: skip
def test_predictions_have_the_accuracy_that_was_scored(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    run = made(tmp_path / "run", *DIGITS, *QUICK, *words)
    assert run.finished
    assert len(run.device_names) == (3 if "holdout_devices=2" in words else 5)
    check_scores(run)


@pytest.mark.parametrize("which", ["chosen", "last"])
def test_scaling_and_names_of_classes(pumps: Loaded, which: str) -> None:
    check_scores(pumps, which)
    assert pumps.names.features == tuple(FEATURES)
    assert len(set(pumps.chosen.values())) > 1  # else "chosen" and "last" could be mixed up


class Frame:
    """The least of a DataFrame: columns by name, in an order of its own, and one that is no
    feature.
    """

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = list(columns)
        self._columns = columns

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


def readings(count: int = 4) -> dict[str, np.ndarray[Any, Any]]:
    """The first rows of the table, features in reverse order."""
    rows = [line.split(",") for line in (OWN.parent / "pumps.csv").read_text().splitlines()]
    columns = dict(zip(rows[0], zip(*rows[1 : count + 1], strict=True), strict=True))
    return {name: np.array(columns[name], dtype=float) for name in reversed(FEATURES)}


def test_examples_in_every_form_are_the_same(pumps: Loaded) -> None:
    columns = readings()
    array = np.stack([columns[name] for name in FEATURES], axis=1)
    wanted = pumps.probabilities(array, device="pump-01")
    assert wanted.shape == (4, 3)
    forms: list[Any] = [
        columns, Frame(columns | {"device": ["pump-01"] * 4}), array.tolist(), torch.from_numpy(array),
        torch.from_numpy(array).requires_grad_(),
    ]  # fmt: skip
    for form in forms:
        np.testing.assert_array_equal(pumps.probabilities(form, device="pump-01"), wanted)
        np.testing.assert_array_equal(pumps.probabilities(form, device=0), wanted)
    for form in (array[1], {name: value[1] for name, value in columns.items()}):
        np.testing.assert_allclose(
            pumps.probabilities(form, device="pump-01"), wanted[1:2], rtol=1e-6
        )
    names = pumps.predict(array, device="pump-01")
    assert [pumps.names.classes[best] for best in wanted.argmax(1)] == names.tolist()
    assert not np.allclose(pumps.probabilities(array, device="pump-01", model="global"), wanted)


def test_each_row_of_a_frame_is_predicted_by_its_device(pumps: Loaded) -> None:
    names = ["pump-07", "pump-01", "pump-07", "pump-02"]
    frame = Frame(readings() | {"device": names})
    alone = [
        pumps.probabilities({name: cells[row] for name, cells in readings().items()}, device=names[row])
        for row in range(4)
    ]  # fmt: skip
    np.testing.assert_allclose(pumps.probabilities(frame), np.concatenate(alone), rtol=1e-6)
    same = pumps.probabilities(frame, device="pump-01")
    np.testing.assert_array_equal(same, pumps.probabilities(readings(), device="pump-01"))
    assert not np.allclose(pumps.probabilities(frame)[:1], same[:1])
    everybody = pumps.predict(frame, model="global")
    assert (everybody == pumps.predict(readings(), model="global")).all()
    one = {name: value[0] for name, value in readings().items()} | {"device": "pump-07"}
    np.testing.assert_allclose(pumps.probabilities(one), alone[0], rtol=1e-6)
    with pytest.raises(ConfigError, match=r"no device 'pump-99'.*take the global model"):
        pumps.predict(readings() | {"device": [*names[:3], "pump-99"]})


def test_a_data_frame_of_pandas(pumps: Loaded) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(OWN.parent / "pumps.csv")
    mine = table[table.device == "pump-03"]
    array = mine[FEATURES].to_numpy()
    assert (pumps.predict(mine, device="pump-03") == pumps.predict(array, device="pump-03")).all()


def test_the_module_is_a_plain_one(pumps: Loaded) -> None:
    array = np.stack([readings()[name] for name in FEATURES], axis=1)
    scaling = pumps.experiment.data.scaling
    assert scaling is not None
    x = scaling(torch.from_numpy(array)).float()
    for model in ("personal", "edge"):
        with torch.no_grad():
            outputs = pumps.module(model, "pump-07", scaled=True)(x)
            as_measured = pumps.module(model, "pump-07")(torch.from_numpy(array))
        assert torch.equal(as_measured, outputs)
        shares = torch.softmax(outputs.double(), 1)
        np.testing.assert_allclose(
            pumps.probabilities(array, device="pump-07", model=model), shares.numpy()
        )
    same_edge = (
        pumps.module("edge", "pump-01").state_dict(),
        pumps.module("edge", "pump-02").state_dict(),
    )
    assert all(torch.equal(same_edge[0][key], same_edge[1][key]) for key in same_edge[0])
    other = pumps.module("edge", "pump-16").state_dict()
    assert not all(torch.equal(same_edge[0][key], other[key]) for key in other)


def test_a_model_of_ones_own_needs_a_device_and_a_global_one_does_not(pumps: Loaded) -> None:
    with pytest.raises(
        ConfigError, match=r"every device has a 'personal' of its own.*device='pump-01'"
    ):
        pumps.predict(readings())
    with pytest.raises(ConfigError, match="'edge'"):
        pumps.module("edge")
    shared = pumps.predict(readings(), model="global")
    assert (shared == pumps.predict(readings(), model="global", device=3)).all()


def test_the_most_personal_model_is_taken(pumps: Loaded, tmp_path: Path) -> None:
    assert pumps.snapshot().model == "personal"
    averaged = made(tmp_path / "run", *DIGITS, *QUICK, "algorithm.name=fedavg")
    assert averaged.snapshot().model == "global"
    assert averaged.predict(np.zeros(64)).shape == (1,)


@pytest.mark.parametrize(
    ("examples", "settings", "error", "words"),
    [
        (Frame({"heat": [1.0], "noise": [2.0]}), {}, DataError, "lack the columns temperature, vibration, pressure"),
        ({**readings(1), "noise": ["loud"]}, {}, DataError, "column 'noise' of the examples are not numbers"),
        ({**readings(2), "flow": [1.0, np.nan]}, {}, DataError, "column 'flow' of example 1 is nan"),
        (np.zeros((2, 5)), {}, DataError, r"examples of shape \(5,\), but this run was trained on \(6,\)"),
        (np.float64(3), {}, DataError, r"examples of shape \(\)"),
        (np.zeros((0, 6)), {}, DataError, "no examples"),
        ([["a"] * 6], {}, DataError, "are not numbers"),
        (
            np.zeros((1, 6)), {"device": "pump-99"}, ConfigError,
            r"no device 'pump-99' .*did you mean pump-.*it has 16",
        ),
        (np.zeros((1, 6)), {"device": 16}, ConfigError, "has the devices 0 to 15"),
        (np.zeros((1, 6)), {"device": -1}, ConfigError, "has the devices 0 to 15"),
        (np.zeros((1, 6)), {"model": "best"}, ConfigError, "no model 'best' .* there are global, edge, personal"),
    ],
)  # fmt: skip
def test_what_cannot_be_predicted_is_named(
    pumps: Loaded, examples: Any, settings: dict[str, Any], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        pumps.predict(examples, **{"device": 0, **settings})


def test_an_unfinished_run_is_as_it_stands_at_its_checkpoint(tmp_path: Path) -> None:
    """A run of three rounds, of which all files are there, that is to have nine: what counts is the
    checkpoint.
    """
    folder = tmp_path / "run"
    short = made(folder, OWN, *QUICK, "rounds=2")
    before = short.probabilities(readings(), device=0)
    text = (folder / "config.toml").read_text()
    assert text.count("\nrounds = 2\n") == 1
    (folder / "config.toml").write_text(text.replace("\nrounds = 2\n", "\nrounds = 9\n"))
    again = covey.load(folder)
    assert not again.finished
    assert "after 2 of 9 rounds" in repr(again)
    np.testing.assert_array_equal(again.probabilities(readings(), device=0), before)
    for name in ("models", "devices.csv"):  # a run that was stopped before its end has none
        (shutil.rmtree if name == "models" else Path.unlink)(folder / name)
    without = covey.load(folder)
    np.testing.assert_array_equal(without.probabilities(readings(), device=0), before)
    check_scores(without)
    assert "personal" in without.table()
    assert without.plot(tmp_path / "now.png").exists()


def test_files_of_a_shorter_run_are_not_taken_for_those_of_a_longer(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made(folder, OWN, *QUICK, "rounds=2")
    longer = made(tmp_path / "longer", OWN, *QUICK, "rounds=5")
    for name in ("checkpoint.safetensors", "checkpoint.history.jsonl", "metrics.jsonl"):
        shutil.copy(tmp_path / "longer" / name, folder)
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("\nrounds = 2\n", "\nrounds = 9\n"))
    mixed = covey.load(folder)
    wanted = longer.probabilities(readings(), device=0, which="last")
    np.testing.assert_array_equal(mixed.probabilities(readings(), device=0, which="last"), wanted)
    assert {line.last_round for line in mixed.devices()} == {5}


def test_a_run_without_a_scored_round(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made(folder, OWN, *QUICK, "rounds=1")
    for name in ("checkpoint.safetensors", "status.json"):
        (folder / name).unlink()
    run = covey.load(folder)
    assert (run.finished, run.history, run.models()) == (False, [], [])
    for ask in (run.table, run.plot, run.devices, run.module, lambda: run.predict(readings())):
        with pytest.raises(ConfigError, match="covey run --resume"):
            ask()


def test_a_finished_run_is_shown_whatever_wrote_its_checkpoint(tmp_path: Path) -> None:
    """Its records suffice; models of single devices need the checkpoint, which is then refused."""
    folder = tmp_path / "run"
    table = made(folder, OWN, *QUICK, "rounds=1").table()
    path = folder / "checkpoint.safetensors"
    path.write_bytes(b"of another covey")
    again = covey.load(folder)
    assert again.finished
    assert again.table() == table
    with pytest.raises(CheckpointError, match="is damaged or not a checkpoint"):
        again.predict(readings(), device=0)
    path.unlink()
    assert covey.load(folder).table() == table


def test_several_seeds(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = made(folder, *DIGITS, *QUICK, "algorithm.name=ditto", "seed=4", "seeds=2")
    second = covey.load(folder, seed=5)
    assert (first.seed, second.seed, list(first.seeds)) == (4, 5, [4, 5])
    check_scores(second)
    x = np.random.default_rng(0).random((3, 64))
    assert not np.allclose(first.probabilities(x, device=1), second.probabilities(x, device=1))
    with pytest.raises(ConfigError, match="seed = 6: this run has the seeds 4 to 5"):
        covey.load(folder, seed=6)


def test_regression(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    rows = [f"d{k % 3},{a:.4f},{b:.4f},{2 * a - b:.4f}" for k, (a, b) in enumerate(x.tolist())]
    (tmp_path / "t.csv").write_text("\n".join(["device,a,b,label", *rows]))
    words = (
        "data.name=files",
        f"data.path={tmp_path / 't.csv'}",
        "loss=squared_error",
        "model.name=linear",
    )
    more = ("tree.edges=none", "algorithm.name=fedavg", "rounds=20", "algorithm.lr=0.1")
    run = made(tmp_path / "run", *words, *more)
    predicted = run.predict({"b": x[:, 1], "a": x[:, 0]})
    assert predicted.shape == (60,)
    np.testing.assert_allclose(predicted, 2 * x[:, 0] - x[:, 1], atol=0.05)
    with pytest.raises(ConfigError, match="predicts numbers"):
        run.probabilities(x)


def test_the_table_and_devices_are_those_of_the_run(pumps: Loaded, tmp_path: Path) -> None:
    text = pumps.table()
    assert "devices gain" in text
    assert "edge-device" in text
    assert pumps.devices() == from_csv((pumps.folder / "devices.csv").read_text())
    assert pumps.config.resolved()["algorithm"]["name"] == "permfl"
    assert len(pumps.history) == 8
    assert "finished: global, edge, personal" in repr(pumps)
    before = {path: path.read_bytes() for path in pumps.folder.rglob("*") if path.is_file()}
    pumps.plot(tmp_path / "p.png")
    assert {path: path.read_bytes() for path in pumps.folder.rglob("*") if path.is_file()} == before


def test_more_rows_in_the_table_do_not_matter_but_for_whom_they_move(tmp_path: Path) -> None:
    """A device's own model needs nothing of the data; its edge's needs the tree, which the new
    table may change.
    """
    shutil.copytree(OWN.parent, tmp_path / "own")
    run = made(tmp_path / "run", tmp_path / "own" / "own.toml", *QUICK)
    before = run.probabilities(readings(), device="pump-16")
    table = tmp_path / "own" / "pumps.csv"
    table.write_text(
        table.read_text().rstrip("\n")
        + "\n"
        + "pump-17,harbour,42.2,2.31,4.64,104,8.4,73.0,normal\n" * 9
    )
    again = covey.load(tmp_path / "run")
    np.testing.assert_array_equal(again.probabilities(readings(), device="pump-16"), before)
    with pytest.raises(CheckpointError, match="is of another experiment"):
        again.predict(readings(), device="pump-16", model="edge")


def test_a_finished_run_without_its_table_of_devices(tmp_path: Path) -> None:
    run = made(tmp_path / "run", OWN, *QUICK, "rounds=1")
    (tmp_path / "run" / "devices.csv").unlink()
    with pytest.raises(ConfigError, match=r"devices.csv does not exist.*covey run .*config.toml"):
        run.devices()


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a run folder: it has no config.toml"):
        covey.load(tmp_path)
