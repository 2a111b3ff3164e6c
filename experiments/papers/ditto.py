"""Ditto's global model as the public code of PerMFL trains it, beside Table 1 of PerMFL.

`python -m experiments.papers.ditto [--data-dir DIR] [--seeds 3] [--rounds 400]` writes ditto.json.
In that code a device's model is the server's own tensor, and its steps are in place. So the
server's model goes from device to device within a round, and the update that follows is zero. Ten
of the 40 devices take their turns in a round, as the code's default has it, or all.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from covey.data import Shards
from covey.files import named
from covey.papers import report, tables
from covey.papers.measure import Options, load
from covey.papers.printed import cell
from covey.papers.tables import Row

OUT = Path(__file__).parent / "ditto.json"
SETTINGS = ("mnist/linear/half", "fmnist/linear/half", "synthetic/linear", "synthetic/dnn")
SCORE_EVERY = 10


def best(row: Row, options: Options, seed: int, turns: int) -> float:
    """Test accuracy of the best scored round in percent, with so many devices in a round."""
    shards = load(row, seed, options).paper()
    draws = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inputs = shards.x[0].numel()
        model = named.make("model", row.model, inputs=inputs, outputs=shards.classes)
    scores = []
    for number in range(options.rounds_of(row)):
        for device in torch.randperm(shards.devices, generator=draws)[:turns].tolist():
            held = shards.train.held(device)
            train(model, row, shards, held, draws)
        if (number + 1) % SCORE_EVERY == 0:
            scores.append(accuracy(model, shards))
    return round(100 * max(scores), 4)


def train(model: nn.Module, row: Row, shards: Shards, held: Tensor, draws: torch.Generator) -> None:
    """The steps of one device, in place."""
    parameters = list(model.parameters())
    for _ in range(row.algorithm["steps"]):
        batch = held[torch.randint(len(held), (row.algorithm["batch"],), generator=draws)]
        loss = functional.cross_entropy(model(shards.x[batch]), shards.y[batch])
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= row.algorithm["lr"] * gradient


def accuracy(model: nn.Module, shards: Shards) -> float:
    """Over the test examples of all devices."""
    with torch.no_grad():
        predicted = model(shards.x[shards.test.index]).argmax(1)
    right = predicted == shards.y[shards.test.index]
    return float(right.double().mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing; write the figures after each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args(arguments)
    options = Options(asked.seeds, asked.rounds, data_dir=asked.data_dir)
    rows = {row.name: row for row in tables.read("permfl/table1").rows}
    for setting in SETTINGS:
        row = rows[f"{setting}/ditto"]
        for turns in asked.turns:
            figures = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
            key = f"{setting}, {turns} of 40 devices"
            if asked.rounds:
                key = f"{key}, {asked.rounds} rounds"
            if key in figures:
                continue
            values = [best(row, options, seed, turns) for seed in range(asked.seeds)]
            figures[key] = {"rounds": options.rounds_of(row), "global": values}
            part = asked.out.with_suffix(".part")
            part.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            os.replace(part, asked.out)
            print(f"{key}: {report.spread(values)}, printed {cell(row, 'global')}", flush=True)


if __name__ == "__main__":
    main()
