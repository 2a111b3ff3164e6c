"""Two processes on one disk, bits that a disk has changed, and what grows with the rounds."""

import gc
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covey.deployed.node.database import Connection, Durability
from covey.deployed.node.disk import Disk
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.node_rows import NodeRow
from covey.deployed.node.server_run import server_run
from covey.deployed.plan.plan import DeploySettings
from covey.deployed.transport.transport import Answer, AskKey
from covey.errors import CheckpointError, ConfigError, TransportError
from covey.runs.saved.live_folder import LiveFolder
from covey.runs.saved.lock import is_locked, locked
from covey.runs.scores.record import Round
from tests.deployed.members import member, planned
from tests.laws.cases import CASES, experiment

KEY = AskKey("run", 3, "train", 7, "algorithm.device", "ab")


def test_a_second_process_on_the_disks_is_told_who_has_them(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    case = experiment(CASES["FedAvg"])
    process = planned(case, tmp_path, DeploySettings(address={"server": "s"}))[1]
    first = member(process, case)
    twin = member(replace(process, control_port=process.control_port + 1), case)
    with first.running():
        holder = rf"another process runs on the disks in .*; .* \(process {os.getpid()} on .*\)"
        with pytest.raises(TransportError, match=holder), twin.running():
            pass
    with member(process, case).running():  # the lock went with the first
        pass


def test_who_dials_a_taken_seat_is_not_told_to_restore_a_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("grpc")
    from tests.deployed.tree import family, until

    class Admission:
        refusal = staticmethod(lambda seat, last_key: None if last_key else "it is behind")

    with family(tmp_path, count=1, secure=False, admission=Admission()) as tree:
        tree.dial(0, last_key=lambda seat: "new")
        tree.wait(0)
        twin = tree.dial(0, last_key=lambda seat: None)
        until(lambda: tree.parent.refused["ALREADY_EXISTS"] > 0)
        assert not twin.errors
        assert "it is behind" not in caplog.text


# Lock files


def test_a_lock_that_is_a_link_is_refused_and_its_target_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("dear", encoding="utf-8")
    path = tmp_path / "lock"
    path.symlink_to(target)
    with pytest.raises(ConfigError, match="lock cannot be opened"), locked(path, "busy"):
        pass
    assert target.read_text(encoding="utf-8") == "dear"
    assert not is_locked(path)


def test_a_lock_is_for_its_user_alone_and_is_not_emptied(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("dear", encoding="utf-8")
    path.chmod(0o644)
    with locked(path, "busy"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert is_locked(path)
        with pytest.raises(ConfigError, match=r"^busy dear\.$"), locked(path, "busy", 0.0):
            pass
    assert path.read_text(encoding="utf-8") == "dear"
    own = LiveFolder(tmp_path / "store")
    assert stat.S_IMODE((own.path / "in-use").stat().st_mode) == 0o600


# Changed bits


def row(value: float, length: int = 300) -> NodeRow:
    return NodeRow("device", 1, "personal", "present", 3, torch.full((length,), value))


def written(path: Path, length: int = 300) -> None:
    disk = Disk(path)
    disk.end_ask(KEY, [row(1.0, length)], b"answer" * 50, {"owed": [1, 2, 3]})
    disk.journal(KEY, {4: Answer("answered", b"told" * 50)}, {})
    disk.end_round([], {}, b"state" * 50, [(0, '{"round": 0}'), (1, '{"round": 1}')], played=False)
    disk.close()


READS: dict[str, tuple[str, Callable[[Disk], object]]] = {
    "rows": ("data", lambda disk: disk.row("personal", "present")),
    "answers": ("data", lambda disk: disk.answer(KEY)),
    "journal": ("data", lambda disk: disk.journalled_of(KEY, 4)),
    "facts WHERE name = 'run state'": ("value", lambda disk: disk.state),
    "facts WHERE name = 'owed'": ("value", lambda disk: disk.fact("owed")),
    "records WHERE round = 1": ("record", lambda disk: disk.records()),
}


@pytest.mark.parametrize("table", READS)
def test_a_changed_bit_is_found_when_it_is_read(tmp_path: Path, table: str) -> None:
    path = tmp_path / "node.sqlite"
    written(path)
    column, read = READS[table]
    name, _, where = table.partition(" ")
    with closing(sqlite3.connect(path)) as connection:
        (number, kind) = connection.execute(
            f"SELECT rowid, typeof({column}) FROM {name} {where}"
        ).fetchone()
        with connection.blobopen(name, column, number) as blob:
            blob[2] = blob[2] ^ 1
        connection.commit()
    assert kind in ("blob", "text")
    disk = Disk(path)
    changed = rf"node.sqlite: .* in the table '{name}' is not what was written.*restore the disk"
    with pytest.raises(CheckpointError, match=changed):
        read(disk)
    disk.close()


@pytest.mark.parametrize("length", [300, 2**19])
def test_a_row_that_changes_before_it_is_good_is_found_after(tmp_path: Path, length: int) -> None:
    path = tmp_path / "node.sqlite"
    written(path, length)
    with closing(sqlite3.connect(path)) as connection:
        with connection.blobopen("rows", "data", 1) as blob:
            blob[4 * length - 9] = 7
        connection.commit()
    disk = Disk(path)
    disk.commit()
    with pytest.raises(CheckpointError, match="personal, present in the table 'rows'"):
        disk.row("personal", "present")
    disk.close()


@pytest.mark.parametrize("word", [b"present", b"float32", b"[300]", b"covey-node"])
def test_a_changed_bit_beside_a_value_is_found(tmp_path: Path, word: bytes) -> None:
    path = tmp_path / "node.sqlite"
    written(path)
    data = path.read_bytes()
    places = [place for place in range(len(data)) if data.startswith(word, place)]
    assert places
    for place in places:
        changed = bytearray(data)
        changed[place + 1] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"node\.sqlite"):
            Disk(path).row("personal", "present")


# What grows


@pytest.mark.parametrize("durability", ["process", "power"])
def test_the_log_of_a_small_disk_stays_small(tmp_path: Path, durability: Durability) -> None:
    path = tmp_path / "node.sqlite"
    disk = Disk(path, durability)
    longest = 0
    for round in range(100):
        disk.end_ask(replace(KEY, round=round), [row(1.0)], b"answer", {"owed": [round]})
        disk.commit()
        longest = max(longest, Path(f"{path}-wal").stat().st_size)
    disk.close()
    assert longest < 2**23  # 16 to 40 MB without a bound


def test_short_values_open_no_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python holds some bytes of every blob that a connection has opened, for as long as it is."""
    opened: list[object] = []

    def blobopen(self: Connection, *words: object, **options: object) -> object:
        opened.append(words)
        return sqlite3.Connection.blobopen(self, *words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "blobopen", blobopen)
    disk = Disk(tmp_path / "node.sqlite")
    disk.end_ask(KEY, [row(1.0)], b"answer", {})
    disk.commit()
    assert disk.answer(KEY) == b"answer"
    assert disk.row("personal", "present")[0] == 1.0
    assert not opened
    disk.close()


def test_a_server_does_not_hold_the_records_of_all_rounds(local: LocalTree) -> None:
    rounds = 12
    run = server_run(experiment(CASES["FedAvg"], rounds=rounds, score_every=3), local)
    before = sum(type(one) is Round for one in gc.get_objects())
    seen = [record.as_dict() for record in run]
    gc.collect()
    assert sum(type(one) is Round for one in gc.get_objects()) - before <= 2
    assert [record.as_dict() for record in run.history] == seen
    assert len(seen) == rounds
