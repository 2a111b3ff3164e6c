"""Gaussian-process classifiers, many at once, by Polya-Gamma augmentation (Polson et al., 2013).

With f ~ N(0, K) and labels of probability sigmoid(+-f), write kappa = +-1/2. Given omega_i ~ PG(1,
f_i), f has the posterior of a regression on targets kappa / omega with noise 1 / omega; given f,
the omegas are independent. Gibbs draws alternate the two. With s = sqrt(omega), everything goes
through B = I + s K s, whose eigenvalues are 1 or more, and nothing is divided by omega: an example
that does not count has omega = kappa = 0. Leading axes: n nodes, then D draws. All of it in
float64. More than two classes are halved, and their halves again; a Gaussian process at every fork
says which half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine.modules import rowwise

TERMS = 10
"""Terms of the sum that is a Polya-Gamma variable.

The mean of the other terms is added; their variance is 2e-5 of the whole.
"""
_NUGGET = 1e-6  # of the kernel's scale, on the diagonal: examples may come twice
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(20)  # of the Gauss-Hermite quadrature
_EPSILON = 1e-12  # added to a variance, since a root has no derivative at 0

_log_sigmoid = rowwise.elementwise(F.logsigmoid)
_exp = rowwise.elementwise(torch.exp)
_log = rowwise.elementwise(torch.log)
_tanh = rowwise.elementwise(torch.tanh)


class Source(Protocol):
    """Whatever draws by address: the nodes of a program."""

    def uniform(self, stream: str, width: int) -> Tensor:
        """Numbers in [0, 1), [n, width]."""
        ...

    def normal(self, stream: str, width: int) -> Tensor:
        """Standard normal numbers, [n, width]."""
        ...


@dataclass(frozen=True)
class CovarianceKernel:
    """scale exp(-|x - z|^2 / (2 length^2))."""

    scale: float
    length: float

    def across(self, x: Tensor, z: Tensor) -> Tensor:
        """[n, N, M] for features [n, N, F] and [n, M, F]."""
        product = rowwise.bmm(x, z.transpose(1, 2))
        x_squared = (x * x).sum(-1)
        z_squared = (z * z).sum(-1)
        distance = x_squared[:, :, None] + z_squared[:, None, :] - 2 * product
        distance = distance.clamp(min=0)
        return self.scale * _exp(-distance / (2 * self.length**2))

    def among(self, x: Tensor) -> Tensor:
        """[n, N, N], with a nugget on the diagonal, so that it has a Cholesky root."""
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        nugget = _NUGGET * self.scale * identity
        return self.across(x, x) + nugget


@dataclass(frozen=True, eq=False)
class Fork:
    """One fork of the tree of classes, and the Gaussian process that decides there.

    `side` says which classes go up (1), down (-1) or another way (0), [n, classes].
    """

    side: Tensor
    kappa: Tensor
    omega: Tensor


@dataclass(frozen=True, eq=False)
class Classifier:
    """A tree of forks on examples whose features [n, N, F] are known."""

    kernel: CovarianceKernel
    features: Tensor
    forks: tuple[Fork, ...]

    def log_chances(self, features: Tensor, which: Tensor | slice = slice(None)) -> Tensor:
        """The log probability of every class for other examples, [m, M, classes].

        `which` nodes have these examples. A class that no node has gets 0.
        """
        z = features.double()
        x = self.features[which]
        K = self.kernel.among(x)
        across = self.kernel.across(x, z)
        own = torch.full_like(z[:, :, 0], self.kernel.scale)
        total = 0 * z[:, :, :1]
        for fork in self.forks:
            kappa = fork.kappa[which]
            omega = fork.omega[which]
            mean, variance = predictive(K, across, own, kappa, omega)
            up, down = log_chances(mean, variance)
            side = fork.side[which][:, None]
            goes_up = side > 0
            goes_down = side < 0
            any_up = goes_up.any(2, keepdim=True)
            any_down = goes_down.any(2, keepdim=True)
            divides = any_up & any_down
            log_down = torch.where(goes_down, down[..., None], 0.0)
            log_side = torch.where(goes_up, up[..., None], log_down)
            total = total + divides * log_side
        return total


def classifier(
    kernel: CovarianceKernel,
    features: Tensor,
    y: Tensor,
    *,
    weight: Tensor | None,
    has: Tensor,
    most: int,
    steps: int,
    draws: int,
    source: Source,
    stream: str,
) -> Classifier:
    """Forks over the classes each node has, halved by label.

    `has` says which classes each node has, bool [n, classes], and `most` is the max number of
    classes of a node. The Gibbs draws are of the features' values
    alone: a gradient of `log_chances` goes through the kernels at fixed omega.
    """
    features = features.double()
    forks = []
    with torch.no_grad():
        K = kernel.among(features)
        depth = (most - 1).bit_length()
        # By height, so that a deeper tree of another node changes neither forks nor draws.
        for height in range(1, depth + 1):
            for number in range(2 ** (depth - height)):
                # Which classes go up (1), down (-1) or another way (0) at a fork, [n, classes].
                # The forks of a height have the numbers 0, 1, ..., from the first class on.
                rank = has.cumsum(1) - 1
                inside = has & (rank >> height == number)
                second_half = rank >> (height - 1) & 1
                side = inside * (1 - 2 * second_half)
                kappa = 0.5 * side.to(K).gather(1, y)
                if weight is not None:
                    kappa = kappa * weight
                omega = gibbs(
                    K,
                    kappa,
                    steps=steps,
                    draws=draws,
                    source=source,
                    stream=f"{stream} {height}.{number}",
                )
                forks.append(Fork(side, kappa, omega))
    return Classifier(kernel, features, tuple(forks))


def polya_gamma(c: Tensor, uniform: Tensor) -> Tensor:
    """Draws of PG(1, c) from uniform numbers [*c.shape, TERMS].

    PG(1, c) is the sum over k = 1, 2, ... of g_k / (2 pi^2 (k - 1/2)^2 + c^2 / 2) with exponential
    g_k.
    """
    k = torch.arange(1, TERMS + 1, dtype=c.dtype, device=c.device)
    squared = c[..., None] ** 2
    levels = 2 * math.pi**2 * (k - 0.5) ** 2
    sizes = levels + squared / 2
    exponential = -_log(uniform.clamp(min=1e-300))
    deviation = (exponential - 1) / sizes
    return deviation.sum(-1) + polya_gamma_mean(c)


def polya_gamma_mean(c: Tensor) -> Tensor:
    """E PG(1, c) = tanh(c / 2) / (2 c), 1/4 at 0."""
    c = c.abs().clamp(min=1e-6)  # the mean is flat there, to 1e-13
    return _tanh(c / 2) / (2 * c)


def gibbs(
    K: Tensor,
    kappa: Tensor,
    *,
    steps: int,
    draws: int,
    source: Source,
    stream: str,
) -> Tensor:
    """omega [n, draws, N] after `steps` of chains that start from the prior.

    K is [n, N, N], kappa [n, N].
    """
    n, N = kappa.shape
    root = cholesky(K)
    counts = (kappa != 0).to(K)[:, None]

    def normal() -> Tensor:
        numbers = source.normal(stream, draws * N)
        return numbers.to(K).view(n, draws, N)

    def omegas(f: Tensor) -> Tensor:
        numbers = source.uniform(stream, draws * N * TERMS)
        uniform = numbers.to(K).view(n, draws, N, TERMS)
        return counts * polya_gamma(f, uniform)

    prior = rowwise.bmm(normal(), root.transpose(1, 2))
    omega = omegas(prior)
    for _ in range(steps):
        prior = rowwise.bmm(normal(), root.transpose(1, 2))
        f = posterior_draw(K, kappa, omega, prior=prior, noise=normal())
        omega = omegas(f)
    return omega


def posterior_draw(
    K: Tensor, kappa: Tensor, omega: Tensor, *, prior: Tensor, noise: Tensor
) -> Tensor:
    """A draw of f given omega, [n, D, N], from a draw of N(0, K) and one of N(0, I).

    A draw a of the prior, moved by K kappa, is corrected by the regression on it:
    a - K s B^-1 (s a + noise).
    """
    s = omega.sqrt()
    a = rowwise.bmm(kappa[:, None], K) + prior
    root = cholesky(noisy(K, s))
    solved = _solve(root, s * a + noise)
    return a - rowwise.bmm(s * solved, K)


def predictive(
    K: Tensor, across: Tensor, own: Tensor, kappa: Tensor, omega: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of f given omega for M other examples, [n, D, M].

    `across` [n, N, M] and `own` [n, M] are the kernels of these examples.
    """
    s = omega.sqrt()
    root = cholesky(noisy(K, s))
    inside = s * rowwise.bmm(kappa[:, None], K)
    weights = kappa[:, None] - s * _solve(root, inside)
    mean = rowwise.bmm(weights, across)
    scaled = s[..., None] * across[:, None]
    explained = torch.linalg.solve_triangular(root, scaled, upper=False)
    variance = own[:, None] - (explained * explained).sum(2)
    return mean, variance.clamp(min=0)


