"""Bytes on the server's links until a model is good: trees against flat methods, every codec.

`COVEY_DATA=FOLDER python -m experiments.reach.run`: MNIST, 20 devices of 5 labels, 784-100-10, all
asked, under 4 edges where the method has them. A run ends when the validation accuracy of the
global and the personal model (where there is one) has passed its target, or after 60 rounds.
Counted is what the server sends and receives, all rounds and nodes; what edges and devices say to
each other stands beside it. Two seeds, each with its own weights, partition and draws.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import covey
from covey.algorithms import FedAvg, HierFAVG, PerMFL, PFedMe, SFedHP

TARGETS = {"global": 0.85, "personal": 0.90}
ROUNDS = 60

METHODS: dict[str, covey.Algorithm] = {
    "FedAvg": FedAvg(lr=0.1),
    "pFedMe": PFedMe(lam=15.0, lr=0.1, personal_lr=0.06),
    "HierFAVG": HierFAVG(lr=0.1, edge_rounds=5),
    "PerMFL": PerMFL(lam=3.0, gamma=1.0, beta=1.0, lr=0.1, edge_lr=0.25, edge_rounds=5),
    "sFedHP": SFedHP(lam1=5.0, lam2=5.0, lr1=0.2, lr2=0.1, edge_rounds=10),
    "sFedHP, sparse": SFedHP(
        lam1=5.0, lam2=5.0, lr1=0.2, lr2=0.1, edge_rounds=10, gamma1=0.001, gamma2=0.001, floor=0.2
    ),
}
LARGEST = {"name": "auto", "keep": 0.1, "update": True, "feedback": True}
CODECS: dict[str, Any] = {
    "dense": "dense",
    "bitmap": "bitmap",
    "coo": "coo",
    "auto": "auto",
    "dense_f16": "dense_f16",
    "dense_bf16": "dense_bf16",
    "int8": "int8",
    "int4": "int4",
    "int4, up: update, feedback": {
        "down": "int8",
        "up": {"name": "int4", "update": True, "feedback": True},
    },
    "int8, up: stochastic update": {
        "down": "int8",
        "up": {"name": "int8", "rounding": "stochastic", "update": True},
    },
    "int8, up: largest 10 % of the update, feedback": {"down": "int8", "up": LARGEST},
}
LOSSLESS = ("bitmap", "coo", "auto")


def experiment(algorithm: covey.Algorithm, codec: Any, seed: int) -> covey.Experiment:
    """One method with one codec on one seed."""
    shards = covey.data.mnist(partition="labels", devices=20, labels=5, seed=seed)
    tree, _ = algorithm.fit(covey.Tree.grouped([5] * 4))
    links = codec if isinstance(codec, str) else dict.fromkeys(tree.links, codec)
    plain: dict[str, Any] = {"rounds": ROUNDS, "seed": seed, "codec": links, "score_every": 2}
    return covey.Experiment(algorithm, shards, covey.models.mlp(784, 100, 10), tree, **plain)


def reach(algorithm: covey.Algorithm, codec: Any, seed: int) -> dict[str, Any]:
    """For each target, the round that passed it and the MB of the server's links and of those below
    until then.
    """
    run = covey.run(experiment(algorithm, codec, seed))
    top, *below = run.runtime.tree.links
    out: dict[str, Any] = {}
    sent = under = 0
    for record in run:
        sent += record.bytes(top)
        under += sum(record.bytes(link) for link in below)
        wanted = {name: target for name, target in TARGETS.items() if name in record.models}
        for name, target in wanted.items():
            if name not in out and (record.accuracy(name, "validation") or 0.0) >= target:
                out[name] = {"round": record.round + 1, "MB": sent / 1e6, "below": under / 1e6}
        if record.models and len(out) == len(wanted):
            break
    return out


def main() -> None:
    """A table in Markdown: MB on the server's links until each target, and the round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write every figure of every seed here")
    asked = parser.parse_args()
    every: dict[str, list[dict[str, Any]]] = {}
    print(
        "| method | codec | global 85 %: MB | round | MB below | personal 90 %: MB | round | MB below |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, algorithm in METHODS.items():
        for title, codec in CODECS.items():
            if title in LOSSLESS and name != "sFedHP, sparse":
                continue  # without zeros they send dense messages
            began = time.perf_counter()
            try:
                found = [reach(algorithm, codec, seed) for seed in range(asked.seeds)]
            except covey.CoveyError as error:
                print(f"| {name} | {title} | {error} | | | | | |", flush=True)
                continue
            every[f"{name}; {title}"] = found
            cells = [
                _cell(found, model, key) for model in TARGETS for key in ("MB", "round", "below")
            ]
            print("| " + " | ".join([name, title, *cells]) + " |", flush=True)
            print(
                f"# {name}, {title}: {time.perf_counter() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            if asked.json:
                asked.json.write_text(json.dumps(every, indent=1) + "\n")


def _cell(seeds: list[dict[str, Any]], model: str, key: str) -> str:
    values = [seed[model][key] for seed in seeds if model in seed]
    if not values:
        return "-"
    missing = f" ({len(values)} of {len(seeds)})" if len(values) < len(seeds) else ""
    return f"{statistics.mean(values):.{0 if key == 'round' else 1}f}{missing}"


if __name__ == "__main__":
    main()
