"""Metrics: figures that follow from sums.

A device adds up the numbers of every `Term` once, however many metrics follow from them. A `Metric`
of all devices follows from the sums over all of them, and that of one device from its own sums. No
device sends outputs or labels of single examples.

A new metric is one value: an entry of `_MADE`, which a user asks for by name, or one of `usual`,
which every record then has. Tables, pages, files, trackers, `select` and `stop` find it there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey.data import Shards
from covey.engine.measures import calibration
from covey.engine.measures.losses import Loss, cross_entropy, loss_function, predicts_numbers
from covey.errors import ConfigError, DivergedError, meant, shown

MetricFunction = Callable[[Tensor, Tensor], Tensor]
"""From outputs [N, ...] and targets [N, ...] to one number per example, [N]."""
MetricSpec = str | MetricFunction
"""A metric by name, or a function of one's own whose mean over examples is the metric."""
SumsOf = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From outputs [n, B, ...], targets [n, B, ...] and weights [n, B], which are 0 for padding, to the
sums of each row, float64 [n, columns]."""

AUC_BINS = 1001
AUC_LIMIT = 1e5
AUC_CENTRE = 1e-3
"""The bins of AUC are of asinh(1000 log odds) up to log odds of 1e5: 4e-5 wide at 0, then 4 % of
their distance from it. Log odds are those beyond a guess, so that 0 is where training begins."""
ECE_BINS = 15
_MOST_CLASSES = 200


@dataclass(frozen=True, eq=False)
class Term:
    """What a device adds up, [n, columns] for n rows; those without `sums` are tally's own.

    Columns before `unsigned` are never negative. Sums of errors are over so many `outputs` of every
    example.
    """

    columns: int
    sums: SumsOf | None = None
    unsigned: int = 0
    outputs: int = 0


ANSWERS = Term(1, unsigned=1)
"""Right answers."""
LOSSES = Term(1)
EXAMPLES = Term(1, unsigned=1)
BASE = (ANSWERS, LOSSES, EXAMPLES)
"""What every device adds up, whatever its targets are."""
Sums = Mapping[Term, Tensor]
"""Sums by term, float64 [n, columns] each."""
RIGHT, LOSS, COUNT, HOLDS, ABSOLUTE, SQUARED = range(6)
"""The first columns of what a device reports: its sums of right answers, of the loss and of
examples, whether it holds the model, its sums of |error| and error^2 per output."""


@dataclass(frozen=True)
class Mean:
    """That a metric is a function of a mean over examples.

    `column` is that of the sum in what devices report. `outer` gives the metric of the mean, and
    `inner` the mean of the metric; `slope` is the derivative of `inner`, by which the standard
    error of the mean is divided.
    """

    column: int
    outer: Callable[[float], float] = float
    inner: Callable[[float], float] = float
    slope: Callable[[float], float] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the metric is the mean itself."""
        return self.outer is float


@dataclass(frozen=True, eq=False)
class Metric:
    """A figure that follows from sums.

    `value` gives figures [n] from the sums of its `terms`; NaN where they say nothing. A `relative`
    metric is an error with a natural zero: its changes are told in per cent. A metric in `percent`
    is a fraction. A `table` has whole numbers [n, ...] in place of figures.
    """

    name: str
    terms: tuple[Term, ...]
    value: Callable[..., Tensor]
    higher: bool = True
    title: str = ""  # as it is written; "": its name
    heading: str = ""  # above a table that is judged by it; "": its title
    percent: bool = False
    relative: bool = False
    mean: Mean | None = None
    table: bool = False
    function: MetricFunction | None = None  # the user's own, whose mean it is

    @cached_property
    def own(self) -> Term | None:
        """The sums that no other metric follows from; None where it shares those of others."""
        return self.terms[0] if len(self.terms) == 1 else None

    def of(self, sums: Sums) -> Tensor:
        """The figures, from the sums of all terms."""
        return self.value(*map(sums.__getitem__, self.terms))

    def figures(self, sums: Sums) -> list[float | None]:
        """The figures as numbers; None where nothing is known of them.

        A mean that is not a number, as of a model that diverged, is known to be none.
        """
        values: list[float] = self.of(sums).tolist()
        if self.mean is None:
            return [None if math.isnan(value) else value for value in values]
        counts = sums[EXAMPLES][:, 0].tolist()
        return [value if count else None for value, count in zip(values, counts, strict=True)]


