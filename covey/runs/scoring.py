"""How good every model is: sums that devices add up through the same `ask`, and the figures that
follow from them.

For each model and part of the data a device answers its right answers, loss, count, accuracy, 1 and
a histogram of accuracy; where numbers are predicted, also its sums of |error|, error^2, y^2 and y,
from which RMSE, MAE and R2 of all devices follow. A node that keeps a model sends it to all devices
under it; where an algorithm leaves layers private, each device scores it with its own of these.
Where nothing was kept yet, the global model stands in; figures are given over the holders alone
and, beside them, with that fallback.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from covey.engine import calibration, smooth_l1
from covey.engine.calibration import Calibration
from covey.engine.task import PartScore, Predict
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Exact, exact
from covey.tree import Topology
from covey.types import Rows

_BINS = 101
_SUMS = (
    5 + _BINS + 3
)  # right, loss, count, accuracy, 1, histogram of the holders; right, loss, count of everybody
_FACTS = 3  # holders, the sum of their ages, the sum of their shares of non-zeros; with a cut also of angles and layers' shares


@dataclass(frozen=True)
class Score:
    """One model on one part of the data.

    Accuracies are shares, None for regression or where nobody has an example.
    """

    accuracy: float | None  # all examples alike, so a device weighs as many as it has
    accuracy_uniform: float | None  # all devices alike
    worst_decile: float | None  # mean accuracy of the worst tenth of the devices, to 0.01
    loss: float | None  # mean over examples
    devices: int  # devices scored: those that hold the model, or stand under a node that does, and have examples
    accuracy_fallback: (
        float | None
    )  # as `accuracy` over all devices, the global model standing in where none was kept
    loss_fallback: float | None  # as `loss` over all devices, likewise
    rmse: float | None = None  # root of the mean squared error over examples; None for classes
    mae: float | None = None  # mean absolute error
    r2: float | None = (
        None  # 1 - squared errors / squared distances of targets from their mean; None if all are equal
    )
    rmse_fallback: float | None = None  # these over all devices, likewise
    mae_fallback: float | None = None
    r2_fallback: float | None = None
    sampled: int | None = (
        None  # devices drawn to be scored; None: all were scored, and the next two are None too
    )
    standard_error: float | None = (
        None  # of `accuracy`, or of `loss` for regression (covey/runs/sampling.py)
    )
    standard_error_fallback: float | None = (
        None  # of `accuracy_fallback` or `loss_fallback`, likewise
    )


@dataclass(frozen=True)
class Model:
    """One kept model: who keeps it, how old and how sparse it is, and its scores by part of the
    data.
    """

    tier: str
    holders: int
    age: float  # mean number of rounds since it was kept
    nonzeros: float  # mean share of entries above `cut`
    cut: float
    scores: dict[str, Score]
    angle: float | None = (
        None  # mean angle between the entries above `cut` and their signs, in degrees; None without a cut
    )
    layers: dict[str, float] = field(
        default_factory=dict
    )  # mean share of non-zeros of every parameter; empty without a cut

    def quality(self, part: str) -> float:
        """What rounds are chosen by: accuracy over all devices, or minus the loss for regression;
        -inf where unknown.

        Devices that hold no such model yet count with the global one: else a round in which two
        lucky devices hold one would win.
        """
        score = self.scores[part]
        if score.accuracy_fallback is not None:
            return score.accuracy_fallback
        if score.loss_fallback is None or math.isnan(score.loss_fallback):
            return -math.inf
        return -score.loss_fallback


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

    def parameters(self) -> dict[str, Any]:
        """Everything but the algorithm as JSON can hold it, so that another machine can make the
        same scorer.
        """
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "algorithm"
        }

    @staticmethod
    def made(algorithm: Algorithm, parameters: Mapping[str, Any]) -> Scorer:
        """The scorer that has these parameters."""
        names = tuple((str(tier), str(name)) for tier, name in parameters["names"])
        slots = tuple(
            (str(name), int(start), int(stop)) for name, start, stop in parameters["slots"]
        )
        parts = tuple(map(str, parameters["parts"]))
        return Scorer(algorithm, **{**parameters, "names": names, "slots": slots, "parts": parts})

    def server(self, me: Nodes, w: Rows) -> Rows:
        """All sums, one row."""
        held = torch.ones(len(me), 1, dtype=torch.float64, device=w.device)
        return self._sums_of(
            me, [w, held], [self._facts(me, "global", w, held, torch.zeros_like(held))]
        )

    def node(self, me: Nodes, *above: Rows) -> Exact:
        """The sums of everything under these nodes; `above` holds rows and a flag "kept" for each
        model of the tiers above.
        """
        models = list(above)
        if me.leaf and self.algorithm.splits:
            mine = me.recall("personal", default=models[0])[:, me.private]
            models[::2] = [torch.cat([rows[:, me.shared], mine], dim=1) for rows in models[::2]]
        return exact(self._sums_of(me, models, []))

    def read(self, sums: Tensor, tree: Topology) -> dict[str, Model]:
        """The figures of every model by its name; "global" is the server's."""
        names = [(self.top, "global"), *self.names]
        values = sums[0].tolist()
        facts = self._read_facts(values[len(names) * len(self.parts) * self._width :], tree)
        out = {}
        for at, (tier, name) in enumerate(names):
            holders, age, nonzeros, *more = facts[tier, name]
            scores = {}
            for k, part in enumerate(self.parts):
                start = (at * len(self.parts) + k) * self._width
                figures = values[start : start + _SUMS]
                errors = values[start + self._width - 2 * self._errors : start + self._width]
                scores[part] = _score(figures, self.classifies, errors, self.targets)
            some = max(holders, 1)
            zero = self.algorithm.zero(tier, name) or 0.0
            angle = more[0] / some if more else None
            layers = {
                slot[0]: share / some for slot, share in zip(self.slots, more[1:], strict=False)
            }
            out[name] = Model(
                tier, int(holders), age / some, nonzeros / some, zero, scores, angle, layers
            )
        return out

    def calibrations(self, sums: Tensor) -> dict[str, Calibration]:
        """The calibration of every model on the first part, over the devices that hold it."""
        out = {}
        for at, name in enumerate(["global", *(name for _, name in self.names)]):
            end = at * len(self.parts) * self._width + self._width
            out[name] = calibration.read(sums[0, end - self._width + _SUMS : end])
        return out

    @property
    def _width(self) -> int:
        """How many sums there are of one model on one part."""
        return _SUMS + (3 * self.bins + 2 if self.bins else 0) + 2 * self._errors

    @property
    def _errors(self) -> int:
        """How many sums of errors there are; they come twice, of the holders and of everybody."""
        return 3 + self.targets if self.targets else 0

    def _read_facts(
        self, values: list[float], tree: Topology
    ) -> dict[tuple[str, str], list[float]]:
        """Facts are appended on the way up, so the lowest tier's come first."""
        facts, at = {}, 0
        for tier in reversed(tree.tiers):
            for name in [
                *(["global"] if tier == self.top else []),
                *(n for t, n in self.names if t == tier),
            ]:
                size = (
                    _FACTS
                    if self.algorithm.zero(tier, name) is None
                    else _FACTS + 1 + len(self.slots)
                )
                facts[tier, name] = values[at : at + size]
                at += size
        return facts

    def _sums_of(
        self,
        me: Nodes,
        models: list[Rows],
        facts: list[Rows],
    ) -> Rows:
        """What is under these nodes, their own models sent along, then the facts of those."""
        w = models[0]
        for tier, name in self.names:
            if tier == me.tier:
                age = me.age(name).to(w.device)
                held = (age >= 0).double()
                models += [me.recall(name, default=w), held]
                facts.append(self._facts(me, name, models[-2], held, age))
        return torch.cat([self._under(me, models), *facts], dim=1)

    def _under(self, me: Nodes, models: list[Rows]) -> Rows:
        if me.leaf:
            names, found = ["global", *(name for _, name in self.names)], []
            for name, rows, held in zip(names, models[::2], models[1::2], strict=True):
                me.call.recalled.clear()
                predict = self.algorithm.predictor(me, name, rows)
                found += [self._sums(me, name, rows, held, part, predict) for part in self.parts]
                me.needed_for(name)
            return torch.cat(found, dim=1)
        replies = me.ask(self.node, *(exact(rows) for rows in models), sample=self._cohort(me))
        return replies.sums()[0]

    def _cohort(self, me: Nodes) -> Tensor | None:
        """Which children are asked: of the devices those drawn, of other tiers all, for they keep
        models of their own.
        """
        if self.sample is None or not me.above_devices:
            return None
        return me.drawn(self.sample, "score")

    def _sums(
        self,
        me: Nodes,
        name: str,
        rows: Rows,
        held: Rows,
        part: str,
        predict: Predict | None,
    ) -> Rows:
        tally = me.evaluate(rows, part, predict=predict, bins=self.bins)
        each = torch.stack(
            [tally.right, tally.loss, tally.count, held[:, 0].to(tally.count)], dim=1
        )
        if tally.errors is not None:
            each = torch.cat([each, tally.errors[:, :2] / self.targets], dim=1)
        me.report(f"{name}/{part}", each)
        everybody = torch.stack([tally.right, tally.loss, tally.count], dim=1)
        more = [] if tally.honesty is None else [held * tally.honesty]
        if tally.errors is not None:
            more += [held * tally.errors, tally.errors]
        return torch.cat([held * _figures(tally), everybody, *more], dim=1)

    def _facts(
        self,
        me: Nodes,
        name: str,
        rows: Rows,
        held: Rows,
        age: Rows,
    ) -> Rows:
        zero = self.algorithm.zero(me.tier, name)
        share = smooth_l1.nonzeros(rows, zero).double()[:, None]
        facts = [held, held * age, held * share]
        if zero is not None:
            parts = [
                smooth_l1.nonzeros(rows[:, start:stop], zero).double()[:, None]
                for _, start, stop in self.slots
            ]
            facts += [held * figure for figure in (smooth_l1.angle(rows, zero)[:, None], *parts)]
        return torch.cat(facts, dim=1)


