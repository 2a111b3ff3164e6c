"""Language models of characters, split by speaker: four methods on an LSTM and on a transformer.

    python -m experiments.sequences.run lstm
    python -m experiments.sequences.run transformer
    python -m experiments.sequences.run table

Every method takes 20 gradients per device and round, of 8 sequences each. Each gets four settings,
which run on the first seed and are judged by the perplexity on validation data; one that diverges
is not the best. The best setting runs on three seeds. Each seed draws other speakers, other texts
and another start. The reported round is the one with the best perplexity on validation data.
Finished runs are kept in `lstm.json` and `transformer.json`.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import covey
from covey import Algorithm, Experiment, Tree, models
from covey.algorithms import FedAvg, FineTune, Local, PFedMe
from covey.data import NO_TARGET, Shards, speakers
from covey.errors import DivergedError

DEVICES = 12
CHARACTERS = 2000
LENGTH = 24
ROUNDS = 24
SEEDS = 3
FOLDER = Path(__file__).parent

STEPS = {"lstm": (2.0, 4.0, 8.0, 16.0), "transformer": (0.25, 0.5, 1.0, 2.0)}
"""The step sizes that are tried."""
REPORTED = {"Local": "personal", "FineTune": "personal", "FedAvg": "global", "PFedMe": "personal"}


def local(lr: float) -> Algorithm:
    """Every device alone."""
    return Local(steps=20, lr=lr, batch=8)


def fedavg(lr: float) -> Algorithm:
    """One model for all."""
    return FedAvg(steps=20, lr=lr, batch=8)


def finetune(lr: float) -> Algorithm:
    """FedAvg with half of the steps; the others tune the model that a device received."""
    return FineTune(steps=10, lr=lr, tune_steps=10, tune_lr=lr, batch=8)


def pfedme(lr: float, lam: float) -> Algorithm:
    """Four local rounds of five steps; a device sends its personal model (lr * lam = 1)."""
    return PFedMe(lam=lam, lr=1 / lam, personal_lr=lr, local_rounds=4, steps=5, batch=8)


def settings(kind: str) -> dict[str, list[Algorithm]]:
    """The four settings of every method."""
    steps = STEPS[kind]
    of_one_step: dict[str, Callable[[float], Algorithm]] = {
        "Local": local,
        "FedAvg": fedavg,
        "FineTune": finetune,
    }
    out = {name: [make(lr) for lr in steps] for name, make in of_one_step.items()}
    weak = [pfedme(lr, 0.02) for lr in steps[1:]]
    out["PFedMe"] = [pfedme(steps[1], 0.1), *weak]
    return out


def text(seed: int) -> Shards:
    """The speakers of a seed."""
    return speakers(devices=DEVICES, characters=CHARACTERS, length=LENGTH, seed=seed)


def model(kind: str, tokens: int) -> nn.Module:
    """The network."""
    if kind == "lstm":
        return models.lstm(tokens, tokens, width=16, hidden=32)
    return models.transformer(tokens, tokens, shape=(LENGTH,), width=32, heads=2, layers=2, feed=2)


def trained(kind: str, name: str, algorithm: Algorithm, seed: int) -> dict[str, float]:
    """Perplexities and accuracy of one run in the round that validation data choose."""
    data = text(seed)
    assert data.tokens is not None
    experiment = Experiment(
        algorithm,
        data,
        model(kind, data.tokens),
        Tree.flat(DEVICES),
        rounds=ROUNDS,
        score_every=3,
        seed=seed,
        workers=1,
    )
    run = covey.run(experiment)
    try:
        for _ in run:
            pass
    except DivergedError:
        return {"validation": 1e9}
    reported = REPORTED[name]
    scored = [record for record in run.history if record.models]
    best = max(scored, key=lambda record: record.models[reported].quality("validation"))
    scores = best.models[reported].scores
    out = {
        "validation": scores["validation"].perplexity_fallback,
        "test": scores["test"].perplexity_fallback,
        "accuracy": scores["test"].accuracy_fallback,
        "round": best.round + 1,
        "gradients": sum(record.gradients for record in run.history),
    }
    return {key: float(value or 0.0) for key, value in out.items()}


def references(seed: int) -> dict[str, float]:
    """Perplexities on test data of models without context.

    Counts are those of the training parts, plus one of every character.
    """
    data = text(seed)
    counts = torch.from_numpy(data.labels()).double()[:, 1:]  # no target is token 0
    pooled = counts.sum(0) + 1
    of_all = (pooled / pooled.sum()).log().expand(DEVICES, -1)
    own = counts + 1
    of_each = (own / own.sum(1, keepdim=True)).log()
    return {
        "uniform": float(counts.shape[1]),
        "unigram": _perplexity(data, of_all),
        "unigram of each": _perplexity(data, of_each),
    }


def _perplexity(data: Shards, logs: torch.Tensor) -> float:
    total = 0.0
    count = 0
    for device in range(data.devices):
        targets = data.y[data.test.held(device)]
        targets = targets[targets != NO_TARGET] - 1
        total -= float(logs[device][targets].sum())
        count += len(targets)
    return math.exp(total / count)


def measure(kind: str) -> None:
    """Run what is missing."""
    for name, choices in settings(kind).items():
        trials = [_kept(kind, name, choice, 0) for choice in choices]
        perplexities = [trial["validation"] for trial in trials]
        best = choices[perplexities.index(min(perplexities))]
        for seed in range(1, SEEDS):
            _kept(kind, name, best, seed)


def _kept(kind: str, name: str, algorithm: Algorithm, seed: int) -> dict[str, float]:
    """A run's figures, from the file where they are there."""
    path = FOLDER / f"{kind}.json"
    results: dict[str, dict[str, float]] = {}
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
    key = f"{algorithm} seed={seed}"
    if key not in results:
        results[key] = trained(kind, name, algorithm, seed)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(kind, key, results[key], flush=True)
    return results[key]


def table() -> None:
    """The table of RESULTS.md."""
    by_seed = [references(seed) for seed in range(SEEDS)]
    print("| model | method | test perplexity | test accuracy % | setting |")
    print("|---|---|---|---|---|")
    for name in by_seed[0]:
        print(f"| no context | {name} | {_spread([one[name] for one in by_seed])} | | |")
    for kind in STEPS:
        for name, choices in settings(kind).items():
            trials = [_kept(kind, name, choice, 0) for choice in choices]
            perplexities = [trial["validation"] for trial in trials]
            best = choices[perplexities.index(min(perplexities))]
            runs = [_kept(kind, name, best, seed) for seed in range(SEEDS)]
            perplexity = _spread([run["test"] for run in runs])
            accuracy = _spread([100 * run["accuracy"] for run in runs])
            print(f"| {kind} | {name} | {perplexity} | {accuracy} | {_setting(best)} |")


def _setting(algorithm: Any) -> str:
    if isinstance(algorithm, PFedMe):
        return f"personal_lr = {algorithm.personal_lr:g}, lam = {algorithm.lam:g}"
    return f"lr = {algorithm.lr:g}"


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    for word in sys.argv[1:]:
        if word == "table":
            table()
        else:
            measure(word)
