"""Adapters of rank 1, 4 and 16 and the full model: bytes per round and perplexity.

    python -m experiments.adapters.run
    python -m experiments.adapters.run table

It needs `transformers`. A small GPT-2 with random weights is pretrained with Adam on the pooled text
of 18 generated speakers of two dialects. Then six speakers of two other dialects learn, by Local,
FineTune, FedAvg and pFedMe. Every method takes 8 gradients per device and round, of 8 sequences
each. Each cell tries four or six step sizes on the first seed, judged by the perplexity on
validation data. The best one runs on three seeds, each with other speakers and another pretrained model.
Finished runs are kept in `results.json`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Algorithm, Experiment, Tree
from covey.algorithms import FedAvg, FedPer, FineTune, Local, PFedMe
from covey.data import NO_TARGET, Shards, speakers
from covey.errors import DivergedError

SPEAKERS = 36
LENGTH = 24
SEEN = range(18)
NEW = range(18, 36, 3)
ROUNDS = 8
SEEDS = 3
RANKS = (1, 4, 16, None)
"""None: the full model trains."""
STEPS = {False: (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4), True: (0.25, 0.5, 1.0, 2.0)}
"""The step sizes that are tried, without and with adapters."""
KEPT = Path(__file__).with_name("results.json")
Make = Callable[[float], Algorithm]


class Logits(nn.Module):
    """A language model of `transformers`, which returns one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the next token at every position."""
        out: Tensor = self.model(input_ids=x, use_cache=False).logits
        return out


def pfedme(lr: float) -> Algorithm:
    """Two local rounds of four steps; a device sends its personal model (lr * lam = 1)."""
    return PFedMe(lam=0.05, lr=20.0, personal_lr=lr, local_rounds=2, steps=4, batch=8)


METHODS: dict[str, tuple[Make, str]] = {
    "Local": (lambda lr: Local(steps=8, lr=lr, batch=8), "personal"),
    "FineTune": (
        lambda lr: FineTune(steps=4, lr=lr, tune_steps=4, tune_lr=lr, batch=8),
        "personal",
    ),
    "FedAvg": (lambda lr: FedAvg(steps=8, lr=lr, batch=8), "global"),
    "pFedMe": (pfedme, "personal"),
}
"""How to make each method with a step size, and the model that is reported."""
SPLIT: dict[str, tuple[Make, str]] = {
    "FedPer": (lambda lr: FedPer(steps=8, lr=lr, batch=8), "personal"),
}
"""The adapters of attention are averaged, those of the other layers stay on the device."""
PRIVATE = "*mlp*"


@cache
def text(seed: int) -> Shards:
    """All speakers of a seed."""
    return speakers(devices=SPEAKERS, characters=1500, length=LENGTH, seed=seed)


@cache
def pretrained(seed: int) -> nn.Module:
    """A GPT-2 that has read the text of the seen speakers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    everybody = text(seed)
    config = GPT2Config(
        vocab_size=everybody.tokens,
        n_positions=LENGTH,
        n_embd=48,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(seed)
    model = Logits(GPT2LMHeadModel(config))
    seen = everybody.chosen(SEEN)
    held = torch.cat([seen.train.held(device) for device in range(seen.devices)])
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(300):
        batch = held[torch.randint(len(held), (32,))]
        logits = model(seen.x[batch]).flatten(0, 1)
        loss = F.cross_entropy(logits, seen.y[batch].flatten(), ignore_index=NO_TARGET)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def trained(method: str, rank: int | None, lr: float, seed: int, rounds: int) -> dict[str, Any]:
    """Perplexities, bytes of a round and the engine's path of one run."""
    make, reported = {**METHODS, **SPLIT}[method]
    model = pretrained(seed)
    start: Literal["seed", "module"] = "module"
    if rank is not None:
        start = "seed"  # draws the adapters; what is frozen keeps its values
        model = covey.models.lora(model, rank=rank, layers=["*attn*", "*mlp*"])
    experiment = Experiment(
        make(lr),
        text(seed).chosen(NEW),
        model,
        Tree.flat(len(NEW)),
        rounds=rounds,
        start=start,
        score_every=2,
        private=PRIVATE if method in SPLIT else "auto",
        seed=seed,
        workers=1,
    )
    run = covey.run(experiment)
    try:
        for _ in run:
            pass
    except DivergedError:
        return {"validation": float("inf"), "test": float("inf")}
    scored = [record for record in run.history if record.models]
    best = max(scored, key=lambda record: record.models[reported].quality("validation"))
    scores = best.models[reported].scores
    return {
        "validation": scores["validation"].perplexity_fallback,
        "test": scores["test"].perplexity_fallback,
        "bytes": run.meter.bytes() / rounds,
        "parameters": run.engine["parameters"],
        "path": run.engine["path"],
    }


def before(seed: int) -> float:
    """The test perplexity of the pretrained model on the new speakers: one step of size 0."""
    score = _kept("FedAvg", None, 1e-12, seed, 1)
    return float(score["test"])


def best_step(method: str, rank: int | None) -> float:
    """The step size with the lowest perplexity on validation data of the first seed."""
    steps = STEPS[rank is not None]
    trials = [_kept(method, rank, lr, 0)["validation"] for lr in steps]
    return steps[trials.index(min(trials))]


def measure() -> None:
    """Run what is missing."""
    for seed in range(SEEDS):
        before(seed)
    for rank in RANKS:
        for method in METHODS:
            lr = best_step(method, rank)
            for seed in range(SEEDS):
                _kept(method, rank, lr, seed)
    for method in SPLIT:
        lr = best_step(method, 4)
        for seed in range(SEEDS):
            _kept(method, 4, lr, seed)


def _kept(
    method: str, rank: int | None, lr: float, seed: int, rounds: int = ROUNDS
) -> dict[str, Any]:
    """A run's figures, from the file where they are there."""
    results: dict[str, dict[str, Any]] = {}
    if KEPT.exists():
        results = json.loads(KEPT.read_text(encoding="utf-8"))
    key = f"{method} rank={rank} lr={lr:g} seed={seed} rounds={rounds}"
    if key not in results:
        results[key] = trained(method, rank, lr, seed, rounds)
        KEPT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(key, results[key], flush=True)
    return results[key]


def table() -> None:
    """The table of RESULTS.md."""
    print(f"Pretrained alone: {_spread([before(seed) for seed in range(SEEDS)])}\n")
    print("| trained | parameters | kB per round | " + " | ".join(METHODS) + " |")
    print("|---|---|---|" + "---|" * len(METHODS))
    for rank in RANKS:
        cells = []
        for method in METHODS:
            lr = best_step(method, rank)
            runs = [_kept(method, rank, lr, seed) for seed in range(SEEDS)]
            cells.append(f"{_spread([run['test'] for run in runs])} ({lr:g})")
        one = _kept("FedAvg", rank, best_step("FedAvg", rank), 0)
        name = "full model" if rank is None else f"rank {rank}"
        size = f"{one['parameters']:,} | {one['bytes'] / 1e3:,.0f}"
        print(f"| {name} | {size} | {' | '.join(cells)} |")
    for method in SPLIT:
        lr = best_step(method, 4)
        runs = [_kept(method, 4, lr, seed) for seed in range(SEEDS)]
        sent = runs[0]["bytes"] / 1e3
        perplexity = _spread([run["test"] for run in runs])
        print(f"\n{method}, rank 4, private {PRIVATE}: {sent:,.0f} kB, {perplexity} ({lr:g})")


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "table" in sys.argv[1:]:
        table()
    else:
        measure()
