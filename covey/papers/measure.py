"""Run a row of a table, all seeds side by side where they can be, and take its figures."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch

from covey import draws, rooms
from covey.algorithms import ALGORITHMS
from covey.data import Shards
from covey.engine.solvers.precision import Compute
from covey.errors import ConfigError, DivergedError
from covey.files import assemble, named
from covey.files.assemble import World
from covey.files.config import read
from covey.kernel.algorithm import Algorithm
from covey.papers.quantities import SeedRounds, accuracy
from covey.papers.tables import Row
from covey.runs.experiment import Experiment, difference
from covey.runs.run import Round, Runs, runs
from covey.runs.settings import Part
from covey.runs.tracker import RunTracker, play

Protocol = Literal["paper", "honest"]
PROTOCOLS: tuple[Protocol, ...] = ("paper", "honest")
_PARTS: Mapping[Protocol, tuple[Part, ...]] = {
    "paper": ("test",),
    "honest": ("validation", "test"),
}

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

    def size_of(self, row: Row) -> dict[str, Any]:
        """What a result of a row says of its size; `compute` where products are not in fp32."""
        size: dict[str, Any] = {"rounds": self.rounds_of(row), "seeds": self.seeds}
        size["score_every"] = self.score_every_of(row)
        return size if self.compute == "fp32" else size | {"compute": self.compute}


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
    that the row asks for, and with a clock the mean latency of all rounds in milliseconds.
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
    seeds = [SeedRounds(record, protocol, len(record) < rounds) for record in records]
    out = options.size_of(row) | {
        "seconds": round(time.perf_counter() - began, 1),
        "device": device_name(options.device),
        "draws": draws.VERSION,
        "models": _collected(seed.best() for seed in seeds)
        | _collected(seed.latency() for seed in seeds)
        | _collected(seed.quantities(row.quantities) for seed in seeds),
        "area": _collected(seed.areas() for seed in seeds),
    }
    if curves:
        out["curve"] = _curves(records)
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
    groups = [experiments]
    if difference(experiments) is not None:
        groups = [[experiment] for experiment in experiments]
    out = []
    reasons = []
    for number, group in enumerate(groups):
        together = runs(group)
        try:
            play(together, [_Ticking(tick, number, group[0].rounds, len(groups))])
        except DivergedError as error:
            reasons.append(str(error).partition(";")[0])
        out += _scored_to_the_end(together)
    return out, "; ".join(reasons)


@dataclass(eq=False)
class _Ticking(RunTracker):
    """Says after every round which share of all groups is done."""

    tick: Tick
    group: int
    rounds: int
    groups: int

    def log(self, records: Sequence[Round]) -> None:
        done = (records[0].round + 1) / self.rounds
        self.tick((self.group + done) / self.groups)


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


def _collected(seeds: Iterable[Iterable[tuple[str, float]]]) -> dict[str, list[float]]:
    """The figures of all seeds, by name; of those seeds that have them."""
    out: dict[str, list[float]] = {}
    for name, value in itertools.chain(*seeds):
        out.setdefault(name, []).append(value)
    return out


def _curves(histories: Sequence[Sequence[Round]]) -> dict[str, dict[int, float]]:
    """The mean of the seeds that were scored in a round, by model and by rounds until then."""
    accuracies: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in itertools.chain(*histories):
        for model in record.models:
            accuracies[model][record.round + 1].append(accuracy(record, model))
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
    kind: type[Algorithm] | None = None,
) -> Experiment:
    """One seed of a row, made as `covey run` makes it, with its own weights, partition and draws.

    `kind` is run in place of the row's algorithm.
    """
    shards = load(row, seed, options)
    table = experiment_table(row, protocol, options, shards.devices)
    trains = ALGORITHMS[row.algorithm["name"]].idle_trains
    if kind is not None:
        table["algorithm"]["name"] = f"{kind.__module__}:{kind.__name__}"
        trains = kind.idle_trains
    if row.sections or not trains:
        table["idle"] = "skip"  # a plan has no ratio for a device it excludes
    config = read(table)
    return assemble.experiment(config, seed, World.of(config, seed, shards))


def load(row: Row, seed: int, options: Options) -> Shards:
    """The data of one seed of a row; with a seed of its own it is the same for all runs."""
    fields = dict(row.data)
    seed = fields.pop("seed", seed)
    return _shards(tuple(sorted(fields.items())), seed, options.data_dir)


@lru_cache(maxsize=8)
def _shards(fields: tuple[tuple[str, Any], ...], seed: int, data_dir: str | None) -> Shards:
    """The data of one seed; the rows of a setting share it."""
    shards: Shards = named.make("data", dict(fields), seed=seed, data_dir=data_dir)
    return shards


def experiment_table(
    row: Row, protocol: Protocol, options: Options, devices: int
) -> dict[str, Any]:
    """A row as an experiment file states it; so many devices draw their places and cycles."""
    table: dict[str, Any] = {
        "algorithm": dict(row.algorithm),
        "data": {name: value for name, value in row.data.items() if name != "seed"},
        "model": dict(row.model),
        "tree": dict(row.tree),
        "idle": row.idle,
        "protocol": protocol,
        "parts": _PARTS[protocol],
        "rounds": options.rounds_of(row),
        "score_every": options.score_every_of(row),
        "device": options.device,
        "compute": options.compute,
        **row.links,
    }
    if row.model["name"] == "vgg" and "outputs" in row.model:
        table["model"]["classes"] = table["model"].pop("outputs")
    for name, section in row.sections.items():
        table[name] = rooms.load(rooms.added("rows")[name])(section, devices)
    return table
