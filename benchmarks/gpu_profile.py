"""What a GPU does in a round, and where the host waits for it: `python -m benchmarks.gpu_profile W1 sFedHP`.

For each work: the fastest and the median round, the lines of covey that wait for the GPU in one
round, and its kernels by time. The difference between a round and the sum of its kernels is the
host's.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import covey
from benchmarks.gpu import LARGE
from benchmarks.works import WORKS

_WORKS = {**WORKS, **{work.name: work for work in LARGE}}
_WARM = 5
_LINES = 20


def milliseconds(step: Callable[[], Any], count: int) -> list[float]:
    """The time of every round, until the GPU has nothing left to do."""
    out = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        out.append(1e3 * (time.perf_counter() - began))
    return out


@contextmanager
def waits() -> Iterator[collections.Counter[str]]:
    """Count the places of covey at which the host waits for the GPU."""
    places: collections.Counter[str] = collections.Counter()

    def show(*warning: Any, **options: Any) -> None:
        frames = [frame for frame in traceback.extract_stack() if "/covey/" in frame.filename]
        lines = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        places[" < ".join(reversed(lines[-4:]))] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode("default")


def kernels(step: Callable[[], Any], rounds: int) -> dict[str, tuple[float, float]]:
    """(number, milliseconds) per round of every kernel and copy, by name."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(rounds):
            step()
        torch.cuda.synchronize()
    out: dict[str, tuple[float, float]] = {}
    for event in profiled.events() or ():
        if event.device_type.name != "CUDA":
            continue
        count, total = out.get(event.name, (0.0, 0.0))
        out[event.name] = (count + 1 / rounds, total + event.device_time / 1e3 / rounds)
    return out


def show(name: str, rounds: int) -> None:
    """Print everything about one work."""
    work = _WORKS[name]
    shards = work.data()
    whole = _WARM + 2 * rounds + 1
    run = covey.run(work.experiment(shards, whole, device="cuda", score_every=10**9))

    def step() -> None:
        next(run)

    milliseconds(step, _WARM)
    times = milliseconds(step, rounds)
    with waits() as places:
        step()
    table = kernels(step, rounds - 1)
    busy = sum(total for _, total in table.values())
    launched = sum(count for count, _ in table.values())
    print(f"{name}: {min(times):.2f} ms, median {statistics.median(times):.2f};", end=" ")
    print(f"the GPU is busy for {busy:.2f} with {launched:.0f} kernels and copies;", end=" ")
    print(run.engine["graph"])
    for place, times_waited in places.most_common():
        print(f"  waits {times_waited} times at {place}")
    by_time = sorted(table.items(), key=lambda item: -item[1][1])
    for kernel, (count, total) in by_time[:_LINES]:
        print(f"  {total:8.3f} ms {count:7.0f} x {1e3 * total / count:8.2f} us  {kernel[:90]}")


def main() -> None:
    """Print one table per work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", default=["W1", "sFedHP"], help=", ".join(_WORKS))
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    if unknown := set(asked.works) - set(_WORKS):
        parser.error(f"unknown work {unknown.pop()!r}; there are {', '.join(_WORKS)}")
    if not torch.cuda.is_available():
        parser.error("this machine has no CUDA device")
    for name in asked.works:
        show(name, asked.rounds)


if __name__ == "__main__":
    main()
