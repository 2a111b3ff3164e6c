"""L2GD (Hanzely, Richtarik, 2020, Algorithm 1) by hand, flip by flip, and the optimum around which
it stays.
"""

import numpy as np
import pytest
import torch

from covey import draws
from covey.algorithms import L2GD, Local
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    Vector,
    both,
    deviation,
    kept,
    mean,
    over_time,
    row,
    some,
    start,
)

LAM, P, LR = 0.9, 0.3, 0.1


def flips(round: int) -> list[bool]:
    """The coins of a round, the last of which averages: a number of failures comes from one uniform
    number.
    """
    u = float(
        draws.uniform(
            draws.key(0, round, 0, "server", "coin", 0), torch.zeros(1, dtype=torch.int64), 1
        )
    )
    local = 0
    while 1 - (1 - P) ** (local + 1) <= u:  # the distribution function of a geometric number
        local += 1
    return [False] * local + [True]


@both
def test_rounds_by_hand(fs: list[Device], batch: int | None) -> None:
    run = start(L2GD(lam=LAM, p=P, lr=LR, batch=batch), fs, w=np.zeros(2), rounds=6)
    xs, seen = [run.runtime.start[0].numpy()] * len(fs), []
    for round, _ in enumerate(run):
        seen += flips(round)
        for averages in flips(round):
            middle = mean(xs)
            xs = [
                x - LR * LAM / P * (x - middle) if averages else x - LR / (1 - P) * f.grad(x)
                for x, f in zip(xs, fs, strict=True)
            ]
        assert deviation(run, mean(xs), personal=xs) <= EXACT
    # there were local steps between the averages, of which every round has one
    assert seen.count(False) >= 3
    assert False in seen


def optimum(fs: list[Device], lam: float) -> list[Vector]:
    """The minimum of sum f_i(x_i) + lam/2 |x_i - mean x|^2: x_i is the prox of the mean."""
    d = len(fs[0].a)
    shares = [lam * np.linalg.inv(f.H + lam * np.eye(d)) for f in fs]
    middle = np.linalg.solve(
        np.eye(d) - mean(shares),
        mean([(np.eye(d) - s) @ f.a for s, f in zip(shares, fs, strict=True)]),
    )
    return [f.prox(lam, middle) for f in fs]


def test_the_optimum_is_where_each_model_is_the_mean_less_its_gradient_over_lam() -> None:
    fs = some(4, 2, mu=0.5, L=2.0, spread=1.0)
    best = optimum(fs, LAM)
    off = [x - (mean(best) - f.grad(x) / LAM) for x, f in zip(best, fs, strict=True)]
    assert np.abs(off).max() <= EXACT


def test_its_mean_over_time_is_the_optimum_and_smaller_steps_stay_nearer() -> None:
    """On quadratics a flip is linear and on average a gradient step, so that before a flip the mean
    is the optimum x*.

    A round ends with an averaging flip: what is kept then is x* - lr lam/p (x* - mean x*) on
    average.
    """
    fs = some(4, 2, mu=0.8, L=1.6, spread=1.0)
    best, far = np.array(optimum(fs, LAM)), {}
    for lr in (0.1, 0.03):
        rows = over_time(
            L2GD(lam=LAM, p=0.5, lr=lr, batch=None), fs, after=round(4 / lr), rounds=60
        )
        expected = best - lr * LAM / 0.5 * (best - best.mean(0))
        far[lr] = np.sqrt(np.square(rows - expected).sum((1, 2)).mean())
        assert np.abs(rows.mean(0) - expected).max() < 0.1 * far[lr], (
            "the ball is around something else"
        )
    assert far[0.03] < 0.7 * far[0.1]
    assert 0.02 < far[0.1] < np.linalg.norm(best - best.mean(0))


def test_without_its_penalty_it_is_local_training() -> None:
    run = start(L2GD(lam=0.0, p=P, lr=LR, batch=None), SMALL, w=np.zeros(2), rounds=4)
    list(run)
    steps = sum(len(flips(round)) - 1 for round in range(4))
    local = start(Local(steps=steps, lr=LR / (1 - P), batch=None), SMALL, w=np.zeros(2), rounds=1)
    list(local)
    assert steps > 2
    assert deviation(local, row(local), personal=kept(run, "personal")) <= EXACT


@pytest.mark.parametrize("chance", [0.02, 0.3, 0.95])
def test_failures_are_geometric(chance: float) -> None:
    u = draws.uniform(7, torch.arange(20_000), 1)
    count = draws.failures(u, chance)
    wanted = (1 - chance) / chance
    assert abs(float(count.mean()) - wanted) < 5 * (wanted / chance / 20_000) ** 0.5
    assert abs(float((count == 0).double().mean()) - chance) < 0.02
    assert torch.isfinite(draws.failures(torch.ones(1), chance)).all()
