"""Early stopping: a run ends where its models no longer get better on validation data.

`stop = {patience = 5}` ends a run after 5 scored rounds in a row in which no model was better than
its best round before. The rule is a function of the records alone, so a run that is resumed counts
on from where it was. The model that is reported and saved is that of the chosen round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covey.errors import ConfigError, shown
from covey.fields import Count, NonNegative, read
from covey.runs.scores.record import Round

if TYPE_CHECKING:
    from covey.runs.experiment import Experiment

VALIDATION = "validation"
"""The part of the data that decides: never the test part."""
_EXAMPLE = "{patience = 5}"


@dataclass(frozen=True)
class EarlyStop:
    """When a run ends before its last round: after rounds in which no model got better."""

    patience: Count  # scored rounds in a row that are better for no model, after which a run ends
    metric: str = ""  # what models are compared by; "": as `select` says
    min_delta: NonNegative = 0.0  # by how much more than its best round so far a model is better
    min_rounds: Count = 1  # rounds before which no run ends
    model: str = ""  # the one model that counts; "", or one that there is not: all that are trained

    @property
    def text(self) -> str:
        """The rule in one line, by which a checkpoint says what ended its run."""
        return ", ".join(f"{name} = {value!r}" for name, value in vars(self).items())


Stop = EarlyStop | Mapping[str, Any] | None
"""A rule as an experiment has it: a table of its settings; None for none."""


def early_stop(spec: Any) -> EarlyStop | None:
    """The rule that an experiment or a file names; None for none. An error where it is no rule.

    >>> early_stop({"patience": 5, "metric": "f1"}).min_delta
    0.0
    """
    if spec is None or isinstance(spec, EarlyStop):
        return spec
    if not isinstance(spec, Mapping):
        raise ConfigError(f"stop = {shown(spec)}: give a table such as {_EXAMPLE}.")
    return read(EarlyStop, spec, "stop.")


class StopCount:
    """The count of an early stop over the records of one run.

    The metric of `stop` has a minus where lower is better, as an experiment sets it.
    """

    def __init__(self, stop: EarlyStop, experiment: Experiment) -> None:
        self.stop = stop
        self._experiment = experiment
        self._best: dict[str, float] = {}
        self._waited: dict[str, int] = {}
        self._counted: Sequence[Round] = ()

    def ended(self, history: Sequence[Round]) -> bool:
        """Whether the run ends after the last of these records."""
        counted = len(self._counted)
        if counted and (len(history) < counted or history[counted - 1] is not self._counted[-1]):
            # All of them anew, in a run that was restored.
            counted = 0
            self._best = {}
            self._waited = {}
        for record in history[counted:]:
            self._count(record)
        self._counted = history
        if len(history) < self.stop.min_rounds or not self._waited:
            return False
        return all(waited >= self.stop.patience for waited in self._waited.values())

    def _count(self, record: Round) -> None:
        """Count one more record; rounds that are scored only for being the last do not count."""
        if not record.models or not self._experiment.regular(record.round):
            return
        names = [name for name in record.models if not name.startswith("new_")]
        if self.stop.model in record.models:
            names = [self.stop.model]
        elif not self._experiment.algorithm.learns_global:
            names.remove("global")
        for name in names:
            model = record.models[name]
            figure = -math.inf  # higher for better
            if VALIDATION in model.scores:
                figure = model.quality(VALIDATION, self.stop.metric)
            if figure == -math.inf:
                continue
            if name not in self._best or figure > self._best[name] + self.stop.min_delta:
                self._best[name] = figure
                self._waited[name] = 0
            else:
                self._waited[name] += 1

    def reason(self, rounds: int) -> str:
        """Why a run ended after so many rounds."""
        stop = self.stop
        who = "no model got better"
        if stop.model:
            who = f"the {stop.model} model got no better"
        metric = stop.metric.removeprefix("-")
        by = f" by {metric}" if metric else ""
        if stop.min_delta:
            by += f" (min_delta {stop.min_delta:g})"
        return (
            f"stopped early after round {rounds} of {self._experiment.rounds}: {who} on validation "
            f"data{by} in {stop.patience} scored rounds in a row"
        )
