"""What a parent remembers of the asks that its children have missed, and corrects later."""

from __future__ import annotations

from typing import Any

import pytest

from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.missed import ENDED, MissedAsks, Missing, remembered
from covey.deployed.node.server_run import finish, missing_of, server_run
from covey.deployed.transport.transport import AskKey, Patience, Status
from tests.deployed.tree import Gated, check_replay, key
from tests.laws.cases import CASES, experiment

FEEDBACK = {"name": "int8", "update": True, "feedback": True}
LONG = ENDED + 8


def missed(asks: MissedAsks, round: int, status: Status, lane: str = "train") -> None:
    """The child 2 misses an ask."""
    entry = Missing(round, lane, 0, "device", 2, status)
    asks.ask(key(round, lane))
    asks.add(key(round, lane), entry)


def statuses(entries: list[Missing]) -> list[tuple[int, str]]:
    return [(entry.round, entry.status) for entry in entries]


def again(asks: MissedAsks) -> MissedAsks:
    """The same after a restart of the parent."""
    return MissedAsks.read(asks.facts())


@pytest.mark.parametrize("status", ["late", "bad"])
def test_a_child_may_be_away_for_long_after_it_was_late(status: Status) -> None:
    asks = MissedAsks()
    asks.ask(key(0))
    missed(asks, 1, status)
    for round in range(2, 2 + LONG):
        missed(asks, round, "absent")
        missed(asks, round, "absent", "score")
    assert len(asks.facts()) == 1
    corrected = {"late": [(1, "absent")], "bad": []}
    assert statuses(again(asks).settle(2, [[str(key(0)), []]])) == corrected[status]
    corrected = {"late": [], "bad": [(1, "late")]}
    assert statuses(asks.settle(2, [[str(key(1)), []]])) == corrected[status]
    assert asks.facts() == []


def test_a_child_may_have_had_an_ask_before_its_parent_was_started_again() -> None:
    """Only an ask of the round in which the parent was started: it finds the seat empty."""
    asks = again(MissedAsks())
    for round in range(5, 5 + LONG):
        missed(asks, round, "absent")
    assert statuses(asks.settle(2, [[str(key(5)), []]])) == [(5, "late")]


def test_a_child_that_does_not_remember_an_ask_has_not_lost_it() -> None:
    """It has run all of them, and each time too late."""
    asks = MissedAsks()
    ended: list[Any] = []
    for round in range(LONG):
        missed(asks, round, "late")
        ended = remembered([*ended, [str(key(round)), []]], 1)
    assert len(ended) == ENDED
    missed(asks, LONG, "late")  # this one it lost
    assert statuses(asks.settle(2, ended)) == [(LONG, "absent")]


def test_who_was_missing_below_is_told_however_long_a_child_is_late() -> None:
    asks = MissedAsks()
    ended: list[Any] = []
    for round in range(LONG):
        missed(asks, round, "late")
        below = [[round, "train", 7, "sensor", 3, "absent"]]
        ended = remembered([*ended, [str(key(round)), below]], 2)
    told = statuses(asks.settle(2, ended))
    assert told == [(round, "absent") for round in range(LONG)]


def test_a_lost_training_is_known_after_a_long_absence(local: LocalTree) -> None:
    """A device loses a training, is away for many rounds, and comes back."""
    described = experiment(CASES["PFedMe"], rounds=LONG + 5, score_every=99, codec=FEEDBACK)
    local.patience = {"server": Patience(0.05, 7)}
    run = server_run(described, local)
    next(run)
    above = local.transport_above("device", 2)
    lost = Gated()
    above.take(2, lost)
    next(run)
    above.leave(2)
    lost.gate.set()
    local.nodes["server", 0].asks.patience = Patience(0.002, 7)
    for _ in range(LONG):
        next(run)
    local.nodes["server", 0].asks.patience = Patience(9.0, 7)
    above.take(2, local.nodes["device", 2].answer)
    next(run)
    run.runtime.commit()
    check_replay(run, local, described)


def test_a_correction_is_told_again_where_an_order_comes_again(local: LocalTree) -> None:
    """A device has lost its last training; the edge's answer to the last order is lost too."""
    described = experiment(CASES["HierFAVG"], rounds=2, score_every=9, codec=FEEDBACK)
    run = server_run(described, local)
    next(run)
    edge = next(node for node in local.nodes.values() if node.place.tier == "edge")
    device = edge.asks.seats[0]
    above = local.transport_above("device", device)
    lost = Gated()
    above.take(device, lost)
    edge.asks.patience = Patience(0.05, 1)
    next(run)
    lost.gate.set()
    above.take(device, local.nodes["device", device].answer)
    edge.asks.patience = Patience(9.0, 1)
    orders = []

    def broken(asked: AskKey, common: bytes, own: bytes) -> bytes:
        if asked.program == "write":
            orders.append(edge.answer(asked, common, own))
        return edge.answer(asked, common, own)

    local.transport_above("edge", edge.place.number).take(edge.place.number, broken)
    finish(run)
    assert len(orders) == 1
    missing = missing_of(local.nodes["server", 0].database)
    assert {entry.status for entry in missing if entry.lane == "train"} == {"late", "absent"}
    check_replay(run, local, described)


def test_a_round_that_is_undone_has_not_ended(local: LocalTree) -> None:
    """Or who was missing in it would count for the round that is run again."""
    run = server_run(experiment(CASES["HierFAVG"], rounds=3, score_every=9), local)
    next(run)
    next(run)
    run.runtime.rollback()
    next(run)
    run.runtime.commit()
    edge = next(node for node in local.nodes.values() if node.place.tier == "edge")
    attempts = {asked.split("/")[1] for asked, _ in edge.database.fact("ended")}
    rounds = [asked.split("/")[2] for asked, _ in edge.database.fact("ended")]
    assert attempts == {"0", "1"}
    assert len(rounds) == 2 * rounds.count("0")
