"""`Nested` on trees of four and five tiers with uneven groups, against one linear system for all
models of all nodes.

A node's objective is the mean over its children of their envelopes, so the tie between a node and
its parent weighs as the product of 1/children on the way down, and the joint minimum over all
models solves the nested problem.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from covey import Tree
from covey.algorithms import Level, Nested
from covey.errors import TreeError
from tests.algorithms.quadratics import (
    EXACT,
    Device,
    Vector,
    W,
    both,
    cut,
    deviation,
    mean,
    play,
    row,
    some,
)

FOUR = Tree(((2,), (1, 3), (2, 1, 3, 1)))
FIVE = Tree(((2,), (1, 2), (2, 1, 1), (1, 2, 3, 1)))


def solve(tree: Tree, levels: Sequence[Level], devices: Sequence[Device]) -> list[list[Vector]]:
    """The models of every tier at the joint minimum, from the server down."""
    d, offsets = len(devices[0].a), np.cumsum([0, *tree.sizes])
    A, b, eye = np.zeros((offsets[-1] * d, offsets[-1] * d)), np.zeros(offsets[-1] * d), np.eye(d)
    weights = [np.ones(1)]
    for t, counts in enumerate(tree.children):
        parent = np.repeat(np.arange(len(counts)), counts)
        weights.append(weights[t][parent] / np.array(counts)[parent])
        level = levels[t + 1]
        for node, (above, p) in enumerate(zip(parent, weights[-1], strict=True)):
            me = slice((offsets[t + 1] + node) * d, (offsets[t + 1] + node + 1) * d)
            up = slice((offsets[t] + above) * d, (offsets[t] + above + 1) * d)
            A[me, up] -= p * level.lam * eye
            A[up, me] -= p * level.lam * eye
            if level.coupling == "prox":
                A[me, me] += p * level.lam * eye
                A[up, up] += p * level.lam * eye
    for t, level in enumerate(levels):
        for node, p in enumerate(weights[t]):
            me = slice((offsets[t] + node) * d, (offsets[t] + node + 1) * d)
            A[me, me] += p * level.ridge * eye
            if t == len(levels) - 1:
                A[me, me] += p * devices[node].H
                b[me] += p * devices[node].H @ devices[node].a
    models = np.linalg.solve(A, b).reshape(-1, d)
    return [list(models[offsets[t] : offsets[t + 1]]) for t in range(tree.depth)]


def levels(
    tree: Tree, *, lam: float, low: float, high: float, rounds: Sequence[int]
) -> list[Level]:
    """The same tie everywhere; each level's step is the best for its curvatures, which lie in [low,
    high] on the devices.
    """
    out = []
    for tier, steps in zip(reversed(tree.tiers), reversed([1, *rounds]), strict=True):
        own = 0.0 if tier == "server" else lam
        name = "" if tier == "server" else f"my_{tier}"
        out.append(Level(tier, name=name, lam=own, steps=steps, lr=2 / (low + high + 2 * own)))
        low, high = (lam * c / (lam + c) for c in (low, high))
    return out[::-1]


@pytest.mark.parametrize(
    ("tree", "inner", "close"),
    [(FOUR, (6, 7, 15), 1e-10), (FIVE, (4, 5, 6, 15), 1e-8)],
    ids=["four", "five"],
)
def test_uneven_trees_reach_the_joint_minimum_on_every_tier(
    tree: Tree, inner: tuple[int, ...], close: float
) -> None:
    devices = some(7, 2, mu=2.0, L=3.0, spread=3.0)
    description = levels(tree, lam=0.5, low=2.0, high=3.0, rounds=inner)
    run = play(Nested(tuple(description)), devices, tree, w=np.array([4.0, -4.0]), rounds=6)
    expected = solve(tree, description, devices)
    kept = {f"my_{tier}": rows for tier, rows in zip(tree.tiers[1:], expected[1:], strict=True)}
    assert deviation(run, expected[0][0], **kept) <= close
    far = [np.linalg.norm(a - f.a) for a, f in zip(expected[-1], devices, strict=True)]
    assert max(far) > 0.3
    flat = solve(Tree.flat(7), [Level("server"), Level("device", lam=0.5)], devices)
    assert np.abs(flat[0][0] - row(run)).max() > 0.05  # the tree matters


def test_a_correlated_last_tier_and_ridges_reach_the_joint_minimum() -> None:
    devices = some(7, 2, mu=2.0, L=3.0, spread=3.0)
    description = [
        Level("server", ridge=0.2, lr=2.73),
        Level("edge1", name="upper", lam=0.5, steps=6, lr=1.335),
        Level("edge2", name="lower", lam=0.5, ridge=0.6, steps=9, lr=1.0),
        Level("device", name="bottom", lam=0.5, coupling="correlation", steps=17, lr=0.4),
    ]
    run = play(Nested(tuple(description)), devices, FOUR, w=np.array([4.0, -4.0]), rounds=10)
    top, upper, lower, bottom = solve(FOUR, description, devices)
    assert deviation(run, top[0], upper=upper, lower=lower, bottom=bottom) <= 1e-10


@both
def test_two_rounds_of_four_tiers_by_hand_with_a_warm_level_and_a_penalty(
    fs: list[Device], batch: int | None
) -> None:
    """No solver in sight: a step per level as the module says, `warm` going on within a round,
    gamma phi_rho on a device.
    """
    tree = Tree(((2,), (1, 1), (1, 3)))
    description = (
        Level("server", lr=0.7),
        Level("edge1", name="upper", lam=0.6, steps=2, lr=0.5),
        Level("edge2", name="lower", lam=0.8, steps=2, lr=0.4, warm=True),
        Level(
            "device",
            name="bottom",
            lam=0.9,
            steps=2,
            lr=0.1,
            gamma=0.3,
            rho=0.02,
            warm=True,
            batch=batch,
        ),
    )
    run, x = play(Nested(description), fs, tree, w=W), W
    for _ in range(2):
        uppers: list[Any] = []
        lowers: list[Any] = []
        bottom: dict[int, Vector] = {}
        for group in ([0], [1, 2, 3]):
            upper, lower = x, None
            for _ in range(2):
                lower = upper if lower is None else lower
                for _ in range(2):
                    anchor = lower
                    for j in group:
                        theta = bottom.get(j, anchor)
                        for _ in range(2):
                            g = (
                                fs[j].grad(theta)
                                + 0.9 * (theta - anchor)
                                + 0.3 * np.tanh(theta / 0.02)
                            )
                            theta = theta - 0.1 * g
                        bottom[j] = theta
                    answer = mean(
                        [np.where(np.abs(bottom[j]) <= 0.06, 0.0, bottom[j]) for j in group]
                    )  # cut at 3 rho
                    lower = lower - 0.4 * (0.9 * (lower - answer) + 0.8 * (lower - upper))
                upper = upper - 0.5 * (0.8 * (upper - lower) + 0.6 * (upper - x))
            uppers.append(upper)
            lowers.append(lower)
        x = x - 0.7 * 0.6 * (x - mean(uppers))
    assert deviation(run, x, upper=uppers, lower=lowers, bottom=bottom) <= EXACT


def test_a_tol_stops_the_last_level_early_without_moving_the_optimum() -> None:
    tree, devices = FOUR, some(7, 2, mu=2.0, L=3.0, spread=3.0)
    description = levels(tree, lam=0.5, low=2.0, high=3.0, rounds=(6, 7, 15))
    last = description[-1]
    early = Level(
        last.tier, name=last.name, lam=last.lam, steps=10_000, lr=last.lr, tol=1e-12, method="nesterov",
    )  # fmt: skip
    run = play(Nested((*description[:-1], early)), devices, tree, w=np.array([4.0, -4.0]), rounds=6)
    assert deviation(run, solve(tree, description, devices)[0][0]) <= 1e-10


def test_a_level_for_every_tier_is_needed() -> None:
    algorithm = Nested((Level("server"), Level("device", lam=1.0)))
    with pytest.raises(TreeError, match="server, device, but this tree has server, edge1, edge2"):
        play(algorithm, some(7, 2, mu=2.0, L=3.0), FOUR, w=cut(W, None))
