"""Several processes against one, by turns: `python -m benchmarks.sharded [--ranks 2]`.

20 devices train a convolutional network of 1.66 million parameters: FedAvg on a flat tree, and
PerMFL under 4 edges. Each way to run it has processes of its own, and they take a round each, one
after the other, so that whatever else the machine does falls on all. The medians of all rounds are
compared, and the best rounds beside them. CPU seconds are those of rank 0, or of all threads of one
process; with one thread they say what a quiet machine would do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import IO

import torch

import covey
from covey import Experiment, Tree, data, models
from covey.algorithms import FedAvg, PerMFL
from covey.runtimes.ranks import launch
from covey.runtimes.ranks.ranks import ALONE, join
from covey.runtimes.ranks.sharded import Sharded

DEVICES = 20
EXAMPLES = 100
FLAT = "FedAvg, flat"
TREE = "PerMFL, 4 edges"
ONE_THREAD = "one process, one thread"
DEFAULT = "one process, as many threads as cores"
WARM_UP = 1


def experiment(work: str, rounds: int, workers: int | None) -> Experiment:
    """The experiment of a work; its rounds are not scored."""
    draw = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(DEVICES):
        x = torch.randn(EXAMPLES, 1, 28, 28, generator=draw)
        y = torch.randint(0, 10, (EXAMPLES,), generator=draw)
        pairs.append((x, y))
    settings: dict[str, object] = {
        "data": data.own(pairs, classes=10),
        "model": models.cnn((1, 28, 28), classes=10),
        "rounds": rounds,
        "score_every": 10 * rounds,
        "workers": workers,
    }
    if work == FLAT:
        algorithm: covey.Algorithm = FedAvg(steps=3, batch=20)
        tree = Tree.flat(DEVICES)
    else:
        algorithm = PerMFL(edge_rounds=2, steps=2, batch=20)
        tree = Tree.uniform(4, DEVICES // 4)
    return Experiment(algorithm=algorithm, tree=tree, **settings)  # type: ignore[arg-type]


def work(name: str, rounds: int, workers: int | None) -> None:
    """Run a round whenever a line comes, and answer its seconds; rank 0 reads and answers."""
    ranks = ALONE
    if launch.several():
        ranks = join()
    run = covey.run(experiment(name, rounds + WARM_UP + 1, workers))
    for _ in range(WARM_UP):
        next(run)
    if ranks.leads:
        print("ready", flush=True)
    for _ in range(rounds):
        line = ""
        if ranks.leads:
            line = sys.stdin.readline()
        ranks.told(line)
        sent = ranks.bytes
        began = time.perf_counter()
        computed = time.process_time()
        record = next(run)
        computed = time.process_time() - computed
        seconds = time.perf_counter() - began
        if ranks.leads:
            waited = record.spent.get("ranks", 0.0)
            print(seconds, computed, waited, ranks.bytes - sent, flush=True)
    if ranks.leads and isinstance(run.runtime, Sharded):
        print(run.runtime.sums(), flush=True)


class Worker:
    """The processes of one way to run a work."""

    def __init__(self, name: str, rounds: int, ranks: int, workers: int) -> None:
        threads = max(1, workers)
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        script = ["-m", "benchmarks.sharded", "--work", name, "--rounds", str(rounds)]
        command = [sys.executable, *script, "--workers", str(workers)]
        if ranks > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            command = [sys.executable, *torchrun, str(ranks), *command[1:]]
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[str] = self._process.stdin
        self._answers: IO[str] = self._process.stdout
        self.seconds: list[float] = []
        self.computed: list[float] = []
        self.waited: list[float] = []
        self.sent = 0
        if self._answers.readline().strip() != "ready":
            raise RuntimeError(f"{name} did not start")

    def round(self) -> None:
        """Let it run a round."""
        print("go", file=self._requests, flush=True)
        seconds, computed, waited, sent = self._answers.readline().split()
        self.seconds.append(float(seconds))
        self.computed.append(float(computed))
        self.waited.append(float(waited))
        self.sent = int(sent)

    def end(self) -> str:
        """What it says at last: how sums across ranks are computed."""
        self._requests.close()
        text = self._answers.read().strip()
        self._process.wait()
        return text


def compare(name: str, rounds: int, ranks: int) -> None:
    """All ways to run a work, by turns."""
    cores = len(os.sched_getaffinity(0))
    sharded = f"{ranks} ranks, one thread each"
    ways = {
        ONE_THREAD: Worker(name, rounds, 1, 1),
        DEFAULT: Worker(name, rounds, 1, cores),
        sharded: Worker(name, rounds, ranks, 1),
    }
    for _ in range(rounds):
        for worker in ways.values():
            worker.round()
    texts = {way: worker.end() for way, worker in ways.items()}
    shares = ways[sharded]
    median = {way: statistics.median(worker.seconds) for way, worker in ways.items()}
    best = {way: min(worker.seconds) for way, worker in ways.items()}
    print(
        f"\n{name}: sums across ranks are {texts[sharded]}; each rank sends "
        f"{shares.sent / 1e6:.2f} MB a round, and rank 0 waits "
        f"{statistics.median(shares.waited):.3f} s"
    )
    head = f"{'median s':>9} {'best s':>9} {'CPU s':>9} {'ranks are faster by':>20} {'best':>6}"
    print(f"{'':40} {head}")
    for way, seconds in median.items():
        computed = statistics.median(ways[way].computed)
        ratio = seconds / median[sharded]
        best_ratio = best[way] / best[sharded]
        figures = f"{seconds:9.3f} {best[way]:9.3f} {computed:9.3f}"
        print(f"{way:40} {figures} {ratio:20.2f} {best_ratio:6.2f}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--work")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.rounds, options.workers)
        return
    for name in (FLAT, TREE):
        compare(name, options.rounds, options.ranks)


if __name__ == "__main__":
    main()
