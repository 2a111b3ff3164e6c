"""First rows of the papers' tables: `python -m experiments.papers.run pfedme fedmac [--device cuda]
[--data-dir DIR]`.

A row is one method on one population; its seeds run side by side, each with its own weights,
partition and draws. Two figures per cell: best round on test after training on 75 % ("paper", as
the papers print it), and the round chosen on validation. Needs torch, numpy and safetensors alone.
Every row is written when it is done; one that is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

import covey
from covey import Algorithm, Experiment, Tree, data, models
from covey.algorithms import (
    FedAvg,
    FedMac,
    FedProx,
    FineTune,
    HeurFedAMP,
    HierFAVG,
    Local,
    PerFedAvg,
    PerMFL,
    PFedMe,
)
from covey.data import Shards
from covey.runs.selection import select

Protocol = Literal["paper", "honest"]
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One method on one population, and what the paper prints for each of its models: (mean,
    deviation).
    """

    name: str
    algorithm: Algorithm
    shards: Callable[[int, str | None], Shards]
    network: Callable[[], nn.Module]
    devices: int
    rounds: int
    printed: dict[str, tuple[float, float | None]]
    edges: Callable[[Shards, int], tuple[Shards, Tree]] | None = (
        None  # for a tree; None: all under the server
    )


def _mnist(partition: str) -> Callable[[int, str | None], Shards]:
    def shards(seed: int, folder: str | None) -> Shards:
        return data.mnist(partition=partition, normalise="paper", seed=seed, data_dir=folder)

    return shards


def _fashion(seed: int, folder: str | None) -> Shards:
    return data.fashion_mnist(partition="disjoint", normalise="paper", seed=seed, data_dir=folder)


def _synthetic(seed: int, folder: str | None) -> Shards:
    return data.synthetic(devices=100, sizes="pfedme", seed=seed)


def pfedme() -> Iterator[Row]:
    """Table 1 of pFedMe: S = 5 of 20 on MNIST (T = 800), 10 of 100 on Synthetic (T = 600); decay
    .001 as in its code.
    """
    settings: dict[tuple[str, str], dict[str, Any]] = {
        ("mnist", "mlr"): {
            "fedavg": 0.02,
            "per": (0.03, 0.003),
            "lam": 15.0,
            "lr": 0.01,
            "personal_lr": 0.1,
        },
        ("mnist", "dnn"): {
            "fedavg": 0.02,
            "per": (0.02, 0.001),
            "lam": 30.0,
            "lr": 0.01,
            "personal_lr": 0.05,
        },
        ("synthetic", "mlr"): {
            "fedavg": 0.02,
            "per": (0.02, 0.002),
            "lam": 20.0,
            "lr": 0.01,
            "personal_lr": 0.01,
        },
        ("synthetic", "dnn"): {
            "fedavg": 0.03,
            "per": (0.01, 0.001),
            "lam": 30.0,
            "lr": 0.01,
            "personal_lr": 0.01,
        },
    }
    printed = {
        ("mnist", "mlr"): ((93.96, 0.02), (94.37, 0.04), (94.18, 0.06), (95.62, 0.04)),
        ("mnist", "dnn"): ((98.79, 0.03), (98.90, 0.02), (99.16, 0.03), (99.46, 0.01)),
        ("synthetic", "mlr"): ((77.62, 0.11), (81.49, 0.09), (78.65, 0.25), (83.20, 0.06)),
        ("synthetic", "dnn"): ((83.64, 0.22), (85.01, 0.10), (84.17, 0.35), (86.36, 0.15)),
    }
    populations = {
        "legacy2020": ("mnist", _mnist("legacy2020")),
        "disjoint": ("mnist", _mnist("disjoint")),
    }
    for place, (kind, shards) in {**populations, "synthetic": ("synthetic", _synthetic)}.items():
        for model in ("mlr", "dnn"):
            s, (avg, per, gm, pm) = settings[kind, model], printed[kind, model]
            inputs, hidden = (784, 100) if kind == "mnist" else (60, 20)
            network = (
                (lambda i=inputs: models.linear(i, 10))
                if model == "mlr"
                else (lambda i=inputs, h=hidden: models.mlp(i, h, 10))
            )
            common: dict[str, Any] = {
                "sample": 5 if kind == "mnist" else 10,
                "batch": 20,
                "weight": "samples",
            }
            size = (20, 800) if kind == "mnist" else (100, 600)
            alpha, beta = s["per"]
            methods: dict[str, tuple[Algorithm, dict[str, tuple[float, float | None]]]] = {
                "fedavg": (FedAvg(steps=20, lr=s["fedavg"], **common), {"global": avg}),
                "perfedavg": (PerFedAvg(alpha=alpha, lr=beta, steps=20, order="first", **common), {"personal": per}),
                "pfedme": (
                    PFedMe(lam=s["lam"], lr=s["lr"], personal_lr=s["personal_lr"], beta=2.0, local_rounds=20, steps=5,
                           weight_decay=0.001, **common),
                    {"global": gm, "local": pm, "personal": pm},
                ),
                "local": (Local(steps=20, lr=s["fedavg"], batch=20), {}),
                "finetune": (FineTune(steps=20, lr=s["fedavg"], tune_steps=20, tune_lr=s["fedavg"], **common), {}),
            }  # fmt: skip
            for name, (algorithm, cells) in methods.items():
                yield Row(
                    f"table1/{place}/{model}/{name}", algorithm, shards, network, *size, cells
                )


