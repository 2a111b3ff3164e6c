"""rho log cosh(x / rho): an l1 norm with a gradient, and the cut that sets small values to 0.

Near 0 it is the quadratic x^2 / (2 rho), so its minimisers are small and never 0: under a data
gradient g they sit at rho atanh(-g / gamma). Where lr (gamma / rho + lam) > 2, gradient descent
does not even settle there but alternates between +a and -a, where a = lr gamma tanh(a / rho) / (2 -
lr lam): 0 at the edge, and never more than lr gamma / (2 - lr lam), which it comes within a percent
of from a = 2.7 rho on. Zeros are therefore cut, at a `threshold` above both.
"""

import math

import torch
from torch import Tensor

from covey.errors import ConfigError


def value(x: Tensor, rho: float) -> Tensor:
    """The sum of rho log cosh(x / rho) over the last axis.

    It is at most rho log 2 per value below the l1 norm.

    >>> value(torch.tensor([[3.0, -4.0], [0.0, 0.0]]), 1e-8).tolist()
    [7.0, 0.0]
    """
    size = x.abs()
    # cosh itself overflows at |x| / rho > 89 in float32: a weight of 0.006 at rho = 6e-5.
    vanishing = torch.exp(-2 * size / rho)
    excess = torch.log1p(vanishing) - math.log(2)
    return (size + rho * excess).sum(dim=-1)


def grad(x: Tensor, rho: float) -> Tensor:
    """The gradient of `value`: tanh(x / rho)."""
    return torch.tanh(x / rho)


def soft(x: Tensor, threshold: float | Tensor) -> Tensor:
    """The soft threshold, which is the proximal step of the l1 norm itself.

    Thresholds may differ by row, `[n, 1]`.

    >>> soft(torch.tensor([-3.0, -0.5, 0.5, 3.0]), 1.0).tolist()
    [-2.0, 0.0, 0.0, 2.0]
    """
    # In this form zeros are +0.0, which a bitmap does not send.
    if isinstance(threshold, Tensor):
        limit = threshold.to(x)
        return x - torch.clamp(x, -limit, limit)
    return x - torch.clamp(x, -threshold, threshold)


def cut(rows: Tensor, threshold: float | None) -> Tensor:
    """The rows with every |x| <= threshold set to exactly 0, in new memory.

    For a threshold of None, the rows themselves.

    >>> cut(torch.tensor([-3.0, -0.5, 1.0, 3.0]), 1.0).tolist()
    [-3.0, 0.0, 0.0, 3.0]
    """
    if threshold is None:
        return rows
    return torch.nn.functional.hardshrink(rows, threshold)


def threshold(
    *,
    rho: float,
    lr: float,
    gamma: float,
    lam: float = 0.0,
) -> float | None:
    """The threshold of the cut for a model trained with this step and penalties.

    None if gamma is 0, so that a plain run is never altered.

    >>> threshold(rho=6e-5, lr=0.05, gamma=0.001)
    0.00018
    """
    if gamma == 0:
        return None
    if lr * lam >= 2:
        raise ConfigError(
            f"lr * lam = {lr} * {lam} = {lr * lam:g} must be below 2: the step diverges; "
            "lower lr or lam."
        )
    largest_swing = lr * gamma / (2 - lr * lam)
    return max(3 * rho, 2 * largest_swing)


def nonzeros(rows: Tensor, threshold: float | None) -> Tensor:
    """The share of each row that survives the cut, `[n]`; the papers call it sparsity."""
    large = rows != 0
    if threshold is not None:
        large = ~(rows.abs() <= threshold)
    width = max(rows.shape[-1], 1)
    return large.sum(dim=-1).to(rows.dtype) / width


def floored(
    gamma: float,
    rows: Tensor,
    *,
    threshold: float | None,
    floor: float,
    low: float,
) -> Tensor:
    """The penalty of each row, `[n, 1]`: gamma, or `low` where the share of non-zeros < floor.

    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    >>> floored(0.1, rows, threshold=None, floor=0.6, low=0.0).tolist()
    [[0.0], [0.10000000149011612]]
    """
    share = nonzeros(rows, threshold)[:, None]
    penalty = rows.new_full((len(rows), 1), gamma)
    return penalty.masked_fill(share < floor, low)


def angle(rows: Tensor, threshold: float) -> Tensor:
    """The angle between each row and its signs, in degrees, float64 [n].

    Entries up to the threshold count as zeros. FedMac's Assumption 5 wants the angle small: it is 0
    where all other entries have one size. A row without any has the angle 0.

    >>> rows = torch.tensor([[2.0, -2.0, 1e-9], [1.0, 0.0, 0.0], [3.0, 4.0, 0.0]])
    >>> angle(rows, 1e-6).round(decimals=2)
    tensor([0.0000, 0.0000, 8.1300], dtype=torch.float64)
    """
    sizes = cut(rows, threshold).abs().double()
    count = sizes.count_nonzero(dim=1).double()
    lengths = count.sqrt() * sizes.norm(dim=1)
    cosine = sizes.sum(1) / lengths.clamp(min=1e-300)
    radians = torch.acos(cosine.clamp(max=1.0))
    return torch.where(count > 0, torch.rad2deg(radians), 0.0)
