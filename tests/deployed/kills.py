"""Kills the nodes of real trees, and counts where the kills fell.

    python -m tests.deployed.kills --count 200 --cuts 50

Every process has one fault armed at a time: it kills itself with SIGKILL at a point of its work. It
starts again from its disk with another fault. At the end everything that the run holds must be what
the simulator holds, bit for bit. A power cut also puts the files of the node back to what it had
synced.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

import covey
from covey.deployed.disk import kill_at
from covey.deployed.plan import Durability, Process
from covey.runs.experiment import Experiment
from tests.deployed.forked import Ended, ForkedTree, Hook, Life
from tests.deployed.power import Power, compiled, cut_at_call
from tests.laws.cases import CASES, differences, experiment, state

Where = Literal["commit", "ask", "between rounds"]
Role = Literal["server", "edge", "device"]
FEEDBACK = {"name": "int8", "update": True, "feedback": True}
LARGEST = {"name": "coo", "keep": 0.1, "feedback": True}

POINTS: dict[Where, dict[Role, tuple[str, ...]]] = {
    "commit": {
        "device": ("inside-commit", "inside-round-commit"),
        "edge": ("inside-commit", "inside-journal", "inside-round-commit"),
        "server": ("inside-journal", "inside-round-commit"),
    },
    "ask": {
        "device": ("inside-ask", "training", "before-commit", "after-commit", "answer-sent"),
        "edge": (
            *("inside-ask", "asking", "waiting", "answers-received", "after-journal"),
            *("before-commit", "after-commit", "answer-sent"),
        ),
        "server": ("asking", "waiting", "answers-received", "after-journal"),
    },
    "between rounds": {
        "device": ("between-rounds",),
        "edge": ("between-rounds",),
        "server": ("between-rounds", "round-ended"),
    },
}
ONCE_A_ROUND = ("between-rounds", "inside-round-commit", "round-ended")
WITHIN = {"training": ("inside-ask", "before-commit"), "waiting": ("asking", "answers-received")}
"""Kills at a random moment between two points."""
SLOWEST = {"training": 0.004, "waiting": 0.03}  # s, the longest wait for such a moment
CALLS = 40  # writes and syncs of a node, about those of two asks
RESTART = {"LD_PRELOAD", "COVEY_POWER"}


@dataclass(frozen=True)
class Scenario:
    """An algorithm of the laws, with a codec and more rounds."""

    name: str
    codec: Any = None
    rounds: int = 8
    secure: bool = False

    def experiment(self, seed: int) -> Experiment:
        changes: dict[str, Any] = {"rounds": self.rounds, "score_every": 2, "seed": seed}
        if self.codec is not None:
            changes["codec"] = self.codec
        return experiment(CASES[self.name], **changes)


SCENARIOS = {
    "kept rows, feedback": Scenario("SFedHP", FEEDBACK, secure=True),
    "sampled, feedback": Scenario("Scaffold-sample", FEEDBACK, rounds=12),
    "sampled in 3 tiers": Scenario("PerMFL-sample"),
    "draws, top tenth": Scenario("PFedBayes-sample", LARGEST, rounds=12),
    "4 tiers": Scenario("FedAlt-four-tiers", FEEDBACK, rounds=6),
}


# Faults


def role(process: Process) -> Role:
    """Who a process is in the tree."""
    if process.parent is None:
        return "server"
    if process.listen is None:
        return "device"
    return "edge"


class KillBetween:
    """A hook that kills this process within some seconds after the n-th pass of a point.

    Where another point is passed sooner, the next pass is taken.
    """

    def __init__(self, points: tuple[str, str], times: int, seconds: float) -> None:
        self._first, self._last = points
        self._left = times
        self._seconds = seconds
        self._alone = threading.Lock()
        self._inside = 0

    def __call__(self, point: str) -> None:
        if point == self._first:
            self._left -= 1
            if self._left <= 0:
                self._begin()
        elif point == self._last:
            with self._alone:
                self._inside = 0

    def _begin(self) -> None:
        with self._alone:
            self._inside = 1 - self._left
            mark = self._inside
        delay = random.SystemRandom().uniform(0, self._seconds)
        threading.Thread(target=self._kill, args=(delay, mark), daemon=True).start()

    def _kill(self, delay: float, mark: int) -> None:
        time.sleep(delay)
        with self._alone:
            if self._inside == mark:
                os.kill(os.getpid(), signal.SIGKILL)


def hook_at(point: str, times: int) -> Hook:
    """The hook that kills this process at a point of the table above."""
    if point in WITHIN:
        return KillBetween(WITHIN[point], times, SLOWEST[point])
    return kill_at(point, times)


def hook_at_call(number: int) -> Hook:
    """A kill at the n-th write or sync after the first fault point."""
    armed = False

    def hook(point: str) -> None:
        nonlocal armed
        if not armed:
            armed = True
            cut_at_call(number)

    return hook


@dataclass
class Plan:
    """Which fault each process gets, so that all places have their share."""

    wanted: int
    draw: random.Random
    calls: bool = False
    """Whether some processes die at a write or sync of a file, as in a power cut."""
    fell: Counter[tuple[Where, Role, str]] = field(default_factory=Counter)
    """How often processes were killed, by place, role and point."""
    lost_bytes: int = 0

    @property
    def total(self) -> int:
        return sum(self.fell.values())

    def by_place(self) -> Counter[Where]:
        out: Counter[Where] = Counter()
        for (where, _, _), count in self.fell.items():
            out[where] += count
        return out

    def next_life(self, process: Process) -> Life:
        """The next life of a process: the place with the fewest kills comes most often."""
        if self.total >= self.wanted:
            return Life("")
        if self.calls and self.draw.random() < 0.5:
            number = self.draw.randint(1, CALLS)
            return Life("file call", lambda: hook_at_call(number))
        counts = self.by_place()
        places = sorted(POINTS, key=lambda place: counts[place] + self.draw.random() * 6)
        point = self.draw.choice(POINTS[places[0]][role(process)])
        most = 2 if point in ONCE_A_ROUND else 5
        times = self.draw.randint(1, most)
        return Life(point, lambda: hook_at(point, times))

    def died(self, process: Process, life: Life) -> None:
        """A process has died."""
        self.fell[place_of(life.name), role(process), life.name] += 1


def place_of(point: str) -> Where:
    """In which of the three places a point lies."""
    for where, roles in POINTS.items():
        if any(point in points for points in roles.values()):
            return where
    return "commit"


# Runs


@dataclass
class Trainings:
    """How many trainings began, ended, and were done twice."""

    begun: int = 0
    ended: int = 0
    keys: int = 0
    twice: int = 0
    expected: int = 0

    def add(self, tree: ForkedTree) -> None:
        """Those of a tree."""
        over: set[tuple[str, str]] = set()
        all_keys: set[tuple[str, str]] = set()
        for process, what, key in tree.trainings():
            all_keys.add((process, key))
            if what == "ended":
                self.ended += 1
                over.add((process, key))
                continue
            self.begun += 1
            if (process, key) in over:
                self.twice += 1
        self.keys += len(all_keys)


@dataclass
class Result:
    """One tree that was killed again and again."""

    name: str
    plan: Plan
    ended: Ended
    differs: list[str]
    trainings: Trainings
    rounds: int


def in_a_fork(work: Callable[[], Any], folder: Path) -> Any:
    """What a function returns, which is run in a process of its own."""
    path = folder / "returned.pt"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.save(work(), path)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return torch.load(path, weights_only=False)


def simulated(tried: Experiment) -> dict[str, Any]:
    """What the simulator's run holds at its end."""
    run = covey.run(tried)
    for _ in run:
        pass
    return state(run)


