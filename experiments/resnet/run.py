"""ResNet-18 with BatchNorm on CIFAR-10: `python -m experiments.resnet.run METHOD --device cuda`.

20 devices with five labels each, images shifted and mirrored in training. It stops after `rounds`
rounds or `seconds` seconds and writes the accuracy of every model in its last scored round.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import covey
from covey import Algorithm, Experiment, Run, Tree
from covey.algorithms import FedAvg, FedBN, FineTune, Local
from experiments.resnet.net import ResNet18

STEPS: dict[str, Any] = {"steps": 10, "lr": 0.05, "batch": 50}
METHODS: dict[str, Algorithm] = {
    "fedavg": FedAvg(**STEPS),
    "fedbn": FedBN(**STEPS),
    "finetune": FineTune(**STEPS, tune_steps=10, tune_lr=0.02),
    "local": Local(**STEPS),
}


def experiment(method: str, given: argparse.Namespace) -> Experiment:
    """The experiment of one method."""
    data = covey.data.cifar10(
        partition="labels",
        devices=20,
        labels=5,
        normalise="standard",
        data_dir=given.data_dir,
        seed=given.seed,
    )
    return Experiment(
        algorithm=METHODS[method],
        data=data,
        model=ResNet18(width=given.width),
        tree=Tree.flat(20),
        rounds=given.rounds,
        score_every=given.score_every,
        seed=given.seed,
        device=given.device,
        augment=("crop", "flip"),
        compute=given.compute,
    )


def measure(run: Run, seconds: float) -> dict[str, Any]:
    """Train until the rounds or the seconds are over; the test accuracy of every scored model."""
    began = time.monotonic()
    times = []
    scores: dict[str, float] = {}
    last = began
    for record in run:
        now = time.monotonic()
        times.append(now - last)
        last = now
        accuracies = {name: record.accuracy(name) for name in record.models}
        if accuracies:
            scores = {name: 100 * value for name, value in accuracies.items() if value is not None}
            print(record.round, scores, round(now - began), flush=True)
        if now - began > seconds:
            break
    return {"rounds": len(times), "seconds": last - began, "test": scores, "engine": run.engine}


def main() -> None:
    """Run one method and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--score-every", type=int, default=10)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compute", default="fp32")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=Path("runs/resnet"))
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    result = measure(covey.run(experiment(given.method, given)), given.seconds)
    result["method"] = given.method
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{given.method}-{given.seed}.json"
    path.write_text(json.dumps(result, default=str, indent=1), encoding="utf-8")
    print(result, flush=True)


if __name__ == "__main__":
    main()
