"""Early stopping: a run ends where its models no longer get better on validation data.

`stop = {patience = 5}` ends a run after 5 scored rounds in a row in which no model was better than
its best round before. The rule is a function of the records alone, so a run that is resumed counts
on from where it was. The model that is reported and saved is that of the chosen round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from covey.errors import ConfigError, meant, shown
from covey.kernel.fields import LARGEST
from covey.runs.record import Round
from covey.runs.scoring import Model

if TYPE_CHECKING:
    from covey.runs.experiment import Experiment

VALIDATION = "validation"
"""The part of the data that decides: never the test part."""
_EXAMPLE = "{patience = 5}"
_MOST = 2**53


@dataclass(frozen=True)
class EarlyStop:
    """When a run ends before its last round.

    A model's round is better where `metric` is better than in the model's best round so far by more
    than `min_delta`. The run ends after `patience` scored rounds in a row that are better for no
    model, but not before `min_rounds` rounds. `metric` "" is the one that chooses rounds, as
    `select` says. `model` names the one model that counts; "" or one that
    the algorithm does not have counts all that it trains.
    """

    patience: int
    metric: str = ""
    min_delta: float = 0.0
    min_rounds: int = 1
    model: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Every setting, as a file has them."""
        return asdict(self)

    @property
    def text(self) -> str:
        """The rule in one line, by which a checkpoint says what ended its run."""
        return ", ".join(f"{name} = {value!r}" for name, value in self.as_dict().items())


Stop = Mapping[str, Any] | EarlyStop | None
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
    known = [field.name for field in fields(EarlyStop)]
    for key in spec:
        if key not in known:
            hint = meant(key, known)
            raise ConfigError(f"stop has no setting {key!r}{hint}; it has {', '.join(known)}.")
    if "patience" not in spec:
        raise ConfigError(f"stop lacks patience; give a table such as {_EXAMPLE}.")
    out = EarlyStop(**spec)
    _check(out)
    return out


def _check(stop: EarlyStop) -> None:
    for name in ("patience", "min_rounds"):
        value = getattr(stop, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 1 <= value <= _MOST:
            raise ConfigError(f"stop: {name} = {shown(value)}; give a whole number of 1 or more.")
    delta = stop.min_delta
    number = isinstance(delta, int | float) and not isinstance(delta, bool)
    if not number or not 0 <= delta <= LARGEST:
        rule = f"give a number of 0 or more, {LARGEST:g} at most, in units of the metric"
        raise ConfigError(f"stop: min_delta = {shown(delta)}; {rule}.")
    for name, meaning in (("metric", "a metric"), ("model", "a model")):
        value = getattr(stop, name)
        if not isinstance(value, str):
            raise ConfigError(f"stop: {name} = {shown(value)}; give the name of {meaning}.")


class Patience:
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
        for record in self._new(history):
            self._count(record)
        self._counted = history
        if len(history) < self.stop.min_rounds or not self._waited:
            return False
        return all(waited >= self.stop.patience for waited in self._waited.values())

    def _new(self, history: Sequence[Round]) -> Sequence[Round]:
        """The records that were not counted yet: all of them in a run that was restored."""
        counted = len(self._counted)
        if counted == 0 or (len(history) >= counted and history[counted - 1] is self._counted[-1]):
            return history[counted:]
        self._best = {}
        self._waited = {}
        return history

    def _count(self, record: Round) -> None:
        """Count one more record; rounds that are scored only for being the last do not count."""
        if not record.models or not self._experiment.regular(record.round):
            return
        for name in self._models(record):
            figure = self._figure(record.models[name])
            if figure == -math.inf:
                continue
            if name not in self._best or figure > self._best[name] + self.stop.min_delta:
                self._best[name] = figure
                self._waited[name] = 0
            else:
                self._waited[name] += 1

    def _models(self, record: Round) -> list[str]:
        """The models whose scores count."""
        if self.stop.model in record.models:
            return [self.stop.model]
        names = [name for name in record.models if not name.startswith("new_")]
        if self._experiment.algorithm.learns_global:
            return names
        return [name for name in names if name != "global"]

    def _figure(self, model: Model) -> float:
        """The figure on validation data, higher for better; -inf where it is unknown."""
        if VALIDATION not in model.scores:
            return -math.inf
        return model.quality(VALIDATION, self.stop.metric)

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
