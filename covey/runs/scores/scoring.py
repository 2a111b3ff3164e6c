"""Scores of every model: sums that devices add up through the same `ask`, and their figures.

For each model and part of the data a device answers the sums of every term of the metrics
(covey/engine/measures/metrics.py), where it holds the model and in any case. The accuracy of
everybody, 1 of a holder and a histogram of accuracies follow. A node that keeps a model sends it
to all devices under it. Where an algorithm leaves layers private, each device scores the model with
its own private layers. Where a node keeps no model yet, the global one stands in: figures are given
over the holders alone and, beside them, with that fallback. The mean and the worst tenth of devices
are over all devices.

A device with fewer than `least` examples of a part answers its right answers and their count alone,
in columns of their own. Nodes above add these up, and send on those of `least` examples or more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covey.engine.measures import calibration
from covey.engine.measures.calibration import Calibration
from covey.engine.measures.metrics import (
    ABSOLUTE,
    ANSWERS,
    BASE,
    COUNT,
    DEFAULTS,
    EXAMPLES,
    HOLDS,
    RIGHT,
    USUAL,
    Metric,
    Term,
    by_term,
    face,
    own_figures,
    terms_of,
)
from covey.engine.solvers import smooth_l1
from covey.engine.task import PartScore, Predict, Task
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Drawn, Nodes
from covey.kernel.replies import Exact, exact
from covey.runs.scores.figures import METRICS, MOST_EXAMPLES, NONZEROS, UNKNOWN
from covey.tree import Topology
from covey.types import Ids, Rows

_BINS = 101
_SPREAD = 2 + _BINS
"""Everybody's accuracy, 1 of a holder that has an example, and a histogram of accuracy."""
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

Pair = tuple[float | None, float | None]
"""A figure over the holders of a model, and over everybody."""


class Figure(NamedTuple):
    """A metric of one model on one part of the data; None where nothing is known of it."""

    held: float | None = None  # over the holders, all examples alike
    all: float | None = None  # over all devices; the global model where none is held
    uniform: float | None = None  # mean of all devices; the global model where none is held
    worst: float | None = None  # of the worst tenth of all devices, to 0.01; as `uniform`
    error: Pair | None = None  # standard errors of the first two, where devices were drawn


_UNKNOWN = Figure()
_OF_NUMBERS = ("rmse", "mae", "r2")


