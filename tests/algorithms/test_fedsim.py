"""FedSim (Pillutla et al., 2022): tau steps on the shared u and a device's own v at once; the
server averages u.
"""

import numpy as np
import pytest

from covey import Tree
from covey.algorithms import FedSim
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    Vector,
    W,
    best_parts,
    both,
    deviation,
    mean,
    some,
    split,
)

S = 1  # of two parameters


def local(f: Device, u: Vector, v: Vector, *, lr: float, personal_lr: float) -> Vector:
    x = np.concatenate([u, v])
    for _ in range(3):
        x = x - np.array([lr, personal_lr]) * f.grad(x)
    return x


@pytest.mark.parametrize("personal_lr", [0.1, 0.05], ids=["one step size", "two step sizes"])
@both
def test_two_rounds_by_hand(fs: list[Device], batch: int | None, personal_lr: float) -> None:
    run = split(FedSim(steps=3, lr=0.1, personal_lr=personal_lr, batch=batch), fs, w=W, shared=S)
    list(run)
    u, x = W[:S], [W] * 4
    for _ in range(2):
        x = [
            local(f, u, mine[S:], lr=0.1, personal_lr=personal_lr)
            for f, mine in zip(fs, x, strict=True)
        ]
        u = mean([mine[:S] for mine in x])
    assert deviation(run, np.concatenate([u, W[S:]]), personal=x) <= EXACT


def test_two_rounds_by_hand_on_uneven_edges() -> None:
    algorithm = FedSim(steps=3, lr=0.1, personal_lr=0.05, batch=None, weight="samples")
    run = split(algorithm, SMALL, Tree.grouped([1, 3]), w=W, shared=S)
    list(run)
    u, x, counts = W[:S], [W] * 4, [len(f.y) for f in SMALL]
    for _ in range(2):
        x = [
            local(f, u, mine[S:], lr=0.1, personal_lr=0.05)
            for f, mine in zip(SMALL, x, strict=True)
        ]
        edges = [x[0][:S], mean([mine[:S] for mine in x[1:]], counts[1:])]
        u = mean(edges, [counts[0], sum(counts[1:])])
    assert deviation(run, np.concatenate([u, W[S:]]), personal=x) <= EXACT


def test_one_step_reaches_the_minimum_over_u_and_every_v() -> None:
    devices = some(4, 3, mu=0.5, L=2.0, spread=3.0)
    algorithm = FedSim(steps=1, lr=0.4, personal_lr=0.6, batch=None)
    run = split(algorithm, devices, w=np.zeros(3), shared=2, rounds=150)
    list(run)
    u, v = best_parts(devices, 2)
    assert np.abs(run.w[0, :2].numpy() - u).max() <= 1e-10
    assert np.abs(run.rows("personal")[1][:, 2:].numpy() - np.array(v)).max() <= 1e-10
