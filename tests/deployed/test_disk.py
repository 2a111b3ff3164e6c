"""The disk of a node: what is pending, what is good, and what a crash leaves."""

import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covey.deployed.faults import arm_fault, fault, kill_at, set_fault
from covey.deployed.node.database import Durability
from covey.deployed.node.disk import Disk, number_in
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.node_rows import NodeRow
from covey.deployed.node.server_run import server_run
from covey.deployed.transport.transport import Answer, AskKey
from covey.errors import CheckpointError, ConfigError, CoveyError, TransportError
from tests.laws.cases import CASES, experiment

KEY = AskKey("run", 3, "train", 2**63 + 1, "algorithm.device", "digest")


def row(value: float | None, label: str = "present") -> NodeRow:
    kept = None
    if value is not None:
        kept = torch.full((2,), value)
    return NodeRow("device", 1, "personal", label, 3, kept)


def values(disk: Disk) -> dict[str, float]:
    return {
        kept.label: float(kept.row[0]) for kept in disk.rows("device", 1) if kept.row is not None
    }


@pytest.mark.parametrize(("durability", "synchronous"), [("process", 1), ("power", 2)])
def test_durability(tmp_path: Path, durability: Durability, synchronous: int) -> None:
    disk = Disk(tmp_path / "node.sqlite", durability)
    assert disk.file.query("PRAGMA synchronous") == [(synchronous,)]
    assert disk.file.query("PRAGMA journal_mode") == [("wal",)]
    disk.close()


def test_a_disk_in_memory_has_no_log_to_move() -> None:
    disk = Disk(":memory:")
    for number in range(50):
        disk.end_ask(replace(KEY, path=number), [], bytes(2**21), {})
    disk.close()


def test_pending_rows_are_seen_first_and_can_be_undone(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    disk.end_ask(KEY, [row(1.0)], b"first", {})
    disk.commit()
    disk.end_ask(replace(KEY, path=2), [row(2.0), row(2.0, "held")], b"second", {})
    disk.close()
    disk = Disk(tmp_path / "node.sqlite")
    assert values(disk) == {"present": 2.0, "held": 2.0}
    assert disk.answer(replace(KEY, path=2)) == b"second"
    assert disk.pending == (3, 0)
    disk.rollback(rollbacks=[3])
    assert disk.fact("rollbacks") == [3]
    assert not disk.trained(KEY)
    assert values(disk) == {"present": 1.0}
    assert disk.answer(KEY) is None
    disk.keep([row(5.0, "held")], round=4, attempt=1)
    disk.commit()
    disk.keep([row(None, "held")], round=5, attempt=1)
    assert values(disk) == {"present": 1.0}
    disk.commit()
    assert values(disk) == {"present": 1.0}
    disk.close()


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    disk.journal(KEY, {4: Answer("answered", b"a"), 7: Answer("late")}, {4: 9})

    def crash(point: str) -> None:
        if point == "inside-commit":
            raise KeyboardInterrupt

    set_fault(crash)
    with pytest.raises(KeyboardInterrupt):
        disk.end_ask(KEY, [row(1.0)], b"answer", {})
    set_fault(None)
    assert values(disk) == {}
    assert disk.last_key is None
    answers = disk.journalled(KEY)
    assert answers is not None
    told = [(seat, answer.status, answer.read()) for seat, answer in answers.items()]
    assert told == [(4, "answered", b"a"), (7, "late", b"")]
    assert disk.received(4) == 9
    assert disk.received(7) == 0
    assert not disk.trained(KEY)
    disk.end_ask(KEY, [row(1.0)], b"answer", {})
    assert disk.journalled(KEY) is None
    assert disk.last_key == f"{KEY}#1"
    assert disk.trained(KEY)
    disk.close()


def test_what_cannot_be_read_names_the_file(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    disk.end_ask(KEY, [row(1.0)], b"answer", {})
    disk.journal(KEY, {4: Answer("answered", b"a")}, {})
    with pytest.raises(CheckpointError, match=r"node.sqlite has lost the row 'personal' \(held\)"):
        disk.row("personal", "held")
    with pytest.raises(CheckpointError, match=r"no answer of 5 to run/.*; restore the disk"):
        disk.journalled_of(KEY, 5)
    folder = tmp_path / "folder"
    with pytest.raises(CheckpointError, match=f"cannot copy .*node.sqlite to {folder}"):
        disk.file.copy(folder / "copy")
    disk.file.connection.close()
    reads: list[Callable[[], object]] = [
        lambda: disk.number,
        lambda: disk.state,
        lambda: disk.kept(),
        lambda: disk.row("personal", "present"),
        lambda: disk.answer(KEY),
        lambda: disk.trained(KEY),
        lambda: disk.journalled(KEY),
        lambda: disk.journalled_of(KEY, 4),
        lambda: disk.shrink(),
    ]
    for read in reads:
        with pytest.raises(CheckpointError, match=r"cannot read .*node.sqlite: .*; mend the disk"):
            read()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (sqlite3.OperationalError("disk I/O error"), CheckpointError, "device 2: cannot read .*;"),
        (
            OSError(5, "Input/output error"),
            TransportError,
            r"device 2 cannot go on: \[Errno 5\] .*;",
        ),
        (MemoryError(), TransportError, "device 2 cannot go on: MemoryError;"),
    ],
)
def test_a_fault_of_a_machine_is_no_fault_of_the_program(
    local: LocalTree,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[CoveyError],
    text: str,
) -> None:
    """The server's exit code lets systemd start it again."""
    run = server_run(experiment(CASES["PFedMe"], score_every=9, rounds=2), local)
    disk = local.nodes["device", 2].database

    def broken(*_: object) -> None:
        with disk.file.reading():
            raise error

    monkeypatch.setattr(disk, "answer", broken)
    with pytest.raises(kind, match=text):
        next(run)


