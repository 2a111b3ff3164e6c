"""Kills the nodes of real trees, and counts where the kills fell.

    python -m tests.deployed.kills --count 200 --cuts 50 --lossy 50

Every process has at most one fault armed: it kills itself with SIGKILL at a point of its work, and
never while it starts. It starts again from its disk with another fault. At the end everything that
the run holds must be what the simulator holds, bit for bit.

`--cuts` are power cuts with durability = "power": the files of the node are also put back to what it
had synced. `--lossy` are power cuts with durability = "process", which may lose something: a tree
must then end with the name of the node whose disk is behind.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

import covey
from covey.data import Shards, own
from covey.deployed.faults import kill_at
from covey.deployed.plan.process import Durability, Process
from covey.runs.experiment import Experiment
from covey.tree import Tree
from tests.deployed.forked_tree import Ended, ForkedTree, Hook, Life
from tests.deployed.power import Power, compiled, cut_at_call
from tests.given import drained
from tests.laws.cases import CASES, CLASSES, INPUTS, differences, experiment, state

Where = Literal["commit", "ask", "between rounds", "file"]
Role = Literal["server", "edge", "device"]
FEEDBACK = {"name": "int8", "update": True, "feedback": True}
LARGEST = {"name": "coo", "keep": 0.1, "feedback": True}

PLACES: dict[Where, str] = {
    "commit": "inside a commit",
    "ask": "inside an ask",
    "between rounds": "between rounds",
    "file": "at a write or sync",
}
ROLES: tuple[Role, ...] = ("device", "edge", "server")
POINTS: dict[Where, dict[Role, tuple[str, ...]]] = {
    "commit": {
        "device": ("inside-commit", "inside-round-commit"),
        "edge": ("inside-commit", "inside-journal", "inside-round-commit"),
        "server": ("inside-journal", "inside-round-commit"),
    },
    "ask": {
        "device": (
            *("inside-ask", "training", "training", "training", "before-commit"),
            *("after-commit", "answer-sent"),
        ),
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
FILE_CALL = "file call"
FLUSHED = {False: 0.9, True: 0.4}
"""The share of kills in lossy trees before which the system has written everything by itself.

It is higher the first time: later cuts of that node go back to what was written then.
"""
REFUSED = re.compile("disk is behind|disk of a node above it is behind|disk of another run")
PRELOADED = "COVEY_POWER"


@dataclass(frozen=True)
class Scenario:
    """An algorithm of the laws, with a codec and more rounds."""

    name: str
    codec: Any = None
    rounds: int = 8
    secure: bool = False
    small: bool = False
    """Whether the tree has two edges and three devices."""

    def experiment(self, seed: int) -> Experiment:
        """The experiment with a seed."""
        changes: dict[str, Any] = {"rounds": self.rounds, "score_every": 2, "seed": seed}
        if self.codec is not None:
            changes["codec"] = self.codec
        if self.small:
            changes |= {"data": three_devices(), "tree": Tree.grouped([1, 2])}
        return experiment(CASES[self.name], **changes)


def three_devices() -> Shards:
    """Three devices with a few examples each."""
    draw = torch.Generator().manual_seed(3)
    pairs = []
    for size in (20, 9, 30):
        labels = torch.randint(CLASSES, (size,), generator=draw)
        pairs.append((torch.randn(size, INPUTS, generator=draw), labels))
    return own(pairs, classes=CLASSES)


SMALL = "small"
SCENARIOS = {
    SMALL: Scenario("SFedHP", FEEDBACK, rounds=3, small=True),
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
    flushes: bool = False
    """Whether most kills are no power cuts, but leave a disk that a later cut goes back to."""
    cuts_that_lose: int = 0
    """How many power cuts have changed a file."""

    @property
    def total(self) -> int:
        return sum(self.fell.values())

    def by_place(self) -> Counter[Where]:
        """How often processes were killed, by place."""
        out: Counter[Where] = Counter()
        for (where, _, _), count in self.fell.items():
            out[where] += count
        return out

    def next_life(self, process: Process) -> Life:
        """The next life of a process: the place with the fewest kills comes most often.

        There are more devices than others, so a third of their lives have no fault.
        """
        spared = role(process) == "device" and self.draw.random() < 1 / 3
        if self.total >= self.wanted or spared:
            return Life("")
        if self.calls and self.draw.random() < 0.5:
            number = self.draw.randint(1, CALLS)
            return Life(FILE_CALL, lambda: hook_at_call(number))
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
    return "file"


# Runs


@dataclass
class Trainings:
    """How many trainings there were, and how often they were begun."""

    keys: int = 0
    """Different trainings: the pairs of a node and a key."""
    begun: int = 0
    twice: int = 0
    """Those that were begun although they had ended."""

    @staticmethod
    def of(tree: ForkedTree) -> Trainings:
        """Those of a tree."""
        out = Trainings()
        ended: set[tuple[str, str]] = set()
        keys: set[tuple[str, str]] = set()
        for process, what, key in tree.trainings():
            keys.add((process, key))
            if what == "ended":
                ended.add((process, key))
                continue
            out.begun += 1
            if (process, key) in ended:
                out.twice += 1
        out.keys = len(keys)
        return out


@dataclass
class Result:
    """One tree that was killed again and again."""

    scenario: str
    plan: Plan
    ended: Ended
    differs: list[str]
    trainings: Trainings

    @property
    def equal(self) -> bool:
        """Whether the run has ended, and holds what the simulator holds."""
        return self.ended.state is not None and not self.differs

    @property
    def sound(self) -> bool:
        """Whether nothing was trained twice, and no honest node was taken for a liar."""
        return self.trainings.twice == 0 and self.ended.doubted == 0

    @property
    def refused(self) -> bool:
        """Whether a disk that is behind has ended the run, with the node's name."""
        return REFUSED.search(self.ended.words) is not None

    @property
    def verdict(self) -> str:
        """How the tree has ended, in words."""
        if self.equal:
            return "bit-equal"
        if self.differs:
            return f"DIFFERS: {self.differs[0][:80]}"
        return f"{self.ended.failed}: {self.ended.words[:200]}"


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


