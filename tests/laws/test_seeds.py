"""A seed decides every bit, and a run leaves the caller's torch as it was."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey.errors import ConfigError
from covey.runs.experiment import difference
from tests.given import drained, played
from tests.laws.cases import (
    CASES,
    PLAIN,
    Case,
    assert_moved,
    differences,
    every,
    every_algorithm,
    experiment,
    finished,
    shards,
    state,
    whole,
)

SAMPLED = {name: CASES[name] for name in ("FedAvg-sample", "HierFAVG-sample-samples")}
"""Every seed draws its own cohorts."""


@every(CASES if os.environ.get("COVEY_TEST_ALL") else PLAIN | SAMPLED)
def test_seeds_side_by_side_are_as_seeds_alone_and_each_is_another_run(case: Case) -> None:
    apart = [
        experiment(case, seed=3),
        experiment(case, seed=4, data=shards(seed=6)),
        experiment(case, seed=8),
    ]
    together = drained(covey.runs(apart))
    once, _, other = (state(seed) for seed in together.seeds)
    rows = [
        key
        for key, value in once.items()
        if isinstance(value, torch.Tensor) and value.shape[1:] == once["global"].shape[1:]
    ]
    assert all(not torch.equal(once[key], other[key]) for key in rows)
    for seed, alone in zip(together.seeds, apart, strict=True):
        run = played(alone)
        assert_moved(run)
        assert differences(state(seed), state(run)) == []


@every_algorithm
def test_seeds_go_on_alone_or_together(case: Case, tmp_path: Path) -> None:
    apart = [replace(experiment(case, seed=seed), rounds=2) for seed in (3, 4)]
    longer = [replace(one, rounds=4, score_every=4) for one in apart]
    first = drained(covey.runs(apart))
    paths = [tmp_path / f"{at}.safetensors" for at in range(2)]
    for seed, path in zip(first.seeds, paths, strict=True):
        seed.save(path)
    together = drained(covey.runs(longer, resume=paths))
    for seed, path, one in zip(together.seeds, paths, longer, strict=True):
        alone, never = covey.run(one, resume=path), covey.run(one)
        list(alone)
        list(never)
        for other in (alone, never):
            # the first two rounds were scored for being the last of their run
            scores = {"history": "", "meter": ""}
            assert differences(state(seed) | scores, state(other) | scores) == []


def test_unlike_experiments_do_not_run_in_one_go() -> None:
    one = experiment(PLAIN["FedAvg"])
    for other, named in (
        (replace(one, rounds=9), "rounds"),
        (replace(one, algorithm=covey.algorithms.FedAvg(lr=0.5)), "algorithm"),
        (replace(one, l2=0.1), "l2"),
    ):
        with pytest.raises(ConfigError, match=f"differ in {named}"):
            covey.runs([one, other])


@every_algorithm
def test_a_run_leaves_threads_and_generator_alone(case: Case) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        here = experiment(case, workers=3)
        generator = torch.random.get_rng_state()
        run = played(here)
        assert_moved(run)
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.random.get_rng_state(), generator)
    finally:
        torch.set_num_threads(before)


@every_algorithm
def test_the_callers_generator_and_threads_change_nothing(case: Case) -> None:
    before = torch.get_num_threads()
    try:
        torch.manual_seed(1)
        once = state(whole(case.name))
        torch.set_num_threads(2)
        torch.manual_seed(2)
        assert differences(once, state(finished(case))) == []
    finally:
        torch.set_num_threads(before)


def test_experiments_that_compute_differently_do_not_run_in_one_go() -> None:
    shards = covey.data.synthetic(devices=4, sizes=[20] * 4)

    class Scaled(torch.nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.inside, self.by = torch.nn.Linear(60, 10), by

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.by * self.inside(x)

    def experiment(seed: int, **changes: Any) -> covey.Experiment:
        plain: dict[str, Any] = {"model": Scaled(1.0), "loss": "cross_entropy", **changes}
        return covey.Experiment(
            covey.algorithms.FedAvg(), shards, tree=covey.Tree.flat(4), rounds=1, seed=seed, **plain
        )

    assert difference([experiment(0), experiment(1)]) is None
    assert "models differ" in str(difference([experiment(0), experiment(1, model=Scaled(2.0))]))
    losses = [lambda out, y: out.sum(1), lambda out, y: 2 * out.sum(1)]
    assert "differ in loss" in str(
        difference([experiment(s, loss=loss) for s, loss in enumerate(losses)])
    )
    # equal code, but what they refer to may differ
    losses = [lambda out, y: out.sum(1) for _ in range(2)]
    assert "two functions" in str(
        difference([experiment(s, loss=loss) for s, loss in enumerate(losses)])
    )
