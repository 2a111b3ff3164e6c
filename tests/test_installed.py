"""Entry points of installed packages: found, listed, run; clashes and broken ones are named with
their package.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.codecs import codec
from covey.errors import ConfigError
from covey.files.config import defaults, load
from covey.links.spec import wires
from tests.cli.command import covey, exits

ACME = '''
"""What Acme adds to covey."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

import covey
from covey.codecs import Dense


def resnet(inputs, outputs, *, width: int = 4):
    """One layer around which the input goes."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


def blobs(devices: int = 4, seed: int = 0):
    """Points around a corner per class."""
    y = torch.arange(20) % 2
    return covey.data.own([(torch.randn(20, 3, generator=torch.Generator().manual_seed(seed)), y)] * devices)


def torn(inputs):
    return {}["key"]


@dataclass(frozen=True)
class Mean(covey.Algorithm):
    """Devices descend, the server averages."""

    lr: float = 0.1

    sends: ClassVar[str] = "its model"

    def server(self, me, w):
        return me.ask(self.device, w).mean()

    def device(self, me, w):
        return covey.descend(w, me.grad(10), steps=2, lr=self.lr)


@dataclass(frozen=True)
class Plain(Dense):
    """Dense rows under another name."""

    scale: float = 1.0

    @property
    def name(self):
        return "plain"


number = 5
'''

ENTRIES = """
[covey.models]
resnet = acme:resnet
torn = acme:torn
number = acme:number
lost = acme_absent:net
[covey.data]
blobs = acme:blobs
[covey.algorithms]
mean = acme:Mean
[covey.codecs]
plain = acme:Plain
misnamed = acme:Plain
none = acme:number
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package with these entry points where Python looks; forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def put(entries: str = ENTRIES, package: str = "acme-covey", module: str = ACME) -> None:
        place = tmp_path / package
        info = place / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (place / "acme.py").write_text(module)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entries)
        sys.path.append(str(place))

    yield put
    sys.modules.pop("acme", None)


CHANGES = (
    "name=installed", "rounds=2", "model.name=resnet", "model.width=3", "data.name=blobs", "algorithm.name=mean",
    "codec=plain", "tree.edges=none",
)  # fmt: skip


def test_what_a_package_declares_runs_by_its_name(install: Install) -> None:
    with pytest.raises(ConfigError, match="'mean' is unknown"):
        load(None, list(CHANGES))
    install()
    config = load(None, list(CHANGES))
    assert "acme" in sys.modules
    assert config.resolved()["model"] == {"name": "resnet", "width": 3}
    exits(0, "run", *CHANGES, "--out", "run")
    exits(0, "run", "--resume", "run", "rounds=3")
    assert wires("plain", ["server-device"])["server-device", "up"].codec.name == "plain"
    assert codec("plain", scale=2.0).scale == 2.0  # type: ignore[attr-defined]
    assert defaults("algorithms", "mean") == {"name": "mean", "lr": 0.1}


def test_list_shows_them_with_their_package_and_the_broken_ones_as_broken(install: Install) -> None:
    install()
    rows: dict[Any, Any] = {}
    for kind in ("models", "data", "algorithms", "codecs"):
        ended = exits(0, "list", kind, "--json")
        rows |= {row["name"]: row for row in json.loads(ended.out)}
        assert covey("list", kind).out.count("acme-covey 1.0") >= 1
    assert rows["resnet"]["about"] == "One layer around which the input goes."
    packages = {rows[name]["package"] for name in ("blobs", "plain", "lost")}
    assert packages == {"acme-covey 1.0"}
    assert rows["mean"]["leaves the device in training"] == "its model"
    assert rows["lost"]["about"].startswith(
        "broken: 'lost' among the models, acme_absent:net of the package acme-covey 1.0"
    )
    assert "No module named 'acme_absent'" in rows["lost"]["about"]
    assert "it is of type int, but must be a class" in rows["number"]["about"]
    assert "the codec is called 'plain'" in rows["misnamed"]["about"]
    assert "it is no codec, for it has no encode" in rows["none"]["about"]
    assert "package" not in rows["mlp"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.name=lost", "package acme-covey 1.0: it cannot be loaded: ModuleNotFoundError"),
        ("model.name=number", "package acme-covey 1.0: it is of type int"),
        ("model.name=torn", "model.name = 'torn': torn(inputs=64) fails with KeyError: 'key'"),
    ],
)
def test_a_broken_one_is_named_when_it_is_used(install: Install, change: str, words: str) -> None:
    install()
    ended = exits(2, "doctor", change)
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_nothing_is_loaded_that_is_not_used(install: Install) -> None:
    install(module="raise SystemExit('loaded')")
    assert load(None).experiment(0)
    assert "acme" not in sys.modules
    ended = exits(2, "doctor", "model.name=resnet")
    assert "acme-covey 1.0: it cannot be loaded: SystemExit: loaded" in ended.err
    assert "resnet" in covey("list", "models").out


def test_a_name_that_covey_has_is_an_error(install: Install) -> None:
    install("[covey.models]\nlinear = acme:resnet\n[covey.codecs]\nbitmap = acme:Plain\n")
    with pytest.raises(
        ConfigError,
        match=r"'linear' among the models, acme:resnet of the package acme-covey 1\.0: covey itself",
    ):
        load(None, ["model.name=linear"])
    with pytest.raises(ConfigError, match="'bitmap' among the codecs"):
        codec("bitmap")
    assert load(None, ["model.name=cnn"])  # other names are not concerned
    assert "broken: 'linear' among the models" in covey("list", "models").out


def test_one_name_of_two_packages_is_an_error(install: Install) -> None:
    install("[covey.models]\nresnet = acme:resnet\n")
    install("[covey.models]\nresnet = acme:torn\n", package="bolts")
    with pytest.raises(ConfigError, match=r"bolts 1\.0 declares this name too; remove one"):
        load(None, ["model.name=resnet"])


def test_a_package_that_lies_twice_in_the_path_is_one(install: Install) -> None:
    install("[covey.models]\nresnet = acme:resnet\n")
    sys.path.append(sys.path[-1] + "/.")
    model = load(None, ["model.name=resnet"]).experiment(0).model
    assert isinstance(model, torch.nn.Sequential)
