"""Scores on a sample of the devices, and how far they are from those on all.

In a round that is scored, n of the N devices that train are drawn without replacement, every set of
n with the same probability, by the address (seed, round, "score"). Edges are all asked, for they
keep models of their own. Figures are those of the devices drawn: accuracy and loss estimate those
over all devices; `holders`, age and non-zeros of models that devices keep, and the worst tenth, are
of the devices drawn. The standard errors of metrics such as F1, which are no means, are the
jackknife's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from covey.engine.metrics import Metric
from covey.runs.devices import ABSOLUTE, COUNT, HOLDS, LOSS, RIGHT, SQUARED
from covey.runs.scoring import SUMS, Model, Score, has_error

Reports = Mapping[str, tuple[Tensor, Tensor]]
"""(ids, figures) of every device that was scored, by "MODEL/PART" (covey/runs/devices.py)."""


def standard_error(totals: Tensor, counts: Tensor, population: int) -> float | None:
    """The standard error of r = sum(totals) / sum(counts) over n of N devices.

    `totals` y_i, [n], are the right answers or the summed loss of each device drawn, `counts` c_i,
    [n], its examples. It is the ratio estimator's (Cochran, Sampling Techniques, 1977, section
    6.4), with the correction for a finite population:

        se^2 = (1 - n / N) / n * sum_i (y_i - r c_i)^2 / (n - 1) / mean(c)^2

    Where all devices have equally many examples, r is the mean accuracy of devices, which is
    unbiased, and se is that of a mean. Else the bias of r is of the order of 1 / n. None where
    nothing was counted, or one device of several was drawn.

    >>> import torch
    >>> right = torch.tensor([2.0, 4.0, 6.0])
    >>> counts = torch.full((3,), 10.0)  # the accuracies are 0.2, 0.4, 0.6
    >>> standard_error(right, counts, 12)  # sqrt(3/4 * 0.04 / 3)
    0.1
    >>> standard_error(right, counts, 3)  # nobody is left out
    0.0
    """
    n = len(totals)
    examples = float(counts.sum())
    if not examples:
        return None
    if n >= population:
        return 0.0
    if n < 2:
        return None
    ratio = float(totals.sum()) / examples
    residuals = totals - ratio * counts
    variance = float((residuals * residuals).sum()) / (n - 1)
    correction = 1 - n / population
    return math.sqrt(correction / n * variance) / (examples / n)


def jackknife(metric: Metric, sums: Tensor, population: int) -> float | None:
    """The standard error of a metric over n of N devices, from their sums, [n, columns].

    With m_i the metric without device i, and m their mean (Efron, The Jackknife, 1982, section 3),

        se^2 = (1 - n / N) (n - 1) / n sum_i (m_i - m)^2

    Of a mean of equally many examples each it is `standard_error`. None where the metric is not
    known without one of the devices, or one device of several was drawn.

    >>> import torch
    >>> from covey.engine.metrics import TopK
    >>> sums = torch.tensor([[2.0, 10.0], [4.0, 10.0], [6.0, 10.0]], dtype=torch.float64)
    >>> round(jackknife(TopK(3), sums, 12), 9)
    0.1
    """
    n = len(sums)
    if n >= population:
        return 0.0
    if n < 2:
        return None
    without = metric.value(sums.sum(0) - sums)
    if bool(without.isnan().any()):
        return None
    spread = float((without - without.mean()).square().sum())
    correction = 1 - n / population
    return math.sqrt(correction * (n - 1) / n * spread)


def with_errors(
    models: Mapping[str, Model],
    reports: Reports,
    population: int,
    metrics: Sequence[Metric] = (),
) -> dict[str, Model]:
    """The models with the number of devices drawn and the standard errors of their scores.

    In a deployed tree all devices drawn may be away: then no score is known.
    """
    out = {}
    for name, model in models.items():
        scores = {}
        for part, score in model.scores.items():
            if f"{name}/{part}" not in reports:
                scores[part] = replace(score, sampled=0)
                continue
            _, figures = reports[f"{name}/{part}"]
            scored = _with_error(score, figures, population)
            errors = _errors_of_numbers(score, figures, population)
            if f"{name}/{part}/{SUMS}" in reports:
                _, sums = reports[f"{name}/{part}/{SUMS}"]
                errors |= _errors_of_metrics(metrics, figures, sums, population)
            errors |= _errors_of_recorded(score, scored, errors)
            scores[part] = replace(
                scored,
                standard_errors={metric: held for metric, (held, _) in errors.items()},
                standard_errors_fallback={metric: every for metric, (_, every) in errors.items()},
            )
        out[name] = replace(model, scores=scores)
    return out


Pair = tuple[float | None, float | None]
"""Standard errors over the holders of a model, and over everybody."""


def _errors_of_numbers(score: Score, figures: Tensor, population: int) -> dict[str, Pair]:
    """Those of RMSE and MAE, where numbers are predicted.

    The RMSE is the root of the mean square; its error is that of the mean square / (2 RMSE).
    """
    if score.rmse_fallback is None:
        return {}
    squared = _ratio_errors(figures, SQUARED, population)
    roots = (score.rmse, score.rmse_fallback)
    held, every = (
        error / (2 * root) if error is not None and root else None
        for error, root in zip(squared, roots, strict=True)
    )
    return {"rmse": (held, every), "mae": _ratio_errors(figures, ABSOLUTE, population)}


def _errors_of_metrics(
    metrics: Sequence[Metric], figures: Tensor, sums: Tensor, population: int
) -> dict[str, Pair]:
    """Those of the metrics whose sums devices report."""
    holds = figures[:, HOLDS, None]
    out: dict[str, Pair] = {}
    start = 0
    for metric in metrics:
        if not has_error(metric):
            continue
        own = sums[:, start : start + metric.columns]
        held = jackknife(metric, holds * own, population)
        out[metric.name] = (held, jackknife(metric, own, population))
        start += metric.columns
    return out


def _errors_of_recorded(score: Score, scored: Score, known: Mapping[str, Pair]) -> dict[str, Pair]:
    """Those of metrics in every record that are asked for by name."""
    usual = "loss" if score.accuracy_fallback is None else "accuracy"
    if usual not in score.metrics or usual in known:
        return {}
    return {usual: (scored.standard_error, scored.standard_error_fallback)}


def _ratio_errors(figures: Tensor, column: int, population: int) -> Pair:
    """Those of a mean over examples."""
    totals = figures[:, column]
    counts = figures[:, COUNT]
    holds = figures[:, HOLDS]
    held = standard_error(holds * totals, holds * counts, population)
    return held, standard_error(totals, counts, population)


def _with_error(score: Score, figures: Tensor, population: int) -> Score:
    column = LOSS if score.accuracy_fallback is None else RIGHT
    held, every = _ratio_errors(figures, column, population)
    return replace(
        score,
        sampled=len(figures),
        standard_error=held,
        standard_error_fallback=every,
    )
