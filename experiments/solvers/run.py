"""What solvers buy: FedAvg with each of them on Fashion-MNIST, beside Local and FineTune.

`python -m experiments.solvers.run OUT.json --device cuda --data-dir DIR --share k/n`: 50 devices of
700 images with two labels each, a network of 64 hidden units. All devices take part in all of 80
rounds, with 20 steps of 20 images each. Every method is run at every step size of its grid on
seeds 0 to 2, which run side by side and have partitions, weights and draws of their own. The mean
validation accuracy of the seeds chooses the step size, and that of a seed chooses its round. With
`--have RESULTS.json` the runs in that file are left out, and the shares are of the others. The
files of shares are put together by `python -m experiments.solvers.run RESULTS.json --merge FILE...`
which also prints the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import covey
from covey.algorithms import FedAdam, FedAvg, FedAvgM, FedYogi, FineTune, Local
from covey.runs.selection import select

DEVICES = 50
DEALT = 100
"""Devices that all images are dealt to; the first half of them take part."""
ROUNDS = 80
STEPS = 20
BATCH = 20
SEEDS = (0, 1, 2)

PLAIN = (0.01, 0.03, 0.1, 0.3, 1.0)
SMALL = (0.003, 0.01, 0.03, 0.1, 0.3)
TINY = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03)


@dataclass(frozen=True)
class Method:
    """An algorithm with a solver, the step sizes to try, and the model that counts."""

    algorithm: type[covey.Algorithm] = FedAvg
    solver: Mapping[str, Any] = field(default_factory=dict)
    rates: Sequence[float] = PLAIN
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "global"


MOMENTUM = {"momentum": 0.9}
METHODS: dict[str, Method] = {
    "plain sgd": Method(),
    "sgd, cosine": Method(solver={"schedule": "cosine"}),
    "sgd, step": Method(solver={"schedule": "step"}),
    "sgd, clip 1": Method(solver={"clip": 1.0}, rates=(*PLAIN, 3.0)),
    "sgd, 1 epoch": Method(solver={"epochs": 1}),
    "momentum": Method(solver=MOMENTUM, rates=SMALL),
    "nesterov": Method(solver={**MOMENTUM, "nesterov": True}, rates=SMALL),
    "momentum, cosine": Method(solver={**MOMENTUM, "schedule": "cosine"}, rates=SMALL),
    "momentum, clip 1": Method(solver={**MOMENTUM, "clip": 1.0}, rates=SMALL),
    "momentum, kept": Method(solver={**MOMENTUM, "state": "kept"}, rates=SMALL),
    "adam": Method(solver={"name": "adam"}, rates=TINY),
    "adam, kept": Method(solver={"name": "adam", "state": "kept"}, rates=TINY),
    "adam, cosine": Method(solver={"name": "adam", "schedule": "cosine"}, rates=TINY),
    "adamw, decay 0.01": Method(solver={"name": "adamw", "decay": 0.01}, rates=TINY),
    "FedAvgM": Method(FedAvgM, rates=SMALL),
    "FedAdam, server 0.03": Method(FedAdam, rates=SMALL),
    "FedAdam, server 0.01": Method(FedAdam, rates=SMALL, settings={"server_lr": 0.01}),
    "FedYogi, server 0.03": Method(FedYogi, rates=SMALL),
    "FedYogi, server 0.01": Method(FedYogi, rates=SMALL, settings={"server_lr": 0.01}),
    "Local": Method(Local, model="personal"),
    "Local, momentum": Method(Local, solver=MOMENTUM, rates=SMALL, model="personal"),
    "Local, momentum, kept": Method(
        Local, solver={**MOMENTUM, "state": "kept"}, rates=SMALL, model="personal"
    ),
    "FineTune": Method(FineTune, model="personal"),
    "FineTune, momentum": Method(FineTune, solver=MOMENTUM, rates=SMALL, model="personal"),
}


def jobs() -> list[tuple[str, float]]:
    """Every method at every step size of its grid."""
    return [(name, rate) for name, method in METHODS.items() for rate in method.rates]


def experiment(name: str, rate: float, seed: int, options: argparse.Namespace) -> covey.Experiment:
    """One method at one step size on one seed."""
    method = METHODS[name]
    settings = {"steps": STEPS, "lr": rate, "batch": BATCH, **method.settings}
    if method.algorithm is FineTune:
        settings["tune_lr"] = rate
    dealt = covey.data.fashion_mnist(
        partition="labels", devices=DEALT, data_dir=options.data_dir, seed=seed
    )
    return covey.Experiment(
        method.algorithm(**settings),
        dealt.chosen(range(DEVICES)),
        covey.models.mlp(784, 64, 10),
        covey.Tree.flat(DEVICES),
        rounds=options.rounds,
        seed=seed,
        score_every=4,
        device=options.device,
        solver=dict(method.solver),
    )


def result(name: str, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """Accuracies of every seed in percent, in the round chosen on validation images."""
    began = time.monotonic()
    together = covey.runs([experiment(name, rate, seed, options) for seed in SEEDS])
    histories = list(zip(*together, strict=True))
    model = METHODS[name].model
    out: dict[str, Any] = {"validation": [], "test": [], "last": [], "round": []}
    for history in histories:
        chosen = select(history, model)
        out["validation"].append(accuracy(chosen.chosen, model, "validation"))
        out["test"].append(accuracy(chosen.chosen, model, "test"))
        out["last"].append(accuracy(chosen.last, model, "test"))
        out["round"].append(chosen.chosen.round + 1)
    out["seconds"] = round(time.monotonic() - began, 1)
    return out


def accuracy(record: covey.Round, model: str, part: str) -> float:
    """Of a model in a round, in percent."""
    return 100 * (record.models[model].scores[part].accuracy or 0.0)


def train(path: Path, options: argparse.Namespace) -> None:
    """Every result of this share that the file does not have yet."""
    results: dict[str, Any] = read(path)
    part, parts = map(int, options.share.split("/"))
    have = read(options.have) if options.have else {}
    missing = [job for job in jobs() if key_of(*job) not in have]
    for name, rate in missing[part::parts]:
        key = key_of(name, rate)
        if key in results:
            continue
        results[key] = result(name, rate, options)
        write(path, results)
        print(key, results[key], flush=True)


def key_of(name: str, rate: float) -> str:
    """The name of a result."""
    return f"{name} | {rate:g}"


def read(path: Path) -> dict[str, Any]:
    """The results in a file; none if there is no file."""
    if not path.exists():
        return {}
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def write(path: Path, results: Mapping[str, Any]) -> None:
    """One line per result."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in results.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def merge(path: Path, files: Sequence[str]) -> None:
    """The results of all files into one, in the order of the methods; then the table."""
    results = read(path)
    for file in files:
        results.update(read(Path(file)))
    order = {key_of(*job): number for number, job in enumerate(jobs())}
    results = dict(sorted(results.items(), key=lambda item: order[item[0]]))
    write(path, results)
    print(table(results))


