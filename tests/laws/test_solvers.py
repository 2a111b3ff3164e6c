"""Laws over solvers: whoever computes a row, when and beside whom, its bits are the same.

In CI, pairs of algorithm and solver take turns in the laws of resumed runs and of nodes alone. With
COVEY_TEST_ALL every algorithm that has solvers is tried with one whose state is kept.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.laws import differences, state
from tests import peek
from tests.given import drained
from tests.laws.cases import CASES, Case, experiment
from tests.laws.test_graphs import Rerun
from tests.laws.test_loopback import WIRED

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
SOLVERS: dict[str, dict[str, Any]] = {
    "nesterov": {"momentum": 0.8, "nesterov": True, "decay": 0.01},
    "clip-cosine": {"momentum": 0.5, "clip": 0.2, "schedule": "cosine"},
    "adamw": {"name": "adamw", "decay": 0.1, "schedule": "step"},
    "epochs": {"epochs": 1.5, "schedule": "linear"},
    "epochs-momentum": {"epochs": 2, "momentum": 0.5},
    "kept-adam": {"name": "adam", "state": "kept"},
    "kept-epochs": {"momentum": 0.8, "state": "kept", "epochs": 1.5},
}


def takes_a_solver(case: Case) -> bool:
    """Whether the steps of a case are plain gradient steps, which a solver can take."""
    plain = getattr(case.algorithm, "method", "gradient") == "gradient"
    return plain and case.algorithm.plain_steps is None


METHODS = ("FedAvg", "FedRep", "PerMFL-lists")
PAIRS = [(name, solver) for name in METHODS for solver in SOLVERS]
if ALL:
    every = [(name, "kept-adam") for name, case in CASES.items() if takes_a_solver(case)]
    PAIRS = list(dict.fromkeys(PAIRS + every))
CHUNKS: tuple[dict[str, int], ...] = ({"memory": 1}, {"workers": 3, "memory": 1})
if not ALL:
    slow = {("PerMFL-lists", solver) for solver in SOLVERS if "epochs" in solver}
    slow.add(("FedRep", "kept-epochs"))
    PAIRS = [pair for pair in PAIRS if pair not in slow]
    CHUNKS = CHUNKS[1:]
REPLAYED = [name for name in SOLVERS if "epochs" not in name]
if not ALL:
    REPLAYED = ["kept-adam"]


def pairs(start: int, cases: dict[str, Case] = CASES) -> pytest.MarkDecorator:
    """All pairs of these cases, or in CI every second one from here on."""
    some = PAIRS if ALL else PAIRS[start::2]
    some = [(name, solver) for name, solver in some if name in cases]
    return pytest.mark.parametrize(("name", "solver"), some)


def made(name: str, solver: str, **changes: Any) -> covey.Experiment:
    return experiment(CASES[name], solver=SOLVERS[solver], **changes)


def ended(run: covey.Run) -> dict[str, Any]:
    return state(drained(run))


@cache
def whole(name: str, solver: str) -> dict[str, Any]:
    """The state of an undisturbed run."""
    return ended(covey.run(made(name, solver)))


@pytest.mark.parametrize(("name", "solver"), PAIRS)
def test_chunks_and_workers_change_no_bit(name: str, solver: str) -> None:
    for changes in CHUNKS:
        apart = ended(covey.run(made(name, solver, **changes)))
        assert differences(whole(name, solver), apart) == [], changes


@pairs(0)
def test_a_resumed_run_is_the_run_that_never_stopped(
    name: str, solver: str, tmp_path: Path
) -> None:
    first = covey.run(made(name, solver))
    next(first)
    first.save(tmp_path / "checkpoint")
    rest = covey.run(made(name, solver), resume=tmp_path / "checkpoint")
    assert differences(whole(name, solver), ended(rest)) == []


@pairs(1, WIRED)
def test_nodes_that_share_nothing_compute_the_same_bits(name: str, solver: str) -> None:
    alone = covey.run(made(name, solver), runtime="loopback")
    assert differences(whole(name, solver), ended(alone)) == []


@pytest.mark.parametrize("solver", SOLVERS)
def test_seeds_side_by_side_are_as_seeds_alone(solver: str) -> None:
    together = covey.runs([made("FedAvg", solver, seed=seed) for seed in (0, 4)])
    drained(together)
    assert differences(whole("FedAvg", solver), state(together.seeds[0])) == []


@pytest.mark.parametrize("solver", REPLAYED)
def test_a_replayed_program_is_as_one_that_runs(solver: str) -> None:
    """With what stands in for a CUDA graph; schedules and kept state enter it as figures."""
    plain = ended(covey.run(made("FedAvg", solver, rounds=5)))
    replayed = covey.run(made("FedAvg", solver, rounds=5))
    peek.use_graphs(replayed, Rerun)
    assert differences(plain, ended(replayed)) == []


@pytest.mark.parametrize("solver", ["kept-adam", "kept-epochs"])
def test_a_round_that_fails_leaves_the_state_of_before(
    solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = covey.run(made("FedAvg", solver))
    next(run)
    before = state(run)
    with monkeypatch.context() as patch:
        patch.setattr(covey.Replies, "mean", _fails)
        with pytest.raises(RuntimeError, match="a fault"):
            next(run)
    assert differences(before, state(run)) == []
    assert differences(whole("FedAvg", solver), ended(run)) == []


def _fails(*arguments: Any, **options: Any) -> None:
    raise RuntimeError("a fault")
