"""Gaussian processes as classifiers, many at once: Polya-Gamma draws make the logistic likelihood
Gaussian (Polson et al., 2013).

With f ~ N(0, K) and labels of chance sigmoid(+-f), write kappa = +-1/2. Given omega_i ~ PG(1, f_i),
f has the posterior of a regression on targets kappa / omega with noise 1 / omega; given f, the
omegas are independent. Gibbs draws alternate the two. With s = sqrt(omega), everything goes through
B = I + s K s, whose eigenvalues are 1 or more, and nothing is divided by omega: an example that
does not count has omega = kappa = 0. Leading axes: n nodes, then D draws. All of it in float64.
More than two classes are halved, and their halves again; a Gaussian process at every fork says
which half.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine import rowwise

TERMS = 10  # of the sum that is a Polya-Gamma variable; the mean of the others is added, their variance is 2e-5 of the whole
_NUGGET = 1e-6  # of the kernel's scale, on the diagonal: examples may come twice
_SPOTS, _SHARES = np.polynomial.hermite_e.hermegauss(20)

_sigmoid_log, _exp, _log, _tanh = (
    rowwise.elementwise(f) for f in (F.logsigmoid, torch.exp, torch.log, torch.tanh)
)


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
        distance = (x * x).sum(-1)[:, :, None] + (z * z).sum(-1)[:, None, :] - 2 * product
        return self.scale * _exp(-distance.clamp(min=0) / (2 * self.length**2))

    def among(self, x: Tensor) -> Tensor:
        """[n, N, N], with what makes it have a root."""
        return self.across(x, x) + _NUGGET * self.scale * torch.eye(
            x.shape[1], dtype=x.dtype, device=x.device
        )


@dataclass(frozen=True, eq=False)
class Fork:
    """Which classes go up (1), down (-1) or another way (0), [n, classes]; and the Gaussian process
    that decides.
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
        """Of every class for other examples, [m, M, classes], where `which` of the nodes have them;
        0 of a class nobody has.
        """
        z, known = features.double(), self.features[which]
        K, across = self.kernel.among(known), self.kernel.across(known, z)
        own = torch.full_like(z[:, :, 0], self.kernel.scale)
        total = 0 * z[:, :, :1]
        for fork in self.forks:
            up, down = log_chances(
                *predictive(K, across, own, fork.kappa[which], fork.omega[which])
            )
            side = fork.side[which][:, None]
            divides = (side > 0).any(2, keepdim=True) & (side < 0).any(2, keepdim=True)
            total = total + divides * torch.where(
                side > 0, up[..., None], torch.where(side < 0, down[..., None], 0.0)
            )
        return total


def classifier(kernel: CovarianceKernel, features: Tensor, y: Tensor, *, weight: Tensor | None, has: Tensor, most: int,
               steps: int, draws: int, source: Source, stream: str) -> Classifier:  # fmt: skip
    """Forks over the classes each node has, halved by label; `has` bool [n, classes], `most` the
    most that any node has.

    The Gibbs draws are of the features' values alone: a gradient of `log_chances` goes through the
    kernels at fixed omega.
    """
    features, forks = features.double(), []
    with torch.no_grad():
        K, rank = kernel.among(features), has.cumsum(1) - 1
        depth = (most - 1).bit_length()
        for height in range(
            1, depth + 1
        ):  # by height, so that a deeper tree elsewhere changes neither forks nor draws
            for number in range(2 ** (depth - height)):
                side = (has & (rank >> height == number)) * (1 - 2 * (rank >> (height - 1) & 1))
                kappa = 0.5 * side.to(K).gather(1, y) * (1 if weight is None else weight)
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
    sizes = 2 * math.pi**2 * (k - 0.5) ** 2 + c[..., None] ** 2 / 2
    exponential = -_log(uniform.clamp(min=1e-300))
    return ((exponential - 1) / sizes).sum(-1) + polya_gamma_mean(c)


def polya_gamma_mean(c: Tensor) -> Tensor:
    """E PG(1, c) = tanh(c / 2) / (2 c), 1/4 at 0."""
    c = c.abs().clamp(min=1e-6)  # the mean is flat there, to 1e-13
    return _tanh(c / 2) / (2 * c)


def gibbs(
    K: Tensor, kappa: Tensor, *, steps: int, draws: int, source: Source, stream: str
) -> Tensor:
    """omega [n, draws, N] after so many turns of chains that start from the prior; K [n, N, N],
    kappa [n, N].
    """
    n, N = kappa.shape
    root, counts = cholesky(K), (kappa != 0).to(K)[:, None]

    def normal() -> Tensor:
        return source.normal(stream, draws * N).to(K).view(n, draws, N)

    def omegas(f: Tensor) -> Tensor:
        return counts * polya_gamma(
            f, source.uniform(stream, draws * N * TERMS).to(K).view(n, draws, N, TERMS)
        )

    omega = omegas(rowwise.bmm(normal(), root.transpose(1, 2)))
    for _ in range(steps):
        prior = rowwise.bmm(normal(), root.transpose(1, 2))
        omega = omegas(posterior_draw(K, kappa, omega, prior=prior, noise=normal()))
    return omega


def posterior_draw(
    K: Tensor, kappa: Tensor, omega: Tensor, *, prior: Tensor, noise: Tensor
) -> Tensor:
    """A draw of f given omega, [n, D, N], from a draw of N(0, K) and one of N(0, I).

    A draw a of the prior, moved by K kappa, is corrected by what the regression makes of it: a - K
    s B^-1 (s a + noise).
    """
    s = omega.sqrt()
    a = rowwise.bmm(kappa[:, None], K) + prior
    solved = torch.cholesky_solve((s * a + noise)[..., None], cholesky(noisy(K, s)))[..., 0]
    return a - rowwise.bmm(s * solved, K)


def predictive(
    K: Tensor, across: Tensor, own: Tensor, kappa: Tensor, omega: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of f given omega at M other places, [n, D, M]; `across` [n, N, M] and `own`
    [n, M] are their kernels.
    """
    s = omega.sqrt()
    root = cholesky(noisy(K, s))
    inside = s * rowwise.bmm(kappa[:, None], K)
    weights = kappa[:, None] - s * torch.cholesky_solve(inside[..., None], root)[..., 0]
    known = torch.linalg.solve_triangular(root, s[..., None] * across[:, None], upper=False)
    return rowwise.bmm(weights, across), (own[:, None] - (known * known).sum(2)).clamp(min=0)


def log_chances(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithms of E sigmoid(f) and E sigmoid(-f) over f ~ N(mean, variance) and over draws,
    [n, M] from [n, D, M].
    """
    spots, shares = (
        torch.as_tensor(values, dtype=mean.dtype, device=mean.device)
        for values in (_SPOTS, _SHARES)
    )
    f = mean[..., None] + (variance[..., None] + 1e-12).sqrt() * spots  # a root has no slope at 0
    logs = (shares / shares.sum() / mean.shape[1]).log()
    up, down = (
        torch.logsumexp((_sigmoid_log(sign * f) + logs).transpose(1, 2).flatten(2), dim=2)
        for sign in (1, -1)
    )
    return up, down


def noisy(K: Tensor, s: Tensor) -> Tensor:
    """B = I + s K s, [n, D, N, N]."""
    return (
        torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
        + s[..., :, None] * K[:, None] * s[..., None, :]
    )


def cholesky(A: Tensor) -> Tensor:
    """The lower root; not a number, instead of an error, where there is none."""
    root, wrong = torch.linalg.cholesky_ex(A)
    return torch.where((wrong > 0)[..., None, None], math.nan, root)