Kind = Literal["classes", "labels", "numbers", "other"]


@dataclass(frozen=True)
class Targets:
    """What outputs are compared with.

    `size` is the number of classes, of yes-or-no labels or of numbers per example. `logits` says
    whether the outputs for labels are logits; else they are probabilities.
    """

    kind: Kind
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
        size = shards.y.shape[1:].numel()
        if getattr(function, "targets", "") == "yes or no":
            logits = not isinstance(getattr(function, "loss", None), nn.BCELoss)
            return Targets("labels", size, logits)
        if predicts_numbers(function):
            return Targets("numbers", size)
        return Targets("other")


# Means over examples, and what every record has


def _mean(name: str, term: Term, mean: Mean, at: int = 0, **more: Any) -> Metric:
    """A function of the mean of a column of a term."""

    def value(sums: Tensor, examples: Tensor) -> Tensor:
        means = sums[:, at] / (examples[:, 0] * max(term.outputs, 1))
        if mean.outer is float:
            return means
        # Python's functions, for torch's and numpy's differ in the last bit from machine to machine
        return means.new_tensor([mean.outer(value) for value in means.tolist()])

    return Metric(name, (term, EXAMPLES), value, mean=mean, **more)


def root(mean: float) -> float:
    """The root of a mean of squares; NaN where it is negative, as another machine may have said.

    >>> root(4.0), root(-4.0)
    (2.0, nan)
    """
    return math.nan if mean < 0 else math.sqrt(mean)


_LARGEST_LOSS = 700.0  # whose exponential is still a float


def exponential(loss: float) -> float:
    """The exponential of a mean loss per token; infinite where it is too large for a float.

    >>> round(exponential(math.log(26)), 6)
    26.0
    """
    return math.inf if loss > _LARGEST_LOSS else math.exp(loss)


