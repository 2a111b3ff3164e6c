"""Runs in which some answers come too late: the replay in the simulator equals them to the bit."""

import os
import subprocess
import sys
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.deployed.node.local_tree import LocalTree
from covey.deployed.node.replay import replay
from covey.deployed.node.server_run import finish, missing_of, server_run
from covey.deployed.transport.transport import AskKey, Handler, Patience
from tests.given import drained, played
from tests.laws.cases import CASES, PLAIN, differences, experiment, state

ROOT = Path(__file__).parents[2]
ALL = "COVEY_TEST_ALL" in os.environ
MAY_MISS = [name for name, case in PLAIN.items() if case.algorithm.idle_trains]
DEADLINE = 0.03
FEEDBACK = {"name": "int8", "update": True, "feedback": True}


def sometimes_late(handler: Handler, name: str, share: float, seconds: float) -> Handler:
    """A node that takes its time in a share of all asks, which its name and the key decide."""

    def answer(key: AskKey, common: bytes, own: bytes) -> bytes:
        place = f"{name} {key.round} {key.lane} {key.path}"
        draw = int.from_bytes(sha256(place.encode()).digest()[:4], "little")
        if key.lane != "order" and draw < share * 2**32:
            time.sleep(seconds)
        return handler(key, common, own)

    return answer


def slow_tree(local: LocalTree, shares: dict[str, float]) -> None:
    """Let nodes of these tiers be late in a share of their asks."""
    for (tier, number), node in local.nodes.items():
        if tier in shares:
            parent = local.transport_above(tier, number)
            late = sometimes_late(node.answer, f"{tier}{number}", shares[tier], 3 * DEADLINE)
            parent.take(number, late)


def figures(run: covey.Run) -> dict[str, Any]:
    """Everything a run holds: rows, records, meter, notes, and the bytes of every node."""
    totals = {f"bytes {tier} {name}": values for (tier, name), values in run.totals.items()}
    return state(run) | totals


def late_run(
    name: str, folder: Path, shares: dict[str, float], **changes: Any
) -> tuple[dict[str, Any], Counter[str], covey.Run]:
    """(the deployed run, how many answers were missing, its replay)."""
    described = experiment(CASES[name], **changes)
    askers = described.algorithm.fit(described.tree)[0].tiers[:-1]
    quorum = dict.fromkeys(askers, Patience(DEADLINE, 1))
    local = LocalTree(folder, patience=quorum)
    run = server_run(described, local)
    slow_tree(local, shares)
    drained(run)
    finish(run)
    missing = missing_of(local.nodes["server", 0].database)
    for node in local.nodes.values():
        node.asks.patience = None  # for those who look at the rows
    deployed = figures(run)
    local.close()
    again = drained(replay(described, missing))
    return deployed, Counter(entry.status for entry in missing), again


@pytest.mark.parametrize("name", MAY_MISS if ALL else ["PFedMe"])
def test_a_replay_of_late_answers_is_equal(name: str, folder: Path) -> None:
    """One answer in twenty is late: rows, records, traffic and notes are those of the run."""
    changes = {"rounds": 6, "score_every": 2}
    deployed, counts, again = late_run(name, folder, {"device": 0.05}, **changes)
    assert counts["late"] > 0
    assert differences(figures(again), deployed) == []


@pytest.mark.parametrize("name", MAY_MISS if ALL else ["HierFAVG"])
def test_a_late_edge_hides_what_is_below_it(name: str, folder: Path) -> None:
    """Its devices have trained, some of them late; links have residuals."""
    changes: dict[str, Any] = {"rounds": 6, "score_every": 2}
    if "codec" not in CASES[name].settings:
        changes["codec"] = FEEDBACK
    shares = {"edge": 0.2, "device": 0.1}
    deployed, counts, again = late_run(name, folder, shares, **changes)
    assert counts["late"] > 0
    assert differences(figures(again), deployed) == []
    plain = played(experiment(CASES[name], **changes))
    assert differences(figures(plain), deployed) != []


def test_a_late_edge_that_is_killed_ends_its_ask() -> None:
    """Its devices have trained for three of its five asks, and train for the others too."""
    pytest.importorskip("grpc")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.deployed.late_kills"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
