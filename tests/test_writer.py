"""Checkpoints that are written while the next rounds run: as complete, and in the same order."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.errors import CheckpointError
from covey.runs.saved import checkpoint
from tests import peek
from tests.given import played
from tests.laws.cases import PLAIN, differences, experiment, state

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
ROOT = Path(__file__).parents[1]
SLOW = """
import os, sys, time
import covey
from tests import peek
from tests.laws.cases import PLAIN, experiment
replace = os.replace
def slow(source, target):
    time.sleep(0.3)
    replace(source, target)
os.replace = slow
run = covey.run(experiment(PLAIN["PFedMe"], rounds=12))
peek.runs(run).checkpoints.writes_beside = True
for record in run:
    run.save(sys.argv[1], wait=False)
    print(record.round, flush=True)
"""
"""A run whose checkpoints take longer than its rounds."""


def begun(**changes: Any) -> covey.Run:
    run = covey.run(experiment(PLAIN["PFedMe"], rounds=4, **changes))
    peek.runs(run).checkpoints.writes_beside = True
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
    resumed = played(here, resume=tmp_path / "beside.safetensors")
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


@pytest.mark.skipif(not ALL, reason="with COVEY_TEST_ALL=1")
@pytest.mark.parametrize("last", [2, 5])
def test_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    tmp_path: Path, last: int
) -> None:
    path = tmp_path / "c.safetensors"
    command = [sys.executable, "-c", SLOW, str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == last:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    here = experiment(PLAIN["PFedMe"], rounds=12)
    resumed = covey.run(here, resume=path)
    assert last - 1 <= resumed.round <= last + 1  # at most the one being written is missing
    list(resumed)
    whole = played(here)
    assert differences(state(resumed), state(whole)) == []
