"""FedProx (Li et al., 2020): FedAvg whose devices descend f_i(x) + mu/2 |x - w|^2."""

from typing import Any

import numpy as np
import pytest

from covey.algorithms import FedProx
from tests.algorithms.quadratics import EXACT, Device, W, both, deviation, mean, play, some, start


@pytest.mark.parametrize("weight", ["uniform", "samples"])
@both
def test_two_rounds_by_hand_with_sampling(fs: list[Device], batch: int | None, weight: Any) -> None:
    run = start(FedProx(mu=0.7, sample=3, steps=3, lr=0.1, batch=batch, weight=weight), fs, w=W)
    w = W
    for record in run:
        asked, rows = [fs[i] for i in record.cohorts["device"]], []
        for f in asked:
            x = w
            for _ in range(3):
                x = x - 0.1 * (f.grad(x) + 0.7 * (x - w))
            rows.append(x)
        w = mean(rows, [len(f.y) for f in asked] if weight == "samples" else None)
        assert deviation(run, w) <= EXACT
        assert len(asked) == 3


def test_exact_devices_take_w_to_the_minimum_of_the_mean_envelope() -> None:
    """The fixed point of w <- mean prox_i(w) is the minimum of the mean Moreau envelope with lam =
    mu.
    """
    devices = some(4, 3, mu=0.5, L=2.0, spread=3.0)
    E = [f.envelope(1.0) for f in devices]
    optimum = np.linalg.solve(sum(E), sum(e @ f.a for e, f in zip(E, devices, strict=True)))
    run = play(FedProx(mu=1.0, steps=30, lr=0.4, batch=None), devices, w=np.zeros(3), rounds=60)
    assert deviation(run, optimum) <= 1e-10
