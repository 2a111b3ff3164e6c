"""HierFAVG (Liu et al., 2020): tau1 steps of the devices, tau2 means at the edges, then the mean of
the edges.
"""

from typing import Any

import numpy as np
import pytest

from covey import Tree
from covey.algorithms import HierFAVG
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    W,
    both,
    deviation,
    kept,
    mean,
    play,
    quadratic,
    some,
    start,
)
from tests.peek import Asks

TREE = Tree.grouped([1, 3])


@pytest.mark.parametrize("weight", ["uniform", "samples"])
@both
def test_two_rounds_by_hand_on_uneven_groups(
    fs: list[Device], batch: int | None, weight: Any
) -> None:
    run = play(HierFAVG(edge_rounds=3, steps=2, lr=0.1, batch=batch, weight=weight), fs, TREE, w=W)
    w = W
    for _ in range(2):
        edges, samples = [], []
        for group in ([0], [1, 2, 3]):
            edge, counts = w, [len(fs[i].y) for i in group]
            for _ in range(3):
                rows = [edge - 0.1 * fs[i].grad(edge) for i in group]
                rows = [x - 0.1 * fs[i].grad(x) for i, x in zip(group, rows, strict=True)]
                edge = mean(rows, counts if weight == "samples" else None)
            edges.append(edge)
            samples.append(sum(counts))
        w = mean(edges, samples if weight == "samples" else None)
    assert deviation(run, w, edge=edges) <= EXACT


def test_one_edge_and_one_of_its_devices_a_round_by_hand() -> None:
    tree, w = Tree.grouped([2, 2]), W
    algorithm = HierFAVG(
        sample=1, device_sample=1, edge_rounds=2, steps=1, lr=0.1, batch=None, weight="samples"
    )
    run, edges, both = start(algorithm, SMALL, tree, w=W, rounds=6), {}, set()
    asks = Asks(run)
    for record in run:
        (edge,) = record.cohorts["edge"]
        for (device,) in asks.of("device"):  # drawn anew each edge round
            w = w - 0.1 * SMALL[device].grad(w)
            assert device // 2 == edge
        edges[edge] = w
        both.add((edge, len(record.cohorts["device"])))
        assert deviation(run, w, edge=edges) <= EXACT
    assert {edge for edge, _ in both} == {0, 1}
    assert {devices for _, devices in both} == {1, 2}


def test_two_of_three_devices_weigh_by_their_samples_and_both_edges_by_all_they_have() -> None:
    devices = [*SMALL, SMALL[1], SMALL[0]]
    counts = [len(f.y) for f in devices]
    algorithm = HierFAVG(
        device_sample=2, edge_rounds=1, steps=1, lr=0.1, batch=None, weight="samples"
    )
    run, w = start(algorithm, devices, Tree.grouped([3, 3]), w=W), W
    for record in run:
        edges = []
        for group in ([0, 1, 2], [3, 4, 5]):
            asked = [i for i in record.cohorts["device"] if i in group]
            assert len(asked) == 2
            rows = [w - 0.1 * devices[i].grad(w) for i in asked]
            edges.append(mean(rows, [counts[i] for i in asked]))
        w = mean(edges, [sum(counts[:3]), sum(counts[3:])])
        assert deviation(run, w) <= EXACT


def test_one_step_of_each_reaches_the_minimum_of_the_mean_of_the_groups_means() -> None:
    devices = some(4, 2, mu=0.5, L=2.0, spread=3.0)
    weights = [1 / 2, 1 / 6, 1 / 6, 1 / 6]
    H = sum(p * f.H for p, f in zip(weights, devices, strict=True))
    optimum = np.linalg.solve(H, sum(p * f.H @ f.a for p, f in zip(weights, devices, strict=True)))
    algorithm = HierFAVG(edge_rounds=1, steps=1, lr=0.8, batch=None)
    run = play(algorithm, devices, TREE, w=np.zeros(2), rounds=60)
    assert deviation(run, optimum) <= 1e-10


def test_the_mean_of_a_sample_has_the_variance_of_the_papers_lemmas() -> None:
    """E |mean_S - mean_N|^2 = (N/S - 1)/(N - 1) * variance (pFedMe, Lemma 4; FedMac, Lemma 3), over
    covey's own cohorts.

    A thousand edges with the same six devices each draw two of them, in two rounds. One step of
    size 1 takes a device from anywhere to its minimiser, so an edge's model is the mean of two of
    six points.
    """
    n, s, edges = 6, 2, 1000
    points = np.random.default_rng(0).normal(size=(n, 2))
    devices = [quadratic(np.eye(2), a) for a in points] * edges
    algorithm = HierFAVG(device_sample=s, edge_rounds=1, steps=1, lr=1.0, batch=None)
    run = start(algorithm, devices, Tree.grouped([n] * edges), w=np.zeros(2))
    means = np.concatenate([list(kept(run, "edge").values()) for _ in run])
    errors = np.square(means - points.mean(0)).sum(1)
    expected = (n / s - 1) / (n - 1) * np.square(points - points.mean(0)).sum(1).mean()
    deviation = errors.std() / np.sqrt(2 * edges)
    assert abs(errors.mean() - expected) <= 4 * deviation
    # so that four of them tell S = 2 from S = 3, which has half the variance
    assert deviation < 0.03 * expected
    assert np.abs(means.mean(0) - points.mean(0)).max() <= 4 * means.std() / np.sqrt(2 * edges)
