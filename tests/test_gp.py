"""Polya-Gamma draws against their moments, posteriors against regression, Gibbs draws against an
integral over a grid.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from covey import draws
from covey.maths import gp
from covey.maths.gp import (
    CovarianceKernel,
    gibbs,
    log_chances,
    polya_gamma,
    polya_gamma_mean,
    posterior_draw,
    predictive,
)

G = torch.Generator().manual_seed(3)


class Addressed:
    """Draws for n nodes, as a program's nodes have them."""

    def __init__(self, n: int, seed: int = 0) -> None:
        self._ids, self._seed = torch.arange(n), seed
        self._calls: dict[str, int] = {}

    def _key(self, stream: str) -> int:
        self._calls[stream] = self._calls.get(stream, -1) + 1
        return draws.key(self._seed, stream, self._calls[stream])

    def uniform(self, stream: str, width: int) -> Tensor:
        return draws.uniform(self._key(stream), self._ids, width)

    def normal(self, stream: str, width: int) -> Tensor:
        return draws.normal(self._key(stream), self._ids, width)


def variance(c: float) -> float:
    """Of PG(1, c): (sinh c - c) / (4 c^3 cosh^2(c / 2))."""
    return 1 / 24 if c == 0 else (math.sinh(c) - c) / (4 * c**3 * math.cosh(c / 2) ** 2)


@pytest.mark.parametrize("c", [0.0, 0.3, 1.0, -2.5, 8.0])
def test_polya_gamma_draws_have_their_mean_and_variance(c: float) -> None:
    count = 200_000
    found = polya_gamma(
        torch.full((count,), c, dtype=torch.float64), Addressed(count).uniform("pg", gp.TERMS)
    )
    assert float(found.min()) > 0
    mean = 0.25 if c == 0 else math.tanh(c / 2) / (2 * c)
    assert float(polya_gamma_mean(torch.tensor(c, dtype=torch.float64))) == pytest.approx(
        mean, rel=1e-9
    )
    assert abs(float(found.mean()) - mean) < 4 * math.sqrt(variance(c) / count)
    fourth = float((found - mean).pow(4).mean())
    assert abs(float(found.var()) - variance(c)) < 4 * math.sqrt(
        (fourth - variance(c) ** 2) / count
    )


@pytest.mark.parametrize("f", [0.5, 2.0, 5.0])
def test_polya_gamma_draws_make_the_logistic_function_gaussian(f: float) -> None:
    """sigmoid(f) = e^(f/2) / 2 E exp(-omega f^2 / 2) with omega ~ PG(1, 0), that is 1 / (2 cosh(f /
    2)) = E exp(...) / 2.
    """
    count = 200_000
    omega = polya_gamma(
        torch.zeros(count, dtype=torch.float64), Addressed(count).uniform("pg", gp.TERMS)
    )
    each = torch.exp(-omega * f * f / 2)
    assert abs(float(each.mean()) - 1 / math.cosh(f / 2)) < 4 * float(each.std()) / math.sqrt(count)
    assert 0.5 * math.exp(f / 2) * float(each.mean()) == pytest.approx(
        1 / (1 + math.exp(-f)), rel=0.01
    )


def problem(N: int = 5, D: int = 3, M: int = 4) -> dict[str, Tensor]:
    """Two nodes: kernels of some features, labels, and omegas that are not Gibbs's."""
    kernel = CovarianceKernel(scale=2.0, length=1.3)
    x, z = torch.randn(2, N, 2, generator=G).double(), torch.randn(2, M, 2, generator=G).double()
    kappa = torch.randint(2, (2, N), generator=G).double() - 0.5
    omega = 0.05 + torch.rand(2, D, N, generator=G).double()
    return {
        "K": kernel.among(x), "across": kernel.across(x, z), "own": torch.full((2, M), 2.0).double(),
        "kappa": kappa, "omega": omega,
    }  # fmt: skip


def test_the_kernel_is_its_formula() -> None:
    x, z = torch.tensor([[[0.0, 1.0], [2.0, 0.0]]]), torch.tensor([[[1.0, 1.0]]])
    expected = torch.tensor([[[8 * math.exp(-1 / 18)], [8 * math.exp(-2 / 18)]]])
    assert torch.allclose(CovarianceKernel(8.0, 3.0).across(x, z), expected, rtol=1e-6)


