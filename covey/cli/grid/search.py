"""Where a sweep looks: on a grid, at random, or where optuna proposes.

A search names the settings of a number of trials. Those of a grid and of a random search are known
from the start; optuna's depend on the scores of earlier trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import numpy as np

from covey.cli.grid.axes import Axis
from covey.errors import ConfigError, install

Name = Literal["grid", "random", "optuna"]
NAMES: tuple[Name, ...] = ("grid", "random", "optuna")
TRIALS = 20
Settings = dict[str, Any]


class Search(Protocol):
    """The trials of a sweep, numbered from 0."""

    count: int

    def proposed(self, running: int) -> dict[int, Settings]:
        """The settings of all trials that may run by now, at most `running` of them undecided."""
        ...

    def tell(self, number: int, score: float) -> None:
        """The score of a trial has become known; -inf for one that failed."""
        ...


class Listed:
    """A search whose settings are known from the start."""

    def __init__(self, settings: Sequence[Settings]) -> None:
        self._settings = dict(enumerate(settings))
        self.count = len(settings)

    def proposed(self, running: int) -> dict[int, Settings]:
        return dict(self._settings)

    def tell(self, number: int, score: float) -> None:
        """Nothing depends on it."""


class Optuna:
    """The search of optuna's tree-structured Parzen estimator, seeded."""

    def __init__(
        self, axes: Sequence[Axis], count: int, seed: int, before: Mapping[int, Settings]
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._axes = {axis.key: axis for axis in axes}
        self._before = dict(before)  # settings of an earlier command's trials
        self._spaces = {axis.key: _distribution(axis) for axis in axes}
        sampler = optuna.samplers.TPESampler(seed=seed)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._asked: dict[int, Any] = {}
        self._settings: dict[int, Settings] = {}
        self.count = count

    def proposed(self, running: int) -> dict[int, Settings]:
        """Trials of before are known; others are asked for when a process is free."""
        for number in range(self.count):
            if number in self._settings:
                continue
            if number in self._before:
                self._settings[number] = self._before[number]
                continue
            if len(self._asked) >= running:
                break
            trial = self._study.ask(self._spaces)
            self._asked[number] = trial
            self._settings[number] = self._values(trial.params)
        return dict(self._settings)

    def tell(self, number: int, score: float) -> None:
        import optuna

        failed = optuna.trial.TrialState.FAIL
        if number in self._asked:
            trial = self._asked.pop(number)
            if math.isfinite(score):
                self._study.tell(trial, score)
            else:
                self._study.tell(trial, state=failed)
        elif number in self._before and math.isfinite(score):
            params = self._params(self._before[number])
            known = optuna.trial.create_trial(
                params=params, distributions=self._spaces, value=score
            )
            self._study.add_trial(known)

    def _values(self, params: Mapping[str, Any]) -> Settings:
        """Values of the keys; of a list, optuna knows the positions alone."""
        out = {}
        for key, value in params.items():
            axis = self._axes[key]
            if axis.is_list:
                out[key] = axis.values[value]
            elif axis.whole:
                out[key] = int(value)
            else:
                out[key] = float(f"{value:.4g}")
        return out

    def _params(self, settings: Settings) -> dict[str, Any]:
        out = {}
        for key, value in settings.items():
            axis = self._axes[key]
            out[key] = axis.values.index(value) if axis.is_list else value
        return out


def _distribution(axis: Axis) -> Any:
    from optuna import distributions as kinds

    if axis.is_list:
        return kinds.CategoricalDistribution(range(len(axis.values)))
    if axis.whole:
        return kinds.IntDistribution(int(axis.low), int(axis.high))
    return kinds.FloatDistribution(axis.low, axis.high, log=axis.log)


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


def random(axes: Sequence[Axis], count: int, seed: int) -> list[Settings]:
    """Independent uniform draws, uniform in the logarithm of a logarithmic range."""
    draws = np.random.default_rng(seed).random((count, len(axes)))
    return [
        {axis.key: axis.at(float(share)) for axis, share in zip(axes, row, strict=True)}
        for row in draws
    ]
