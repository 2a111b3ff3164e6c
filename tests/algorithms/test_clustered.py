"""Clustered training, IFCA (Ghosh et al., 2020, Algorithm 1 with model averaging), by hand, and
that it finds the clusters.
"""

from typing import Any

import numpy as np
import pytest
import torch

from covey import draws
from covey.algorithms import Clustered
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    Vector,
    W,
    both,
    deviation,
    kept,
    mean,
    play,
    quadratic,
    row,
    start,
)


def begin(w: Vector, k: int, spread: float) -> list[Vector]:
    """The first cluster at w, the others around it: normal numbers by the address of the server's
    first call.
    """
    away = draws.normal(
        draws.key(0, 0, 0, "server", "clusters", 0),
        torch.zeros(1, dtype=torch.int64),
        (k - 1) * len(w),
    )
    return [w, *(w + spread * away.numpy().reshape(k - 1, len(w)))]


def loss(f: Device, w: Vector) -> float:
    return float(np.square(f.X @ w - f.y).mean() / 2)


@pytest.mark.parametrize(
    ("sample", "weight", "k"), [(None, "uniform", 2), (3, "samples", 3), (2, "uniform", 4)]
)
@both
def test_rounds_by_hand(
    fs: list[Device], batch: int | None, sample: int | None, weight: Any, k: int
) -> None:
    algorithm = Clustered(
        clusters=k, spread=1.5, sample=sample, steps=3, lr=0.1, batch=batch, pick=batch, weight=weight,
    )  # fmt: skip
    run, models, picked, personal = start(algorithm, fs, w=W, rounds=4), begin(W, k, 1.5), {}, {}
    for record in run:
        asked = record.cohorts["device"]
        weights = {i: len(fs[i].y) if weight == "samples" else 1 for i in asked}
        choice = {i: int(np.argmin([loss(fs[i], w) for w in models])) for i in asked}
        for i in asked:
            x = picked[i] = models[choice[i]]
            for _ in range(3):
                x = x - 0.1 * fs[i].grad(x)
            personal[i] = x
        for j in range(k):
            if members := [i for i in asked if choice[i] == j]:  # else it stays as it was
                models[j] = mean([personal[i] for i in members], [weights[i] for i in members])
        w = mean([personal[i] for i in asked], [weights[i] for i in asked])
        assert deviation(run, w, cluster=picked, personal=personal, clusters=models) <= EXACT


def test_two_kinds_of_devices_get_the_two_optima() -> None:
    """Curvatures differ from device to device, minimisers are one of two: one step a round leads to
    these exactly.
    """
    kinds = np.array([[2.0, 0.0], [-2.0, 1.0]])
    fs = [quadratic(np.diag([0.5 + i / 4, 1.5 - i / 4]), kinds[i % 2]) for i in range(4)]
    run = play(
        Clustered(clusters=2, spread=1.0, steps=1, lr=0.8, batch=None), fs, w=np.zeros(2), rounds=60
    )
    assert deviation(run, kinds.mean(0), cluster=list(kinds[[0, 1, 0, 1]])) <= 1e-10


def test_one_cluster_is_picked_by_all_and_the_others_stay() -> None:
    run = play(
        Clustered(clusters=3, spread=100.0, steps=2, lr=0.1, batch=None), SMALL, w=W, rounds=2
    )
    clusters = kept(run, "clusters")
    assert np.abs(clusters[0] - row(run)).max() <= EXACT
    assert all(np.abs(clusters[j] - begin(W, 3, 100.0)[j]).max() <= EXACT for j in (1, 2))


def test_devices_pick_by_the_data_loss_alone_whatever_l2_is() -> None:
    """With l2 in the pick, all would take the cluster of the smallest weights."""
    l2 = 10.0
    models = begin(W, 2, 1.5)
    fs = [quadratic(np.eye(2), model) for model in (*models, *models)]
    algorithm = Clustered(clusters=2, spread=1.5, steps=1, lr=0.01, batch=None)
    run = play(algorithm, fs, w=W, rounds=1, l2=l2)
    for device, start_model in kept(run, "cluster").items():
        assert np.abs(start_model - models[device % 2]).max() <= EXACT
    with_l2 = {int(np.argmin([loss(f, w) + l2 / 2 * w @ w for w in models])) for f in fs}
    assert len(with_l2) == 1
