"""What it is worth to take Per-FedAvg's personal steps on test batches, as public code does.

`python -m experiments.papers.adaptation [--rows GLOB] [--data-dir DIR] [--seeds 3] [--rounds N]`
writes adaptation.json, and `--show` prints it as Markdown. The rows are those of Per-FedAvg in
pFedMe's Table 1, two of FedMac's, the first 60 rounds of the rows `half` of sFedHP, and the first
100 of PerMFL's rows with the devices and weights of its public code.

In pFedMe's public code a device takes two steps from the global model, of alpha and of beta, each
on a batch of its test examples. It is then scored on all of its test examples. Here every device
takes the same two steps on training batches and on test batches, from the same global model, and
none at all. It is trained as published, and as the public code of 2020 did (perfedavg.py).
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

import covey
from covey.algorithms import PerFedAvg
from covey.data import Shards
from covey.papers import report, tables
from covey.papers.measure import Options, make_experiment
from covey.papers.printed import cell
from covey.papers.tables import Row
from experiments.papers import figure_files
from experiments.papers.perfedavg import TwoSteps

OUT = Path(__file__).parent / "adaptation.json"
HEAD = ("row", "trained", "rounds", "printed", "no steps", "training batches", "test batches")
SCORE_EVERY = 10
OTHERS = {
    "pfedme/table1": ("legacy2020/mlr", "legacy2020/dnn", "synthetic/mlr", "synthetic/dnn"),
    "fedmac/table1": ("mnist", "synthetic"),
}
SFEDHP = ("sfedhp/table2", "sfedhp/table3", "sfedhp/table4", "sfedhp/table5")
ROUNDS = 60  # of sFedHP's rows, in which the global model collapses at once
PERMFL = ("mnist/linear/half", "fmnist/linear/half", "synthetic/linear", "synthetic/dnn")
PERMFL_ROUNDS = 100  # the default of its public code, as are these
DEVICES = {"sample": 10, "weight": "samples"}
BETAS = (0.01, 0.1, 0.99)

Source = Literal["none", "train", "test"]
"""The part of a device's examples that its personal steps take batches from; none: no steps."""

SOURCES: tuple[Source, ...] = ("none", "train", "test")


def algorithms(row: Row) -> dict[str, covey.Algorithm]:
    """Per-FedAvg as published, and as the public code of 2020 trained it.

    PerMFL's public code trains as published.
    """
    fields = {name: value for name, value in row.algorithm.items() if name != "name"}
    two_steps = {name: value for name, value in fields.items() if name != "order"}
    published: dict[str, covey.Algorithm] = {"as published": PerFedAvg(**fields)}
    if row.paper == "permfl":
        return published
    return {**published, "as in the code": TwoSteps(**two_steps)}


def measure(row: Row, algorithm: covey.Algorithm, options: Options) -> dict[str, list[float]]:
    """Test accuracy of the best scored round in percent, by source of the batches and by seed."""
    experiments = []
    for seed in range(options.seeds):
        experiment = make_experiment(row, "paper", options, seed)
        # The devices that are not asked do not change the global model.
        experiments.append(replace(experiment, algorithm=algorithm, idle="skip"))
    together = covey.runs(experiments)
    best: dict[str, list[float]] = {source: [0.0] * options.seeds for source in SOURCES}
    for _ in together:
        if together.round % row.score_every:
            continue
        for number, one in enumerate(together.seeds):
            for source in SOURCES:
                draws = torch.Generator().manual_seed(together.round)
                score = accuracy(one.module(), one.trained, row, source, draws)
                best[source][number] = max(best[source][number], round(100 * score, 4))
    return best


def accuracy(
    model: nn.Module, shards: Shards, row: Row, source: Source, draws: torch.Generator
) -> float:
    """The share of all test examples that the devices' adapted models predict."""
    correct = 0
    for device in range(shards.devices):
        adapted = copy.deepcopy(model)
        if source != "none":
            held = shards.part(source).held(device)
            for lr in (row.algorithm["alpha"], row.algorithm["lr"]):
                batch = held[torch.randperm(len(held), generator=draws)[: row.algorithm["batch"]]]
                step(adapted, shards.x[batch], shards.y[batch], lr)
        test = shards.test.held(device)
        with torch.no_grad():
            predicted = adapted(shards.x[test]).argmax(1)
        correct += int((predicted == shards.y[test]).sum())
    return correct / len(shards.test.index)


def step(model: nn.Module, x: Tensor, y: Tensor, lr: float) -> None:
    """One gradient step, in place."""
    parameters = list(model.parameters())
    loss = functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= lr * gradient


def rows() -> Iterator[Row]:
    """The rows of Per-FedAvg on the data of the public code, FedMac's, sFedHP's, and PerMFL's."""
    for name, settings in OTHERS.items():
        for row in tables.read(name).rows:
            if row.method == "perfedavg" and row.setting in settings:
                yield replace(row, score_every=SCORE_EVERY)
    for name in SFEDHP:
        for row in tables.read(name).rows:
            if row.method == "perfedavg" and row.setting.endswith("-half"):
                yield replace(row, score_every=SCORE_EVERY, rounds=ROUNDS)
    for row in tables.read("permfl/table1").rows:
        if row.method == "perfedavg" and row.setting in PERMFL:
            yield from _by_beta(row)


def _by_beta(row: Row) -> Iterator[Row]:
    """A row of PerMFL's with the devices of its public code, for every second step."""
    for beta in BETAS:
        yield replace(
            row,
            setting=f"{row.setting}, beta = {beta:g}",
            algorithm={**row.algorithm, **DEVICES, "lr": beta},
            score_every=1,
            rounds=PERMFL_ROUNDS,
        )


def lines(figures: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """A line under `HEAD` for every row and way of training that was run."""
    for row in rows():
        for trained, result in figures.get(row.setting, {}).items():
            sources = [report.spread(result.get(source, ())) for source in SOURCES]
            printed = str(cell(row, "personal"))
            yield row.setting, trained, str(result["rounds"]), printed, *sources


def run(rows: Sequence[Row], options: Options, out: Path) -> None:
    """Run what is missing; write the figures after each row."""
    for row in rows:
        for trained, algorithm in algorithms(row).items():
            figures = figure_files.read(out)
            if trained in figures.get(row.setting, {}):
                continue
            result = {"rounds": options.rounds_of(row), **measure(row, algorithm, options)}
            figures.setdefault(row.setting, {})[trained] = result
            figure_files.write(out, figures)
            print(row.setting, trained, result, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, or show what is there."""
    asked = figure_files.arguments(__doc__, OUT).parse_args(arguments)
    if asked.show:
        listed = list(lines(figure_files.read(asked.out)))
        print("\n".join(report.rows_of_markdown(HEAD, listed)))
        return
    options = Options(asked.seeds, asked.rounds, data_dir=asked.data_dir)
    wanted = [row for row in rows() if fnmatch.fnmatchcase(row.setting, asked.rows)]
    run(wanted, options, asked.out)


if __name__ == "__main__":
    main()
