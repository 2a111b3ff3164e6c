"""Time and memory of loading and dealing every data set that is there: `COVEY_DATA=FOLDER python -m
experiments.sets.run`.

Each line is a process of its own, so that the peak of memory is its own too. Loading reads and
checks the official files; dealing makes the partition; building also scales the images and checks
them. 3,500 devices and Dirichlet 0.01 are dealt on every set.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import Any

from covey.data import PARTITIONS, deal, load, overlaps
from covey.data.published import sets
from covey.data.published.inventory import present

DEALS: tuple[tuple[str, dict[str, float]], ...] = (
    ("iid", {}),
    ("labels", {}),
    ("labels", {"devices": 3500, "labels": 3}),
    ("dirichlet", {"devices": 100, "alpha": 0.01}),
    ("dirichlet", {"devices": 3500, "alpha": 0.01}),
    ("legacy2020", {}),
    ("disjoint", {}),
    ("power_law", {}),
    ("sfedhp1", {}),
    ("sfedhp2", {}),
    ("permfl", {}),
    ("permfl_cifar100", {}),
    ("permfl_femnist", {}),
)


def one(name: str) -> None:
    """One set, in this process."""
    set_name, _, kind = name.partition("-")
    began = time.perf_counter()
    raw = load(set_name, split=kind or None)
    loaded = time.perf_counter() - began
    after = _peak()
    began = time.perf_counter()
    shards = getattr(sets, set_name)(**({"kind": kind} if kind else {}))
    built = time.perf_counter() - began
    print(
        f"| {name} | {len(raw.x):,} | {loaded:.2f} | {after:.2f} | {built:.2f} | {_peak():.2f} | {overlaps(shards).leaks} |"
    )
    for partition, options in DEALS:
        began = time.perf_counter()
        try:
            parts = deal(raw.y, partition=partition, **options)  # type: ignore[arg-type]
        except ValueError as error:
            print(f"    {partition} {options or ''}: {str(error).split(';')[0]}", file=sys.stderr)
            continue
        took = time.perf_counter() - began
        sizes: Any = sum(part.counts() for part in parts)
        what = " ".join([partition, *(f"{key}={value}" for key, value in options.items())])
        line = f"    {name}: {what}: {took:.2f} s, {parts[0].devices} devices of {int(sizes.min())} to {int(sizes.max())}"
        print(line, file=sys.stderr)


def _peak() -> float:
    """Most memory so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """A table of sets on standard output, partitions on standard error."""
    if len(sys.argv) > 1:
        return one(sys.argv[1])
    assert {partition for partition, _ in DEALS} <= set(PARTITIONS)
    print("| set | images | load, s | peak, GiB | build, s | peak, GiB | leaks |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for status in present():
        if status.present:
            subprocess.run([sys.executable, "-m", "experiments.sets.run", status.name], check=True)
    return None


if __name__ == "__main__":
    main()
