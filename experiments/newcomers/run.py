"""What a new device gets: global, edge and personalised models on devices that took no part in
training.

`COVEY_DATA=FOLDER python -m experiments.newcomers.run`: Fashion-MNIST, 50 devices of 5 labels each
under 5 edges of devices whose first updates are alike; 10 of them, drawn evenly from the edges, are
held out. 784-100-10, every other device asked. A newcomer takes the model of the tier above it that
fits its training examples best and runs the method's own inner problem on it, once. The round is
that of the best validation accuracy of the personalised model on the newcomers. Step sizes and
penalties were chosen in the same way on seed 100 (`--grid`), which is not among those reported.
Every seed has its own weights, partition and draws.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import covey
from covey.algorithms import FedAvg, HierFAVG, Local, PerMFL, PFedMe, SFedHP
from covey.runs.run import Round
from covey.runs.selection import select

DEVICES, NEW, EDGES, LABELS = 50, 10, 5, 5
MODELS = ("new_global", "new_edge", "new_personal")

METHODS: dict[str, covey.Algorithm] = {
    "Local": Local(lr=0.1),
    "FedAvg": FedAvg(lr=0.1),
    "pFedMe": PFedMe(lam=15.0, lr=0.02, personal_lr=0.03),
    "HierFAVG": HierFAVG(lr=0.1, edge_rounds=5),
    "PerMFL": PerMFL(lam=0.5, lr=0.1, edge_lr=0.3, edge_rounds=5),
    "sFedHP": SFedHP(lam1=5.0, lam2=5.0, lr2=0.05, lr1=0.05),
}
GRIDS: dict[str, dict[str, list[Any]]] = {
    "Local": {"lr": [0.03, 0.1, 0.3]},
    "FedAvg": {"lr": [0.03, 0.1, 0.3]},
    "pFedMe": {"lam": [5.0, 15.0], "personal_lr": [0.03, 0.1]},
    "HierFAVG": {"lr": [0.03, 0.1, 0.3]},
    "PerMFL": {"lam": [0.5, 1.5], "lr": [0.03, 0.1]},
    "sFedHP": {"lam1": [1.0, 5.0], "lr2": [0.05, 0.1]},
}


def experiment(algorithm: covey.Algorithm, seed: int, rounds: int) -> covey.Experiment:
    """One method on one seed."""
    model = covey.models.mlp(784, 100, 10)
    shards = covey.data.fashion_mnist(partition="labels", devices=DEVICES, labels=LABELS, seed=seed)
    shards, tree = covey.data.edges.similar(shards, model, EDGES, seed)
    plain: dict[str, Any] = {
        "rounds": rounds,
        "seed": seed,
        "score_every": 5,
        "holdout_devices": NEW,
    }
    return covey.Experiment(algorithm, shards, model, tree, **plain)


def history(algorithm: covey.Algorithm, seed: int, rounds: int) -> list[Round]:
    """All records."""
    return list(covey.run(experiment(algorithm, seed, rounds)))


def chosen(records: list[Round]) -> dict[str, float]:
    """Test accuracy of every model in the round that is best for the personalised model on
    validation data, in percent.
    """
    best = select([record for record in records if record.models], "new_personal").chosen
    names = [*MODELS, *(name for name in best.models if not name.startswith("new_"))]
    out = {name: 100 * (best.accuracy(name) or 0.0) for name in names if name in best.models}
    worst = best.models["new_personal"].scores["test"].worst_decile
    return out | {"round": float(best.round + 1), "worst": 100 * (worst or 0.0)}


def grid(rounds: int) -> dict[str, covey.Algorithm]:
    """The setting of each method whose personalised model is best on the validation data of seed
    100's newcomers.
    """
    best: dict[str, tuple[float, covey.Algorithm]] = {}
    for name, choices in GRIDS.items():
        for values in product(*choices.values()):
            changes = dict(zip(choices, values, strict=True))
            changes |= {"lam2": changes["lam1"]} if name == "sFedHP" else {}
            method: Any = METHODS[name]
            algorithm = replace(method, **changes)
            records = [record for record in history(algorithm, 100, rounds) if record.models]
            value = (
                select(records, "new_personal").chosen.accuracy("new_personal", "validation") or 0.0
            )
            print(f"# {value:.4f} {algorithm}", file=sys.stderr, flush=True)
            if name not in best or value > best[name][0]:
                best[name] = (value, algorithm)
    return {name: algorithm for name, (_, algorithm) in best.items()}


def main() -> None:
    """Print a table in Markdown; with `--json FILE`, write the figures of every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--grid", action="store_true", help="choose the settings anew")
    parser.add_argument("--json", type=Path, help="write every figure of every seed here")
    asked = parser.parse_args()
    settings = grid(asked.rounds // 2) if asked.grid else METHODS
    print(
        "| method | new: global | new: best edge | new: personalised | worst tenth of these | trained: personal | settings |"
    )
    print("|---|---|---|---|---|---|---|")
    every: dict[str, list[dict[str, float]]] = {}
    for name, algorithm in settings.items():
        every[name] = [
            chosen(history(algorithm, seed, asked.rounds)) for seed in range(asked.seeds)
        ]
        cells = [_figure(every[name], key) for key in (*MODELS, "worst", "personal")]
        print("| " + " | ".join([name, *cells, f"`{algorithm}`"]) + " |", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(every, indent=1) + "\n")


def _figure(seeds: list[dict[str, float]], key: str) -> str:
    values = [seed[key] for seed in seeds if key in seed]
    if not values:
        return "-"
    return (
        f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
        if len(values) > 1
        else f"{values[0]:.2f}"
    )


if __name__ == "__main__":
    main()
