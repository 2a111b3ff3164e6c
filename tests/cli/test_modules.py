"""A user's own modules and algorithms, named as package.module:Class: found, checked, run and
resumed; mistakes are named.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from covey.errors import ConfigError
from covey.files.config import defaults, load
from experiments.kills.run import difference
from tests.cli.command import ROOT, SMALL, covey, exits
from tests.cli.conftest import forget

NETS = '''
import torch
from torch import nn

class Net(nn.Module):
    """Has a parameter of its own, which no layer resets from the seed."""

    def __init__(self, inputs, outputs, *, width: int = 5, rates: tuple[float, ...] = (0.5,), activation=nn.Tanh):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(inputs, width), activation(), nn.Linear(width, outputs)
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(width))

    def forward(self, x):
        return self.last(self.act(self.first(x)) * self.scale)

def grey(shape, classes=3, channels: "Unknown" = 2, kernel=(3, 3), name="grey", _hidden=object()):
    image = nn.Unflatten(1, (1, 8, 8) if shape == (64,) else shape)  # which takes a tuple and no list
    convolution = nn.Sequential(image, nn.Conv2d(1, channels, kernel), nn.ReLU(), nn.Flatten())
    return nn.Sequential(convolution, nn.Linear(36 * channels, classes))

def synced(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.SyncBatchNorm(4), nn.Linear(4, outputs))

def narrow(inputs, width):
    return nn.Linear(inputs, width)

def number():
    return 5

class Plain:
    pass

made = nn.Linear(2, 2)
'''

ALGORITHM = '''
from dataclasses import dataclass
from typing import Any, ClassVar

import covey


@dataclass(frozen=True)
class Mean(covey.Algorithm):
    """Devices descend, the server averages."""

    steps: int = 3
    lr: float = 0.1
    batch: int | None = 20

    sends: ClassVar[str] = "its model"

    def __post_init__(self) -> None:
        covey.require(self, lr=None)

    def server(self, me, w):
        return me.ask(self.device, w).mean()

    def device(self, me, w):
        return covey.descend(w, me.grad(self.batch), steps=self.steps, lr=self.lr)


class Loose(covey.Algorithm):
    def server(self, me, w):
        return w


@dataclass(frozen=True)
class Headless(covey.Algorithm):
    lr: float = 0.1
'''

OWN = (
    "name=own", "algorithm.name=mine:Mean", "model.name=nets:Net", "data.devices=6", "tree.edges=none", "score_every=1",
)  # fmt: skip


@pytest.fixture
def folder(project: Path) -> Path:
    """A folder with nets.py, a package and an algorithm."""
    texts = {"nets.py": NETS, "kit/__init__.py": "", "kit/deep.py": NETS, "mine.py": ALGORITHM}
    (project / "kit").mkdir()
    for name, text in texts.items():
        (project / name).write_text(text)
    return project


def model(*changes: str) -> nn.Module:
    return load(None, changes).experiment(0).model


def problem(*changes: str) -> str:
    with pytest.raises(ConfigError) as caught:
        model(*changes)
    return str(caught.value)


@pytest.mark.usefixtures("folder")
def test_what_the_data_decides_is_filled_in() -> None:
    net = model("model.name=nets:Net", "model.width=7")
    features = (net.first.in_features, net.first.out_features, net.last.out_features)
    assert (type(net).__name__, *features) == ("Net", 64, 7, 10)
    # the function's own default is 3
    assert model("model.name=kit.deep:grey")[-1].out_features == 10


@pytest.mark.usefixtures("folder")
def test_what_the_file_gives_stands() -> None:
    assert model("model.name=nets:Net", "model.outputs=12").last.out_features == 12
    grey = model("model.name=nets:grey", "model.classes=11", "model.channels=3")
    assert grey[-1].weight.shape == (11, 108)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "changes",
    [
        ["model.name=nets:Net"],
        ["model.name=nets:Net", "model.rates=[0.5, 1.0]", "model.inputs=64"],
        ["model.name=nets:grey"],
        ["model.name=nets:grey", "model.shape=[1, 8, 8]"],
        ["model.name=linear", "algorithm.name=mine:Mean", "algorithm.batch=none"],
        ["model.name=vgg", "model.layers=[8, 'M', 16]", "model.groups=none"],
        ["model.name=permfl_cnn", "model.net=fmnist"],
    ],
    ids=lambda changes: " ".join(changes),
)
def test_the_resolved_file_is_the_same_experiment(folder: Path, changes: list[str]) -> None:
    first = load(None, changes)
    (folder / "config.toml").write_text(first.text())
    second = load(folder / "config.toml")
    assert second.resolved() == first.resolved()
    assert second.text() == first.text()
    assert second.experiment(3).fingerprint() == first.experiment(3).fingerprint()


@pytest.mark.usefixtures("folder")
def test_the_resolved_file_holds_the_defaults_but_nothing_of_the_data() -> None:
    table = tomllib.loads(load(None, ["model.name=nets:Net"]).text())
    assert table["model"] == {"name": "nets:Net", "width": 5, "rates": [0.5]}
    grey = tomllib.loads(load(None, ["model.name=nets:grey"]).text())["model"]
    assert grey == {"name": "nets:grey", "channels": 2, "kernel": [3, 3]}


@pytest.mark.usefixtures("folder")
def test_parameters_of_its_own_follow_the_seed_and_leave_torch_alone() -> None:
    config, before = load(None, ["model.name=nets:Net"]), torch.get_rng_state()
    built: list[Any] = [config.experiment(seed).model for seed in (4, 4, 5)]
    one, again, other = (model.scale for model in built)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["model.name=netts:Net"], ["'netts:Net'", "there is no module netts", "folder that holds netts.py", "PYTHONPATH"]),
        (["model.name=kit.shallow:Net"], ["there is no module kit.shallow", "kit/shallow.py"]),
        (["model.name=nets:Nett"], ["'nets:Nett'", "nets has no Nett", "it has Net, grey, synced, narrow, number."]),
        (["model.name=mine:Net"], ["mine has no Net", "it has no model."]),
        (["model.name=nets:"], ["'nets:'", "write it as package.module:Class"]),
        (["model.name=nets:Net.forward"], ["write it as package.module:Class"]),
        (["model.name=./nets.py:Net"], ["write it as package.module:Class", "nets:Net for the class Net in nets.py"]),
        (["model.name=nets:Plain"], ["is the class Plain", "derived from torch.nn.Module, or a function"]),
        (["model.name=nets:made"], ["of type Linear", "name a class derived from torch.nn.Module"]),
        (["model.name=nets:number"], ["returned 5 of type int", "must return a torch.nn.Module"]),
        (["data.name=nets:number"], ["returned 5 of type int", "must return covey.data.Shards"]),
        (["model.name=nets:Net", "model.wdth=5"], ["unknown key model.wdth", "did you mean model.width?", "known are inputs"]),
        (["model.name=nets:Net", "model.activation=relu"], ["unknown key model.activation"]),
        (["model.name=nets:Net", "model.width=wide"], ['model.width = "wide"', "must be a whole number", "the default is 5"]),
        (["model.name=nets:narrow"], ["model.width is missing", "add it to the file"]),
        (["model.name=nets:Net", "model.width=-2"], ["Net(inputs=64, outputs=10, width=-2", "Error: ", "(nets.py, line 10)"]),
        (["algorithm.name=mine:Meen"], ["algorithm.name = 'mine:Meen'", "mine has no Meen", "it has Mean."]),
        (["algorithm.name=mine:Loose"], ["is the class Loose", "frozen dataclass derived from covey.Algorithm"]),
        (["algorithm.name=mine:Headless"], ["is the class Headless", "with a `server`"]),
        (["algorithm.name=nets:Net"], ["is the class Net", "derived from covey.Algorithm"]),
        (["algorithm.name=nets:synced"], ["is a function", "derived from covey.Algorithm"]),
        (["algorithm.name=mine:Mean", "algorithm.lr=-1.0"], ["Mean: lr = -1.0 must be above 0"]),
        (["algorithm.name=mine:Mean", "algorithm.rate=1.0"], ["unknown key algorithm.rate", "known are steps, lr, batch"]),
        (["algorithm.name=mein"], ["'mein' is unknown", "or package.module:Class of your own"]),
        (["data.name=nets:Net"], ["data.name = 'nets:Net' is the class Net", "name a function that returns covey.data.Shards"]),
    ],
    ids=lambda value: " ".join(value) if "=" in value[0] else "",
)  # fmt: skip
def test_a_wrong_name_or_key(changes: list[str], words: list[str]) -> None:
    said = problem(*changes)
    assert [word for word in words if word not in said] == [], said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import nonesuch",
            ["importing broken fails with ModuleNotFoundError: No module named 'nonesuch' (broken.py, line 1)."],
        ),
        (
            "x = 1\n\ny = x / 0",
            ["importing broken fails with ZeroDivisionError: division by zero (broken.py, line 3)."],
        ),
        ("def (", ["importing broken fails with SyntaxError", "broken.py, line 1"]),
        ("import torch\ntorch.ones(2) @ torch.ones(3)", ["RuntimeError", "(broken.py, line 2)."]),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_imported(folder: Path, text: str, words: list[str]) -> None:
    (folder / "broken.py").write_text(text)
    said = problem("model.name=broken:Net")
    assert [word for word in words if word not in said] == [], said


@pytest.mark.usefixtures("folder")
def test_what_a_module_cannot_be_is_refused_in_one_line() -> None:
    ended = exits(2, "run", *SMALL, "model.name=nets:synced", "--out", "run")
    assert re.fullmatch(r"error: layer '1' is SyncBatchNorm.*norm = \"group\"\.\n", ended.err)
    assert not Path("run").exists()


@pytest.mark.usefixtures("folder")
def test_list_mentions_them_and_shows_the_table_of_one() -> None:
    lines = covey("list", "models").out.splitlines()
    own = [line for line in lines if line.startswith("package.module:Class ")]
    assert ["of your own" in line for line in own].count(True) == 1
    shown = tomllib.loads(covey("list", "models", "nets:Net").out)["model"]
    sizes = {"inputs": "none", "outputs": "none", "width": 5, "rates": [0.5]}
    assert shown == {"name": "nets:Net", **sizes}
    assert defaults("algorithms", "mine:Mean") == {
        "name": "mine:Mean", "steps": 3, "lr": 0.1, "batch": 20,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "path"),
    [
        ("cnn", ["channels=[2]", "hidden=4", "kernel=3"], "each"),
        ("permfl_cnn", ["net=fmnist"], "each"),
        ("vgg", ["layers=[8, 'M', 8]", "head=[6]"], "each"),
        ("linear", [], "fused"),
    ],
)
def test_the_papers_models_take_their_sizes_from_the_data(
    name: str, options: list[str], path: str
) -> None:
    changes = [f"model.{option}" for option in options]
    facts = json.loads(covey("doctor", *SMALL, f"model.name={name}", *changes, "--json").out)
    assert facts["engine"]["path"] == path
    net = model(f"model.name={name}", *changes)
    assert net(torch.zeros(1, 64)).shape == (1, 10)


def test_examples_that_are_no_images_are_refused() -> None:
    said = problem(
        "data.name=synthetic", "data.devices=2", "data.sizes=[20, 20]", "model.name=lenet"
    )
    assert said.startswith("examples of shape (60,) are no images; give (channels, height, width)")


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`covey WORDS` in this folder by a process that, as the installed command, does not look there
    for modules itself.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "covey", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, text=True, capture_output=True, check=False
    )


def test_a_run_of_own_things_stopped_and_resumed_is_the_run_that_was_not(folder: Path) -> None:
    exits(0, "run", *OWN, "rounds=4", "--out", "whole")
    exits(0, "run", *OWN, "rounds=2", "--out", "half")
    resumed = start(folder, "run", "--resume", "half", "rounds=4")
    assert resumed.returncode == 0, resumed.stderr
    assert difference(folder / "whole", folder / "half") is None
    accuracy = json.loads((folder / "whole" / "summary.json").read_text())["models"][0]["accuracy"][
        "mean"
    ]
    assert accuracy > 0.2  # it learns: a guess is right in one of ten


def test_away_from_its_module_a_run_says_where_to_start(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits(0, "run", *SMALL, "rounds=1", "model.name=nets:Net", "--out", "run")
    forget(folder)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    ended = exits(2, "run", "--resume", folder / "run", "rounds=2")
    assert "there is no module nets; start covey in the folder that holds nets.py" in ended.err


def _other_steps(text: str) -> str:
    return text.replace("steps=self.steps", "steps=self.steps + 1")


def _other_width(text: str) -> str:
    return text.replace("width: int = 5", "width: int = 6").replace(
        "nn.Linear(width, outputs)", "nn.Linear(width, outputs, False)"
    )


@pytest.mark.parametrize(
    ("file", "change", "what"),
    [
        ("mine.py", _other_steps, "the algorithm code changed"),
        ("nets.py", _other_width, "its model is"),
    ],
)
def test_code_that_changed_is_another_experiment(
    folder: Path, file: str, change: Callable[[str], str], what: str
) -> None:
    exits(0, "run", *OWN, "rounds=1", "--out", "run")
    (folder / file).write_text(change((folder / file).read_text()))
    forget(folder)
    ended = exits(4, "run", "--resume", "run", "rounds=2")
    assert "is of another experiment" in ended.err
    assert what in ended.err


def test_a_changed_module_goes_on_anyway(folder: Path) -> None:
    """An edit of other lines of the module is refused too, and then the user decides."""
    exits(0, "run", *OWN, "rounds=2", "--out", "half")
    with open(folder / "mine.py", "a") as file:
        file.write("\n\ndef unrelated():\n    return 1\n")
    forget(folder)
    ended = covey("run", "--resume", "half", "rounds=3")
    assert (ended.code, "--anyway" in ended.err) == (4, True)
    exits(0, "run", "--resume", "half", "rounds=3", "--anyway")
    exits(0, "run", *OWN, "rounds=3", "--out", "whole")
    assert difference(folder / "whole", folder / "half") is None
    assert "give --resume" in covey("run", *OWN, "--anyway").err


FAULTY = """
import sys
from dataclasses import dataclass

