"""How much memory a node takes, in models.

test_memory.py runs this file in a process of its own: other tests of a process leave free memory
and settings of the C library behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from covey import models
from covey.deployed.memory import give_back_free, give_back_large
from covey.deployed.node.assemble import TreeMember, node_of, tree_members
from covey.deployed.node.disk import Disk
from covey.deployed.node.epoch import Epoch
from covey.deployed.node.node import Node
from covey.deployed.node.node_rows import NodeRow
from covey.deployed.node.process import mapped_parts, mapped_tensor, parts_of, share
from covey.deployed.transport.transport import Answer, AskKey, Blob, Seat
from covey.runs.parts import Parts
from covey.runtimes.alone.envelope import Pieces
from covey.tree import Tree
from tests.deployed.tree import Silent
from tests.laws.cases import CASES, CLASSES, INPUTS, experiment, with_fields

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
NUMBERS = 10_000_000
"""Of a row of 40 MB: the C library takes and gives back so much at once, and keeps none of it."""
BYTES = 4 * NUMBERS


def resident(name: str = "VmRSS") -> int:
    """Bytes of this process: those in memory now (VmRSS), or at most (VmHWM)."""
    for line in STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise AssertionError(name)


def restart_peak() -> None:
    RESET.write_text("5", encoding="utf-8")


def taken(action: Callable[[], Any], size: int = BYTES) -> float:
    """The peak of memory during an action beyond what was there before, in rows."""
    give_back_free()
    before = resident()
    restart_peak()
    action()
    return (resident("VmHWM") - before) / size


@pytest.fixture(autouse=True, scope="module")
def _as_an_edge() -> None:
    """`covey node` calls it in a process that only aggregates."""
    give_back_large()


def test_a_disk_moves_long_rows_piece_by_piece(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "node.sqlite")
    row = torch.arange(NUMBERS, dtype=torch.float32)
    kept = [NodeRow("edge", 0, "edge", "present", 0, row)]

    def write() -> None:
        disk.keep(kept, round=0, attempt=0)
        disk.commit()

    assert taken(write) < 0.5
    assert taken(write) < 0.5  # over the good row
    assert taken(lambda: disk.row("edge", "present")) < 1.5
    assert disk.row("edge", "present").equal(row)
    disk.close()


def test_a_parked_row_takes_no_memory_until_it_is_read(tmp_path: Path) -> None:
    row = torch.arange(NUMBERS, dtype=torch.float32)
    before = resident()
    moved = mapped_tensor(row, tmp_path)
    assert resident() - before < 0.2 * BYTES
    assert moved.equal(row)
    moved[0] = 5.0  # in memory alone
    assert float(moved[0]) == 5.0
    assert list(tmp_path.iterdir()) == []


class Devices(Silent):
    """A transport to devices whose answers are there when it is asked; it starts the peak anew."""

    def __init__(self, devices: Mapping[Seat, Node]) -> None:
        self._devices = devices

    def ask(
        self, key: AskKey, common: Blob, own: Mapping[Seat, bytes], *_: Any
    ) -> dict[Seat, Answer]:
        assert isinstance(common, Pieces)
        whole = common.joined()
        out = {}
        for seat, node in self._devices.items():
            out[seat] = Answer("answered", node.answer(key, whole, own[seat]))
        del whole
        give_back_free()
        restart_peak()
        return out

    def members(self) -> frozenset[Seat]:
        return frozenset(self._devices)


def test_an_edge_takes_three_models_and_the_answers_at_most(tmp_path: Path) -> None:
    """In an ask of training, beyond what it has before; a model of 40 MB, and two devices."""
    algorithm = with_fields(CASES["HierFAVG"].algorithm, edge_rounds=1, steps=1)
    one = replace(
        experiment(CASES["HierFAVG"], rounds=1),
        algorithm=algorithm,
        tree=Tree.grouped([2, 6]),
        model=models.mlp(INPUTS, NUMBERS // (INPUTS + 1 + CLASSES), CLASSES),
    )
    parts = parts_of(one)
    facts = tree_members(parts.tree, parts.data)
    request = _request(parts, facts["server"][0], tmp_path)
    place = facts["edge"][0].place
    devices = {}
    for seat in range(place.first_child, place.first_child + place.children):
        disk = Disk(tmp_path / f"device{seat}" / "node.sqlite")
        devices[seat] = node_of(parts, facts["device"][seat], disk)
    disk = Disk(tmp_path / "edge0" / "node.sqlite")
    edge = node_of(parts, facts["edge"][0], disk, transport=Devices(devices))
    parts = mapped_parts(parts, tmp_path)
    share(edge, parts)
    size = parts.start.nbytes
    give_back_free()
    before = resident()
    edge.answer(*request)
    peak = (resident("VmHWM") - before) / size
    assert peak < 3 + len(devices) - 0.4
    for node in (edge, *devices.values()):
        node.database.close()


class Asked(Exception):
    """What a server would send to its first edge."""


class Caught(Silent):
    """A transport that raises what it is to send."""

    def ask(self, key: AskKey, common: Blob, own: Mapping[Seat, bytes], *_: Any) -> Any:
        assert isinstance(common, Pieces)
        raise Asked(key, common.joined(), own[0])


def _request(parts: Parts, facts: TreeMember, folder: Path) -> tuple[AskKey, bytes, bytes]:
    """The request of a server to train."""
    disk = Disk(folder / "server" / "node.sqlite")
    server = node_of(parts, facts, disk, transport=Caught())
    server.standing.epoch = Epoch("run", 0)
    with pytest.raises(Asked) as caught:
        server.play(parts.experiment.algorithm.server, parts.start, round=0)
    disk.close()
    key, common, own = caught.value.args
    return key, common, own
