"""Checkpoints that are written while the next rounds run: as complete, and in the same order."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.errors import CheckpointError
from covey.runs import checkpoint
from tests import peek
from tests.laws.cases import PLAIN, differences, experiment, state


def begun(**changes: Any) -> covey.Run:
    run = covey.run(experiment(PLAIN["PFedMe"], rounds=4, **changes))
    peek.runs(run).writes_beside = True
    return run


def test_a_run_that_goes_on_meanwhile_writes_the_same_file(tmp_path: Path) -> None:
    run = begun()
    other = begun()
    for _ in range(2):
        next(run)
        next(other)
        run.save(tmp_path / "beside.safetensors", wait=False)
        other.save(tmp_path / "waited.safetensors")
    next(run)  # changes what nodes keep
    run.wait()
    both = [checkpoint.read(tmp_path / f"{name}.safetensors") for name in ("beside", "waited")]
    assert both[0].facts["round"] == both[1].facts["round"] == 2
    assert both[0].tensors.keys() == both[1].tensors.keys()
    for name, tensor in both[0].tensors.items():
        assert tensor.equal(both[1].tensors[name])
    here = experiment(PLAIN["PFedMe"], rounds=4)
    resumed = covey.run(here, resume=tmp_path / "beside.safetensors")
    list(resumed)
    list(run)
    assert differences(state(resumed), state(run)) == []


def test_a_save_waits_for_the_one_before_and_the_last_round_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.safetensors"
    go_on = threading.Event()
    written = []
    write = checkpoint.write

    def slow(target: Path, contents: Any) -> None:
        assert go_on.wait(60)
        written.append(contents.facts["round"])
        write(target, contents)

    monkeypatch.setattr(checkpoint, "write", slow)
    run = begun()
    next(run)
    run.save(path, wait=False)
    assert written == []
    assert not path.exists()
    next(run)
    go_on.set()
    run.save(path, wait=False)
    assert written[:1] == [1]
    for _ in run:
        run.save(path, wait=False)
    assert written == [1, 2, 3, 4]
    assert checkpoint.read(path).facts["round"] == 4


def test_an_error_is_raised_before_the_next_round_ends(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    run = begun()
    next(run)
    run.save(tmp_path / "file" / "c.safetensors", wait=False)
    with pytest.raises(CheckpointError, match="cannot write"):
        run.wait()
    run.wait()
    next(run)
    run.save(tmp_path / "file" / "c.safetensors", wait=False)
    with pytest.raises(CheckpointError, match="cannot write"):
        list(run)


def test_on_a_cpu_a_save_is_complete_when_it_returns(tmp_path: Path) -> None:
    run = covey.run(experiment(PLAIN["FedAvg"], rounds=2))
    next(run)
    run.save(tmp_path / "c.safetensors", wait=False)
    assert checkpoint.read(tmp_path / "c.safetensors").facts["round"] == 1
