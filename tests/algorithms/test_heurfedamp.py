"""HeurFedAMP (Huang et al., 2021) by hand, and its weights."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from covey.algorithms import HeurFedAMP
from tests.algorithms.populations import populations
from tests.algorithms.quadratics import EXACT, Device, Vector, W, both, deviation, mean, start


def weights(ws: list[Vector], own: float, sigma: float) -> Vector:
    """xi_ii = own; the others share the rest by exp(sigma cos)."""
    xi = np.array(
        [[np.exp(sigma * a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for b in ws] for a in ws]
    )
    np.fill_diagonal(xi, 0)
    xi *= (1 - own) / xi.sum(1, keepdims=True)
    np.fill_diagonal(xi, own)
    return xi


@pytest.mark.parametrize(("sample", "own"), [(None, 0.5), (3, 0.1), (None, 0.0)])
@both
def test_rounds_by_hand(
    fs: list[Device], batch: int | None, sample: int | None, own: float
) -> None:
    algorithm = HeurFedAMP(
        self_weight=own, sigma=3.0, lam=0.8, sample=sample, steps=3, lr=0.1, batch=batch
    )
    run, ws, personal = start(algorithm, fs, w=W, rounds=4), [W] * len(fs), {}
    for record in run:
        us = [
            sum(share * w for share, w in zip(shares, ws, strict=True))
            for shares in weights(ws, own, 3.0)
        ]
        for i in record.cohorts["device"]:
            w = us[i]
            for _ in range(3):
                w = w - 0.1 * (fs[i].grad(w) + 0.8 * (w - us[i]))
            ws[i] = personal[i] = w
        assert deviation(run, mean(ws), personal=personal) <= EXACT


@given(models=populations(), own=st.floats(0, 1), sigma=st.floats(0, 1e4))
def test_weights_sum_to_one_and_are_never_negative(
    models: Tensor, own: float, sigma: float
) -> None:
    xi = HeurFedAMP(self_weight=own, sigma=sigma).weights(models)
    assert (xi >= 0).all()
    torch.testing.assert_close(xi.sum(2), torch.ones_like(xi[:, :, 0]))
    wanted = own if models.shape[1] > 1 else 1.0  # who is alone listens to itself
    torch.testing.assert_close(xi.diagonal(dim1=1, dim2=2), torch.full_like(xi[:, :, 0], wanted))
