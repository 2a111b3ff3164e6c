"""`covey personalize`: a model for a device that was not in training, and every way to ask for it
wrongly.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from covey.files.config import load
from tests.cli.command import ROOT, covey, exits, said

OWN = ROOT / "examples" / "own_data" / "own.toml"
TABLE = (ROOT / "examples" / "own_data" / "pumps.csv").read_text().splitlines()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PerMFL on the example's table."""
    folder = tmp_path_factory.mktemp("own") / "run"
    exits(0, "run", OWN, "rounds=10", "--out", folder)
    return folder


@pytest.fixture
def pump(tmp_path: Path) -> Path:
    """One more pump, with the examples of the third."""
    path = tmp_path / "pump-99.csv"
    path.write_text(
        "\n".join(
            [TABLE[0], *(line.replace("pump-03", "pump-99") for line in TABLE if "pump-03" in line)]
        )
    )
    return path


def test_a_new_device_gets_a_personal_model(run: Path, pump: Path) -> None:
    text = said("personalize", run, "--data", pump)
    assert "its model starts from" in text
    for word in ("global", "edge", "personal", "test %"):
        assert word in text
    model = load(run / "config.toml").experiment(0).model
    file = run / "personal-pump-99.safetensors"
    model.load_state_dict(load_file(file))  # what was written is a module's state
    with safe_open(file, "pt") as opened:
        facts = json.loads(opened.metadata()["covey"])
    shift, factor = (torch.tensor(facts["scaling"][key]) for key in ("shift", "factor"))
    table = np.genfromtxt(pump, delimiter=",", names=True, dtype=None, encoding="utf-8")
    rows = torch.tensor(np.stack([table[name] for name in facts["features"]], axis=1)).float()
    answers = model((rows - shift) * factor).argmax(1)  # scaled as the file's metadata says
    named = np.array([facts["classes"][at] for at in answers.tolist()])
    assert np.mean(named == table["label"]) > 0.6


def test_it_starts_from_the_models_that_the_table_reports(
    run: Path, pump: Path, tmp_path: Path
) -> None:
    """Not from those of the last round, which may be worse: without them nothing changes, with
    others in their place all does.
    """
    words = ("--edge", "mill", "--out", tmp_path / "out.safetensors", "--json")
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    before = json.loads(said("personalize", copy, "--data", pump, *words))
    shutil.move(copy / "models" / "last", tmp_path / "last")
    assert json.loads(said("personalize", copy, "--data", pump, *words)) == before
    tensors = load_file(copy / "models" / "edge.safetensors")
    metadata = {"model": "edge", "tier": "edge", "round": "1"}
    save_file(
        {k: v if k == "ids" else -v for k, v in tensors.items()},
        copy / "models" / "edge.safetensors",
        metadata,
    )
    other = json.loads(said("personalize", copy, "--data", pump, *words))
    assert other["scores"] != before["scores"]


def test_figures_as_json_and_another_place(run: Path, pump: Path, tmp_path: Path) -> None:
    place = tmp_path / "mine.safetensors"
    found = json.loads(
        said("personalize", run, "--data", pump, "--edge", "mill", "--out", place, "--json")
    )
    assert found["start"] == "mill"
    assert found["file"] == str(place)
    assert set(found["scores"]) == {"global", "edge", "personal"}
    before = load_file(place)
    said("personalize", run, "--data", pump, "--edge", "mill", "--out", place)
    assert all(torch.equal(value, load_file(place)[name]) for name, value in before.items())
    less = json.loads(
        said("personalize", run, "--data", pump, "--edge", "mill", "algorithm.steps=2", "--json")
    )
    losses = [each["scores"]["personal"]["train"]["loss"] for each in (less, found)]
    assert losses[0] > losses[1]


def test_the_edge_that_fits_best_is_found(run: Path, pump: Path) -> None:
    edges = ["harbour", "mill", "quarry", "works"]
    each = [
        json.loads(said("personalize", run, "--data", pump, "--edge", edge, "--json"))
        for edge in edges
    ]
    losses = {
        edge: found["scores"]["edge"]["train"]["loss"]
        for edge, found in zip(edges, each, strict=True)
    }
    best = json.loads(said("personalize", run, "--data", pump, "--json"))
    assert best["start"] == min(losses, key=losses.__getitem__)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--edge", "nowhere"], ["--edge nowhere", "harbour, mill, quarry, works"]),
        (["--seed", "3"], ["seed = 3", "the seeds 0 to 0"]),
        (["rounds=3"], ["'rounds=3'", "only the algorithm's fields may change"]),
        (["algorithm.stps=3"], ["unknown key algorithm.stps", "algorithm.steps"]),
    ],
)
def test_what_is_asked_wrongly_is_named(
    run: Path, pump: Path, words: list[str], parts: list[str]
) -> None:
    ended = exits(2, "personalize", run, "--data", pump, *words)
    for part in parts:
        assert part in ended.err


