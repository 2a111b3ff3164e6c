"""Metrics as functions of sums: each device adds up a few numbers, and the sums give the figure.

A metric of all devices follows from the sums over all of them, and that of one device from its own
sums. No device sends outputs or labels of single examples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey.data import Shards
from covey.engine import calibration
from covey.engine.losses import Loss, cross_entropy, loss_function, predicts_numbers
from covey.errors import ConfigError, DivergedError, meant, shown
from covey.origin import FAULTS, told

MetricFunction = Callable[[Tensor, Tensor], Tensor]
"""From outputs [N, ...] and targets [N, ...] to one number per example, [N]."""
MetricSpec = str | MetricFunction
"""A metric by name, or a function of one's own whose mean over examples is the metric."""

AUC_BINS = 1001
AUC_LIMIT = 1e5
AUC_CENTRE = 1e-3
"""The bins of AUC are of asinh(1000 log odds) up to log odds of 1e5: 4e-5 wide at 0, then 4 % of
their distance from it. Log odds are those beyond a guess, so that 0 is where training begins."""
ECE_BINS = 15
_MOST_CLASSES = 200


class Metric(Protocol):
    """A figure that follows from sums.

    `columns` is the number of sums. `sums` gives those of each row, float64 [n, columns], from
    outputs [n, B, ...], targets [n, B, ...] and weights [n, B], which are 0 for padding. `value`
    gives figures [n] from sums [n, columns]; it is NaN where sums say nothing.
    """

    @property
    def name(self) -> str: ...

    @property
    def higher(self) -> bool: ...

    @property
    def columns(self) -> int: ...

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor: ...

    def value(self, sums: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Targets:
    """What outputs are compared with.

    `size` is the number of classes or of yes-or-no labels. `logits` says whether the outputs for
    labels are logits; else they are probabilities.
    """

    kind: Literal["classes", "labels", "numbers", "other"]
    size: int = 0
    logits: bool = True
    tokens: bool = False

    @staticmethod
    def of(shards: Shards, loss: Loss) -> Targets:
        """Those of this data under a resolved loss."""
        function = loss_function(loss)
        if shards.classes is not None:
            tokens = shards.by_position and function is cross_entropy
            return Targets("classes", shards.classes, tokens=tokens)
        if getattr(function, "targets", "") == "yes or no":
            labels = shards.y.shape[1:].numel()
            logits = not isinstance(getattr(function, "loss", None), nn.BCELoss)
            return Targets("labels", labels, logits)
        if predicts_numbers(function):
            return Targets("numbers")
        return Targets("other")


@dataclass(frozen=True)
class Recorded:
    """A figure that every record holds already; it needs no sums of its own."""

    name: str
    higher: bool
    columns: ClassVar[int] = 0

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """None."""
        return outputs.new_zeros(len(y), 0, dtype=torch.float64)

    def value(self, sums: Tensor) -> Tensor:
        """Not known from these sums."""
        return sums.new_full((len(sums),), torch.nan)


@dataclass(frozen=True)
class TopK:
    """The fraction of examples whose label is among the k classes of the largest outputs."""

    k: int
    higher: ClassVar[bool] = True
    columns: ClassVar[int] = 2

    @property
    def name(self) -> str:
        """As in "top3"."""
        return f"top{self.k}"

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Right answers and count."""
        best = outputs.topk(self.k, dim=-1).indices
        right = (best == y[..., None]).any(-1)
        return _mean_sums(right, weight)

    def value(self, sums: Tensor) -> Tensor:
        """Right answers over count."""
        return sums[:, 0] / sums[:, 1]


@dataclass(frozen=True)
class LabelAccuracy:
    """The fraction of yes-or-no labels that are predicted right, over all labels."""

    targets: Targets
    name: ClassVar[str] = "label_accuracy"
    higher: ClassVar[bool] = True
    columns: ClassVar[int] = 2

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The mean over labels of right answers, and the count."""
        predicted, actual = _decisions(outputs, y, self.targets)
        right = (predicted == actual).double().mean(-1)
        return _mean_sums(right, weight)

    def value(self, sums: Tensor) -> Tensor:
        """Right answers over count."""
        return sums[:, 0] / sums[:, 1]


@dataclass(frozen=True)
class BalancedAccuracy:
    """The mean over classes of their recall; classes without examples are left out."""

    targets: Targets
    name: ClassVar[str] = "balanced_accuracy"
    higher: ClassVar[bool] = True

    @property
    def columns(self) -> int:
        """Right answers and examples, by class."""
        return 2 * self.targets.size

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Right answers and examples, by class."""
        right, _, actual = _counts(outputs, y, weight, self.targets)
        return torch.cat([right, actual], dim=1)

    def value(self, sums: Tensor) -> Tensor:
        """The mean recall."""
        right, actual = sums.chunk(2, dim=1)
        return _mean_over(right / actual, actual > 0)


@dataclass(frozen=True)
class F1:
    """The mean over classes, or over labels, of 2 right / (predicted + actual).

    Classes that neither occur nor are predicted are left out.
    """

    targets: Targets
    name: ClassVar[str] = "f1"
    higher: ClassVar[bool] = True

    @property
    def columns(self) -> int:
        """Right answers, predictions and examples, by class."""
        return 3 * self.targets.size

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Right answers, predictions and examples, by class."""
        return torch.cat(_counts(outputs, y, weight, self.targets), dim=1)

    def value(self, sums: Tensor) -> Tensor:
        """The mean F1 score."""
        right, predicted, actual = sums.chunk(3, dim=1)
        either = predicted + actual
        return _mean_over(2 * right / either, either > 0)


@dataclass(frozen=True)
class AUC:
    """The area under the ROC curve, from histograms of log odds.

    It is the probability that a positive example scores higher than a negative one. A pair in one
    bin counts half, so the error is at most half the fraction of pairs that share a bin. For more
    than two classes it is the mean over classes, each against the rest; classes without positive or
    without negative examples are left out.
    """

    targets: Targets
    name: ClassVar[str] = "auc"
    higher: ClassVar[bool] = True

    @property
    def columns(self) -> int:
        """Positive and negative examples, by class and bin."""
        return 2 * self._classes * AUC_BINS

    @property
    def _classes(self) -> int:
        """The classes that are scored; of two classes, the second."""
        if self.targets.kind == "classes" and self.targets.size == 2:
            return 1
        return self.targets.size

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Positive and negative examples, by class and bin."""
        odds, actual = self._log_odds(outputs, y)
        odds = odds.nan_to_num(nan=0.0).clamp(-AUC_LIMIT, AUC_LIMIT)
        largest = math.asinh(AUC_LIMIT / AUC_CENTRE)
        place = ((odds / AUC_CENTRE).asinh() / largest + 1) * ((AUC_BINS - 1) / 2)
        offset = AUC_BINS * torch.arange(self._classes, device=odds.device)
        index = (place.round().long() + offset).flatten(1)
        weight = weight.double()[..., None]
        columns = []
        for mask in (actual, ~actual):
            counted = (mask * weight).flatten(1)
            histogram = counted.new_zeros(len(y), self._classes * AUC_BINS)
            columns.append(histogram.scatter_add_(1, index, counted))
        return torch.cat(columns, dim=1)

    def _log_odds(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The log odds of each class or label, and which of them are true, [n, B, classes]."""
        if self.targets.kind == "labels":
            _, actual = _decisions(outputs, y, self.targets)
            scores = outputs.double().reshape(actual.shape)
            if not self.targets.logits:
                scores = torch.logit(scores)
            return scores, actual
        outputs = outputs.double()
        logs = torch.log_softmax(outputs, dim=-1)
        odds = logs - torch.log(-torch.expm1(logs))
        # The probability of the most likely class may round to 1, so it is set against the others.
        highest, label = outputs.max(dim=-1, keepdim=True)
        others = outputs.scatter(-1, label, -torch.inf).logsumexp(dim=-1, keepdim=True)
        odds = odds.scatter(-1, label, highest - others)
        actual = F.one_hot(y, self.targets.size).bool()
        first = self.targets.size - self._classes
        odds = odds + math.log(max(self.targets.size - 1, 1))  # 0 where all classes are as likely
        return odds[..., first : self.targets.size], actual[..., first:]

    def value(self, sums: Tensor) -> Tensor:
        """The mean area."""
        positive, negative = self._histograms(sums)
        below = negative.cumsum(-1) - 0.5 * negative
        pairs = positive.sum(-1) * negative.sum(-1)
        area = (positive * below).sum(-1) / pairs
        return _mean_over(area, pairs > 0)

    def largest_error(self, sums: Tensor) -> Tensor:
        """How far `value` may be from the exact area, [n]: half the pairs that share a bin."""
        positive, negative = self._histograms(sums)
        pairs = positive.sum(-1) * negative.sum(-1)
        shared = (positive * negative).sum(-1)
        return _mean_over(0.5 * shared / pairs, pairs > 0)

    def _histograms(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        positive, negative = sums.reshape(len(sums), 2, self._classes, AUC_BINS).unbind(1)
        return positive, negative


@dataclass(frozen=True)
class ECE:
    """The expected calibration error, over 15 bins of confidence (covey/engine/calibration.py)."""

    name: ClassVar[str] = "ece"
    higher: ClassVar[bool] = False
    columns: ClassVar[int] = 3 * ECE_BINS + 2

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Those of a calibration."""
        return calibration.sums(outputs, y, weight, ECE_BINS)

    def value(self, sums: Tensor) -> Tensor:
        """The mean over examples of |confidence - accuracy| of their bin."""
        right, confidence, count = sums[:, :-2].chunk(3, dim=1)
        return (right - confidence).abs().sum(1) / count.sum(1)


@dataclass(frozen=True)
class Confusion:
    """The confusion matrix: examples by class and by predicted class.

    It is a table and not a figure; `value` is NaN.
    """

    targets: Targets
    name: ClassVar[str] = "confusion"
    higher: ClassVar[bool] = True

    @property
    def columns(self) -> int:
        """One for each class and predicted class."""
        return self.targets.size**2

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Examples by class and predicted class.

        A prediction that is no class of the data is left out.
        """
        size = self.targets.size
        predicted = outputs.argmax(-1)
        weight = weight.double() * (predicted < size)
        index = size * y + predicted.clamp(max=size - 1)
        counts = weight.new_zeros(len(y), self.columns)
        return counts.scatter_add_(1, index, weight)

    def value(self, sums: Tensor) -> Tensor:
        """Not a number."""
        return sums.new_full((len(sums),), torch.nan)

    def matrix(self, sums: Tensor) -> list[list[int]]:
        """Rows are classes and columns predicted classes, from sums [columns]."""
        table: list[list[int]] = sums.view(self.targets.size, -1).long().tolist()
        return table


@dataclass(frozen=True)
class Own:
    """The mean over examples of a function of the user's own."""

    function: MetricFunction
    columns: ClassVar[int] = 2

    @property
    def name(self) -> str:
        """The function's own name."""
        return function_name(self.function)

    @property
    def higher(self) -> bool:
        """True, unless the function has an attribute `higher` that says otherwise."""
        return bool(getattr(self.function, "higher", True))

    def sums(self, outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The sum of its numbers, and the count."""
        values = self.function(outputs.flatten(0, 1), y.flatten(0, 1))
        if not isinstance(values, Tensor) or values.shape != (y.shape[0] * y.shape[1],):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            rule = "return one number per example, [N]"
            raise ConfigError(f"metric {self.name} returned {got}; {rule}.")
        values = values.view(y.shape[:2])
        if not values.is_cuda:
            self._check_finite(values, outputs, weight)
        return _mean_sums(values, weight)

    def _check_finite(self, values: Tensor, outputs: Tensor, weight: Tensor) -> None:
        """An error where the function, and not the model, makes numbers that are not finite.

        On a GPU the check would wait for the numbers, so there the round's own check says less.
        """
        finite = torch.isfinite(outputs)
        if finite.ndim > 2:
            finite = finite.flatten(2).all(2)
        wrong = finite & (weight > 0) & ~torch.isfinite(values)
        if bool(wrong.any()):
            have = f"{int(wrong.sum())} of {int((weight > 0).sum())} examples"
            rule = "return a finite number for every example"
            raise DivergedError(
                f"metric {self.name} is NaN or infinite for {have}, whose outputs are finite; "
                f"{rule}."
            )

    def value(self, sums: Tensor) -> Tensor:
        """The mean."""
        return sums[:, 0] / sums[:, 1]


RECORDED: dict[str, dict[str, bool]] = {
    "classes": {"accuracy": True, "loss": False},
    "labels": {"loss": False},
    "numbers": {"rmse": False, "mae": False, "r2": True, "loss": False},
    "other": {"loss": False},
}
"""The figures in every record by kind of target, and whether higher is better."""
_MADE: dict[str, dict[str, Callable[[Targets], Metric]]] = {
    "classes": {
        "balanced_accuracy": BalancedAccuracy,
        "f1": F1,
        "auc": lambda targets: _auc(targets),
        "ece": lambda targets: ECE(),
        "confusion": lambda targets: _confusion(targets),
    },
    "labels": {
        "accuracy": LabelAccuracy,
        "label_accuracy": LabelAccuracy,
        "f1": F1,
        "auc": lambda targets: _auc(targets),
    },
    "numbers": {},
    "other": {},
}
_KINDS = {
    "classes": "these targets are classes",
    "labels": "these targets are yes-or-no labels",
    "numbers": "these targets are numbers",
    "other": "outputs are not compared with these targets",
}
_TOP = re.compile(r"top([1-9][0-9]*)")


def metrics_of(specs: Sequence[MetricSpec], targets: Targets) -> tuple[Metric, ...]:
    """The metrics of these names and functions, for such targets.

    >>> [metric.name for metric in metrics_of(["f1", "top3"], Targets("classes", 10))]
    ['f1', 'top3']
    """
    out: list[Metric] = []
    for spec in specs:
        metric = _metric(spec, targets)
        if any(metric.name == other.name for other in out):
            raise ConfigError(f"metrics names {metric.name!r} twice; keep one.")
        out.append(metric)
    return tuple(out)


def function_name(function: Any) -> str:
    """What a function is called in records."""
    name = getattr(function, "__name__", None)
    return str(name or type(function).__name__)


def _metric(spec: Any, targets: Targets) -> Metric:
    if callable(spec):
        metric = Own(spec)
        if _is_known(metric.name):
            raise ConfigError(f"metrics: a function is called {metric.name!r}; rename it.")
        return metric
    if not isinstance(spec, str):
        raise ConfigError(f"metrics: {shown(spec)} is no metric; give a name or a function.")
    recorded = _recorded(targets)
    if spec in recorded:
        return Recorded(spec, recorded[spec])
    if spec in _MADE[targets.kind]:
        return _MADE[targets.kind][spec](targets)
    top = _TOP.fullmatch(spec)
    if top and targets.kind == "classes":
        return _top(int(top[1]), targets)
    raise ConfigError(_misfit(spec, targets))


def _recorded(targets: Targets) -> dict[str, bool]:
    recorded = dict(RECORDED[targets.kind])
    if targets.tokens:
        recorded["perplexity"] = False
    return recorded


def _auc(targets: Targets) -> AUC:
    if targets.size > _MOST_CLASSES:
        have = f"{targets.size} classes would take {AUC(targets).columns} sums per device"
        raise ConfigError(f"metrics: auc is for {_MOST_CLASSES} classes at most; {have}.")
    return AUC(targets)


def _confusion(targets: Targets) -> Confusion:
    if targets.size > _MOST_CLASSES:
        fault = f"confusion is for {_MOST_CLASSES} classes at most"
        raise ConfigError(f"metrics: {fault}, not for {targets.size}; leave it out.")
    return Confusion(targets)


def is_figure(metric: Metric) -> bool:
    """Whether sums of its own give one number."""
    return metric.columns > 0 and not isinstance(metric, Confusion)


def _top(k: int, targets: Targets) -> TopK:
    if k >= targets.size:
        have = f"there are {targets.size} classes"
        raise ConfigError(f"metrics: top{k} is always 1, for {have}; give a smaller number.")
    return TopK(k)


def _is_known(name: str) -> bool:
    return name in _known() or _TOP.fullmatch(name) is not None


def _known() -> list[str]:
    """The names of all metrics but those of top k."""
    names = []
    for kind in RECORDED:
        names += [*_MADE[kind], *RECORDED[kind]]
    return [*dict.fromkeys(names), "perplexity"]


def _misfit(name: str, targets: Targets) -> str:
    """Why there is no such metric here, and which there are."""
    names = [*_MADE[targets.kind], *_recorded(targets)]
    if targets.kind == "classes":
        names.insert(0, "top3 (or another number)")
    choices = ", ".join(dict.fromkeys(names))
    fix = f"choose from {choices}, or give a function"
    if _is_known(name):
        return f"metrics: {name} is not for this data, {_KINDS[targets.kind]}; {fix}."
    return f"metrics: there is no metric {shown(name)}{meant(name, _known())}; {fix}."


def check_metric_names(specs: Sequence[MetricSpec], select: str) -> None:
    """Refuse names that no metric has; whether they fit the data is seen with the data."""
    own = [function_name(spec) for spec in specs if callable(spec)]
    names = [spec for spec in specs if isinstance(spec, str)]
    chosen = select.removeprefix("-")
    if ":" in chosen:
        name = chosen.rpartition(":")[2]
        fix = f"name the function in metrics = [{chosen!r}], and here by {name!r}"
        raise ConfigError(f"{shown(select)} is no name of a metric; {fix}.")
    if chosen and chosen not in own:
        names.append(chosen)
    for name in names:
        if not _is_known(name):
            known = ", ".join(["top3", *_known()])
            fix = f"choose from {known}, or name a function as module:function"
            hint = meant(name, [*_known(), *own])
            raise ConfigError(f"metrics: there is no metric {shown(name)}{hint}; {fix}.")


def check_own(metrics: Sequence[Metric], outputs: Tensor, y: Tensor) -> None:
    """Try functions of the user's own on outputs [n, B, ...] and targets, and say what fails."""
    for metric in metrics:
        if not isinstance(metric, Own):
            continue
        weight = torch.ones(y.shape[:2], device=y.device)
        try:
            metric.sums(outputs, y, weight)
        except FAULTS as error:
            raise ConfigError(
                f"metric {metric.name} fails on outputs {tuple(outputs.flatten(0, 1).shape)} and "
                f"targets {tuple(y.flatten(0, 1).shape)}, with {told(error)}"
            ) from error


def _mean_sums(values: Tensor, weight: Tensor) -> Tensor:
    """The sum of the values that count, and their number, [n, 2]."""
    weight = weight.double()
    counted = torch.where(weight > 0, values.double() * weight, 0.0)
    return torch.stack([counted.sum(1), weight.sum(1)], dim=1)


def _mean_over(values: Tensor, there: Tensor) -> Tensor:
    """The mean of the values that are there, [n]; NaN where none is."""
    total = torch.where(there, values, 0.0).sum(1)
    return total / there.sum(1)


def _decisions(outputs: Tensor, y: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Which labels are predicted and which are true, bool [n, B, labels]."""
    threshold = 0.0 if targets.logits else 0.5
    shape = (*y.shape[:2], targets.size)
    predicted = outputs.reshape(shape) > threshold
    actual = y.reshape(shape) > 0.5
    return predicted, actual


def _counts(
    outputs: Tensor, y: Tensor, weight: Tensor, targets: Targets
) -> tuple[Tensor, Tensor, Tensor]:
    """Right answers, predictions and examples by class or label, float64 [n, size] each."""
    if targets.kind == "labels":
        predicted, actual = _decisions(outputs, y, targets)
    else:
        every = F.one_hot(outputs.argmax(-1), outputs.shape[-1]).bool()
        predicted = every[..., : targets.size]  # a model may have more outputs than classes
        actual = F.one_hot(y, targets.size).bool()
    weight = weight.double()[..., None]
    right = (predicted & actual) * weight
    return right.sum(1), (predicted * weight).sum(1), (actual * weight).sum(1)
