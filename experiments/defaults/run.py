"""The law of defaults on three seeds, before and after: `python -m experiments.defaults.run`.

`BEFORE` holds the defaults that were changed. A cell gives the mean test accuracy over the seeds in
the last round and, after the sign, the least that the law allows; what is below it is bold.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from covey import Algorithm
from covey.algorithms import (
    FedAlt,
    FedAvg,
    FedPer,
    FedProx,
    FedRep,
    FedSim,
    HeurFedAMP,
    PerFedAvg,
    PerMFL,
    PFedBayes,
    PFedMe,
    Pruned,
    SFedHP,
)
from experiments.defaults.law import (
    EXCEPTIONS,
    ROUNDS,
    SLOW,
    WORLDS,
    YARDSTICKS,
    Limit,
    Scores,
    found,
    limits,
    rounds_of,
    scores,
    worlds_of,
)

SEEDS = (0, 1, 2)
SHARED = {"private": ""}  # what was done where an experiment named no private layers
BEFORE: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "FedAvg": (FedAvg(lr=0.02), {}),
    "FedProx": (FedProx(lr=0.02), {}),
    "PerFedAvg": (PerFedAvg(lr=0.003), {}),
    "HeurFedAMP": (HeurFedAMP(lam=5.0), {}),
    "PFedMe": (PFedMe(lam=15.0, lr=0.005, personal_lr=0.09), {}),
    "PerMFL": (PerMFL(lam=0.5, lr=0.01, edge_lr=0.03), {}),
    "SFedHP": (SFedHP(lam1=25.0, lam2=25.0, lr1=0.05, lr2=0.05), {}),
    "Pruned": (Pruned(lr=0.001, personal_lr=0.001), SHARED),
    "PFedBayes": (PFedBayes(zeta=10.0, lr=0.001, personal_lr=0.001), {}),
    "FedPer": (FedPer(), SHARED),
    "FedRep": (FedRep(), SHARED),
    "FedAlt": (FedAlt(), SHARED),
    "FedSim": (FedSim(), SHARED),
}


@dataclass(frozen=True)
class Job:
    """One algorithm on one population and seed; `when` is "before", "after" or "yardstick"."""

    when: str
    name: str
    world: str
    seed: int
    rounds: int

    def algorithm(self) -> tuple[Algorithm, dict[str, Any]]:
        """The algorithm and what its experiment changes."""
        if self.when == "before":
            return BEFORE[self.name]
        if self.when == "yardstick":
            return YARDSTICKS[self.name], {}
        by_name = {cls.__name__: cls for cls in found()}
        return by_name[self.name](), {}


def jobs(seeds: tuple[int, ...]) -> Iterator[Job]:
    """All runs, each once."""
    for seed in seeds:
        for world in WORLDS:
            for name in YARDSTICKS:
                yield Job("yardstick", name, world, seed, ROUNDS)
        for name in YARDSTICKS:
            yield Job("yardstick", name, "digits", seed, rounds_of(SLOW[0]))
        for cls in found():
            name = cls.__name__
            if name in EXCEPTIONS:
                continue
            for world in worlds_of(name):
                yield Job("after", name, world, seed, rounds_of(name))
                if name in BEFORE:
                    yield Job("before", name, world, seed, rounds_of(name))


def run(job: Job) -> tuple[Job, Scores, float]:
    """The scores of one job, and its seconds."""
    torch.set_num_threads(1)
    algorithm, changes = job.algorithm()
    began = time.perf_counter()
    result = scores(algorithm, WORLDS[job.world], job.seed, job.rounds, **changes)
    return job, result, time.perf_counter() - began


Key = tuple[str, str, str, int]
"""When, name, world and rounds of runs that differ in their seed alone."""


def means(results: dict[Job, Scores]) -> dict[Key, Scores]:
    """Scores as means over the seeds."""
    by_key: dict[Key, list[Scores]] = {}
    for job, result in results.items():
        by_key.setdefault((job.when, job.name, job.world, job.rounds), []).append(result)
    return {
        key: {model: statistics.fmean(seed[model] for seed in each) for model in each[0]}
        for key, each in by_key.items()
    }


def judged(mean: dict[Key, Scores], when: str, name: str, world: str) -> list[Limit] | None:
    """What the law demands, and what was reached; None where nothing was run."""
    rounds = rounds_of(name)
    reached = mean.get((when, name, world, rounds))
    if reached is None:
        return None
    yardsticks = {stick: mean["yardstick", stick, world, rounds] for stick in YARDSTICKS}
    return limits(name, world, reached, yardsticks)


def cell(demands: list[Limit] | None) -> str:
    """Every model that the law names, with the strictest demand on it."""
    if demands is None:
        return ""
    strictest: dict[str, Limit] = {}
    for demand in demands:
        if demand.model not in strictest or demand.least > strictest[demand.model].least:
            strictest[demand.model] = demand
    return ", ".join(shown(demand) for demand in strictest.values())


def shown(demand: Limit) -> str:
    """As `personal 98.7 (95.8)`, bold where the law is broken."""
    score = f"{demand.score:.1f}" if demand.holds else f"**{demand.score:.1f}**"
    return f"{demand.model} {score} ({demand.least:.1f})"


def table(mean: dict[Key, Scores]) -> Iterator[str]:
    """The lines of the Markdown table."""
    heads = ["method", *(f"{world}, {when}" for world in WORLDS for when in ("before", "now"))]
    yield "| " + " | ".join([*heads, "now"]) + " |"
    yield "|" + "---|" * (len(heads) + 1)
    for cls in found():
        name = cls.__name__
        if name in EXCEPTIONS:
            continue
        cells = [
            cell(judged(mean, when, name, world))
            for world in WORLDS
            for when in ("before", "after")
        ]
        demands = [
            demand for world in WORLDS for demand in judged(mean, "after", name, world) or []
        ]
        verdict = "holds" if all(demand.holds for demand in demands) else "**fails**"
        yield "| " + " | ".join([name, *cells, verdict]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where to write all scores")
    asked = parser.parse_args()
    results: dict[Job, Scores] = {}
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        for job, result, seconds in pool.imap_unordered(run, list(jobs(tuple(asked.seeds)))):
            results[job] = result
            print(f"# {job} {seconds:.1f} s {result}", file=sys.stderr, flush=True)
    if asked.json is not None:
        lines = [{**vars(job), "scores": result} for job, result in results.items()]
        asked.json.write_text(json.dumps(lines, indent=1))
    print("\n".join(table(means(results))))


if __name__ == "__main__":
    main()
