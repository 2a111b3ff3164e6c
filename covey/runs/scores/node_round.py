"""The figures of single nodes in one scored round, as a line of text.

A run's record has sums over devices. These are the addends, on test data: what a report needs to
show one device, and what would make a record too long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.engine.measures.metrics import COUNT, HOLDS, own_figures
from covey.runs.models import label_in
from covey.runs.scores.figures import METRICS, Sums
from covey.runs.scores.packing import Array, pack, unpack

if TYPE_CHECKING:
    from covey.runs.seed import Seed

_PART = "test"
_ARRAYS = ("devices", "newcomers", "nonzeros", "holds")


@dataclass(frozen=True, eq=False)
class NodeRound:
    """One scored round, counted from 0; every figure is by model.

    `metric` is what devices are compared by, the first of every record. `devices` and `newcomers`
    are sums over each device's test examples: right answers, squared errors or losses. A sum is NaN
    where a device has no such examples or was not scored. `nonzeros` and `holds` are of the models
    for which this is the best round so far: the share of non-zeros of each node of the model's tier
    (NaN: it keeps none), and whether a device uses such a model or, for want of one, the global
    model. `metrics` are the values of those that the experiment asks for, by metric and then by
    model; a metric of several devices does not follow from them.
    """

    round: int
    metric: str
    devices: Mapping[str, Array]
    newcomers: Mapping[str, Array] = field(default_factory=dict)
    nonzeros: Mapping[str, Array] = field(default_factory=dict)
    holds: Mapping[str, Array] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)

    def line(self) -> str:
        """As one line of JSON."""
        counts = self.metric == "accuracy"
        facts: dict[str, Any] = {"round": self.round, "metric": self.metric}
        whole = {"devices": counts, "newcomers": counts, "nonzeros": False, "holds": True}
        for name in _ARRAYS:
            facts[name] = _packed(getattr(self, name), whole=whole[name])
        if self.metrics:
            facts["metrics"] = {
                name: _packed(values, whole=False) for name, values in self.metrics.items()
            }
        return json.dumps(facts, separators=(",", ":"))


def read(line: str) -> NodeRound:
    """The round in a line; a ValueError where it is none."""
    try:
        facts = json.loads(line)
        arrays = {name: _unpacked(facts[name]) for name in _ARRAYS}
        metrics = {name: _unpacked(values) for name, values in facts.get("metrics", {}).items()}
        return NodeRound(int(facts["round"]), facts["metric"], metrics=metrics, **arrays)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"a line that holds no round of nodes: {error!r}") from error


def of(run: Seed) -> NodeRound | None:
    """The figures of the round that was run last; None where it was not scored on test data."""
    observed = run.observed
    if observed is None:
        return None
    scored = {model: sums for model, (_, sums) in run.scored.items() if _PART in sums}
    if not scored:
        return None
    round = run.round - 1
    nonzeros = {}
    holds = {}
    for name, sums in scored.items():
        label = label_in(run.chosen, name)
        if label is not None and run.chosen[label].round == round:
            values: Array = observed.nonzeros[name].dense().numpy()
            nonzeros[name] = np.where(values < 0, np.nan, values)
            holds[name] = sums[_PART].dense()[:, HOLDS].numpy()
    first, *others = run.runtime.task.metrics
    assert first.mean is not None
    own = own_figures(others)
    by_name = {metric.name: metric for metric in others}
    metrics: dict[str, dict[str, Array]] = {}
    for name in metric_names(run):
        metric = by_name.get(name)
        if metric is not None and metric in own:
            metrics[name] = _values(scored, METRICS + own.index(metric))
        elif metric is not None and metric.mean is not None and metric.mean.is_plain:
            counts = _values(scored, COUNT)
            totals = _values(scored, metric.mean.column)
            metrics[name] = {model: totals[model] / counts[model] for model in scored}
    return NodeRound(
        round,
        first.name,
        devices=_values(scored, first.mean.column),
        newcomers=_values(observed.newcomers, first.mean.column),
        nonzeros=nonzeros,
        holds=holds,
        metrics=metrics,
    )


def metric_names(run: Seed) -> dict[str, bool]:
    """The metrics that an experiment asks for and that are figures; whether higher is better."""
    task = run.runtime.task
    known = {metric.name: metric.higher for metric in task.metrics}
    out = {name: known[name] for name in task.asked if name in known}
    select = run.experiment.select
    if select:
        out[select.removeprefix("-")] = not select.startswith("-")
    return out


def _values(models: Mapping[str, Sums], column: int) -> dict[str, Array]:
    """A column of every device, by model; NaN where nothing was counted."""
    out = {}
    for name, sums in models.items():
        part = sums[_PART].dense()
        values: Array = part[:, column].numpy()
        out[name] = np.where(part[:, COUNT].numpy() > 0, values, np.nan)
    return out


def _packed(arrays: Mapping[str, Array], *, whole: bool) -> dict[str, Any]:
    return {name: pack(values, whole=whole) for name, values in arrays.items()}


def _unpacked(packed: Mapping[str, Any]) -> dict[str, Array]:
    return {str(name): unpack(values) for name, values in packed.items()}
