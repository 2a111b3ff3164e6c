"""Records beside a checkpoint: appended, never rewritten, and never trusted."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.errors import CheckpointError, ProgramError
from covey.runs.run import Runs
from covey.runs.saved import checkpoint
from covey.runs.saved.journal import Journal
from tests.laws.cases import CASES, experiment


def records(*rounds: int) -> list[dict[str, Any]]:
    return [{"round": k, "value": f"é{k}"} for k in rounds]


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    journal = Journal.beside(tmp_path / "run.safetensors")
    assert journal.file.path.name == "run.history.jsonl"
    journal.append(records(0, 1), 2)
    first = journal.facts()
    journal.append(records(2), 3)
    again, read = Journal.read(tmp_path / "run.safetensors", journal.facts())
    assert read == records(0, 1, 2)
    assert (again.records, again.facts()) == (3, journal.facts())
    assert Journal.read(tmp_path / "run.safetensors", first)[1] == records(0, 1)


@pytest.mark.parametrize("more", [0, 1000], ids=["less than is appended", "more"])
def test_what_a_dead_process_wrote_behind_the_last_checkpoint_is_cut_off(
    tmp_path: Path, more: int
) -> None:
    journal = Journal.beside(tmp_path / "run")
    journal.append(records(0), 1)
    with open(journal.file.path, "ab") as file:
        file.write(b'{"round": 1, "val' + b"u" * more)
    again, read = Journal.read(tmp_path / "run", journal.facts())
    assert read == records(0)
    again.append(records(1), 2)
    assert [json.loads(line) for line in again.file.path.read_text().splitlines()] == records(0, 1)


def test_a_length_beyond_the_end_is_refused_whatever_the_sum(tmp_path: Path) -> None:
    """Else the next record would be written behind a hole."""
    journal = Journal.beside(tmp_path / "run")
    journal.append(records(0), 1)
    facts = {**journal.facts(), "length": journal.file.length + 1}
    with pytest.raises(CheckpointError, match="is damaged"):
        Journal.read(tmp_path / "run", facts)


def test_a_later_line_replaces_an_earlier_one_and_older_checkpoints_still_read(
    tmp_path: Path,
) -> None:
    journal = Journal.beside(tmp_path / "run")
    journal.append(records(0, 1), 2)
    before = journal.facts()
    journal.append([{"round": 1, "value": "new"}, *records(2)], 3)
    read = Journal.read(tmp_path / "run", journal.facts())[1]
    assert [record["value"] for record in read] == ["é0", "new", "é2"]
    assert Journal.read(tmp_path / "run", before)[1] == records(0, 1)


def test_a_journal_that_may_belong_to_another_run_is_left_alone(tmp_path: Path) -> None:
    Journal.beside(tmp_path / "run").append(records(0), 1)
    other = Journal.beside(tmp_path / "run")
    assert other.file.path.name == "run.history-2.jsonl"


@pytest.mark.parametrize(
    "lines", [b'{"round": 1}\n', b"[]\n", b"\xff\n", b'{"value": 3}\n', b"[" * 50_000]
)
def test_a_journal_with_nonsense_is_refused(tmp_path: Path, lines: bytes) -> None:
    run = covey.run(experiment(CASES["FedAvg"]))
    next(run)
    path = tmp_path / "run.safetensors"
    run.save(path)
    journal = Journal(tmp_path / "run.history.jsonl")
    journal.file.append(lines)
    saved = checkpoint.read(path)
    checkpoint.write(
        path, checkpoint.Checkpoint(saved.tensors, saved.facts | {"history": journal.facts()})
    )
    with pytest.raises(CheckpointError, match="damaged"):
        covey.history(path)
    with pytest.raises(CheckpointError, match="damaged"):
        covey.run(experiment(CASES["FedAvg"]), resume=path)


def test_a_save_writes_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    run = covey.run(experiment(CASES["FedAvg"], rounds=30, score_every=1))
    sizes = []
    for _ in run:
        run.save(tmp_path / "run")
        sizes.append((tmp_path / "run").stat().st_size)
    lines = (tmp_path / "run.history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == list(range(30))
    assert max(sizes[2:]) - min(sizes[2:]) < 500  # it grew by the records of a round before


def test_a_run_is_for_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, undisturbed = (covey.run(experiment(CASES["PFedMe"], rounds=3)) for _ in range(2))
    inside, leave = threading.Event(), threading.Event()
    real = Runs._play

    def slow(self: Runs) -> None:
        inside.set()
        leave.wait(10)
        real(self)

    monkeypatch.setattr(Runs, "_play", slow)
    other = threading.Thread(target=next, args=(run,))
    other.start()
    assert inside.wait(10)
    for use in (lambda: next(run), lambda: run.save(tmp_path / "run")):
        with pytest.raises(ProgramError, match="another thread is using this run"):
            use()
    leave.set()
    other.join()
    list(run), list(undisturbed)
    assert [record.round for record in run.history] == [0, 1, 2]
    assert run.w.equal(undisturbed.w)
