"""Long values of a node's disk, and the log that is moved beside the answers."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from covey.deployed.node import database
from covey.deployed.node.database import Durability
from covey.deployed.node.disk import Disk
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.node_rows import NodeRow
from covey.deployed.node.server_run import server_run
from covey.deployed.transport.transport import Answer, AskKey
from tests.laws.cases import CASES, experiment, with_fields

KEY = AskKey("run", 0, "train", 7, "algorithm.device", "ab")


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1, 3 * 2**20 + 5])
@pytest.mark.parametrize("durability", ["process", "power"])
def test_long_values_are_read_as_they_were_written(
    tmp_path: Path, size: int, durability: Durability
) -> None:
    data = os.urandom(size)
    row = torch.randn(size // 4 + 1)
    disk = Disk(tmp_path / "node.sqlite", durability)
    disk.journal(KEY, {3: Answer("answered", data)}, {3: 1})
    answers = disk.journalled(KEY)
    assert answers is not None
    assert [(seat, answer.read()) for seat, answer in answers.items()] == [(3, data)]
    for _ in range(2):  # the second replaces the first
        disk.keep([NodeRow("device", 1, "model", "present", 0, row)], round=0, attempt=0)
    disk.end_round([], {}, data)
    disk.close()
    again = Disk(tmp_path / "node.sqlite", durability)
    assert again.state == data
    (kept,) = again.rows("device", 1)
    assert kept.row is not None
    assert kept.row.equal(row)
    again.close()


def test_a_log_is_moved_when_much_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOG", 2**19)
    path = tmp_path / "node.sqlite"
    disk = Disk(path)
    before = path.stat().st_size
    disk.end_round([], {}, os.urandom(2**20))
    assert disk.file.mover is not None
    disk.file.mover.end()
    assert path.stat().st_size > before + 2**20
    assert disk.file.connection.written == 0
    disk.close()


@pytest.mark.parametrize(("name", "edge_rounds"), [("FedAvg", 0), ("HierFAVG", 3)])
def test_answers_are_journalled_before_the_next_ask_alone(
    local: LocalTree, name: str, edge_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server asks once in a round, so its journal stays empty; an edge asks several times."""
    written: list[str] = []
    journal = Disk.journal

    def counted(self: Disk, *arguments: Any) -> None:
        written.append(self.path.parent.name)
        journal(self, *arguments)

    monkeypatch.setattr(Disk, "journal", counted)
    changes: dict[str, Any] = {"rounds": 2, "score_every": 10}
    plain = experiment(CASES[name], **changes)
    if edge_rounds:
        several = with_fields(plain.algorithm, edge_rounds=edge_rounds)
        plain = replace(plain, algorithm=several)
    run = server_run(plain, local)
    next(run)
    local.close()
    asks_below = 0
    if edge_rounds:
        asks_below = (edge_rounds - 1) * plain.tree.size("edge")
    edges = [place for place in written if place.startswith("edge")]
    assert len(edges) == asks_below
    assert edges == written
