"""covey against a tidy loop on many architectures: `python -m benchmarks.architectures`.

Every cell is a network of `benchmarks.networks` trained by one algorithm, by covey and by the loop
of `benchmarks.tidy`. Both first run a round on the same batches, and their models must agree.
Then they take turns, and the medians are compared. The loop gets as many threads as covey, or one
if it is faster so. A ratio above 1 means that covey is faster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

import covey
from benchmarks.networks import ARCHITECTURES, Architecture
from benchmarks.tidy import TidyLoop
from covey.algorithms import Ditto, FedAvg, FedMac, PerFedAvg, PerMFL, PFedMe
from covey.errors import CoveyError

ALGORITHMS: dict[str, covey.Algorithm] = {
    "FedAvg": FedAvg(steps=10, lr=0.02),
    "pFedMe": PFedMe(local_rounds=2, steps=5, lam=5.0, lr=0.05, personal_lr=0.02),
    "PerMFL": PerMFL(edge_rounds=2, steps=5, lr=0.02),
    "FedMac": FedMac(local_rounds=2, steps=5, personal_lr=0.02, gamma=1e-4, gamma_w=1e-9),
    "Per-FedAvg": PerFedAvg(steps=5, alpha=0.02, lr=0.02),
    "Ditto": Ditto(steps=5, lr=0.02, personal_steps=5, personal_lr=0.02),
}
"""About ten gradients of every device in a round."""
QUICK = ("mlp-class/FedAvg", "squeeze-excite-class/FedAvg")
EDGES = 2
TOLERANCE = 1e-3  # of float32: a ReLU that switches moves a model by 2e-4
AIM = 0.95
_LEAST_SECONDS = 0.06  # of one measurement, so that a timer's grain does not matter
_MOST_ROUNDS = 40
_CLOCKS: dict[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "cpu": time.process_time,
}


@dataclass(frozen=True)
class Cell:
    """One network trained by one algorithm."""

    architecture: str
    algorithm: str
    covey: float = 0.0  # seconds per round, the median
    loop: float = 0.0
    loop_threads: int = 0
    difference: float | None = None  # the largest between the two models; None: not comparable
    path: str = ""
    solver: str = ""
    refusal: str | None = None

    @property
    def ratio(self) -> float:
        """How many times faster than the loop covey is."""
        return self.loop / self.covey

    def text(self) -> str:
        """The cell in the table."""
        if self.refusal is not None:
            return "refused"
        ratio = f"{self.ratio:.2f}"
        if self.ratio < AIM:
            ratio = f"**{ratio}**"
        return f"{ratio} {self.solver}"

    def line(self) -> str:
        """The cell as a line of progress."""
        name = f"{self.architecture}/{self.algorithm}"
        if self.refusal is not None:
            return f"{name:36} refused: {self.refusal}"
        times = f"covey {self.covey:.4f} s, loop {self.loop:.4f} s on {self.loop_threads}"
        agreement = "models not comparable"
        if self.difference is not None:
            agreement = f"models differ by {self.difference:.0e}"
        engine = f"{self.path}, {self.solver}"
        return f"{name:36} {self.ratio:5.2f}x  {times}; {agreement}; {engine}"


class Disagreement(Exception):
    """covey and the loop did not compute the same."""


@dataclass(frozen=True)
class Bench:
    """How cells are measured."""

    threads: int
    repeats: int
    clock: Callable[[], float]

    def cell(self, name: str, algorithm: str) -> Cell:
        """Measure one cell; where covey refuses the network, the cell has the reason."""
        architecture = ARCHITECTURES[name]
        torch.set_num_threads(self.threads)
        try:
            run = covey.run(_experiment(architecture, algorithm))
        except CoveyError as error:
            return Cell(name, algorithm, refusal=str(error))
        difference = None
        if not architecture.random:
            difference = _difference(architecture, algorithm)
            if not difference <= TOLERANCE:
                raise Disagreement(f"{name}, {algorithm}: the models differ by {difference:.1e}.")
        loop = _loop(architecture, algorithm, run)
        loop_threads, ours, theirs = self._turns(run, loop)
        engine = run.engine
        return Cell(
            name,
            algorithm,
            covey=ours,
            loop=theirs,
            loop_threads=loop_threads,
            difference=difference,
            path=engine["path"],
            solver=engine.get("solver", ""),
        )

    def _turns(self, run: Any, loop: TidyLoop) -> tuple[int, float, float]:
        """The loop's better number of threads, and the median seconds of covey and of the loop."""
        by_threads = {}
        for threads in sorted({1, self.threads}):
            self._seconds(loop, 1, threads)
            by_threads[threads] = self._seconds(loop, 1, threads)
        loop_threads = min(by_threads, key=lambda threads: by_threads[threads])

        def covey_round() -> None:
            next(run)

        self._seconds(covey_round, 1, self.threads)
        fastest = min(by_threads[loop_threads], self._seconds(covey_round, 1, self.threads))
        rounds = min(_MOST_ROUNDS, 1 + int(_LEAST_SECONDS / fastest))
        ours = []
        theirs = []
        for _ in range(self.repeats):
            theirs.append(self._seconds(loop, rounds, loop_threads))
            ours.append(self._seconds(covey_round, rounds, self.threads))
        return loop_threads, statistics.median(ours), statistics.median(theirs)

    def _seconds(self, play: Callable[[], None], rounds: int, threads: int) -> float:
        """Seconds per round."""
        torch.set_num_threads(threads)
        began = self.clock()
        for _ in range(rounds):
            play()
        seconds = self.clock() - began
        torch.set_num_threads(self.threads)
        return seconds / rounds