def test_given_omega_the_posterior_is_that_of_regression_on_kappa_over_omega_with_noise_one_over_omega() -> (
    None
):
    """A draw is affine in the two it is made from, so its mean and covariance are known without
    drawing.
    """
    p = problem()
    K, kappa, omega = p["K"], p["kappa"], p["omega"]
    n, D, N = omega.shape

    def draw(prior: Tensor, noise: Tensor) -> Tensor:
        return posterior_draw(
            K, kappa, omega, prior=prior.expand(n, D, N), noise=noise.expand(n, D, N)
        )

    zero, unit = torch.zeros(N).double(), torch.eye(N).double()
    mean = draw(zero, zero)
    by_prior = torch.stack([draw(e, zero) - mean for e in unit], dim=-1)
    by_noise = torch.stack([draw(zero, e) - mean for e in unit], dim=-1)
    covariance = by_prior @ K[:, None] @ by_prior.mT + by_noise @ by_noise.mT
    gain = K[:, None] @ torch.linalg.inv(K[:, None] + torch.diag_embed(1 / omega))
    assert torch.allclose(mean, (gain @ (kappa[:, None] / omega)[..., None])[..., 0], atol=1e-12)
    assert torch.allclose(covariance, K[:, None] - gain @ K[:, None], atol=1e-12)


def test_given_omega_the_prediction_is_that_of_regression() -> None:
    p = problem()
    mean, var = predictive(**p)
    gain = p["across"][:, None].mT @ torch.linalg.inv(
        p["K"][:, None] + torch.diag_embed(1 / p["omega"])
    )
    assert torch.allclose(
        mean, (gain @ (p["kappa"][:, None] / p["omega"])[..., None])[..., 0], atol=1e-12
    )
    expected = p["own"][:, None] - (gain @ p["across"][:, None]).diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(var, expected, atol=1e-12)


def test_an_example_that_does_not_count_changes_nothing() -> None:
    p = problem()
    p["kappa"][:, 2], p["omega"][:, :, 2] = 0, 0
    others = [0, 1, 3, 4]
    less = {"K": p["K"][:, others][:, :, others], "across": p["across"][:, others], "own": p["own"],
            "kappa": p["kappa"][:, others], "omega": p["omega"][:, :, others]}  # fmt: skip
    for one, other in zip(predictive(**p), predictive(**less), strict=True):
        assert torch.allclose(one, other, atol=1e-13)
    known = gibbs(p["K"], p["kappa"], steps=2, draws=4, source=Addressed(2), stream="a")
    assert bool((known[:, :, 2] == 0).all())
    assert bool((known[:, :, others] > 0).all())


def test_chances_are_integrals_over_a_gaussian_and_a_mean_over_draws() -> None:
    mean = torch.tensor([[[0.0, 1.5, -4.0], [1.0, 3.0, 9.0]]]).double()
    var = torch.tensor([[[8.0, 2.0, 0.1], [0.0, 6.0, 1.0]]]).double()
    f = np.linspace(-40, 40, 400_001)
    expected = np.zeros((2, 3))
    for d in range(2):
        for m in range(3):
            sd = math.sqrt(max(float(var[0, d, m]), 1e-6))
            density = np.exp(-0.5 * ((f - float(mean[0, d, m])) / sd) ** 2) / (
                sd * math.sqrt(2 * math.pi)
            )
            expected[:, m] += [
                np.trapezoid(density / (1 + np.exp(-sign * f)), f) / 2 for sign in (1, -1)
            ]
    up, down = log_chances(mean, var)
    assert np.abs(up.exp().numpy() - expected[0]).max() < 1e-4
    assert np.abs(down.exp().numpy() - expected[1]).max() < 1e-4
    assert torch.allclose(up.exp() + down.exp(), torch.ones(1, 3).double(), atol=1e-12)


@pytest.mark.parametrize("labels", [(1, 1), (1, -1)])
def test_gibbs_draws_have_the_posterior_that_a_grid_gives(labels: tuple[int, int]) -> None:
    """Two examples and one place: p(f1, f2 | y) ~ N(f; 0, K) sigmoid(y1 f1) sigmoid(y2 f2), added
    up over a grid.
    """
    kernel = CovarianceKernel(3.0, 1.0)
    x = torch.tensor([[[0.0], [0.8]]]).double()
    z = torch.tensor([[[0.3]]]).double()
    K, across = kernel.among(x), kernel.across(x, z)
    f = np.linspace(-12, 12, 601)
    grid = np.stack(np.meshgrid(f, f, indexing="ij"), axis=-1).reshape(-1, 2)
    precision = np.linalg.inv(K[0].numpy())
    logs = -0.5 * np.einsum("gi,ij,gj->g", grid, precision, grid) - sum(
        np.logaddexp(0, -y * grid[:, i]) for i, y in enumerate(labels)
    )
    share = np.exp(logs - logs.max())
    share /= share.sum()
    # of f at the place, which is normal given f1 and f2
    mean = share @ (grid @ precision @ across[0].numpy()[:, 0])
    omega_mean = share @ polya_gamma_mean(torch.from_numpy(grid)).numpy()

    n, D = 400, 25
    kappa = 0.5 * torch.tensor([labels]).double().expand(n, 2)
    omega = gibbs(K.expand(n, 2, 2), kappa, steps=15, draws=D, source=Addressed(n), stream="grid")
    assert np.abs(omega.mean((0, 1)).numpy() - omega_mean).max() < 4 * float(
        omega.std()
    ) / math.sqrt(n * D)
    found, _ = predictive(
        K.expand(n, 2, 2), across.expand(n, 2, 1), torch.full((n, 1), 3.0).double(), kappa, omega
    )
    assert abs(float(found.mean()) - mean) < 4 * float(found.std()) / math.sqrt(n * D) + 1e-3
    if labels == (1, 1):
        assert mean > 0.5


