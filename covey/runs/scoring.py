"""Scores of every model: sums that devices add up through the same `ask`, and their figures.

For each model and part of the data a device answers its right answers, loss, count, accuracy, 1 and
a histogram of accuracy. Where numbers are predicted, it also answers its sums of |error|, error^2,
y^2 and y, from which RMSE, MAE and R2 of all devices follow. The sums of the metrics that an
experiment asks for come last (covey/engine/metrics.py). A node that keeps a model sends it to
all devices under it. Where an algorithm leaves layers private, each device scores the model with
its own private layers. Where a node keeps no model yet, the global one stands in: figures are given
over the holders alone and, beside them, with that fallback. The mean and the worst tenth of devices
are over all devices.

A device with fewer than `least` examples of a part answers its right answers and their count alone,
in columns of their own. Nodes above add these up, and send on those of `least` examples or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from covey.engine import calibration, smooth_l1
from covey.engine.calibration import Calibration
from covey.engine.metrics import Confusion, Metric, Recorded, is_figure
from covey.engine.tally import error_columns
from covey.engine.task import PartScore, Predict, Task
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Drawn, Nodes
from covey.kernel.replies import Exact, exact
from covey.runs.devices import (
    ABSOLUTE,
    COUNT,
    HOLDS,
    METRICS,
    MOST_EXAMPLES,
    RIGHT,
    perplexity,
    root,
)
from covey.runs.observed import NONZEROS, UNKNOWN
from covey.tree import Topology
from covey.types import Ids, Rows

_BINS = 101
_SUMS = 5 + _BINS + 3
"""Of the holders: right, loss, count and, after everybody's accuracy, 1; of everybody: a histogram
of accuracy, right, loss, count."""
_OF_HOLDERS = [0, 1, 2, 4]
_FEW = 7
"""Of devices with few examples: right, count, examples of holders; the same of all; devices."""
_FACTS = 3
"""Holders, the sum of their ages, the sum of their shares of non-zeros.

