"""How much memory a node takes, in models; and rows that are on its disk alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.algorithms.hierfavg import HierFAVG
from covey.deployed.node import disk_store
from covey.deployed.node.local_tree import LocalTree
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Weighted
from covey.runtimes.alone.loopback import HeldReply
from covey.types import Rows
from tests import peek
from tests.deployed import measured_memory
from tests.given import drained
from tests.laws.cases import CASES, Case, differences, experiment, state
from tests.laws.test_loopback import ALL, LINKS, WIRED, nodes

SOME = [CASES[name] for name in ("HierFAVG", "PerMFL", "FedAlt")]


@pytest.mark.parametrize("case", list(WIRED.values()) if ALL else SOME, ids=str)
def test_a_tree_whose_rows_are_on_disks_alone_is_the_simulators(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_store, "LARGE", 0)
    _is_the_simulators(case, tmp_path)


def test_residuals_on_disks_alone_are_the_simulators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_store, "LARGE", 0)
    _is_the_simulators(CASES["SFedHP"], tmp_path, codec=next(iter(LINKS.values())))


def _is_the_simulators(case: Case, folder: Path, **changes: Any) -> None:
    tree = LocalTree(folder)
    simulated = drained(covey.run(experiment(case, **changes)))
    run = drained(covey.run(experiment(case, **changes), runtime=tree))
    below = [node for node in tree.nodes.values() if not node.top]
    columns = [column for node in below for column in node.store.columns.values()]
    top = simulated.runtime.tree.tiers[0]
    kept = [tier for tier, _ in peek.store(simulated).columns if tier != top]
    assert bool(columns) == bool(kept)
    for column in columns:
        assert isinstance(column, disk_store.DiskColumn)
        assert disk_store.LARGE or column.rows.held == 0
    assert differences(state(simulated) | nodes(simulated), state(run) | nodes(run)) == []
    tree.close()


class Twice(HierFAVG):
    """Edges reduce the replies to their first ask again, after the second."""

    def edge(self, me: Nodes, w: Rows) -> Weighted:
        first, _ = me.ask(self.device, w)
        second, _ = me.ask(self.device, first.mean())
        return me.keep("edge", first.mean() + second.mean() / 2), me.weight(self.weight)


def test_replies_that_are_in_the_journal_are_read_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[HeldReply] = []
    drop = HeldReply.drop

    def counted(self: HeldReply, *arguments: Any) -> None:
        dropped.append(self)
        drop(self, *arguments)

    monkeypatch.setattr(HeldReply, "drop", counted)
    fields = vars(CASES["HierFAVG"].algorithm)
    _is_the_simulators(replace(CASES["HierFAVG"], algorithm=Twice(**fields)), tmp_path)
    assert dropped
    assert all(held._messages == () for held in dropped)


@pytest.mark.skipif(not measured_memory.RESET.exists(), reason="needs Linux to measure memory")
def test_memory_is_within_its_limits() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", measured_memory.__file__]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
