"""FedAlt (Pillutla et al., 2022): tau_v steps on a device's own v, then tau_u on the shared u; the
server averages u.
"""

from typing import Any

import numpy as np
import pytest

from covey import Tree
from covey.algorithms import FedAlt
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
from tests.given import drained

S = 1  # of two parameters
SETTINGS: dict[str, Any] = {"steps": 3, "personal_steps": 2, "lr": 0.1, "personal_lr": 0.05}


def local(f: Device, u: Vector, v: Vector) -> Vector:
    x = np.concatenate([u, v])
    for _ in range(2):
        x[S:] -= 0.05 * f.grad(x)[S:]
    for _ in range(3):
        x[:S] -= 0.1 * f.grad(x)[:S]
    return x


@pytest.mark.parametrize("weight", ["uniform", "samples"])
@both
def test_two_rounds_by_hand(fs: list[Device], batch: int | None, weight: Any) -> None:
    run = drained(split(FedAlt(**SETTINGS, batch=batch, weight=weight), fs, w=W, shared=S))
    u, x = W[:S], [W] * 4
    for _ in range(2):
        x = [local(f, u, mine[S:]) for f, mine in zip(fs, x, strict=True)]
        u = mean([mine[:S] for mine in x], [len(f.y) for f in fs] if weight == "samples" else None)
    assert deviation(run, np.concatenate([u, W[S:]]), personal=x) <= EXACT


def test_those_not_asked_keep_their_private_part_for_the_next_time() -> None:
    run = split(FedAlt(**SETTINGS, batch=None, sample=2), SMALL, w=W, shared=S, rounds=5)
    u = W[:S]
    x: dict[int, Vector] = {}
    for record in run:
        asked = record.cohorts["device"]
        x |= {i: local(SMALL[i], u, x.get(i, W)[S:]) for i in asked}
        u = mean([x[i][:S] for i in asked])
        assert deviation(run, np.concatenate([u, W[S:]]), personal=x) <= EXACT


def test_two_rounds_by_hand_on_uneven_edges() -> None:
    """Two edge rounds a round, in the second of which v goes on from the first; the server averages
    edges alike.
    """
    run = split(
        FedAlt(**SETTINGS, batch=None, edge_rounds=2), SMALL, Tree.grouped([1, 3]), w=W, shared=S
    )
    list(run)
    u, x = W[:S], [W] * 4
    for _ in range(2):
        edges = []
        for group in ([0], [1, 2, 3]):
            here = u
            for _ in range(2):
                for i in group:
                    x[i] = local(SMALL[i], here, x[i][S:])
                here = mean([x[i][:S] for i in group])
            edges.append(here)
        u = mean(edges)
    whole = [np.concatenate([edge, W[S:]]) for edge in edges]
    assert deviation(run, np.concatenate([u, W[S:]]), personal=x, edge=whole) <= EXACT


def test_one_step_of_each_reaches_the_minimum_over_u_and_every_v() -> None:
    devices = some(4, 3, mu=0.5, L=2.0, spread=3.0)
    algorithm = FedAlt(steps=1, personal_steps=1, lr=0.5, personal_lr=0.5, batch=None)
    run = drained(split(algorithm, devices, w=np.zeros(3), shared=2, rounds=150))
    u, v = best_parts(devices, 2)
    assert np.abs(run.w[0, :2].numpy() - u).max() <= 1e-10
    assert np.abs(run.rows("personal")[1][:, 2:].numpy() - np.array(v)).max() <= 1e-10
