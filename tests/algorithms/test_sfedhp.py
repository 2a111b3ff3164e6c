"""sFedHP (Liu et al., 2023) against its Algorithm 1 (the box), equations (8), (10), (11), Lemma 2
and closed forms.
"""

from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest

from covey import Tree
from covey.algorithms import SFedHP
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    Vector,
    W,
    affine,
    both,
    cut,
    deviation,
    kept,
    mean,
    play,
    row,
    soft,
    some,
    start,
)
from tests.peek import Asks

RHO, LAM1, LAM2, LR1, LR2 = 0.05, 1.5, 2.5, 0.3, 0.1
STEPS: dict[str, Any] = {
    "lam1": LAM1, "lam2": LAM2, "rho": RHO, "lr1": LR1, "lr2": LR2, "batch": None,
}  # fmt: skip
TIES: tuple[Literal["edge", "own"], ...] = ("edge", "own")
GROUPS, TREE = ([0], [1, 2, 3]), Tree.grouped([1, 3])


def thresholds(gamma1: float, gamma2: float) -> tuple[float | None, float | None]:
    """Of rows sent by devices, and by edges and server, whose w_i moves with lam1 lam2/(lam1 +
    lam2) by (10) and (11).
    """
    bar = LAM1 * LAM2 / (LAM1 + LAM2)
    return (
        max(3 * RHO, 2 * LR2 * gamma1 / (2 - LR2 * LAM1)) if gamma1 else None,
        max(3 * RHO, 2 * LR1 * gamma2 / (2 - LR1 * bar)) if gamma2 else None,
    )


def device(f: Device, theta: Vector, phi: Vector, *, gamma: float, K: int, prox: bool) -> Vector:
    for _ in range(K):  # gradient steps on (8)
        g = f.grad(theta) + LAM1 * (theta - phi)
        theta = (
            soft(theta - LR2 * g, LR2 * gamma)
            if prox
            else theta - LR2 * (g + gamma * np.tanh(theta / RHO))
        )
    return theta


def upper(w: Vector, phi: Vector, *, gamma: float, prox: bool) -> Vector:
    g = LAM2 * (w - phi)  # (11)
    return soft(w - LR1 * g, LR1 * gamma) if prox else w - LR1 * (g + gamma * np.tanh(w / RHO))


@pytest.mark.parametrize(
    ("gamma1", "gamma2", "l1", "beta"),
    [
        (0.0, 0.0, "smooth", 1.0),
        (0.0, 0.0, "smooth", 1.7),
        (0.4, 0.2, "smooth", 0.6),
        (0.4, 0.0, "smooth", 1.0),
        (0.0, 0.2, "prox", 1.0),
        (0.8, 0.2, "prox", 1.3),
    ],
)
@both
def test_two_rounds_by_hand_on_uneven_groups(
    fs: list[Device], batch: int | None, gamma1: float, gamma2: float, l1: Any, beta: float
) -> None:
    algorithm = SFedHP(
        **{**STEPS, "batch": batch}, gamma1=gamma1, gamma2=gamma2, edge_rounds=3, steps=2, beta=beta, l1=l1,
    )  # fmt: skip
    at1, at2 = thresholds(gamma1, gamma2)
    assert [algorithm.cut(tier) for tier in ("device", "edge", "server")] == [at1, at2, at2]
    run, w = play(algorithm, fs, TREE, w=W), W
    theta: dict[int, Vector] = {}
    for _ in range(2):
        phis, ws = [], []
        for group in GROUPS:
            phi = w_i = cut(w, at2)
            # theta starts from the broadcast model, and is warm within a round
            theta |= {j: cut(phi, at2) for j in group}
            for _ in range(3):
                sent = cut(phi, at2)
                theta |= {
                    j: device(fs[j], theta[j], sent, gamma=gamma1, K=2, prox=l1 == "prox")
                    for j in group
                }
                phi = mean(
                    [(LAM1 * cut(theta[j], at1) + LAM2 * w_i) / (LAM1 + LAM2) for j in group]
                )  # (10)
                w_i = upper(w_i, phi, gamma=gamma2, prox=l1 == "prox")
            phis.append(phi)
            ws.append(w_i)
        w = (1 - beta) * w + beta * mean([cut(x, at2) for x in ws])
    assert deviation(run, w, edge=phis, edge_global=ws, personal=theta) <= EXACT


