"""A fleet goes on without its worst member, and tells how it is."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import covey
from covey import Algorithm, Nodes, Rows
from covey.deployed.local_tree import LocalTree
from covey.deployed.replay import replay
from covey.deployed.server_run import finish, missing_of, server_run
from covey.deployed.transport import AskKey, Patience
from covey.errors import CoveyError, DivergedError, ProgramError
from covey.runtimes.envelope import seal
from tests.laws.cases import CASES, PLAIN, Case, differences, experiment
from tests.laws.test_deployed import rows_of
from tests.laws.test_loopback import Failing, drained


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as path:
        yield Path(path)


# An error of one child


@pytest.mark.parametrize("how", ["value", "diverged"])
def test_a_quorum_goes_on_without_a_device_that_fails(how: str, folder: Path) -> None:
    """Its error is a bad answer: it is counted, and the replay without it is equal."""
    case = Case("Failing", Failing(how=how))
    local = LocalTree(folder, patience={"edge": Patience(20.0, 1)})
    run = drained(server_run(experiment(case), local))
    finish(run)
    (reason,) = local.transport_above("device", 5).refused(5)
    assert "an error of its own, " in reason
    assert "device 5" in reason
    missing = missing_of(local.nodes["server", 0].database)
    assert [(entry.number, entry.round, entry.status) for entry in missing] == [(5, 1, "bad")]
    rows = rows_of(run)
    local.close()
    again = drained(replay(experiment(case), missing))
    assert differences(rows_of(again), rows) == []


@pytest.mark.parametrize("kind", ["DivergedError", "nonsense"])
def test_one_lying_error_stops_nobody(kind: str, folder: Path) -> None:
    local = LocalTree(folder, patience={"server": Patience(20.0, 3)})
    run = covey.run(experiment(PLAIN["PFedMe"], rounds=3), runtime=local)
    transport = local.transport_above("device", 5)
    honest = local.nodes["device", 5].answer

    def lies(key: AskKey, common: bytes, own: bytes) -> bytes:
        if key.lane == "train" and key.round:
            return seal({"error": [kind, "device 2: boom"]}, [])
        return honest(key, common, own)

    transport.take(5, lies)
    drained(run)
    assert run.round == 3
    assert len(transport.refused(5)) == 2
    local.close()


@dataclass(frozen=True)
class Broken(Algorithm):
    """FedAvg with a fault that some devices meet in the second round."""

    sends: ClassVar[str] = "its model"
    devices: int = 8

    def server(self, me: Nodes, w: Rows) -> Rows:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Rows) -> Rows:
        if me.round == 1 and bool((me.ids < self.devices).any()):
            raise ValueError("a fault of the program")
        return w + 1


@pytest.mark.parametrize(("devices", "ends"), [(4, False), (5, True), (8, True)])
def test_an_error_that_more_than_half_give_ends_the_run(
    devices: int, ends: bool, folder: Path
) -> None:
    """It is a fault of the program, which nobody but its author can mend."""
    local = LocalTree(folder, patience={"server": Patience(20.0, 1)})
    run = covey.run(experiment(Case("Broken", Broken(devices))), runtime=local)
    next(run)
    if ends:
        with pytest.raises(ProgramError, match=r"device \d: ValueError: a fault of the program"):
            next(run)
    else:
        next(run)
        assert [len(local.transport_above("device", d).refused(d)) for d in range(8)] == [
            1, 1, 1, 1, 0, 0, 0, 0
        ]  # fmt: skip
    local.close()


@pytest.mark.parametrize(("how", "kind"), [("value", ProgramError), ("diverged", DivergedError)])
def test_without_a_quorum_an_error_of_one_device_ends_the_run(
    how: str, kind: type[CoveyError], folder: Path
) -> None:
    local = LocalTree(folder)
    run = covey.run(experiment(Case("Failing", Failing(how=how))), runtime=local)
    next(run)
    with pytest.raises(kind):
        next(run)
    local.close()


def test_a_device_that_could_not_follow_an_order_trains_only_after_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold the rows of a later round, and call them the chosen ones."""
    local = LocalTree(folder, patience={"server": Patience(0.5, 3)})
    run = server_run(experiment(CASES["PFedMe"], rounds=3, score_every=1), local)
    device = local.nodes["device", 2]
    hold = type(device)._hold_version
    full = [True]

    def on_a_full_disk(label: str, columns: Any) -> None:
        if full:
            raise OSError("No space left on device")
        hold(device, label, columns)

    monkeypatch.setattr(device, "_hold_version", on_a_full_disk)
    next(run)
    next(run)
    transport = local.transport_above("device", 2)
    first, *later = transport.refused(2)
    assert "No space left on device" in first
    assert any("could not follow an order" in reason for reason in later)
    next(run)
    missing = missing_of(local.nodes["server", 0].database)  # of the rounds that are good
    assert {(entry.number, entry.round, entry.lane) for entry in missing} >= {(2, 1, "train")}
    local.close()
