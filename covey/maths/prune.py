"""Pruning: how much each weight of a row matters, and which weights stay (Liu and Ratnarajah, 2023,
equations 5, 6 and 9).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from covey.engine.objective import Coefficient
from covey.types import Rows


def removal(rows: Rows, loss: Callable[[Rows], Tensor]) -> Rows:
    """(5): the squared change of the loss when a weight is set to zero, exactly; one pass over the
    data per weight.

    `loss` maps rows [n, P] to [n].

    >>> removal(torch.tensor([[3.0, 1.0]]), lambda x: x.sum(1)).tolist()
    [[9.0, 1.0]]
    """
    whole, out = loss(rows), torch.empty_like(rows)
    for j in range(rows.shape[1]):
        without = rows.clone()
        without[:, j] = 0.0
        out[:, j] = (whole - loss(without)) ** 2
    return out


def change(after: Rows, before: Rows) -> Rows:
    """(6): how far a weight has moved; after one step, the step size times the size of its
    derivative.
    """
    return (after - before).abs()


def mask(importance: Rows, ratio: Coefficient) -> Tensor:
    """Which weights stay, [n, P] bool: all but the `ratio` of a row, rounded to whole weights, that
    matter least.

    Of weights that matter alike the first stay. The ratio may be a column [n, 1].

    >>> mask(torch.tensor([[0.2, 0.9, 0.2, 0.5]]), 0.5).tolist()
    [[False, True, False, True]]
    """
    width = importance.shape[1]
    place = torch.arange(width, device=importance.device).expand_as(importance)
    order = importance.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, place)
    return rank < width - _whole(ratio, width)


def _whole(ratio: Coefficient, width: int) -> int | Tensor:
    """The ratio of a row as a number of weights; a half is rounded up, also where it came out a
    little less in float32.
    """
    if isinstance(ratio, Tensor):
        return (ratio.double() * (1 + 1e-7) * width + 0.5).floor().long().clamp(max=width)
    return min(math.floor(ratio * (1 + 1e-7) * width + 0.5), width)
