"""The gradient of an envelope needs only the minimiser: lam (x - child) for the squared distance,
-lam child for correlation.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import covey
from covey import Experiment, Rows, Run, Tree, data, descend, models
from covey.algorithms.nested import Level, Nested
from covey.engine.task import Task

WIDTH, LAM, STEP = 3, 0.4, 1e-4
DRAW = torch.Generator().manual_seed(7)
PAIRS = [
    (torch.randn(n, WIDTH, generator=DRAW).double(), torch.randn(n, generator=DRAW).double())
    for n in (12, 30, 7, 19)
]
SHARDS = data.own_parts(train=PAIRS)
MODEL = models.linear(WIDTH, 1, bias=False)
IDS = torch.arange(len(PAIRS))


def losses(task: Task, x: Rows) -> Tensor:
    tally = task.evaluate(x, "train", IDS)
    return tally.loss / tally.count


def differences(value: Callable[[Rows], Tensor], x: Rows) -> Rows:
    """The central difference of a value per row, coordinate by coordinate."""
    unit = STEP * torch.eye(WIDTH, dtype=torch.float64)
    return torch.stack([(value(x + e) - value(x - e)) / (2 * STEP) for e in unit], dim=1)


@pytest.mark.parametrize("coupling", ["prox", "correlation"])
def test_the_gradient_of_an_envelope_is_its_finite_difference(coupling: str) -> None:
    task = Task(MODEL, SHARDS, loss="squared_error", dtype=torch.float64)

    def child(x: Rows) -> Rows:
        tie = {"prox": (LAM, x)} if coupling == "prox" else {"linear": -LAM * x, "decay": 1.0}
        return descend(
            x, lambda c: task.full_gradient(c, IDS), steps=2000, lr=0.25, tol=1e-12, method="nesterov", **tie,
        )  # fmt: skip

    def envelope(x: Rows) -> Tensor:
        c = child(x)
        tie = LAM / 2 * (c - x).square() if coupling == "prox" else c.square() / 2 - LAM * c * x
        return losses(task, c) + tie.sum(1)

    x = torch.randn(len(IDS), WIDTH, generator=DRAW).double()
    gradient = LAM * (x - child(x)) if coupling == "prox" else -LAM * child(x)
    far = (gradient - differences(envelope, x)).abs().max()
    print(f"largest deviation {far:.1e}")
    assert far < 1e-9
    assert gradient.abs().max() > 0.1


def nested_run(*between: Level) -> Run:
    last = Level(
        "device", "personal", lam=LAM, steps=2000, lr=0.25, tol=1e-12, method="nesterov", warm=True
    )
    tree = Tree.grouped([3, 1]) if between else Tree.flat(4)
    algorithm = Nested((Level("server", lr=1.0), *between, last))
    settings: dict[str, Any] = {"rounds": 100, "score_every": 100, "workers": 1}
    settings |= {"loss": "squared_error", "dtype": torch.float64, "parts": ("train",)}
    return covey.run(Experiment(algorithm, SHARDS, MODEL, tree, **settings))


@pytest.mark.parametrize(
    "between",
    [(), (Level("edge", "edge", lam=0.6, steps=32, lr=1.0),)],
    ids=["one envelope", "an envelope of envelopes"],
)
def test_a_server_step_is_the_finite_difference_of_the_nested_envelopes(
    between: tuple[Level, ...],
) -> None:
    run = nested_run(*between)

    def after(x: Rows) -> Rows:
        run.w = x.clone()
        next(run)
        return run.w

    def envelope(x: Rows) -> Tensor:
        after(x)
        theta = run.rows("personal")[1]
        near = losses(run.runtime.task, theta)
        if not between:
            return (near + LAM / 2 * (theta - x).square().sum(1)).mean()[None]
        edges = run.rows("edge")[1]
        near = near + LAM / 2 * (theta - edges[torch.tensor([0, 0, 0, 1])]).square().sum(1)
        ties = between[0].lam / 2 * (edges - x).square().sum(1)
        return (torch.stack([near[:3].mean(), near[3]]) + ties).mean()[None]

    x = torch.randn(1, WIDTH, generator=DRAW).double()
    gradient = x - after(x)
    far = (gradient - differences(envelope, x)).abs().max()
    print(f"largest deviation {far:.1e}")
    assert far < 1e-9
    assert gradient.abs().max() > 0.1
