"""APFL (Deng, Kamani, Mahdavi, 2020, Algorithm 1 and its adaptive alpha) by hand, and its two ends."""

import numpy as np
import pytest

from covey.algorithms import APFL
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
    some,
    start,
)


@pytest.mark.parametrize(("sample", "alpha_lr"), [(None, 0.3), (3, 0.3), (None, 0.0), (None, 50.0)])
@both
def test_rounds_by_hand(
    fs: list[Device], batch: int | None, sample: int | None, alpha_lr: float
) -> None:
    lr = 0.1
    algorithm = APFL(alpha=0.4, alpha_lr=alpha_lr, sample=sample, steps=3, lr=0.1, batch=batch)
    run = start(algorithm, fs, w=W, rounds=4)
    w = W
    own: dict[int, Vector] = {}
    alpha: dict[int, float] = {}
    personal: dict[int, Vector] = {}
    for record in run:
        rows = []
        for i in record.cohorts["device"]:
            x, v, a = w, own.get(i, w), alpha.get(i, 0.4)
            a = np.clip(a - alpha_lr * (v - w) @ fs[i].grad(a * v + (1 - a) * w), 0, 1)
            for _ in range(3):
                mix = a * v + (1 - a) * x
                x, v = x - lr * fs[i].grad(x), v - lr * a * fs[i].grad(mix)
            own[i], alpha[i], personal[i] = v, a, a * v + (1 - a) * x
            rows.append(x)
        w = mean(rows)
        assert deviation(run, w, personal=personal, _own=own) <= EXACT
        shares = kept(run, "_alpha")
        assert max(abs(shares[i][0] - alpha[i]) for i in alpha) <= EXACT
    assert (set(alpha.values()) != {0.4}) == (alpha_lr > 0)


def test_alpha_stays_between_0_and_1_however_large_its_steps() -> None:
    shares = kept(
        play(APFL(alpha_lr=1e6, steps=2, lr=0.1, batch=None), SMALL, w=W, rounds=5), "_alpha"
    )
    assert {float(share[0]) for share in shares.values()} <= {0.0, 1.0}


def test_at_alpha_0_the_personal_model_is_the_devices_step_from_w_and_its_own_never_moves() -> None:
    run = play(APFL(alpha=0.0, alpha_lr=0.0, steps=3, lr=0.1, batch=None), SMALL, w=W, rounds=1)
    xs = [W] * len(SMALL)
    for _ in range(3):
        xs = [x - 0.1 * f.grad(x) for x, f in zip(xs, SMALL, strict=True)]
    assert deviation(run, mean(xs), personal=xs, _own=[W] * len(SMALL)) <= EXACT


def test_at_alpha_1_every_device_reaches_its_own_minimum() -> None:
    devices = some(3, 2, mu=0.5, L=2.0, spread=3.0)
    algorithm = APFL(alpha=1.0, alpha_lr=0.0, steps=10, lr=0.8, batch=None)
    run = play(algorithm, devices, w=np.zeros(2), rounds=6)
    assert max(np.abs(kept(run, "personal")[i] - f.a).max() for i, f in enumerate(devices)) <= 1e-10
