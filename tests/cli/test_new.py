"""`covey new algorithm`: what it writes passes its own test, runs, and is found once installed."""

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from covey import Algorithm, Nodes, Rows, descend, laws
from covey.algorithms import FedAvg
from covey.cli.new import AlgorithmNames
from covey.errors import ProgramError
from covey.files.config import load
from tests.cli.command import ROOT, covey, exits

ALL = bool(os.environ.get("COVEY_TEST_ALL"))


def python(folder: Path, *words: object, path: Sequence[Path] = ()) -> str:
    """What a Python of its own prints, with covey and some folders on its path."""
    paths = os.pathsep.join(map(str, (ROOT, *path)))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def written(folder: Path, *words: object) -> str:
    ended = exits(0, "new", "algorithm", *words, "--dir", folder)
    return ended.out


def test_three_tiers_pass_the_laws_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = written(tmp_path, "FedMine", "--tiers", 3)
    files = ["fedmine.py", "fedmine.toml", "test_fedmine.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert f"test it: pytest {tmp_path}/test_fedmine.py" in said
    config = load(tmp_path / "fedmine.toml")
    assert config.experiment(0).algorithm.tiers() == ("server", "edge", "device")
    monkeypatch.syspath_prepend(tmp_path)
    test = importlib.import_module("test_fedmine")
    for law in laws.ALL:
        test.test_a_law(law)
    test.test_two_rounds_by_hand()


@pytest.mark.skipif(not ALL, reason="as with three tiers, in processes of its own")
def test_two_tiers_pass_the_laws_and_run(tmp_path: Path) -> None:
    written(tmp_path, "fed_hers")
    assert "class FedHers(Algorithm)" in (tmp_path / "fedhers.py").read_text()
    passed = f"{len(laws.ALL) + 1} passed"
    assert passed in python(tmp_path, "-m", "pytest", "-q", "-W", "error", "test_fedhers.py")
    assert "FedHers" in python(tmp_path, "-m", "covey", "run", "fedhers.toml", "rounds=2")


@pytest.mark.skipif(not ALL, reason="builds a package")
def test_a_package_is_built_installed_found_and_run(tmp_path: Path) -> None:
    written(tmp_path, "FedMine", "--package")
    package = tmp_path / "covey-fedmine"
    assert " passed" in python(package, "-m", "pytest", "-q")
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--target", tmp_path / "installed")
    python(tmp_path, "-m", "pip", "install", *options, package)
    path = [tmp_path / "installed"]
    listed = python(tmp_path, "-m", "covey", "list", "algorithms", path=path)
    assert "package: covey-fedmine 0.1.0" in listed
    run = ("run", package / "fedmine.toml", "rounds=2", "--out", tmp_path / "run")
    assert "personal" in python(tmp_path, "-m", "covey", *run, path=path)


def test_a_package_declares_the_algorithm(tmp_path: Path) -> None:
    written(tmp_path, "FedMine", "--package")
    declared = (tmp_path / "covey-fedmine" / "pyproject.toml").read_text()
    assert '\nfedmine = "covey_fedmine:FedMine"' in declared.partition("covey.algorithms")[2]


@pytest.mark.parametrize(
    ("text", "name", "stem"),
    [
        ("FedMine", "FedMine", "fedmine"),
        ("fedmine", "Fedmine", "fedmine"),
        ("fed_mine", "FedMine", "fedmine"),
        ("FED2", "FED2", "fed2"),
    ],
)
def test_names(text: str, name: str, stem: str) -> None:
    assert AlgorithmNames.of(text, package=False) == AlgorithmNames(name, stem, stem)
    assert AlgorithmNames.of(text, package=True).module == f"covey_{stem}"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["2x"], "'2x' cannot be the name of an algorithm"),
        (["../x"], "'../x' cannot be the name of an algorithm"),
        (["a\nb"], "cannot be the name of an algorithm"),
        (["é"], "'é' cannot be the name of an algorithm"),
        (["x" * 65], "give up to 64 letters"),
        (["fedavg"], "there is an algorithm fedavg already"),
        (["lambda"], "Lambda means something else in such a file"),
        (["Nodes"], "Nodes means something else in such a file"),
        (["json"], "a module json is installed already"),
        (["Mine", "--tiers", "4"], "--tiers 4: give 2 (server, device) or 3"),
    ],
)
def test_names_that_are_refused(tmp_path: Path, words: list[str], says: str) -> None:
    assert says in exits(2, "new", "algorithm", *words, "--dir", tmp_path).err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_fedmine.py").write_text("mine")
    ended = covey("new", "algorithm", "FedMine", "--dir", tmp_path)
    assert (ended.code, "test_fedmine.py exists already" in ended.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["test_fedmine.py"]
    ended = covey("new", "algorithm", "FedMine", "--dir", tmp_path / "test_fedmine.py")
    assert (ended.code, "is a file; name a folder" in ended.err) == (2, True)


@dataclass(frozen=True)
class Broken(Algorithm):
    """Breaks one law, by name."""

    how: str = "none"
    batch: int | None = 20

    sends: ClassVar[str] = "its model"

    def server(self, me: Nodes, w: Rows) -> Rows:
        if self.how == "idle":
            me.ask(self.device, w)
            return w
        mean = me.ask(self.device, w).mean()
        return mean + 1e-3 if self.how == "drifts" else mean

    def device(self, me: Nodes, w: Rows) -> Rows:
        if self.how == "chunks":  # a row that depends on the rows beside it
            w = w + 1e-3 * len(w)
        out = descend(w, me.grad(self.batch), steps=2, lr=0.1)
        if self.how == "draws":  # not by address
            out = out + 1e-3 * torch.rand_like(out)
        return out


@pytest.mark.parametrize(
    ("how", "law"),
    [
        ("idle", "some model moves"),
        ("chunks", "workers and chunks change no bit"),
        ("drifts", "a fixed point stays fixed"),
        ("draws", "a resumed run has the bits of an undisturbed one"),
        ("draws", "nodes that share nothing compute the same bits"),
        ("draws", "seeds side by side are as seeds alone"),
    ],
)
def test_a_broken_law_is_noticed(how: str, law: str) -> None:
    (check,) = [one for one in laws.ALL if one.name == law]
    check(FedAvg())
    with pytest.raises(ProgramError, match="should"):
        check(Broken(how))
