"""Who listens to whom: models of many nodes, [n, N, P], mixed by how much they resemble each other.

A row of weights is given for the others alone; what is left of 1 stays with the node itself.
"""

import torch
from torch import Tensor

from covey.engine import rowwise

exp = rowwise.elementwise(torch.exp)


def squared_distances(models: Tensor) -> Tensor:
    """|w_i - w_j|^2 of every pair, [n, N, N].

    >>> squared_distances(torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])).tolist()
    [[[0.0, 25.0], [25.0, 0.0]]]
    """
    apart = models - models.mean(
        1, keepdim=True
    )  # else the products of far but equal rows would swallow their distances
    product = rowwise.bmm(apart, apart.transpose(1, 2))
    square = product.diagonal(dim1=1, dim2=2)
    return (square[:, :, None] + square[:, None, :] - 2 * product).clamp(min=0)


def cosines(models: Tensor) -> Tensor:
    """The cosine of the angle between every two models, [n, N, N]; 0 where one of them is zero."""
    unit = torch.nn.functional.normalize(models, dim=2)
    return rowwise.bmm(unit, unit.transpose(1, 2))


def only_others(pairs: Tensor, itself: float = 0.0) -> Tensor:
    """The numbers of all pairs [n, N, N], with `itself` on the diagonal."""
    return pairs.masked_fill(
        torch.eye(pairs.shape[1], dtype=torch.bool, device=pairs.device), itself
    )


def with_itself(others: Tensor) -> Tensor:
    """The weights [n, N, N] with what is left of 1 on the diagonal, which must be 0 before."""
    return others + torch.diag_embed(
        (1 - others.sum(2)).clamp(min=0)
    )  # rounding may leave a little less than nothing


def mixed(weights: Tensor, models: Tensor) -> Tensor:
    """u_i = sum_j xi_ij w_j, [n, N, P]."""
    return rowwise.bmm(weights, models)
