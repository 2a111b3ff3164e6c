"""A tree of real processes on this machine, run to its end, and the facts that they wrote."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.deployed.data import CLASSES, FEATURES
from benchmarks.deployed.node import FACTS, PEAKS
from covey.deployed.files.deployment import Deployment
from covey.deployed.plan import plan_files
from covey.deployed.plan.local import LOG, LocalProcesses, on_this_machine
from covey.files.config import read


class Entry(NamedTuple):
    """Something that one process did, as `node.Facts` writes it."""

    kind: str
    who: str
    round: int | None
    lane: str | None
    path: int | None
    program: str | None
    began: float
    ended: float
    cpu: float

    @property
    def seconds(self) -> float:
        """On the wall."""
        return self.ended - self.began


@dataclass(frozen=True)
class Shape:
    """A tree, its model and its processes."""

    edges: int | None
    """None: all devices are under the server."""
    devices: int
    hidden: int
    rounds: int
    durability: str = "process"
    devices_per_process: int = 1
    steps: int = 1
    edge_rounds: int = 1
    peaks: bool = False
    """Whether the peak memory is noted for every kind of ask."""
    warm_up: int = 3
    """Rounds that are not counted: connections, caches and buffers grow."""

    @property
    def parameters(self) -> int:
        """Of the model: two linear layers with biases."""
        return (FEATURES + 1 + CLASSES) * self.hidden + CLASSES

    @property
    def name(self) -> str:
        """As in 1 + 3 + 12."""
        middle = ""
        if self.edges is not None:
            middle = f"{self.edges} + "
        return f"1 + {middle}{self.devices:,}"

    def table(self) -> dict[str, Any]:
        """The experiment as a file has it; its rounds are not scored, but for the last."""
        algorithm: dict[str, Any] = {"steps": self.steps, "batch": 5, "lr": 0.01}
        if self.edges is None:
            algorithm["name"] = "fedavg"
        else:
            algorithm |= {"name": "hierfavg", "edge_rounds": self.edge_rounds}
        return {
            "name": "deployed",
            "rounds": self.rounds,
            "score_every": 10 * self.rounds,
            "algorithm": algorithm,
            "data": {"name": "benchmarks.deployed.data:drawn", "devices": self.devices},
            "model": {"name": "mlp", "hidden": [self.hidden]},
            "tree": {"edges": self.edges or 1},
            "deploy": {
                "durability": self.durability,
                "devices_per_process": self.devices_per_process,
            },
        }


@dataclass
class Measured:
    """The facts of all processes of a tree that has ended."""

    shape: Shape
    began: float
    facts: dict[str, Any]
    """By process, the server first."""
    devices_of: dict[str, str] = field(default_factory=dict)
    """The name of the parent of every device."""

    def entries(self, kind: str, process: str | None = None) -> Iterator[Entry]:
        """What one process did, or all."""
        for name, facts in self.facts.items():
            if process is not None and name != process:
                continue
            for values in facts["entries"]:
                if values[0] == kind:
                    yield Entry(*values)

    @property
    def ready(self) -> float:
        """Seconds from the start of all processes to the end of the first round."""
        first = next(iter(self.entries("round", "server")))
        return first.ended - self.began

    def walls(self) -> dict[int, float]:
        """Seconds of every counted round: from the end of the round before to its own end.

        The journal, the server's commit and its metrics are part of it. The last round is scored,
        so it is left out.
        """
        ends = [entry.ended for entry in self.entries("round", "server")]
        ends = ends[: self.shape.rounds]
        last = len(ends) - 1
        return {
            number: ends[number] - ends[number - 1] for number in range(self.shape.warm_up, last)
        }

    def training(self) -> dict[int, float]:
        """Seconds of the longest training in every round.

        It is the time that the algorithm's program takes at a device. An edge that asks several
        times waits for the longest training of every ask; the edge with the largest sum counts.
        """
        longest: dict[tuple[int, str, int], float] = {}
        for entry in self.entries("program"):
            if entry.lane != "train" or not entry.who.startswith("device"):
                continue
            assert entry.round is not None
            assert entry.path is not None
            parent = self.devices_of[entry.who.replace(" ", "")]
            key = (entry.round, parent, entry.path)
            longest[key] = max(longest.get(key, 0.0), entry.seconds)
        sums: dict[tuple[int, str], float] = {}
        for (round, parent, _), seconds in longest.items():
            sums[round, parent] = sums.get((round, parent), 0.0) + seconds
        out: dict[int, float] = {}
        for (round, _), seconds in sums.items():
            out[round] = max(out.get(round, 0.0), seconds)
        return out

    def beyond(self) -> list[float]:
        """Seconds of every counted round beyond its longest training."""
        training = self.training()
        return [seconds - training[round] for round, seconds in self.walls().items()]

    def cpu(self) -> float:
        """CPU seconds of all processes together per counted round."""
        return sum(map(self.cpu_of, self.facts))

    def cpu_of(self, name: str) -> float:
        """CPU seconds of one process per counted round."""
        kind = "round" if name == "server" else "answer"
        last: dict[int, float] = {}
        for number, entry in enumerate(self.entries(kind, name)):
            if kind == "round":
                last[number] = entry.cpu
            elif entry.lane == "train" and entry.round is not None:
                last[entry.round] = entry.cpu
        first = self.shape.warm_up - 1
        end = self.shape.rounds - 2
        return (last[end] - last[first]) / (end - first)

    def peaks(self, tier: str, what: str = "VmHWM") -> list[int]:
        """The memory of all processes of a tier, in bytes."""
        names = [name for name in self.facts if name.startswith(tier)]
        return [self.facts[name]["memory"][what] for name in names]

    def phases(self, tier: str, what: str = "peaks") -> dict[str, int]:
        """The largest peak of a tier's processes in bytes, by what they did meanwhile.

        With "beyond" it is that beyond what a process held before the ask.
        """
        out: dict[str, int] = {}
        for name, facts in self.facts.items():
            if name.startswith(tier):
                for phase, peak in facts[what].items():
                    out[phase] = max(out.get(phase, 0), peak)
        return out

    def answers(self, tier: str) -> int:
        """The bytes of all encoded answers to one ask of a node of a tier, at most."""
        names = [name for name in self.facts if name.startswith(tier)]
        return max(int(self.facts[name]["answers"]) for name in names)

    def starts(self, tier: str, what: str) -> list[int]:
        """The memory of all processes of a tier before their first ask, in bytes."""
        names = [name for name in self.facts if name.startswith(tier)]
        return [self.facts[name]["started"][what] for name in names]


class WatchedProcesses(LocalProcesses):
    """The processes of a tree, each of which writes down what it does."""

    peaks = False

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        folder = self.folder / name
        module = "benchmarks.deployed.node"
        command = [sys.executable, "-m", module, str(folder / plan_files.NODE)]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        if self.peaks:
            environment[PEAKS] = "1"
        with open(folder / LOG, "ab") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )


def measure(shape: Shape) -> Measured:
    """Run a tree to its end, in a folder that is removed then."""
    with tempfile.TemporaryDirectory(prefix="covey-deployed-") as name:
        folder = Path(name) / "tree"
        began = time.monotonic()
        names, parents = _write(shape, folder)
        tree = WatchedProcesses(folder, names)
        tree.peaks = shape.peaks
        with tree.started():
            for _ in tree.watch():
                pass
        facts = {name: _facts(folder / name / FACTS) for name in names}
        return Measured(shape, began, facts, parents)


def _write(shape: Shape, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Write the files and certificates of all processes; return their names, and who has whom."""
    deployment = Deployment.of(read(shape.table()), local=True)
    processes = on_this_machine(deployment.processes, folder)
    plan_files.write(processes, deployment.files(), folder, deployment.deploy.image)
    plan_files.add_certificates(processes, folder)
    parents = {}
    for process in processes:
        for seat in process.nodes:
            parents[seat.name] = str(seat.parent)
    return [process.name for process in processes], parents


def _facts(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def spread(seconds: Sequence[float], scale: float = 1e3) -> dict[str, float]:
    """Best, median and 90th percentile, in milliseconds."""
    ordered = sorted(seconds)
    tenth = ordered[min(len(ordered) - 1, round(0.9 * (len(ordered) - 1)))]
    figures = {"best": ordered[0], "median": statistics.median(ordered), "p90": tenth}
    return {name: scale * value for name, value in figures.items()}
