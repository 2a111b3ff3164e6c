"""Run a row of a table, all seeds side by side where they can be, and take its figures."""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import nn

from covey import data, draws, models
from covey.algorithms import ALGORITHMS
from covey.data import Shards
from covey.engine.precision import Compute
from covey.errors import ConfigError, DivergedError
from covey.kernel.algorithm import Algorithm
from covey.papers import quantities
from covey.papers.quantities import LATENCY, History, accuracy
from covey.papers.tables import Fields, Row
from covey.runs.experiment import Experiment, difference
from covey.runs.run import Round, Runs, runs
from covey.tree import Tree
from covey.wireless import POLICIES, Cells, Channel, Devices, Noise, Radio, Spread

Protocol = Literal["paper", "honest"]
PROTOCOLS: tuple[Protocol, ...] = ("paper", "honest")
_PARTS: Mapping[Protocol, tuple[str, ...]] = {
    "paper": ("test",),
    "honest": ("validation", "test"),
}
_LABELS = {"worst": data.edges.WORST, "average": data.edges.AVERAGE}

Tick = Callable[[float], None]
"""Called after every round with the share of the row that is done."""


@dataclass(frozen=True)
class Options:
    """How to run rows: what a row itself does not decide. None takes what the row says."""

    seeds: int = 3
    rounds: int | None = None
    score_every: int | None = None
    device: str = "cpu"
    data_dir: str | None = None
    compute: Compute = "fp32"

    def __post_init__(self) -> None:
        for name in ("seeds", "rounds", "score_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}; give at least 1.")

    def rounds_of(self, row: Row) -> int:
        """How many rounds a row runs."""
        return self.rounds or row.rounds

    def score_every_of(self, row: Row) -> int:
        """Every how many rounds the models of a row are scored."""
        return self.score_every or row.score_every


def measure(
    row: Row,
    protocol: Protocol,
    options: Options,
    tick: Tick = lambda done: None,
    *,
    curves: bool = False,
    kind: type[Algorithm] | None = None,
) -> dict[str, Any]:
    """The figures of a row, as JSON can hold them.

    `models` has the test accuracy of every model in percent, one figure per seed: of the best round
    on test ("paper"), or of the round chosen on validation ("honest"). It also has the quantities
    that the row asks for, and with a radio the mean latency of all rounds in milliseconds.
    `area` has the mean over all scored rounds, which says how fast a model learns. A run that
    diverges has the figures of the rounds before, of which the last is always scored, and
    `diverged` says why it ended. A seed that diverges in its first round has no figure. `compute`
    is there where products were not computed in fp32. With `curves`, `curve` has the mean over the
    seeds after each scored round.

    `kind` is an algorithm with the fields of the row's, where another is run in its place.
    """
    began = time.perf_counter()
    experiments = [
        make_experiment(row, protocol, options, seed, kind=kind) for seed in range(options.seeds)
    ]
    records, diverged = histories(experiments, tick)
    rounds = options.rounds_of(row)
    seeds = [History(record, protocol, len(record) < rounds) for record in records]
    out = {
        "rounds": rounds,
        "seeds": options.seeds,
        "score_every": options.score_every_of(row),
        "seconds": round(time.perf_counter() - began, 1),
        "device": device_name(options.device),
        "draws": draws.VERSION,
        "models": _figures(seeds) | _latencies(records) | _quantities(row, seeds),
        "area": _areas(seeds),
    }
    if curves:
        out["curve"] = _curves(records)
    if options.compute != "fp32":
        out["compute"] = options.compute
    if diverged:
        out["diverged"] = diverged
    return out


def device_name(device: str) -> str:
    """A device in words: "cpu", or "cuda: " with the name of the GPU."""
    if torch.device(device).type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return device


def histories(experiments: Sequence[Experiment], tick: Tick) -> tuple[list[tuple[Round, ...]], str]:
    """The records of every seed, and why a seed ended early where one did.

    The last round before a divergence is scored whether it was due or not. What is known of a run
    that diverges early then does not depend on how often it is scored.
    """
    groups = [list(experiments)]
    if difference(experiments) is not None:
        groups = [[experiment] for experiment in experiments]
    out = []
    reasons = []
    for number, group in enumerate(groups):
        together = runs(group)
        try:
            for _ in together:
                tick((number + together.round / group[0].rounds) / len(groups))
        except DivergedError as error:
            reasons.append(str(error).partition(";")[0])
        out += _scored_to_the_end(together)
    return out, "; ".join(reasons)


def _scored_to_the_end(together: Runs) -> list[tuple[Round, ...]]:
    """The records of every seed, with scores in the last, unless the scores diverge too."""
    records = [tuple(seed.history) for seed in together.seeds]
    if not together.round or records[0][-1].models:
        return records
    try:
        scores = together.scores(*together.experiment.parts)
    except DivergedError:
        return records
    return [
        (*history[:-1], replace(history[-1], models=by_model))
        for history, by_model in zip(records, scores, strict=True)
    ]


