"""[model] weights, lora and frozen: what a file may say of any model, and what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import covey
from covey.errors import CheckpointError, ConfigError, CoveyError
from covey.files.config import load
from covey.models import mlp
from tests.cli.command import exits

FILE = """
rounds = 2
start = "module"
[algorithm]
name = "fedavg"
steps = 1
batch = 5
[data]
name = "digits"
devices = 4
[model]
name = "mlp"
hidden = [8]
weights = "body.safetensors"
"""


def state() -> dict[str, Tensor]:
    module = mlp(64, 8, 10)
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def file(folder: Path, text: str = FILE, **more: Tensor) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({**state(), **more}, folder / "body.safetensors")
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def model(path: Path, *changes: str) -> Any:
    return load(path, changes).experiment(0).model


def test_weights_frozen_layers_and_adapters_from_a_file(tmp_path: Path) -> None:
    path = file(tmp_path)
    values = covey.models.load_weights(mlp(64, 8, 10), tmp_path / "body.safetensors").state_dict()
    plain = model(path)
    assert all(torch.equal(plain.state_dict()[name], value) for name, value in values.items())
    frozen = model(path, 'model.frozen=["1"]', "start=seed")
    trained = [name for name, p in frozen.named_parameters() if p.requires_grad]
    assert trained == ["3.weight", "3.bias"]
    adapted = model(path, "model.lora={rank=2, train=['3']}")
    assert torch.equal(adapted.get_parameter("1.base.weight"), values["1.weight"])
    assert adapted.get_parameter("1.lora_a.weight").shape == (2, 64)
    x = torch.randn(3, 64)
    assert torch.equal(adapted(x), plain(x))


def test_the_resolved_file_means_the_same(tmp_path: Path) -> None:
    path = file(tmp_path)
    changes = ("model.lora={rank=2, train=['3']}", "model.frozen='1.lora_a'")
    resolved = load(path, changes).text()
    assert str(tmp_path / "body.safetensors") in resolved
    again = tmp_path / "again.toml"
    again.write_text(resolved, encoding="utf-8")
    one = load(path, changes).experiment(0).fingerprint()
    assert load(again).experiment(0).fingerprint() == one
    plain = load(path, ["model.weights=none"]).resolved()["model"]
    assert plain == {"name": "mlp", "sizes": [8, 10]} or not plain.keys() & {"weights", "lora"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("model.weights=gone.safetensors",), ["there is no file", "gone.safetensors"]),
        (("model.weights=body.pt",), ["model.weights", "safetensors"]),
        (("model.hidden=[9]",), ["1.weight has the shape (8, 64) in the file, (9, 64)"]),
        (("model.hidden=[8, 8]",), ["does not fit Sequential", "it lacks 5.weight, 5.bias"]),
        (("model.hidden=[]",), ["it has 3.bias, 3.weight, which the module has not"]),
        (("start=seed",), ['start = "seed"', 'set start = "module"', "model.frozen"]),
        (("model.lora={rang=2}",), ["model.lora.rang"]),
        (("model.lora={rank=0}",), ["model.lora.rank", "a whole number between 1"]),
        (("model.frozen=['7']",), ["frozen pattern '7' matches no parameter"]),
        (("model.weight=x",), ["unknown key model.weight", "did you mean model.weights?"]),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changes: tuple[str, ...], words: list[str]) -> None:
    path = file(tmp_path)
    with pytest.raises(CoveyError) as caught:
        load(path, changes).experiment(0)
    for word in words:
        assert word in str(caught.value)


def test_a_file_of_a_run_is_named_as_such(tmp_path: Path) -> None:
    path = file(tmp_path, ids=torch.zeros(1))
    with pytest.raises(CoveyError, match=r"models of a run.*covey export"):
        model(path)
    (tmp_path / "body.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CoveyError, match="is not a safetensors file"):
        model(path)


def test_a_loaded_run_is_whole_and_exports_a_plain_module(tmp_path: Path) -> None:
    path = file(tmp_path)
    lora = "model.lora={rank=2, train=['3']}"
    exits(0, "run", path, lora, "--out", tmp_path / "run")
    run = covey.load(tmp_path / "run")
    rows = sum(value.numel() for value in run.snapshot("global").rows)
    assert rows == 2 * 64 + 8 * 2 + 8 * 10 + 10
    module = run.module("global")
    target = tmp_path / "plain.safetensors"
    run.export(target, "server", to="safetensors", model="global")
    plain = covey.models.load_weights(mlp(64, 8, 10), target)
    x = torch.rand(5, 64)
    torch.testing.assert_close(plain(x), module(x), rtol=1e-4, atol=1e-5)
    file(tmp_path)  # other values
    with pytest.raises(CheckpointError, match="values of frozen parameters changed"):
        covey.load(tmp_path / "run").module("global")


def test_an_own_parameter_called_weights_stays_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = """
from torch import nn


class PretrainedNet(nn.Sequential):
    def __init__(self, weights: str = "a", inputs: int = 64, classes: int = 10) -> None:
        super().__init__(nn.Flatten(), nn.Linear(inputs, classes))
        self.name = weights
"""
    (tmp_path / "pretrained_nets.py").write_text(net, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    text = FILE.replace('"mlp"\nhidden = [8]', '"pretrained_nets:PretrainedNet"')
    path = file(tmp_path, text.replace("body.safetensors", "imagenet"))
    assert model(path).name == "imagenet"
    with pytest.raises(ConfigError, match=r"model\.frozen"):
        model(path, "model.frozen=3")