def fedmac() -> Iterator[Row]:
    """Table 1 of FedMac: S = 10 of 20 (20 of 100 on Synthetic), T = 800, R = 20, one inner step for
    every method.
    """
    columns = (
        "fedavg",
        "fedprox",
        "heurfedamp",
        "perfedavg",
        "pfedme GM",
        "pfedme PM",
        "fedmac GM",
        "fedmac PM",
    )
    printed = {
        "mnist": (96.8603, 96.8564, 98.4425, 98.1474, 96.8698, 98.9223, 96.8964, 98.9547),
        "fmnist": (85.6949, 85.6569, 99.1756, 99.3051, 84.9582, 99.2327, 85.7958, 99.3698),
        "synthetic": (84.6333, 84.5475, 84.2741, 88.7006, 83.5622, 87.4969, 84.8889, 89.0583),
    }
    populations = {"mnist": _mnist("disjoint"), "fmnist": _fashion, "synthetic": _synthetic}
    for place, shards in populations.items():
        cell = {
            column: (value, None) for column, value in zip(columns, printed[place], strict=True)
        }
        inputs, hidden = (60, 20) if place == "synthetic" else (784, 100)
        sample, devices = (20, 100) if place == "synthetic" else (10, 20)
        common: dict[str, Any] = {"sample": sample, "batch": 20, "weight": "samples"}
        methods: dict[str, tuple[Algorithm, dict[str, tuple[float, float | None]]]] = {
            "fedavg": (FedAvg(steps=20, lr=0.02, **common), {"global": cell["fedavg"]}),
            "fedprox": (FedProx(mu=1e-4, steps=20, lr=0.02, **common), {"global": cell["fedprox"]}),
            "heurfedamp": (
                HeurFedAMP(self_weight=0.5, sigma=50.0, lam=5.0, steps=20, lr=0.05, sample=sample, batch=20),
                {"personal": cell["heurfedamp"]},
            ),
            "perfedavg": (PerFedAvg(alpha=0.05, lr=0.02, steps=20, order="first", **common), {"personal": cell["perfedavg"]}),
            "pfedme": (
                PFedMe(lam=15.0, lr=0.02, personal_lr=0.05, beta=1.0, local_rounds=20, steps=1, **common),
                {"global": cell["pfedme GM"], "personal": cell["pfedme PM"]},
            ),
            "fedmac": (
                FedMac(lam=1e-4, lr=3000.0, personal_lr=0.05, beta=1.0, local_rounds=20, steps=1, **common),
                {"global": cell["fedmac GM"], "personal": cell["fedmac PM"]},
            ),
            "local": (Local(steps=20, lr=0.05, batch=20), {}),
            "finetune": (FineTune(steps=20, lr=0.02, tune_steps=20, tune_lr=0.02, **common), {}),
        }  # fmt: skip
        for name, (algorithm, cells) in methods.items():
            yield Row(
                f"table1/{place}/{name}",
                algorithm,
                shards,
                lambda i=inputs, h=hidden: models.mlp(i, h, 10),
                devices,
                800,
                cells,
            )


