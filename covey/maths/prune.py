"""Pruning: the importance of each weight of a row, and which weights stay.

The equations are (6) and (9) of Liu and Ratnarajah, 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from covey.engine.solvers.objective import Coefficient
from covey.types import Rows

_ABOVE = 1 + 1e-7


def change(after: Rows, before: Rows) -> Rows:
    """(6): how far a weight has moved.

    After one step that is the step size times the size of the derivative.
    """
    moved = after - before
    return moved.abs()


def mask(importance: Rows, ratio: Coefficient) -> Tensor:
    """Which weights stay, [n, P] bool: all but those of lowest importance.

    `ratio` is the fraction of a row that is pruned, rounded to whole weights; it may be a column
    [n, 1]. Of weights of the same importance the first stay.

    >>> mask(torch.tensor([[0.2, 0.9, 0.2, 0.5]]), 0.5).tolist()
    [[False, True, False, True]]
    """
    width = importance.shape[1]
    ranks = torch.arange(width, device=importance.device)
    ranks = ranks.expand_as(importance)
    order = importance.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, ranks)
    # A half is rounded up, also the half that float32 made a little less than one.
    exact = torch.as_tensor(ratio, dtype=torch.float64) * _ABOVE * width
    pruned = (exact + 0.5).floor().long().clamp(max=width)
    return rank < width - pruned