With a cut, the sum of their angles and of their layers' shares follow.
"""

_STREAM = "score"
"""The address of the draw of devices."""
SUMS = "sums"
"""The end of the name under which devices that were drawn report the sums of metrics."""
_ROUNDING = 1e-9
"""Sums of the same numbers in another order may differ by this, relative to their size."""
_LARGEST = 1e300
"""Stands for what is infinite where figures of devices are added up."""
_MOST_SUMS = 4096
"""A metric of more sums has no standard error: AUC of three classes or more."""


@dataclass(frozen=True)
class Score:
    """One model on one part of the data.

    Accuracies are shares, None for regression or where nobody has an example.
    """

    accuracy: float | None  # all examples alike, so a device weighs as many as it has
    accuracy_uniform: float | None  # mean of all devices; the global model where none is held
    worst_decile: float | None  # of the worst tenth of all devices, to 0.01; as `accuracy_uniform`
    loss: float | None  # mean over examples
    devices: int  # devices with examples that hold the model or stand under a holder
    accuracy_fallback: float | None  # over all devices; the global model where none is held
    loss_fallback: float | None  # as `accuracy_fallback`
    rmse: float | None = None  # root of the mean squared error over examples; None for classes
    mae: float | None = None  # mean absolute error
    r2: float | None = None
    """1 - squared errors / squared distances of targets from their mean; None if all are equal."""
    rmse_fallback: float | None = None  # these three as `accuracy_fallback`
    mae_fallback: float | None = None
    r2_fallback: float | None = None
    sampled: int | None = None
    """Devices drawn to be scored; None: all were scored, and the next two are None too."""
    standard_error: float | None = None
    """Of `accuracy`, or of `loss` for regression (covey/runs/sampling.py)."""
    standard_error_fallback: float | None = None
    """Of `accuracy_fallback`, or of `loss_fallback` for regression."""
    perplexity: float | None = None
    """exp of the mean loss per token, where labels are per position; else None."""
    perplexity_fallback: float | None = None  # as `accuracy_fallback`
    metrics: dict[str, float | None] = field(default_factory=dict)
    """By name, those that the experiment asks for; None where nothing says what they are."""
    metrics_fallback: dict[str, float | None] = field(default_factory=dict)
    confusion: list[list[int]] | None = None
    """Examples of all devices by class and predicted class, where the experiment asks for it."""
    standard_errors: dict[str, float | None] = field(default_factory=dict)
    """Of `metrics` and of the RMSE, where devices were drawn to be scored."""
    standard_errors_fallback: dict[str, float | None] = field(default_factory=dict)
    uncounted: int | None = None
    """Devices with fewer than `least` examples, of which no figure but accuracy has any part.

    None where `least` is 1.
    """

    def figure(self, name: str) -> float | None:
        """The figure of a metric over all devices; the global model where none is held."""
        if name in self.metrics_fallback:
            return self.metrics_fallback[name]
        value: float | None = getattr(self, f"{name}_fallback", None)
        return value

    def error(self, name: str) -> float | None:
        """The standard error of `figure`; None where it is unknown, or all devices were scored."""
        if name in self.standard_errors_fallback:
            return self.standard_errors_fallback[name]
        usual = "loss" if self.accuracy_fallback is None else "accuracy"
        if name == usual:
            return self.standard_error_fallback
        return None


@dataclass(frozen=True)
class Model:
    """One kept model: its holders, its mean age and sparsity, its scores by part of the data."""

    tier: str
    holders: int
    age: float  # mean number of rounds since it was kept
    nonzeros: float  # mean share of entries above `cut`
    cut: float
    scores: dict[str, Score]
    angle: float | None = None
    """Mean angle between entries above `cut` and their signs, in degrees; None without a cut."""
    layers: dict[str, float] = field(default_factory=dict)
    """Mean share of non-zeros of every parameter; empty without a cut."""
    select: str = ""
    """The metric by which rounds are chosen, after a minus where lower is better.

    Empty: accuracy, or else the loss.
    """

    def quality(self, part: str, by: str = "") -> float:
        """The figure by which rounds are chosen; -inf where it is unknown.

        It is the metric that `by` or else `select` names, over all devices. By default it is the
        accuracy, or minus the loss for regression and where there is a perplexity. Devices that
        hold no such model yet count with the global one: else a round in which two lucky devices
        hold one would win.
        """
        score = self.scores[part]
        metric = by or self.select
        if metric:
            return _selected(score, metric)
        if score.accuracy_fallback is not None and score.perplexity_fallback is None:
            return score.accuracy_fallback
        if score.loss_fallback is None or math.isnan(score.loss_fallback):
            return -math.inf
        return -score.loss_fallback


def _selected(score: Score, select: str) -> float:
    """The figure that `select` names, negative where lower is better; -inf where it is unknown."""
    figure = score.figure(select.removeprefix("-"))
    if figure is None or math.isnan(figure):
        return -math.inf
    if select.startswith("-"):
        return -figure
    return figure


@dataclass(frozen=True)
class Scorer:
    """The programs that score: one for the top and one for every tier below."""

    algorithm: Algorithm
    names: tuple[tuple[str, str], ...]  # (tier, name) of every kept model, the upper tiers' first
    parts: tuple[str, ...]
    top: str = "server"
    classifies: bool = True
    targets: int = 0  # numbers predicted per example; 0 for classes
    slots: tuple[tuple[str, int, int], ...] = ()  # name and columns of every parameter
    bins: int = 0  # of confidence, for calibration; 0: none is wanted
    sample: int | None = None  # how many devices are asked, drawn anew in every round; None: all
    perplexity: bool = False  # whether exp of the mean loss is a perplexity
    metrics: int = 0  # how many sums the metrics follow from
    select: str = ""  # as `Model.select`
    least: int = 1  # examples of a part below which a device sends no sums of targets

    def parameters(self) -> dict[str, Any]:
        """Everything but the algorithm and `least`, in the types of JSON.

        Another machine, which has these two from its own experiment, can make the same scorer.
        """
        names = [field.name for field in fields(self)]
        return {name: getattr(self, name) for name in names if name not in ("algorithm", "least")}

    @staticmethod
    def made(algorithm: Algorithm, least: int, parameters: Mapping[str, Any]) -> Scorer:
        """The scorer that has these parameters."""
        values = dict(parameters)
        values["names"] = tuple((str(tier), str(name)) for tier, name in values["names"])
        slots = []
        for name, start, stop in values["slots"]:
            slots.append((str(name), int(start), int(stop)))
        values["slots"] = tuple(slots)
        values["parts"] = tuple(map(str, values["parts"]))
        return Scorer(algorithm, **values, least=least)

    def server(self, me: Nodes, w: Rows) -> Rows:
        """All sums, one row."""
        held = torch.ones(len(me), 1, dtype=torch.float64, device=w.device)
        age = torch.zeros_like(held)
        facts = self._facts(me, "global", w, held, age)
        return self._sums_of(me, [w, held], [facts])

    def node(self, me: Nodes, *above: Rows) -> Exact:
        """The sums of everything under these nodes.

        `above` holds rows and a flag "kept" for each model of the tiers above.
        """
        models = list(above)
        if me.leaf and self.algorithm.splits:
            personal = me.recall("personal", default=models[0])
            private = personal[:, me.private]
            for i in range(0, len(models), 2):
                shared = models[i][:, me.shared]
                models[i] = torch.cat([shared, private], dim=1)
        return exact(self._sums_of(me, models, []))

    def refusal(self, sums: Rows, reports: Mapping[str, Tensor]) -> str | None:
        """Why an answer of `node` from another machine cannot be true; None: it can.

        `sums` is the row of a subtree, [1, columns], and `reports` are the figures that its devices
        report beside it, by name.
        """
        values = sums[0]
        stride = len(self.parts) * self._width
        facts = values[len(self._model_names) * stride :]
        if bool((facts < 0).any()):
            return "negative sums of the ages or the non-zeros of models."
        for number, model in enumerate(self._model_names):
            for place, part in enumerate(self.parts):
                name = f"{model}/{part}"
                start = number * stride + place * self._width
                own = values[start : start + self._width]
                reported = reports.get(name, own.new_zeros(0, METRICS))
                reason = self._negative(own) or _false_report(reported)
                reason = reason or self._contradiction(own, reported)
                if reason is not None:
                    return f"scores {name!r} with {reason}"
        return None

    def _negative(self, own: Tensor) -> str | None:
        """Why the sums of one model on one part cannot be true."""
        of_metrics = self._width - 2 * self.metrics
        signed = torch.zeros(of_metrics, dtype=torch.bool)
        signed[[1, _SUMS - 2]] = True  # a loss may be negative
        if self._errors:
            errors = signed[of_metrics - 2 * self._errors :].view(2, self._errors)
            errors[:, 4:] = True  # and so may the numbers that are predicted
        if bool((own[:of_metrics] < 0)[~signed].any()):
            return "a negative count, or a negative sum of squares."
        return None

    def _contradiction(self, own: Tensor, reported: Tensor) -> str | None:
        """Why the sums of one model on one part are not those of the devices that report."""
        told = reported.nan_to_num(nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
        expected = own[_SUMS - 3 : _SUMS]
        have = told[:, :3]
        if self._errors:
            start = self._width - 2 * self.metrics - self._errors
            expected = torch.cat([expected, own[start : start + 2] / self.targets])
            have = torch.cat([have, told[:, ABSOLUTE:METRICS]], dim=1)
        size = have.abs().sum(0) + expected.abs()
        if bool(((have.sum(0) - expected).abs() > _ROUNDING * size).any()):
            return "sums that are not those of what devices report."
        return None

    def read(
        self, sums: Tensor, tree: Topology, metrics: Sequence[Metric] = ()
    ) -> dict[str, Model]:
        """The figures of every model by its name; "global" is the server's.

        `metrics` are those whose sums were asked for.
        """
        values = sums[0].tolist()
        keys = [(self.top, "global"), *self.names]
        stride = len(self.parts) * self._width
        facts = self._read_facts(values[len(keys) * stride :], tree)
        out = {}
        for number, key in enumerate(keys):
            start = number * stride
            scores = self._scores(values[start : start + stride], metrics)
            tier, name = key
            out[name] = self._model(tier, name, scores, facts[key])
        return out

    def _scores(self, values: list[float], metrics: Sequence[Metric]) -> dict[str, Score]:
        """The scores of one model, part by part."""
        scores = {}
        width = self._width
        for number, part in enumerate(self.parts):
            start = number * width
            own = values[start : start + width]
            of_metrics = width - 2 * self.metrics
            errors = own[of_metrics - 2 * self._errors : of_metrics]
            few = own[_SUMS : _SUMS + self._few]
            score = _score(own[:_SUMS], self.classifies, errors, self.targets, few)
            if self.perplexity:
                score = with_perplexity(score)
            if metrics:
                totals = torch.tensor(own[of_metrics:], dtype=torch.float64)
                score = _with_metrics(score, metrics, totals.view(2, -1))
            scores[part] = score
        return scores

    def _model(self, tier: str, name: str, scores: dict[str, Score], facts: list[float]) -> Model:
        """One model from its scores and the sums of its facts."""
        holders, *sums = facts
        age, nonzeros, *more = [value / max(holders, 1) for value in sums]
        angle = None
        layers = {}
        if more:
            angle, *shares = more
            slot_names = [name for name, _, _ in self.slots]
            layers = dict(zip(slot_names, shares, strict=True))
        return Model(
            tier=tier,
            holders=int(holders),
            age=age,
            nonzeros=nonzeros,
            cut=self.algorithm.zero(tier, name) or 0.0,
            scores=scores,
            angle=angle,
            layers=layers,
            select=self.select,
        )

    def calibrations(self, sums: Tensor) -> dict[str, Calibration]:
        """The calibration of every model on the first part, over the devices that hold it."""
        stride = len(self.parts) * self._width
        out = {}
        for number, name in enumerate(self._model_names):
            first = number * stride
            own = sums[0, first : first + self._width]
            out[name] = calibration.read(own[_SUMS + self._few :])
        return out

    @property
    def _model_names(self) -> list[str]:
        return ["global", *(name for _, name in self.names)]

    @property
    def _width(self) -> int:
        """How many sums there are of one model on one part."""
        width = _SUMS + self._few + 2 * self._errors + 2 * self.metrics
        if self.bins:
            width += 3 * self.bins + 2
        return width

    @property
    def _few(self) -> int:
        """How many sums there are of devices with fewer than `least` examples."""
        return _FEW if self.least > 1 else 0

    @property
    def _errors(self) -> int:
        """How many sums of errors there are; they come twice, of the holders and of everybody."""
        if not self.targets:
            return 0
        return error_columns(self.targets)

    def _read_facts(
        self, values: list[float], tree: Topology
    ) -> dict[tuple[str, str], list[float]]:
        """The facts by tier and model; they are appended on the way up, the lowest tier's first."""
        names: list[tuple[str, str]] = []
        for tier in reversed(tree.tiers):
            if tier == self.top:
                names.append((tier, "global"))
            names += [key for key in self.names if key[0] == tier]
        facts = {}
        start = 0
        for tier, name in names:
            size = _FACTS
            if self.algorithm.zero(tier, name) is not None:
                size += 1 + len(self.slots)
            facts[tier, name] = values[start : start + size]
            start += size
        return facts

    def _sums_of(self, me: Nodes, models: list[Rows], facts: list[Rows]) -> Rows:
        """The sums under these nodes, their own models sent along, then the facts of those."""
        w = models[0]
        for tier, name in self.names:
            if tier != me.tier:
                continue
            age = me.age(name).to(w.device, non_blocking=True)
            held = (age >= 0).double()
            rows = me.recall(name, default=w)
            models += [rows, held]
            facts.append(self._facts(me, name, rows, held, age))
        under = self._under(me, models)
        return torch.cat([under, *facts], dim=1)

    def _under(self, me: Nodes, models: list[Rows]) -> Rows:
        if me.leaf:
            return self._leaf_sums(me, models)
        sent = [exact(rows) for rows in models]
        cohort = self._cohort(me)
        replies = me.ask(self.node, *sent, sample=cohort)
        total, _ = replies.sums()
        return self._enough(total)

    def _enough(self, total: Rows) -> Rows:
        """The sums without those of devices with few examples that are of few together.

        Neither the holders of a model nor the other devices may be so few.
        """
        if self.least == 1:
            return total
        total = total.clone()
        count = len(self._model_names) * len(self.parts)
        blocks = total[:, : count * self._width].view(len(total), count, self._width)
        few = blocks[:, :, _SUMS : _SUMS + _FEW - 1]
        held = few[:, :, 2]
        others = few[:, :, 5] - held
        hidden = ((held > 0) & (held < self.least)) | ((others > 0) & (others < self.least))
        few.masked_fill_(hidden[:, :, None], 0)
        return total

    def _leaf_sums(self, me: Nodes, models: list[Rows]) -> Rows:
        """The sums of these devices themselves."""
        columns = []
        all_rows = models[::2]
        flags = models[1::2]
        plain = type(self.algorithm).predictor is Algorithm.predictor
        if plain and me.scores_together:
            return self._sums_together(me, all_rows, flags)
        for name, rows, held in zip(self._model_names, all_rows, flags, strict=True):
            me.call.recalled.clear()
            predict = self.algorithm.predictor(me, name, rows) or me.predictor(rows)
            for part in self.parts:
                sums = self._sums(me, name, rows, held, part, predict)
                columns.append(sums)
            me.needed_for(name)
        return torch.cat(columns, dim=1)

    def _cohort(self, me: Nodes) -> Drawn | None:
        """The children that are asked: the devices drawn, or all nodes of another tier.

        Nodes of other tiers keep models of their own.
        """
        if self.sample is None or not me.above_devices:
            return None
        return me.drawn(self.sample, _STREAM)

    def scored_devices(self, tree: Topology, seeds: Sequence[int], round: int) -> Ids:
        """The devices that are asked in a round: those drawn, or all."""
        device = tree.tiers[-1]
        if self.sample is None:
            return torch.arange(tree.size(device))
        return Drawn.of(tree, device, self.sample, seeds, round, _STREAM).ids

    def _sums(
        self,
        me: Nodes,
        name: str,
        rows: Rows,
        held: Rows,
        part: str,
        predict: Predict | None,
    ) -> Rows:
        asked = self.metrics > 0
        score = me.evaluate(rows, part, predict=predict, bins=self.bins, metrics=asked)
        score, few = self._told(me, score, held, part)
        columns, report = self._columns(score, held, few, me.metrics)
        me.report(f"{name}/{part}", report)
        self._report_sums(me, [name], part, score)
        return columns

    def _sums_together(self, me: Nodes, all_rows: list[Rows], flags: list[Rows]) -> Rows:
        """As `_sums` of every model and part, of all models at once."""
        names = self._model_names
        rows = torch.cat(all_rows)
        held = torch.cat(flags)
        asked = self.metrics > 0
        by_part = []
        for part in self.parts:
            score = me.evaluate(rows, part, bins=self.bins, metrics=asked, models=len(names))
            score, few = self._told(me, score, held, part)
            columns, reports = self._columns(score, held, few, me.metrics)
            by_part.append(_by_model(columns, len(names)))
            for name, report in zip(names, _by_model(reports, len(names)), strict=True):
                me.report(f"{name}/{part}", report)
            self._report_sums(me, names, part, score)
        by_model = []
        for number, name in enumerate(names):
            by_model += [columns[number] for columns in by_part]
            me.call.needs.setdefault(name, set())
        return torch.cat(by_model, dim=1)

    def _told(self, me: Nodes, score: PartScore, held: Rows, part: str) -> tuple[PartScore, Rows]:
        """What devices tell of a part, and what those with few examples add up apart."""
        if self.least == 1:
            return score, held[:, :0]
        models = len(held) // max(len(me), 1)
        few = me.few(part, self.least).to(held).repeat(models)
        answers = torch.stack([score.right, score.count, few], dim=1)
        columns = torch.cat([held * answers, answers, torch.ones_like(held)], dim=1)
        return score.without(few > 0), columns.masked_fill((few == 0)[:, None], 0)

    def _columns(
        self, score: PartScore, held: Rows, few: Rows, metrics: Sequence[Metric]
    ) -> tuple[Rows, Rows]:
        """The sums of one part of every row, and what its device reports."""
        totals = torch.stack([score.right, score.loss, score.count], dim=1)
        report = [totals, held.to(score.count)]
        figures = _figures(score)
        figures[:, _OF_HOLDERS] *= held
        columns = [figures, totals, few]
        if score.calibration is not None:
            columns.append(held * score.calibration)
        if score.errors is not None:
            report.append(score.errors[:, :2] / self.targets)
            columns += [held * score.errors, score.errors]
        if score.metrics is not None:
            columns += [held * score.metrics, score.metrics]
            report += _by_device(score, metrics)
        return torch.cat(columns, dim=1), torch.cat(report, dim=1)

    def _report_sums(self, me: Nodes, names: Sequence[str], part: str, score: PartScore) -> None:
        """Report the sums from which standard errors follow, where devices were drawn."""
        if self.sample is None or score.metrics is None:
            return
        sums = jackknifed(me.metrics, score.metrics)
        for name, own in zip(names, _by_model(sums, len(names)), strict=True):
            me.report(f"{name}/{part}/{SUMS}", own)

    def _facts(self, me: Nodes, name: str, rows: Rows, held: Rows, age: Rows) -> Rows:
        zero = self.algorithm.zero(me.tier, name)
        share = _nonzeros(rows, zero)
        me.report(f"{name}/{NONZEROS}", torch.where(held > 0, share, UNKNOWN))
        columns = [age, share]
        if zero is not None:
            columns.append(smooth_l1.angle(rows, zero)[:, None])
            for _, start, stop in self.slots:
                columns.append(_nonzeros(rows[:, start:stop], zero))
        of_holders = [held * column for column in columns]
        return torch.cat([held, *of_holders], dim=1)


