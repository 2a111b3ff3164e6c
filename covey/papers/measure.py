"""Run a row of a table, all seeds side by side where they can be, and take its figures."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from torch import nn

from covey import data, models
from covey.algorithms import ALGORITHMS
from covey.data import Shards
from covey.errors import DivergedError
from covey.papers.tables import Fields, Row
from covey.runs.experiment import Experiment, difference
from covey.runs.run import Round, runs
from covey.runs.selection import select
from covey.tree import Tree

Protocol = Literal["paper", "honest"]
PROTOCOLS: tuple[Protocol, ...] = ("paper", "honest")
_PARTS: Mapping[Protocol, tuple[str, ...]] = {
    "paper": ("test",),
    "honest": ("validation", "test"),
}
_LABELS = {"worst": data.edges.WORST, "average": data.edges.AVERAGE}

Tick = Callable[[int], None]
"""Called with the number of rounds that are done."""


@dataclass(frozen=True)
class Options:
    """How to run rows: what a row itself does not decide. None takes what the row says."""

    seeds: int = 3
    rounds: int | None = None
    score_every: int | None = None
    device: str = "cpu"
    data_dir: str | None = None

    def rounds_of(self, row: Row) -> int:
        """How many rounds a row runs."""
        return self.rounds or row.rounds


def measure(
    row: Row,
    protocol: Protocol,
    options: Options,
    tick: Tick = lambda done: None,
) -> dict[str, Any]:
    """The figures of a row, as JSON can hold them.

    `models` has the test accuracy of every model in percent, one figure per seed: of the best round
    on test ("paper"), or of the round chosen on validation ("honest"). A run that diverges has the
    figures of the rounds before, and `diverged` says why it ended.
    """
    began = time.perf_counter()
    experiments = [_experiment(row, protocol, options, seed) for seed in range(options.seeds)]
    histories, diverged = _histories(experiments, tick)
    out = {
        "rounds": options.rounds_of(row),
        "seeds": options.seeds,
        "seconds": round(time.perf_counter() - began, 1),
        "models": _figures(histories, protocol),
    }
    if diverged:
        out["diverged"] = diverged
    return out


def _histories(
    experiments: Sequence[Experiment], tick: Tick
) -> tuple[list[tuple[Round, ...]], str]:
    """The records of every seed, and why it ended early where it did."""
    if difference(experiments) is None:
        return _side_by_side(experiments, tick)
    out = []
    reasons = []
    for experiment in experiments:
        histories, reason = _side_by_side([experiment], tick)
        out += histories
        reasons.append(reason)
    return out, " ".join(reason for reason in reasons if reason)


def _side_by_side(
    experiments: Sequence[Experiment], tick: Tick
) -> tuple[list[tuple[Round, ...]], str]:
    together = runs(experiments)
    reason = ""
    try:
        for _ in together:
            tick(together.round)
    except DivergedError as error:
        reason = str(error)
    return [tuple(seed.history) for seed in together.seeds], reason


def _figures(histories: Sequence[Sequence[Round]], protocol: Protocol) -> dict[str, list[float]]:
    """Test accuracy in percent, by model and seed; none where no round was scored."""
    scored = [record for history in histories for record in history if record.models]
    if not scored:
        return {}
    out: dict[str, list[float]] = {}
    for model in scored[-1].models:
        chosen = [select(history, model, protocol).chosen for history in histories]
        scores = [record.models[model].scores["test"] for record in chosen]
        out[model] = [round(100 * (score.accuracy_fallback or 0.0), 4) for score in scores]
    return out


def _experiment(row: Row, protocol: Protocol, options: Options, seed: int) -> Experiment:
    """One seed of a row, with its own initial weights, partition and draws."""
    shards = _shards(tuple(sorted(row.data.items())), seed, options.data_dir)
    kind = ALGORITHMS[row.algorithm["name"]]
    fields = {name: value for name, value in row.algorithm.items() if name != "name"}
    network = make_model(row.model, shards)
    shards, tree = make_tree(row.tree, shards, seed)
    return Experiment(
        kind(**fields),
        shards,
        network,
        tree,
        options.rounds_of(row),
        seed=seed,
        idle="train" if kind.idle_trains else "skip",
        batches="uniform",
        protocol=protocol,
        device=options.device,
        score_every=options.score_every or row.score_every,
        parts=_PARTS[protocol],
    )


@lru_cache(maxsize=8)
def _shards(table: tuple[tuple[str, Any], ...], seed: int, data_dir: str | None) -> Shards:
    """The data of one seed; the rows of a setting share it."""
    arguments = dict(table)
    load = getattr(data, arguments.pop("name"))
    if "data_dir" in inspect.signature(load).parameters:
        arguments["data_dir"] = data_dir
    shards: Shards = load(seed=seed, **arguments)
    return shards


def make_model(table: Fields, shards: Shards) -> nn.Module:
    """The network of a row; the data decides its inputs and outputs."""
    arguments = {name: value for name, value in table.items() if name != "name"}
    inputs = shards.x[0].numel()
    outputs = shards.classes or 1
    if table["name"] == "linear":
        return models.linear(inputs, outputs)
    if table["name"] == "mlp":
        return models.mlp(inputs, *arguments["hidden"], arguments.get("outputs", outputs))
    build = getattr(models, table["name"])
    module: nn.Module = build(tuple(shards.x.shape[1:]), classes=outputs, **arguments)
    return module


def make_tree(table: Fields, shards: Shards, seed: int) -> tuple[Shards, Tree]:
    """The tree of a row, and the data in its order; without a table there are no edges."""
    if not table:
        return shards, Tree.flat(shards.devices)
    form = table["form"]
    if form in _LABELS:
        return data.edges.by_label(shards, _LABELS[form])
    if form == "random":
        return data.edges.random(shards, table["edges"], seed)
    return data.edges.consecutive(shards, table["edges"])
