"""Kills a late edge between two asks of its program, and compares the run with its replay.

    python -m tests.deployed.late_kills

The server goes on without the edge after a deadline. The edge has asked its devices three times by
then, of five; it starts again from its disk. The last line tells what became of its asks.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.deployed.node.disk import Disk
from covey.deployed.node.node import Node
from covey.deployed.node.replay import replay
from covey.deployed.node.server_run import missing_of
from covey.deployed.plan.plan import DeploySettings
from covey.deployed.plan.process import Process
from covey.deployed.transport.transport import AskKey
from covey.tree import Tree
from tests.deployed.forked_tree import ForkedTree, Hook, Life
from tests.deployed.kills import FEEDBACK, memory_folder, three_devices
from tests.given import drained
from tests.laws.cases import CASES, differences, experiment, state

DEADLINE = 1.0
ASKS = 3
"""Of the edge's five in a round, after which it is killed."""


def slow() -> Hook:
    """A device that trains so long that the run is not over before the edge is back."""
    return lambda point: time.sleep(0.1 if point == "inside-ask" else 0.0)


def killed() -> Hook:
    """An edge that waits until it is late, and is killed: within the first round after round 0."""
    answered = Node._answered
    rounds = [0]
    received = Counter[int]()

    def watched(node: Node, key: AskKey, common: bytes, own: bytes) -> bytes:
        rounds[0] = key.round if key.lane == "train" else 0
        return answered(node, key, common, own)

    setattr(Node, "_answered", watched)  # noqa: B010 (a method)

    def hook(point: str) -> None:
        received[rounds[0]] += point == "after-journal"
        if rounds[0] and received[rounds[0]] == ASKS:
            time.sleep(1.5 * DEADLINE)
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def main() -> None:
    """Run the tree; the exit code says whether the replay holds what the run holds."""
    data = three_devices()
    tree = Tree.grouped([1, 2])
    case = CASES["HierFAVG"]
    algorithm: Any = case.algorithm
    longer = replace(case, algorithm=replace(algorithm, edge_rounds=5))
    one = experiment(longer, data=data, tree=tree, rounds=12, score_every=20, codec=FEEDBACK)
    lives = {"edge1": [Life("late", killed)], "device0": [Life("slow", slow)]}
    deaths: list[str] = []

    def next_life(process: Process) -> Life:
        left = lives.get(process.name, [])
        return left.pop() if left else Life("")

    def died(process: Process, life: Life) -> None:
        deaths.append(process.name)

    settings = DeploySettings(quorum={"server": 1}, deadline={"server": DEADLINE})
    with tempfile.TemporaryDirectory(dir=memory_folder()) as path:
        forked = ForkedTree(one, Path(path), "process", False, next_life, died, settings)
        ended = forked.run()
        if ended.state is None:
            sys.exit(f"{ended.failed}: {ended.words}")
        (file,) = (forked.nodes / "server").rglob("node.sqlite")
        disk = Disk(file, "process")
        missing = missing_of(disk)
        disk.close()
    again = replay(one, missing)
    drained(again)
    differs = differences(state(again), ended.state)
    last = {(entry.round, entry.number): entry.status for entry in missing}
    print(f"killed {deaths}; {dict(Counter(last.values()))}; differs {differs[:2]}")
    sys.exit(bool(differs) or deaths != ["edge1"] or "late" not in last.values())


if __name__ == "__main__":
    main()
