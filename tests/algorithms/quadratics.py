"""Devices whose loss is 1/2 (x - a)' H (x - a), as least squares: in numpy, for what a test
expects, and in covey.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import covey
from covey import Algorithm, Run, Tree
from tests import peek
from tests.given import drained

Vector = npt.NDArray[Any]
EXACT = 1e-12  # a few dozen float64 operations on numbers of size one


@dataclass(frozen=True, eq=False)
class Device:
    """Examples X [m, d] and y [m]; the loss is the mean of (X x - y)^2 / 2."""

    X: Vector
    y: Vector

    @property
    def H(self) -> Vector:
        return self.X.T @ self.X / len(self.y)

    @property
    def a(self) -> Vector:
        return np.linalg.lstsq(self.X, self.y)[0]

    def grad(self, x: Vector) -> Vector:
        return self.X.T @ (self.X @ x - self.y) / len(self.y)

    def prox(self, lam: float, w: Vector) -> Vector:
        """The minimiser of f + lam/2 |x - w|^2."""
        return np.linalg.solve(self.H + lam * np.eye(len(w)), self.H @ self.a + lam * w)

    def envelope(self, lam: float) -> Vector:
        """The Hessian of the Moreau envelope, lam H (H + lam I)^-1."""
        return lam * self.H @ np.linalg.inv(self.H + lam * np.eye(len(self.H)))


def quadratic(H: Vector, a: Vector) -> Device:
    """The device with this Hessian and this minimiser."""
    X = np.sqrt(len(a)) * np.linalg.cholesky(H).T
    return Device(X, X @ a)


def some(
    n: int, d: int, *, mu: float, L: float, spread: float = 1.0, seed: int = 0
) -> list[Device]:
    """n devices with curvatures from mu to L in directions of their own, and minimisers `spread`
    apart.
    """
    rng, devices = np.random.default_rng(seed), []
    for _ in range(n):
        Q, _ = np.linalg.qr(rng.normal(size=(d, d)))
        devices.append(
            quadratic(Q @ np.diag(np.linspace(mu, L, d)) @ Q.T, spread * rng.normal(size=d))
        )
    return devices


# Two parameters; 2, 3, 1 and 4 examples, so that weights by samples differ from uniform ones.
SMALL = [
    Device(np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([1.0, -1.0])),
    Device(np.array([[0.0, 1.0], [2.0, 1.0], [1.0, -1.0]]), np.array([0.5, 2.0, 0.0])),
    Device(np.array([[1.5, -0.5]]), np.array([-2.0])),
    Device(np.array([[1.0, 1.0], [0.5, 0.0], [0.0, -1.0], [1.0, -2.0]]), np.array([3.0, 1.0, 0.5, -0.5])),
]  # fmt: skip
# The same numbers of examples, but copies of one: whatever a mini-batch draws, its gradient is the
# whole.
COPIES = [Device(np.tile(f.X[-1], (len(f.y), 1)), np.full(len(f.y), f.y[-1])) for f in SMALL]
both = pytest.mark.parametrize(("fs", "batch"), [(SMALL, None), (COPIES, 2)], ids=["full", "batch"])
W = np.array([0.7, -0.4])


class Halves(nn.Module):
    """Least squares of which the first coefficients are one layer, `u`, and the others another,
    `v`.
    """

    def __init__(self, first: int, then: int) -> None:
        super().__init__()
        self.first, self.u, self.v = (
            first,
            nn.Linear(first, 1, bias=False),
            nn.Linear(then, 1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.u(x[:, : self.first]) + self.v(x[:, self.first :])
        return out


def split(
    algorithm: Algorithm,
    devices: Sequence[Device],
    tree: Tree | None = None,
    *,
    w: Vector,
    shared: int,
    rounds: int = 2,
    codec: str = "dense",
) -> Run:
    """A run in which the first `shared` parameters are everybody's and the others private; all
    start from w.
    """
    shards = covey.data.own_parts(
        train=[(torch.from_numpy(f.X), torch.from_numpy(f.y)) for f in devices]
    )
    model, tree = Halves(shared, len(w) - shared), tree or Tree.flat(len(devices))
    run = covey.run(
        covey.Experiment(
            algorithm, shards, model, tree, rounds, loss="squared_error", private="v", score_every=rounds, parts=("train",),
            dtype=torch.float64, workers=1, codec=codec,
        )
    )  # fmt: skip
    run.w = torch.from_numpy(w)[None].clone()
    run.runtime.start = run.w.clone()
    return run


def best_parts(devices: Sequence[Device], shared: int) -> tuple[Vector, list[Vector]]:
    """The minimiser of the mean of f_i([u, v_i]) over u and all v_i: u of the losses with every v_i
    at its best, then these.
    """
    S = shared
    H: Any = 0.0
    b: Any = 0.0
    for f in devices:
        A, B, C, g = f.H[:S, :S], f.H[:S, S:], f.H[S:, S:], f.H @ f.a
        H, b = H + A - B @ np.linalg.solve(C, B.T), b + g[:S] - B @ np.linalg.solve(C, g[S:])
    u: Vector = np.linalg.solve(H, b)
    return u, [np.linalg.solve(f.H[S:, S:], (f.H @ f.a)[S:] - f.H[S:, :S] @ u) for f in devices]


def start(
    algorithm: Algorithm,
    devices: Sequence[Device],
    tree: Tree | None = None,
    *,
    w: Vector,
    rounds: int = 2,
    l2: float = 0.0,
) -> Run:
    """A run that starts from w."""
    shards = covey.data.own_parts(
        train=[(torch.from_numpy(f.X), torch.from_numpy(f.y)) for f in devices]
    )
    run = covey.run(
        covey.Experiment(
            algorithm=algorithm,
            data=shards,
            model=nn.Sequential(nn.Linear(len(w), 1, bias=False)),
            tree=tree or Tree.flat(len(devices)),
            rounds=rounds,
            loss="squared_error",
            l2=l2,
            score_every=rounds,
            parts=("train",),
            dtype=torch.float64,
            workers=1,
        )
    )
    run.w = torch.from_numpy(w)[None].clone()
    return run


def play(
    algorithm: Algorithm,
    devices: Sequence[Device],
    tree: Tree | None = None,
    *,
    w: Vector,
    rounds: int = 2,
    l2: float = 0.0,
) -> Run:
    """The same after its last round."""
    run = start(algorithm, devices, tree, w=w, rounds=rounds, l2=l2)
    return drained(run)


def over_time(
    algorithm: Algorithm,
    devices: Sequence[Device],
    tree: Tree | None = None,
    *,
    after: int,
    rounds: int,
    seeds: int = 20,
) -> Vector:
    """All personal models of many runs that differ in their coins, after each of `rounds` rounds,
    [rounds * seeds, n, d].
    """
    here = start(
        algorithm, devices, tree, w=np.zeros(len(devices[0].a)), rounds=after + rounds
    ).experiment
    runs, found = covey.runs([replace(here, seed=seed) for seed in range(seeds)]), []
    for _ in runs:
        column = peek.store(runs).columns["device", "personal"]
        _, _, rows = column.read("present", slice(0, None))
        found.append(rows.reshape(seeds, len(devices), -1).numpy().copy())
    return np.concatenate(found[after:])


def row(run: Run) -> Vector:
    """The global model."""
    out: Vector = run.w[0].numpy().copy()
    return out


def kept(run: Run, name: str) -> dict[int, Vector]:
    """A kept model of every node that has one."""
    ids, rows = run.rows(name)
    return dict(zip(ids.tolist(), rows.numpy(), strict=True))


def deviation(run: Run, w: Vector, **models: dict[int, Vector] | list[Vector]) -> float:
    """The largest difference between a run and what it should be: the global model, and every kept
    one by name.
    """
    gaps = [np.abs(row(run) - w).max()]
    for name, wanted in models.items():
        wanted = wanted if isinstance(wanted, dict) else dict(enumerate(wanted))
        have = kept(run, name)
        assert have.keys() == wanted.keys(), (
            f"{name}: nodes {sorted(have)} hold one, {sorted(wanted)} should"
        )
        gaps += [np.abs(have[node] - wanted[node]).max() for node in wanted]
    return float(max(gaps))


def cut(x: Vector, at: float | None) -> Vector:
    """What arrives of a row that was sent: entries up to `at` are zeros."""
    return x if at is None else np.where(np.abs(x) <= at, 0.0, x)


def soft(x: Vector, by: float) -> Vector:
    """The proximal step of by |x|_1."""
    return np.sign(x) * np.maximum(np.abs(x) - by, 0.0)


def mean(rows: Sequence[Vector], weights: Sequence[float] | None = None) -> Vector:
    out: Vector = np.average(np.array(rows), axis=0, weights=weights)
    return out


def affine(step: Callable[[Vector], Vector], d: int) -> tuple[Vector, Vector]:
    """(A, b) of a map x -> A x + b, from its values at 0 and the unit vectors."""
    b = step(np.zeros(d))
    return np.stack([step(e) - b for e in np.eye(d)], axis=1), b


def spectrum(H: Vector) -> Vector:
    """Eigenvalues of a symmetric matrix that was measured, smallest first."""
    assert np.abs(H - H.T).max() < 1e-9
    return np.linalg.eigvalsh((H + H.T) / 2)
