"""Fields of an algorithm that a paper does not print: the best point of a grid on validation data.

The test part is never looked at, and the seed is none of those that are reported.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from covey.errors import ConfigError
from covey.papers.measure import Options, Tick, device_name, histories, make_experiment
from covey.papers.quantities import accuracy
from covey.papers.results import ResultStore, valid
from covey.papers.tables import Row

SEED = 1000  # reported seeds count from 0

Point = Mapping[str, Any]
"""The `fields` of a point, its accuracy on `validation` data by model, and its `seconds`."""


def search(row: Row, store: ResultStore, options: Options, tick: Tick) -> Row | None:
    """The row at the best point of its grid; None where another process searches it.

    A point is saved when it is done: a search that was stopped goes on after it. One that is there
    with more rounds stays, and goes on with as many.
    """
    with store.claim(row, "search") as claimed:
        if not claimed:
            return None
        rounds = min(row.search_rounds, options.rounds_of(row))
        nothing: dict[str, Any] = {"rounds": 0, "points": []}
        before = valid(store.read(), row).get("search", nothing)
        points: list[Point] = []
        if before["rounds"] >= rounds:
            rounds = before["rounds"]
            points = list(before["points"])
        shorter = replace(options, rounds=rounds)
        wanted = grid(row)
        for number in range(len(points), len(wanted)):
            points.append(_point(row, wanted[number], shorter))
            seconds = sum(point["seconds"] for point in points)
            result = {"rounds": rounds, "seeds": 1, "seconds": round(seconds, 1), "points": points}
            result["device"] = device_name(options.device)
            if len(points) == len(wanted):
                result["chosen"] = best_of(row, points)["fields"]
            store.put(row, "search", result)
            tick((number + 1) / len(wanted))
    best = best_of(row, points)
    return replace(row, algorithm={**row.algorithm, **best["fields"]}, search={})


def grid(row: Row) -> list[dict[str, Any]]:
    """Every combination of the values to try."""
    combinations = itertools.product(*row.search.values())
    return [dict(zip(row.search, values, strict=True)) for values in combinations]


def best_of(row: Row, points: list[Point]) -> Point:
    """The point with the best mean over the models that have a printed cell; the first of equal."""

    def score(point: Point) -> float:
        by_model: Mapping[str, float] = point["validation"]
        compared = [figure for model, figure in by_model.items() if model in row.cells]
        return statistics.mean(compared or by_model.values())

    scored = [point for point in points if point["validation"]]
    if not scored:
        raise ConfigError(f"every point of the grid of {row.key} diverged; use smaller steps.")
    return max(scored, key=score)


def _point(row: Row, fields: Mapping[str, Any], options: Options) -> Point:
    """Train at a point; without scores where that diverges."""
    began = time.perf_counter()
    tried = replace(row, algorithm={**row.algorithm, **fields})
    experiment = replace(make_experiment(tried, "honest", options, SEED), parts=("validation",))
    (history,), diverged = histories([experiment], lambda done: None)
    best: dict[str, float] = {}
    for record in () if diverged else history:
        for model in record.models:
            best[model] = max(best.get(model, 0.0), accuracy(record, model, "validation"))
    seconds = round(time.perf_counter() - began, 1)
    return {"fields": fields, "validation": best, "seconds": seconds}
