"""Two small worlds in float64 on which algorithms that must coincide are run side by side."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import covey
from covey import Algorithm, Experiment, Run, Tree, data, models

DEVICES = 20
FLAT, EQUAL, UNEQUAL = Tree.flat(DEVICES), Tree.grouped([5] * 4), Tree.grouped([7, 1, 4, 8])


def digits() -> dict[str, Any]:
    return {"data": DIGITS, "model": models.mlp(64, 7, 10), "dtype": torch.float64}


def least_squares() -> dict[str, Any]:
    return {
        "data": REGRESSION, "model": models.linear(5, 1), "dtype": torch.float64, "loss": "squared_error",
    }  # fmt: skip


def regression() -> data.Shards:
    """Devices of 10 to 29 examples, each with its own true coefficients."""
    draw = torch.Generator().manual_seed(11)
    pairs = []
    for device in range(DEVICES):
        x = torch.randn(10 + device, 5, generator=draw, dtype=torch.float64)
        pairs.append(
            (x, x @ torch.randn(5, generator=draw, dtype=torch.float64) + 0.1 * x[:, 0].square())
        )
    return data.own(pairs)


DIGITS, REGRESSION = data.digits(devices=DEVICES, labels=2), regression()
WORLDS: dict[str, Callable[[], dict[str, Any]]] = {"digits": digits, "least squares": least_squares}


def trajectory(
    algorithm: Algorithm, world: str, tree: Tree, *, rounds: int = 3, **changes: Any
) -> tuple[Tensor, Run]:
    """The global row after every round, [rounds, P], and the finished run."""
    settings = {
        **WORLDS[world](), "workers": 1, "score_every": rounds, "parts": ("test",), **changes,
    }  # fmt: skip
    run = covey.run(Experiment(algorithm=algorithm, tree=tree, rounds=rounds, **settings))
    rows = torch.cat([run.w.clone() for _ in run])
    assert (rows[-1] - run.runtime.start[0]).norm() > 0.01 * run.runtime.start[0].norm(), (
        "the model did not move"
    )
    return rows, run


def deviation(left: Tensor, right: Tensor) -> float:
    """The largest difference, against the largest entry; printed, so that `pytest -rP` lists them
    all.
    """
    far = float((left - right).abs().max() / left.abs().max())
    print(f"largest deviation {far:.1e}")
    return far