def error_sums(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """All sums that RMSE, MAE and R2 need, of each row, float64 [n, 5 + 2 outputs].

    With targets y = high + low, they are of |error|, error^2, high^2, low^2 and high * low, then of
    high by output and of low by output. `high` has 12 bits, so that its sums are exact: y^2 alone
    would have no digit left of a spread a million times smaller than the mean.
    """
    weight = weight[..., None]
    targets = y.double().unsqueeze(-1).flatten(2)
    predicted = outputs.double().reshape(targets.shape)
    error = (predicted - targets) * weight
    targets = targets * weight
    shifted = targets * (2.0**41 + 1)
    high = shifted - (shifted - targets)
    low = targets - high
    terms = [error.abs(), error.square(), high.square(), low.square(), high * low]
    totals = torch.stack([term.sum((1, 2)) for term in terms], dim=1)
    return torch.cat([totals, high.sum(1), low.sum(1)], dim=1)


def _spread(sums: list[float], count: float, outputs: int) -> float:
    """The sum of (y - mean of y)^2, exact but for rounding in the sums; 0 of equal targets."""
    if not count or not all(map(math.isfinite, sums)):
        return 0.0
    high_squared, low_squared, product, *by_output = map(Fraction, sums)
    total = high_squared + 2 * product + low_squared
    spread = total
    for high, low in zip(by_output[:outputs], by_output[outputs:], strict=True):
        spread -= (high + low) ** 2 / Fraction(count)
    varied = spread > Fraction(1e-18) * total  # of equal targets only rounding is left
    return float(spread) if varied else 0.0


@cache
def of_numbers(outputs: int) -> tuple[Metric, ...]:
    """RMSE, MAE and R2 of so many numbers per example."""
    errors = Term(5 + 2 * outputs, error_sums, unsigned=4, outputs=outputs)

    def r2(sums: Tensor, examples: Tensor) -> Tensor:
        """1 - squared errors / squared distances of targets from their mean."""
        values = []
        for own, [count] in zip(sums.tolist(), examples.tolist(), strict=True):
            _, squared, *of_targets = own
            spread = _spread(of_targets, count, outputs)
            values.append(1 - squared / spread if spread else math.nan)
        return sums.new_tensor(values)

    squared = Mean(SQUARED, root, lambda rmse: rmse * rmse, slope=lambda rmse: 2 * rmse)
    lower: dict[str, Any] = {"higher": False, "relative": True}
    heading = "errors in the units of the target"
    return (
        _mean("rmse", errors, squared, at=1, title="RMSE", heading=heading, **lower),
        _mean("mae", errors, Mean(ABSOLUTE), title="MAE", **lower),
        Metric("r2", (errors, EXAMPLES), r2, title="R2"),
    )


ACCURACY = _mean("accuracy", ANSWERS, Mean(RIGHT), percent=True, heading="accuracy in %")
MEAN_LOSS = _mean("loss", LOSSES, Mean(LOSS), higher=False, relative=True)
PERPLEXITY = _mean(
    "perplexity",
    LOSSES,
    Mean(LOSS, exponential, math.log),
    higher=False,
    relative=True,
    heading="accuracy in % and perplexity, per token",
)


def usual(targets: Targets) -> tuple[Metric, ...]:
    """The metrics in every record of such targets; devices are compared by the first."""
    if targets.kind == "classes":
        per_token = (PERPLEXITY,) if targets.tokens else ()
        return (ACCURACY, *per_token, MEAN_LOSS)
    if targets.kind == "numbers":
        return (*of_numbers(targets.size), MEAN_LOSS)
    return (MEAN_LOSS,)


USUAL = tuple(metric.name for metric in (ACCURACY, PERPLEXITY, *of_numbers(1), MEAN_LOSS))
"""The names of metrics that records have without being asked for them, in the order of tables."""
DEFAULTS = (PERPLEXITY.name, ACCURACY.name, "rmse", MEAN_LOSS.name)
"""What a run is judged by without `select`: the first that it has."""


# Metrics that a user asks for, each from sums of its own


def _summed(
    name: str, columns: int, sums: SumsOf, value: Callable[[Tensor], Tensor], **more: Any
) -> Metric:
    """A metric with sums that no other one has."""
    return Metric(name, (Term(columns, sums),), value, **more)


def _mean_sums(values: Tensor, weight: Tensor) -> Tensor:
    """The sum of the values that count, and their number, [n, 2]."""
    weight = weight.double()
    counted = torch.where(weight > 0, values.double() * weight, 0.0)
    return torch.stack([counted.sum(1), weight.sum(1)], dim=1)


def _mean_of_two(sums: Tensor) -> Tensor:
    """The mean, from the sums of `_mean_sums`."""
    return sums[:, 0] / sums[:, 1]


def top(k: int) -> Metric:
    """The fraction of examples whose label is among the k classes of the largest outputs."""

    def sums(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        best = outputs.topk(k, dim=-1).indices
        return _mean_sums((best == y[..., None]).any(-1), weight)

    return _summed(f"top{k}", 2, sums, _mean_of_two)


def label_accuracy(targets: Targets) -> Metric:
    """The fraction of yes-or-no labels that are predicted right, over all labels."""

    def sums(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        predicted, actual = _decisions(outputs, y, targets)
        return _mean_sums((predicted == actual).double().mean(-1), weight)

    return _summed("label_accuracy", 2, sums, _mean_of_two)


def balanced_accuracy(targets: Targets) -> Metric:
    """The mean over classes of their recall; classes without examples are left out."""

    def sums(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        right, _, actual = _counts(outputs, y, weight, targets)
        return torch.cat([right, actual], dim=1)

    def value(sums: Tensor) -> Tensor:
        right, actual = sums.chunk(2, dim=1)
        return _mean_over(right / actual, actual > 0)

    return _summed("balanced_accuracy", 2 * targets.size, sums, value)


def f1(targets: Targets) -> Metric:
    """The mean over classes, or over labels, of 2 right / (predicted + actual).

    Classes that neither occur nor are predicted are left out.
    """

    def sums(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return torch.cat(_counts(outputs, y, weight, targets), dim=1)

    def value(sums: Tensor) -> Tensor:
        right, predicted, actual = sums.chunk(3, dim=1)
        either = predicted + actual
        return _mean_over(2 * right / either, either > 0)

    return _summed("f1", 3 * targets.size, sums, value)


@dataclass(frozen=True)
class AUC:
    """The area under the ROC curve, from histograms of log odds.

    It is the probability that a positive example scores higher than a negative one. A pair in one
    bin counts half, so the error is at most half the fraction of pairs that share a bin. For more
    than two classes it is the mean over classes, each against the rest; classes without positive or
    without negative examples are left out.
    """

    targets: Targets

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
        positive, negative = sums.reshape(len(sums), 2, self._classes, AUC_BINS).unbind(1)
        below = negative.cumsum(-1) - 0.5 * negative
        pairs = positive.sum(-1) * negative.sum(-1)
        area = (positive * below).sum(-1) / pairs
        return _mean_over(area, pairs > 0)


def _auc(targets: Targets) -> Metric:
    auc = AUC(targets)
    if targets.size > _MOST_CLASSES:
        have = f"{targets.size} classes would take {auc.columns} sums per device"
        raise ConfigError(f"metrics: auc is for {_MOST_CLASSES} classes at most; {have}.")
    return _summed("auc", auc.columns, auc.sums, auc.value)


def ece(targets: Targets) -> Metric:
    """The expected calibration error, over 15 bins of confidence
    (covey/engine/measures/calibration.py): the mean of |confidence - accuracy| of an example's bin.
    """

    def value(sums: Tensor) -> Tensor:
        right, confidence, count = sums[:, :-2].chunk(3, dim=1)
        return (right - confidence).abs().sum(1) / count.sum(1)

    sums = partial(calibration.sums, bins=ECE_BINS)
    return _summed("ece", 3 * ECE_BINS + 2, sums, value, higher=False)


def confusion(targets: Targets) -> Metric:
    """The confusion matrix: examples by class and by predicted class, a table.

    A prediction that is no class of the data is left out.
    """
    size = targets.size
    if size > _MOST_CLASSES:
        fault = f"confusion is for {_MOST_CLASSES} classes at most"
        raise ConfigError(f"metrics: {fault}, not for {size}; leave it out.")

    def sums(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        predicted = outputs.argmax(-1)
        weight = weight.double() * (predicted < size)
        index = size * y + predicted.clamp(max=size - 1)
        return weight.new_zeros(len(y), size**2).scatter_add_(1, index, weight)

    def value(sums: Tensor) -> Tensor:
        return sums.view(len(sums), size, size).long()

    return _summed("confusion", size**2, sums, value, table=True)


def mean_of(function: MetricFunction) -> Metric:
    """The mean over examples of a function of the user's own.

    Higher is better, unless the function has an attribute `higher` that says otherwise.
    """
    name = function_name(function)

    def sums(outputs: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        values = function(outputs.flatten(0, 1), y.flatten(0, 1))
        if not isinstance(values, Tensor) or values.shape != (y.shape[0] * y.shape[1],):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            rule = "return one number per example, [N]"
            raise ConfigError(f"metric {name} returned {got}; {rule}.")
        values = values.view(y.shape[:2])
        if not values.is_cuda:  # where the check would wait for the numbers
            _check_finite(name, values, outputs, weight)
        return _mean_sums(values, weight)

    higher = bool(getattr(function, "higher", True))
    return _summed(name, 2, sums, _mean_of_two, higher=higher, function=function)


def function_name(function: Any) -> str:
    """What a function is called in records."""
    name = getattr(function, "__name__", None)
    return str(name or type(function).__name__)


def _check_finite(name: str, values: Tensor, outputs: Tensor, weight: Tensor) -> None:
    """An error where a function, and not the model, makes numbers that are not finite."""
    finite = torch.isfinite(outputs)
    if finite.ndim > 2:
        finite = finite.flatten(2).all(2)
    wrong = finite & (weight > 0) & ~torch.isfinite(values)
    if bool(wrong.any()):
        have = f"{int(wrong.sum())} of {int((weight > 0).sum())} examples"
        rule = "return a finite number for every example"
        raise DivergedError(
            f"metric {name} is NaN or infinite for {have}, whose outputs are finite; {rule}."
        )


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


# Names


_MADE: dict[Kind, dict[str, Callable[[Targets], Metric]]] = {
    "classes": {
        "balanced_accuracy": balanced_accuracy,
        "f1": f1,
        "auc": _auc,
        "ece": ece,
        "confusion": confusion,
    },
    "labels": {
        "accuracy": label_accuracy,
        "label_accuracy": label_accuracy,
        "f1": f1,
        "auc": _auc,
    },
    "numbers": {},
    "other": {},
}
_KINDS: dict[Kind, str] = {
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
    out: dict[str, Metric] = {}
    for spec in specs:
        metric = _metric(spec, targets)
        if metric.name in out:
            raise ConfigError(f"metrics names {metric.name!r} twice; keep one.")
        out[metric.name] = metric
    return tuple(out.values())


def _metric(spec: Any, targets: Targets) -> Metric:
    if callable(spec):
        metric = mean_of(spec)
        if _is_known(metric.name):
            raise ConfigError(f"metrics: a function is called {metric.name!r}; rename it.")
        return metric
    if not isinstance(spec, str):
        raise ConfigError(f"metrics: {shown(spec)} is no metric; give a name or a function.")
    known = {metric.name: metric for metric in usual(targets)}
    if spec in known:
        return known[spec]
    if spec in _MADE[targets.kind]:
        return _MADE[targets.kind][spec](targets)
    number = _TOP.fullmatch(spec)
    if number and targets.kind == "classes":
        k = int(number[1])
        if k >= targets.size:
            fault = f"top{k} is always 1, for there are {targets.size} classes"
            raise ConfigError(f"metrics: {fault}; give a smaller number.")
        return top(k)
    raise ConfigError(_misfit(spec, targets))


def every_metric(asked: Sequence[Metric], targets: Targets) -> tuple[Metric, ...]:
    """The usual metrics of such targets, then the others that are asked for."""
    metrics = {metric.name: metric for metric in (*usual(targets), *asked)}
    return tuple(metrics.values())


def terms_of(metrics: Sequence[Metric]) -> tuple[Term, ...]:
    """What devices add up for these metrics, each once."""
    terms = dict.fromkeys(BASE)
    for metric in metrics:
        terms |= dict.fromkeys(metric.terms)
    return tuple(terms)


def by_term(terms: Sequence[Term], sums: Tensor) -> dict[Term, Tensor]:
    """The columns of every term, of sums [n, columns] of all of them."""
    out = {}
    start = 0
    for term in terms:
        out[term] = sums[:, start : start + term.columns]
        start += term.columns
    return out


def own_figures(metrics: Sequence[Metric]) -> list[Metric]:
    """The metrics that are figures from sums of their own: devices report their values."""
    return [metric for metric in metrics if metric.own and not metric.table]


_FACES = {
    metric.name: metric
    for targets in [Targets(kind, 2, tokens=True) for kind in _MADE]
    for metric in (*usual(targets), *(make(targets) for make in _MADE[targets.kind].values()))
}


def face(name: str) -> Metric:
    """The metric of a name, as it is written and judged; its sums are those of other targets."""
    return _FACES.get(name) or Metric(name, (), _mean_of_two)


def _is_known(name: str) -> bool:
    return name in _known() or _TOP.fullmatch(name) is not None


def _known() -> list[str]:
    """The names of all metrics but those of top k."""
    return list(dict.fromkeys([*chain.from_iterable(_MADE.values()), *_FACES]))


def _misfit(name: str, targets: Targets) -> str:
    """Why there is no such metric here, and which there are."""
    names = [*_MADE[targets.kind], *(metric.name for metric in usual(targets))]
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
