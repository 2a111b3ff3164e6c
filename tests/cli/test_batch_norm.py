"""A run folder of a network with BatchNorm: every way to its models gives the device's statistics."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import covey
from covey.folder.load import Loaded
from tests.cli.command import ROOT, exits

OWN = ROOT / "examples" / "own_data" / "own.toml"
TABLE = (ROOT / "examples" / "own_data" / "pumps.csv").read_text(encoding="utf-8").splitlines()
NET = """
from torch import nn

def normed(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, outputs))
"""
PUMP = [[60.0, 1.0, 3.0, 20.0, 8.0, 70.0], [45.0, 2.5, 7.0, 120.0, 9.0, 72.0]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """PerMFL: a model per pump, per site and at the server."""
    folder = tmp_path_factory.mktemp("normed")
    (folder / "normed_nets.py").write_text(NET, encoding="utf-8")
    shutil.copy(OWN.parent / "pumps.csv", folder)
    text = OWN.read_text(encoding="utf-8").replace('"linear"', '"normed_nets:normed"')
    (folder / "own.toml").write_text(text, encoding="utf-8")
    words = ("rounds=3", "algorithm.steps=5", "compare=[]")
    exits(0, "run", folder / "own.toml", *words, "--out", folder / "run")
    assert 'norm = "device"\n' in (folder / "run" / "config.toml").read_text(encoding="utf-8")
    return covey.load(folder / "run")


def mean_of(module: Any) -> torch.Tensor:
    mean: torch.Tensor = module.network[1].running_mean
    return mean


def test_a_device_predicts_with_its_own_statistics(run: Loaded) -> None:
    module = run.module("personal", "pump-03").eval()
    expected = torch.softmax(module(torch.tensor(PUMP)).double(), 1)
    given = run.probabilities(PUMP, device="pump-03", model="personal")
    assert torch.allclose(torch.from_numpy(given), expected, atol=1e-6)
    other = mean_of(run.module("global", "pump-04"))
    assert not torch.equal(mean_of(run.module("global", "pump-03")), other)


def test_a_model_of_all_devices_has_their_mean_statistics(run: Loaded) -> None:
    devices = range(len(run.device_names))
    means = torch.stack([mean_of(run.module("global", device)) for device in devices])
    assert torch.allclose(mean_of(run.module("global")), means.mean(0), atol=1e-6)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("pump-03", "those of the training examples of pump-03"),
        ("mill", "devices together"),
        ("server", "devices together"),
    ],
)
def test_an_exported_file_says_whose_statistics_it_has(
    run: Loaded, tmp_path: Path, node: str, words: str
) -> None:
    path = tmp_path / "model.safetensors"
    run.export(path, node)  # which compares the file with the run
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
        mean = file.get_tensor("1.running_mean")
    assert words in str(facts)
    assert bool(mean.any())


def test_predictions_of_a_file_use_the_statistics_of_each_rows_device(
    run: Loaded, tmp_path: Path
) -> None:
    line = next(line for line in TABLE if "pump-03" in line)
    path = tmp_path / "new.csv"
    path.write_text("\n".join([TABLE[0], line, line.replace("pump-03", "pump-99")]), "utf-8")
    ended = exits(0, "predict", run.folder, "--data", path, "--model", "global", "--json")
    own, pooled = (list(row.values())[2:] for row in json.loads(ended.out))
    assert own != pooled


def test_a_new_device_is_written_with_its_statistics(run: Loaded, tmp_path: Path) -> None:
    lines = [line.replace("pump-03", "pump-99") for line in TABLE if "pump-03" in line]
    data = tmp_path / "pump-99.csv"
    data.write_text("\n".join([TABLE[0], *lines]), encoding="utf-8")
    out = tmp_path / "personal.safetensors"
    exits(0, "personalize", run.folder, "--data", data, "--out", out)
    state = load_file(out)
    assert bool(state["1.running_mean"].any())
    assert not bool((state["1.running_var"] == 1).all())
