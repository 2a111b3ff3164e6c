"""A run killed outright and resumed ends in the same bits; `python -m experiments.kills.run` does
it a hundred times.
"""

import shutil
from pathlib import Path

import pytest

from experiments.kills.run import CHANGES, campaign, difference
from tests.cli.command import exits


def test_two_kills(tmp_path: Path) -> None:
    kills, outcomes = campaign(tmp_path, wanted=2, rounds=8, processes=1, seed=1)
    assert sum(kills.fell.values()) == 2
    assert outcomes == [None] * len(outcomes)
    assert outcomes


@pytest.mark.parametrize(
    ("change", "found"), [("seed=1", "config.toml"), ("rounds=2", "config.toml"), (None, None)]
)
def test_differences_are_seen(tmp_path: Path, change: str | None, found: str | None) -> None:
    for name, changes in (("a", ()), ("b", (change,) if change else ())):
        exits(0, "run", *CHANGES, "rounds=1", *changes, "--out", tmp_path / name)
    assert difference(tmp_path / "a", tmp_path / "b") == found
    if change is None:
        return
    (tmp_path / "b" / "config.toml").write_text((tmp_path / "a" / "config.toml").read_text())
    assert difference(tmp_path / "a", tmp_path / "b") == "metrics.jsonl"
    (tmp_path / "b" / "metrics.jsonl").write_text((tmp_path / "a" / "metrics.jsonl").read_text())
    (tmp_path / "b" / "summary.json").write_text((tmp_path / "a" / "summary.json").read_text())
    assert difference(tmp_path / "a", tmp_path / "b") == "nodes.jsonl"
    for name in ("nodes.json", "nodes.jsonl", "totals.json"):
        shutil.copy(tmp_path / "a" / name, tmp_path / "b" / name)
    assert difference(tmp_path / "a", tmp_path / "b") == "the facts of checkpoint.safetensors"
    for name in ("checkpoint.safetensors", "checkpoint.history.jsonl"):
        shutil.copy(tmp_path / "a" / name, tmp_path / "b" / name)
    assert str(difference(tmp_path / "a", tmp_path / "b")).startswith("models/")
