"""Calibration metrics (ECE, MCE, Brier score, log loss), from sums over examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Calibration:
    """The calibration of one model.

    The lower `ece`, `brier`, `log_loss` and `mce` are, the better. A model whose `confidence`
    exceeds its `accuracy` is overconfident.
    """

    ece: float  # |confidence - accuracy| per bin of confidence, the mean over examples
    brier: float  # the squared distance of the probabilities from the label's unit vector
    log_loss: float  # minus the logarithm of the label's probability
    count: int
    mce: float  # |confidence - accuracy| of the worst bin that holds an example
    confidence: float  # the probability of the predicted class, the mean over examples
    accuracy: float  # the fraction of examples predicted right


def calibration(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Calibration:
    """The calibration of probabilities [N, classes] for labels [N].

    A bin holds the confidences in [k/bins, (k+1)/bins), the last one also 1.

    >>> result = calibration(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
    >>> round(result.ece, 4), round(result.brier, 4), round(result.log_loss, 4), result.count
    (0.25, 0.625, 0.837, 2)
    """
    logs = probabilities.double().log()[None]
    weight = torch.ones_like(labels)[None]
    [total] = sums(logs, labels[None], weight, bins)
    return read(total)


def sums(outputs: Tensor, y: Tensor, weight: Tensor, bins: int) -> Tensor:
    """The sums that a calibration follows from, float64 [n, 3 bins + 2].

    They are the right answers, the confidence and the count by bin, then Brier score and log loss.
    `outputs` [n, B, classes] are logits or log probabilities. Examples of weight 0 do not count.
    """
    weight = weight.double()
    logs = torch.log_softmax(outputs.double(), dim=-1)
    probabilities = logs.exp()
    confidence, predicted = probabilities.max(dim=-1)
    right = (predicted == y).double()
    bin_number = (confidence * bins).long()
    bin_number = bin_number.clamp(max=bins - 1)
    inside = F.one_hot(bin_number, bins) * weight[..., None]
    right_by_bin = inside * right[..., None]
    confidence_by_bin = inside * confidence[..., None]
    label = F.one_hot(y, outputs.shape[-1])
    brier = (probabilities - label).square().sum(-1)
    log_of_label = logs.gather(-1, y[..., None])
    log_loss = -log_of_label[..., 0]
    columns = [
        right_by_bin.sum(1),
        confidence_by_bin.sum(1),
        inside.sum(1),
        (weight * brier).sum(1, keepdim=True),
        (weight * log_loss).sum(1, keepdim=True),
    ]
    return torch.cat(columns, dim=1)


def read(total: Tensor) -> Calibration:
    """The calibration of sums [3 bins + 2]; not a number where there is no example."""
    right, confidence, count = total[:-2].view(3, -1)
    examples = count.sum()
    gap = (right - confidence).abs()
    mean_gap = gap / count.clamp(min=1)
    return Calibration(
        ece=float(gap.sum() / examples),
        brier=float(total[-2] / examples),
        log_loss=float(total[-1] / examples),
        count=int(examples),
        mce=float(mean_gap.max()),
        confidence=float(confidence.sum() / examples),
        accuracy=float(right.sum() / examples),
    )
