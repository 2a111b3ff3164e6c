"""FedAvg (McMahan et al., 2017, Algorithm 1): S devices take R steps from w, and w becomes their
mean.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from covey.algorithms import FedAvg
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    Vector,
    W,
    both,
    deviation,
    mean,
    play,
    row,
    some,
    start,
)


def local(f: Device, w: Vector, *, steps: int, lr: float) -> Vector:
    for _ in range(steps):
        w = w - lr * f.grad(w)
    return w


def fedavg(
    devices: Sequence[Device], w: Vector, *, steps: int, lr: float, weighted: bool = False
) -> Vector:
    rows = [local(f, w, steps=steps, lr=lr) for f in devices]
    return mean(rows, [len(f.y) for f in devices] if weighted else None)


@pytest.mark.parametrize("weight", ["uniform", "samples"])
@both
def test_two_rounds_by_hand(fs: list[Device], batch: int | None, weight: Any) -> None:
    run = play(FedAvg(steps=3, lr=0.1, batch=batch, weight=weight), fs, w=W)
    w = W
    for _ in range(2):
        w = fedavg(fs, w, steps=3, lr=0.1, weighted=weight == "samples")
    assert deviation(run, w) <= EXACT


@both
def test_two_rounds_by_hand_with_l2(fs: list[Device], batch: int | None) -> None:
    run, w = play(FedAvg(steps=3, lr=0.1, batch=batch), fs, w=W, l2=0.4), W
    for _ in range(2):
        rows = [w] * 4
        for _ in range(3):
            rows = [x - 0.1 * (f.grad(x) + 0.4 * x) for f, x in zip(fs, rows, strict=True)]
        w = mean(rows)
    assert deviation(run, w) <= EXACT


@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_only_those_asked_are_averaged(weight: Any) -> None:
    run = start(FedAvg(sample=2, steps=2, lr=0.1, batch=None, weight=weight), SMALL, w=W, rounds=4)
    w = W
    asked = []
    for record in run:
        asked.append(tuple(record.cohorts["device"]))
        w = fedavg([SMALL[i] for i in asked[-1]], w, steps=2, lr=0.1, weighted=weight == "samples")
        assert deviation(run, w) <= EXACT
    assert {len(cohort) for cohort in asked} == {2}
    assert len(set(asked)) > 1


def test_one_step_a_round_reaches_the_minimum_of_the_mean_and_ten_do_not() -> None:
    devices = some(4, 3, mu=0.5, L=2.0, spread=3.0)
    optimum = np.linalg.solve(sum(f.H for f in devices), sum(f.H @ f.a for f in devices))
    exact = play(FedAvg(steps=1, lr=0.8, batch=None), devices, w=np.zeros(3), rounds=40)
    assert deviation(exact, optimum) <= 1e-10
    # x -> a + (I - lr H)^10 (x - a) is where a device goes: the mean of these maps has a fixed
    # point of its own
    powers = [np.linalg.matrix_power(np.eye(3) - 0.2 * f.H, 10) for f in devices]
    fixed = np.linalg.solve(
        sum(np.eye(3) - p for p in powers),
        sum((np.eye(3) - p) @ f.a for f, p in zip(devices, powers, strict=True)),
    )
    drifted = play(FedAvg(steps=10, lr=0.2, batch=None), devices, w=np.zeros(3), rounds=30)
    assert deviation(drifted, fixed) <= 1e-10
    assert np.linalg.norm(row(drifted) - optimum) > 0.1
