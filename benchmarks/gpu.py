"""covey on a CUDA device, through the ordinary API; needs torch, numpy and safetensors alone:
`python -m benchmarks.gpu`.

Milliseconds per round, the fastest of several, as CUDA graphs and kernel by kernel; whole runs with
scores and checkpoints; several seeds in one go; and the same rows as on the processor, in float64.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import covey
from benchmarks.whole import RUNS, whole
from benchmarks.works import WORKS, Work
from covey.data import Shards

_FEDAVG = covey.algorithms.FedAvg(steps=5, lr=0.02)
LARGE: tuple[Work, ...] = (
    replace(WORKS["W1"], name="W1, 1000 devices", devices=1000),
    replace(WORKS["W1"], name="W1, 5000 devices", devices=5000),
    replace(WORKS["W3 DNN"], name="W3 DNN, 1000 trained", algorithm=_FEDAVG, asked=None),
    replace(
        WORKS["W3 MLR"], name="W3 MLR, 5000 trained", devices=5000, algorithm=_FEDAVG, asked=None
    ),
)


def milliseconds(
    work: Work, shards: Shards, rounds: int, **changes: Any
) -> tuple[float, covey.Run]:
    """The fastest round; each ends with everything counted and checked, so the device has nothing
    left to do.
    """
    run = covey.run(work.experiment(shards, rounds, device="cuda", score_every=10**9, **changes))
    best = float("inf")
    for _ in range(rounds - 1):
        began = time.perf_counter()
        next(run)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 1e3 * best, run


def limits() -> tuple[float, float]:
    """TFLOP/s of float32 products and TB/s of a copy on this device."""
    a, b = torch.rand(2, 64, 2048, 2048, device="cuda")
    source, target = torch.rand(2, 1 << 29, device="cuda")
    flops = 64 * 2 * 2048**3 / _seconds(lambda: torch.bmm(a, b))
    return flops / 1e12, 2 * 4 * (1 << 29) / _seconds(lambda: target.copy_(source)) / 1e12


def _seconds(call: Any) -> float:
    best = float("inf")
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best


def measure(work: Work, reach: tuple[float, float], rounds: int) -> dict[str, Any]:
    """One work, captured and not."""
    shards = work.data()
    graph, run = milliseconds(work, shards, rounds)
    eager, _ = milliseconds(work, shards, max(4, rounds // 4), capture=False)
    limit = 1e3 * max(work.flops() / reach[0] / 1e12, work.bytes() / reach[1] / 1e12)
    spent = {name: 1e3 * seconds for name, seconds in run.history[-1].spent.items()}
    return {
        "work": work.name,
        "ms": graph,
        "eager ms": eager,
        "limit ms": limit,
        "spent ms": spent,
        "engine": run.engine,
    }


def same_rows() -> dict[str, float]:
    """The largest relative difference of any kept row between this device, as graphs, and the
    processor, in float64.
    """
    out = {}
    for name in ("W1", "W2", "W4", "sFedHP", "FedMac", "PerMFL"):
        work = WORKS[name]
        shards = replace(work.data(), x=work.data().x.double())
        runs = []
        for device in ("cpu", "cuda"):
            runs.append(
                run := covey.run(work.experiment(shards, 3, device=device, dtype=torch.float64))
            )
            list(run)
        far = 0.0
        for model in runs[0].models():
            mine, other = runs[0].rows(model)[1], runs[1].rows(model)[1].cpu()
            far = max(far, float((mine - other).abs().max() / mine.abs().max()))
        out[name] = far
        same = [r.traffic for r in runs[0].history] == [r.traffic for r in runs[1].history]
        print(
            f"same rows, {name}: {far:.1e}, bytes {'alike' if same else 'differ'}; {runs[1].engine['graph']}",
            flush=True,
        )
    return out


def seeds(count: int, rounds: int) -> dict[str, float]:
    """One seed alone against several in one go."""
    work, shards = WORKS["W1"], WORKS["W1"].data()
    alone, _ = milliseconds(work, shards, rounds)
    many = covey.runs(
        [
            work.experiment(shards, rounds, device="cuda", seed=seed, score_every=10**9)
            for seed in range(count)
        ]
    )
    best = float("inf")
    for _ in range(rounds - 1):
        began = time.perf_counter()
        next(many)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return {"one ms": alone, f"{count} together ms": 1e3 * best}


def main() -> None:
    """Print and perhaps write everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--only", nargs="*", help="of these works alone")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error(
            "this machine has no CUDA device; `python -m benchmarks.loop` times the processor"
        )
    reach = limits()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {reach[0]:.1f} TFLOP/s fp32, {reach[1]:.2f} TB/s"
    )
    works = [
        work for work in (*WORKS.values(), *LARGE) if not asked.only or work.name in asked.only
    ]
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "limits": reach,
        "works": [],
    }
    for work in works:
        figures["works"].append(record := measure(work, reach, asked.rounds))
        shown = ", ".join(f"{name} {value:.1f}" for name, value in record["spent ms"].items())
        print(
            f"{work.name:22} {record['ms']:8.2f} ms, eager {record['eager ms']:8.2f}, limit {record['limit ms']:6.2f}; "
            f"last round: {shown}; {record['engine']['graph']}",
            flush=True,
        )
    if not asked.only:
        figures |= {
            "seeds": seeds(5, asked.rounds),
            "whole": [whole(name, "cuda") for name in RUNS],
            "same rows": same_rows(),
        }
        print(figures["seeds"])
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
