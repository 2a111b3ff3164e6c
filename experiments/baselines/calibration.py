"""Whether models mean the chances they give: pFedGP and pFedBayes against plain networks, and a
full run of pFedGP.

`COVEY_DATA=FOLDER python -m experiments.baselines.calibration --json OUT.json --jobs 16` (or
`--table`): Fashion-MNIST, 50 devices of 5 labels (1,400 images each), 784-100-10. With every method
a device evaluates 100 gradients of 64 examples, on average where devices are drawn: pFedGP and
FedAvg ask 5 of the 50 in each of 1,000 rounds for one step, as pFedGP's paper does; the fine-tuned
models have 800 such rounds and 20 steps of their own. With so few a plain network has not fitted
its examples yet; so some have rows with five times as many. The step size is that of the best
validation accuracy on seed 0 after half the rounds. Figures are of the last round and the test
part; the outputs of plain networks are taken as they are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import covey
from covey.algorithms import FedAvg, FineTune, Local, PFedBayes, PFedGP
from covey.data import Shards
from covey.kernel.algorithm import Algorithm
from covey.runs.run import Run
from experiments.pool import Answers, Found, Job
from experiments.pool import run as spread

DEVICES, LABELS, SAMPLE, BATCH, GRADIENTS = 50, 5, 5, 64, 100
ROUNDS, TUNE, SEEDS, TUNING = 1000, 20, (1, 2, 3), 0


@dataclass(frozen=True)
class Method:
    """How an algorithm is made from a step size, its rounds, and the step sizes to choose from;
    `tune` steps come after it.
    """

    make: Callable[[float], Algorithm]
    rounds: int
    lrs: tuple[float, ...] = (0.03, 0.1, 0.3)
    tune: int = 0
    scores: int = 1


def _pfedgp(lr: float) -> Algorithm:
    """With its paper's figures, but for fewer examples and draws in a prediction: 28,000 images are
    scored four times.
    """
    return PFedGP(sample=SAMPLE, steps=1, lr=lr, batch=BATCH, support=100, predict_draws=10)


def _pfedbayes(lr: float) -> Algorithm:
    """Rounds of 5 steps on all devices: with so few, asking some would leave most personal models
    where they began.
    """
    return PFedBayes(
        zeta=1.0, lr=lr, personal_lr=lr, local_rounds=5, steps=1, batch=BATCH, draws=10
    )


def _fedavg(lr: float) -> Algorithm:
    return FedAvg(sample=SAMPLE, steps=1, lr=lr, batch=BATCH)


def _local(lr: float) -> Algorithm:
    return Local(steps=1, lr=lr, batch=BATCH)


_TUNED = ROUNDS * (GRADIENTS - TUNE) // GRADIENTS  # a tenth of a gradient per device and round

METHODS: dict[str, Method] = {
    "pFedGP": Method(_pfedgp, ROUNDS, scores=4),
    "pFedBayes, 5 x": Method(_pfedbayes, GRADIENTS, (0.003, 0.01, 0.03)),
    "pFedBayes": Method(_pfedbayes, GRADIENTS // 5, (0.003, 0.01, 0.03)),
    "FedAvg": Method(_fedavg, ROUNDS),
    "FedAvg, fine-tuned": Method(_fedavg, _TUNED, tune=TUNE),
    "FedAvg, fine-tuned, 5 x": Method(_fedavg, 5 * _TUNED, tune=5 * TUNE),
    "Local": Method(_local, GRADIENTS),
    "Local, 5 x": Method(_local, 5 * GRADIENTS),
}
SHOWN: dict[str, tuple[str, ...]] = {
    "pFedGP": ("global", "personal"),
    "pFedBayes": ("personal", "global"),
    "pFedBayes, 5 x": ("personal", "global"),
    "FedAvg": ("global",),
    "FedAvg, fine-tuned": ("personal",),
    "FedAvg, fine-tuned, 5 x": ("personal",),
    "Local": ("personal",),
    "Local, 5 x": ("personal",),
}
"""Which models say something, first the one that chooses the step size. pFedGP's global one is the
common network under every device's own classifier, as in its paper; its personal ones are from the
last round in which a device was asked."""


@lru_cache(maxsize=1)
def shards(seed: int) -> Shards:
    """The devices."""
    return covey.data.fashion_mnist(partition="labels", devices=DEVICES, labels=LABELS, seed=seed)


def work(method: str, lr: float, seed: int, share: float, device: str) -> dict[str, Any]:
    """One run: accuracy, calibration and time."""
    began, how, data = time.perf_counter(), METHODS[method], shards(seed)
    rounds = max(1, round(share * how.rounds))
    model, tree = covey.models.mlp(784, 100, 10), covey.Tree.flat(DEVICES)
    scores = 1 if seed == TUNING else how.scores
    plain: dict[str, Any] = {
        "seed": seed,
        "device": device,
        "score_every": max(1, rounds // scores),
    }
    run = covey.run(covey.Experiment(how.make(lr), data, model, tree, rounds=rounds, **plain))
    records = list(run)
    gradients = sum(record.gradients for record in records)
    if how.tune:
        run, records = tuned(run, how.tune, lr, plain)
        gradients += sum(record.gradients for record in records)
    trained = time.perf_counter() - began
    found = run.calibration()
    models = {}
    for name, scored in records[-1].models.items():
        test, validation = scored.scores["test"], scored.scores["validation"]
        models[name] = asdict(found[name]) | {
            "test": test.accuracy,
            "worst": test.worst_decile,
            "holders": scored.holders,
        }
        models[name] |= {"validation": validation.accuracy_fallback}
    return {
        "models": models,
        "lr": lr,
        "rounds": rounds,
        "gradients": gradients / DEVICES,
        "training": sum(record.spent.get("training", 0.0) for record in records),
        "until_scored": trained,
        "seconds": time.perf_counter() - began,
        "course": [
            [r.round + 1, r.accuracy("global"), r.accuracy("global", "validation")]
            for r in records
            if r.models
        ],
    }


def tuned(run: Run, steps: int, lr: float, plain: dict[str, Any]) -> tuple[Run, list[covey.Round]]:
    """All devices' own steps from the global model of a finished run: one round of fine-tuning that
    starts there.
    """
    before = run.experiment
    algorithm = FineTune(steps=1, lr=lr, tune_steps=steps, tune_lr=lr, batch=BATCH)
    after = covey.run(
        covey.Experiment(
            algorithm, before.data, run.module(), before.tree, rounds=1, start="module", **plain
        )
    )
    return after, list(after)


def best(answers: Found, method: str) -> float | None:
    """The step size that was best on the tuning seed."""
    lrs = METHODS[method].lrs
    tried = {lr: answers[name] for lr in lrs if (name := f"{method}/{lr}/{TUNING}") in answers}
    if len(tried) < len(lrs) or all("error" in answer for answer in tried.values()):
        return None
    judged = SHOWN[method][0]
    return max(
        tried,
        key=lambda lr: -1.0 if "error" in tried[lr] else tried[lr]["models"][judged]["validation"],
    )


def jobs(answers: Found, *, methods: list[str], share: float, device: str) -> Iterator[Job]:
    """The step sizes on the tuning seed, and the reported seeds of every method that has chosen;
    the slowest is first.
    """
    for method in methods:
        lr = best(answers, method)
        for seed in SEEDS if lr is not None else ():
            yield f"{method}/{lr}/{seed}", (method, lr, seed, share, device)
        for lr in METHODS[method].lrs:
            yield f"{method}/{lr}/{TUNING}", (method, lr, TUNING, share / 2, device)


def table(answers: Found) -> str:
    """All figures in Markdown."""
    lines = [
        "| method | model | accuracy | worst tenth | ECE | MCE | Brier | log-loss | gradients | s | lr |",
        "|---" * 11 + "|",
    ]
    for method in METHODS:
        lr = best(answers, method)
        seeds = (
            []
            if lr is None
            else [answers.get(f"{method}/{lr}/{seed}", {"error": ""}) for seed in SEEDS]
        )
        seeds = [seed for seed in seeds if "error" not in seed]
        for model in SHOWN[method] if seeds else ():
            cells = [
                _spread([100 * seed["models"][model][figure] for seed in seeds], 1)
                for figure in ("test", "worst")
            ]
            cells += [
                _spread([100 * seed["models"][model][figure] for seed in seeds], 2)
                for figure in ("ece", "mce")
            ]
            cells += [
                _spread([seed["models"][model][figure] for seed in seeds], 3)
                for figure in ("brier", "log_loss")
            ]
            cells += [
                f"{statistics.mean(seed[figure] for seed in seeds):.0f}"
                for figure in ("gradients", "seconds")
            ]
            lines.append("| " + " | ".join([method, model, *cells, f"{lr:g}"]) + " |")
    return "\n".join(lines)


def _spread(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f}" + (
        f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    )


def main() -> None:
    """Run what the file does not hold yet, or print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--json",
        type=Path,
        required=True,
        help="every figure of every job; what it holds is not run again",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--share", type=float, default=1.0, help="of the rounds, for a quick look")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    asked = parser.parse_args()
    plan = partial(jobs, methods=asked.methods, share=asked.share, device=asked.device)
    answers = Answers(asked.json)
    if not asked.table:
        spread(
            work,
            lambda found: [job for job in plan(found) if job[0] not in found],
            answers,
            asked.jobs,
        )
    print(table(answers.found))


if __name__ == "__main__":
    main()
