"""Cut off, late and frozen: what a tree on a network does, with a quorum and without.

Without a quorum a round waits, and the run has the bits of the simulator. With one it goes on, and
its replay has the bits of the run.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from tests.cli.command import exits
from tests.deployed.fleet import Fleet, seconds_of
from tests.deployed.namespaces import Machines

pytestmark = pytest.mark.skipif(
    "COVEY_TEST_ALL" not in os.environ, reason="starts many processes: make test-deployed"
)
FOUND = 30.0
"""Seconds in which a node that is cut off must be found."""
CUT = 60.0
PERMFL = 'name = "permfl"\nedge_rounds = 2\nsteps = 3'
FEEDBACK = 'codec = {name = "int8", update = true, feedback = true}'


def report(**figures: float) -> None:
    """Print figures: `pytest -s` shows them."""
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}))


def found(fleet: Fleet, since: float) -> dict[str, float]:
    """Seconds until those who lost edge1 said so: its parent, its children, and itself."""
    fleet.until(lambda: fleet.left("server", "edge1", since) is not None, FOUND, "word of it")
    left = fleet.left("server", "edge1", since)
    assert left is not None
    out = {"log": left - since}
    fleet.until(lambda: fleet.seat_states("server")["edge1"] == "empty", 5, "status")
    out["status"] = time.time() - since
    return out


def wait_joined(fleet: Fleet, name: str) -> None:
    """Until a node and all its children are on their seats again."""

    def joined() -> bool:
        own = fleet.seat_states(fleet.parent(name))[name] != "empty"
        states = fleet.seat_states(name)
        return own and all(states[child] != "empty" for child in fleet.children(name))

    fleet.until(joined, 60, "return")


def replay_equals(fleet: Fleet) -> dict[str, int]:
    """Assert that `covey replay` says so, and return its counts."""
    result = exits(0, "replay", fleet.state / "server" / "run", "--json")
    facts: dict[str, int] = json.loads(result.out)
    return facts


def test_without_a_quorum_a_round_waits_for_who_is_cut_off(
    machines: Machines, tmp_path: Path
) -> None:
    with Fleet(tmp_path, machines, PERMFL, rounds=12, settings=FEEDBACK) as fleet:
        fleet.wait_rounds(3)
        machines.unplug("edge1")
        cut = time.time()
        figures = found(fleet, cut)
        before = fleet.done()
        time.sleep(max(0.0, cut + CUT - time.time()))
        assert fleet.done() == before < fleet.rounds  # the round waits
        machines.plug("edge1")
        mended = time.time()
        wait_joined(fleet, "edge1")
        report(**figures, joined=time.time() - mended)
        fleet.wait_end()
        assert fleet.missing() == []
        assert fleet.differences(fleet.simulated()) == []
    assert max(figures.values()) <= FOUND


def test_with_a_quorum_the_run_goes_on_without_a_subtree(
    machines: Machines, tmp_path: Path
) -> None:
    patience = "quorum = {server = 2}\ndeadline = {server = 3.0}"
    with Fleet(tmp_path, machines, PERMFL, rounds=50, settings=FEEDBACK, deploy=patience) as fleet:
        fleet.wait_rounds(3)
        machines.unplug("edge1")
        cut = time.time()
        figures = found(fleet, cut)
        fleet.go_on(cut + CUT, most=20)
        events = fleet.events("server", "round")
        during = [event["round"] for event in events if seconds_of(event) > cut]
        machines.plug("edge1")
        mended = time.time()
        wait_joined(fleet, "edge1")
        report(**figures, joined=time.time() - mended, rounds=len(during))
        fleet.order("server", "resume")
        assert len(during) >= 5
        assert fleet.done() < fleet.rounds
        fleet.wait_end()
        missing = fleet.missing()
        without = {entry.round for entry in missing if (entry.tier, entry.number) == ("edge", 1)}
        assert fleet.differences(fleet.replayed()) == []
        facts = replay_equals(fleet)
        assert facts["absent"] + facts["late"] >= 5
        back = {round for round in range(max(during), fleet.rounds) if round not in without}
        assert back  # edge 1 took part again
    assert max(figures.values()) <= FOUND


@pytest.mark.parametrize("name", ["permfl", "hierfavg"])
def test_the_replay_of_late_answers_is_the_run(
    name: str, machines: Machines, tmp_path: Path
) -> None:
    """5 % of all answers are late, of devices and of edges."""
    algorithm = f'name = "{name}"\nedge_rounds = 2\nsteps = 3'
    patience = "quorum = {server = 1, edge = 1}\ndeadline = {server = 6.0, edge = 1.0}"
    with Fleet(
        tmp_path, machines, algorithm, proxies=True, rounds=20, settings=FEEDBACK, deploy=patience
    ) as fleet:
        fleet.wait_rounds(1)
        for child, proxy in fleet.proxies.items():
            proxy.late_seconds = 8.0 if child.startswith("edge") else 1.5
            proxy.late_share = 0.05
        fleet.wait_end(600)
        for proxy in fleet.proxies.values():
            proxy.late_share = 0.0
        statuses = Counter((entry.tier, entry.status) for entry in fleet.missing())
        sent = sum(proxy.late for proxy in fleet.proxies.values())
        counts = {f"{status} {tier}s": count for (tier, status), count in statuses.items()}
        report(**counts, delayed=sent)
        assert statuses["device", "late"] >= 5
        assert fleet.differences(fleet.replayed()) == []
        assert replay_equals(fleet)["late"] >= 5


def test_a_device_that_is_frozen_is_late_and_comes_back(machines: Machines, tmp_path: Path) -> None:
    """SIGSTOP, for less than the pings take and for more: the round goes on after its deadline."""
    patience = "quorum = {edge = 3}\ndeadline = {edge = 1.0}"
    with Fleet(tmp_path, machines, PERMFL, rounds=60, settings=FEEDBACK, deploy=patience) as fleet:
        for seconds in (4.0, 25.0):
            fleet.wait_rounds(fleet.done() + 2)
            process = fleet.processes["device6"]
            process.send_signal(signal.SIGSTOP)
            before = fleet.done()
            fleet.go_on(time.time() + seconds, most=12)
            assert fleet.done() > before
            process.send_signal(signal.SIGCONT)
            fleet.until(
                lambda: fleet.seat_states("edge1")["device6"] != "empty", 60, "return of device6"
            )
            fleet.order("server", "resume")
        fleet.wait_end()
        missing = fleet.missing()
        statuses = Counter(entry.status for entry in missing if entry.number == 6)
        report(**statuses)
        assert statuses["late"] >= 1
        assert statuses["absent"] >= 5
        without = {entry.round for entry in missing if entry.number == 6}
        assert len(without) < fleet.rounds // 2  # it took part again
        assert fleet.differences(fleet.replayed()) == []
        replay_equals(fleet)