def _figures(seeds: Sequence[History]) -> dict[str, list[float]]:
    """Test accuracy in percent, by model and seed; of the seeds that have a scored round."""
    out: dict[str, list[float]] = {}
    for history in seeds:
        scored = history.scored
        for model in scored[-1].models if scored else ():
            out.setdefault(model, []).append(accuracy(history.chosen(model), model))
    return out


def _latencies(histories: Sequence[Sequence[Round]]) -> dict[str, list[float]]:
    """The mean latency of a round in milliseconds by seed; nothing where there is no radio."""
    out = []
    for history in histories:
        seconds = [record.radio.seconds for record in history if record.radio is not None]
        if seconds:
            out.append(round(1e3 * statistics.mean(seconds), 4))
    return {LATENCY: out} if out else {}


def _quantities(row: Row, seeds: Sequence[History]) -> dict[str, list[float]]:
    """What a row asks for beside accuracies, by seed."""
    out: dict[str, list[float]] = {}
    for history in seeds:
        for name, value in quantities.of_history(row.quantities, history):
            out.setdefault(name, []).append(value)
    return out


def _areas(seeds: Sequence[History]) -> dict[str, list[float]]:
    """The mean over the scored rounds, by model and seed."""
    out: dict[str, list[float]] = {}
    for history in seeds:
        scored = history.scored
        for model in scored[-1].models if scored else ():
            accuracies = [accuracy(record, model) for record in scored]
            out.setdefault(model, []).append(round(statistics.mean(accuracies), 4))
    return out


def _curves(histories: Sequence[Sequence[Round]]) -> dict[str, dict[int, float]]:
    """The mean of the seeds that were scored in a round, by model and by rounds until then."""
    accuracies: dict[str, dict[int, list[float]]] = {}
    for record in (record for history in histories for record in history):
        for model in record.models:
            rounds = accuracies.setdefault(model, {})
            rounds.setdefault(record.round + 1, []).append(accuracy(record, model))
    return {
        model: {number: round(statistics.mean(values), 2) for number, values in rounds.items()}
        for model, rounds in accuracies.items()
    }


def make_experiment(
    row: Row,
    protocol: Protocol,
    options: Options,
    seed: int,
    *,
    parts: tuple[str, ...] | None = None,
    kind: type[Algorithm] | None = None,
) -> Experiment:
    """One seed of a row, with its own initial weights, partition and draws.

    It is scored on `parts`, or on those that the figures of the protocol need. `kind` is run in
    place of the row's algorithm.
    """
    shards = load(row, seed, options)
    kind = kind or ALGORITHMS[row.algorithm["name"]]
    fields = {name: value for name, value in row.algorithm.items() if name != "name"}
    network = make_model(row.model, shards)
    shards, tree = make_tree(row.tree, shards, seed)
    trains = kind.idle_trains and not row.radio  # a plan has no ratio for a device it excludes
    return Experiment(
        kind(**fields),
        shards,
        network,
        tree,
        options.rounds_of(row),
        seed=seed,
        idle=row.idle if trains else "skip",
        batches="uniform",
        protocol=protocol,
        device=options.device,
        compute=options.compute,
        score_every=options.score_every_of(row),
        parts=parts or _PARTS[protocol],
        radio=make_radio(row.radio, tree),
        **row.links,
    )


def load(row: Row, seed: int, options: Options) -> Shards:
    """The data of one seed of a row."""
    return _shards(tuple(sorted(row.data.items())), seed, options.data_dir)


@lru_cache(maxsize=8)
def _shards(table: tuple[tuple[str, Any], ...], seed: int, data_dir: str | None) -> Shards:
    """The data of one seed; the rows of a setting share it."""
    arguments = dict(table)
    make = getattr(data, arguments.pop("name"))
    if "data_dir" in inspect.signature(make).parameters:
        arguments["data_dir"] = data_dir
    arguments.setdefault("seed", seed)
    shards: Shards = make(**arguments)
    return shards


def make_model(table: Fields, shards: Shards) -> nn.Module:
    """The network of a row; the data decides its inputs, and its outputs where the row has none."""
    arguments = {name: value for name, value in table.items() if name != "name"}
    inputs = shards.x[0].numel()
    outputs = arguments.pop("outputs", shards.classes or 1)
    if table["name"] == "linear":
        return models.linear(inputs, outputs)
    if table["name"] == "mlp":
        return models.mlp(inputs, *arguments["hidden"], outputs)
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


def make_radio(table: Fields, tree: Tree) -> Radio | None:
    """The radio of a row: one cell, devices on a ring around it; None without a table."""
    if not table:
        return None
    devices = Devices.of(
        torch.zeros(tree.devices, dtype=torch.int64),
        distance=Spread("disc", tuple(table["distance"])),
        cycles=Spread("uniform", tuple(table["cycles"])),
        cpu=table["cpu"],
        power=table["power"],
        seed=table["seed"],
    )
    return Radio(
        devices,
        Cells.of(table["bandwidth"]),
        Channel(Noise(table["noise"])),
        deadline=table["deadline"],
        policy=POLICIES[table["policy"]],
    )
