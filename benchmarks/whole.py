"""Whole runs, with everything on that a researcher has on: `python -m benchmarks.whole`.

W1 on its own 200 examples a device; pFedMe's Table 1 run on MNIST (20 devices with 1,165 to 3,834
examples, 5 asked while all train, 800 rounds), and sFedHP, FedMac with l1 and bitmap links on the
same data: bytes metered, validation and test scores every 5 rounds, training scores every 50, a
checkpoint every 10. Prints where the time went; overhead is all that is neither training nor the
tiers' own arithmetic.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import covey
from benchmarks.works import WORKS, Work
from covey.algorithms import PFedMe
from covey.data import Shards, own

OVERHEAD = ("cohorts", "links", "scores", "checkpoint")
_PFEDME = PFedMe(sample=5, lam=15.0, lr=0.005, personal_lr=0.09)
RUNS: dict[str, tuple[Work, int]] = {
    "W1": (WORKS["W1"], 200),
    "pFedMe": (replace(WORKS["W1"], algorithm=_PFEDME, settings={"idle": "train"}), 800),
    "sFedHP": (WORKS["sFedHP"], 100),
    "FedMac": (WORKS["FedMac"], 100),
}


def data() -> Shards:
    """Random images, as many for each device as pFedMe's public partition has; speed does not
    depend on what they show.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = torch.linspace(1165, 3834, 20).long().tolist()
    pairs = [
        (torch.rand(n, 784, generator=generator), torch.randint(10, (n,), generator=generator))
        for n in sizes
    ]
    return own(pairs, classes=10)


def whole(name: str, device: str = "cpu", rounds: int | None = None) -> dict[str, Any]:
    """One run from the first round to the last."""
    work, usual = RUNS[name]
    settings: dict[str, Any] = {"score_every": 5, "score_train_every": 50, "device": device}
    shards = work.data() if name == "W1" else data()
    run = covey.run(work.experiment(shards, rounds or usual, **settings))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        for record in run:
            if record.round % 10 == 9:
                run.save(Path(folder) / "checkpoint.safetensors", wait=False)
        seconds = time.perf_counter() - began
    spent: dict[str, float] = {}
    for record in run.history:
        for what, took in record.spent.items():
            spent[what] = spent.get(what, 0.0) + took
    overhead = sum(spent.get(what, 0.0) for what in OVERHEAD) / sum(spent.values())
    facts = {
        "run": name,
        "rounds": run.round,
        "seconds": seconds,
        "overhead": overhead,
        "spent": spent,
        "engine": run.engine,
    }
    shown = ", ".join(
        f"{what} {100 * took / sum(spent.values()):.1f} %" for what, took in spent.items()
    )
    print(
        f"{name}: {run.round} rounds in {seconds:.1f} s on {device}; overhead {100 * overhead:.1f} %: {shown}",
        flush=True,
    )
    return facts


def main() -> None:
    """Print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", default=list(RUNS), help=f"of {', '.join(RUNS)}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    asked = parser.parse_args()
    if unknown := set(asked.runs) - set(RUNS):
        parser.error(f"unknown run {unknown.pop()!r}; there are {', '.join(RUNS)}")
    facts = [whole(name, asked.device, asked.rounds) for name in asked.runs]
    if asked.out:
        asked.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
