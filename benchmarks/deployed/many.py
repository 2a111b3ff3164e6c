"""1,000 devices in 20 processes under 10 edges: start, seconds of a round, memory of processes."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from benchmarks.deployed.latency import HIDDEN, parts
from benchmarks.deployed.tree import Shape, measure, spread

EDGES = 10
DEVICES = 1000
PER_PROCESS = 50


def run(rounds: int, devices: int = DEVICES, edges: int = EDGES) -> dict[str, Any]:
    """One tree, whose model has 300 KB, after the same tree with a model of 81 numbers."""
    shape = Shape(
        edges, devices, HIDDEN, rounds, devices_per_process=PER_PROCESS, warm_up=1, peaks=True
    )
    tiny = measure(replace(shape, hidden=1, rounds=3))
    measured = measure(shape)
    row = 4 * shape.parameters
    out: dict[str, Any] = {
        "tree": shape.name,
        "processes": len(measured.facts),
        "bytes of the model": row,
        "s of a round": spread(list(measured.walls().values()), 1.0),
        "s of CPU of all processes": measured.cpu(),
        "s to the first round's end": measured.ready,
        "median ms of parts": parts(measured),
    }
    for tier in ("server", "edge", "device"):
        out[f"MB of a {tier} process"] = {
            "peak": max(measured.peaks(tier)) / 1e6,
            "anonymous at the end": statistics.median(measured.peaks(tier, "RssAnon")) / 1e6,
            "before the first ask": statistics.median(measured.starts(tier, "VmRSS")) / 1e6,
        }
    base = statistics.median(tiny.peaks("edge"))
    peaks = measured.phases("edge")
    answers = measured.answers("edge")
    out["MB of an edge's peak beyond the tree with 81 numbers"] = {
        "over its life": (max(measured.peaks("edge")) - base) / 1e6,
        "of the median edge": (statistics.median(measured.peaks("edge")) - base) / 1e6,
        "by ask": {phase: (peak - base) / 1e6 for phase, peak in peaks.items()},
    }
    out["MB that an ask takes at an edge"] = {
        phase: peak / 1e6 for phase, peak in measured.phases("edge", "beyond").items()
    }
    out["MB of the encoded answers of an edge's devices"] = answers / 1e6
    out["MB wanted at most"] = (answers + 3 * row) / 1e6
    return out
