"""AL2GD by hand, flip by flip on both tiers, and the optimum around which it stays, from its
objective.
"""

from typing import Any

import numpy as np
import torch

from covey import Tree, draws
from covey.algorithms import AL2GD, L2GD
from tests.algorithms.quadratics import (
    EXACT,
    Device,
    Vector,
    both,
    deviation,
    kept,
    mean,
    over_time,
    some,
    start,
)

LAM, GAMMA, P, LR = 0.7, 0.9, 0.25, 0.1
EDGE_P = [0.5, 0.3]
GROUPS, TREE = ([0], [1, 2, 3]), Tree.grouped([1, 3])


def failures(round: int, tier: str, node: int, k: int, p: float) -> int:
    u = float(draws.uniform(draws.key(0, round, 0, tier, "coin", k), torch.tensor([node]), 1))
    return int(np.floor(np.log1p(-u) / np.log1p(-p)))


def edge_flips(round: int, edge: int, count: int) -> list[bool]:
    """The coins of an edge in a round with so many flips: True averages."""
    out: list[bool] = []
    k = 0
    while len(out) < count:
        out += [False] * failures(round, "edge", edge, k, EDGE_P[edge]) + [True]
        k += 1
    return out[:count]


@both
def test_rounds_by_hand(fs: list[Device], batch: int | None) -> None:
    algorithm = AL2GD(lam=LAM, gamma=GAMMA, p=P, edge_p=EDGE_P, lr=LR, batch=batch)
    run = start(algorithm, fs, TREE, w=np.zeros(2), rounds=6)
    xs, kinds = [run.runtime.start[0].numpy()] * len(fs), set()
    for round, _ in enumerate(run):
        for edge, group in enumerate(GROUPS):
            p = EDGE_P[edge]
            for averages in edge_flips(round, edge, failures(round, "server", 0, 0, P)):
                kinds.add((edge, averages))
                middle = mean([xs[i] for i in group])
                for i in group:
                    step = LAM / p * (xs[i] - middle) if averages else fs[i].grad(xs[i]) / (1 - p)
                    xs[i] = xs[i] - LR / (1 - P) * step
        edges, middle = [mean([xs[i] for i in group]) for group in GROUPS], mean(xs)
        for edge, group in enumerate(GROUPS):
            for i in group:
                xs[i] = xs[i] - LR * GAMMA / P * (edges[edge] - middle)
        after = [mean([xs[i] for i in group]) for group in GROUPS]
        assert deviation(run, mean(xs), personal=xs, edge=after) <= EXACT
    assert len(kinds) == 4


def optimum(fs: list[Device], groups: tuple[list[int], ...], lam: float, gamma: float) -> Vector:
    """All x_i with grad f_i(x_i) + lam (x_i - m_j) + gamma (m_j - m) = 0, as one linear system."""
    n, d = len(fs), len(fs[0].a)
    of_edge, of_all = np.zeros((n, n)), np.full((n, n), 1 / n)
    for group in groups:
        of_edge[np.ix_(group, group)] = 1 / len(group)
    tie = lam * (np.eye(n) - of_edge) + gamma * (of_edge - of_all)
    system = np.kron(tie, np.eye(d))
    for i, f in enumerate(fs):
        system[i * d : i * d + d, i * d : i * d + d] += f.H
    found: Vector = np.linalg.solve(system, np.concatenate([f.H @ f.a for f in fs])).reshape(n, d)
    return found


def objective(
    fs: list[Device], groups: tuple[list[int], ...], xs: Vector, lam: float, gamma: float
) -> float:
    total = sum((x - f.a) @ f.H @ (x - f.a) / 2 for x, f in zip(xs, fs, strict=True))
    for group in groups:
        middle = xs[group].mean(0)
        total += sum(
            lam / 2 * np.square(xs[i] - middle).sum()
            + gamma / 2 * np.square(middle - xs.mean(0)).sum()
            for i in group
        )
    return float(total)


def test_the_stationary_equation_is_the_minimum_of_the_objective() -> None:
    fs = some(4, 2, mu=0.5, L=2.0, spread=1.0)
    best, rng = optimum(fs, GROUPS, LAM, GAMMA), np.random.default_rng(0)
    least = objective(fs, GROUPS, best, LAM, GAMMA)
    for _ in range(50):
        away = 1e-3 * rng.normal(size=best.shape)
        assert objective(fs, GROUPS, best + away, LAM, GAMMA) > least
        slope = objective(fs, GROUPS, best + away, LAM, GAMMA) - objective(
            fs, GROUPS, best - away, LAM, GAMMA
        )
        assert abs(slope) < 1e-12


def test_its_mean_over_time_is_the_optimum() -> None:
    """On quadratics a flip is linear and on average a gradient step; the last of a round moves
    edges to the mean of all.
    """
    fs, groups = some(4, 2, mu=0.8, L=1.6, spread=1.0), ([0, 1], [2, 3])
    best, lr = optimum(fs, groups, LAM, GAMMA), 0.03
    algorithm = AL2GD(lam=LAM, gamma=GAMMA, p=0.4, edge_p=0.4, lr=lr, batch=None)
    rows = over_time(algorithm, fs, Tree.grouped([2, 2]), after=100, rounds=60)
    edges = np.stack([best[group].mean(0) for group in groups])[[0, 0, 1, 1]]
    expected = best - lr * GAMMA / 0.4 * (edges - best.mean(0))
    far = np.sqrt(np.square(rows - expected).sum((1, 2)).mean())
    assert np.abs(rows.mean(0) - expected).max() < 0.1 * far
    for lam, gamma in ((LAM, 0.0), (0.0, GAMMA), (GAMMA, LAM)):  # else the test could not tell
        assert np.abs(optimum(fs, groups, lam, gamma) - best).max() > 0.2 * far


def test_edges_of_one_device_leave_l2gd_with_gamma() -> None:
    """There m_j is x_i: the edges' averaging does nothing, and p_j small leaves nearly only local
    flips.
    """
    fs = some(3, 2, mu=0.5, L=2.0, spread=1.0)
    tiny: dict[str, Any] = {"edge_p": 1e-4, "lr": LR * (1 - 1e-4), "p": P, "batch": None}
    algorithm = AL2GD(lam=LAM, gamma=GAMMA / (1 - 1e-4), **tiny)
    one = start(algorithm, fs, Tree.grouped([1, 1, 1]), w=np.zeros(2), rounds=5)
    other = start(L2GD(lam=GAMMA, p=P, lr=LR, batch=None), fs, w=np.zeros(2), rounds=5)
    list(one), list(other)
    assert deviation(one, other.w[0].numpy(), personal=kept(other, "personal")) <= EXACT