def test_every_change_has_a_number(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite", "power")
    assert disk.last_key is None
    disk.replace([row(1.0)])
    assert disk.last_key == "#1"
    disk.end_ask(KEY, [row(1.0)], b"first", {})
    disk.keep([row(5.0, "held")], round=3, attempt=0)
    disk.commit()
    assert disk.last_key == f"{KEY}#3"
    assert number_in(disk.last_key) == 3
    assert number_in("key") == number_in(None) == 0
    disk.receive({4: 7, 5: 1})
    disk.receive({4: 8})
    assert [disk.received(seat) for seat in (4, 5, 6)] == [8, 1, 0]
    disk.close()


def test_a_fault_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("inside-commit", "inside-commit:0", "inside-commit:x"):
        monkeypatch.setenv("COVEY_FAULT", text)
        with pytest.raises(ConfigError, match="give POINT:N"):
            arm_fault()
    monkeypatch.setenv("COVEY_FAULT", "nowhere:1")
    with pytest.raises(ConfigError, match="no fault point 'nowhere'"):
        arm_fault()
    killed: list[int] = []
    monkeypatch.setenv("COVEY_FAULT", "inside-commit:2")
    monkeypatch.setattr("os.kill", lambda pid, number: killed.append(number))
    arm_fault()
    for point in ("inside-commit", "after-commit", "inside-commit", "inside-commit"):
        fault(point)
    set_fault(None)
    assert killed == [signal.SIGKILL]


def test_what_is_no_disk_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database at all, but a text " * 40, encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be used as a node's disk"):
        Disk(tmp_path / "text")
    with pytest.raises(ConfigError, match='choose "process" or "power"'):
        Disk(tmp_path / "node", "always")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no fault point 'nowhere'"):
        kill_at("nowhere", 1)
    disk = Disk(tmp_path / "old")
    disk.note(format="covey-node-0")
    disk.close()
    with pytest.raises(CheckpointError, match="has the format 'covey-node-0'"):
        Disk(tmp_path / "old")
