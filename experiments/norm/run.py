"""FedBN against FedAvg, Local and FineTune on devices whose features are shifted.

`COVEY_DATA=FOLDER python -m experiments.norm.run OUT.json`: MNIST, 20 devices of 200 images, all
with all digits. A device shows its images in one of five ways, four devices in each: as they are,
inverted, faint, blurred or noisy. The network has three linear layers with BatchNorm between them.
A device takes 20 steps of 20 images in each of 40 rounds. The step size was chosen by the
validation accuracy on seed 100, which is not among those reported. The round is that of the best
validation accuracy. Every seed has its own weights, images, noise and draws. Names of methods after
OUT.json choose among them.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey.algorithms import FedAvg, FedBN, FineTune, Local
from covey.engine.modules.norm import Norm
from covey.runs.selection import select

DEVICES = 20
IMAGES = 200
ROUNDS = 40
SEEDS = range(5)
TUNED_ON = 100
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""The third to fifth are tried, and further ones as long as the best is at an end."""


SHIFTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": lambda x, noise: x,
    "inverted": lambda x, noise: 1 - x,
    "faint": lambda x, noise: 0.4 + 0.2 * x,
    "blurred": lambda x, noise: F.avg_pool2d(x, 5, stride=1, padding=2),
    "noisy": lambda x, noise: x + 0.5 * noise,
}
"""What each fifth of the devices makes of its images, whose pixels lie between 0 and 1."""


def shifted(seed: int) -> covey.data.Shards:
    """The images of 20 devices, as each of them shows them."""
    whole = covey.data.mnist(partition="iid", devices=70_000 // IMAGES, seed=seed)
    shards = whole.chosen(range(DEVICES))
    x = shards.x.clone()
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(x.shape, generator=draw)
    ways = list(SHIFTS.values())
    for device in range(DEVICES):
        change = ways[device % len(ways)]
        for name in ("train", "validation", "test"):
            part = shards.part(name)
            own = part.index[part.offset[device] : part.offset[device + 1]]
            x[own] = change(x[own], noise[own])
    return replace(shards, x=x)


def network() -> nn.Module:
    """Three linear layers with BatchNorm between them, 55,242 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


METHODS: dict[str, tuple[type[covey.Algorithm], str, Norm]] = {
    "Local": (Local, "personal", "device"),
    "FedAvg": (FedAvg, "global", "device"),
    "FineTune": (FineTune, "personal", "device"),
    "FedBN": (FedBN, "global", "device"),
    "FedBN after its steps": (FedBN, "personal", "device"),
    "FedAvg, GroupNorm": (FedAvg, "global", "group"),
}
"""The algorithm, the model that counts, and `norm`."""


def experiment(name: str, rate: float, seed: int) -> covey.Experiment:
    """One method on one seed."""
    make, _, norm = METHODS[name]
    settings: dict[str, Any] = {"steps": 20, "lr": rate, "batch": 20}
    if make is FineTune:
        settings["tune_lr"] = rate
    return covey.Experiment(
        make(**settings),
        shifted(seed),
        network(),
        covey.Tree.flat(DEVICES),
        rounds=ROUNDS,
        seed=seed,
        score_every=4,
        norm=norm,
        workers=1,
    )


def result(name: str, rate: float, seed: int) -> dict[str, Any]:
    """Validation and test accuracy in the chosen round, in percent, also by shift."""
    run = covey.run(experiment(name, rate, seed))
    history = list(run)
    model = METHODS[name][1]
    best = select(history, model).chosen
    scores = best.models[model].scores
    rows = [row for row in run.devices() if row.model == model and row.part == "test"]
    by_shift: dict[str, list[float]] = {shift: [] for shift in SHIFTS}
    for device, row in enumerate(rows[:DEVICES]):
        shift = list(SHIFTS)[device % len(SHIFTS)]
        by_shift[shift].append(100 * (row.accuracy or 0.0))
    out: dict[str, Any] = {
        "round": best.round + 1,
        "validation": 100 * (scores["validation"].accuracy or 0.0),
        "test": 100 * (scores["test"].accuracy or 0.0),
        "shifts": {shift: statistics.mean(values) for shift, values in by_shift.items()},
    }
    if name == "FedAvg":
        out["pooled"] = pooled(run)
    return out


def pooled(run: covey.Run) -> float:
    """Test accuracy of the global model with the statistics of all devices together, in percent."""
    module = run.module("global", which="chosen").eval()
    test = run.trained.test.index
    with torch.no_grad():
        predicted = module(run.trained.x[test]).argmax(1)
    right = (predicted == run.trained.y[test]).float()
    return 100 * float(right.mean())


def best_rate(quality: Callable[[float], float]) -> float:
    """The step size of the best quality, not at an end of those tried if RATES go on."""
    first = 2
    last = 4
    while True:
        tried = {number: quality(RATES[number]) for number in range(first, last + 1)}
        best = max(tried, key=tried.__getitem__)
        if best == first and first > 0:
            first -= 1
        elif best == last and last < len(RATES) - 1:
            last += 1
        else:
            return RATES[best]


def main(path: Path, names: list[str]) -> None:
    """Every result of these methods, or of all, that the file does not have yet."""
    found: dict[str, Any] = {}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))

    def known(name: str, rate: float, seed: int) -> dict[str, Any]:
        key = f"{name} lr={rate} seed={seed}"
        if key not in found:
            found[key] = result(name, rate, seed)
            path.write_text(json.dumps(found, indent=1), encoding="utf-8")
            print(key, found[key], flush=True)
        out: dict[str, Any] = found[key]
        return out

    def quality(name: str, rate: float) -> float:
        out: float = known(name, rate, TUNED_ON)["validation"]
        return out

    for name in names or METHODS:
        rate = best_rate(partial(quality, name))
        results = [known(name, rate, seed) for seed in SEEDS]
        print(row(name, rate, results), flush=True)


def row(name: str, rate: float, results: list[dict[str, Any]]) -> str:
    """A line of the table: mean and standard deviation over seeds, then the mean by shift."""
    cells = [name, f"{rate:g}", spread([one["test"] for one in results])]
    for shift in SHIFTS:
        values = [one["shifts"][shift] for one in results]
        cells += [f"{statistics.mean(values):.1f}"]
    if "pooled" in results[0]:
        cells.append("pooled " + spread([one["pooled"] for one in results]))
    return "| " + " | ".join(cells) + " |"


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