def _experiment(architecture: Architecture, algorithm: str, **changes: Any) -> covey.Experiment:
    """Through the ordinary API: bytes metered, scores in the last round only."""
    settings = {**architecture.settings, **changes}
    torch.manual_seed(0)
    return covey.Experiment(
        algorithm=ALGORITHMS[algorithm],
        data=architecture.data(),
        model=architecture.model(),
        tree=_tree(architecture, algorithm),
        rounds=1000,
        score_every=1000,
        **settings,
    )


def _tree(architecture: Architecture, algorithm: str) -> covey.Tree:
    """PerMFL has edges, the others have not."""
    if algorithm == "PerMFL":
        return covey.Tree.uniform(EDGES, architecture.devices // EDGES)
    return covey.Tree.flat(architecture.devices)


def _loop(architecture: Architecture, algorithm: str, run: Any, *, cyclic: bool = False) -> Any:
    """The loop, from the models that a run has."""
    module = run.module()
    shards = architecture.data()
    return TidyLoop(ALGORITHMS[algorithm], module, shards, edges=EDGES, cyclic=cyclic)


def _difference(architecture: Architecture, algorithm: str) -> float:
    """The largest difference of the two global models after a round on the same batches."""
    run = covey.run(_experiment(architecture, algorithm, batches="cyclic"))
    loop = _loop(architecture, algorithm, run, cyclic=True)
    next(run)
    loop()
    loop.start(loop.w)
    row = run.runtime.task.space.row(loop.module)
    return float((run.w.flatten() - row).abs().max())


def table(cells: Sequence[Cell]) -> str:
    """One line per architecture, one column per algorithm, in markdown."""
    algorithms = list(dict.fromkeys(cell.algorithm for cell in cells))
    lines = [f"| architecture | path | {' | '.join(algorithms)} |"]
    lines.append("|---" * (len(algorithms) + 2) + "|")
    for name in dict.fromkeys(cell.architecture for cell in cells):
        of_name = {cell.algorithm: cell for cell in cells if cell.architecture == name}
        paths = dict.fromkeys(cell.path for cell in of_name.values() if cell.path)
        texts = []
        for algorithm in algorithms:
            cell = of_name.get(algorithm)
            texts.append(cell.text() if cell else "")
        lines.append(f"| {name} | {', '.join(paths)} | {' | '.join(texts)} |")
    refusals = dict.fromkeys((c.architecture, c.refusal) for c in cells if c.refusal is not None)
    if refusals:
        lines.append("")
    for name, reason in refusals:
        lines.append(f"- {name} is refused: {reason}")
    return "\n".join(lines)


def machine() -> str:
    """The processor's name, as Linux knows it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown processor"
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def page(cells: Sequence[Cell], asked: argparse.Namespace, command: str) -> str:
    """The table with what it was measured by."""
    measured = [cell for cell in cells if cell.refusal is None]
    below = [cell for cell in measured if cell.ratio < AIM]
    summary = f"{len(measured)} cells are measured; {len(below)} are below {AIM:g}."
    if measured:
        median = statistics.median(cell.ratio for cell in measured)
        summary += f" The median ratio is {median:.2f}."
    lines = [
        "# Architectures against a tidy loop",
        "",
        "Seconds per round of the loop (`benchmarks/tidy.py`) over those of covey: above 1, covey",
        "is faster. The networks are in `benchmarks/networks.py`. Beside each ratio stands the",
        "solver of `run.engine`. The loop has as many threads as covey, or one if that is faster.",
        f"Both take turns; medians of {asked.repeats}. The models of both agree to {TOLERANCE:g}",
        "after a round on the same batches, in every cell without dropout.",
        "",
        f"`{command}`, {machine()}, {asked.threads} threads, torch {torch.__version__}, fp32.",
        "",
        summary,
        "",
        table(cells),
        "",
    ]
    return "\n".join(lines)


def chosen(patterns: Sequence[str]) -> list[tuple[str, str]]:
    """The cells that a pattern names: an architecture, or architecture/algorithm."""
    out = []
    for name in ARCHITECTURES:
        for algorithm in ALGORITHMS:
            full = f"{name}/{algorithm}"
            if any(fnmatchcase(name, p) or fnmatchcase(full, p) for p in patterns):
                out.append((name, algorithm))
    return out


def main(arguments: Sequence[str] | None = None) -> list[Cell]:
    """Print a line per cell, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    only = "globs of architectures, or of architecture/algorithm"
    parser.add_argument("--only", nargs="+", default=["*"], help=only)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    busy = "cpu: seconds of the processor, for a busy machine and one thread"
    parser.add_argument("--clock", choices=list(_CLOCKS), default="wall", help=busy)
    parser.add_argument("--quick", action="store_true", help="two cells, one turn each")
    parser.add_argument("--out", type=Path, help="write the page in markdown")
    asked = parser.parse_args(arguments)
    command = "python -m benchmarks.architectures"
    if asked.quick:
        asked.only = list(QUICK)
        asked.repeats = 1
    elif asked.only != ["*"]:
        command += " --only " + " ".join(asked.only)
    names = chosen(asked.only)
    if not names:
        parser.error(f"--only {' '.join(asked.only)} names no cell")
    bench = Bench(asked.threads, asked.repeats, _CLOCKS[asked.clock])
    cells = []
    for name, algorithm in names:
        cell = bench.cell(name, algorithm)
        cells.append(cell)
        print(cell.line(), flush=True)
    text = page(cells, asked, command)
    print(f"\n{text}")
    if asked.out:
        asked.out.write_text(text, encoding="utf-8")
    return cells


if __name__ == "__main__":
    main()
