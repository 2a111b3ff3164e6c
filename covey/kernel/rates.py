"""Schedules of an algorithm's own rates, such as the step size of a server or an edge.

In every round the runtime plays the algorithm with the rates of that round. Every node computes
them from the round's number, so nothing is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from covey.engine.solvers.optimiser import SCHEDULES, factor
from covey.errors import ConfigError, meant, shown
from covey.kernel.algorithm import Algorithm


@dataclass(frozen=True)
class Rates:
    """The schedules of some fields over the rounds of a run; without any, rates are constant."""

    schedules: tuple[tuple[str, str], ...] = ()
    rounds: int = 1

    def of(self, algorithm: Algorithm, round: int) -> Algorithm:
        """The algorithm with the rates of a round; itself where they are constant."""
        if not self.schedules:
            return algorithm
        changed: Any = algorithm
        values = {}
        for name, schedule in self.schedules:
            scale = factor(schedule, round, self.rounds)
            value = getattr(algorithm, name)
            if isinstance(value, float):
                values[name] = value * scale
            else:
                values[name] = type(value)(entry * scale for entry in value)
        scaled: Algorithm = replace(changed, **values)
        return scaled


CONSTANT = Rates()


def rates(schedules: Mapping[str, str], algorithm: Algorithm, rounds: int) -> Rates:
    """The rates of an experiment; an error for a field without rates, or an unknown schedule."""
    if not isinstance(schedules, Mapping):
        example = '{"server_lr": "cosine"}'
        raise ConfigError(f"schedules = {shown(schedules)}: give a table such as {example}.")
    box: Any = algorithm  # a dataclass, as all algorithms are
    for name, schedule in schedules.items():
        kind = type(algorithm).__name__
        able = [field.name for field in fields(box) if _is_rate(algorithm, field.name)]
        if name not in able:
            have = ", ".join(able) or "none"
            hint = meant(name, able)
            raise ConfigError(
                f"schedules: {kind} has no rate {shown(name)}{hint}; its rates are: {have}."
            )
        if schedule not in SCHEDULES:
            listed = ", ".join(SCHEDULES)
            hint = meant(schedule, SCHEDULES)
            raise ConfigError(
                f"schedules: {name} = {shown(schedule)}{hint}; choose one of {listed}."
            )
    varying = {name: value for name, value in schedules.items() if value != "constant"}
    if not varying:
        return CONSTANT
    made = Rates(tuple(sorted(varying.items())), rounds)
    made.of(algorithm, rounds - 1)  # the smallest rates are in their ranges too
    return made


def _is_rate(algorithm: Algorithm, name: str) -> bool:
    """Whether a field holds a number that may become smaller, or one for every node."""
    value = getattr(algorithm, name)
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return all(isinstance(entry, float) for entry in value)
    return isinstance(value, float)
