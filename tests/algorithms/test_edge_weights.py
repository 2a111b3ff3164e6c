"""With weight="samples" an edge weighs by the examples of all devices under it, asked or not."""

from typing import Any

import numpy as np
import pytest
import torch

from covey import Run, Tree
from covey.algorithms import FedAlt, FedSim, HierFAVG, Pruned
from tests.algorithms.quadratics import EXACT, Device, kept, row, start

SIZES = [1, 2, 9, 4, 3, 1]  # the two edges of three have 12 and 8 examples
POINTS = [1.0, 2.0, 3.0, -10.0, -20.0, -30.0]
# All examples of a device say x = point: one step of size 1 takes it there from anywhere.
DEVICES = [Device(np.ones((n, 1)), np.full(n, a)) for n, a in zip(SIZES, POINTS, strict=True)]
STEP: dict[str, Any] = {"steps": 1, "lr": 1.0, "batch": None, "device_sample": 1}
METHODS = {
    "HierFAVG": HierFAVG(edge_rounds=2, weight="samples", **STEP),
    "FedAlt": FedAlt(edge_rounds=2, weight="samples", personal_steps=1, **STEP),
    "FedSim": FedSim(edge_rounds=2, weight="samples", **STEP),
    "Pruned": Pruned(ratio=0.0, edge_rounds=2, weight="samples", probe_steps=1, **STEP),
}


def models(run: Run, tier: str) -> list[float]:
    """The one weight of every edge that has a model, which is a point but for rounding."""
    return [round(float(edge[0]), 12) for edge in kept(run, tier).values()]


@pytest.mark.parametrize("name", METHODS)
def test_an_edge_that_asks_one_device_weighs_by_all_it_has(name: str) -> None:
    """An edge's model is the point of the device asked last; w is (12 edge_0 + 8 edge_1) / 20."""
    run = start(METHODS[name], DEVICES, Tree.grouped([3, 3]), w=np.zeros(1), rounds=8)
    cohorts = set()
    for _ in run:
        first, second = models(run, "edge")
        assert first in POINTS[:3]
        assert second in POINTS[3:]
        assert abs(row(run)[0] - (12 * first + 8 * second) / 20) <= EXACT
        cohorts.add((first, second))
    assert len(cohorts) > 3  # else the cohorts might have the shares 12 and 8 themselves


@pytest.mark.parametrize("name", ["FedAlt", "FedSim", "Pruned"])
def test_edges_above_edges_weigh_by_all_devices_below_them_too(name: str) -> None:
    """The upper edges have 3 and 17 examples, those below the second have 9, 7 and 1."""
    tree = Tree(((2,), (1, 3), (2, 1, 2, 1)))
    run = start(METHODS[name], DEVICES, tree, w=np.zeros(1), rounds=6)
    for _ in run:
        upper, lower = models(run, "edge1"), models(run, "edge2")
        assert upper[0] == lower[0]
        assert upper[1] in lower[1:]  # it asks one of its three
        assert abs(row(run)[0] - (3 * upper[0] + 17 * upper[1]) / 20) <= EXACT


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_examples_under_every_node_are_those_of_its_devices(seeds: int) -> None:
    tree = Tree(((2,), (1, 3), (2, 1, 2, 1))).times(seeds)
    counts = np.array(SIZES * seeds)
    for tier in tree.tiers[:-1]:
        first, stop = tree.span(tier, torch.arange(tree.size(tier)))
        by_node = [counts[a:b].sum() for a, b in zip(first, stop, strict=True)]
        expected = {"server": [20], "edge1": [3, 17], "edge2": [3, 9, 7, 1]}[tier]
        assert by_node == expected * seeds
