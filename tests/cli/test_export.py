"""`covey export`: the file of a node's model predicts what the run predicts, without covey."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import covey
from covey.errors import ConfigError, ModelError
from covey.folder.formats import FORMATS
from covey.folder.load import Loaded
from tests.cli.command import ROOT, exits
from tests.cli.command import covey as command

OWN = ROOT / "examples" / "own_data" / "own.toml"
ALL = bool(os.environ.get("COVEY_TEST_ALL"))
SLOW = pytest.mark.skipif(not ALL, reason="importing the exporters takes seconds")
PUMP = [[60.0, 1.0, 3.0, 20.0, 8.0, 70.0], [45.0, 2.5, 7.0, 120.0, 9.0, 72.0]]
NET = '''
"""A network that answers one example otherwise than many: a trace cannot hold it."""
from torch import nn

class Net(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.hidden = nn.Linear(inputs, 4)
        self.head = nn.Linear(4, outputs)

    def forward(self, x):
        out = self.head(self.hidden(x.flatten(1)).relu())
        return out if len(x) > 1 else 2.0 * out
'''


def made(folder: Path, *words: object) -> Loaded:
    exits(0, "run", *words, "rounds=3", "compare=[]", "--out", folder)
    return covey.load(folder)


@pytest.fixture(scope="module")
def pumps(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """PerMFL: a model per pump, per site and at the server; inputs are scaled."""
    return made(tmp_path_factory.mktemp("pumps") / "run", OWN)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """FedPer: devices keep the head of a network of our own to themselves."""
    folder = tmp_path_factory.mktemp("split")
    (folder / "odd_nets.py").write_text(NET)
    (folder / "odd.toml").write_text(
        '[algorithm]\nname = "fedper"\n[data]\nname = "digits"\ndevices = 4\n'
        '[model]\nname = "odd_nets:Net"\n'
    )
    return made(folder / "run", folder / "odd.toml")


def facts(file: Path) -> dict[str, Any]:
    with safe_open(file, framework="pt") as opened:
        read: dict[str, Any] = json.loads(opened.metadata()["covey"])
    return read


def expected(run: Loaded, device: str, model: str | None = None) -> torch.Tensor:
    return run.outputs(np.array(PUMP, dtype=np.float32), device=device, model=model)


def test_parameters_and_the_stated_scaling_give_the_runs_outputs(
    pumps: Loaded, tmp_path: Path
) -> None:
    file = tmp_path / "pump.safetensors"
    ended = exits(0, "export", pumps.folder, "--node", "pump-03", "--out", file)
    assert "max difference 0.0e+00" in ended.out
    said = facts(file)
    assert (said["node"], said["model"], said["tier"]) == ("pump-03", "personal", "device")
    assert said["round"] == pumps.chosen["personal"]
    assert said["classes"] == ["blocked", "normal", "worn"]
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))  # what a user without covey writes
    network.load_state_dict(load_file(file))
    shift, factor = (torch.tensor(said["scaling"][key]) for key in ("shift", "factor"))
    x = torch.tensor(PUMP)
    assert torch.equal(network((x - shift) * factor), expected(pumps, "pump-03"))


@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
def test_a_whole_program_takes_inputs_as_measured(pumps: Loaded, tmp_path: Path) -> None:
    done = pumps.export(tmp_path / "pump.pt", "pump-03", to="torchscript")
    extra = {"covey": ""}
    module = torch.jit.load(done.file, _extra_files=extra)
    assert torch.equal(module(torch.tensor(PUMP)), expected(pumps, "pump-03"))
    assert json.loads(extra["covey"])["inputs"] == "as measured"
    assert done.difference == 0


FRAGMENTS = re.findall(
    r"```python fragment\n(.*?)```", (ROOT / "docs" / "use.md").read_text(), re.S
)


@pytest.mark.parametrize(
    ("fragment", "to"),
    [(0, "safetensors"), (1, "torch.export"), pytest.param(2, "onnx", marks=SLOW)],
)
@pytest.mark.filterwarnings("ignore")
def test_the_programs_of_the_page_predict_as_the_run(
    pumps: Loaded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fragment: int,
    to: str,
) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    text = FRAGMENTS[fragment]
    (name,) = re.findall(r"pump\.\w+", text)
    pumps.export(tmp_path / name, "pump-03", to=to)
    monkeypatch.chdir(tmp_path)
    assert "covey." not in text
    exec(compile(text, "docs/use.md", "exec"), {})
    (predicted,) = pumps.predict(np.array(PUMP[1:], dtype=np.float32), device="pump-03")
    assert capsys.readouterr().out.strip() == predicted


def test_the_page_uses_a_module_as_the_run_predicts(
    pumps: Loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *others, text = FRAGMENTS
    assert len(others) == 3
    monkeypatch.setattr(covey, "load", lambda folder: pumps)
    exec(compile(text, "docs/use.md", "exec"), {})
    (predicted,) = pumps.predict(np.array(PUMP[1:], dtype=np.float32), device="pump-03")
    assert capsys.readouterr().out.strip() == predicted


PLAIN = """
import sys, torch
module = torch.export.load(sys.argv[1]).module()
print(module(torch.tensor({x})).tolist())
assert "covey" not in sys.modules
"""


@SLOW
def test_torch_export_is_used_without_covey(pumps: Loaded, tmp_path: Path) -> None:
    done = pumps.export(tmp_path / "pump.pt2", "pump-03", to="torch.export")
    words = [sys.executable, "-c", PLAIN.format(x=PUMP), done.file]
    ended = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    answers = torch.tensor(json.loads(ended.stdout))
    torch.testing.assert_close(answers, expected(pumps, "pump-03"))


@SLOW
@pytest.mark.filterwarnings("ignore")
def test_onnx_runtime_answers_as_the_run(pumps: Loaded, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    done = pumps.export(tmp_path / "pump.onnx", "pump-03", to="onnx")
    session = runtime.InferenceSession(done.file)
    (answers,) = session.run(None, {"x": np.array(PUMP, dtype=np.float32)})
    torch.testing.assert_close(torch.from_numpy(answers), expected(pumps, "pump-03"))
    said = json.loads(session.get_modelmeta().custom_metadata_map["covey"])
    assert said["features"][0] == "temperature"
    assert done.difference < 1e-5


@pytest.mark.parametrize(
    ("name", "tier", "model"),
    [
        ("d2", "device", "personal"),
        ("2", "device", "personal"),
        ("device-2", "device", "personal"),
        ("mill", "edge", "edge"),
        ("e1", "edge", "edge"),
        ("server", "server", "global"),
    ],
)
def test_a_node_has_a_name_or_a_number(
    pumps: Loaded, tmp_path: Path, name: str, tier: str, model: str
) -> None:
    done = pumps.export(tmp_path / "model", name)
    assert (done.tier, done.model) == (tier, model)
    network = nn.Linear(6, 3)
    state = load_file(done.file)
    network.load_state_dict({key.rpartition(".")[2]: value for key, value in state.items()})
    scaling = pumps.form.scaling
    assert scaling is not None
    device = {"device": "pump-03", "edge": "pump-06", "server": "pump-01"}[tier]
    answers = network(scaling(torch.tensor(PUMP)))
    assert torch.equal(answers, expected(pumps, device, model))


def test_all_nodes_go_into_a_folder(pumps: Loaded, tmp_path: Path) -> None:
    ended = command("export", pumps.folder, "--node", "all", "--out", tmp_path / "all", "--json")
    files = sorted((tmp_path / "all").iterdir())
    assert len(json.loads(ended.out)) == len(files) == 16
    assert files[0].name == "d0-pump-01-personal.safetensors"
    assert {facts(file)["node"] for file in files} == set(pumps.device_names)
    first, second = (load_file(file) for file in files[:2])
    assert not torch.equal(first["1.weight"], second["1.weight"])


def test_a_file_that_disagrees_is_not_left(split: Loaded, tmp_path: Path) -> None:
    (file := tmp_path / "good.pt").write_bytes(b"an older file")
    with pytest.raises(ModelError, match=r"differs from the model by .*; it was not kept"):
        split.export(file, "d0", to="torchscript")
    assert file.read_bytes() == b"an older file"
    assert [path.name for path in tmp_path.iterdir()] == ["good.pt"]


def test_private_layers_belong_to_a_device(split: Loaded, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every device predicts with private layers of its own"):
        split.export(tmp_path / "model", "server")
    files = [split.export(tmp_path / node, node, model="global").file for node in ("d0", "d1")]
    first, second = map(load_file, files)
    assert torch.equal(first["hidden.weight"], second["hidden.weight"])
    assert not torch.equal(first["head.weight"], second["head.weight"])
    assert facts(Path(files[0]))["scaling"] is None


@pytest.mark.skipif(not ALL, reason="one more run")
def test_what_no_network_predicts_is_refused(tmp_path: Path) -> None:
    small = ("data.name=digits", "data.devices=4", "model.name=linear", "tree.edges=none")
    run = made(tmp_path / "run", *small, "algorithm.name=pfedgp", "algorithm.support=20")
    with pytest.raises(ConfigError, match="PFedGP predicts with 'personal' otherwise"):
        run.export(tmp_path / "model", "d0", model="personal")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--node", "pump-3"), "--node pump-3: there is no such node (did you mean pump-13?)"),
        (("--node", "d16"), "--node d16: this run has the devices 0 to 15."),
        (("--node", "e9"), "--node e9: this run has the edges 0 to 3."),
        (("--node", "²"), "--node ²: there is no such node"),
        (("--node", "d" + "9" * 5000), "there is no such node"),
        (("--node", "server", "--model", "personal"), "'personal' is kept by devices"),
        (("--node", "d0", "--model", "best"), "there is no model 'best'"),
        (("--node", "d0", "--to", "tflite"), "--to tflite: choose one of safetensors, onnx"),
        (("--node", "all", "--to", "torchscript"), "safetensors files alone"),
        (("--node", "d0", "--seed", "7"), "seed = 7: this run has the seeds 0 to 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported(pumps: Loaded, words: tuple[str, ...], says: str) -> None:
    assert says in exits(2, "export", pumps.folder, *words).err
    assert not (pumps.folder / "export").exists()


def test_help_names_every_format() -> None:
    """It lists them itself: their classes import torch."""
    assert ", ".join(FORMATS) in " ".join(exits(0, "export", "--help").out.split())


def test_an_out_of_the_wrong_kind(pumps: Loaded, tmp_path: Path) -> None:
    ended = command("export", pumps.folder, "--node", "d0", "--out", tmp_path)
    assert (ended.code, "is a folder; name a file" in ended.err) == (2, True)
    (tmp_path / "file").touch()
    ended = command("export", pumps.folder, "--node", "all", "--out", tmp_path / "file")
    assert (ended.code, "is a file; with --node all, name a folder" in ended.err) == (2, True)
    assert "is not a run folder" in exits(2, "export", tmp_path, "--node", "d0").err