def tried(
    scenario: Scenario,
    plan: Plan,
    seed: int,
    folder: Path,
    durability: Durability = "process",
    torn: bool | None = None,
) -> Result:
    """A tree that is killed as planned; `torn` is not None: every kill is a power cut."""
    one = scenario.experiment(seed)
    expected = in_a_fork(lambda: simulated(one), folder)
    tree = ForkedTree(one, folder, durability, scenario.secure, plan.next_life, plan.died)
    if torn is not None:
        power = Power(tree.nodes, folder / "durable", plan.draw, torn)
        power.watch()
        for process in tree.processes:
            power.settle(tree.nodes / process.name)

        def died(process: Process, life: Life) -> None:
            plan.died(process, life)
            plan.lost_bytes += power.cut(tree.nodes / process.name)

        tree.died = died
    ended = tree.run()
    if ended.state is None and "COVEY_KEEP" in os.environ:
        shutil.copytree(folder, os.environ["COVEY_KEEP"], dirs_exist_ok=True)
    differs = []
    if ended.state is not None:
        differs = differences(expected, ended.state)
    trainings = Trainings()
    trainings.add(tree)
    return Result(scenario.name, plan, ended, differs, trainings, scenario.rounds)


def memory_folder() -> str | None:
    """A folder in memory where there is one: syncs are copied by hand, and disks are slow."""
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK):
        return str(memory)
    return None


