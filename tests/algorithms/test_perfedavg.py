"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, 2020, Algorithm 1) by hand, first order and Hessian-free,
and where it leads.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from covey.algorithms import PerFedAvg
from tests.algorithms.quadratics import (
    EXACT,
    SMALL,
    Device,
    Vector,
    W,
    both,
    deviation,
    mean,
    play,
    some,
    start,
)

ROUNDING = 1e-11  # a difference of gradients is divided by 2 delta


def meta(f: Device, x: Vector, *, alpha: float, order: str) -> Vector:
    """The gradient of f(x - alpha grad f(x)), with or without the factor I - alpha H."""
    g = f.grad(x - alpha * f.grad(x))
    return g if order == "first" else g - alpha * f.H @ g


@pytest.mark.parametrize(
    ("order", "hessian", "tolerance"),
    [
        ("first", "exact", EXACT),
        ("hessian-free", "exact", EXACT),
        ("hessian-free", "difference", ROUNDING),
    ],
)
@pytest.mark.parametrize(("sample", "weight"), [(None, "uniform"), (3, "samples")])
@both
def test_two_rounds_by_hand(
    fs: list[Device],
    batch: int | None,
    order: Any,
    hessian: Any,
    tolerance: float,
    sample: int | None,
    weight: Any,
) -> None:
    settings: dict[str, Any] = {"alpha": 0.2, "steps": 3, "lr": 0.1, "batch": batch}
    algorithm = PerFedAvg(**settings, order=order, hessian=hessian, sample=sample, weight=weight)
    run, w, personal = start(algorithm, fs, w=W), W, {}
    for record in run:
        asked, rows = record.cohorts["device"], []
        for i in asked:
            personal[i] = w - 0.2 * fs[i].grad(w)  # one step from what was sent
            x = w
            for _ in range(3):
                x = x - 0.1 * meta(fs[i], x, alpha=0.2, order=order)
            rows.append(x)
        w = mean(rows, [len(fs[i].y) for i in asked] if weight == "samples" else None)
        assert deviation(run, w, personal=personal) <= tolerance


def test_l2_is_part_of_the_hessian() -> None:
    """One step on f + l2/2 |x|^2, whose Hessian is H + l2 I."""
    l2, alpha, lr = 0.4, 0.2, 0.1
    algorithm = PerFedAvg(alpha=alpha, steps=1, lr=lr, order="hessian-free", batch=None)
    run = play(algorithm, SMALL, w=W, rounds=1, l2=l2)
    rows = []
    for f in SMALL:
        H = f.H + l2 * np.eye(2)
        inner = W - alpha * (f.grad(W) + l2 * W)
        g = f.grad(inner) + l2 * inner
        rows.append(W - lr * (g - alpha * H @ g))
    assert deviation(run, mean(rows)) <= EXACT


def optimum(fs: Sequence[Device], alpha: float, order: str) -> Vector:
    """Where the mean of the meta-gradients is zero: sum B_i H_i B_i (x - a_i) = 0, B_i = I - alpha
    H_i, or with one B_i.
    """
    steps = [np.eye(len(f.H)) - alpha * f.H for f in fs]
    curves = [
        b @ f.H @ (b if order == "hessian-free" else np.eye(len(b)))
        for b, f in zip(steps, fs, strict=True)
    ]
    return np.linalg.solve(sum(curves), sum(c @ f.a for c, f in zip(curves, fs, strict=True)))


@pytest.mark.parametrize("order", ["first", "hessian-free"])
def test_it_reaches_the_optimum_of_what_it_descends(order: Any) -> None:
    fs = some(4, 3, mu=0.5, L=2.0, spread=3.0)
    algorithm = PerFedAvg(alpha=0.3, steps=1, lr=0.7, order=order, batch=None)
    run = play(algorithm, fs, w=np.zeros(3), rounds=150)
    best = optimum(fs, 0.3, order)
    assert deviation(run, best) <= 1e-9
    assert np.abs(best - optimum(fs, 0.0, order)).max() > 0.05  # which is not that of FedAvg
    assert np.abs(optimum(fs, 0.3, "first") - optimum(fs, 0.3, "hessian-free")).max() > 0.01
