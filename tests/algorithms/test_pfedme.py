"""pFedMe (Dinh, Tran, Nguyen, 2020) against its Algorithm 1, Proposition 1, Lemma 1 and the closed
forms of quadratics.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey.algorithms import PFedMe
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
    some,
    spectrum,
    start,
)

RHO = 0.05


def device(
    f: Device,
    w: Vector,
    *,
    lam: float,
    lr: float,
    personal_lr: float,
    R: int,
    K: int,
    gamma: float,
    decay: float,
) -> tuple[Vector, Vector]:
    """Lines 5 to 8 of Algorithm 1: (theta, w_i,R). `decay` is the public code's, gamma FedMac's
    "modified pFedMe".
    """
    theta = w
    for _ in range(R):
        for _ in range(K):  # gradient steps on (7)
            g = f.grad(theta) + lam * (theta - w) + gamma * np.tanh(theta / RHO) + decay * theta
            theta = theta - personal_lr * g
        w = w - lr * lam * (w - theta)  # line 8, by (6)
    return theta, w


@pytest.mark.parametrize(
    ("beta", "weight", "sample", "decay", "gamma"),
    [
        (1.0, "uniform", None, 0.0, 0.0),
        (1.5, "samples", None, 0.0, 0.0),
        (0.5, "uniform", 3, 0.3, 0.0),
        (2.0, "samples", 2, 0.0, 0.4),
        (1.0, "uniform", None, 0.0, 0.4),
    ],
)
@both
def test_two_rounds_by_hand(
    fs: list[Device],
    batch: int | None,
    beta: float,
    weight: Any,
    sample: int | None,
    decay: float,
    gamma: float,
) -> None:
    steps: dict[str, Any] = {"lam": 2.0, "lr": 0.15, "personal_lr": 0.1}
    algorithm = PFedMe(**steps, sample=sample, local_rounds=3, steps=2, beta=beta, batch=batch, weight=weight,
                       weight_decay=decay, gamma=gamma, rho=RHO)  # fmt: skip
    at = max(3 * RHO, 2 * 0.1 * gamma / (2 - 0.1 * 2.0)) if gamma else None
    assert algorithm.cut("device") == algorithm.cut("server") == at
    run, w, theta, local = start(algorithm, fs, w=W), W, {}, {}
    for record in run:
        asked = record.cohorts["device"]
        for i in asked:
            theta[i], local[i] = device(
                fs[i], cut(w, at), **steps, R=3, K=2, gamma=gamma, decay=decay
            )
        weights = [len(fs[i].y) for i in asked] if weight == "samples" else None
        w = (1 - beta) * w + beta * mean([cut(local[i], at) for i in asked], weights)  # line 10
        assert deviation(run, w, personal=theta, local=local) <= EXACT
        assert len(asked) == (sample or 4)


def test_what_is_cut_on_the_way_matters() -> None:
    """So that the test above can tell: some entry of some row sent lies below the cut and is not
    zero.
    """
    algorithm = PFedMe(
        lam=2.0, lr=0.15, personal_lr=0.1, local_rounds=3, steps=2, batch=None, gamma=0.4, rho=RHO
    )
    sent = kept(play(algorithm, SMALL, w=W), "local").values()
    assert any(((np.abs(x) <= algorithm.cut("device")) & (x != 0)).any() for x in sent)


def test_the_cut_covers_the_cycle_of_a_step_too_large_for_rho() -> None:
    assert PFedMe(lam=2.0, personal_lr=0.1, gamma=0.4, rho=1e-3).cut("device") == pytest.approx(
        2 * 0.1 * 0.4 / (2 - 0.1 * 2.0)
    )


# Curvatures from 0.5 to 2 and lam = 2: with these steps an inner problem is solved to 1e-12
LAM = 2.0
EXACTLY: dict[str, Any] = {"lam": LAM, "steps": 20, "personal_lr": 1 / 3.25, "batch": None}


def devices() -> list[Device]:
    return some(4, 3, mu=0.5, L=2.0, spread=3.0)


def optimum(fs: Sequence[Device], R: int = 1, lr: float = 1.0) -> Vector:
    """Where R local steps of size lr on the envelopes lead; R = 1 is the minimum of their mean."""
    moved = [np.eye(3) - np.linalg.matrix_power(np.eye(3) - lr * f.envelope(LAM), R) for f in fs]
    return np.linalg.solve(sum(moved), sum(m @ f.a for m, f in zip(moved, fs, strict=True)))


def test_the_envelope_has_the_gradient_and_the_curvature_of_proposition_1() -> None:
    fs = devices()

    def gradients(w: Vector) -> Vector:
        run = play(PFedMe(**EXACTLY, local_rounds=1, lr=0.1), fs, w=w, rounds=1)
        return np.concatenate([(w - x) / 0.1 for x in kept(run, "local").values()])

    w = np.array([0.3, -1.0, 2.0])
    expected = np.concatenate([LAM * (w - f.prox(LAM, w)) for f in fs])  # (6)
    assert np.abs(gradients(w) - expected).max() <= 1e-11
    hessians = affine(gradients, 3)[0].reshape(4, 3, 3)
    for H, f in zip(hessians, fs, strict=True):
        assert np.abs(H - f.envelope(LAM)).max() <= 1e-10
        # from lam mu/(lam + mu) to lam L/(lam + L), which is below the lam of the proposition;
        # quadratics attain both ends
        assert np.abs(spectrum(H)[[0, -1]] - [LAM * 0.5 / 2.5, LAM * 2.0 / 4.0]).max() <= 1e-10


def test_one_local_round_reaches_the_optimum() -> None:
    fs = devices()
    best = optimum(fs)
    run = play(PFedMe(**EXACTLY, local_rounds=1, lr=0.7), fs, w=np.zeros(3), rounds=50)
    assert deviation(run, best, personal=[f.prox(LAM, best) for f in fs]) <= 1e-10


def test_more_local_rounds_drift_further() -> None:
    fs, bias = devices(), {}
    for R, rounds in ((1, 110), (5, 21), (20, 6)):
        run = play(PFedMe(**EXACTLY, local_rounds=R, lr=0.5), fs, w=np.zeros(3), rounds=rounds)
        assert deviation(run, optimum(fs, R, lr=0.5)) <= 1e-10
        bias[R] = np.linalg.norm(row(run) - optimum(fs))
    assert bias[1] <= 1e-10
    assert 0.1 < 1.2 * bias[5] < bias[20]


def noisy(n: int, h: float = 0.5) -> tuple[list[Device], float]:
    """n copies of one device whose examples share their curvature h, and gamma_f^2, the variance of
    one's gradient (A. 2).
    """
    y = np.random.default_rng(0).normal(size=12)
    return [Device(np.full((12, 1), np.sqrt(h)), y)] * n, h * y.var()


@pytest.mark.parametrize("size", [1, 4, 16])
def test_the_inner_error_is_half_the_bound_of_lemma_1_when_solved_exactly(size: int) -> None:
    """E |theta~ - theta^|^2 <= 2/(lam + mu)^2 (gamma_f^2/|D| + nu), strongly convex case, nu = 0;
    here it is exactly half.
    """
    fs, variance = noisy(2000)
    w = np.array([0.3])
    algorithm = PFedMe(lam=1.0, local_rounds=1, steps=12, personal_lr=0.6, lr=0.1, batch=size)
    run = play(algorithm, fs, w=w, rounds=1)
    errors = np.square(np.array(list(kept(run, "personal").values())) - fs[0].prox(1.0, w))[:, 0]
    half = variance / size / 1.5**2
    assert abs(errors.mean() - half) <= 4 * errors.std() / np.sqrt(2000)
    assert 0.9 * half < errors.mean() < 1.1 * half


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_inner_solution_of_accuracy_nu_stays_within_the_bound_of_lemma_1(steps: int) -> None:
    """The same with few steps; nu is the mean |grad h~|^2 reached, h~ of (7) on the batch
    (corrected: nu bounds the square).
    """
    fs, variance = noisy(2000)
    lam, h, w, q = 1.0, 0.5, np.array([8.0]), (1 - 0.3 * 1.5) ** steps
    algorithm = PFedMe(lam=lam, local_rounds=1, steps=steps, personal_lr=0.3, lr=0.1, batch=4)
    run = play(algorithm, fs, w=w, rounds=1)
    theta = np.array(list(kept(run, "personal").values()))
    solution = (theta - q * w) / (1 - q)  # theta = solution + q (w - solution) on this batch
    nu = np.square((h + lam) * (theta - solution)).mean()
    error = np.square(theta - fs[0].prox(lam, w)).mean()
    assert error <= 2 / (lam + h) ** 2 * (variance / 4 + nu)
    assert error > 2 / (lam + h) ** 2 * variance / 4  # the sampling noise alone would not bound it


def steps_to(tol: float, kappa: float, method: Any) -> int:
    """Gradients of (7) until its norm is at most tol, where it has condition number kappa, from
    step size 1/L.
    """
    curvature, calls = torch.tensor([[0.0, 0.3, 0.7, 1.0]], dtype=torch.float64) * (kappa - 1), []

    def gradient(x: torch.Tensor) -> torch.Tensor:
        calls.append(0)
        return curvature * (x - 1)

    start = torch.zeros(1, 4, dtype=torch.float64)
    x = covey.descend(
        start, gradient, prox=(1.0, start - 1), steps=100_000, lr=1 / kappa, method=method, tol=tol
    )
    assert float((curvature * (x - 1) + (x + 1)).norm()) <= 2 * tol
    return len(calls)


def test_nesterov_needs_about_the_root_of_the_steps_of_gradient_descent() -> None:
    """After (8): K = O(kappa log(d/nu)) for gradient descent, O(sqrt(kappa) log(d/nu)) for
    Nesterov.
    """
    for kappa in (100.0, 900.0):
        plain, fast = steps_to(1e-8, kappa, "gradient"), steps_to(1e-8, kappa, "nesterov")
        assert 0.4 * np.sqrt(kappa) < plain / fast < 2 * np.sqrt(kappa), (kappa, plain, fast)
