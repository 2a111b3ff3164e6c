"""The figures of single nodes in one scored round, as a line of text.

A run's record has sums over devices. These are the addends, on test data: what a report needs to
show one device, and what would make a record too long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from covey.engine.metrics import Confusion, is_figure
from covey.runs.choice import Chosen, label_in
from covey.runs.devices import ABSOLUTE, COUNT, HOLDS, LOSS, METRICS, RIGHT, SQUARED, Sums
from covey.runs.packing import Array, pack, unpack

if TYPE_CHECKING:
    from covey.runs.seed import Seed

Metric = Literal["accuracy", "rmse", "loss"]
"""What devices are compared by: right answers, squared errors, or the loss alone."""
_COLUMN: dict[Metric, int] = {"accuracy": RIGHT, "rmse": SQUARED, "loss": LOSS}
_PART = "test"


@dataclass(frozen=True, eq=False)
class NodeRound:
    """One scored round, counted from 0; every figure is by model.

    `devices` and `newcomers` are sums over each device's test examples: right answers, squared
    errors or losses. A sum is NaN where a device has no such examples or was not scored. `nonzeros`
    and `holds` are of the models for which this is the best round so far: the share of non-zeros of
    each node of the model's tier (NaN: it keeps none), and whether a device uses such a model or,
    for want of one, the global model. `metrics` are the values of those that the experiment asks
    for, by metric and then by model; a metric of several devices does not follow from them.
    """

    round: int
    metric: Metric
    devices: Mapping[str, Array]
    newcomers: Mapping[str, Array] = field(default_factory=dict)
    nonzeros: Mapping[str, Array] = field(default_factory=dict)
    holds: Mapping[str, Array] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)

    def line(self) -> str:
        """As one line of JSON."""
        whole = self.metric == "accuracy"
        facts: dict[str, Any] = {
            "round": self.round,
            "metric": self.metric,
            "devices": _packed(self.devices, whole=whole),
            "newcomers": _packed(self.newcomers, whole=whole),
            "nonzeros": _packed(self.nonzeros, whole=False),
            "holds": _packed(self.holds, whole=True),
        }
        if self.metrics:
            packed = {name: _packed(values, whole=False) for name, values in self.metrics.items()}
            facts["metrics"] = packed
        return json.dumps(facts, separators=(",", ":"))


def read(line: str) -> NodeRound:
    """The round in a line; a ValueError where it is none."""
    try:
        facts = json.loads(line)
        names = ("devices", "newcomers", "nonzeros", "holds")
        arrays = {name: _unpacked(facts[name]) for name in names}
        metrics = {name: _unpacked(values) for name, values in facts.get("metrics", {}).items()}
        return NodeRound(int(facts["round"]), facts["metric"], metrics=metrics, **arrays)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"a line that holds no round of nodes: {error!r}") from error


def metric_of(run: Seed) -> Metric:
    """What the devices of a run are compared by."""
    if run.runtime.task.classifies:
        return "accuracy"
    if run.runtime.task.targets:
        return "rmse"
    return "loss"


def of(run: Seed) -> NodeRound | None:
    """The figures of the round that was run last; None where it was not scored on test data."""
    observed = run.observed
    if observed is None:
        return None
    metric = metric_of(run)
    scored = {model: sums for model, (_, sums) in run.scored.items() if _PART in sums}
    if not scored:
        return None
    round = run.round - 1
    nonzeros = {}
    holds = {}
    for name, sums in scored.items():
        if _chosen_in(run.chosen, name, round):
            nonzeros[name] = _known(observed.nonzeros[name].dense())
            holds[name] = sums[_PART].dense()[:, HOLDS].numpy()
    return NodeRound(
        round,
        metric,
        devices=_all_sums(scored, metric),
        newcomers=_all_sums(observed.newcomers, metric),
        nonzeros=nonzeros,
        holds=holds,
        metrics=_all_metrics(scored, run),
    )


def _chosen_in(chosen: Mapping[str, Chosen], name: str, round: int) -> bool:
    """Whether a model's best round so far is this one."""
    label = label_in(chosen, name)
    return label is not None and chosen[label].round == round


def _all_sums(models: Mapping[str, Sums], metric: Metric) -> dict[str, Array]:
    return {name: _sums(sums, metric) for name, sums in models.items()}


def _all_metrics(models: Mapping[str, Sums], run: Seed) -> dict[str, dict[str, Array]]:
    """The values of metrics of every device on test data, by metric and model."""
    out: dict[str, dict[str, Array]] = {}
    figures = [metric.name for metric in run.runtime.task.metrics if is_figure(metric)]
    for name in metric_names(run):
        if name in figures:
            column = METRICS + figures.index(name)
            out[name] = {model: _values(sums, column) for model, sums in models.items()}
        elif name in _MEANS and name != metric_of(run):
            column = _MEANS[name]
            out[name] = {model: _means(sums, column) for model, sums in models.items()}
    return out


_MEANS = {"loss": LOSS, "mae": ABSOLUTE}
"""Metrics of every record that are means over examples, and the column of their sums."""


def metric_names(run: Seed) -> dict[str, bool]:
    """The metrics that an experiment asks for and that are figures; whether higher is better."""
    metrics = run.runtime.task.metrics
    out = {metric.name: metric.higher for metric in metrics if not isinstance(metric, Confusion)}
    select = run.experiment.select
    if select:
        out[select.removeprefix("-")] = not select.startswith("-")
    return out


def _values(sums: Sums, column: int) -> Array:
    """A column of every device; NaN where nothing was counted."""
    part = sums[_PART].dense()
    values: Array = part[:, column].numpy()
    return np.where(part[:, COUNT].numpy() > 0, values, np.nan)


def _means(sums: Sums, column: int) -> Array:
    """The mean over examples of every device; NaN where nothing was counted."""
    counts = _values(sums, COUNT)
    return _values(sums, column) / counts


def _sums(sums: Sums, metric: Metric) -> Array:
    """The sum of every device on test data; NaN where nothing was counted."""
    return _values(sums, _COLUMN[metric])


def _known(shares: Tensor) -> Array:
    """Shares of non-zeros, NaN where there is none."""
    values: Array = shares.numpy()
    return np.where(values < 0, np.nan, values)


def _packed(arrays: Mapping[str, Array], *, whole: bool) -> dict[str, Any]:
    return {name: pack(values, whole=whole) for name, values in arrays.items()}


def _unpacked(packed: Mapping[str, Any]) -> dict[str, Array]:
    return {str(name): unpack(values) for name, values in packed.items()}
