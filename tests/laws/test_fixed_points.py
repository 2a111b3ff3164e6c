"""At an algorithm's own fixed point a round changes nothing.

Every device has the same least-squares problem, so its minimiser is everybody's. Under FedMac's
correlation the fixed point is where f'(w) = lam w instead.
"""

from typing import Any

import torch
from torch import Tensor

import covey
from covey import Run, data, models
from covey.algorithms.nested import Nested
from tests import peek
from tests.given import drained
from tests.laws.cases import CASES, SMALL, Case, assert_moved, every, experiment, with_fields

WIDTH = 5
DRAW = torch.Generator().manual_seed(2)
X = torch.randn(40, WIDTH, generator=DRAW, dtype=torch.float64)
Y = torch.randn(40, generator=DRAW, dtype=torch.float64)
SHARDS = data.own_parts(train=[(X, Y)] * 8)
ZERO = ("_control", "_velocity", "_mean")  # what is kept beside models, and is 0 at a fixed point
ANY = ("_square",)  # what may be anything there
SMOOTH = {
    name: case for name, case in CASES.items() if not case.l1 and not case.noisy and not case.prunes
}


def correlation(case: Case) -> float:
    if isinstance(case.algorithm, Nested):
        last = case.algorithm.levels[-1]
        return last.lam if last.coupling == "correlation" else 0.0
    algorithm: Any = case.algorithm
    return algorithm.lam if type(case.algorithm).__name__ == "FedMac" else 0.0


def fixed_point(case: Case) -> Tensor:
    ridge = (
        case.settings.get("l2", 0.0)
        + getattr(case.algorithm, "weight_decay", 0.0)
        - correlation(case)
    )
    hessian = X.T @ X / len(X) + ridge * torch.eye(WIDTH, dtype=torch.float64)
    return torch.linalg.solve(hessian, X.T @ Y / len(X))


def start(case: Case, row: Tensor | None) -> Run:
    full = Case(case.name, with_fields(case.algorithm, batch=None, pick=None), case.settings)
    model = models.linear(WIDTH, 1, bias=False)
    own = {"data": SHARDS, "model": model, "private": ()}  # its one layer cannot be split
    run = covey.run(
        experiment(full, **own, loss="squared_error", dtype=torch.float64, parts=("train",))
    )
    if row is not None:
        run.w, run.runtime.start = row[None].clone(), row[None].clone()
    return run


def distance(run: Run, row: Tensor) -> float:
    """Of the global model and of every kept one; what is kept beside them, as SCAFFOLD's controls,
    is 0 there (`ZERO`), or may be anything (`ANY`).

    What a file without an entry in `SMALL` keeps beside its models (`_name`) may be anything.
    """
    kept = [(name, rows) for _, name, *_, rows in peek.dump(run) if rows.shape[1:] == row.shape]
    if type(run.experiment.algorithm).__name__ not in SMALL:
        kept = [(name, rows) for name, rows in kept if not name.startswith("_")]
    return max(
        float((rows - (0 if name in ZERO else row)).abs().max())
        for name, rows in [("", run.w), *kept]
        if name not in ANY
    )


@every(SMOOTH)
def test_a_round_changes_nothing_at_the_fixed_point(case: Case) -> None:
    row = fixed_point(case)
    run = drained(start(case, row))
    print(f"largest deviation {distance(run, row):.1e}")
    assert distance(run, row) < 1e-13
    elsewhere = drained(start(case, None))
    assert_moved(elsewhere)
