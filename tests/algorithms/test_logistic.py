"""L2-regularised multinomial logistic regression: each convex method ends where a generic solver
ends on its objective.

The solver knows nothing of tiers: it minimises the objective over all models of all nodes at once,
by L-BFGS.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import cross_entropy

import covey
from covey import Algorithm, Run, Tree
from covey.algorithms import FedMac, PerMFL, PFedMe, SFedHP
from tests.algorithms.quadratics import Vector, deviation
from tests.given import drained

L2, CLASSES, WIDTH = 0.5, 4, 65 * 4
GROUPS, TREE = ([0], [1, 2, 3]), Tree.grouped([1, 3])


@cache
def devices() -> list[tuple[Tensor, Tensor]]:
    """Four devices with 30 real digits each, of two of four classes; pixels halved, so that
    curvatures are 0.5 to 2.6.
    """
    digits = covey.data.digits()
    out = []
    for u in range(4):
        mine = torch.cat(
            [
                (digits.y == label).nonzero()[15 * u : 15 * u + 15, 0]
                for label in (u, (u + 1) % CLASSES)
            ]
        )
        out.append((digits.x[mine].double() / 2, digits.y[mine]))
    return out


def loss(device: int, x: Tensor) -> Tensor:
    features, labels = devices()[device]
    scores = features @ x[: 64 * CLASSES].view(64, CLASSES) + x[64 * CLASSES :]
    return cross_entropy(scores, labels) + L2 / 2 * x.square().sum()


def far(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().sum() / 2


def joint_minimum(objective: Callable[[Tensor], Any], models: int) -> Vector:
    """The rows of all models where the objective is least."""

    def value(flat: Vector) -> tuple[float, Vector]:
        x = torch.from_numpy(flat).view(models, WIDTH).requires_grad_()
        out = objective(x)
        (gradient,) = torch.autograd.grad(out, x)
        return float(out.detach()), gradient.numpy().ravel()

    found = minimize(value, np.zeros(models * WIDTH), jac=True, method="L-BFGS-B",
                     options={"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-16, "gtol": 1e-9, "maxcor": 30})  # fmt: skip
    assert np.abs(found.jac).max() < 1e-6
    rows: Vector = found.x.reshape(models, WIDTH)
    return rows


def train(algorithm: Algorithm, rounds: int, tree: Tree) -> Run:
    run = covey.run(
        covey.Experiment(
            algorithm=algorithm,
            data=covey.data.own_parts(train=devices(), classes=CLASSES),
            model=covey.models.linear(64, CLASSES),
            tree=tree,
            rounds=rounds,
            l2=L2,
            score_every=rounds,
            parts=("train",),
            dtype=torch.float64,
            workers=1,
        )
    )
    return drained(run)


def test_pfedme() -> None:
    lam = 1.0
    best = joint_minimum(
        lambda x: sum(loss(i, x[1 + i]) + lam * far(x[1 + i], x[0]) for i in range(4)) / 4, 5
    )
    algorithm = PFedMe(lam=lam, local_rounds=1, steps=30, personal_lr=0.5, lr=2.0, batch=None)
    run = train(algorithm, 25, Tree.flat(4))
    assert deviation(run, best[0], personal=list(best[1:])) <= 1e-6
    assert np.abs(best[0]).max() > 0.05


def test_permfl() -> None:
    lam, gamma = 1.0, 1.0

    def objective(x: Tensor) -> Tensor:
        total = x.new_zeros(())
        for i, group in enumerate(GROUPS):
            w = x[1 + i]
            total = (
                total
                + sum(loss(j, x[3 + j]) + lam * far(x[3 + j], w) for j in group) / len(group)
                + gamma * far(w, x[0])
            )
        return total / 2

    best = joint_minimum(objective, 7)
    algorithm = PerMFL(
        lam=lam, gamma=gamma, beta=3.0, lr=0.5, steps=25, edge_lr=0.66, edge_rounds=12, batch=None
    )
    run = train(algorithm, 16, TREE)
    assert deviation(run, best[0], edge=list(best[1:3]), personal=list(best[3:])) <= 1e-6


def test_fedmac_with_lambda_below_mu() -> None:
    lam = L2 / 2

    def objective(x: Tensor) -> Tensor:
        ties = [loss(i, x[1 + i]) - lam * (x[1 + i] * x[0]).sum() for i in range(4)]
        return sum(ties) / 4 + lam / 2 * x[0].square().sum()

    best = joint_minimum(objective, 5)
    algorithm = FedMac(lam=lam, local_rounds=1, steps=60, personal_lr=0.8, lr=5.0, batch=None)
    run = train(algorithm, 40, Tree.flat(4))
    assert deviation(run, best[0], personal=list(best[1:])) <= 1e-6


def test_sfedhp_on_one_edge() -> None:
    lam1, lam2 = 1.0, 2.0

    def objective(x: Tensor) -> Tensor:
        w, phi = x[0], x[1]
        return sum(
            loss(j, x[2 + j]) + lam1 * far(x[2 + j], phi) for j in range(4)
        ) / 4 + lam2 * far(phi, w)

    best = joint_minimum(objective, 6)
    algorithm = SFedHP(lam1=lam1, lam2=lam2, edge_rounds=3, steps=25, lr1=1.0, lr2=0.5, batch=None)
    run = train(algorithm, 40, Tree.grouped([4]))
    assert deviation(run, best[0], edge=[best[1]], personal=list(best[2:])) <= 1e-6
