"""A model of 100 MB through a tree: seconds of a round, and the peak memory of an edge."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

from benchmarks.deployed.tree import Measured, Shape, measure

HIDDEN = 352_113
"""Of a model of 25,000,033 float32 numbers: 100 MB."""
ROUNDS = 4


def shapes() -> list[Shape]:
    """1 + 1 + 2 and 1 + 2 + 4."""
    return [
        Shape(1, 2, HIDDEN, ROUNDS, warm_up=1, peaks=True),
        Shape(2, 4, HIDDEN, ROUNDS, warm_up=1, peaks=True),
    ]


def figures(measured: Measured, tiny: Measured) -> dict[str, Any]:
    """The figures of one tree; memory is that beyond the same tree with a model of 81 numbers."""
    shape = measured.shape
    row = 4 * shape.parameters
    out: dict[str, Any] = {
        "tree": shape.name,
        "MB of the model": row / 1e6,
        "s of a round": statistics.median(measured.walls().values()),
        "s of the longest training": statistics.median(measured.training().values()),
        "s of CPU of all processes": measured.cpu(),
        "s to the first round's end": measured.ready,
    }
    for tier in ("server", "edge", "device"):
        base = statistics.median(tiny.peaks(tier))
        start = statistics.median(tiny.starts(tier, "VmRSS"))
        out[f"{tier}, in models"] = {
            "peak": (max(measured.peaks(tier)) - base) / row,
            "peak by ask": {
                phase: (peak - base) / row for phase, peak in measured.phases(tier).items()
            },
            "taken by an ask": {
                phase: peak / row for phase, peak in measured.phases(tier, "beyond").items()
            },
            "before the first ask": (max(measured.starts(tier, "VmRSS")) - start) / row,
            "encoded answers of its children": measured.answers(tier) / row,
        }
    return out


def run(only: str | None = None) -> list[dict[str, Any]]:
    """All trees, one after the other, each after a tiny one."""
    out = []
    for shape in shapes():
        if only is not None and only != shape.name:
            continue
        tiny = measure(replace(shape, hidden=1))
        out.append(figures(measure(shape), tiny))
    return out