@pytest.mark.parametrize(("gamma1", "gamma2"), [(0.0, 0.0), (0.4, 0.2)])
def test_two_rounds_of_the_own_phi_ij_of_8_by_hand(gamma1: float, gamma2: float) -> None:
    algorithm = SFedHP(**STEPS, gamma1=gamma1, gamma2=gamma2, edge_rounds=3, steps=2, tie="own")
    at1, at2 = thresholds(gamma1, gamma2)
    run, w = play(algorithm, SMALL, TREE, w=W), W
    theta: dict[int, Vector] = {}
    for _ in range(2):
        phis, ws = [], []
        for group in GROUPS:
            w_i = cut(w, at2)
            theta |= dict.fromkeys(group, cut(w_i, at2))
            phi_ij = dict.fromkeys(group, cut(w_i, at2))
            for _ in range(3):
                sent = cut(w_i, at2)
                for j in group:
                    theta[j] = device(SMALL[j], theta[j], phi_ij[j], gamma=gamma1, K=2, prox=False)
                    phi_ij[j] = (LAM1 * theta[j] + LAM2 * sent) / (LAM1 + LAM2)  # (10)
                arrived = mean([cut(theta[j], at1) for j in group])
                phi = (LAM1 * arrived + LAM2 * w_i) / (LAM1 + LAM2)
                w_i = upper(w_i, phi, gamma=gamma2, prox=False)
            phis.append(phi)
            ws.append(w_i)
        w = mean([cut(x, at2) for x in ws])
    assert deviation(run, w, edge=phis, edge_global=ws, personal=theta) <= EXACT


def test_the_cut_covers_the_cycle_of_a_step_too_large_for_rho() -> None:
    algorithm = SFedHP(lam1=1.5, lam2=2.5, lr1=0.3, lr2=0.1, gamma1=0.4, gamma2=0.2, rho=1e-3)
    assert algorithm.cut("device") == pytest.approx(2 * 0.1 * 0.4 / (2 - 0.1 * 1.5))
    assert algorithm.cut("edge") == pytest.approx(2 * 0.3 * 0.2 / (2 - 0.3 * 1.5 * 2.5 / 4.0))


def test_sampled_edges_and_devices_by_hand() -> None:
    """A device asked again within a round goes on from its theta; one asked first in a later edge
    round starts from phi.
    """
    devices = [*SMALL, SMALL[1], SMALL[0]]
    algorithm = SFedHP(**STEPS, sample=1, device_sample=2, edge_rounds=4, steps=2)
    run, w = start(algorithm, devices, Tree.grouped([3, 3]), w=W, rounds=3), W
    phis: dict[int, Vector] = {}
    ws: dict[int, Vector] = {}
    theta: dict[int, Vector] = {}
    asks = Asks(run)
    for record in run:
        (i,) = record.cohorts["edge"]
        warm: dict[int, Vector] = {}
        phi = w_i = w
        for asked in asks.of("device"):
            warm |= {
                j: device(devices[j], warm.get(j, phi), phi, gamma=0.0, K=2, prox=False)
                for j in asked
            }
            phi = (LAM1 * mean([warm[j] for j in asked]) + LAM2 * w_i) / (LAM1 + LAM2)
            w_i = upper(w_i, phi, gamma=0.0, prox=False)
        w = ws[i] = w_i
        phis[i] = phi
        theta |= warm
        assert deviation(run, w, edge=phis, edge_global=ws, personal=theta) <= EXACT


def test_gamma1_drops_below_the_floor_at_the_next_round_and_returns_and_gamma2_ends() -> None:
    """Floor 0.6 of two parameters; decided once a round, from the theta of the round before; gamma2
    ends after round 2.
    """
    gamma1, low, gamma2, rounds = 1.5, 0.1, 0.1, 6
    algorithm = SFedHP(
        **STEPS, gamma1=gamma1, gamma2=gamma2, edge_rounds=3, steps=4, floor=0.6, gamma_low=low,
        gamma2_until=2,
    )  # fmt: skip
    at1, at2 = thresholds(gamma1, gamma2)
    assert at1 is not None
    run, w, used = start(algorithm, SMALL, TREE, w=W, rounds=rounds), W, []
    theta = dict.fromkeys(range(4), W)  # in the first round the share of the broadcast model counts
    for t in range(rounds):
        next(run)
        gammas = {j: gamma1 if (np.abs(theta[j]) > at1).mean() >= 0.6 else low for j in theta}
        phis, ws = [], []
        for group in GROUPS:
            phi = w_i = cut(w, at2)
            theta |= dict.fromkeys(group, phi)
            for _ in range(3):
                sent = cut(phi, at2)
                theta |= {
                    j: device(SMALL[j], theta[j], sent, gamma=gammas[j], K=4, prox=False)
                    for j in group
                }
                phi = (LAM1 * mean([cut(theta[j], at1) for j in group]) + LAM2 * w_i) / (
                    LAM1 + LAM2
                )
                w_i = upper(w_i, phi, gamma=gamma2 if t < 2 else 0.0, prox=False)
            phis.append(phi)
            ws.append(w_i)
        w = mean([cut(x, at2) for x in ws])
        assert deviation(run, w, edge=phis, edge_global=ws, personal=theta) <= EXACT
        used.append(list(gammas.values()))
    paths = ["".join("g" if g == gamma1 else "l" for g in path) for path in zip(*used, strict=True)]
    assert any("glg" in path for path in paths), paths


