"""How time and memory grow with devices, parameters and tiers: `python -m benchmarks.growth --plot
docs/growth.png`.

FedAvg, 5 steps of 20, with 20 to 5,000 devices asked (784-100-10) and with 1e3 to 1e7 parameters
(20 devices); nested envelopes on 2, 3 and 4 tiers (1,000 devices, 5 steps). Every point is a
process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import covey
from benchmarks.works import WORKS, Work
from covey.algorithms import FedAvg, Nested
from covey.algorithms.nested import Level

POINTS: dict[str, tuple[int, ...]] = {
    "devices": (20, 50, 100, 200, 500, 1000, 2000, 5000),
    "parameters": (10**3, 10**4, 10**5, 10**6, 10**7),
    "tiers": (2, 3, 4),
}
FANS = {2: (1000,), 3: (10, 100), 4: (10, 10, 10)}


def point(axis: str, size: int) -> tuple[covey.Experiment, Work]:
    """The experiment at one point of an axis."""
    small = replace(WORKS["W2"], algorithm=FedAvg(steps=5, lr=0.02), steps=5, examples=40)
    if axis == "devices":
        work = replace(small, devices=size)
    elif axis == "parameters":
        hidden = round((size - 10) / 795)
        work = replace(
            small,
            model=lambda: (
                covey.models.mlp(784, hidden, 10) if hidden > 1 else covey.models.linear(100, 10)
            ),
        )
        work = work if hidden > 1 else replace(work, shape=(100,))
    else:
        tree = covey.Tree.uniform(*FANS[size])
        above = (Level(tier, name=tier, lam=1.0, lr=0.5) for tier in tree.tiers[1:-1])
        devices = Level(tree.tiers[-1], "personal", lam=1.0, steps=5, lr=0.02, batch=20)
        levels = (Level("server", lr=0.5), *above, devices)
        work = replace(small, devices=1000, algorithm=Nested(levels))
        return replace(work.experiment(work.data(), 10), tree=tree), work
    return work.experiment(work.data(), 10), work


def measure(axis: str, size: int) -> dict[str, Any]:
    """Seconds of the fastest of a few rounds, and the peak memory of this process."""
    experiment, work = point(axis, size)
    run = covey.run(experiment)
    best = float("inf")
    for _ in range(6):
        began = time.perf_counter()
        next(run)
        best = min(best, time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"axis": axis, "size": size, "seconds": best, "bytes": peak, "flops": work.flops()}


def draw(points: list[dict[str, Any]], path: Path) -> None:
    """Time and memory over each axis."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(POINTS), figsize=(12, 3.6), layout="constrained")
    for panel, axis in zip(axes, POINTS, strict=True):
        here = [p for p in points if p["axis"] == axis]
        sizes = [p["size"] for p in here]
        panel.plot(sizes, [p["seconds"] for p in here], "o-", color="#1b6ca8")
        panel.set_xlabel(f"{axis} asked" if axis == "devices" else axis)
        panel.set_ylabel("seconds per round", color="#1b6ca8")
        memory = panel.twinx()
        memory.plot(sizes, [p["bytes"] / 2**30 for p in here], "s--", color="#c05a1c")
        memory.set_ylabel("peak GiB of the process", color="#c05a1c")
        if axis == "tiers":
            panel.set_xticks(sizes)
            panel.set_ylim(0, 1.15 * max(p["seconds"] for p in here))
        else:
            panel.set(xscale="log", yscale="log")
        memory.set_ylim(0, 1.15 * max(p["bytes"] for p in here) / 2**30)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Every point, one line each, and perhaps the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--point",
        nargs=2,
        metavar=("AXIS", "SIZE"),
        help="measure one point here and print it as JSON",
    )
    parser.add_argument("--plot", type=Path, help="write the picture")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    asked = parser.parse_args()
    if asked.point:
        print(json.dumps(measure(asked.point[0], int(asked.point[1]))))
        return
    points = []
    for axis, sizes in POINTS.items():
        for size in sizes:
            command = [sys.executable, "-m", "benchmarks.growth", "--point", axis, str(size)]
            points.append(
                found := json.loads(
                    subprocess.run(command, check=True, capture_output=True, text=True).stdout
                )
            )
            print(
                f"{axis:10} {size:9d}  {found['seconds']:.4f} s  {found['bytes'] / 2**30:.2f} GiB",
                flush=True,
            )
    if asked.out:
        asked.out.write_text(json.dumps(points, indent=1) + "\n")
    if asked.plot:
        draw(points, asked.plot)


if __name__ == "__main__":
    main()