import covey
from torch import nn


class Forward(nn.Module):
    def __init__(self, inputs, outputs, *, how: str = "key"):
        super().__init__()
        self.layer, self.how = nn.Linear(inputs, outputs), how

    def forward(self, x):
        if self.how == "key":
            return {}["missing"]
        if self.how == "exit":
            sys.exit()
        return [self.layer(x)]


class Constructor(nn.Module):
    def __init__(self):
        raise LookupError("nothing there")


class Exits(nn.Module):
    def __init__(self):
        sys.exit(0)


@dataclass(frozen=True)
class Program(covey.Algorithm):
    early: bool = True
    leaves: bool = False

    def server(self, me, w):
        return me.ask(self.device, w).mean()

    def device(self, me, w):
        if (self.early or len(w)) and self.leaves:
            sys.exit(0)
        return {}["missing"] if self.early or len(w) else w
"""
PLAIN = ("algorithm.name=fedavg", "data.devices=4", "tree.edges=none", "rounds=2")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            ["model.name=faulty:Forward"],
            ["the model Forward does not take", "KeyError: 'missing' (faulty.py, line 16)."],
        ),
        (
            ["model.name=faulty:Forward", "model.how=exit"],
            ["the model Forward does not take", "SystemExit (faulty.py, line 18)"],
        ),
        (["model.name=faulty:Forward", "model.how=list"], ["the model Forward"]),
        (
            ["model.name=faulty:Constructor"],
            ["'faulty:Constructor': Constructor() fails with LookupError", "line 24)"],
        ),
        (["model.name=faulty:Exits"], ["'faulty:Exits': Exits() fails with SystemExit: 0 (faulty.py, line 29)."]),
        (
            ["algorithm.name=faulty:Program"],
            ["the algorithm Program fails on no rows", "KeyError: 'missing' (faulty.py, line 43)"],
        ),
        (
            ["algorithm.name=faulty:Program", "algorithm.leaves=true"],
            ["Program fails on no rows", "SystemExit: 0 (faulty.py"],
        ),
        (
            ["algorithm.name=faulty:Program", "algorithm.early=false"],
            ["Program fails in round 1, with KeyError: 'missing'"],
        ),
        (
            ["algorithm.name=faulty:Program", "algorithm.early=false", "algorithm.leaves=true"],
            ["Program fails in round 1, with SystemExit: 0 (faulty.py"],
        ),
    ],
    ids=lambda value: " ".join(value) if "=" in value[0] else "",
)  # fmt: skip
def test_code_of_ones_own_that_fails_is_one_line_and_exit_code_2(
    folder: Path, changes: list[str], words: list[str]
) -> None:
    (folder / "faulty.py").write_text(FAULTY)
    ended = exits(2, "run", *PLAIN, *changes, "--out", "run")
    assert [word for word in words if word not in ended.err] == [], ended.err
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err