def campaign(
    count: int, seed: int, durability: Durability, torn: bool | None, names: list[str]
) -> Iterator[Result]:
    """Trees until so many processes were killed."""
    draw = random.Random(seed)
    killed = 0
    number = 0
    fell: Counter[tuple[Where, Role, str]] = Counter()
    share = -(-count // len(names))
    while killed < count or number < len(names):
        scenario = SCENARIOS[names[number % len(names)]]
        plan = Plan(share, draw, calls=torn is not None)
        with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
            result = tried(scenario, plan, seed + number, Path(folder), durability, torn)
        gc.collect()
        yield result
        killed += plan.total
        fell += plan.fell
        number += 1
        if plan.total == 0:
            raise SystemExit("a tree ended without a kill")


# The table


def line(result: Result) -> str:
    """One line about a tree."""
    places = result.plan.by_place()
    parts = [f"{places[where]:4d}" for where in POINTS]
    verdict = "bit-equal"
    if result.ended.state is None:
        verdict = f"{result.ended.failed}: {result.ended.words}"
    elif result.differs:
        verdict = f"DIFFERS: {result.differs[0][:80]}"
    counts = result.trainings
    return (
        f"{result.name:20s} {result.plan.total:5d} {' '.join(parts)}  "
        f"{counts.begun:6d} {counts.ended:6d} {counts.twice:3d} {result.ended.doubted:3d}  "
        f"{result.ended.seconds:6.1f} s  {verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="kills of processes")
    parser.add_argument("--cuts", type=int, default=0, help="power cuts with durability = power")
    parser.add_argument("--lossy", type=int, default=0, help="cuts with durability = process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=list(SCENARIOS))
    options = parser.parse_args()
    if (options.cuts or options.lossy) and "COVEY_POWER" not in os.environ:
        with_power()
    names = options.only or list(SCENARIOS)
    good = True
    for count, durability, torn in (
        (options.count, "process", None),
        (options.cuts, "power", True),
    ):
        if not count:
            continue
        fell: Counter[tuple[Where, Role, str]] = Counter()
        for result in campaign(count, options.seed, durability, torn, names):
            print(line(result), flush=True)
            fell += result.plan.fell
            good = good and result.ended.state is not None and not result.differs
            good = good and result.trainings.twice == 0
        for (where, who, point), number in sorted(fell.items()):
            print(f"  {where:15s} {who:7s} {point:20s} {number:4d}")
    return int(not good)


def with_power() -> None:
    """Start this program again with power.c preloaded."""
    folder = Path(tempfile.mkdtemp(prefix="covey-power-"))
    environment = {**os.environ, "COVEY_POWER": "1", "LD_PRELOAD": str(compiled(folder))}
    os.execve(sys.executable, [sys.executable, "-m", "tests.deployed.kills", *sys.argv[1:]], environment)


if __name__ == "__main__":
    sys.exit(main())
