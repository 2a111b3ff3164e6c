"""FedMac (Li, Liu, Zhang et al., 2021) against its Algorithm 1, Proposition 1, Lemmas 1 and 10 and
closed forms.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covey.algorithms import FedMac
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
    soft,
    some,
    spectrum,
    start,
)

RHO, LAM, LR, PERSONAL_LR = 0.05, 0.6, 0.5, 0.1


def device(
    f: Device, w: Vector, *, gamma: float, gamma_w: float, R: int, K: int, prox: bool
) -> tuple[Vector, Vector]:
    """ClientUpdate of Algorithm 1: (theta, w_i,R); theta is carried from one r to the next."""
    theta = w
    for _ in range(R):
        for _ in range(K):  # gradient steps on (9)
            g = f.grad(theta) - LAM * w
            if prox:
                theta = soft(theta - PERSONAL_LR * g, PERSONAL_LR * gamma)
            else:
                theta = theta - PERSONAL_LR * (g + gamma * np.tanh(theta / RHO))
        g = LAM * (w - theta)  # (6)
        w = soft(w - LR * g, LR * gamma_w) if prox else w - LR * (g + gamma_w * np.tanh(w / RHO))
    return theta, w


def threshold(gamma: float, gamma_w: float) -> float | None:
    if gamma_w:
        return max(3 * RHO, 2 * LR * gamma_w / (2 - LR * LAM))
    return max(3 * RHO, PERSONAL_LR * gamma) if gamma else None


@pytest.mark.parametrize(
    ("gamma", "gamma_w", "l1", "beta", "weight", "sample", "steps"),
    [
        (0.0, 0.0, "smooth", 1.0, "uniform", None, 1),
        (0.0, 0.0, "smooth", 1.6, "samples", 3, 2),
        (0.3, 0.0, "smooth", 1.0, "uniform", None, 1),
        (0.3, 0.2, "smooth", 0.5, "samples", 2, 3),
        (0.0, 0.2, "prox", 1.0, "uniform", None, 1),
        (0.9, 0.3, "prox", 1.5, "uniform", 3, 2),
    ],
)
@both
def test_two_rounds_by_hand(
    fs: list[Device],
    batch: int | None,
    gamma: float,
    gamma_w: float,
    l1: Any,
    beta: float,
    weight: Any,
    sample: int | None,
    steps: int,
) -> None:
    algorithm = FedMac(lam=LAM, gamma=gamma, gamma_w=gamma_w, rho=RHO, sample=sample, local_rounds=3, steps=steps, lr=LR,
                       personal_lr=PERSONAL_LR, beta=beta, batch=batch, weight=weight, l1=l1)  # fmt: skip
    at = threshold(gamma, gamma_w)
    assert algorithm.cut("device") == algorithm.cut("server") == at
    run, w, theta, local = start(algorithm, fs, w=W), W, {}, {}
    for record in run:
        asked = record.cohorts["device"]
        for i in asked:
            theta[i], local[i] = device(
                fs[i], cut(w, at), gamma=gamma, gamma_w=gamma_w, R=3, K=steps, prox=l1 == "prox"
            )
        weights = [len(fs[i].y) for i in asked] if weight == "samples" else None
        w = (1 - beta) * w + beta * mean([cut(local[i], at) for i in asked], weights)
        assert deviation(run, w, personal=theta, local=local) <= EXACT


def test_the_cut_covers_the_cycle_of_a_step_too_large_for_rho() -> None:
    both_sparse = FedMac(lam=0.6, lr=0.5, personal_lr=0.1, gamma=0.4, gamma_w=0.2, rho=1e-3)
    assert both_sparse.cut("device") == pytest.approx(2 * 0.5 * 0.2 / (2 - 0.5 * 0.6))
    # correlation adds no curvature
    assert replace(both_sparse, gamma_w=0.0).cut("device") == pytest.approx(0.1 * 0.4)


def test_soft_thresholds_leave_exact_zeros_in_personal_models() -> None:
    own: dict[str, Any] = {"lr": LR, "personal_lr": PERSONAL_LR}
    algorithm = FedMac(lam=LAM, gamma=0.9, local_rounds=5, batch=None, l1="prox", **own)
    run = play(algorithm, SMALL, w=W)
    theta = np.array(list(kept(run, "personal").values()))
    assert (theta == 0).any()
    assert (theta != 0).any()


def test_gamma_drops_below_the_floor_at_the_next_round_and_returns_and_gamma_w_ends() -> None:
    """Floor 0.6 of two parameters: a device with one zero trains with gamma_low in the next round,
    until both are back.
    """
    gamma, low, gamma_w, rounds = 1.2, 0.1, 0.1, 5
    algorithm = FedMac(lam=LAM, gamma=gamma, gamma_w=gamma_w, rho=RHO, local_rounds=4, steps=2, lr=LR, personal_lr=PERSONAL_LR,
                       batch=None, floor=0.6, gamma_low=low, gamma_w_until=2)  # fmt: skip
    at, own = (
        threshold(gamma, gamma_w),
        max(3 * RHO, PERSONAL_LR * gamma),
    )  # of the row sent; of theta, whose share counts
    run, w, used = start(algorithm, SMALL, w=W, rounds=rounds), W, []
    theta = [W] * 4  # in the first round the share of the broadcast model counts
    for t in range(rounds):
        next(run)
        gammas = [gamma if (np.abs(x) > own).mean() >= 0.6 else low for x in theta]
        pairs = [
            device(f, cut(w, at), gamma=g, gamma_w=gamma_w if t < 2 else 0.0, R=4, K=2, prox=False)
            for f, g in zip(SMALL, gammas, strict=True)
        ]
        theta, local = [x for x, _ in pairs], [x for _, x in pairs]
        w = mean([cut(x, at) for x in local])
        assert deviation(run, w, personal=theta, local=local) <= EXACT
        used.append(gammas)
    paths = ["".join("g" if g == gamma else "l" for g in path) for path in zip(*used, strict=True)]
    assert any("glg" in path for path in paths), paths


def test_with_a_tiny_lambda_w_is_an_exponential_mean_of_the_local_path() -> None:
    """lambda -> 0 with eta lambda = 0.3 (the paper's 3000 * 1e-4): theta is local descent, w_i its
    running mean.
    """
    algorithm = FedMac(lam=1e-14, lr=0.3e14, local_rounds=5, personal_lr=0.1, batch=None)
    run = play(algorithm, SMALL, w=W, rounds=1)
    theta, local = [], []
    for f in SMALL:
        x = w = W
        for _ in range(5):
            x = x - 0.1 * f.grad(x)
            w = 0.7 * w + 0.3 * x
        theta.append(x)
        local.append(w)
    assert deviation(run, mean(local), personal=theta, local=local) <= EXACT


# Curvatures from 1.5 to 3: with these steps an inner problem is solved to 1e-13
MU = 1.5
EXACTLY: dict[str, Any] = {"local_rounds": 1, "steps": 28, "personal_lr": 2 / 4.5, "batch": None}


def devices(spread: float = 0.3) -> list[Device]:
    """Minimisers around (3, 3): no coordinate of a model is near 0, where the penalties would bend."""
    fs = some(4, 2, mu=MU, L=3.0, spread=spread)
    return [Device(f.X, f.y + f.X @ np.array([3.0, 3.0])) for f in fs]


@pytest.mark.parametrize("lam", [0.5, 1.4, 2.5])
def test_the_envelope_has_the_curvature_of_proposition_1_and_is_convex_only_for_lambda_below_mu(
    lam: float,
) -> None:
    fs = devices()

    def gradients(w: Vector) -> Vector:
        run = play(FedMac(lam=lam, lr=0.1, **EXACTLY), fs, w=w, rounds=1)
        return np.concatenate([(w - x) / 0.1 for x in kept(run, "local").values()])

    hessians = affine(gradients, 2)[0].reshape(4, 2, 2)
    for H, f in zip(hessians, fs, strict=True):
        assert np.abs(H - (lam * np.eye(2) - lam**2 * np.linalg.inv(f.H))).max() <= 1e-10
        assert abs(spectrum(H)[0] - (lam - lam**2 / MU)) <= 1e-10
        assert spectrum(H)[-1] <= lam
        assert (spectrum(H)[0] > 0) == (lam < MU)


def closed_form(
    fs: list[Device], lam: float, gamma: float, gamma_w: float
) -> tuple[Vector, list[Vector]]:
    """Where all signs are +: H theta = H a + lam w - gamma and lam (w - mean theta) + gamma_w = 0."""
    inverse = [np.linalg.inv(f.H) for f in fs]
    bare = mean([f.a - gamma * i.sum(1) for f, i in zip(fs, inverse, strict=True)])
    w = np.linalg.solve(np.eye(2) - lam * mean(inverse), bare - gamma_w / lam)
    return w, [f.a + i @ (lam * w - gamma) for f, i in zip(fs, inverse, strict=True)]


@pytest.mark.parametrize(("gamma", "gamma_w"), [(0.0, 0.0), (0.2, 0.1)])
def test_one_local_round_reaches_the_optimum(gamma: float, gamma_w: float) -> None:
    lam, fs = 0.75, devices()
    algorithm = FedMac(lam=lam, gamma=gamma, gamma_w=gamma_w, rho=1e-3, lr=2.0, **EXACTLY)
    run = play(algorithm, fs, w=np.array([2.0, 2.0]), rounds=60)
    w, theta = closed_form(fs, lam, gamma, gamma_w)
    assert deviation(run, w, personal=theta) <= 1e-10
    if not gamma_w:
        assert np.abs(w - mean(list(kept(run, "personal").values()))).max() <= 1e-10
    assert min(np.abs(w).min(), np.abs(theta).min()) > 0.5  # all signs +, nothing near the cut


@pytest.mark.parametrize("gamma_w", [0.0, 0.1])
def test_lemma_10_holds_with_the_diversity_of_the_devices_and_not_as_printed(
    gamma_w: float,
) -> None:
    """(1/N) sum |theta_i(w*) - w*|^2 <= 2 (sigma_F^2 + gamma_w^2 d)/lam^2; printed: 2 gamma_w^2
    d^2/lam^2.
    """
    lam, d, fs = 0.75, 2, devices(spread=1.0)
    algorithm = FedMac(lam=lam, gamma_w=gamma_w, rho=1e-3, lr=2.0, **EXACTLY)
    run = play(algorithm, fs, w=np.array([2.0, 2.0]), rounds=60)
    w, _ = closed_form(fs, lam, 0.0, gamma_w)
    theta = kept(run, "personal").values()
    distance = np.mean([np.square(x - w).sum() for x in theta])
    # (6) at w*, all signs +
    sigma = np.mean([np.square(lam * (w - x) + gamma_w).sum() for x in theta])
    assert distance <= 2 * (sigma + gamma_w**2 * d) / lam**2
    assert distance > 2 * gamma_w**2 * d**2 / lam**2
    if not gamma_w:
        assert abs(distance - sigma / lam**2) <= 1e-9


@pytest.mark.parametrize("size", [1, 4, 16])
def test_the_inner_error_is_within_the_bound_of_lemma_1(size: int) -> None:
    """E |theta~ - theta^|^2 <= 2/mu^2 (gamma_l^2/|D| + nu), here with nu = 0, where it is exactly
    half of it.
    """
    y = np.random.default_rng(0).normal(size=12)
    f, w = Device(np.full((12, 1), np.sqrt(MU)), y), np.array([0.3])
    algorithm = FedMac(lam=0.5, local_rounds=1, steps=20, personal_lr=0.5, lr=0.1, batch=size)
    theta = np.array(list(kept(play(algorithm, [f] * 2000, w=w, rounds=1), "personal").values()))
    errors = np.square(theta - (f.a + 0.5 * w / MU))[:, 0]
    half = MU * y.var() / size / MU**2
    assert abs(errors.mean() - half) <= 4 * errors.std() / np.sqrt(2000)
    assert 0.9 * half < errors.mean() < 1.1 * half


def test_a_personal_model_is_counted_with_its_own_threshold() -> None:
    algorithm = FedMac(gamma=0.001, gamma_w=0.0001)
    assert algorithm.zero("device", "personal") == pytest.approx(max(3 * 6e-5, 0.05 * 0.001))
    assert algorithm.zero("device", "local") == algorithm.cut("device") > 0.3
    ended = FedMac(gamma=0.001, gamma_w=0.0001, cut_after="off")
    assert ended.cut("server", 100) == algorithm.zero("device", "personal")


@pytest.mark.parametrize("cut_after", ["keep", "off"])
def test_the_larger_cut_of_gamma_w_stays_or_goes_once_gamma_w_is_off(cut_after: Any) -> None:
    """By hand, two rounds with gamma_w and two after it; then weights lie between the two cuts."""
    gamma, gamma_w, rounds = 0.1, 0.5, 4
    settings: dict[str, Any] = {
        "lam": LAM, "lr": LR, "personal_lr": PERSONAL_LR, "local_rounds": 3, "batch": None,
    }  # fmt: skip
    penalties: dict[str, Any] = {"gamma": gamma, "gamma_w": gamma_w, "rho": RHO}
    algorithm = FedMac(**settings, **penalties, gamma_w_until=2, cut_after=cut_after)
    large = threshold(gamma, gamma_w)
    small = max(3 * RHO, PERSONAL_LR * gamma)
    assert large > 1.9 * small
    after = large if cut_after == "keep" else small
    cuts = [large, large, after, after]
    assert [algorithm.cut("device", t) for t in range(rounds)] == cuts
    assert [algorithm.cut("server", t) for t in range(rounds)] == cuts
    w = np.array([0.7, 1.5 * small])
    run = start(algorithm, SMALL, w=w, rounds=rounds)
    between = 0
    for t in range(rounds):
        next(run)
        sent = cut(w, cuts[t])
        penalty = gamma_w if t < 2 else 0.0
        pairs = [device(f, sent, gamma=gamma, gamma_w=penalty, R=3, K=1, prox=False) for f in SMALL]
        local = [x for _, x in pairs]
        if t >= 2:
            sizes = np.abs([w, *local])
            between += int(((small < sizes) & (sizes <= large)).sum())
        w = mean([cut(x, cuts[t]) for x in local])
        assert deviation(run, w, personal=[x for x, _ in pairs], local=local) <= EXACT
    assert between > 0  # so that the two cuts send different rows
