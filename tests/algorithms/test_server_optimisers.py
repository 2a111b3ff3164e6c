"""FedAvgM (Hsu et al., 2019), FedAdam and FedYogi (Reddi et al., 2021, Algorithm 2)."""

from typing import Any

import numpy as np
import pytest
import torch

from covey.algorithms import FedAdam, FedAvg, FedAvgM, FedYogi
from tests.algorithms.quadratics import EXACT, SMALL, Vector, W, deviation, mean, start


def devices_mean(w: Vector, weighted: bool) -> Vector:
    """The mean of the devices' models after three steps of 0.1 from w."""
    rows = []
    for f in SMALL:
        x = w
        for _ in range(3):
            x = x - 0.1 * f.grad(x)
        rows.append(x)
    return mean(rows, [len(f.y) for f in SMALL] if weighted else None)


@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_three_rounds_of_momentum_by_hand(weight: Any) -> None:
    algorithm = FedAvgM(momentum=0.9, server_lr=0.7, steps=3, lr=0.1, batch=None, weight=weight)
    run = start(algorithm, SMALL, w=W, rounds=3)
    w, velocity = W, np.zeros(2)
    for _ in run:
        velocity = 0.9 * velocity + (w - devices_mean(w, weight == "samples"))
        w = w - 0.7 * velocity
        assert deviation(run, w) <= EXACT


@pytest.mark.parametrize("cls", [FedAdam, FedYogi])
def test_three_rounds_of_moments_by_hand(cls: Any) -> None:
    algorithm = cls(server_lr=0.2, beta1=0.8, beta2=0.6, tau=0.3, steps=3, lr=0.1, batch=None)
    run = start(algorithm, SMALL, w=W, rounds=3)
    w, m, v = W, np.zeros(2), np.full(2, 0.3**2)
    signs = set()
    for _ in run:
        delta = devices_mean(w, weighted=False) - w
        m = 0.8 * m + 0.2 * delta
        if cls is FedAdam:
            v = 0.6 * v + 0.4 * delta**2
        else:
            sign = np.sign(v - delta**2)
            signs |= set(sign)
            v = v - 0.4 * delta**2 * sign
        w = w + 0.2 * m / (np.sqrt(v) + 0.3)
        assert deviation(run, w) <= EXACT
    assert cls is FedAdam or signs == {-1.0, 1.0}  # both branches of Yogi were taken


@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_without_momentum_it_is_fedavg(weight: Any) -> None:
    fields: dict[str, Any] = {"steps": 3, "lr": 0.1, "batch": 2, "sample": 3, "weight": weight}
    plain = start(FedAvg(**fields), SMALL, w=W, rounds=3)
    same = start(FedAvgM(momentum=0.0, server_lr=1.0, **fields), SMALL, w=W, rounds=3)
    for _ in zip(plain, same, strict=True):
        assert torch.equal(plain.w, same.w)
