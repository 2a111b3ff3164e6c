"""The papers' settings, shipped as experiment files."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import covey
from covey import algorithms
from covey.files.config import load
from covey.papers import files
from tests.cli.command import ROOT

PRINTED: dict[str, tuple[type[covey.Algorithm], dict[str, Any]]] = {
    "pfedme": (
        algorithms.PFedMe,
        {"sample": 5, "local_rounds": 20, "steps": 5, "lam": 15.0, "lr": 0.005, "personal_lr": 0.09},
    ),
    "permfl": (
        algorithms.PerMFL,
        {"lam": 0.5, "gamma": 1.5, "beta": 0.6, "lr": 0.01, "edge_lr": 0.03, "edge_rounds": 10},
    ),
    "fedmac": (algorithms.FedMac, {"sample": 10, "lam": 1e-4, "lr": 3000.0, "personal_lr": 0.05, "gamma": 0.0}),
    "sfedhp": (
        algorithms.SFedHP,
        {"lam1": 25.0, "lam2": 25.0, "lr1": 0.05, "lr2": 0.05, "gamma1": 0.001, "rho": 6e-5},
    ),
    "wireless": (algorithms.Pruned, {"ratio": "plan", "lr": 0.001, "personal_lr": 0.001, "batch": 128}),
}  # fmt: skip


def test_there_is_one_file_for_each_paper() -> None:
    assert [path.stem for path in files()] == sorted(PRINTED)
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]["covey"]
    assert "papers/*.toml" in patterns


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_it_has_what_the_paper_prints_and_runs_on_the_shipped_digits(path: Path) -> None:
    cls, printed = PRINTED[path.stem]
    experiment = load(path, ["rounds=1"]).experiment(0)
    algorithm = experiment.algorithm
    assert type(algorithm) is cls
    assert {name: getattr(algorithm, name) for name in printed} == printed
    (record,) = covey.run(experiment)
    assert record.accuracy("personal") is not None
    doc = Path(str(algorithms.__path__[0])) / f"{cls.__module__.rpartition('.')[2]}.py"
    assert f"covey/papers/{path.name}" in doc.read_text()
