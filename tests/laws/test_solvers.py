"""Laws over solvers: whoever computes a row, when and beside whom, its bits are the same."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.laws import differences, state
from tests.laws.cases import CASES, experiment

SOLVERS: dict[str, dict[str, Any]] = {
    "nesterov": {"momentum": 0.8, "nesterov": True, "decay": 0.01},
    "clip-cosine": {"momentum": 0.5, "clip": 0.2, "schedule": "cosine"},
    "adamw": {"name": "adamw", "decay": 0.1, "schedule": "step"},
}
PAIRS = [(name, solver) for name in ("FedAvg", "FedRep", "PerMFL-lists") for solver in SOLVERS]
pairs = pytest.mark.parametrize(("name", "solver"), PAIRS)


def made(name: str, solver: str, **changes: Any) -> covey.Experiment:
    return experiment(CASES[name], solver=SOLVERS[solver], **changes)


def ended(run: covey.Run) -> dict[str, Any]:
    for _ in run:
        pass
    return state(run)


@cache
def whole(name: str, solver: str) -> dict[str, Any]:
    """The state of an undisturbed run."""
    return ended(covey.run(made(name, solver)))


@pairs
def test_chunks_and_workers_change_no_bit(name: str, solver: str) -> None:
    for changes in ({"memory": 1}, {"workers": 3, "memory": 1}):
        apart = ended(covey.run(made(name, solver, **changes)))
        assert differences(whole(name, solver), apart) == [], changes


@pairs
def test_a_resumed_run_is_the_run_that_never_stopped(
    name: str, solver: str, tmp_path: Path
) -> None:
    first = covey.run(made(name, solver))
    next(first)
    first.save(tmp_path / "checkpoint")
    rest = covey.run(made(name, solver), resume=tmp_path / "checkpoint")
    assert differences(whole(name, solver), ended(rest)) == []


@pairs
def test_nodes_that_share_nothing_compute_the_same_bits(name: str, solver: str) -> None:
    alone = covey.run(made(name, solver), runtime="loopback")
    assert differences(whole(name, solver), ended(alone)) == []


@pytest.mark.parametrize("solver", SOLVERS)
def test_seeds_side_by_side_are_as_seeds_alone(solver: str) -> None:
    together = covey.runs([made("FedAvg", solver, seed=seed) for seed in (0, 4)])
    for _ in together:
        pass
    assert differences(whole("FedAvg", solver), state(together.seeds[0])) == []