def fitted(has: list[list[bool]], y: list[list[int]], most: int, n_draws: int = 4) -> gp.Classifier:
    x = (
        torch.randn(len(y[0]), 2, generator=torch.Generator().manual_seed(5))
        .double()
        .expand(len(y), -1, -1)
    )
    return gp.classifier(CovarianceKernel(2.0, 1.0), x, torch.tensor(y), weight=None, has=torch.tensor(has), most=most,
                         steps=2, draws=n_draws, source=Addressed(len(y)), stream="fork")  # fmt: skip


def test_classes_are_halved_by_label_and_their_chances_sum_to_one() -> None:
    """Of four classes the first node has 0, 1, 3 and the second 2, 3: forks {0, 1 | 3}, {0 | 1};
    and {2 | 3}.
    """
    has = [[True, True, False, True], [False, False, True, True]]
    tree = fitted(has, [[0, 1, 3, 3, 0], [2, 3, 3, 2, 2]], most=3)
    sides = [fork.side.tolist() for fork in tree.forks]
    assert sides[0] == [[1, -1, 0, 0], [0, 0, 1, -1]]  # height 1: ranks 0 and 1
    assert sides[1] == [[0, 0, 0, 1], [0, 0, 0, 0]]  # rank 2 is alone
    assert sides[2] == [[1, 1, 0, -1], [0, 0, 1, 1]]  # height 2: ranks 0, 1 against 2
    z = torch.randn(2, 6, 2, generator=G).double()
    chances = tree.log_chances(z).exp() * torch.tensor(has)[:, None]
    assert torch.allclose(chances.sum(2), torch.ones(2, 6).double(), atol=1e-12)
    own = torch.full((2, 6), 2.0).double()
    K = tree.kernel.among(tree.features)
    across = tree.kernel.across(tree.features, z)
    (up, down), _, (top, bottom) = (
        log_chances(*predictive(K, across, own, fork.kappa, fork.omega)) for fork in tree.forks
    )
    by_hand = [top + up, top + down, None, bottom]
    for label, expected in enumerate(by_hand):
        if expected is not None:
            assert torch.allclose(tree.log_chances(z)[0, :, label], expected[0], atol=1e-13)
    assert torch.allclose(
        tree.log_chances(z)[1, :, 2:], torch.stack([up[1], down[1]], dim=1), atol=1e-13
    )


def test_more_classes_elsewhere_and_other_nodes_change_no_bit() -> None:
    has, y = [[True, False, True, False]], [[0, 2, 2, 0]]
    z = torch.randn(1, 3, 2, generator=G).double()
    small, large = (fitted(has, y, most).log_chances(z) for most in (2, 4))
    assert torch.equal(small, large)
    both = fitted(has * 2, y * 2, 2)
    assert torch.equal(both.log_chances(z, torch.tensor([0])), small)


def test_no_nodes_and_one_class() -> None:
    alone = fitted([[True, False]], [[0, 0, 0]], most=1)
    assert alone.forks == ()
    assert torch.equal(alone.log_chances(torch.zeros(1, 4, 2)), torch.zeros(1, 4, 1).double())
    none, has = torch.zeros(0, 3, 2), torch.zeros(0, 4, dtype=torch.bool)
    empty = gp.classifier(CovarianceKernel(1.0, 1.0), none, torch.zeros(0, 3, dtype=torch.int64), weight=None, has=has, most=4,
                          steps=1, draws=2, source=Addressed(0), stream="a")  # fmt: skip
    assert empty.log_chances(torch.zeros(0, 5, 2)).shape == (0, 5, 4)
