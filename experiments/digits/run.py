"""Personal against global models on the digits, two labels per device, five seeds: `python -m
experiments.digits.run`.

20 devices under 4 edges, 64-32-10, every device asked. The round is chosen on validation data; the
test figures are of that round. Step sizes and penalties were chosen per method on validation data
of seed 100 (`--grid`), which is not among the reported seeds. Every seed has its own initial
weights, partition and draws.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch

import covey
from covey.algorithms import FedAvg, FedMac, FineTune, HierFAVG, Local, PerMFL, PFedMe, SFedHP
from covey.runs.selection import select

ROUNDS = 100

METHODS: dict[str, tuple[covey.Algorithm, str]] = {
    "Local": (Local(lr=0.1), "personal"),
    "FineTune": (FineTune(lr=0.3, tune_lr=0.3), "personal"),
    "pFedMe": (PFedMe(lam=15.0, lr=0.02, personal_lr=0.03), "personal"),
    "FedMac": (FedMac(lr=1000.0, personal_lr=0.3), "personal"),
    "PerMFL": (PerMFL(lam=1.5, lr=0.1, edge_lr=0.3), "personal"),
    "sFedHP": (SFedHP(lam1=1.0, lam2=1.0, lr2=0.05, lr1=0.05), "personal"),
    "FedAvg": (FedAvg(lr=0.3), "global"),
    "HierFAVG": (HierFAVG(lr=0.03), "global"),
}

GRIDS: dict[str, dict[str, list[Any]]] = {
    "Local": {"lr": [0.02, 0.1, 0.3]},
    "FineTune": {"lr": [0.02, 0.1, 0.3], "tune_lr": [0.02, 0.1, 0.3]},
    "pFedMe": {"lam": [1.0, 5.0, 15.0], "personal_lr": [0.03, 0.09], "lr": [0.005, 0.02]},
    "FedMac": {"personal_lr": [0.05, 0.1, 0.3], "lr": [1000.0, 3000.0]},
    "PerMFL": {"lam": [0.5, 1.5], "lr": [0.03, 0.1], "edge_lr": [0.03, 0.3]},
    "sFedHP": {"lam1": [1.0, 5.0, 25.0], "lr2": [0.02, 0.05]},
    "FedAvg": {"lr": [0.02, 0.1, 0.3]},
    "HierFAVG": {"lr": [0.01, 0.03, 0.1]},
}


def experiment(algorithm: covey.Algorithm, seed: int) -> covey.Experiment:
    """One method on one seed."""
    return covey.Experiment(
        algorithm=algorithm,
        data=covey.data.digits(devices=20, labels=2, seed=seed),
        model=covey.models.mlp(64, 32, 10),
        tree=covey.Tree.grouped([5, 5, 5, 5]),
        rounds=ROUNDS,
        seed=seed,
        score_every=5,
        workers=1,
    )


def figures(job: tuple[str, covey.Algorithm, int]) -> dict[str, Any]:
    """The test figures of every model in the round that its validation accuracy chooses."""
    name, algorithm, seed = job
    torch.set_num_threads(1)
    run = covey.run(experiment(algorithm, seed))
    history = list(run)
    out: dict[str, Any] = {
        "method": name,
        "seed": seed,
        "bytes": sum(record.bytes() for record in history),
        "models": {},
    }
    for model in history[-1].models:
        chosen = select(history, model)
        out["models"][model] = {
            "validation": chosen.chosen.accuracy(model, "validation"),
            "test": chosen.chosen.accuracy(model),
            "worst_decile": chosen.chosen.models[model].scores["test"].worst_decile,
            "round": chosen.chosen.round,
            "last": chosen.last.accuracy(model),
            "best_on_test": chosen.best_on_test.accuracy(model),
        }
    return out


def grid(pool: ProcessPoolExecutor) -> dict[str, covey.Algorithm]:
    """The setting of each method's grid with the best validation accuracy on seed 100."""
    jobs = []
    for name, choices in GRIDS.items():
        for values in product(*choices.values()):
            changes = dict(zip(choices, values, strict=True))
            if name == "sFedHP":
                changes["lam2"] = changes["lam1"]
            method: Any = METHODS[name][0]
            jobs.append((name, replace(method, **changes), 100))
    best: dict[str, tuple[float, covey.Algorithm]] = {}
    for (name, algorithm, _), result in zip(jobs, pool.map(figures, jobs), strict=True):
        value = result["models"][METHODS[name][1]]["validation"]
        print(f"# {value:.4f} {algorithm}", file=sys.stderr)
        if name not in best or value > best[name][0]:
            best[name] = (value, algorithm)
    return {name: algorithm for name, (_, algorithm) in best.items()}


def main() -> None:
    """Print a table in Markdown; with `--json FILE`, write every figure of every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--grid", action="store_true", help="choose the settings anew")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", help="write every figure of every seed here")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        settings = (
            grid(pool)
            if options.grid
            else {name: algorithm for name, (algorithm, _) in METHODS.items()}
        )
        jobs = [(name, settings[name], seed) for name in METHODS for seed in range(options.seeds)]
        results = list(pool.map(figures, jobs))
    print(
        "| method | model | test, chosen on validation | worst decile | last round | best on test | MB | settings |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in METHODS:
        mine = [result for result in results if result["method"] == name]
        for model in mine[0]["models"]:
            print(
                _row(
                    name,
                    model,
                    [result["models"][model] for result in mine],
                    mine[0]["bytes"] / 1e6,
                    settings[name],
                )
            )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


def _row(
    name: str,
    model: str,
    scores: list[dict[str, float]],
    megabytes: float,
    algorithm: covey.Algorithm,
) -> str:
    def mean(key: str) -> str:
        values = [100 * score[key] for score in scores]
        return (
            f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
            if len(values) > 1
            else f"{values[0]:.2f}"
        )

    cells = [
        name,
        model,
        mean("test"),
        mean("worst_decile"),
        mean("last"),
        mean("best_on_test"),
        f"{megabytes:.1f}",
    ]
    return "| " + " | ".join([*cells, f"`{algorithm}`"]) + " |"


if __name__ == "__main__":
    main()
