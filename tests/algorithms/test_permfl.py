"""PerMFL (Banerjee et al., 2024) against its Algorithm 1, Theorems 1 and 5 (corrected) and closed
forms of quadratics.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from covey import Tree
from covey.algorithms import HierFAVG, PerMFL
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    Vector,
    W,
    affine,
    both,
    deviation,
    kept,
    mean,
    play,
    quadratic,
    row,
    some,
    spectrum,
    start,
)
from tests.peek import Asks

LAM, GAMMA, BETA = 0.8, 1.2, 0.5
GROUPS, TREE = ([0], [1, 2, 3]), Tree.grouped([1, 3])


def device(f: Device, w: Vector, *, alpha: float, L: int, lam: float = LAM) -> Vector:
    theta = w
    for _ in range(L):
        theta = theta - alpha * f.grad(theta) - alpha * lam * (theta - w)  # (4)
    return theta


def team(
    w: Vector,
    x: Vector,
    thetas: Sequence[Vector],
    *,
    eta: float,
    lam: float = LAM,
    gamma: float = GAMMA,
) -> Vector:
    return (1 - eta * (lam + gamma)) * w + eta * gamma * x + eta * lam * mean(thetas)  # (9)


def server(x: Vector, ws: Sequence[Vector], *, beta: float = BETA, gamma: float = GAMMA) -> Vector:
    return (1 - beta * gamma) * x + beta * gamma * mean(ws)  # (13)


@pytest.mark.parametrize(
    ("alpha", "L", "eta", "K"),
    [(0.1, 3, 0.2, 2), ([0.1, 0.05, 0.2, 0.15], [1, 4, 2, 3], [0.3, 0.1], [3, 1])],
    ids=["same", "lists"],
)
@both
def test_two_rounds_by_hand_on_uneven_teams(
    fs: list[Device], batch: int | None, alpha: Any, L: Any, eta: Any, K: Any
) -> None:
    algorithm = PerMFL(
        lam=LAM, gamma=GAMMA, beta=BETA, lr=alpha, steps=L, edge_lr=eta, edge_rounds=K, batch=batch
    )
    run, x = play(algorithm, fs, TREE, w=W), W
    theta: dict[int, Vector] = {}
    alphas, Ls = (value if isinstance(value, list) else [value] * 4 for value in (alpha, L))
    etas, Ks = (value if isinstance(value, list) else [value] * 2 for value in (eta, K))
    for _ in range(2):
        ws = []
        for i, group in enumerate(GROUPS):
            w = x
            for _ in range(Ks[i]):
                theta |= {j: device(fs[j], w, alpha=alphas[j], L=Ls[j]) for j in group}
                w = team(w, x, [theta[j] for j in group], eta=etas[i])
            ws.append(w)
        x = server(x, ws)
    assert deviation(run, x, edge=ws, personal=theta) <= EXACT


def test_sampled_teams_and_devices_by_hand() -> None:
    """One of two teams a round, two of its three devices in each team iteration; the means are over
    those asked.
    """
    devices = [*SMALL, SMALL[1], SMALL[0]]
    algorithm = PerMFL(lam=LAM, gamma=GAMMA, beta=BETA, lr=0.1, steps=2, edge_lr=0.2, edge_rounds=3, batch=None,
                       sample=1, device_sample=2)  # fmt: skip
    run, x = start(algorithm, devices, Tree.grouped([3, 3]), w=W, rounds=4), W
    edges: dict[int, Vector] = {}
    theta: dict[int, Vector] = {}
    teams: set[int] = set()
    asks = Asks(run)
    for record in run:
        (i,), w = record.cohorts["edge"], x
        asked_devices = asks.of("device")
        for asked in asked_devices:
            theta |= {j: device(devices[j], w, alpha=0.1, L=2) for j in asked}
            w = team(w, x, [theta[j] for j in asked], eta=0.2)
        edges[i] = w
        x = server(x, [w])
        teams.add(i)
        assert [len(asked) for asked in asked_devices] == [2, 2, 2]
        assert deviation(run, x, edge=edges, personal=theta) <= EXACT
    assert teams == {0, 1}


def test_stale_teams_stay_in_the_mean_with_what_they_sent_last() -> None:
    """`stale="include"`, as the authors' code: the server averages every team's last model, w_i =
    x^0 before its first.
    """
    algorithm = PerMFL(lam=LAM, gamma=GAMMA, beta=BETA, lr=0.1, steps=2, edge_lr=0.2, edge_rounds=2, batch=None,
                       sample=1, stale="include")  # fmt: skip
    run, x, ws, teams = start(algorithm, SMALL, TREE, w=W, rounds=5), W, [W, W], []
    for record in run:
        (i,), w = record.cohorts["edge"], x
        for _ in range(2):
            w = team(w, x, [device(SMALL[j], w, alpha=0.1, L=2) for j in GROUPS[i]], eta=0.2)
        ws[i] = w
        x = server(x, ws)
        teams.append(i)
        assert deviation(run, x) <= EXACT
    assert set(teams) == {0, 1}


# Curvatures from 0.5 to 2. Inner problems are solved to 1e-12: contraction 0.75/2.75 a device step,
# 0.2 a team step
MU, LF = 0.5, 2.0
EXACTLY: dict[str, Any] = {
    "lam": 1.5, "gamma": 2.0, "lr": 1 / 2.75, "steps": 22, "edge_lr": 1 / 2.6, "edge_rounds": 14,
    "batch": None,
}  # fmt: skip
MU_F = 1 / (1 / MU + 1 / 1.5 + 1 / 2.0)


def envelope(
    fs: Sequence[Device], groups: Sequence[Sequence[int]], lam: float, gamma: float
) -> tuple[Vector, Vector]:
    """Hessian and minimiser of phi of (10), the mean of the teams' envelopes of the mean of the
    devices'.
    """
    H, b, eye = [], [], np.eye(len(fs[0].a))
    for group in groups:
        F = mean([fs[j].envelope(lam) for j in group])
        g = mean([fs[j].envelope(lam) @ fs[j].a for j in group])
        H.append(gamma * F @ np.linalg.inv(F + gamma * eye))
        b.append(gamma * np.linalg.solve(F + gamma * eye, g))
    return mean(H), np.linalg.solve(mean(H), mean(b))


def test_phi_has_the_hessian_of_the_nested_envelopes_between_mu_F_and_gamma() -> None:
    fs = some(4, 2, mu=MU, L=LF, spread=3.0)

    def gradient(x: Vector) -> Vector:
        return (x - row(play(PerMFL(beta=0.1, **EXACTLY), fs, TREE, w=x, rounds=1))) / 0.1

    H, b = affine(gradient, 2)
    expected, optimum = envelope(fs, GROUPS, 1.5, 2.0)
    assert np.abs(H - expected).max() <= 1e-9
    assert np.abs(np.linalg.solve(H, -b) - optimum).max() <= 1e-8
    assert MU_F <= spectrum(H)[0] < spectrum(H)[-1] <= 2.0


def test_exact_inner_solves_reach_the_optimum_where_hierarchical_sgd_keeps_a_bias() -> None:
    """Remark 2: under strong heterogeneity the first has no residual; h-SGD's minimum is that of
    (1).
    """
    fs = some(4, 2, mu=MU, L=LF, spread=10.0)
    _, optimum = envelope(fs, GROUPS, 1.5, 2.0)
    run = play(PerMFL(beta=2.6, **EXACTLY), fs, TREE, w=np.zeros(2), rounds=18)
    assert deviation(run, optimum) <= 1e-9
    weights = np.array([1 / 2, 1 / 6, 1 / 6, 1 / 6])
    H = np.einsum("i,ijk->jk", weights, np.array([f.H for f in fs]))
    best = np.linalg.solve(H, np.einsum("i,ij->j", weights, np.array([f.H @ f.a for f in fs])))
    hsgd = play(HierFAVG(edge_rounds=10, steps=5, lr=0.3, batch=None), fs, TREE, w=best, rounds=5)
    assert np.linalg.norm(row(hsgd) - best) > 0.5


def one_dimension(mu: float) -> tuple[list[Device], dict[str, Any], float]:
    """Two teams of two devices with curvature mu, on the edge of gamma > 2 lam > 4 L_f; one step
    solves each inner problem.
    """
    lam, gamma = 2.05 * mu, 4.2 * mu
    fs = [quadratic(np.array([[mu]]), np.array([a])) for a in (1.0, 3.0, -2.0, 5.0)]
    inner = lam * mu / (lam + mu)
    steps = {
        "lam": lam, "gamma": gamma, "lr": 1 / (mu + lam), "steps": 1, "edge_lr": 1 / (inner + gamma),
        "edge_rounds": 1,
    }  # fmt: skip
    return fs, {**steps, "batch": None}, 1 / (1 / mu + 1 / lam + 1 / gamma)


def test_theorem_1_holds_as_corrected_and_not_as_printed() -> None:
    """|x^T - x*|^2 <= 2 (1 - beta mu_F/2)^T |x^0 - x*|^2, (62); the theorem prints (1 - beta)^T for
    beta <= mu_F/(4 gamma).
    """
    fs, steps, mu_F = one_dimension(0.2)
    beta, x, T = mu_F / (4 * steps["gamma"]), np.array([20.0]), 40
    optimum = np.mean([f.a for f in fs])
    run = play(PerMFL(beta=beta, **steps), fs, Tree.grouped([2, 2]), w=x, rounds=T)
    ratio = float((row(run)[0] - optimum) ** 2 / (x[0] - optimum) ** 2)
    assert abs(ratio - (1 - beta * mu_F) ** (2 * T)) <= 1e-10
    assert 2 * (1 - beta) ** T < ratio <= 2 * (1 - beta * mu_F / 2) ** T


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_the_rate_of_theorem_1_holds_up_to_beta_of_one_half_over_gamma(share: float) -> None:
    fs = some(4, 2, mu=MU, L=LF, spread=3.0)
    beta, x = share / (2 * 2.0), np.array([9.0, -9.0])
    _, optimum = envelope(fs, GROUPS, 1.5, 2.0)
    run = start(PerMFL(beta=beta, **EXACTLY), fs, TREE, w=x, rounds=8)
    before = np.linalg.norm(x - optimum) ** 2
    for T, _ in enumerate(run, 1):
        error = np.linalg.norm(row(run) - optimum) ** 2
        assert 0 < error <= 2 * (1 - beta * MU_F / 2) ** T * before


def test_a_device_contracts_by_one_minus_alpha_times_mu_plus_lambda() -> None:
    """Theorem 5 as proved: |theta^L - prox|^2 <= (1 - alpha (mu + lam))^L |theta^0 - prox|^2; it
    prints (1 - alpha mu)^L.
    """
    fs, w = some(4, 3, mu=MU, L=LF, spread=3.0), np.array([1.0, 2.0, -1.0])
    alpha, lam = 1 / (LF + 1.5), 1.5
    for L in (1, 3, 6):
        algorithm = PerMFL(
            lam=lam, gamma=2.0, beta=0.1, lr=alpha, steps=L, edge_rounds=1, batch=None
        )
        theta = kept(play(algorithm, fs, Tree.grouped([2, 2]), w=w, rounds=1), "personal")
        for j, f in enumerate(fs):
            ratio = (
                np.linalg.norm(theta[j] - f.prox(lam, w)) ** 2
                / np.linalg.norm(w - f.prox(lam, w)) ** 2
            )
            assert 0 < ratio <= (1 - alpha * (MU + lam)) ** L
