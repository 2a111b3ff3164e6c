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

import torch
from torch import Tensor

from covey.engine.measures.metrics import COUNT, HOLDS, Metric
from covey.runs.scores.figures import Reports
from covey.runs.scores.scoring import SUMS, Model, Pair, Score, jackknifed


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
    >>> from covey.engine.measures.metrics import top
    >>> sums = torch.tensor([[2.0, 10.0], [4.0, 10.0], [6.0, 10.0]], dtype=torch.float64)
    >>> round(jackknife(top(3), sums, 12), 9)
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
    metrics: Sequence[Metric],
) -> dict[str, Model]:
    """The models with the number of devices drawn and the standard errors of their scores.

    In a deployed tree all devices drawn may be away: then no score is known.
    """
    out = {}
    for name, model in models.items():
        scores = {}
        for part, score in model.scores.items():
            _, figures = reports.get(f"{name}/{part}", (None, None))
            _, sums = reports.get(f"{name}/{part}/{SUMS}", (None, None))
            if figures is None:
                scores[part] = replace(score, sampled=0)
                continue
            known = dict(score.figures)
            for metric, error in _errors(score, figures, sums, population, metrics).items():
                known[metric] = score.of(metric)._replace(error=error)
            scores[part] = replace(score, figures=known, sampled=len(figures))
        out[name] = replace(model, scores=scores)
    return out


def _errors(
    score: Score,
    figures: Tensor,
    sums: Tensor | None,
    population: int,
    metrics: Sequence[Metric],
) -> dict[str, Pair]:
    """The standard errors by metric: of the usual figure, of errors, and of metrics with sums."""
    out: dict[str, Pair] = {}
    holds = figures[:, HOLDS]
    for metric in metrics:
        if metric.mean is None or score.of(metric.name).all is None:
            continue
        if metric.name == score.usual or metric.terms[0].outputs:
            totals = figures[:, metric.mean.column]
            counts = figures[:, COUNT]
            figure = score.of(metric.name)
            held = standard_error(holds * totals, holds * counts, population)
            every = standard_error(totals, counts, population)
            slope = metric.mean.slope
            if slope is not None:  # the delta method
                held = held / slope(figure.held) if held is not None and figure.held else None
                every = every / slope(figure.all) if every is not None and figure.all else None
            out[metric.name] = (held, every)
    if sums is None:
        return out
    own = jackknifed(metrics)
    columns = torch.split(sums, [metric.terms[0].columns for metric in own], dim=1)
    for metric, each in zip(own, columns, strict=True):
        held = jackknife(metric, holds[:, None] * each, population)
        out[metric.name] = (held, jackknife(metric, each, population))
    return out
