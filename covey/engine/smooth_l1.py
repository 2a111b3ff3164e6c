"""rho log cosh(x / rho): an l1 norm with a gradient, and the cut that makes its small values exact
zeros.

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
    """The sum of rho log cosh(x / rho) over the last axis; at most rho log 2 per value below the l1
    norm.

    >>> value(torch.tensor([[3.0, -4.0], [0.0, 0.0]]), 1e-8).tolist()
    [7.0, 0.0]
    """
    size = x.abs()
    # cosh itself overflows at |x| / rho > 89 in float32, which a weight of 0.006 reaches at rho =
    # 6e-5
    return (size + rho * (torch.log1p(torch.exp(-2 * size / rho)) - math.log(2))).sum(dim=-1)


def grad(x: Tensor, rho: float) -> Tensor:
    """The gradient of `value`: tanh(x / rho)."""
    return torch.tanh(x / rho)


def soft(x: Tensor, threshold: float | Tensor) -> Tensor:
    """The soft threshold, the proximal step of the l1 norm itself; thresholds may differ by row,
    `[n, 1]`.

    >>> soft(torch.tensor([-3.0, -0.5, 0.5, 3.0]), 1.0).tolist()
    [-2.0, 0.0, 0.0, 2.0]
    """
    limit = threshold.to(x) if isinstance(threshold, Tensor) else threshold
    return x - torch.clamp(x, -limit, limit)  # type: ignore[arg-type]  # in this form zeros are +0.0, which a bitmap does not send


def cut(rows: Tensor, threshold: float | None) -> Tensor:
    """The rows with every |x| <= threshold set to exactly 0, in new memory; the rows themselves for
    None.

    >>> cut(torch.tensor([-3.0, -0.5, 1.0, 3.0]), 1.0).tolist()
    [-3.0, 0.0, 0.0, 3.0]
    """
    return rows if threshold is None else torch.nn.functional.hardshrink(rows, threshold)


def threshold(
    *,
    rho: float,
    lr: float,
    gamma: float,
    lam: float = 0.0,
) -> float | None:
    """Where to cut a model trained with this step and penalties; None if gamma is 0, so a plain run
    is never altered.

    >>> threshold(rho=6e-5, lr=0.05, gamma=0.001)
    0.00018
    """
    if gamma == 0:
        return None
    if lr * lam >= 2:
        raise ConfigError(
            f"lr * lam = {lr} * {lam} = {lr * lam:g} must be below 2: the step diverges; lower lr or lam."
        )
    return max(3 * rho, 2 * lr * gamma / (2 - lr * lam))


def nonzeros(rows: Tensor, threshold: float | None) -> Tensor:
    """The share of each row that survives the cut, `[n]`; the papers call it sparsity."""
    large = rows != 0 if threshold is None else ~(rows.abs() <= threshold)
    return large.sum(dim=-1).to(rows.dtype) / max(rows.shape[-1], 1)


def floored(
    gamma: float,
    rows: Tensor,
    *,
    threshold: float | None,
    floor: float,
    low: float,
) -> Tensor:
    """The penalty of each row, `[n, 1]`: gamma, but `low` for a row whose share of non-zeros is
    below the floor.

    >>> floored(0.1, torch.tensor([[1.0, 0.0], [1.0, 1.0]]), threshold=None, floor=0.6, low=0.0).tolist()
    [[0.0], [0.10000000149011612]]
    """
    return rows.new_full((len(rows), 1), gamma).masked_fill(
        nonzeros(rows, threshold)[:, None] < floor, low
    )


def angle(rows: Tensor, threshold: float) -> Tensor:
    """The angle of each row, its entries up to the threshold taken as zeros, with its signs, in
    degrees, float64 [n].

    FedMac's Assumption 5 wants it small: 0 where all entries that are left have one size. A row
    without any has the angle 0.

    >>> angle(torch.tensor([[2.0, -2.0, 1e-9], [1.0, 0.0, 0.0], [3.0, 4.0, 0.0]]), 1e-6).round(decimals=2)
    tensor([0.0000, 0.0000, 8.1300], dtype=torch.float64)
    """
    sizes = torch.nn.functional.hardshrink(rows, threshold).abs().double()
    count, length = sizes.count_nonzero(dim=1).double(), sizes.norm(dim=1)
    cosine = sizes.sum(1) / (count.sqrt() * length).clamp(min=1e-300)
    return torch.where(count > 0, torch.rad2deg(torch.acos(cosine.clamp(max=1.0))), 0.0)
