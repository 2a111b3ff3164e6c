"""Baselines that are another method when their parameters say so; where both draw alike, on
mini-batches too.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import covey
from covey import Algorithm
from covey.algorithms import (
    APFL,
    Clustered,
    Ditto,
    FedAvg,
    FedPer,
    FedRep,
    HeurFedAMP,
    Local,
    PerFedAvg,
    Scaffold,
)
from tests.identities.worlds import FLAT, WORLDS, deviation, trajectory

every_world = pytest.mark.parametrize("world", WORLDS)
full_and_mini = pytest.mark.parametrize("batch", [None, 6], ids=["full", "mini-batch"])
LR, ROUNDING = 0.1, 1e-12
EVERYTHING = {"digits": ("1.*", "3.*"), "least squares": ("1.*",)}


def row_of(algorithm: Algorithm, world: str, **changes: Any) -> Tensor:
    return trajectory(algorithm, world, FLAT, **changes)[0]


def personal(algorithm: Algorithm, world: str, **changes: Any) -> Tensor:
    """All personal models after three rounds; the global one need not move."""
    changes = {"rounds": 3, "score_every": 3, **WORLDS[world](), **changes}
    run = covey.run(
        covey.Experiment(algorithm=algorithm, tree=FLAT, workers=1, parts=("test",), **changes)
    )
    list(run)
    rows = run.rows("personal")[1]
    assert (rows - run.runtime.start[0]).norm() > 0.01 * run.runtime.start[0].norm()
    return rows


@every_world
@full_and_mini
def test_perfedavg_without_its_inner_step_is_fedavg(world: str, batch: int | None) -> None:
    plain = row_of(FedAvg(steps=4, lr=LR, batch=batch), world)
    for order in ("first", "hessian-free"):
        meta = row_of(PerFedAvg(alpha=0.0, steps=4, lr=LR, order=order, batch=batch), world)
        assert deviation(meta, plain) < ROUNDING


@every_world
@full_and_mini
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_global_model_of_ditto_is_fedavg_to_the_bit(
    world: str, batch: int | None, dtype: torch.dtype
) -> None:
    ditto = Ditto(lam=0.7, steps=4, lr=LR, personal_steps=3, personal_lr=LR, batch=batch, sample=7)
    plain = FedAvg(steps=4, lr=LR, batch=batch, sample=7)
    assert torch.equal(row_of(ditto, world, dtype=dtype), row_of(plain, world, dtype=dtype))


@every_world
def test_ditto_without_its_term_trains_alone(world: str) -> None:
    ditto = Ditto(lam=0.0, steps=2, lr=LR, personal_steps=4, personal_lr=LR, batch=None)
    assert (
        deviation(personal(ditto, world), personal(Local(steps=4, lr=LR, batch=None), world))
        < ROUNDING
    )


@every_world
@full_and_mini
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_the_global_model_of_apfl_is_fedavg(world: str, batch: int | None, alpha: float) -> None:
    plain = row_of(FedAvg(steps=4, lr=LR, batch=batch), world)
    assert (
        deviation(row_of(APFL(alpha=alpha, steps=4, lr=LR, batch=batch), world), plain) < ROUNDING
    )


@every_world
def test_apfl_at_alpha_1_trains_alone(world: str) -> None:
    apfl = APFL(alpha=1.0, alpha_lr=0.0, steps=4, lr=LR, batch=None)
    assert (
        deviation(personal(apfl, world), personal(Local(steps=4, lr=LR, batch=None), world))
        < ROUNDING
    )


@every_world
@full_and_mini
def test_the_first_round_of_scaffold_is_fedavg(world: str, batch: int | None) -> None:
    settings: dict[str, Any] = {"steps": 4, "lr": LR, "batch": batch}
    one, other = (row_of(a(**settings), world, rounds=1) for a in (Scaffold, FedAvg))
    assert torch.equal(one, other)


@every_world
@full_and_mini
def test_heurfedamp_that_listens_to_itself_alone_is_local(world: str, batch: int | None) -> None:
    """With one step from u = w the term acts on nothing; with more it must be off."""
    for steps, lam in ((1, 5.0), (4, 0.0)):
        alone = HeurFedAMP(self_weight=1.0, lam=lam, steps=steps, lr=LR, batch=batch)
        assert (
            deviation(
                personal(alone, world), personal(Local(steps=steps, lr=LR, batch=batch), world)
            )
            < ROUNDING
        )


@every_world
@full_and_mini
def test_with_nothing_private_fedper_and_fedrep_are_fedavg(world: str, batch: int | None) -> None:
    plain = row_of(FedAvg(steps=4, lr=LR, batch=batch), world)
    assert torch.equal(row_of(FedPer(steps=4, lr=LR, batch=batch), world, private=""), plain)
    assert (
        deviation(row_of(FedRep(steps=4, lr=LR, batch=batch), world, private=""), plain) < ROUNDING
    )


@every_world
@full_and_mini
def test_with_everything_private_fedper_is_local_to_the_bit(world: str, batch: int | None) -> None:
    alone = personal(FedPer(steps=4, lr=LR, batch=batch), world, private=EVERYTHING[world])
    assert torch.equal(alone, personal(Local(steps=4, lr=LR, batch=batch), world))


@every_world
@full_and_mini
def test_one_cluster_is_fedavg(world: str, batch: int | None) -> None:
    for weight in ("uniform", "samples"):
        settings: dict[str, Any] = {"steps": 4, "lr": LR, "batch": batch, "weight": weight}
        assert (
            deviation(
                row_of(Clustered(clusters=1, **settings), world), row_of(FedAvg(**settings), world)
            )
            < ROUNDING
        )