def _false_report(figures: Tensor) -> str | None:
    """Why the figures that devices report of one part, [n, k], cannot be true."""
    counts = figures[:, [RIGHT, COUNT]]
    whole = (counts >= 0) & (counts <= MOST_EXAMPLES) & (counts == counts.round())
    holds = figures[:, HOLDS]
    if not bool(whole.all()) or not bool(((holds == 0) | (holds == 1)).all()):
        return "a report of a device that counts no examples."
    if bool((figures[:, ABSOLUTE:METRICS] < 0).any()):
        return "a report of a device with negative errors."
    return None


def _by_model(columns: Rows, models: int) -> tuple[Rows, ...]:
    """The columns of each of several models, whose rows stand one after the other."""
    rows, width = columns.shape
    return columns.view(models, rows // models, width).unbind()


def _nonzeros(rows: Rows, zero: float | None) -> Tensor:
    return smooth_l1.nonzeros(rows, zero).double()[:, None]


def _by_device(score: PartScore, metrics: Sequence[Metric]) -> list[Tensor]:
    """The columns of metrics that devices report, after as many as errors have."""
    assert score.metrics is not None
    columns = []
    if score.errors is None:
        columns.append(score.metrics.new_full((len(score.count), 2), math.nan))
    columns.append(values_of(metrics, score.metrics))
    return columns


def has_error(metric: Metric) -> bool:
    """Whether devices report the sums from which a standard error follows."""
    return is_figure(metric) and metric.columns <= _MOST_SUMS


def jackknifed(metrics: Sequence[Metric], sums: Tensor) -> Tensor:
    """The sums of the metrics that have a standard error, [n, columns]."""
    columns = [sums[:, :0]]
    start = 0
    for metric in metrics:
        stop = start + metric.columns
        if has_error(metric):
            columns.append(sums[:, start:stop])
        start = stop
    return torch.cat(columns, dim=1)


def values_of(metrics: Sequence[Metric], sums: Tensor) -> Tensor:
    """The values of the metrics that are figures, [n, metrics], from sums [n, columns]."""
    values = [sums[:, :0]]
    start = 0
    for metric in metrics:
        stop = start + metric.columns
        if is_figure(metric):
            value = metric.value(sums[:, start:stop])
            values.append(value[:, None])
        start = stop
    return torch.cat(values, dim=1)


def _with_metrics(score: Score, metrics: Sequence[Metric], totals: Tensor) -> Score:
    """The score with its metrics, from the sums of the holders and of everybody, [2, columns]."""
    held, everybody = values_of(metrics, totals).tolist()
    return replace(
        score,
        metrics=_named(score, metrics, held, ""),
        metrics_fallback=_named(score, metrics, everybody, "_fallback"),
        confusion=_confusion(metrics, totals[1]),
    )


def _named(
    score: Score, metrics: Sequence[Metric], values: Sequence[float], suffix: str
) -> dict[str, float | None]:
    """Every figure by name; `values` are those of the metrics that have sums of their own."""
    out: dict[str, float | None] = {}
    left = iter(values)
    for metric in metrics:
        if isinstance(metric, Recorded):
            out[metric.name] = getattr(score, f"{metric.name}{suffix}")
        elif is_figure(metric):
            value = next(left)
            out[metric.name] = None if math.isnan(value) else value
    return out


def _confusion(metrics: Sequence[Metric], sums: Tensor) -> list[list[int]] | None:
    """The confusion matrix, where it is among the metrics."""
    start = 0
    for metric in metrics:
        if isinstance(metric, Confusion):
            return metric.matrix(sums[start : start + metric.columns])
        start += metric.columns
    return None


def sums_by_device(score: PartScore, task: Task) -> Tensor:
    """The sums of devices that all hold the model, as `covey.runs.devices` has them."""
    columns = [score.right, score.loss, score.count, torch.ones_like(score.count)]
    out = [torch.stack(columns, dim=1)]
    if score.errors is not None:
        out.append(score.errors[:, :2] / task.targets)
    if score.metrics is not None:
        out += _by_device(score, task.metrics)
    return torch.cat(out, dim=1)


def with_perplexity(score: Score) -> Score:
    """The score with the perplexities that its losses per token mean."""
    return replace(
        score,
        perplexity=perplexity(score.loss),
        perplexity_fallback=perplexity(score.loss_fallback),
    )


def score_of(score: PartScore, rows: slice, task: Task) -> Score:
    """The score of a slice of the devices, all of which hold the model."""
    out = _score_of(score, rows, task.classifies)
    if task.has_perplexity:
        out = with_perplexity(out)
    if not task.metrics:
        return out
    totals = torch.zeros(0, dtype=torch.float64)
    if score.metrics is not None:
        totals = score.metrics[rows].sum(0).cpu()
    return _with_metrics(out, task.metrics, totals.expand(2, -1))


def _score_of(score: PartScore, rows: slice, classifies: bool) -> Score:
    figures = _figures(score)[rows].sum(0).tolist()
    of_all_devices = figures[:3]
    sums = [*figures, *of_all_devices]
    if score.errors is None:
        return _score(sums, classifies, [], 0)
    errors = score.errors[rows].sum(0).tolist()
    targets = (len(errors) - error_columns(0)) // 2
    return _score(sums, classifies, [*errors, *errors], targets)


def _figures(score: PartScore) -> Tensor:
    """Of each device: right, loss, count, accuracy, 1 if it has any example, and a histogram.

    The histogram is of its accuracy.
    """
    has_any = (score.count > 0).double()
    accuracy = score.right / score.count.clamp(min=1)
    bin_number = (accuracy * (_BINS - 1)).round().long()
    bins = torch.arange(_BINS, device=bin_number.device)
    histogram = (bin_number[:, None] == bins) * has_any[:, None]
    accuracy = accuracy * has_any
    columns = [score.right, score.loss, score.count, accuracy, has_any]
    sums = torch.stack(columns, dim=1)
    return torch.cat([sums, histogram], dim=1)


@dataclass(frozen=True)
class Errors:
    """RMSE, MAE and R2 of predicted numbers; None where they are not known."""

    rmse: float | None = None
    mae: float | None = None
    r2: float | None = None

    @staticmethod
    def of(sums: list[float], count: float, targets: int) -> Errors:
        """From the sums of `engine.tally.error_sums` over `count` examples with `targets` outputs.

        >>> sums = [2.0, 2.0, 20.0, 0.0, 0.0, 6.0, 0.0]  # predictions 3 and 3 for targets 2 and 4
        >>> Errors.of(sums, 2, 1)
        Errors(rmse=1.0, mae=1.0, r2=0.0)
        """
        if not sums or not count:
            return Errors()
        absolute, squared = sums[:2]
        rmse = root(squared / (count * targets))
        mae = absolute / (count * targets)
        spread = _spread(sums[2:], count, targets)
        if not spread:
            return Errors(rmse, mae)
        return Errors(rmse, mae, r2=1 - squared / spread)


def _spread(sums: list[float], count: float, targets: int) -> float:
    """The sum of (y - mean of y)^2, exact but for rounding in the sums; 0 of equal targets."""
    if not all(map(math.isfinite, sums)):
        return 0.0
    high_squared, low_squared, product, *by_output = map(Fraction, sums)
    total = high_squared + 2 * product + low_squared
    spread = total
    for high, low in zip(by_output[:targets], by_output[targets:], strict=True):
        spread -= (high + low) ** 2 / Fraction(count)
    varied = spread > Fraction(1e-18) * total  # of equal targets only rounding is left
    return float(spread) if varied else 0.0


def _score(
    values: list[float],
    classifies: bool,
    errors: list[float],
    targets: int,
    few: Sequence[float] = (),
) -> Score:
    """The figures that follow from the sums.

    `errors` are the sums of errors of the holders, then of everybody. `few` are those of devices
    with few examples, where there is such a limit.
    """
    right, loss, count, accuracy, holders = values[:5]
    bins = values[5 : 5 + _BINS]
    devices = sum(bins)
    all_right, all_loss, all_count = values[5 + _BINS :]
    half = len(errors) // 2
    held = Errors.of(errors[:half], count, targets)
    everybody = Errors.of(errors[half:], all_count, targets)
    score = Score(
        accuracy=None,
        accuracy_uniform=None,
        worst_decile=None,
        loss=_mean(loss, count),
        devices=int(holders),
        accuracy_fallback=None,
        loss_fallback=_mean(all_loss, all_count),
        rmse=held.rmse,
        mae=held.mae,
        r2=held.r2,
        rmse_fallback=everybody.rmse,
        mae_fallback=everybody.mae,
        r2_fallback=everybody.r2,
        uncounted=int(few[6]) if few else None,
    )
    if not classifies:
        return score
    if few:
        right += few[0]
        count += few[1]
        all_right += few[3]
        all_count += few[4]
    return replace(
        score,
        accuracy=_mean(right, count),
        accuracy_uniform=_mean(accuracy, devices),
        worst_decile=_worst(bins, devices),
        accuracy_fallback=_mean(all_right, all_count),
    )


def _mean(total: float, count: float) -> float | None:
    if not count:
        return None
    return total / count


def _worst(bins: list[float], devices: float) -> float | None:
    """The mean accuracy of the worst tenth (at least one) of the devices of a histogram."""
    if not devices:
        return None
    wanted = max(devices / 10, 1.0)
    left = wanted
    total = 0.0
    for number, count in enumerate(bins):
        taken = min(count, left)
        total += taken * number / (_BINS - 1)
        left -= taken
    return total / wanted