def score_of(
    tally: PartScore,
    rows: slice,
    classifies: bool,
) -> Score:
    """The figures of some of the devices of a tally, each of which holds the model."""
    figures = _figures(tally)[rows].sum(0).tolist()
    errors = [] if tally.errors is None else tally.errors[rows].sum(0).tolist()
    return _score([*figures, *figures[:3]], classifies, 2 * errors, max(len(errors) - 3, 0))


def _figures(tally: PartScore) -> Tensor:
    """Of each device: right, loss, count, accuracy, 1 if it has any example, and a histogram of
    accuracy.
    """
    some = (tally.count > 0).double()
    accuracy = tally.right / tally.count.clamp(min=1)
    bins = (
        torch.nn.functional.one_hot((accuracy * (_BINS - 1)).round().long(), _BINS) * some[:, None]
    )
    return torch.cat(
        [torch.stack([tally.right, tally.loss, tally.count, accuracy * some, some], dim=1), bins],
        dim=1,
    )


@dataclass(frozen=True)
class Errors:
    """How far predicted numbers are from the targets; None where that is not known."""

    rmse: float | None = None
    mae: float | None = None
    r2: float | None = None

    @staticmethod
    def of(
        sums: list[float],
        count: float,
        targets: int,
    ) -> Errors:
        """From the sums of |error|, error^2, y^2 and of y for each of `targets` outputs, over
        `count` examples.

        >>> Errors.of([2.0, 2.0, 20.0, 6.0], 2, 1)  # predictions 3 and 3 for the targets 2 and 4
        Errors(rmse=1.0, mae=1.0, r2=0.0)
        """
        if not sums or not count:
            return Errors()
        absolute, squared, targets_squared, *targets_sum = sums
        spread = targets_squared - sum(value * value for value in targets_sum) / count
        # Of equal targets nothing is left but rounding.
        varied = spread > 1e-12 * targets_squared
        return Errors(
            rmse=math.sqrt(squared / (count * targets)),
            mae=absolute / (count * targets),
            r2=1 - squared / spread if varied else None,
        )


