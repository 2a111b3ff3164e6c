"""Products in bf16 against fp32: seconds of a round by turns, and accuracy on Fashion-MNIST:
`python -m benchmarks.bf16 [--accuracy FOLDER]`.

FOLDER holds the files of Fashion-MNIST. Times are CPU seconds of one thread, so that other work on
the machine counts less. Both runs of a model live in one process and take a round each in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import covey
from covey.algorithms import FedAvg, FineTune
from covey.data import Shards, own
from covey.engine.solvers.precision import Compute
from covey.models import cnn, lenet, mlp, vgg

DEVICES = 5
STEPS = 4
COMPUTE: tuple[Compute, ...] = ("fp32", "bf16")


class Block(nn.Module):
    """One layer of a transformer over 16 positions of 49 points each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(49, 128)
        self.layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of flat images."""
        positions = self.embed(x.reshape(len(x), 16, 49))
        out: Tensor = self.head(self.layer(positions).mean(1))
        return out


Make = Callable[[], nn.Module]
WORKS: dict[str, tuple[Make, tuple[int, ...], int]] = {
    "CNN of 1.66 M parameters": (cnn, (1, 28, 28), 20),
    "the same, batch 64": (cnn, (1, 28, 28), 64),
    "LeNet": (lenet, (3, 32, 32), 20),
    "VGG with GroupNorm": (vgg, (3, 32, 32), 20),
    "transformer layer": (Block, (784,), 20),
    "784-1024-1024-10": (lambda: mlp(784, 1024, 1024, 10), (784,), 64),
    "784-100-10": (lambda: mlp(784, 100, 10), (784,), 20),
}


def data(shape: tuple[int, ...]) -> Shards:
    """Random images: speed does not depend on what they show."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(DEVICES, 100, *shape, generator=draw)
    y = torch.randint(10, (DEVICES, 100), generator=draw)
    return own(list(zip(x, y, strict=True)), classes=10)


def seconds(make: Make, shape: tuple[int, ...], batch: int, rounds: int) -> dict[str, float]:
    """The median CPU seconds of a round for each type, and what the second ran in."""
    shards = data(shape)
    algorithm = FedAvg(steps=STEPS, lr=0.01, batch=batch)
    tree = covey.Tree.flat(DEVICES)
    runs = {}
    for compute in COMPUTE:
        experiment = covey.Experiment(
            algorithm, shards, make(), tree, rounds + 1, score_every=10**9, compute=compute
        )
        runs[compute] = covey.run(experiment)
        next(runs[compute])
    times: dict[str, list[float]] = {compute: [] for compute in COMPUTE}
    for _ in range(rounds - 1):
        for compute, run in runs.items():
            began = time.process_time()
            next(run)
            times[compute].append(time.process_time() - began)
    return {compute: statistics.median(taken) for compute, taken in times.items()}


def speed(rounds: int) -> None:
    """Print the table of times."""
    print("| model | batch | fp32, s | bf16, s | ratio |\n|---|---|---|---|---|")
    for name, (make, shape, batch) in WORKS.items():
        taken = seconds(make, shape, batch, rounds)
        ratio = taken["fp32"] / taken["bf16"]
        print(
            f"| {name} | {batch} | {taken['fp32']:.3f} | {taken['bf16']:.3f} | {ratio:.2f}x |",
            flush=True,
        )


def accuracy(folder: str, seeds: int) -> None:
    """Print the accuracy of a CNN in both types, the same seeds for both."""
    print("| algorithm | compute | test accuracy by seed | mean |\n|---|---|---|---|")
    methods: tuple[tuple[type[FedAvg | FineTune], str], ...] = (
        (FedAvg, "global"),
        (FineTune, "personal"),
    )
    for algorithm, model in methods:
        for compute in COMPUTE:
            figures = [_accuracy(folder, algorithm, model, compute, seed) for seed in range(seeds)]
            listed = ", ".join(f"{100 * figure:.2f}" for figure in figures)
            mean = 100 * statistics.mean(figures)
            print(f"| {algorithm.__name__} | {compute} | {listed} | {mean:.2f} % |", flush=True)


def _accuracy(
    folder: str, algorithm: type[FedAvg | FineTune], model: str, compute: Compute, seed: int
) -> float:
    """The test accuracy after 20 rounds: 10 of 100 devices, with three labels each."""
    everybody = covey.data.fashion_mnist(devices=100, labels=3, seed=seed, data_dir=folder)
    shards = everybody.chosen(range(10))
    network = cnn((1, 28, 28), channels=(16, 32), hidden=64)
    experiment = covey.Experiment(
        algorithm(steps=10, lr=0.1, batch=20),
        shards,
        network,
        covey.Tree.flat(10),
        rounds=20,
        score_every=20,
        seed=seed,
        compute=compute,
    )
    run = covey.run(experiment)
    for record in run:
        last = record
    figure: float | None = last.models[model].scores["test"].accuracy
    assert figure is not None
    return figure


def main() -> None:
    """Both tables, or the one that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--accuracy", metavar="FOLDER")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.accuracy:
        accuracy(options.accuracy, options.seeds)
    else:
        speed(options.rounds)


if __name__ == "__main__":
    main()
