"""One cell of a grid: a setting run on some seeds, within a budget.

A trial is scored on validation data alone, and never sees test data. A final run has everything
that the table needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import covey
from covey.errors import ConfigError
from covey.files import config as files
from covey.files import modules
from covey.files.assemble import Experiments, play_groups, side_by_side
from covey.files.config import Config
from covey.folder.recording import private_layers
from covey.grid.axes import Settings
from covey.report.summary import Histories, compared_models
from covey.runs.experiment import Experiment
from covey.runs.run import Round
from covey.runs.scores.devices import to_csv
from covey.runs.scores.headline import selected
from covey.runs.seed import Seed
from covey.runs.tracker import RunTracker
from covey.runs.tracker import play as play_rounds

Unit = Literal["gradients", "examples", "bytes", "seconds"]
_SCORING = ("rounds", "score_every", "algorithm", "name", "seeds", "compare", "checkpoint_every")
"""Keys of a file that change neither data nor model nor tree."""


@dataclass(frozen=True)
class Budget:
    """How much each method may use in one seed."""

    unit: Unit
    amount: float


@dataclass(frozen=True)
class Cell:
    """What to run: a file as a table, some seeds, and perhaps a budget.

    `beside` is the folder of the user's file, in which modules of their own may lie.
    """

    purpose: Literal["trial", "final"]
    config: dict[str, Any]
    seeds: list[int]
    settings: Settings = field(default_factory=dict)  # that the file has in place of its own
    beside: str | None = None
    budget: Budget | None = None
    model: str = ""  # that a trial is scored by, if there is one of that name; else the best


def play(cell: Cell) -> dict[str, Any]:
    """Run a cell; its result, as JSON can hold it."""
    if cell.beside is not None:
        modules.look_beside(Path(cell.beside) / "file")
    config = files.read(cell.config)
    prepared = _experiments(config)
    experiments = {seed: prepared.of(config, seed) for seed in cell.seeds}
    if cell.purpose == "trial":
        return _trial(cell, config, experiments)
    return {"seeds": _final(cell, config, experiments)}


def cost(record: Round, unit: Unit, experiment: Experiment) -> float:
    """What one round used."""
    if unit == "gradients":
        return record.gradients
    if unit == "examples":
        return record.gradients * batch_size(experiment)
    if unit == "bytes":
        return record.bytes()
    return record.modelled_seconds


def batch_size(experiment: Experiment) -> float:
    """The examples of a gradient: the algorithm's `batch`, or all that a device has, on average."""
    algorithm: Any = experiment.algorithm
    if not hasattr(algorithm, "batch"):
        fault = f"{type(algorithm).__name__} has no field batch"
        raise ConfigError(f"--budget examples: {fault}; take --budget gradients or bytes.")
    counts = experiment.protocol_data().train.counts()
    return float(algorithm.batch or counts[counts > 0].double().mean())


_prepared: tuple[str, Experiments] = ("", Experiments())


def _experiments(config: Config) -> Experiments:
    """The data, models and trees of this process; those of the last cell if they are the same."""
    global _prepared
    table = {key: value for key, value in config.resolved().items() if key not in _SCORING}
    text = json.dumps(table, sort_keys=True)
    if text != _prepared[0]:
        _prepared = (text, Experiments())
    return _prepared[1]


def _run(cell: Cell, config: Config, experiments: Sequence[Experiment]) -> Sequence[Seed]:
    """Experiments side by side after their last round within the budget."""
    runs = covey.runs(experiments, store=config.store)
    play_rounds(runs, [Spending(cell.budget, runs.experiment)])
    return runs.seeds


def _trial(cell: Cell, config: Config, experiments: Mapping[int, Experiment]) -> dict[str, Any]:
    """The score on validation data: the mean over seeds of the model that is best by it."""
    each = {seed: validated(experiment) for seed, experiment in experiments.items()}
    histories: list[Sequence[Round]] = []
    for group in side_by_side(cell.seeds, list(each.values()), "simulator"):
        histories += [run.history for run in _run(cell, config, [each[seed] for seed in group])]
    model, score = best_model(histories, cell.model)
    records = [chosen(history, model) for history in histories]
    metric = selected(records[0].models[model])
    return {
        "score": score,
        "metric": metric.name if metric.higher else f"-{metric.name}",
        "model": model,
        "chosen_round": [record.round + 1 for record in records],
        "rounds": len(histories[0]),
        "seconds": sum(record.seconds for history in histories for record in history),
    }


def _final(cell: Cell, config: Config, experiments: Mapping[int, Experiment]) -> dict[str, Any]:
    """The records and the devices of every seed; of one that diverged, the error."""
    out: dict[str, Any] = {}

    def play_group(group: list[int]) -> None:
        runs = _run(cell, config, [experiments[seed] for seed in group])
        for seed, run in zip(group, runs, strict=True):
            out[str(seed)] = {
                "history": [record.as_dict() for record in run.history],
                "devices": to_csv(run.devices()),
                "private": private_layers(run),
            }

    groups = side_by_side(cell.seeds, list(experiments.values()), "simulator")
    for seed, error in play_groups(groups, play_group).items():
        out[str(seed)] = {"error": str(error), "diverged": True}
    return out


@dataclass(eq=False)
class Spending(RunTracker):
    """Ends a run after which a budget, where there is one, has no room for a round like the last.

    Of seeds side by side, the one that uses most decides.
    """

    budget: Budget | None
    experiment: Experiment
    used: float = 0.0

    def log(self, records: Sequence[Round]) -> bool:
        if self.budget is None:
            return False
        last = max(cost(record, self.budget.unit, self.experiment) for record in records)
        self.used += last
        return self.used + last > self.budget.amount


def validated(experiment: Experiment) -> Experiment:
    """The experiment with scores on validation data alone."""
    return replace(experiment, parts=("validation",), score_train_every=None)


def best_model(histories: Histories, asked: str = "") -> tuple[str, float]:
    """The model that is best on validation data, by the mean over seeds, and that mean.

    It is the model that is `asked` for where there is one of that name.
    """
    scores = {}
    names = compared_models(histories[0])
    for name in [asked] if asked in names else names:
        records = [chosen(history, name) for history in histories]
        scores[name] = mean(record.models[name].quality("validation") for record in records)
    best = max(scores, key=lambda name: scores[name])
    return best, scores[best]


def chosen(history: Sequence[Round], model: str) -> Round:
    """The round that validation data choose; the first of equal ones."""
    scored = [record for record in history if model in record.models]
    return max(scored, key=lambda record: record.models[model].quality("validation"))
