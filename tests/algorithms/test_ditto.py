"""Ditto (Li, Hu, Beirami, Smith, 2021, Algorithm 1) by hand, and its personal models at
convergence.
"""

from typing import Any

import numpy as np
import pytest

from covey.algorithms import Ditto
from tests.algorithms.quadratics import EXACT, Device, Vector, W, both, deviation, mean, some, start


@pytest.mark.parametrize(("sample", "weight"), [(None, "uniform"), (2, "samples")])
@both
def test_rounds_by_hand(
    fs: list[Device], batch: int | None, sample: int | None, weight: Any
) -> None:
    algorithm = Ditto(
        lam=0.8, sample=sample, steps=3, lr=0.1, personal_steps=2, personal_lr=0.15, batch=batch,
        weight=weight,
    )  # fmt: skip
    run, w = start(algorithm, fs, w=W, rounds=4), W
    v: dict[int, Vector] = {}
    for record in run:
        asked, rows = record.cohorts["device"], []
        for i in asked:
            v.setdefault(i, w)  # who is asked for the first time begins at w
            for _ in range(2):
                v[i] = v[i] - 0.15 * (fs[i].grad(v[i]) + 0.8 * (v[i] - w))
            x = w
            for _ in range(3):
                x = x - 0.1 * fs[i].grad(x)
            rows.append(x)
        w = mean(rows, [len(fs[i].y) for i in asked] if weight == "samples" else None)
        assert deviation(run, w, personal=v) <= EXACT


def test_personal_models_converge_to_the_prox_of_the_optimum() -> None:
    devices = some(4, 3, mu=0.5, L=2.0, spread=3.0)
    optimum = np.linalg.solve(sum(f.H for f in devices), sum(f.H @ f.a for f in devices))
    algorithm = Ditto(lam=1.5, steps=1, lr=0.8, personal_steps=1, personal_lr=0.4, batch=None)
    run = start(algorithm, devices, w=np.zeros(3), rounds=60)
    list(run)
    assert deviation(run, optimum, personal=[f.prox(1.5, optimum) for f in devices]) <= 1e-10
