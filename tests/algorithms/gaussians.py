"""pFedBayes' divergence between Gaussians over models, and its derivatives as its steps take them."""

import torch

from covey.algorithms.pfedbayes import by_local, by_personal, sigmoid, softplus
from covey.types import Rows


def divergence(mu: Rows, rho: Rows, local_mu: Rows, local_rho: Rows) -> Rows:
    """KL(N(mu, sigma^2) | N(m, s^2)), [n, 1].

    It is the sum of log(s / sigma) + (sigma^2 + (mu - m)^2) / (2 s^2) - 1/2.
    """
    sigma = softplus(rho)
    s = softplus(local_rho)
    square = sigma * sigma + (mu - local_mu) ** 2
    terms = torch.log(s / sigma) + square / (2 * s * s) - 0.5
    return terms.sum(1, keepdim=True)


def divergence_gradients(
    mu: Rows, rho: Rows, local_mu: Rows, local_rho: Rows
) -> tuple[Rows, Rows, Rows, Rows]:
    """The derivatives of `divergence` by mu, rho, m and the rho of s.

    The derivative of sigma by rho is sigmoid(rho).
    """
    sigma = softplus(rho)
    s = softplus(local_rho)
    by_mu, by_sigma = by_personal(mu, sigma, local_mu, s)
    by_local_mu, by_s = by_local(mu, sigma, local_mu, s)
    return by_mu, by_sigma * sigmoid(rho), by_local_mu, by_s * sigmoid(local_rho)
