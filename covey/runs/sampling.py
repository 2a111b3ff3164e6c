"""Scores on a sample of the devices, and how far they are from those on all.

In a round that is scored, n of the N devices that train are drawn without replacement, every set of
n with the same probability, by the address (seed, round, "score"). Edges are all asked, for they
keep models of their own. Figures are those of the devices drawn: accuracy and loss estimate those
over all devices; `holders`, age and non-zeros of models that devices keep, and the worst tenth, are
of the devices drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from covey.runs.devices import COUNT, HOLDS, LOSS, RIGHT
from covey.runs.scoring import Model, Score

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


def with_errors(models: Mapping[str, Model], reports: Reports, population: int) -> dict[str, Model]:
    """The models with the number of devices drawn and the standard errors of their scores."""
    out = {}
    for name, model in models.items():
        scores = {}
        for part, score in model.scores.items():
            _, figures = reports[f"{name}/{part}"]
            scores[part] = _with_error(score, figures, population)
        out[name] = replace(model, scores=scores)
    return out


def _with_error(score: Score, figures: Tensor, population: int) -> Score:
    totals = figures[:, RIGHT]
    if score.accuracy_fallback is None:
        totals = figures[:, LOSS]
    counts = figures[:, COUNT]
    holds = figures[:, HOLDS]
    return replace(
        score,
        sampled=len(figures),
        standard_error=standard_error(holds * totals, holds * counts, population),
        standard_error_fallback=standard_error(totals, counts, population),
    )
