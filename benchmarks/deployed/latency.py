"""Seconds of a round beyond training: 12 devices, a model of 300 KB, TLS and journal."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.deployed.tree import Measured, Shape, measure, spread

HIDDEN = 1056
"""Of a model of 74,986 float32 numbers: 300 KB."""
DEVICES = 12
EDGES = 3


def shapes(rounds: int) -> list[Shape]:
    """Flat and with edges, with both durabilities."""
    return [
        Shape(edges, DEVICES, HIDDEN, rounds, durability)
        for edges in (None, EDGES)
        for durability in ("process", "power")
    ]


def figures(measured: Measured) -> dict[str, Any]:
    """The figures of one tree."""
    shape = measured.shape
    walls = list(measured.walls().values())
    out: dict[str, Any] = {
        "tree": shape.name,
        "durability": shape.durability,
        "rounds": len(walls),
        "bytes of the model": 4 * shape.parameters,
        "ms beyond training": spread(measured.beyond()),
        "ms of a round": spread(walls),
        "ms of the longest training": spread(list(measured.training().values())),
        "ms of CPU of all processes": 1e3 * measured.cpu(),
        "s to the first round's end": measured.ready,
    }
    out["median ms of parts"] = parts(measured)
    for tier in ("server", "edge", "device"):
        if measured.peaks(tier):
            out[f"MB of a {tier}"] = {
                "peak": statistics.median(measured.peaks(tier)) / 1e6,
                "anonymous": statistics.median(measured.peaks(tier, "RssAnon")) / 1e6,
            }
    return out


def parts(measured: Measured) -> dict[str, float]:
    """Median milliseconds of what the processes of each tier do, and their CPU per round."""
    out: dict[str, float] = {}
    for tier in ("server", "edge", "device"):
        names = [name for name in measured.facts if name.startswith(tier)]
        for kind in ("ask", "answer", "program"):
            values = [
                entry.seconds
                for name in names
                for entry in measured.entries(kind, name)
                if entry.lane == "train"
            ]
            if values:
                out[f"{tier}: {kind}"] = 1e3 * statistics.median(values)
        for kind in ("journal", "end_ask", "commit", "end_round"):
            values = [
                entry.seconds
                for name in names
                for entry in measured.entries("disk", name)
                if entry.who == kind
            ]
            if values:
                out[f"{tier}: disk {kind}"] = 1e3 * statistics.median(values)
        if names:
            out[f"{tier}: CPU"] = 1e3 * statistics.mean(measured.cpu_of(name) for name in names)
    return out


def run(rounds: int, only: str | None = None) -> list[dict[str, Any]]:
    """All trees, one after the other."""
    out = []
    for shape in shapes(rounds):
        if only is not None and only != f"{shape.name}/{shape.durability}":
            continue
        out.append(figures(measure(shape)))
    return out
