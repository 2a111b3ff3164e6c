"""Where trials look: on a grid, at random, or where optuna proposes.

The settings of a grid and of a random search are known from the start; optuna's depend on the
scores of earlier trials. A comparison has a search of its own (covey/grid/tune.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from covey.errors import ConfigError, install
from covey.grid.axes import Axis, Settings, product

NAMES = ("grid", "random", "optuna")
TRIALS = 20

Scores = Mapping[int, float]
"""The scores of the trials that have ended, by number from 0; -inf for one that failed."""


class Search(Protocol):
    """The settings of a number of trials."""

    def proposed(self, scores: Scores, running: int) -> list[Settings]:
        """The settings of all trials that may run by now, at most `running` of them undecided."""
        ...

    def total(self, scores: Scores) -> int:
        """The number of trials, as far as it is known."""
        ...


@dataclass(frozen=True)
class FixedSearch:
    """A search whose settings are known from the start."""

    settings: list[Settings]

    def proposed(self, scores: Scores, running: int) -> list[Settings]:
        return self.settings

    def total(self, scores: Scores) -> int:
        return len(self.settings)


class Optuna:
    """The search of optuna's tree-structured Parzen estimator, seeded.

    `before` are the settings of an earlier command's trials.
    """

    def __init__(
        self, axes: Sequence[Axis], count: int, seed: int, before: Mapping[int, Settings]
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._axes = {axis.key: axis for axis in axes}
        self._before = before
        self._spaces = {axis.key: _space(axis) for axis in axes}
        sampler = optuna.samplers.TPESampler(seed=seed)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._asked: dict[int, Any] = {}
        self._told: set[int] = set()
        self._settings: list[Settings] = []
        self._count = count

    def proposed(self, scores: Scores, running: int) -> list[Settings]:
        for number in sorted(scores.keys() - self._told):
            self._tell(number, scores[number])
        for number in range(len(self._settings), self._count):
            if number in self._before:
                self._settings.append(self._before[number])
                continue
            if len(self._asked) >= running:
                break
            self._asked[number] = self._study.ask(self._spaces)
            params = self._asked[number].params.items()
            self._settings.append({key: _value(self._axes[key], param) for key, param in params})
        return list(self._settings)

    def total(self, scores: Scores) -> int:
        return self._count

    def _tell(self, number: int, score: float) -> None:
        import optuna

        self._told.add(number)
        if number in self._asked:
            trial = self._asked.pop(number)
            if math.isfinite(score):
                self._study.tell(trial, score)
            else:
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        elif math.isfinite(score):
            params = {}
            for key, value in self._before[number].items():
                listed = self._axes[key].values
                params[key] = listed.index(value) if listed else value
            known = optuna.trial.create_trial(
                params=params, distributions=self._spaces, value=score
            )
            self._study.add_trial(known)


def _space(axis: Axis) -> Any:
    """Where optuna looks for a value; of a list, it knows the positions alone."""
    from optuna import distributions as kinds

    if axis.values:
        return kinds.CategoricalDistribution(range(len(axis.values)))
    if axis.whole:
        return kinds.IntDistribution(int(axis.low), int(axis.high))
    return kinds.FloatDistribution(axis.low, axis.high, log=axis.log)


def _value(axis: Axis, param: Any) -> Any:
    """The value that optuna's parameter stands for."""
    if axis.values:
        return axis.values[param]
    return int(param) if axis.whole else float(f"{param:.4g}")


def check(name: str, trials: int | None) -> None:
    """Refuse a search that there is not, or that does not go with a number of trials."""
    if name not in NAMES:
        raise ConfigError(f"--search {name}: give {', '.join(NAMES[:-1])} or {NAMES[-1]}.")
    if name == "grid" and trials is not None:
        raise ConfigError(
            f"--trials {trials}: a grid tries all its combinations; "
            "leave it out, or take --search random."
        )
    if trials is not None and trials < 1:
        raise ConfigError(f"--trials {trials}: give 1 or more.")
    if name == "optuna" and find_spec("optuna") is None:
        raise ConfigError(f"--search optuna needs optuna; {install('optuna')}.")


def named(
    name: str,
    axes: Sequence[Axis],
    count: int,
    seed: int,
    before: Mapping[int, Settings],
) -> Search:
    """The search of this name; `before` are the settings of trials that have ended."""
    if name == "optuna":
        return Optuna(axes, count, seed, before)
    if name == "random":
        return FixedSearch(random(axes, count, seed))
    return FixedSearch(list(product(axes)))


def random(axes: Sequence[Axis], count: int, seed: int) -> list[Settings]:
    """Independent uniform draws, uniform in the logarithm of a logarithmic range."""
    draws = np.random.default_rng(seed).random((count, len(axes)))
    return [
        {axis.key: axis.at(float(share)) for axis, share in zip(axes, row, strict=True)}
        for row in draws
    ]