def _permfl_set(name: str) -> Callable[[int, str | None], Shards]:
    load = data.mnist if name == "mnist" else data.fashion_mnist

    def shards(seed: int, folder: str | None) -> Shards:
        return load(partition="permfl", seed=seed, data_dir=folder)

    return shards


def permfl() -> Iterator[Row]:
    """PerMFL's Tables 1 and 2, linear models on MNIST and Fashion-MNIST.

    40 devices in 4 teams of 10, and in the two teams of Table 2 by labels. Table 1's settings are not printed:
    all rows have those of Table 2 (T = 400, K = 10, L = 20, alpha .01, lambda .5, gamma 1.5, beta .6) and eta .03, the
    eta of its figures; batches of 124 as in its code.
    """
    table1 = {
        "mnist": {
            "fedavg": (84.87, 0.054),
            "hierfavg": (87.41, 6.35),
            "GM": (86.92, 0.013),
            "PM": (96.77, 0.0),
        },
        "fmnist": {
            "fedavg": (79.80, 0.002),
            "hierfavg": (81.653, 1.8),
            "GM": (83.71, 0.001),
            "PM": (96.49, 0.0),
        },
    }
    table2 = {
        ("mnist", "worst"): (96.86, 80.48),
        ("mnist", "average"): (97.01, 80.86),
        ("fmnist", "worst"): (97.14, 76.18),
        ("fmnist", "average"): (96.72, 74.45),
    }
    steps: dict[str, Any] = {"steps": 20, "lr": 0.01, "batch": 124}
    proposed = PerMFL(lam=0.5, gamma=1.5, beta=0.6, edge_lr=0.03, edge_rounds=10, **steps)
    for name, cell in table1.items():
        methods: dict[str, tuple[Algorithm, dict[str, tuple[float, float | None]]]] = {
            "permfl": (proposed, {"global": cell["GM"], "personal": cell["PM"]}),
            "hierfavg": (HierFAVG(edge_rounds=10, **steps), {"global": cell["hierfavg"]}),
            "fedavg": (FedAvg(**steps), {"global": cell["fedavg"]}),
            "local": (Local(**steps), {}),
            "finetune": (FineTune(tune_steps=20, tune_lr=0.01, **steps), {}),
        }
        for method, (algorithm, cells) in methods.items():
            yield Row(
                f"table1/{name}/linear/{method}", algorithm, _permfl_set(name), lambda: models.linear(784, 10),
                40, 400, cells, lambda shards, seed: data.edges.random(shards, 4, seed),
            )  # fmt: skip
    sets = {"worst": data.edges.WORST, "average": data.edges.AVERAGE}
    for (name, teams), (personal, server) in table2.items():
        yield Row(
            f"table2/{name}/linear/{teams}", proposed, _permfl_set(name), lambda: models.linear(784, 10), 40, 400,
            {"global": (server, None), "personal": (personal, None)},
            lambda shards, seed, teams=teams: data.edges.by_label(shards, sets[teams]),
        )  # fmt: skip


PAPERS: dict[str, Callable[[], Iterator[Row]]] = {
    "pfedme": pfedme,
    "fedmac": fedmac,
    "permfl": permfl,
}


