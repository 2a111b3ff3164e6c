"""A run that diverges says where, and stands where it stood after the last good round."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import covey
from covey import Algorithm
from covey.algorithms.nested import Nested
from covey.errors import DivergedError
from tests import peek
from tests.laws.cases import (
    PLAIN,
    Case,
    assert_moved,
    differences,
    every_algorithm,
    experiment,
    state,
    with_fields,
)


def wild(algorithm: Algorithm) -> Any:
    """The same with steps that no float32 survives."""
    part: Any = algorithm.levels[-1] if isinstance(algorithm, Nested) else algorithm
    names = [f.name for f in fields(part) if f.name.startswith("lr") or f.name.endswith("_lr")]
    return with_fields(algorithm, **dict.fromkeys(names, 1e30))


@every_algorithm
def test_divergence_is_named_and_undone(case: Case, tmp_path: Path) -> None:
    run = covey.run(experiment(case, rounds=4))
    next(run), next(run)
    assert_moved(run)
    good, calm = state(run), run.experiment
    peek.change(run, replace(calm, algorithm=wild(case.algorithm)))
    with pytest.raises(
        DivergedError,
        match=r"^round 3: the (answer of \w+|kept '\w+'|new global model) of (device|edge|server) \d",
    ):
        next(run)
    assert run.round == 2
    assert differences(good, state(run)) == []

    run.save(tmp_path / "saved")
    peek.change(run, calm)
    resumed, straight = covey.run(calm, resume=tmp_path / "saved"), covey.run(calm)
    for each in (run, resumed, straight):
        list(each)
    assert differences(state(straight), state(run)) == []
    assert differences(state(straight), state(resumed)) == []


def test_the_first_round_may_diverge_too() -> None:
    case = PLAIN["PerMFL"]
    run = covey.run(experiment(replace(case, algorithm=wild(case.algorithm))))
    before = state(run)
    with pytest.raises(DivergedError, match="round 1: "):
        next(run)
    assert differences(before, state(run)) == []


@every_algorithm
def test_a_model_too_large_to_score_is_undone_too(case: Case) -> None:
    """One step may end finite and yet so far out that its loss is not."""
    far = with_fields(wild(case.algorithm), steps=1, tune_steps=1, local_rounds=1, edge_rounds=1)
    run = covey.run(experiment(case, rounds=3, score_every=1))
    next(run)
    good = state(run)
    peek.change(run, replace(run.experiment, algorithm=far))
    with pytest.raises(DivergedError, match="round 2: "):
        next(run)
    assert run.round == 1
    assert differences(good, state(run)) == []
