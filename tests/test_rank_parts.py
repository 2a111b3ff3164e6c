"""Checkpoints that several ranks write: each its own rows, and rank 0 what names them.

One process plays the ranks here; tests/laws/sharded.py has processes.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import covey
from covey import Run
from covey.errors import CheckpointError
from covey.folder import recover
from covey.folder.terminal import Console
from covey.runs.saved import checkpoint, rank_parts, saving
from covey.runs.saved.run_folder import RunFolder
from covey.runs.saved.saving import Saved
from covey.runtimes.base import part_of
from covey.runtimes.ranks.shares import Shares
from tests import peek
from tests.given import drained, signal_of
from tests.laws.cases import CASES, differences, experiment, state

CASE = CASES["PerMFL"]


def begun(rounds: int) -> Run:
    run = covey.run(experiment(CASE, rounds=5, score_every=1))
    for _ in range(rounds):
        next(run)
    return run


def save_as_ranks(run: Run, path: Path, world: int) -> None:
    """Save a run of one process as so many ranks would."""
    tree = run.runtime.tree
    shares = Shares.of(tree, run.trained.train.counts(), world)
    state = peek.runs(run).state.of_seed(0)
    parts = []
    for rank in range(world):
        columns = []
        for frozen in run.runtime.freeze(0):
            if frozen.tier in shares.bounds:
                columns.append(part_of(frozen, shares.nodes(frozen.tier, rank)))
            elif rank == 0:
                columns.append(frozen)
        contents = saving.columns_alone(columns, state.round)
        parts.append(rank_parts.write(path, contents, rank=rank, world=world))
    rank_parts.check_visible(path, parts)
    peek.runs(run).checkpoints._write(0, path, Saved(state, [], parts=parts), None)


def files(path: Path) -> list[Path]:
    """The parts beside a checkpoint, by rank."""
    return sorted(path.parent.glob(f"{path.stem}.part-*"))


def parts_of(path: Path) -> set[str]:
    """The parts that a checkpoint names."""
    facts = checkpoint.read(path, tensors=False).facts
    return {part["file"] for part in facts[checkpoint.PARTS]}


def ended(path: Path, runtime: str = "simulator") -> dict[str, Any]:
    """The state of a run that goes on from a checkpoint to its end."""
    run = covey.run(experiment(CASE, rounds=5, score_every=1), resume=path, runtime=runtime)
    return state(drained(run))


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return state(begun(5))


@pytest.mark.parametrize("world", [2, 4])
def test_any_runtime_goes_on(whole: dict[str, Any], tmp_path: Path, world: int) -> None:
    """With four ranks the three edges lie above the cut, on all of them."""
    path = tmp_path / "run.safetensors"
    save_as_ranks(begun(2), path, world)
    assert len(files(path)) == world
    assert not any("rows" in name for name in checkpoint.read(path).tensors)
    assert differences(whole, ended(path)) == []
    assert differences(whole, ended(path, "loopback")) == []


def test_parts_go_when_no_checkpoint_names_them(tmp_path: Path) -> None:
    """The checkpoint before the last stays good; a run of one process leaves no parts in the end."""
    path = tmp_path / "run.safetensors"
    other = tmp_path / "run.part-0-of-2.1.0123456789abcdef.other"  # of a checkpoint run.other
    other.touch()
    run = begun(1)
    for world in (2, 3, 2):
        save_as_ranks(run, path, world)
        next(run)
    named = parts_of(path) | parts_of(checkpoint.previous(path))
    assert len(named) == 5
    assert {file.name for file in files(path)} == named | {other.name}
    run.save(path)
    assert {file.name for file in files(path)} == parts_of(checkpoint.previous(path)) | {other.name}
    run.save(path)
    assert files(path) == [other]


def test_nothing_goes_if_the_checkpoint_before_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    run = begun(1)
    save_as_ranks(run, path, 2)
    next(run)
    run.save(path)
    checkpoint.previous(path).write_bytes(b"damaged")
    rank_parts.clean(path, [])
    assert len(files(path)) == 2


def spoil_numbers(file: Path) -> None:
    text = bytearray(file.read_bytes())
    text[-1] ^= 1
    file.write_bytes(text)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "numbers": (spoil_numbers, "is damaged: it is not what was written with"),
    "length": (cut, "is damaged: "),
    "nothing": (lambda file: file.write_bytes(b""), "is damaged: "),
    "missing": (Path.unlink, "which is missing; put it back"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_bad_part_is_named(tmp_path: Path, how: str) -> None:
    path = tmp_path / "checkpoint.safetensors"
    run = begun(1)
    save_as_ranks(run, path, 2)
    spoil, text = SPOILED[how]
    file = files(path)[1]
    spoil(file)
    with pytest.raises(CheckpointError) as error:
        ended(path)
    assert str(file) in str(error.value)
    assert text in str(error.value)
    assert "there is none before it, start the run anew" in str(error.value)


def test_another_ranks_rows_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save_as_ranks(begun(1), path, 2)
    first, second = files(path)
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match=r"part-1-of-2.* is not what was written with"):
        ended(path)


@pytest.mark.parametrize("part", [3, {}, {"file": "../run.part"}, {"file": 3}], ids=repr)
def test_a_list_of_parts_that_is_none(tmp_path: Path, part: Any) -> None:
    path = tmp_path / "run.safetensors"
    save_as_ranks(begun(1), path, 2)
    saved = checkpoint.read(path)
    checkpoint.write(path, checkpoint.Checkpoint(saved.tensors, {**saved.facts, "parts": [part]}))
    with pytest.raises(CheckpointError, match=r"damaged: .*a part of it is"):
        ended(path)
    with pytest.raises(CheckpointError, match="damaged: a part of it is"):
        rank_parts.check(path, {"parts": [part]})


def test_a_part_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save_as_ranks(begun(1), path, 2)
    with pytest.raises(CheckpointError, match="its format is covey-part-1"):
        ended(files(path)[0])


def test_a_bad_part_is_made_up_for_by_the_checkpoint_before(
    whole: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path)
    run = begun(2)
    save_as_ranks(run, folder.checkpoint, 2)
    next(run)
    save_as_ranks(run, folder.checkpoint, 3)
    (file,) = tmp_path.glob("checkpoint.part-1-of-3*")
    spoil_numbers(file)
    with pytest.raises(CheckpointError, match=r"the one before it is .*previous"):
        recover.finished(folder, run.experiment)
    recover.mend(folder, Console())
    assert "The run continues after round 2" in capsys.readouterr().out.replace("\n", " ")
    assert differences(whole, ended(folder.checkpoint)) == []


def test_a_disk_that_is_not_shared_is_seen(tmp_path: Path) -> None:
    part = {"file": "run.part-1-of-2.safetensors", "length": 3, "sum": ""}
    (tmp_path / "run.part-0").touch()
    seen = {"file": "run.part-0", "length": 0, "sum": ""}
    with pytest.raises(CheckpointError, match="rank 1 has written; save to a folder that all mach"):
        rank_parts.check_visible(tmp_path / "run", [seen, part])


def test_a_part_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    contents = saving.columns_alone([], 1)
    with pytest.raises(CheckpointError, match=r"rank 1 cannot write .*; an older checkpoint is"):
        rank_parts.write(tmp_path / "file" / "run", contents, rank=1, world=2)


# Kills


def killed(run: Run, path: Path, place: Any, name: str, calls: int) -> int:
    """Save in a process that dies in a function, after so many calls of it; the signal."""
    inner = getattr(place, name)
    left = [calls]

    def dies(*args: Any, **options: Any) -> Any:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return inner(*args, **options)

    def work() -> None:
        setattr(place, name, dies)
        save_as_ranks(run, path, 2)

    return signal_of(work)


MOMENTS: dict[str, tuple[Any, str, int]] = {
    "in the first part": (checkpoint, "_sort_header", 0),
    "between the parts": (rank_parts, "write", 1),
    "before the checkpoint": (checkpoint, "write", 0),
    "in the checkpoint": (checkpoint, "_sort_header", 2),
    "before it is in place": (os, "link", 0),
    "once it is in place": (checkpoint, "sync", 5),
    "before old parts go": (rank_parts, "clean", 0),
}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_process_loses_no_checkpoint(
    whole: dict[str, Any], tmp_path: Path, moment: str
) -> None:
    """The last one and the one before are good, and the next save leaves nothing behind."""
    path = tmp_path / "run.safetensors"
    run = begun(1)
    save_as_ranks(run, path, 2)
    next(run)
    save_as_ranks(run, path, 2)
    next(run)
    assert killed(run, path, *MOMENTS[moment]) == signal.SIGKILL
    expected = 2
    if moment in ("once it is in place", "before old parts go"):
        expected = 3
    assert checkpoint.read(path, tensors=False).facts["round"] == expected
    for saved in (path, checkpoint.previous(path)):
        assert differences(whole, ended(saved)) == []
    save_as_ranks(run, path, 3)
    named = parts_of(path) | parts_of(checkpoint.previous(path))
    assert {file.name for file in files(path)} == named