def simulated(one: Experiment) -> dict[str, Any]:
    """What the simulator's run holds at its end."""
    run = covey.run(one)
    return state(drained(run))


def tried(
    name: str, plan: Plan, seed: int, durability: Durability = "process", torn: bool | None = None
) -> Result:
    """A tree that is killed as planned; where `torn` is not None, every kill is a power cut."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as path:
        folder = Path(path)
        scenario = SCENARIOS[name]
        one = scenario.experiment(seed)
        expected = in_a_fork(lambda: simulated(one), folder)
        tree = ForkedTree(one, folder, durability, scenario.secure, plan.next_life, plan.died)
        if torn is not None:
            tree.died = power_cuts(tree, plan, torn)
        ended = tree.run()
        if ended.state is None and "COVEY_KEEP" in os.environ:
            shutil.copytree(folder, os.environ["COVEY_KEEP"], dirs_exist_ok=True)
        differs = []
        if ended.state is not None:
            differs = differences(expected, ended.state)
        return Result(name, plan, ended, differs, Trainings.of(tree))


def power_cuts(tree: ForkedTree, plan: Plan, torn: bool) -> Callable[[Process, Life], None]:
    """What happens when a process of a tree dies: its folder is put back to what was synced."""
    power = Power(tree.nodes, tree.folder / "durable", plan.draw, torn)
    power.watch()
    for process in tree.processes:
        power.settle(tree.nodes / process.name)
    flushed: set[Path] = set()

    def died(process: Process, life: Life) -> None:
        folder = tree.nodes / process.name
        if plan.flushes and plan.draw.random() < FLUSHED[folder in flushed]:
            flushed.add(folder)
            power.settle(folder)
            return
        plan.died(process, life)
        plan.cuts_that_lose += power.cut(folder)

    return died


def memory_folder() -> str | None:
    """A folder in memory where there is one: what is synced is copied, and disks are slow."""
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK):
        return str(memory)
    return None


def kills(
    count: int, seed: int, names: Sequence[str], durability: Durability, *, power: bool
) -> Iterator[Result]:
    """Trees until so many processes were killed; every scenario at least once."""
    draw = random.Random(seed)
    share = -(-count // len(names))
    killed = 0
    number = 0
    while killed < count or number < len(names):
        torn = None
        if power:
            torn = number % 4 != 3
        plan = Plan(share, draw, calls=power)
        yield tried(names[number % len(names)], plan, seed + number, durability, torn)
        killed += plan.total
        number += 1


def lossy(count: int, seed: int, names: Sequence[str]) -> Iterator[Result]:
    """Trees with power cuts that may lose something, until so many cuts have been made."""
    draw = random.Random(seed)
    cuts = 0
    number = 0
    while cuts < count:
        plan = Plan(4, draw, calls=True, flushes=True)
        name = names[number % len(names)]
        yield tried(name, plan, seed + number, "process", number % 2 == 1)
        cuts += plan.total
        number += 1


# Tables


def shown_trees(results: Sequence[Result]) -> str:
    """One line for each tree."""
    lines = [
        "| algorithm | killed | trainings | begun | twice | seconds | rows, memory, meter, history |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        counts = result.trainings
        figures = f"{result.plan.total} | {counts.keys} | {counts.begun} | {counts.twice}"
        name = f"{SCENARIOS[result.scenario].name} ({result.scenario})"
        lines.append(f"| {name} | {figures} | {result.ended.seconds:.1f} | {result.verdict} |")
    return "\n".join(lines)


def shown_places(results: Sequence[Result]) -> str:
    """How many kills fell where, by tier."""
    fell: Counter[tuple[Where, Role]] = Counter()
    for result in results:
        for (where, who, _), number in result.plan.fell.items():
            fell[where, who] += number
    lines = ["| killed | device | edge | server | all |", "|---|---|---|---|---|"]
    for where, words in PLACES.items():
        figures = [fell[where, who] for who in ROLES]
        if sum(figures):
            lines.append(f"| {words} | {' | '.join(map(str, figures))} | {sum(figures)} |")
    totals = [sum(fell[where, who] for where in PLACES) for who in ROLES]
    lines.append(f"| all | {' | '.join(map(str, totals))} | {sum(totals)} |")
    return "\n".join(lines)


def shown_points(results: Sequence[Result]) -> str:
    """How many kills fell at each point."""
    points: Counter[str] = Counter()
    for result in results:
        for (_, _, point), number in result.plan.fell.items():
            points[point] += number
    return ", ".join(f"{point} {number}" for point, number in sorted(points.items()))


def report(title: str, results: Sequence[Result]) -> bool:
    """Print what happened to some trees; return whether nothing was lost."""
    print(f"\n{title}\n\n{shown_trees(results)}\n\n{shown_places(results)}\n")
    print(f"Points: {shown_points(results)}.", flush=True)
    return all(result.equal and result.sound for result in results)


def report_lossy(results: Sequence[Result]) -> bool:
    """Print what happened where power cuts may lose something."""
    report('Power cuts with durability = "process"', results)
    equal = sum(result.equal for result in results)
    refused = sum(result.refused for result in results)
    rest = len(results) - equal - refused
    print(f"{len(results)} trees: {refused} refused by name, {equal} bit-equal, {rest} else.")
    return rest == 0 and refused > 0


# The program


def main() -> int:
    """Kill as many as the command line says; 1: something was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="kills of processes")
    parser.add_argument("--cuts", type=int, default=0, help='cuts with durability = "power"')
    parser.add_argument("--lossy", type=int, default=0, help='cuts with durability = "process"')
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="of every tree")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), metavar="SCENARIO")
    options = parser.parse_args()
    if (options.cuts or options.lossy) and PRELOADED not in os.environ:
        start_with_power()
    torch.set_num_threads(1)  # a fork would wait for the other threads of its parent for ever
    names = options.only or [name for name in SCENARIOS if name != SMALL]
    if options.rounds:
        for name in names:
            SCENARIOS[name] = replace(SCENARIOS[name], rounds=options.rounds)
    good = True
    if options.count:
        results = list(kills(options.count, options.seed, names, "process", power=False))
        good &= report("Kills", results)
    if options.cuts:
        results = list(kills(options.cuts, options.seed, names, "power", power=True))
        good &= report('Power cuts with durability = "power"', results)
        changed = sum(result.plan.cuts_that_lose for result in results)
        print(f"{changed} cuts have changed a file.")
        good &= changed > 0
    if options.lossy:
        good &= report_lossy(list(lossy(options.lossy, options.seed, names)))
    return int(not good)


def start_with_power() -> None:
    """Start this program again with power.c preloaded."""
    library = compiled(Path(tempfile.mkdtemp(prefix="covey-power-")))
    environment = {**os.environ, PRELOADED: "1", "LD_PRELOAD": str(library)}
    command = [sys.executable, "-m", "tests.deployed.kills", *sys.argv[1:]]
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    sys.exit(main())
