"""Operations whose bits for one row do not depend on how many rows stand beside it.

Two things break that on a CPU. A batched product of one row with a side of length 1 runs through
another kernel than the same row among others. And some elementwise functions differ in the last bit
between the vector loop and its tail.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

_LANES = 64  # a multiple of every vector width, unrolling included


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, [n, i, j] by [n, j, k]."""
    if _alone(a, b):
        return torch.bmm(_twice(a), _twice(b))[:1]
    return torch.bmm(a, b)


def baddbmm(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """c + a @ b."""
    if _alone(a, b):
        return torch.baddbmm(_twice(c), _twice(a), _twice(b))[:1]
    return torch.baddbmm(c, a, b)


def baddbmm_(
    c: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    keep: float,
    scale: float,
) -> None:
    """c <- keep * c + scale * a @ b."""
    if _alone(a, b):
        total = _twice(c).baddbmm_(_twice(a), _twice(b), beta=keep, alpha=scale)
        c.copy_(total[:1])
    else:
        c.baddbmm_(a, b, beta=keep, alpha=scale)


def norm(x: Tensor) -> Tensor:
    """The norm of every row, [n, 1]; torch sums a row that is alone in parts, by thread."""
    rows = x
    if len(x) == 1:
        rows = x.repeat(2, 1)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return norms[: len(x)]


def elementwise(
    function: Callable[[Tensor], Tensor],
) -> Callable[[Tensor], Tensor]:
    """The function on whole vectors only, so that no value ever falls into a tail."""

    def apply(x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return function(x)
        flat = x.reshape(-1)
        size = len(flat)
        rest = size % _LANES
        if rest and x.requires_grad:
            padded = F.pad(flat, (0, -size % _LANES))
            return function(padded)[:size].view_as(x)
        values = function(flat)
        if rest:  # the same values, without a copy of all others
            padded = F.pad(flat[-rest:], (0, _LANES - rest))
            values[-rest:] = function(padded)[:rest]
        return values.view_as(x)

    return apply


def _alone(a: Tensor, b: Tensor) -> bool:
    """Whether the product is of one row and has a side of length 1."""
    if len(a) != 1:
        return False
    _, rows, inner = a.shape
    columns = b.shape[2]
    return 1 in (rows, inner, columns)


def _twice(x: Tensor) -> Tensor:
    return x.repeat(2, 1, 1)
