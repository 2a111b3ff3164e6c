"""Laws over kinds of models: whoever computes a row, when and beside whom, its bits are the same.

In CI, networks take turns in the laws of resumed runs and of seeds side by side.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.laws import differences, state
from tests.given import drained
from tests.laws.cases import CLASSES, INPUTS, Case, every_algorithm
from tests.laws.cases import experiment as case_experiment
from tests.laws.networks import NETWORKS, ROUNDS

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
NAMES = list(NETWORKS)
CHUNKS: tuple[dict[str, int], ...] = ({"workers": 3, "memory": 1},)
if ALL:
    CHUNKS = ({"memory": 1}, {"workers": 2}, {"workers": 3}, {"workers": 3, "memory": 1})


def finished(name: str, **changes: Any) -> dict[str, Any]:
    return state(drained(covey.run(NETWORKS[name].experiment(**changes))))


@cache
def whole(name: str) -> dict[str, Any]:
    """The state of an undisturbed run."""
    return finished(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_network_learns(name: str) -> None:
    begin = NETWORKS[name].experiment().initial()
    end = whole(name)["global"]
    assert bool(torch.isfinite(end).all())
    far = (end - begin).norm() / begin.norm()
    assert far > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_chunks_and_workers_change_no_bit(name: str) -> None:
    for changes in CHUNKS:
        assert differences(whole(name), finished(name, **changes)) == [], changes


@pytest.mark.parametrize("name", NAMES if ALL else NAMES[::2])
def test_a_resumed_run_is_the_run_that_never_stopped(name: str, tmp_path: Path) -> None:
    first = covey.run(NETWORKS[name].experiment())
    for _ in range(ROUNDS - 1):
        next(first)
    first.save(tmp_path / "checkpoint")
    rest = covey.run(NETWORKS[name].experiment(), resume=tmp_path / "checkpoint")
    assert differences(whole(name), state(drained(rest))) == []


@pytest.mark.parametrize("name", NAMES)
def test_nodes_that_share_nothing_compute_the_same_bits(name: str) -> None:
    alone = covey.run(NETWORKS[name].experiment(), runtime="loopback")
    assert differences(whole(name), state(drained(alone))) == []


@pytest.mark.parametrize("name", NAMES if ALL else NAMES[1::2])
def test_seeds_side_by_side_are_as_seeds_alone(name: str) -> None:
    together = covey.runs([NETWORKS[name].experiment(seed=seed) for seed in (0, 4)])
    drained(together)
    assert differences(whole(name), state(together.seeds[0])) == []
    assert differences(finished(name, seed=4), state(together.seeds[1])) == []


def dropping() -> nn.Module:
    """What every algorithm can train, with dropout."""
    return nn.Sequential(nn.Linear(INPUTS, 7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, CLASSES))


@pytest.mark.skipif(not ALL, reason="slow; for make test-all")
@every_algorithm
def test_no_algorithm_draws_by_where_it_runs(case: Case) -> None:
    """Dropout and augmentation in every algorithm: in one piece, in chunks, by nodes alone."""
    settings: dict[str, Any] = {"augment": {"name": "noise", "sd": 0.2}, "rounds": 2}
    one = state(drained(covey.run(case_experiment(case, model=dropping(), **settings))))
    chunks = {**settings, "workers": 3, "memory": 1}
    parts = state(drained(covey.run(case_experiment(case, model=dropping(), **chunks))))
    assert differences(one, parts) == []
    nodes = covey.run(case_experiment(case, model=dropping(), **settings), runtime="loopback")
    assert differences(one, state(drained(nodes))) == []
    quiet = {**settings, "augment": ()}
    other = state(drained(covey.run(case_experiment(case, model=dropping(), **quiet))))
    assert differences(one, other) != []
