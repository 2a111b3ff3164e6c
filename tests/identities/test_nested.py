"""`Nested` is the oracle: with the right levels it is every tree algorithm of the papers, which it
does not call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from covey import Algorithm, Tree
from covey.algorithms import FedAvg, FedMac, FedProx, HierFAVG, PerMFL, PFedMe, SFedHP
from covey.algorithms.nested import Level, Nested
from tests.identities.worlds import FLAT, UNEQUAL, WORLDS, deviation, trajectory

LAM, LR, RHO = 0.7, 0.1, 1e-2
FOLLOW = Level("server", pull=1.0)


@dataclass(frozen=True)
class CutLike(Nested):
    """Nested levels whose rows travel with the cut of another algorithm."""

    other: Algorithm | None = None

    def cut(self, tier: str, round: int = 0) -> float | None:
        return None if self.other is None else self.other.cut(tier)


@dataclass(frozen=True)
class Pair:
    """A hand-written algorithm, the levels that are it, and the models both keep."""

    algorithm: Algorithm
    levels: tuple[Level, ...]
    tree: Tree = FLAT
    models: tuple[str, ...] = ("personal",)


def fedavg(batch: int | None) -> Pair:
    levels = (Level("server", pull=1.0, sample=7), Level("device", steps=4, lr=LR, batch=batch))
    return Pair(FedAvg(steps=4, lr=LR, batch=batch, sample=7), levels, models=())


def fedprox(batch: int | None) -> Pair:
    levels = (FOLLOW, Level("device", lam=LAM, steps=4, lr=LR, batch=batch))
    return Pair(FedProx(mu=LAM, steps=4, lr=LR, batch=batch), levels, models=())


def pfedme(batch: int | None, gamma: float = 0.0, **inner: Any) -> Pair:
    algorithm = PFedMe(lam=LAM, local_rounds=3, steps=4, lr=0.5, personal_lr=LR, beta=1.5, batch=batch, gamma=gamma, rho=RHO,
                       **inner)  # fmt: skip
    inner |= {"gamma": gamma, "rho": RHO, "warm": True, "batch": batch, "fresh": False}
    levels = (
        Level("server", pull=1.0, lr=1.5),
        Level("device", "local", steps=3, lr=0.5),
        Level("device", "personal", lam=LAM, steps=4, lr=LR, **inner),
    )
    return Pair(algorithm, levels, models=("local", "personal"))


def sparse_pfedme(batch: int | None) -> Pair:
    return pfedme(batch, gamma=0.02)


def fedmac(batch: int | None, gamma: float = 0.0, steps: int = 2, **inner: Any) -> Pair:
    algorithm = FedMac(lam=0.05, local_rounds=4, steps=steps, lr=6.0, personal_lr=LR, batch=batch, gamma=gamma,
                       gamma_w=gamma / 10, rho=RHO, **inner)  # fmt: skip
    levels = (
        FOLLOW,
        Level("device", "local", steps=4, lr=6.0, ridge=0.05, gamma=gamma / 10, rho=RHO),
        Level("device", "personal", lam=0.05, coupling="correlation", steps=steps, lr=LR, gamma=gamma, rho=RHO, warm=True,
              batch=batch, fresh=False, **inner),
    )  # fmt: skip
    return Pair(algorithm, levels, models=("local", "personal"))


def sparse_fedmac(batch: int | None) -> Pair:
    return fedmac(batch, gamma=0.02)


def hierfavg(batch: int | None) -> Pair:
    levels = (
        Level("server", pull=1.0, sample=3),
        Level("edge", "edge", pull=1.0, steps=3, sample=0.5),
        Level("device", steps=4, lr=LR, batch=batch),
    )
    algorithm = HierFAVG(sample=3, device_sample=0.5, edge_rounds=3, steps=4, lr=LR, batch=batch)
    return Pair(algorithm, levels, UNEQUAL, models=("edge",))


def permfl(batch: int | None) -> Pair:
    algorithm = PerMFL(
        lam=LAM, gamma=1.5, beta=0.6, lr=LR, edge_lr=0.4, edge_rounds=3, steps=4, batch=batch,
        device_sample=0.5,
    )  # fmt: skip
    levels = (
        Level("server", lr=0.6),
        Level("edge", "edge", lam=1.5, steps=3, lr=0.4, sample=0.5),
        Level("device", "personal", lam=LAM, steps=4, lr=LR, batch=batch),
    )
    return Pair(algorithm, levels, UNEQUAL, models=("edge", "personal"))


def sfedhp(batch: int | None, gamma: float = 0.0, **inner: Any) -> Pair:
    lam2 = 1.9
    algorithm = SFedHP(lam1=LAM, lam2=lam2, gamma1=gamma, gamma2=gamma, rho=RHO, sample=3, edge_rounds=3, steps=4, lr1=0.4,
                       lr2=LR, beta=0.8, batch=batch, **inner)  # fmt: skip
    inner |= {"gamma": gamma, "rho": RHO, "warm": True, "batch": batch, "fresh": False}
    levels = (
        Level("server", pull=1.0, lr=0.8, sample=3),
        Level("edge", "edge_global", steps=3, lr=0.4, gamma=gamma, rho=RHO),
        Level("edge", "edge", lam=lam2, lr=1 / (LAM + lam2), warm=True),
        Level("device", "personal", lam=LAM, steps=4, lr=LR, **inner),
    )
    return Pair(algorithm, levels, UNEQUAL, models=("edge_global", "edge", "personal"))


def sparse_sfedhp(batch: int | None) -> Pair:
    return sfedhp(batch, gamma=0.02)


PAIRS = (
    fedavg, fedprox, pfedme, sparse_pfedme, fedmac, sparse_fedmac, hierfavg, permfl, sfedhp,
    sparse_sfedhp,
)  # fmt: skip


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("batch", [None, 6], ids=["full", "mini-batch"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_the_right_levels_are_the_hand_written_algorithm(
    pair: Callable[[int | None], Pair], batch: int | None, world: str
) -> None:
    here: Pair = pair(batch)
    by_hand, run = trajectory(here.algorithm, world, here.tree)
    by_levels, oracle = trajectory(CutLike(here.levels, here.algorithm), world, here.tree)
    assert deviation(by_hand, by_levels) < 1e-12
    for model in here.models:
        assert deviation(run.rows(model)[1], oracle.rows(model)[1]) < 1e-12
    assert run.meter.totals.keys() == oracle.meter.totals.keys()


@pytest.mark.parametrize(
    "inner", [{"tol": 0.3}, {"method": "nesterov"}, {"tol": 0.2, "method": "nesterov"}], ids=str
)
@pytest.mark.parametrize("gamma", [0.0, 0.02], ids=["plain", "sparse"])
@pytest.mark.parametrize(
    "pair", [pfedme, partial(fedmac, steps=4), sfedhp], ids=["pfedme", "fedmac", "sfedhp"]
)
def test_the_inner_solver_of_the_last_level_is_that_of_the_algorithm(
    pair: Callable[..., Pair], gamma: float, inner: dict[str, Any]
) -> None:
    """In the world of least squares, where the fixed steps of gradient descent lead elsewhere."""
    here: Pair = pair(6, gamma, **inner)
    by_hand, run = trajectory(here.algorithm, "least squares", here.tree)
    by_levels, oracle = trajectory(CutLike(here.levels, here.algorithm), "least squares", here.tree)
    assert deviation(by_hand, by_levels) < 1e-12
    for model in here.models:
        assert deviation(run.rows(model)[1], oracle.rows(model)[1]) < 1e-12
    plain, _ = trajectory(pair(6, gamma).algorithm, "least squares", here.tree)
    assert deviation(by_hand, plain) > 1e-6


def test_more_tiers_that_only_pass_on_are_fedavg_with_the_same_mini_batches() -> None:
    between = (Level("edge1", pull=1.0), Level("edge2", pull=1.0))
    four = Nested((FOLLOW, *between, Level("device", steps=4, lr=LR, batch=6)))
    tall, _ = trajectory(four, "digits", Tree.uniform(2, 2, 5))
    flat, _ = trajectory(FedAvg(steps=4, lr=LR, batch=6), "digits", FLAT)
    assert deviation(tall, flat) < 1e-12