def log_chances(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """The log probabilities of both sides: of E sigmoid(f) and E sigmoid(-f).

    The expectation is over f ~ N(mean, variance) and over draws: [n, M] from [n, D, M].
    """
    nodes = torch.as_tensor(_NODES).to(mean)
    weights = torch.as_tensor(_WEIGHTS).to(mean)
    deviation = (variance[..., None] + _EPSILON).sqrt()
    f = mean[..., None] + deviation * nodes
    draws = mean.shape[1]
    log_weights = (weights / weights.sum() / draws).log()

    def log_mean(log_probability: Tensor) -> Tensor:
        terms = log_probability + log_weights
        by_example = terms.transpose(1, 2).flatten(2)
        return torch.logsumexp(by_example, dim=2)

    up = log_mean(_log_sigmoid(f))
    down = log_mean(_log_sigmoid(-1 * f))
    return up, down


def noisy(K: Tensor, s: Tensor) -> Tensor:
    """B = I + s K s, [n, D, N, N]."""
    identity = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    sKs = s[..., :, None] * K[:, None] * s[..., None, :]
    return identity + sKs


def cholesky(A: Tensor) -> Tensor:
    """The lower Cholesky root; NaN, instead of an error, where there is none."""
    root, info = torch.linalg.cholesky_ex(A)
    failed = (info > 0)[..., None, None]
    return torch.where(failed, math.nan, root)


def _solve(root: Tensor, values: Tensor) -> Tensor:
    """B^-1 applied to values [n, D, N], from the Cholesky root of B."""
    return torch.cholesky_solve(values[..., None], root)[..., 0]