# Curvatures from 0.5 to 2 and lam1 = 2: a device's problem is solved to 1e-13
EXACTLY: dict[str, Any] = {"lam1": 2.0, "lam2": 3.0, "steps": 24, "lr2": 1 / 3.25, "batch": None}
STILL = 1e-300  # a step of w_i that does not move it


def system(fs: list[Device], w: Vector) -> tuple[list[Vector], Vector]:
    """The joint minimum over theta_j and phi of mean_j (f_j + lam1/2 |theta_j - phi|^2) + lam2/2
    |phi - w|^2.
    """
    n, d, lam1, lam2 = len(fs), len(w), 2.0, 3.0
    A, b, eye = np.zeros(((n + 1) * d, (n + 1) * d)), np.zeros((n + 1) * d), np.eye(len(w))
    last = slice(n * d, (n + 1) * d)
    for j, f in enumerate(fs):
        at = slice(j * d, (j + 1) * d)
        A[at, at], A[at, last], A[last, at] = f.H + lam1 * eye, -lam1 * eye, -lam1 / n * eye
        b[at] = f.H @ f.a
    A[last, last], b[last] = (lam1 + lam2) * eye, lam2 * w
    solution = np.linalg.solve(A, b).reshape(n + 1, d)
    return list(solution[:n]), solution[n]


def test_alternation_reaches_the_linear_system_of_theta_and_phi_linearly() -> None:
    fs, w = some(3, 2, mu=0.5, L=2.0, spread=3.0), np.array([1.0, -2.0])
    theta, phi = system(fs, w)
    errors = []
    for R in (1, 2, 3, 4, 25):
        run = play(
            SFedHP(**EXACTLY, edge_rounds=R, lr1=STILL), fs, Tree.grouped([3]), w=w, rounds=1
        )
        errors.append(np.linalg.norm(kept(run, "edge")[0] - phi))
    # phi <- (lam1 mean prox(phi) + lam2 w)/(lam1 + lam2), and prox contracts by lam1/(lam1 + mu)
    assert all(after <= 2.0 / 5.0 * 2.0 / 2.5 * before for before, after in pairwise(errors[:4]))
    assert deviation(run, w, edge=[phi], personal=theta) <= 1e-10
    bar = 2.0 * 3.0 / 5.0
    personal = mean(list(kept(run, "personal").values()))
    assert np.abs(3.0 * (w - kept(run, "edge")[0]) - bar * (w - personal)).max() <= 1e-10


def test_with_one_device_per_edge_theta_is_pfedmes_with_lambda_bar() -> None:
    fs, w = some(3, 2, mu=0.5, L=2.0, spread=3.0), np.array([1.0, -2.0])
    run = play(
        SFedHP(**EXACTLY, edge_rounds=25, lr1=STILL), fs, Tree.grouped([1, 1, 1]), w=w, rounds=1
    )
    assert deviation(run, w, personal=[f.prox(2.0 * 3.0 / 5.0, w) for f in fs]) <= 1e-10


def test_with_its_own_phi_ij_theta_is_pfedmes_with_lambda_bar_on_every_tree() -> None:
    fs, w = some(3, 2, mu=0.5, L=2.0, spread=3.0), np.array([1.0, -2.0])
    algorithm = SFedHP(**EXACTLY, edge_rounds=25, lr1=STILL, tie="own")
    expected = [f.prox(2.0 * 3.0 / 5.0, w) for f in fs]
    for sizes in ([1, 1, 1], [1, 2], [3]):
        run = play(algorithm, fs, Tree.grouped(sizes), w=w, rounds=1)
        assert deviation(run, w, personal=expected) <= 1e-10


