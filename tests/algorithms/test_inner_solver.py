"""`tol` and `method` of pFedMe, FedMac and sFedHP: which steps a device takes in one inner loop, in
closed form on quadratics.

On 1/2 (x - a)' H (x - a) plus a tie, the minimiser s and the curvature C are known, and the error e
= x - s after k steps is (I - lr C)^k e; with momentum, that of a linear recurrence.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from covey import Algorithm, Nodes, Rows, Tree, descend
from covey.algorithms import FedMac, PFedMe, SFedHP
from covey.kernel.replies import Exact
from tests.algorithms.quadratics import Device, Vector, kept, play, some
from tests.identities.worlds import UNEQUAL, trajectory

LAM, LR, STEPS = 0.8, 0.1, 25
W = np.array([1.0, -2.0, 0.5])
# the last has its minimum at w
FS = [*some(4, 3, mu=0.5, L=2.0, spread=3.0), Device(np.eye(3) * np.sqrt(3), W * np.sqrt(3))]
NAMES = ["pfedme", "fedmac", "sfedhp"]
once: dict[str, Any] = {"steps": STEPS, "batch": None}


def algorithm(name: str, **inner: Any) -> Algorithm:
    """One that descends once a round from w, with the same inner problem for all its steps."""
    settings = {**once, **inner}
    if name == "pfedme":
        return PFedMe(lam=LAM, personal_lr=LR, lr=0.1, local_rounds=1, **settings)
    if name == "fedmac":
        return FedMac(lam=LAM, personal_lr=LR, lr=0.1, local_rounds=1, **settings)
    return SFedHP(lam1=LAM, lr2=LR, lr1=0.1, edge_rounds=1, **settings)


def tree(name: str, devices: int = len(FS)) -> Tree:
    return Tree.grouped([devices]) if name == "sfedhp" else Tree.flat(devices)


def problem(name: str, f: Device) -> tuple[Vector, Vector, float]:
    """(minimiser, curvature, the part of it that ties are known to give) of the inner problem at w."""
    if name == "fedmac":  # f - lam <x, w>
        return np.linalg.solve(f.H, f.H @ f.a + LAM * W), f.H, 0.0
    return f.prox(LAM, W), f.H + LAM * np.eye(3), LAM


def personal(name: str, devices: list[Device], **inner: Any) -> list[Vector]:
    run = play(algorithm(name, **inner), devices, tree(name, len(devices)), w=W, rounds=1)
    return list(kept(run, "personal").values())


def plain(name: str, f: Device, steps: int) -> tuple[Vector, float]:
    """theta after so many steps of gradient descent, and the norm of the gradient there."""
    s, C, _ = problem(name, f)
    error = np.linalg.matrix_power(np.eye(3) - LR * C, steps) @ (W - s)
    return s + error, float(np.linalg.norm(C @ error))


def nesterov(name: str, f: Device, steps: int) -> tuple[Vector, float]:
    """The same with momentum, and the norm of the gradient where the next step looks.

    [e, e before] <- [[Q (1 + m), -Q m], [I, 0]] [e, e before], Q = I - lr C, whose m is that of the
    step before.
    """
    s, C, strong = problem(name, f)
    Q, eye, zero = np.eye(3) - LR * C, np.eye(3), np.zeros((3, 3))
    state = np.concatenate([W - s, W - s])
    for k in range(steps):
        state = (
            np.block([[Q * (1 + momentum(strong, k)), -Q * momentum(strong, k)], [eye, zero]])
            @ state
        )
    error, before = state[:3], state[3:]
    ahead = error + momentum(strong, steps) * (error - before)
    return s + error, float(np.linalg.norm(C @ ahead))


def momentum(strong: float, step: int) -> float:
    """That with which a step looks ahead: (1 - r) / (1 + r) with r^2 = lr strong, or (k - 1) / (k +
    2) without ties.
    """
    if step == 0:
        return 0.0
    root = np.sqrt(LR * strong)
    return (1 - root) / (1 + root) if strong else (step - 1) / (step + 2)


CLOSED = {"gradient": plain, "nesterov": nesterov}
every_algorithm = pytest.mark.parametrize("name", NAMES)
every_method = pytest.mark.parametrize("method", CLOSED)


@every_algorithm
@every_method
def test_all_steps_are_the_closed_form(name: str, method: str) -> None:
    for theta, f in zip(personal(name, FS, method=method), FS, strict=True):
        assert np.abs(theta - CLOSED[method](name, f, STEPS)[0]).max() <= 1e-12


def steps_taken(name: str, method: str, f: Device, tol: float) -> int:
    """At the first gradient of norm tol or less, no further step is taken."""
    return next((k for k in range(STEPS) if CLOSED[method](name, f, k)[1] <= tol), STEPS)


@every_algorithm
@every_method
@pytest.mark.parametrize("tol", [1.0, 0.3])
def test_a_device_stops_at_its_first_gradient_within_tol(
    name: str, method: str, tol: float
) -> None:
    taken = [steps_taken(name, method, f, tol) for f in FS]
    assert len(set(taken)) >= 3, taken  # else this would say little of rows that stop apart
    for theta, f, steps in zip(personal(name, FS, method=method, tol=tol), FS, taken, strict=True):
        assert np.abs(theta - CLOSED[method](name, f, steps)[0]).max() <= 1e-12


def test_of_these_devices_some_stop_at_once_and_some_never() -> None:
    assert {steps_taken("pfedme", "gradient", f, 0.01) for f in FS} >= {0, STEPS}


@every_algorithm
@every_method
def test_where_a_device_stops_does_not_depend_on_its_company(name: str, method: str) -> None:
    together = personal(name, FS, method=method, tol=0.3)
    for f, theta in zip(FS, together, strict=True):
        (alone,) = personal(name, [f], method=method, tol=0.3)
        assert np.array_equal(alone, theta)


@dataclass(frozen=True)
class FixedPFedMe(PFedMe):
    """With a device program that knows neither `tol` nor `method`."""

    def device(self, me: Nodes, w: Rows) -> tuple[Rows, Exact | None]:
        theta = w
        for _ in range(self.local_rounds):
            gradient = me.grad(me.batch(self.batch))
            theta = descend(
                theta, gradient, prox=(self.lam, w), steps=self.steps, lr=self.personal_lr
            )
            w = torch.lerp(w, theta, self.lr * self.lam)
        me.keep("personal", theta)
        return me.keep("local", w), me.weight(self.weight)


@dataclass(frozen=True)
class FixedFedMac(FedMac):
    def device(self, me: Nodes, w: Rows) -> tuple[Rows, Exact | None]:
        theta = w
        for _ in range(self.local_rounds):
            gradient = me.grad(me.batch(self.batch))
            theta = descend(
                theta, gradient, linear=-self.lam * w, steps=self.steps, lr=self.personal_lr
            )
            w = descend(w, torch.zeros_like, prox=(self.lam, theta), steps=1, lr=self.lr)
        me.keep("personal", theta)
        return me.keep("local", w), me.weight(self.weight)


@dataclass(frozen=True)
class FixedSFedHP(SFedHP):
    def device(self, me: Nodes, phi: Rows) -> Rows:
        start = me.recall("personal", default=phi, since=me.round)
        gradient = me.grad(me.batch(self.batch))
        return me.keep(
            "personal",
            descend(start, gradient, prox=(self.lam1, phi), steps=self.steps, lr=self.lr2),
        )


PAIRS = [
    (PFedMe, FixedPFedMe, {"lr": 0.05}),
    (FedMac, FixedFedMac, {"lam": 0.05, "lr": 6.0}),
    (SFedHP, FixedSFedHP, {}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("batch", [None, 6], ids=["full", "mini-batch"])
@pytest.mark.parametrize(("kind", "fixed", "settings"), PAIRS, ids=NAMES)
def test_a_tol_of_0_is_fixed_steps_to_the_bit(
    kind: Any,
    fixed: type[Algorithm],
    settings: dict[str, Any],
    batch: int | None,
    dtype: torch.dtype,
) -> None:
    settings = {**settings, "batch": batch, "steps": 3}
    here, _ = trajectory(kind(tol=0.0, **settings), "digits", UNEQUAL, rounds=2, dtype=dtype)
    there, _ = trajectory(fixed(**settings), "digits", UNEQUAL, rounds=2, dtype=dtype)
    assert torch.equal(here, there)
