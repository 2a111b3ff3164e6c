"""Whether a classifier means the chances it gives: calibration errors, Brier score and log-loss,
all from sums over examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Calibration:
    """Figures of one model; the lower, the better, but for the last two: more confidence than
    accuracy is too much.
    """

    ece: float  # how far confidence and accuracy lie apart in a bin of confidence, the mean over examples
    brier: float  # the squared distance of the chances from the label's unit vector
    log_loss: float  # minus the logarithm of the label's chance
    count: int
    mce: float  # as ece, of the worst bin that holds an example
    confidence: float  # the chance that the guess was given, the mean over examples
    accuracy: float  # how often it was right


def calibration(
    chances: Tensor,
    labels: Tensor,
    bins: int = 15,
) -> Calibration:
    """The figures of chances [N, classes] for labels [N]; a bin holds the confidences in [k/bins,
    (k+1)/bins), the last also 1.

    >>> found = calibration(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
    >>> round(found.ece, 4), round(found.brier, 4), round(found.log_loss, 4), found.count
    (0.25, 0.625, 0.837, 2)
    """
    return read(
        sums(chances.double().log()[None], labels[None], torch.ones_like(labels)[None], bins)[0]
    )


def sums(
    outputs: Tensor,
    y: Tensor,
    weight: Tensor,
    bins: int,
) -> Tensor:
    """What the figures follow from, float64 [n, 3 bins + 2]: right, confidence and count by bin;
    Brier score and log-loss.

    `outputs` [n, B, classes] are logits or logarithms of chances; examples of weight 0 do not
    count.
    """
    logs, weight = torch.log_softmax(outputs.double(), dim=-1), weight.double()
    chances = logs.exp()
    confidence, guess = chances.max(dim=-1)
    right = (guess == y).double()
    inside = F.one_hot((confidence * bins).long().clamp(max=bins - 1), bins) * weight[..., None]
    by_bin = [
        (inside * value[..., None]).sum(1) for value in (right, confidence, torch.ones_like(right))
    ]
    distance = (chances - F.one_hot(y, outputs.shape[-1])).square().sum(-1)
    surprise = -logs.gather(-1, y[..., None])[..., 0]
    return torch.cat(
        [*by_bin, torch.stack([(weight * value).sum(1) for value in (distance, surprise)], dim=1)],
        dim=1,
    )


def read(total: Tensor) -> Calibration:
    """The figures of sums [3 bins + 2]; not a number where there is no example."""
    right, confidence, count = total[:-2].view(3, -1)
    examples = count.sum()
    apart = (right - confidence).abs()
    ece, mce = apart.sum() / examples, (apart / count.clamp(min=1)).max()
    return Calibration(
        ece=float(ece),
        brier=float(total[-2] / examples),
        log_loss=float(total[-1] / examples),
        count=int(examples),
        mce=float(mce),
        confidence=float(confidence.sum() / examples),
        accuracy=float(right.sum() / examples),
    )
