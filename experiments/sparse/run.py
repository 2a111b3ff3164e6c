"""The sparse experiments of sFedHP (figures 3 to 5) and FedMac (figures 4 to 6) on MNIST, in bytes
that were really sent.

`COVEY_DATA=FOLDER python -m experiments.sparse.run sfedhp|fedmac|lambda|uncut|gamma|gamma_w`: 20
devices, 784-100-10, all asked, bitmap links, three seeds side by side, each with its own weights,
partition and draws; the round is chosen on validation data. Bytes are per round over the last 20
rounds, of the link that the paper counts: an edge's with the server (sFedHP), a device's with the
server (FedMac). Beside them stands what the papers' formulas give for the non-zeros that were sent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import covey
from covey.algorithms import FedMac, HierFAVG, PFedMe, SFedHP
from covey.links.meter import Meter, bitmap_bits, dense_bits, paper_bits
from covey.runs.run import Round, Seed
from covey.runs.selection import select

WINDOW = 20
SPARSE = SFedHP(lam1=25.0, lam2=25.0, gamma1=0.001, gamma2=0.001, floor=0.2, lr1=0.05, lr2=0.05)
CORRELATED = FedMac(gamma=0.001, floor=0.5, personal_lr=0.08)
Methods = dict[str, covey.Algorithm]


@dataclass(frozen=True)
class Uncut(SFedHP):
    """sFedHP whose models travel and are scored as they are, small values included."""

    def cut(self, tier: str, round: int = 0) -> float | None:
        return None


GROUPS: dict[str, tuple[Callable[[], Methods], int, int]] = {  # methods, labels per device, rounds
    "sfedhp": (
        lambda: {
            "sFedHP, gamma .001, floor 20 %, smooth l1": SPARSE,
            "sFedHP, gamma .001, floor 20 %, soft threshold": replace(SPARSE, l1="prox"),
            "sFedHP, not sparse": SFedHP(lam1=25.0, lam2=25.0, lr1=0.05, lr2=0.05),
            "pFedMe": PFedMe(lam=25.0, lr=0.05, personal_lr=0.05, steps=5),
            "pFedMe, lr .01": PFedMe(lam=25.0, lr=0.01, personal_lr=0.05, steps=5),
            "HierFAVG": HierFAVG(lr=0.05, edge_rounds=20, steps=5),
        },
        5,
        150,
    ),
    "lambda": (
        lambda: {
            f"sFedHP, gamma .008, lambda {lam:g}": replace(
                SPARSE, lam1=lam, lam2=lam, gamma1=0.008, gamma2=0.008, floor=None
            )
            for lam in (15.0, 20.0, 25.0, 30.0)
        },
        5,
        60,
    ),
    "uncut": (
        lambda: {
            f"sFedHP, gamma .008, lambda {lam:g}, not cut": Uncut(
                lam1=lam, lam2=lam, lr1=0.05, lr2=0.05, gamma1=0.008, gamma2=0.008
            )
            for lam in (15.0, 20.0, 25.0, 30.0)
        },
        5,
        60,
    ),
    "gamma": (
        lambda: {
            f"sFedHP, lambda 25, gamma {gamma:g}": replace(
                SPARSE, gamma1=gamma, gamma2=gamma, floor=None
            )
            for gamma in (0.0, 0.001, 0.003, 0.008)
        },
        5,
        60,
    ),
    "fedmac": (
        lambda: {
            "FedMac, gamma .001, floor 50 %, smooth l1": CORRELATED,
            "FedMac, gamma .001, floor 50 %, soft threshold": replace(CORRELATED, l1="prox"),
            "FedMac, not sparse": FedMac(personal_lr=0.08),
            "modified pFedMe, gamma .001": PFedMe(
                lam=15.0, lr=0.02, personal_lr=0.05, steps=1, gamma=0.001
            ),
            "modified pFedMe, gamma .003": PFedMe(
                lam=15.0, lr=0.02, personal_lr=0.05, steps=1, gamma=0.003
            ),
            "pFedMe, not sparse": PFedMe(lam=15.0, lr=0.02, personal_lr=0.05, steps=1),
        },
        2,
        200,
    ),
    "gamma_w": (
        lambda: {
            f"FedMac, gamma .001, gamma_w {gamma_w:g}": replace(
                CORRELATED, lr=2000.0, gamma_w=gamma_w, floor=None
            )
            for gamma_w in (0.0, 1e-8, 1e-7, 1e-6)
        },
        2,
        150,
    ),
}


def experiment(algorithm: covey.Algorithm, labels: int, rounds: int, seed: int) -> covey.Experiment:
    """One method on one seed."""
    shards = covey.data.mnist(partition="labels", devices=20, labels=labels, seed=seed)
    plain: dict[str, Any] = {"rounds": rounds, "seed": seed, "score_every": 5, "codec": "bitmap"}
    return covey.Experiment(
        algorithm, shards, covey.models.mlp(784, 100, 10), covey.Tree.grouped([5] * 4), **plain
    )


def figures(run: Seed) -> dict[str, Any]:
    """What one seed came to."""
    history = run.history
    top = run.runtime.tree.links[0]
    senders = run.runtime.tree.sizes[1] // run.runtime.tree.copies
    meter = Meter()
    for record in history[-WINDOW:]:
        for (link, direction, lane), traffic in record.traffic.items():
            meter.count(link, direction, lane, traffic)
    down, up = (meter.traffic(link=top, direction=way) for way in ("down", "up"))
    both = down + up
    formulas = {
        "dense": dense_bits(both.values) / 8,
        "paper": paper_bits(down, up) / 8,
        "consistent": bitmap_bits(down, up) / 8,
    }
    models = {}
    for name in history[-1].models:
        chosen = select([record for record in history if record.models], name).chosen
        model = chosen.models[name]
        models[name] = {
            "accuracy": chosen.accuracy(name),
            "last": history[-1].accuracy(name),
            "nonzeros": history[-1].models[name].nonzeros,
            "angle": model.angle,
        }
    return {
        "link": top,
        "bytes": both.bytes / WINDOW / senders,
        "dense": both.dense / WINDOW / senders,
        "total": sum(record.bytes(top) for record in history) / senders,
        "nonzeros": both.nonzeros / both.values,
        "formula": formulas["paper"] / formulas["dense"],
        "consistent": formulas["consistent"] / formulas["dense"],
        "models": models,
    }


def main() -> None:
    """Two tables in Markdown: bytes, then models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="+", choices=list(GROUPS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", type=Path, help="write every figure of every seed here")
    asked = parser.parse_args()
    every: dict[str, list[dict[str, Any]]] = {}
    for group in asked.groups:
        methods, labels, rounds = GROUPS[group]
        for name, algorithm in methods().items():
            began = time.perf_counter()
            every[name] = one(algorithm, labels, asked.rounds or rounds, asked.seeds)
            print(f"# {name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(every, indent=1) + "\n")
    _tables(every)


def one(algorithm: covey.Algorithm, labels: int, rounds: int, seeds: int) -> list[dict[str, Any]]:
    """All seeds of one method, side by side; a diverged one says so."""
    runs = covey.runs([experiment(algorithm, labels, rounds, seed) for seed in range(seeds)])
    try:
        last: tuple[Round, ...] = ()
        for records in runs:
            last = records
        assert last
    except covey.CoveyError as error:
        print(f"# {error}", file=sys.stderr)
        return [{"diverged": str(error)}]
    return [figures(run) for run in runs.seeds]


def _tables(every: dict[str, list[dict[str, Any]]]) -> None:
    heads = [
        "method",
        "link",
        "kB per node and round",
        "of dense",
        "paper's formula",
        "consistent formula",
        "non-zeros",
        "MB in all",
    ]
    print("| " + " | ".join(heads) + " |")
    print("|---|---|---|---|---|---|---|---|")
    for name, seeds in every.items():
        if "diverged" in seeds[0]:
            print(f"| {name} | {seeds[0]['diverged']} | | | | | | |")
            continue
        share = [{**seed, "share": seed["bytes"] / seed["dense"]} for seed in seeds]
        cells = [
            seeds[0]["link"],
            _mean(share, "bytes", 1e-3, 1),
            _mean(share, "share", 1, 3),
            _mean(share, "formula", 1, 3),
            _mean(share, "consistent", 1, 3),
            _mean(share, "nonzeros", 100, 1) + " %",
            _mean(share, "total", 1e-6, 1),
        ]
        print("| " + " | ".join([name, *cells]) + " |")
    print(
        "\n| method | model | test accuracy | last round | non-zeros, last round | degrees to its signs |"
    )
    print("|---|---|---|---|---|---|")
    for name, seeds in every.items():
        for model in seeds[0].get("models", {}):
            mine = [seed["models"][model] for seed in seeds]
            angle = _mean(mine, "angle", 1, 1) if mine[0]["angle"] is not None else "-"
            accuracies = f"{_mean(mine, 'accuracy', 100, 2)} | {_mean(mine, 'last', 100, 2)}"
            print(
                f"| {name} | {model} | {accuracies} | {_mean(mine, 'nonzeros', 100, 1)} % | {angle} |"
            )


def _mean(seeds: list[dict[str, Any]], key: str, scale: float, digits: int) -> str:
    values = [scale * seed[key] for seed in seeds]
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


if __name__ == "__main__":
    main()