def _score(
    values: list[float],
    classifies: bool,
    errors: list[float],
    targets: int,
) -> Score:
    """The figures that follow from the sums; `errors` are those of the holders, then of everybody."""
    right, loss, count, accuracy, devices = values[:5]
    bins = values[5 : 5 + _BINS]
    all_right, all_loss, all_count = values[5 + _BINS :]
    half = len(errors) // 2
    held = Errors.of(errors[:half], count, targets)
    everybody = Errors.of(errors[half:], all_count, targets)
    return Score(
        accuracy=right / count if count and classifies else None,
        accuracy_uniform=accuracy / devices if devices and classifies else None,
        worst_decile=_worst(bins, devices / 10) if devices and classifies else None,
        loss=loss / count if count else None,
        devices=int(devices),
        accuracy_fallback=all_right / all_count if all_count and classifies else None,
        loss_fallback=all_loss / all_count if all_count else None,
        rmse=held.rmse,
        mae=held.mae,
        r2=held.r2,
        rmse_fallback=everybody.rmse,
        mae_fallback=everybody.mae,
        r2_fallback=everybody.r2,
    )


def _worst(bins: list[float], wanted: float) -> float:
    """The mean accuracy of the worst `wanted` (at least one) devices of a histogram."""
    wanted = left = max(wanted, 1.0)
    total = 0.0
    for at, count in enumerate(bins):
        taken = min(count, left)
        total += taken * at / (_BINS - 1)
        left -= taken
    return total / wanted
