"""The cost of one gradient in every algorithm, against FedAvg's: `python -m benchmarks.per_gradient`.

Every algorithm has its defaults and the batch size of the works. It takes rounds by turns with
FedAvg in one process. The CPU time of all rounds, that of all threads, is divided by the gradients
that the devices evaluated. Everything that a round does counts: messages, means, kept rows.
"""

from __future__ import annotations

import argparse
import inspect
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import covey
from benchmarks.works import BATCH, dnn
from covey.algorithms import ALGORITHMS, FedAvg
from covey.data import Shards, own

DEVICES = 20
EXAMPLES = 200


@dataclass(frozen=True)
class Size:
    """A network and the width of its inputs."""

    inputs: int
    hidden: int

    def model(self) -> nn.Module:
        """A network with one hidden layer and ten classes."""
        if (self.inputs, self.hidden) == (784, 100):
            return dnn()
        return covey.models.mlp(self.inputs, self.hidden, 10)

    def data(self) -> Shards:
        """Everybody's examples."""
        generator = torch.Generator().manual_seed(0)
        pairs = []
        for _ in range(DEVICES):
            x = torch.rand(EXAMPLES, self.inputs, generator=generator)
            y = torch.randint(10, (EXAMPLES,), generator=generator)
            pairs.append((x, y))
        return own(pairs, classes=10)


SIZES = {"W1": Size(784, 100), "small": Size(60, 20)}
EDGES = 4


def algorithm(name: str, settings: dict[str, Any]) -> covey.Algorithm:
    """An algorithm with its defaults, and the batch size of all where it has one."""
    kind = ALGORITHMS[name]
    if "batch" in inspect.signature(kind).parameters:
        settings = {"batch": BATCH, **settings}
    return kind(**settings)


def tree(algorithm: covey.Algorithm) -> covey.Tree:
    """The devices in equal edges, or under the server."""
    if len(algorithm.tiers()) == 2:
        return covey.Tree.flat(DEVICES)
    return covey.Tree.uniform(EDGES, DEVICES // EDGES)


def rounds(algorithm: covey.Algorithm, size: Size, count: int) -> Iterator[tuple[float, int]]:
    """CPU seconds and gradients of one round after the other; the first two only warm up."""
    experiment = covey.Experiment(
        algorithm=algorithm,
        data=size.data(),
        model=size.model(),
        tree=tree(algorithm),
        rounds=count + 3,
        score_every=count + 3,
        workers=1,
    )
    run = covey.run(experiment)
    for number in range(count + 2):
        began = time.process_time()
        record = next(run)
        seconds = time.process_time() - began
        if number >= 2:
            yield seconds, record.gradients


def cost(rounds: list[tuple[float, int]]) -> float:
    """CPU microseconds per gradient."""
    seconds = sum(pair[0] for pair in rounds)
    gradients = sum(pair[1] for pair in rounds)
    return 1e6 * seconds / max(gradients, 1)


def ratio(name: str, settings: dict[str, Any], size: Size, count: int) -> dict[str, Any]:
    """Microseconds per gradient of FedAvg and of the algorithm, and their ratio."""
    plain = rounds(FedAvg(lr=0.001), size, count)
    other = rounds(algorithm(name, settings), size, count)
    by_turns = list(zip(plain, other, strict=True))
    fedavg = cost([pair[0] for pair in by_turns])
    own = cost([pair[1] for pair in by_turns])
    return {
        "algorithm": name,
        "FedAvg": round(fedavg, 1),
        "own": round(own, 1),
        "ratio": round(own / fedavg, 2),
    }


STEADY: dict[str, dict[str, Any]] = {
    "al2gd": {"lr": 0.001},
    "l2gd": {"lr": 0.001},
    "pfedbayes": {"local_rounds": 4},
}
"""Settings with which random examples let no algorithm diverge, and rounds are short."""


def complete(name: str) -> bool:
    """Whether all fields of an algorithm have defaults."""
    parameters = inspect.signature(ALGORITHMS[name]).parameters.values()
    return all(parameter.default is not parameter.empty for parameter in parameters)


def main() -> None:
    """Print one line of JSON per algorithm and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithms", nargs="*", default=list(filter(complete, ALGORITHMS)))
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    for size in asked.sizes:
        for name in asked.algorithms:
            line = ratio(name, STEADY.get(name, {}), SIZES[size], asked.rounds)
            print(json.dumps({"size": size, **line}), flush=True)


if __name__ == "__main__":
    main()