def table(results: Mapping[str, Any]) -> str:
    """A line per method: mean and standard deviation over seeds at the step size chosen."""
    lines = [
        "| method | step sizes tried | chosen | test % | last round % | over plain sgd |",
        "|---|---|---|---|---|---|",
    ]
    plain = chosen_rate("plain sgd", results)
    for name, method in METHODS.items():
        rate = chosen_rate(name, results)
        if rate is None:
            continue
        found = results[key_of(name, rate)]
        tried = ", ".join(f"{rate:g}" for rate in method.rates if key_of(name, rate) in results)
        cells = [name, tried, f"{rate:g}", spread(found["test"]), spread(found["last"])]
        if plain is not None and method.model == "global" and name != "plain sgd":
            base = results[key_of("plain sgd", plain)]["test"]
            cells.append(spread([a - b for a, b in zip(found["test"], base, strict=True)]))
        else:
            cells.append("")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def chosen_rate(name: str, results: Mapping[str, Any]) -> float | None:
    """The step size with the best mean validation accuracy; None if none has a result."""
    tried = [rate for rate in METHODS[name].rates if key_of(name, rate) in results]
    if not tried:
        return None
    return max(tried, key=lambda rate: statistics.mean(results[key_of(name, rate)]["validation"]))


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def main() -> None:
    """Train a share, or merge the files of shares and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="the file of results")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--data-dir", help="the data folder; default: COVEY_DATA")
    parser.add_argument("--share", default="0/1", help="k/n: every n-th run from the k-th")
    parser.add_argument("--have", type=Path, help="a file of results that are not run again")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="files of shares")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.merge:
        merge(options.out, options.merge)
    else:
        train(options.out, options)


if __name__ == "__main__":
    main()
