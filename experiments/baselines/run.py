"""Every method on three sets with the same budget of gradients.

`COVEY_DATA=FOLDER python -m experiments.baselines.run --json OUT.json --jobs 16`, then `python -m
experiments.baselines.table OUT.json`: Synthetic(.5, .5) with 100 devices; Fashion-MNIST with 20
devices of 2 labels; the digits with 20 devices of 2 labels. All devices asked in 100 rounds
(Fashion-MNIST: 60), 21 gradients of 20 examples each. The setting of a method is that of the best
validation accuracy on seed 0 in half the rounds; reported are seeds 1, 2, 3, in the round of the
best validation accuracy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import covey
from covey.data import Shards
from covey.runs.run import Round
from covey.runs.selection import select
from experiments.baselines.methods import METHODS
from experiments.pool import Answers, Found, Job
from experiments.pool import run as spread

SETS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "fashion": ((784, 100, 10), 4, 60),
    "synthetic": ((60, 20, 10), 10, 100),
    "digits": ((64, 32, 10), 4, 100),
}
"""The network, the number of edges for methods that have them, the rounds.

The slowest is first, so that nothing waits for it.
"""
SEEDS, TUNING = (1, 2, 3), 0
SLOW = ("pfedgp", "pfedbayes")  # run first, so that nothing waits for them in the end
SCORE_EVERY = {
    ("synthetic", "pfedgp"): 2
}  # scores of a run; its Gaussian processes take ten seconds to predict


@lru_cache(maxsize=12)
def shards(name: str, seed: int) -> Shards:
    """The devices of a set; the smaller sizes of FedProx's code for the synthetic one."""
    if name == "synthetic":
        return covey.data.synthetic(0.5, 0.5, devices=100, seed=seed, sizes="fedprox")
    if name == "fashion":
        return covey.data.fashion_mnist(partition="labels", devices=20, labels=2, seed=seed)
    return covey.data.digits(devices=20, labels=2, seed=seed)


def experiment(
    name: str, method: str, point: int, *, seed: int, rounds: int, device: str = "cpu"
) -> covey.Experiment:
    """One setting of a method on one seed of a set.

    Edges hold neighbours in the order in which the devices were dealt.
    """
    sizes, edges, _ = SETS[name]
    data, how = shards(name, seed), METHODS[method]
    algorithm = how.make(how.points[point], data.devices)
    flat = algorithm.any_depth or "edge" not in algorithm.tiers()
    tree = (
        covey.Tree.flat(data.devices)
        if flat
        else covey.Tree.grouped([data.devices // edges] * edges)
    )
    plain: dict[str, Any] = {
        "private": how.private or (),
        "codec": how.codec,
        "seed": seed,
        "device": device,
    }
    plain |= {
        "score_every": max(1, rounds // SCORE_EVERY.get((name, method), 10)),
        "rounds": rounds,
    }
    if method != "pfedgp":  # whose training examples are its classifier
        plain["score_train_every"] = rounds
    return covey.Experiment(algorithm, data, covey.models.mlp(*sizes), tree, **plain)


def work(name: str, method: str, point: int, seed: int, rounds: int, device: str) -> dict[str, Any]:
    """What one run came to, as JSON can hold it."""
    began = time.perf_counter()
    asked = experiment(name, method, point, seed=seed, rounds=rounds, device=device)
    records = list(covey.run(asked))
    models = {model: outcome(records, model) for model in records[-1].models}
    return {
        "models": models,
        "setting": METHODS[method].points[point],
        "algorithm": str(asked.algorithm),
        "gradients": sum(record.gradients for record in records) / asked.data.devices,
        "bytes": sum(record.bytes() for record in records) / len(records) / asked.data.devices,
        "rounds": rounds,
        "seconds": time.perf_counter() - began,
        "training": sum(record.spent.get("training", 0.0) for record in records),
        "torch": torch.__version__,
    }


def outcome(records: list[Round], model: str) -> dict[str, Any]:
    """A model in the round that is best on its validation data, and its losses in the last."""
    rounds = select(records, model)
    at, last = rounds.chosen.models[model].scores, rounds.last.models[model].scores
    return {
        "validation": at["validation"].accuracy_fallback,
        "validation_loss": at["validation"].loss,
        "test": at["test"].accuracy,
        "worst": at["test"].worst_decile,
        "loss": at["test"].loss,
        "round": rounds.chosen.round + 1,
        "last_test": last["test"].accuracy,
        "last_loss": last["test"].loss,
        "train_loss": last["train"].loss if "train" in last else None,
    }


def main_model(answer: dict[str, Any]) -> str:
    """The one a method is judged by: the personal one where it has one."""
    return "personal" if "personal" in answer["models"] else "global"


def best_point(answers: Found, name: str, method: str) -> int | None:
    """The number of the best setting on the tuning seed; None while some are missing, or where all
    failed.
    """
    names = [key(name, method, point, TUNING) for point in range(len(METHODS[method].points))]
    tried = [answers[name] for name in names if name in answers]
    if len(tried) < len(names) or all("error" in answer for answer in tried):
        return None
    scores = [_quality(answer) for answer in tried]
    return scores.index(max(scores))


def _quality(answer: dict[str, Any]) -> tuple[float, float]:
    """Accuracy, then loss: on few examples several settings have the same accuracy."""
    if "error" in answer:
        return -1.0, 0.0
    judged = answer["models"][main_model(answer)]
    return judged["validation"], -judged["validation_loss"]


def key(name: str, method: str, point: int, seed: int) -> str:
    """A job's name in the file."""
    return f"{name}/{method}/{point}/{seed}"


def jobs(
    answers: Found, *, sets: list[str], methods: list[str], share: float, device: str
) -> Iterator[Job]:
    """The grid on the tuning seed, and the reported seeds of every method whose grid is done; the
    slowest first.
    """
    pairs = sorted(
        ((name, method) for name in sets for method in methods),
        key=lambda pair: pair[1] not in SLOW,
    )
    for name, method in pairs:
        best, rounds = best_point(answers, name, method), max(2, round(share * SETS[name][2]))
        if best is not None:
            yield from (
                (key(name, method, best, seed), (name, method, best, seed, rounds, device))
                for seed in SEEDS
            )
        for point in range(len(METHODS[method].points)):
            yield (
                key(name, method, point, TUNING),
                (name, method, point, TUNING, rounds // 2, device),
            )


def main() -> None:
    """Run what the file does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--json",
        type=Path,
        required=True,
        help="every figure of every job; what it holds is not run again",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--share", type=float, default=1.0, help="of the rounds, for a quick look")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    methods = list(asked.methods)
    if "demlearn" in methods and find_spec("scipy") is None:
        print("# demlearn is left out: it needs scipy", file=sys.stderr)
        methods.remove("demlearn")
    plan = partial(jobs, sets=asked.sets, methods=methods, share=asked.share, device=asked.device)
    spread(
        work,
        lambda found: [job for job in plan(found) if job[0] not in found],
        Answers(asked.json),
        asked.jobs,
    )


if __name__ == "__main__":
    main()
