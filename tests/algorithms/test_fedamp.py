"""FedAMP (Huang et al., 2021, Algorithm 1) by hand, its weights, and that it stands still where its objective does."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from populations import populations
from quadratics import EXACT, Device, Vector, W, both, deviation, kept, mean, play, some, start
from torch import Tensor

from covey import attention
from covey.algorithms import FedAMP


def weights(ws: list[Vector], alpha: float, sigma: float) -> Vector:
    n = len(ws)
    slope = np.array([[np.exp(-np.square(a - b).sum() / sigma) / sigma for b in ws] for a in ws])  # A'
    others = np.where(np.eye(n), 0, slope)
    others *= min(alpha, 1 / others.sum(1).max())
    return others + np.diag(1 - others.sum(1))


@pytest.mark.parametrize(("sample", "alpha", "sigma"), [(None, 0.5, 2.0), (3, 0.5, 2.0), (None, 5.0, 1.0)])
@both
def test_rounds_by_hand(fs: list[Device], batch: int | None, sample: int | None, alpha: float, sigma: float) -> None:
    algorithm = FedAMP(lam=0.6, alpha=alpha, sigma=sigma, sample=sample, steps=3, lr=0.1, batch=batch)
    run, ws, personal = start(algorithm, fs, w=W, rounds=4), [W] * len(fs), {}
    for record in run:
        xi = weights(ws, alpha, sigma)
        us = [sum(share * w for share, w in zip(shares, ws, strict=True)) for shares in xi]
        for i in record.cohorts["device"]:
            w = us[i]
            for _ in range(3):
                w = w - 0.1 * (fs[i].grad(w) + 0.6 / alpha * (w - us[i]))
            ws[i] = personal[i] = w
        assert deviation(run, mean(ws), personal=personal) <= EXACT


def test_it_converges_to_where_its_objective_is_stationary() -> None:
    """grad f_i + lam sum_j A'(|w_i - w_j|^2) (w_i - w_j) = 0, the derivative of sum f_i + lam/2 sum_{i<j} A."""
    fs, lam, sigma = some(4, 2, mu=0.5, L=2.0, spread=0.7), 1.5, 2.0
    run = play(FedAMP(lam=lam, alpha=0.6, sigma=sigma, steps=60, lr=0.2, batch=None), fs, w=np.zeros(2), rounds=100)
    ws = list(kept(run, "personal").values())
    for f, w in zip(fs, ws, strict=True):
        pull = sum(np.exp(-np.square(w - v).sum() / sigma) / sigma * (w - v) for v in ws)
        assert np.abs(f.grad(w) + lam * pull).max() <= 1e-10
        assert np.abs(f.grad(w)).max() > 1e-2  # it is no longer local training


def direct(models: Tensor) -> Tensor:
    return (models[:, :, None] - models[:, None, :]).square().sum(3)


def test_distances_far_from_zero_are_as_exact_as_near_it() -> None:
    near = torch.randn(2, 5, 30, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(attention.squared_distances(near + 1000), direct(near + 1000), rtol=1e-4, atol=1e-4)


@given(models=populations(), alpha=st.floats(1e-3, 1e3), sigma=st.floats(1e-3, 1e3))
def test_weights_sum_to_one_and_are_never_negative(models: Tensor, alpha: float, sigma: float) -> None:
    xi = FedAMP(alpha=alpha, sigma=sigma).weights(models)
    assert (xi >= 0).all()
    torch.testing.assert_close(xi.sum(2), torch.ones_like(xi[:, :, 0]))
    torch.testing.assert_close(xi, xi.transpose(1, 2))  # one step on one function of all pairs