def test_both_ties_are_one_with_one_device_per_edge() -> None:
    tree = Tree.grouped([1, 1, 1, 1])
    shared, own = (
        play(SFedHP(**STEPS, edge_rounds=3, steps=2, tie=tie), SMALL, tree, w=W, rounds=3)
        for tie in TIES
    )
    personal = list(kept(own, "personal").values())
    assert deviation(shared, row(own), personal=personal) <= EXACT


@pytest.mark.parametrize("R", [1, 5])
def test_on_one_edge_it_reaches_the_optimum_for_any_number_of_edge_rounds(R: int) -> None:
    """There phi = w_i = w* is where everything rests: w* is the mean of the theta_j(w*)."""
    fs = some(3, 2, mu=0.5, L=2.0, spread=3.0)
    E = [f.envelope(2.0) for f in fs]
    optimum = np.linalg.solve(sum(E), sum(e @ f.a for e, f in zip(E, fs, strict=True)))
    algorithm = SFedHP(**EXACTLY, edge_rounds=R, lr1=0.7)
    run = play(algorithm, fs, Tree.grouped([3]), w=np.zeros(2), rounds=75 // R + 10)
    own = [f.prox(2.0, optimum) for f in fs]
    assert deviation(run, optimum, edge=[optimum], personal=own) <= 1e-10


def test_on_several_edges_it_nears_the_optimum_only_with_many_small_edge_rounds() -> None:
    """Each round begins with phi = w and not with the phi_i of (6), and each w_i drifts: both cost
    less in small steps.
    """
    fs, eye = some(4, 2, mu=0.5, L=2.0, spread=3.0), np.eye(2)
    H, b = [], []
    for group in GROUPS:
        F = mean([fs[j].envelope(2.0) for j in group])
        H.append(3.0 * F @ np.linalg.inv(F + 3.0 * eye))
        b.append(
            3.0
            * np.linalg.solve(F + 3.0 * eye, mean([fs[j].envelope(2.0) @ fs[j].a for j in group]))
        )
    optimum = np.linalg.solve(mean(H), mean(b))

    def bias(R: int) -> float:
        algorithm = SFedHP(**EXACTLY, edge_rounds=R, lr1=0.05 / R)
        A, c = affine(lambda w: row(play(algorithm, fs, TREE, w=w, rounds=1)), 2)
        return float(np.linalg.norm(np.linalg.solve(eye - A, c) - optimum))

    assert bias(1) > 3 * bias(5) > 9 * bias(25) > 0


@pytest.mark.parametrize(("size", "gamma1"), [(1, 0.0), (4, 0.0), (16, 0.0), (4, 0.3)])
def test_the_inner_error_is_within_the_bound_of_lemma_2(size: int, gamma1: float) -> None:
    """E |theta~ - theta^|^2 <= 2/(lam1 + mu)^2 (gamma_l^2/|D| + nu), case (a), nu = 0; without
    gamma1 exactly half of it.
    """
    h, lam1, y, phi = 0.5, 1.0, np.random.default_rng(0).normal(size=12), np.array([0.5])
    f = Device(np.full((12, 1), np.sqrt(h)), y)
    algorithm = SFedHP(
        lam1=lam1, lam2=1.0, gamma1=gamma1, rho=0.5, edge_rounds=1, steps=25, lr2=0.5, lr1=0.1, batch=size,
    )  # fmt: skip
    run = play(algorithm, [f] * 2000, Tree.grouped([2000]), w=phi, rounds=1)
    theta = np.array(list(kept(run, "personal").values()))
    exact = phi
    for _ in range(200):
        exact = exact - 0.5 * (f.grad(exact) + lam1 * (exact - phi) + gamma1 * np.tanh(exact / 0.5))
    errors = np.square(theta - exact)[:, 0]
    bound = 2 / (lam1 + h) ** 2 * h * y.var() / size
    if gamma1 == 0:
        assert abs(errors.mean() - bound / 2) <= 4 * errors.std() / np.sqrt(2000)
    assert 0.1 * bound < errors.mean() <= 0.55 * bound


def test_the_upper_cut_ends_with_its_penalty_only_if_told_to() -> None:
    kept, off = (
        SFedHP(gamma1=0.01, gamma2=0.01, gamma2_until=3, cut_after=after)
        for after in ("keep", "off")
    )
    assert [kept.cut("edge", 2), kept.cut("edge", 3)] == [off.cut("edge", 2)] * 2
    assert off.cut("edge", 3) is None
    assert off.cut("device", 3) == kept.cut("device") is not None
