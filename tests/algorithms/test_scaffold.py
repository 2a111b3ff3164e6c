"""SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II) by hand, its exact optimum, and what
it sends.
"""

import numpy as np
import pytest
import torch

from covey.algorithms import FedAvg, Scaffold
from tests import peek
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    W,
    both,
    deviation,
    mean,
    play,
    row,
    some,
    start,
)


@pytest.mark.parametrize(("sample", "server_lr"), [(None, 1.0), (2, 0.7)])
@both
def test_rounds_by_hand(
    fs: list[Device], batch: int | None, sample: int | None, server_lr: float
) -> None:
    K, lr = 3, 0.1
    run = start(
        Scaffold(sample=sample, steps=K, lr=lr, server_lr=server_lr, batch=batch), fs, w=W, rounds=4
    )
    x, c, own = W, np.zeros(2), [np.zeros(2) for _ in fs]
    for record in run:
        asked, ys, changes = record.cohorts["device"], [], []
        for i in asked:
            y = x
            for _ in range(K):
                y = y - lr * (fs[i].grad(y) - own[i] + c)
            new = own[i] - c + (x - y) / (K * lr)
            changes.append(new - own[i])
            ys.append(y - x)
            own[i] = new
        x = x + server_lr * mean(ys)
        c = c + len(asked) / len(fs) * mean(changes)
        assert deviation(run, x) <= EXACT
        # so it stays the mean of all, whoever was asked
        assert np.abs(c - mean(own)).max() <= EXACT
        for tier, _, ids, _, rows in peek.columns(run):
            wanted = c[None] if tier == "server" else np.array(own)[ids]
            assert np.abs(rows.numpy() - wanted).max() <= EXACT


def test_the_control_stays_the_mean_of_all_controls_to_float64() -> None:
    """With 3 of 7 devices: 3/7 in float32 would be off by 1.7e-8 of a change."""
    devices = some(7, 2, mu=0.5, L=2.0, spread=3.0)
    run = start(Scaffold(sample=3, steps=2, lr=0.1, batch=None), devices, w=W, rounds=5)
    for _ in run:
        controls = {tier: rows for tier, _, _, _, rows in peek.columns(run)}
        mean_control = controls["device"].sum(0) / 7  # who was never asked has a control of zero
        assert mean_control.abs().max() > 0.1
        assert (controls["server"][0] - mean_control).abs().max() <= 1e-14


def test_ten_steps_a_round_reach_the_exact_optimum_where_fedavg_keeps_a_bias() -> None:
    devices = some(4, 3, mu=0.5, L=2.0, spread=3.0)
    optimum = np.linalg.solve(sum(f.H for f in devices), sum(f.H @ f.a for f in devices))
    exact = play(Scaffold(steps=10, lr=0.1, batch=None), devices, w=np.zeros(3), rounds=100)
    assert deviation(exact, optimum) <= 1e-12
    biased = play(FedAvg(steps=10, lr=0.1, batch=None), devices, w=np.zeros(3), rounds=100)
    assert np.linalg.norm(row(biased) - optimum) > 0.1


@both
def test_controls_that_are_forgotten_leave_fedavg_to_the_bit(
    fs: list[Device], batch: int | None
) -> None:
    frozen, plain = (
        start(a(steps=3, lr=0.1, batch=batch), fs, w=W, rounds=3) for a in (Scaffold, FedAvg)
    )
    for _ in zip(frozen, plain, strict=True):
        assert torch.equal(frozen.w, plain.w)
        peek.store(frozen).columns.clear()


def test_every_message_is_two_models() -> None:
    twice, once = (play(a(steps=1, lr=0.1, batch=None), SMALL, w=W) for a in (Scaffold, FedAvg))
    for direction in ("up", "down"):
        both_ways = [run.meter.traffic(direction=direction).values for run in (twice, once)]
        assert both_ways[0] == 2 * both_ways[1] > 0
