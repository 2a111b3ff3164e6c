"""Attention between models: those of N children of n nodes, [n, N, P], mixed by similarity.

An algorithm gives the weights of the others; the rest of 1 is the weight of a model itself.
"""

import torch
from torch import Tensor

from covey.engine.modules import rowwise

exp = rowwise.elementwise(torch.exp)


def squared_distances(models: Tensor) -> Tensor:
    """|w_i - w_j|^2 of every pair, [n, N, N].

    >>> squared_distances(torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])).tolist()
    [[[0.0, 25.0], [25.0, 0.0]]]
    """
    # Centred, or the products of large and nearly equal rows would swallow their distances.
    centred = models - models.mean(1, keepdim=True)
    product = rowwise.bmm(centred, centred.transpose(1, 2))
    square = product.diagonal(dim1=1, dim2=2)
    distances = square[:, :, None] + square[:, None, :] - 2 * product
    return distances.clamp(min=0)


def cosines(models: Tensor) -> Tensor:
    """The cosine of the angle between every two models, [n, N, N]; 0 where one of them is zero."""
    unit = torch.nn.functional.normalize(models, dim=2)
    return rowwise.bmm(unit, unit.transpose(1, 2))


def only_others(pairs: Tensor, itself: float = 0.0) -> Tensor:
    """The numbers of all pairs [n, N, N], with `itself` on the diagonal."""
    size = pairs.shape[1]
    diagonal = torch.eye(size, dtype=torch.bool, device=pairs.device)
    return pairs.masked_fill(diagonal, itself)


def with_itself(others: Tensor) -> Tensor:
    """The weights [n, N, N] with the rest of 1 on the diagonal, which must be 0 before."""
    rest = 1 - others.sum(2)
    rest = rest.clamp(min=0)  # rounding may leave it a little below 0
    return others + torch.diag_embed(rest)


def mixed(weights: Tensor, models: Tensor) -> Tensor:
    """u_i = sum_j xi_ij w_j, [n, N, P]."""
    return rowwise.bmm(weights, models)
