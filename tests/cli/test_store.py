"""`covey run --store`: rows in files, with the figures of a run in memory."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import covey as package
from covey.folder import recording
from covey.kernel.store import segments
from covey.runs.saved import checkpoint
from tests.cli.command import SMALL, covey, exits

PERMFL = (
    *SMALL[:-1], "algorithm.name=permfl", "algorithm.device_sample=2", "algorithm.edge_rounds=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in memory."""
    out = tmp_path_factory.mktemp("memory") / "run"
    exits(0, "run", *PERMFL, "--out", out)
    return out


def figures(run: Path) -> dict[str, Any]:
    """What a run has computed."""
    out: dict[str, Any] = {"devices": (run / "devices.csv").read_text(encoding="utf-8")}
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    out["rounds"] = [{**json.loads(line), "seconds": 0, "spent": 0} for line in lines]
    for name in ("totals.json", "nodes.jsonl"):
        out[name] = (run / name).read_text(encoding="utf-8")
    return out


def test_a_run_with_a_store_has_the_figures_of_one_without(memory: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    exits(0, "run", *PERMFL, "rounds=2", "--store", tmp_path / "rows", "--out", out)
    assert checkpoint.ROWS in checkpoint.read(out / "checkpoint.safetensors").facts
    assert f'store = "{tmp_path / "rows"}"' in (out / "config.toml").read_text(encoding="utf-8")
    assert list((tmp_path / "rows").iterdir()) == []
    exits(0, "run", "--resume", out, "rounds=3")
    elsewhere = tmp_path / "others"
    exits(0, "run", "--resume", out, "rounds=4", "--store", elsewhere)
    assert elsewhere.is_dir()
    assert figures(out) == figures(memory)
    for path in sorted((memory / "models").rglob("*.safetensors")):
        assert path.read_bytes() == (out / path.relative_to(memory)).read_bytes()
    exits(0, "run", "--resume", out, "store=none", "rounds=5")
    assert checkpoint.ROWS not in checkpoint.read(out / "checkpoint.safetensors").facts


def test_several_seeds_and_algorithms_share_a_store(memory: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f'store = "rows"\n{Path(SMALL[0]).read_text(encoding="utf-8")}')
    words = (file, *PERMFL[1:], "seeds=2", 'compare=["pfedme"]', "--out", tmp_path / "run")
    exits(0, "run", *words)
    assert (tmp_path / "rows").is_dir()
    assert figures(tmp_path / "run" / "seed-0") == figures(memory)
    for place in ("seed-1", "compare/pfedme/seed-0"):
        saved = tmp_path / "run" / place / "checkpoint.safetensors"
        assert checkpoint.ROWS in checkpoint.read(saved).facts


def test_large_models_stay_in_the_checkpoint(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read there, node by node."""
    monkeypatch.setattr(recording, "MODEL", 5000)
    monkeypatch.setattr(recording, "DEVICES", 3)
    out = tmp_path / "run"
    ended = covey("run", *PERMFL, "--store", tmp_path / "rows", "--out", out)
    assert "the rows of 'personal' are in checkpoint.rows alone" in ended.out
    assert "devices.csv has 3 of 6 devices at most" in ended.out
    assert not (out / "models" / "personal.safetensors").exists()
    assert (out / "models" / "global.safetensors").exists()
    in_files = package.load(out)
    in_memory = package.load(memory)
    for device in (0, 5):
        for which in ("chosen", "last"):
            left = in_files.module("personal", device, which).state_dict()
            right = in_memory.module("personal", device, which).state_dict()
            assert all(torch.equal(left[name], right[name]) for name in right)
    devices = {line.device for line in in_files.devices()}
    assert devices == {"0", "2", "4"}
    exits(0, "export", out, "--node", "d5", "--out", tmp_path / "five")
    exits(0, "show", out, "--devices")


def test_a_head_of_its_own_is_read_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*SMALL[:-1], "algorithm.name=fedper", "model.name=mlp", "rounds=2")
    assert covey("run", *words, "--out", tmp_path / "memory").code == 0
    monkeypatch.setattr(recording, "MODEL", 1000)
    assert covey("run", *words, "--store", tmp_path, "--out", tmp_path / "files").code == 0
    assert not (tmp_path / "files" / "models" / "global.safetensors").exists()
    left = package.load(tmp_path / "files").module("global", 3).state_dict()
    right = package.load(tmp_path / "memory").module("global", 3).state_dict()
    assert all(torch.equal(left[name], right[name]) for name in right)


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_a_store_cannot_be_is_said_before_the_run(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def refusal(*words: object, code: int = 2) -> str:
        ended = covey("run", *PERMFL, *words, "--out", out)
        assert ended.code == code
        assert not out.exists()
        return ended.err

    assert "is the folder of another run; give a folder of its own" in refusal("--store", memory)
    (tmp_path / "file").touch()
    assert "cannot be linked into" in refusal("--store", tmp_path / "file")
    assert "leave store= out" in refusal("--store", tmp_path / "rows", "--runtime", "loopback")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        text = refusal("--store", tmp_path / "rows")
    assert "give a folder on the disk of the run's folder, or another --out" in text
    assert not list((tmp_path / "rows").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(segments, "_reserve", full)
        ended = covey("run", *PERMFL, "--store", tmp_path / "rows", "--out", out)
    assert ended.code == 4
    assert "free some of the disk, or give store= a folder with more room" in ended.err
    assert f"resume with: covey run --resume {out}" in ended.err
    exits(0, "run", "--resume", out)
    assert figures(out) == figures(memory)


def test_a_disk_without_room_for_all_rows_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
    ended = covey("run", *PERMFL, "rounds=1", "--store", tmp_path / "a", "--out", tmp_path / "b")
    assert "note: the rows of all nodes take 0.0 GB, those of the best round" in ended.out
