"""Centralised training is gradient descent on the pooled data, worked out by torch and numpy; one
step of it is FedAvg.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey import Experiment, models
from covey.algorithms import Centralised, FedAvg
from tests.identities.worlds import DIGITS, EQUAL, FLAT, REGRESSION, WORLDS, deviation, trajectory

every_world = pytest.mark.parametrize("world", WORLDS)
LR, ROUNDING = 0.1, 1e-12


@pytest.mark.parametrize("l2", [0.0, 0.05])
def test_full_batches_are_gradient_descent_on_the_pool_of_classes(l2: float) -> None:
    rows, run = trajectory(Centralised(steps=3, lr=LR, batch=None), "digits", FLAT, l2=l2)
    space = run.runtime.task.space
    module = space.fill(run.runtime.start[0])
    assert all(p.requires_grad for p in module.parameters())
    pool = DIGITS.train.index
    x, y = DIGITS.x[pool].double(), DIGITS.y[pool]
    assert DIGITS.train.counts().unique().numel() > 1  # else a plain mean of devices would do
    for expected in rows:
        for _ in range(3):
            loss = nn.functional.cross_entropy(module(x), y)
            loss = loss + 0.5 * l2 * sum(p.square().sum() for p in module.parameters())
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                    parameter -= LR * gradient
        assert deviation(expected, space.row(module)) < ROUNDING


def test_full_batches_are_gradient_descent_on_the_pool_of_numbers() -> None:
    rows, run = trajectory(Centralised(steps=4, lr=LR, batch=None), "least squares", FLAT)
    pool = REGRESSION.train.index
    x = np.concatenate([REGRESSION.x[pool].numpy(), np.ones((len(pool), 1))], axis=1)
    y = REGRESSION.y[pool].numpy()
    w = run.runtime.start[0].numpy().copy()
    for expected in rows:
        for _ in range(4):
            w -= LR * x.T @ (x @ w - y) / len(y)
        assert deviation(expected, torch.from_numpy(w)) < ROUNDING


@every_world
@pytest.mark.parametrize("tree", [FLAT, EQUAL], ids=["flat", "edges"])
def test_one_step_is_a_round_of_fedavg_weighed_by_samples(world: str, tree: covey.Tree) -> None:
    for batch in (None, 6):
        pooled, _ = trajectory(Centralised(steps=1, lr=LR, batch=batch), world, tree)
        averaged, _ = trajectory(FedAvg(steps=1, lr=LR, batch=batch, weight="samples"), world, tree)
        assert deviation(pooled, averaged) < ROUNDING


def test_several_steps_are_not_fedavg() -> None:
    pooled, _ = trajectory(Centralised(steps=4, lr=LR, batch=None), "digits", FLAT)
    averaged, _ = trajectory(FedAvg(steps=4, lr=LR, batch=None, weight="samples"), "digits", FLAT)
    assert deviation(pooled, averaged) > 1e-4


def test_every_step_sends_a_model_and_a_gradient_of_every_device() -> None:
    def sent(algorithm: covey.Algorithm) -> int:
        return trajectory(algorithm, "digits", FLAT, rounds=1)[1].history[0].bytes()

    assert sent(Centralised(steps=5)) == 5 * sent(Centralised(steps=1))
    assert sent(Centralised(steps=1)) == sent(FedAvg(steps=1, lr=LR, weight="samples"))


def test_steps_draw_different_batches_whose_mean_is_the_gradient_of_the_pool() -> None:
    """The displacement of one small step, over many seeds, against that of a full batch."""
    settings: dict[str, Any] = {
        "data": REGRESSION, "model": models.linear(5, 1), "dtype": torch.float64, "start": "module",
        "rounds": 1,
    }  # fmt: skip

    def moved(algorithm: covey.Algorithm, seed: int = 0) -> Tensor:
        run = covey.run(Experiment(algorithm, tree=FLAT, seed=seed, parts=("test",), **settings))
        next(run)
        step: Tensor = run.w[0] - run.runtime.start[0]
        return step

    full = moved(Centralised(steps=1, lr=LR, batch=None))
    each = torch.stack([moved(Centralised(steps=1, lr=LR, batch=2), seed) for seed in range(60)])
    error = each.std(0) / 60**0.5
    assert bool(((each.mean(0) - full).abs() < 4 * error).all())
    two = moved(Centralised(steps=2, lr=1e-6, batch=2)) / 2
    one = moved(Centralised(steps=1, lr=1e-6, batch=2))
    assert float((two - one).abs().max()) > 1e-3 * float(one.abs().max())
