"""Algorithms, models and losses of a user's own, which travel with the experiment to every node."""

import os
from pathlib import Path

import pytest

import covey
from covey.files.config import load
from covey.folder.own_code import own_modules
from tests.cli.command import BASE, exits

SLOW = pytest.mark.skipif("COVEY_TEST_ALL" not in os.environ, reason="starts processes")
FILES = {
    "own_nets_x/__init__.py": "",
    "own_nets_x/sizes.py": "WIDTH = 4\n",
    "own_nets_x/nets.py": """
import torch
from own_nets_x.sizes import WIDTH


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, WIDTH), torch.nn.Linear(WIDTH, 10))
""",
    "own_steps_x.py": "def shift(x, u):\n    import own_late_x\n    return x + own_late_x.BY\n",
    "own_late_x.py": "BY = 0.5\n",
    "own_unused_x.py": "",
}
CHANGES = (
    "data.devices=2", "tree.edges=1", "rounds=2", "model={name='own_nets_x.nets:net'}",
    "augment=[{name='own_steps_x:shift'}]",
)  # fmt: skip
DEPLOY = '[deploy]\naddress = {server = "s.example", edge = "e.example"}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An experiment with modules beside it."""
    for name, text in FILES.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text, encoding="utf-8")
    path = tmp_path / "mine" / "tree.toml"
    path.write_text(BASE.read_text(encoding="utf-8") + DEPLOY, encoding="utf-8")
    return path


def test_every_folder_has_what_the_experiment_imports(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    out = tmp_path / "out"
    assert "own_nets_x/nets.py" in exits(0, "deploy", "plan", file, *CHANGES, "--out", out).out
    travelling = {name: text for name, text in FILES.items() if "unused" not in name}
    for process in ("server", "edge0", "device0", "device1"):
        found = {}
        for path in (out / process).rglob("*.py"):
            name = path.relative_to(out / process).as_posix()
            found[name] = path.read_text(encoding="utf-8")
        assert found == travelling
    assert own_modules(load(file, list(CHANGES))) == travelling


def test_files_that_do_not_travel_are_named(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    rows = "0,1.0,x\n0,2.0,y\n1,2.0,y\n1,3.0,x\n" * 30
    (tmp_path / "d.csv").write_text(f"device,a,label\n{rows}", encoding="utf-8")
    words = (f"data={{name='files', path='{tmp_path}/d.csv'}}", "model={name='linear'}")
    planned = exits(0, "deploy", "plan", file, *CHANGES[1:3], *words, "--out", tmp_path / "out")
    assert f"note: data.path: every machine needs {tmp_path}/d.csv" in planned.out


@SLOW
def test_a_tree_runs_from_another_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    exits(0, "deploy", "local", "../mine/tree.toml", *CHANGES, "--out", "local")
    device = covey.load("local/device0/state/device0")
    assert Path("local/device0/state/device0/own_nets_x/nets.py").is_file()
    assert device.models()
    exits(0, "replay", "local")