def test_bad_data_is_named_by_line(run: Path, pump: Path, tmp_path: Path) -> None:
    lines = pump.read_text().splitlines()
    lines[3] = lines[3].rsplit(",", 1)[0] + ",exploded"
    pump.write_text("\n".join(lines))
    ended = exits(2, "personalize", run, "--data", pump)
    assert "line 4" in ended.err
    assert "exploded" in ended.err
    exits(2, "personalize", run, "--data", tmp_path / "none.csv")
    assert "is not a run folder" in covey("personalize", tmp_path, "--data", pump).err


def test_a_run_that_has_not_ended_has_no_models(pump: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    exits(
        3, "run", OWN, "rounds=10", "algorithm.name=hierfavg", "algorithm.lr=1e30", "l2=1", "--out", folder,
    )  # fmt: skip
    assert "has no models yet" in exits(2, "personalize", folder, "--data", pump).err


def test_arrays_for_a_flat_algorithm_and_one_of_several_seeds(tmp_path: Path) -> None:
    folder, rng = tmp_path / "run", np.random.default_rng(0)
    words = (
        "algorithm.name=pfedme", "data.name=digits", "model.name=linear", "tree.edges=none", "rounds=2",
        "seeds=2",
    )  # fmt: skip
    exits(0, "run", *words, "--out", folder)
    np.savez(tmp_path / "new.npz", x=rng.random((40, 64)), y=rng.integers(10, size=40))
    found = json.loads(
        said("personalize", folder, "--data", tmp_path / "new.npz", "--seed", "1", "--json")
    )
    assert found["start"] == "global"
    assert set(found["scores"]) == {"global", "personal"}
    assert (folder / "seed-1" / "personal-new.safetensors").exists()
    asked = ("personalize", folder, "--data", tmp_path / "new.npz", "--edge", "1")
    assert "has no edge models" in covey(*asked).err
    np.savez(tmp_path / "wide.npz", x=rng.random((4, 65)), y=rng.integers(10, size=4))
    assert "shape" in covey("personalize", folder, "--data", tmp_path / "wide.npz").err


def test_a_new_device_gets_the_cluster_that_fits_it(tmp_path: Path) -> None:
    folder, rng = tmp_path / "run", np.random.default_rng(0)
    words = (
        "algorithm.name=clustered", "algorithm.clusters=3", "data.name=digits", "model.name=linear",
        "tree.edges=none",
    )  # fmt: skip
    exits(0, "run", *words, "rounds=2", "--out", folder)
    assert load_file(folder / "models" / "clusters.safetensors")["ids"].tolist() == [0, 1, 2]
    np.savez(tmp_path / "new.npz", x=rng.random((40, 64)), y=rng.integers(10, size=40))
    found = json.loads(said("personalize", folder, "--data", tmp_path / "new.npz", "--json"))
    assert found["start"] in "012"
    asked = ("personalize", folder, "--data", tmp_path / "new.npz", "--json")
    losses = [json.loads(said(*asked, "--edge", at))["scores"]["edge"] for at in "012"]
    assert found["scores"]["edge"]["train"]["loss"] == min(loss["train"]["loss"] for loss in losses)


def test_a_new_device_has_the_metrics_of_its_run(pump: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    asked = ('metrics=["f1"]', "select=ece", "rounds=2")
    exits(0, "run", OWN, *asked, "--out", folder)
    text = said("personalize", folder, "--data", pump)
    head, *rows = [line for line in text.splitlines() if line.startswith(("model", "glob", "pers"))]
    assert head.split("  ")[-1].strip() == "test f1"
    assert re.search(r"train ece +validation ece +test ece +test % +test f1$", head)
    facts = json.loads(said("personalize", folder, "--data", pump, "--json"))
    assert (facts["metric"], facts["higher_is_better"]) == ("ece", False)
    score = facts["scores"]["global"]["test"]
    assert rows[0].split()[-1] == f"{score['metrics']['f1']:.4g}"
    assert rows[0].split()[-3] == f"{score['metrics']['ece']:.4g}"


def test_each_device_of_a_file_gets_a_model(run: Path, pump: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.csv"
    others = [line.replace("pump-11", "hall 2/b") for line in TABLE if "pump-11" in line]
    both.write_text("\n".join([*pump.read_text().splitlines(), *others]))
    words = ("--data", both, "--out", tmp_path / "out")
    found = json.loads(said("personalize", run, *words, "--json"))
    assert [one["device"] for one in found] == ["pump-99", "hall 2/b"]
    files = [Path(one["file"]) for one in found]
    names = [f"personal-{name}.safetensors" for name in ("pump-99", "hall%202%2Fb")]
    assert [path.name for path in files] == names
    first, second = map(load_file, files)
    assert not all(torch.equal(first[name], second[name]) for name in first)
    place = tmp_path / "one.safetensors"
    alone = json.loads(said("personalize", run, "--data", pump, "--out", place, "--json"))
    assert all(torch.equal(first[name], value) for name, value in load_file(place).items())
    assert [found[0][key] for key in ("start", "scores")] == [alone["start"], alone["scores"]]
    text = said("personalize", run, *words)
    assert text.count("its model starts from") == 2
    assert "hall 2/b: a new device" in text