def figures(
    row: Row, protocol: Protocol, seeds: int, device: str, folder: str | None, rounds: int | None
) -> dict[str, Any]:
    """Per model: the best round on test, or the round chosen on validation, of every seed."""
    experiments = []
    for seed in range(seeds):
        shards, tree = row.shards(seed, folder), Tree.flat(row.devices)
        if row.edges is not None:
            shards, tree = row.edges(shards, seed)
        experiments.append(
            Experiment(
                row.algorithm, shards, row.network(), tree, rounds or row.rounds, seed=seed,
                idle="train" if row.algorithm.idle_trains else "skip", batches="uniform", protocol=protocol, device=device,
                score_every=5, parts=("test",) if protocol == "paper" else ("validation", "test"),
            )
        )  # fmt: skip
    began = time.perf_counter()
    try:
        together = covey.runs(experiments)
        for _ in together:
            pass
        histories = [seed.history for seed in together.seeds]
    except covey.errors.ConfigError:
        histories = [tuple(covey.run(experiment)) for experiment in experiments]
    out: dict[str, Any] = {"seconds": time.perf_counter() - began}
    for model in histories[0][-1].models:
        picked = [select(history, model, protocol).chosen for history in histories]
        out[model] = [
            100 * (record.models[model].scores["test"].accuracy_fallback or 0.0)
            for record in picked
        ]
    return out


def verdict(ours: list[float], printed: tuple[float, float | None]) -> str:
    """Within a point, or two printed deviations, or not."""
    far = abs(statistics.mean(ours) - printed[0])
    if far <= 1:
        return "within 1 point"
    if printed[1] is not None and far <= 2 * printed[1]:
        return "within 2 printed sd"
    return "not reproduced"


def table(paper: str, found: dict[str, Any]) -> str:
    """All rows so far as Markdown."""
    lines = [
        "| row | model | paper | best on test | chosen on validation | seeds | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in PAPERS[paper]():
        answer = found.get(row.name)
        if answer is None:
            continue
        for model in [name for name in answer["paper"] if name != "seconds"]:
            printed = row.printed.get(model)
            cells = [_cell(answer[protocol].get(model)) for protocol in ("paper", "honest")]
            said = (
                ""
                if printed is None
                else f"{printed[0]:.2f}" + ("" if printed[1] is None else f" ± {printed[1]:.2f}")
            )
            word = "" if printed is None else verdict(answer["paper"][model], printed)
            lines.append(
                f"| {row.name} | {model} | {said} | {' | '.join(cells)} | {len(answer['paper'][model])} | {word} |"
            )
    return "\n".join(lines) + "\n"


def _cell(values: list[float] | None) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def main() -> None:
    """Run what is missing, write JSON and Markdown after every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("papers", nargs="*", default=list(PAPERS), help=f"of {', '.join(PAPERS)}")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="fewer rounds than the paper, for a look")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument(
        "--share", default="0/1", help="k/n: every n-th row from the k-th, to spread over processes"
    )
    asked = parser.parse_args()
    part, parts = map(int, asked.share.split("/"))
    for paper in asked.papers:
        path = asked.out / (f"{paper}.json" if parts == 1 else f"{paper}-{part}.json")
        found = json.loads(path.read_text()) if path.exists() else {}
        for number, row in enumerate(PAPERS[paper]()):
            if row.name in found or asked.rows not in row.name or number % parts != part:
                continue
            answer: dict[str, Any] = {"rounds": asked.rounds or row.rounds}
            for protocol in ("paper", "honest"):
                try:
                    answer[protocol] = figures(
                        row, protocol, asked.seeds, asked.device, asked.data_dir, asked.rounds
                    )
                except covey.errors.DivergedError as error:
                    answer[protocol] = {"error": str(error)}
            found[row.name] = answer
            partial = path.with_suffix(".part")
            partial.write_text(json.dumps(found, indent=1) + "\n")
            os.replace(partial, path)
            print(f"{paper} {row.name} {json.dumps(answer)}", flush=True)
        if parts == 1:
            path.with_suffix(".md").write_text(table(paper, found))


if __name__ == "__main__":
    main()