@dataclass(frozen=True)
class Score:
    """One model on one part of the data: the figures of every metric that is known, by name.

    A figure is also an attribute by its key in a record: `score.accuracy`, `score.worst_decile`,
    `score.rmse_fallback`; those of metrics that are asked for are in `score.metrics`.
    """

    figures: dict[str, Figure]
    devices: int  # devices with examples that hold the model or stand under a holder
    asked: tuple[str, ...] = ()  # the figures that the experiment asks for
    sampled: int | None = None  # devices drawn to be scored; None: all were scored
    confusion: list[list[int]] | None = None
    """Examples of all devices by class and predicted class, where the experiment asks for it."""
    uncounted: int | None = None
    """Devices with fewer than `least` examples, of which no figure but accuracy has any part.

    None where `least` is 1.
    """

    def of(self, name: str) -> Figure:
        """A metric by its name."""
        return self.figures.get(name, _UNKNOWN)

    def figure(self, name: str) -> float | None:
        """The figure of a metric over all devices; the global model where none is held."""
        return self.of(name).all

    def error(self, name: str) -> float | None:
        """The standard error of `figure`; None where it is unknown, or all devices were scored."""
        error = self.of(name).error
        return None if error is None else error[1]

    @property
    def judge(self) -> str:
        """The metric by which a model is judged without `select`."""
        known = (name for name in DEFAULTS if self.figure(name) is not None)
        return next(known, "loss")

    @property
    def chooser(self) -> str:
        """The metric by which rounds are chosen without `select`, after a minus where lower is
        better: the accuracy, or the loss of models that are judged by an error.
        """
        return self.judge if face(self.judge).percent else "-loss"

    @property
    def shown(self) -> list[str]:
        """The metrics that a table shows; the loss only where it is asked for."""
        names = [*self.figures, *self.asked]
        return [name for name in names if name != "loss" or name in self.asked]

    @property
    def usual(self) -> str:
        """The metric whose standard error has a key of its own."""
        return "loss" if self.figure("accuracy") is None else "accuracy"

    def __getattr__(self, key: str) -> Any:
        if "figures" in vars(self) and not key.startswith("_"):
            facts = self.as_dict(whole=True)
            if key in facts:
                return facts[key]
        raise AttributeError(f"a score has no {key!r}")

    def as_dict(self, *, whole: bool = False) -> dict[str, Any]:
        """The keys of a record; with `whole` also those of what there is not."""
        accuracy = self.of("accuracy")
        loss = self.of("loss")
        out: dict[str, Any] = {
            "accuracy": accuracy.held,
            "accuracy_uniform": accuracy.uniform,
            "worst_decile": accuracy.worst,
            "loss": loss.held,
            "devices": self.devices,
            "accuracy_fallback": accuracy.all,
            "loss_fallback": loss.all,
            **{name: self.of(name).held for name in _OF_NUMBERS},
            **{f"{name}_fallback": self.figure(name) for name in _OF_NUMBERS},
        }
        errors = {name: figure.error for name, figure in self.figures.items() if figure.error}
        usual = errors.pop(self.usual, None)
        if whole or self.sampled is not None:
            held, every = usual or (None, None)
            out |= {"sampled": self.sampled, "standard_error": held}
            out["standard_error_fallback"] = every
        for name in USUAL:
            if name not in out and (whole or self.figure(name) is not None):
                out[name] = self.of(name).held
                out[f"{name}_fallback"] = self.figure(name)
        if whole or self.asked:
            out["metrics"] = {name: self.of(name).held for name in self.asked}
            out["metrics_fallback"] = {name: self.figure(name) for name in self.asked}
        if whole or self.confusion is not None:
            out["confusion"] = self.confusion
        if usual is not None and self.usual in self.asked:
            errors[self.usual] = usual
        if whole or errors:
            out["standard_errors"] = {name: held for name, (held, _) in errors.items()}
            out["standard_errors_fallback"] = {name: every for name, (_, every) in errors.items()}
        if whole or self.uncounted is not None:
            out["uncounted"] = self.uncounted
        return out

    @staticmethod
    def read(facts: Mapping[str, Any]) -> Score:
        """The score of which `as_dict` gave these facts."""
        asked = facts.get("metrics", {})
        held = {name: facts.get(name) for name in USUAL} | asked
        every = {name: facts.get(f"{name}_fallback") for name in USUAL}
        every |= facts.get("metrics_fallback", {})
        errors = dict(facts.get("standard_errors", {}))
        fallback = dict(facts.get("standard_errors_fallback", {}))
        if facts.get("sampled"):
            usual = "loss" if every["accuracy"] is None else "accuracy"
            errors[usual] = facts["standard_error"]
            fallback[usual] = facts["standard_error_fallback"]
        figures = {}
        for name in held:
            figure = Figure(held[name], every[name])
            if name == "accuracy":
                uniform, worst = facts["accuracy_uniform"], facts["worst_decile"]
                figure = figure._replace(uniform=uniform, worst=worst)
            if name in errors:
                figure = figure._replace(error=(errors[name], fallback[name]))
            if figure != _UNKNOWN:
                figures[name] = figure
        return Score(
            figures,
            facts["devices"],
            tuple(asked),
            facts.get("sampled"),
            facts.get("confusion"),
            facts.get("uncounted"),
        )


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

    @property
    def tested(self) -> Score:
        """The score that is shown: on test, or on the first part where that was not scored."""
        return self.scores.get("test") or next(iter(self.scores.values()))

    def quality(self, part: str, by: str = "") -> float:
        """The figure by which rounds are chosen; -inf where it is unknown.

        It is the metric that `by` or else `select` names, over all devices. By default it is the
        accuracy, or minus the loss for regression and where there is a perplexity. Devices that
        hold no such model yet count with the global one: else a round in which two lucky devices
        hold one would win.
        """
        score = self.scores[part]
        metric = by or self.select or score.chooser
        figure = score.figure(metric.removeprefix("-"))
        if figure is None or math.isnan(figure):
            return -math.inf
        return -figure if metric.startswith("-") else figure

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `select` is there if it is not empty."""
        scores = {part: score.as_dict() for part, score in self.scores.items()}
        out = vars(self) | {"scores": scores, "layers": dict(self.layers)}
        if not self.select:
            del out["select"]
        return out

    @staticmethod
    def read(facts: Mapping[str, Any]) -> Model:
        """The model of which `as_dict` gave these facts."""
        scores = {part: Score.read(score) for part, score in facts["scores"].items()}
        return Model(**{**facts, "scores": scores})


_OWN = ("algorithm", "metrics", "least")
"""What another machine has from its own experiment."""


@dataclass(frozen=True)
class Scorer:
    """The programs that score: one for the top and one for every tier below."""

    algorithm: Algorithm
    names: tuple[tuple[str, str], ...]  # (tier, name) of every kept model, the upper tiers' first
    parts: tuple[str, ...]
    top: str = "server"
    slots: tuple[tuple[str, int, int], ...] = ()  # name and columns of every parameter
    bins: int = 0  # of confidence, for calibration; 0: none is wanted
    sample: int | None = None  # how many devices are asked, drawn anew in every round; None: all
    select: str = ""  # as `Model.select`
    metrics: tuple[Metric, ...] = ()  # of every record; for calibration none
    least: int = 1  # examples of a part below which a device sends no sums of targets

    def parameters(self) -> dict[str, Any]:
        """Everything but what another machine has from its own experiment, in the types of JSON."""
        names = [field.name for field in fields(self)]
        return {name: getattr(self, name) for name in names if name not in _OWN}

    @staticmethod
    def made(
        algorithm: Algorithm, least: int, metrics: tuple[Metric, ...], parameters: Mapping[str, Any]
    ) -> Scorer:
        """The scorer that has these parameters."""
        values = dict(parameters)
        values["names"] = tuple((str(tier), str(name)) for tier, name in values["names"])
        slots = []
        for name, start, stop in values["slots"]:
            slots.append((str(name), int(start), int(stop)))
        values["slots"] = tuple(slots)
        values["parts"] = tuple(map(str, values["parts"]))
        own = () if values["bins"] else metrics
        return Scorer(algorithm, **values, metrics=own, least=least)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """What devices add up."""
        return terms_of(self.metrics)

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
        (held, everybody, *rest), facts = self._split(sums)
        if bool((facts < 0).any()):
            return "negative sums of the ages or the non-zeros of models."
        signed: list[bool] = []
        for term in self.terms:
            signed += [column >= term.unsigned for column in range(term.columns)]
        unsigned = ~torch.tensor(signed)
        counts = torch.cat([held[:, :, unsigned], everybody[:, :, unsigned], *rest], dim=2)[0]
        names = [f"{model}/{part}" for _, model in self.models for part in self.parts]
        for number, name in enumerate(names):
            if bool((counts[number] < 0).any()):
                return f"scores {name!r} with a negative count, or a negative sum of squares."
            reported = reports.get(name, sums.new_zeros(0, METRICS))
            reason = _false_report(reported) or self._contradiction(everybody[0, number], reported)
            if reason is not None:
                return f"scores {name!r} with {reason}"
        return None

    def _contradiction(self, own: Tensor, reported: Tensor) -> str | None:
        """Why everybody's sums of one model on one part are not those that devices report."""
        told = reported.nan_to_num(nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
        sums = by_term(self.terms, own[None])
        expected = [sums[term][0] for term in BASE]
        have = [told[:, : len(BASE)]]
        for term in self.terms:
            if term.outputs:
                expected.append(sums[term][0, :2] / term.outputs)
                have.append(told[:, ABSOLUTE:METRICS])
        wanted = torch.cat(expected)
        told = torch.cat(have, dim=1)
        size = told.abs().sum(0) + wanted.abs()
        if bool(((told.sum(0) - wanted).abs() > _ROUNDING * size).any()):
            return "sums that are not those of what devices report."
        return None

    def read(
        self,
        sums: Tensor,
        tree: Topology,
        asked: tuple[str, ...],
    ) -> dict[str, Model]:
        """The figures of every model by its name; "global" is the server's.

        `asked` are those that the experiment asks for.
        """
        (held, everybody, spread, few, _), facts = self._split(sums.cpu())
        totals = by_term(self.terms, torch.cat([held[0], everybody[0]]))
        scores = iter(_scores(self.metrics, totals, spread[0].tolist(), few[0].tolist(), asked))
        facts_of = self._read_facts(facts[0].tolist(), tree)
        out = {}
        for tier, name in self.models:
            by_part = {}
            for part in self.parts:
                by_part[part] = next(scores)
            out[name] = self._model(tier, name, by_part, facts_of[tier, name])
        return out

    def _model(
        self,
        tier: str,
        name: str,
        scores: dict[str, Score],
        facts: list[float],
    ) -> Model:
        """One model from its scores and the sums of its facts."""
        holders, age, nonzeros, *more = facts
        count = max(holders, 1)
        angle = None
        layers = {}
        if more:
            angle, *shares = more
            angle /= count
            for (slot, _, _), share in zip(self.slots, shares, strict=True):
                layers[slot] = share / count
        return Model(
            tier=tier,
            holders=int(holders),
            age=age / count,
            nonzeros=nonzeros / count,
            cut=self.algorithm.zero(tier, name) or 0.0,
            scores=scores,
            angle=angle,
            layers=layers,
            select=self.select,
        )

    def calibrations(self, sums: Tensor) -> dict[str, Calibration]:
        """The calibration of every model on the first part, over the devices that hold it."""
        (*_, by_bin), _ = self._split(sums)
        first = by_bin[0, :: len(self.parts)]
        pairs = zip(self.models, first, strict=True)
        return {name: calibration.read(own) for (_, name), own in pairs}

    @cached_property
    def models(self) -> tuple[tuple[str, str], ...]:
        """(tier, name) of every model that is scored, the server's first."""
        return ((self.top, "global"), *self.names)

    @cached_property
    def _widths(self) -> list[int]:
        """How many sums there are of one model on one part, by kind.

        Of all terms twice, of the holders and of everybody; the spread of accuracies; those of
        devices with fewer than `least` examples; those of a calibration.
        """
        summed = sum([term.columns for term in self.terms])
        few = _FEW if self.least > 1 else 0
        by_bin = 3 * self.bins + 2 if self.bins else 0
        return [summed, summed, _SPREAD, few, by_bin]

    def _split(self, sums: Rows) -> tuple[tuple[Rows, ...], Rows]:
        """The sums by kind, [n, models x parts, width] each, and the facts behind them."""
        count = len(self.models) * len(self.parts)
        width = sum(self._widths)
        blocks = sums[:, : count * width].view(len(sums), count, width)
        return torch.split(blocks, self._widths, dim=2), sums[:, count * width :]

    def _read_facts(
        self, values: list[float], tree: Topology
    ) -> dict[tuple[str, str], list[float]]:
        """The facts by tier and model; they are appended on the way up, the lowest tier's first."""
        facts = {}
        start = 0
        for tier in reversed(tree.tiers):
            for key in self.models:
                if key[0] == tier:
                    size = _FACTS
                    if self.algorithm.zero(*key) is not None:
                        size += 1 + len(self.slots)
                    facts[key] = values[start : start + size]
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
        if me.leaf:
            return torch.cat([self._leaf_sums(me, models), *facts], dim=1)
        cohort = None  # nodes of other tiers keep models of their own, and are all asked
        if self.sample is not None and me.above_devices:
            cohort = me.drawn(self.sample, _STREAM)
        replies = me.ask(self.node, *map(exact, models), sample=cohort)
        total, _ = replies.sums()
        if self.least > 1:
            total = self._enough(total)
        return torch.cat([total, *facts], dim=1)

    def _enough(self, total: Rows) -> Rows:
        """The sums without those of devices with few examples that are of few together.

        Neither the holders of a model nor the other devices may be so few.
        """
        total = total.clone()
        (_, _, _, few, _), _ = self._split(total)
        held = few[:, :, 2]
        others = few[:, :, 5] - held
        few_held = (held > 0) & (held < self.least)
        few_others = (others > 0) & (others < self.least)
        hidden = few_held | few_others
        few[:, :, : _FEW - 1].masked_fill_(hidden[:, :, None], 0)
        return total

    def _leaf_sums(self, me: Nodes, models: list[Rows]) -> Rows:
        """The sums of these devices themselves."""
        columns: list[Rows] = []
        all_rows = models[::2]
        flags = models[1::2]
        _, names = zip(*self.models, strict=True)
        plain = type(self.algorithm).predictor is Algorithm.predictor
        if plain and me.task.scores_together:
            rows = torch.cat(all_rows)
            held = torch.cat(flags)
            by_part = [self._sums(me, names, rows, held, part, None) for part in self.parts]
            for of_model in zip(*by_part, strict=True):
                columns += of_model
            for name in names:
                me.call.needs.setdefault(name, set())
            return torch.cat(columns, dim=1)
        for name, rows, held in zip(names, all_rows, flags, strict=True):
            me.call.recalled.clear()
            predict = self.algorithm.predictor(me, name, rows) or me.task.predictor(rows, me.ids)
            for part in self.parts:
                columns += self._sums(me, [name], rows, held, part, predict)
            me.call.needs.setdefault(name, set()).update(me.call.recalled)
            me.call.recalled.clear()
        return torch.cat(columns, dim=1)

    def scored_devices(self, tree: Topology, seeds: Sequence[int], round: int) -> Ids:
        """The devices that are asked in a round: those drawn, or all."""
        device = tree.tiers[-1]
        if self.sample is None:
            return torch.arange(tree.size(device))
        return Drawn.of(tree, device, self.sample, seeds, round, _STREAM).ids

    def _sums(
        self,
        me: Nodes,
        names: Sequence[str],
        rows: Rows,
        held: Rows,
        part: str,
        predict: Predict | None,
    ) -> tuple[Rows, ...]:
        """The sums of each of these models on a part; their rows stand one after the other."""
        count = len(names)
        score = me.task.evaluate(
            rows,
            part,
            me.ids.repeat(count),
            predict=predict,
            bins=self.bins,
            metrics=not self.bins,
        )
        few = held[:, :0]
        if self.least > 1:
            score, few = self._told(me, score, held, part)
        columns = [held * score.sums, score.sums, _spread(score, held), few]
        if score.calibration is not None:
            columns.append(held * score.calibration)
        figures = {f"/{part}": report(score, self.metrics, held.to(score.sums))}
        if self.sample is not None and (metrics := jackknifed(self.metrics)):
            sums = score.by_term
            jackknife = torch.cat([sums[metric.terms[0]] for metric in metrics], dim=1)
            figures[f"/{part}/{SUMS}"] = jackknife
        for ending, of_models in figures.items():
            for name, own in zip(names, of_models.chunk(count), strict=True):
                me.call.reports[f"{name}{ending}"] = own
        return torch.cat(columns, dim=1).chunk(count)

    def _told(
        self,
        me: Nodes,
        score: PartScore,
        held: Rows,
        part: str,
    ) -> tuple[PartScore, Rows]:
        """What devices tell of a part, and what those with few examples add up apart."""
        models = len(held) // max(len(me), 1)
        few = me.task.examples.few(part, me.device_ids, self.least).to(held).repeat(models)
        answers = torch.stack([score.right, score.count, few], dim=1)
        columns = torch.cat([held * answers, answers, torch.ones_like(held)], dim=1)
        return score.without(few > 0), columns.masked_fill((few == 0)[:, None], 0)

    def _facts(
        self,
        me: Nodes,
        name: str,
        rows: Rows,
        held: Rows,
        age: Rows,
    ) -> Rows:
        """The holders among these nodes, and the sums over them of their age and sparsity."""
        zero = self.algorithm.zero(me.tier, name)
        share = smooth_l1.nonzeros(rows, zero).double()[:, None]
        me.call.reports[f"{name}/{NONZEROS}"] = torch.where(held > 0, share, UNKNOWN)
        columns = [age, share]
        if zero is not None:
            columns.append(smooth_l1.angle(rows, zero)[:, None])
            for _, start, stop in self.slots:
                columns.append(smooth_l1.nonzeros(rows[:, start:stop], zero)[:, None])
        return torch.cat([held, held * torch.cat(columns, dim=1)], dim=1)


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


def jackknifed(metrics: Sequence[Metric]) -> list[Metric]:
    """The metrics whose standard errors follow from sums that devices report."""
    return [metric for metric in own_figures(metrics) if metric.terms[0].columns <= _MOST_SUMS]


def report(score: PartScore, metrics: Sequence[Metric], holds: Tensor) -> Tensor:
    """What devices report of one model, [n, columns]; `holds` [n, 1] says whether they hold it."""
    sums = score.by_term
    columns = [score.sums[:, : len(BASE)], holds]
    if len(score.terms) > len(BASE):
        errors = holds.new_full((len(holds), 2), math.nan)  # values of metrics come behind them
        for term in score.terms:
            if term.outputs:
                errors = sums[term][:, :2] / term.outputs
        columns.append(errors)
    columns += [metric.of(sums)[:, None] for metric in own_figures(metrics)]
    return torch.cat(columns, dim=1)


def score_of(score: PartScore, rows: slice, task: Task) -> Score:
    """The score of a slice of the devices, all of which hold the model."""
    base = score.sums[:, : len(BASE)]
    everyone = torch.ones_like(base[:, :1])
    # Kinds of sums by themselves: torch adds up matrices of other widths in another order.
    groups = [torch.cat([base, _spread(score, everyone)], dim=1)]
    sums = score.by_term
    for of_errors in (True, False):
        terms = [term for term in score.terms[len(BASE) :] if bool(term.outputs) == of_errors]
        groups += [torch.cat([sums[term] for term in terms], dim=1)] if terms else []
    first, *others = [group[rows].sum(0, keepdim=True).cpu() for group in groups]
    totals = torch.cat([first[:, : len(BASE)], *others], dim=1)
    known = by_term(score.terms, totals.expand(2, -1))
    [out] = _scores(task.metrics, known, first[:, len(BASE) :].tolist(), [[]], task.asked)
    return out


def _spread(score: PartScore, held: Rows) -> Tensor:
    """Of each device: accuracy, 1 if it holds the model and has any example, and a histogram.

    The histogram is of its accuracy.
    """
    has_any = (score.count > 0).double()
    accuracy = score.right / score.count.clamp(min=1)
    bin_number = (accuracy * (_BINS - 1)).round().long()
    bins = torch.arange(_BINS, device=bin_number.device)
    histogram = (bin_number[:, None] == bins) * has_any[:, None]
    return torch.cat([(accuracy * has_any)[:, None], held * has_any[:, None], histogram], dim=1)


def _scores(
    metrics: Sequence[Metric],
    sums: Mapping[Term, Tensor],
    spreads: Sequence[Sequence[float]],
    few: Sequence[Sequence[float]],
    asked: tuple[str, ...],
) -> list[Score]:
    """Scores of several models and parts: from their sums of holders, then those of everybody."""
    count = len(spreads)
    counted = dict(sums)
    if few[0]:  # the answers of devices with few examples, which no loss has a part of
        of_few = torch.tensor(few, dtype=torch.float64)
        of_few = torch.cat([of_few[:, :2], of_few[:, 3:5]])
        counted = {ANSWERS: sums[ANSWERS] + of_few[:, :1], EXAMPLES: sums[EXAMPLES] + of_few[:, 1:]}
    values = {}
    confusions: list[Any] = [None] * count
    for metric in metrics:
        if metric.table:
            confusions = metric.of(sums)[count:].tolist()
        else:
            of_answers = set(metric.terms) <= {ANSWERS, EXAMPLES}
            values[metric.name] = metric.figures(counted if of_answers else sums)
    out = []
    for number, (accuracy, holders, *bins) in enumerate(spreads):
        devices = sum(bins)
        figures = {}
        for name, of in values.items():
            figure = Figure(of[number], of[count + number])
            if name == "accuracy" and devices:
                worst = _worst(bins, devices)
                figure = figure._replace(uniform=accuracy / devices, worst=worst)
            if figure != _UNKNOWN:
                figures[name] = figure
        uncounted = int(few[number][6]) if few[number] else None
        table = confusions[number]
        out.append(Score(figures, int(holders), asked, None, table, uncounted))
    return out


def _worst(bins: Sequence[float], devices: float) -> float:
    """The mean accuracy of the worst tenth (at least one) of the devices of a histogram."""
    wanted = max(devices / 10, 1.0)
    left = wanted
    total = 0.0
    for number, count in enumerate(bins):
        taken = min(count, left)
        total += taken * number / (_BINS - 1)
        left -= taken
    return total / wanted
