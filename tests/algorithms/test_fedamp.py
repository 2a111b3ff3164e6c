"""FedAMP (Huang et al., 2021, Algorithm 1) by hand, its weights, and that it stands still where its
objective does.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from covey.algorithms import FedAMP
from covey.codecs import header
from covey.maths import attention
from tests.algorithms.populations import populations
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    Vector,
    W,
    both,
    deviation,
    kept,
    mean,
    play,
    quadratic,
    some,
    start,
)


def weights(ws: list[Vector], alpha: float, sigma: float) -> tuple[Vector, float]:
    """xi and alpha_k."""
    n = len(ws)
    # A'
    slope = np.array([[np.exp(-np.square(a - b).sum() / sigma) / sigma for b in ws] for a in ws])
    others = np.where(np.eye(n), 0, slope)
    step = min(alpha, 1 / others.sum(1).max())  # alpha_k
    return step * others + np.diag(1 - step * others.sum(1)), step


@pytest.mark.parametrize(
    ("sample", "alpha", "sigma", "capped"),
    [(None, 0.5, 2.0, False), (3, 0.5, 2.0, False), (None, 5.0, 1.0, True), (3, 5.0, 1.0, True)],
)
@both
def test_rounds_by_hand(
    fs: list[Device],
    batch: int | None,
    sample: int | None,
    alpha: float,
    sigma: float,
    capped: bool,
) -> None:
    algorithm = FedAMP(
        lam=0.6, alpha=alpha, sigma=sigma, sample=sample, steps=3, lr=0.1, batch=batch
    )
    run, ws, personal = start(algorithm, fs, w=W, rounds=4), [W] * len(fs), {}
    steps = set()
    for record in run:
        xi, step = weights(ws, alpha, sigma)
        steps.add(step)
        us = [sum(share * w for share, w in zip(shares, ws, strict=True)) for shares in xi]
        for i in record.cohorts["device"]:
            w = us[i]
            excess = 0.6 / step - 0.6 / alpha
            for _ in range(3):
                explicit = fs[i].grad(w) + 0.6 / alpha * (w - us[i])
                w = (w - 0.1 * explicit + 0.1 * excess * us[i]) / (1 + 0.1 * excess)
            ws[i] = personal[i] = w
        assert deviation(run, mean(ws), personal=personal) <= EXACT
    assert (min(steps) < alpha) == capped


def test_it_converges_to_where_its_objective_is_stationary() -> None:
    """grad f_i + lam sum_j A'(|w_i - w_j|^2) (w_i - w_j) = 0, the derivative of sum f_i + lam/2
    sum_{i<j} A.
    """
    fs, lam, sigma = some(4, 2, mu=0.5, L=2.0, spread=0.7), 1.5, 2.0
    algorithm = FedAMP(lam=lam, alpha=0.6, sigma=sigma, steps=60, lr=0.2, batch=None)
    run = play(algorithm, fs, w=np.zeros(2), rounds=100)
    ws = list(kept(run, "personal").values())
    for f, w in zip(fs, ws, strict=True):
        pull = sum(np.exp(-np.square(w - v).sum() / sigma) / sigma * (w - v) for v in ws)
        assert np.abs(f.grad(w) + lam * pull).max() <= 1e-10
        assert np.abs(f.grad(w)).max() > 1e-2  # it is no longer local training


def direct(models: Tensor) -> Tensor:
    return (models[:, :, None] - models[:, None, :]).square().sum(3)


def test_distances_far_from_zero_are_as_exact_as_near_it() -> None:
    near = torch.randn(2, 5, 30, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        attention.squared_distances(near + 1000), direct(near + 1000), rtol=1e-4, atol=1e-4
    )


@given(models=populations(), alpha=st.floats(1e-3, 1e3), sigma=st.floats(1e-3, 1e3))
def test_weights_sum_to_one_and_are_never_negative(
    models: Tensor, alpha: float, sigma: float
) -> None:
    xi, tie = FedAMP(lam=3.0, alpha=alpha, sigma=sigma).weights(models)
    assert (xi >= 0).all()
    torch.testing.assert_close(xi.sum(2), torch.ones_like(xi[:, :, 0]))
    torch.testing.assert_close(xi, xi.transpose(1, 2))  # one step on one function of all pairs
    assert (tie >= 3.0 / alpha * (1 - 1e-6)).all()  # alpha_k is never more than alpha


@pytest.mark.parametrize("alpha", [1.0, 10.0])
@pytest.mark.parametrize("n", [8, 20, 50])
def test_the_fixed_point_is_stationary_where_the_server_caps_its_step(n: int, alpha: float) -> None:
    """grad f_i + lam sum_j A'(|w_i - w_j|^2) (w_i - w_j) = 0 at the default sigma."""
    rng = np.random.default_rng(n)
    fs = [quadratic(np.diag(rng.uniform(1.5, 2.0, 1)), rng.normal(size=1)) for _ in range(n)]
    lam, sigma = 1.0, FedAMP().sigma
    algorithm = FedAMP(lam=lam, alpha=alpha, steps=45, lr=0.22, batch=1)  # each has one example
    run = play(algorithm, fs, w=np.zeros(1), rounds=90)
    ws = np.array(list(kept(run, "personal").values()))
    apart = ws[:, None] - ws[None, :]
    slope = np.exp(-np.square(apart).sum(2) / sigma) / sigma
    pull = lam * (slope[:, :, None] * apart).sum(1)
    gradients = np.array([f.grad(w) for f, w in zip(fs, ws, strict=True)])
    assert np.abs(gradients + pull).max() <= 1e-10
    assert np.abs(pull).max() > 1e-2  # it is no longer local training
    assert (weights(list(ws), alpha, sigma)[1] < alpha) == (n > 8 or alpha > 1)


def test_the_tie_is_sent_as_one_number_to_every_device() -> None:
    run = start(FedAMP(sample=3, batch=None), SMALL, w=W)
    for record in run:
        down = record.traffic["server-device", "down", "train"]
        assert down.messages == 3 * 2
        assert down.bytes == 3 * ((header.SIZE + 8 * len(W)) + (header.SIZE + 8))
        assert record.traffic["server-device", "up", "train"].messages == 3
