"""A seed decides every bit, and a run leaves the caller's torch as it was."""

import torch

import covey
from tests.laws.cases import Case, assert_moved, differences, every_algorithm, every_case, experiment, finished, state


@every_case
def test_one_seed_gives_one_run_and_another_another(case: Case) -> None:
    once, again, other = (state(finished(case, seed=seed, rounds=2)) for seed in (3, 3, 4))
    assert differences(once, again) == []
    rows = [key for key, value in once.items() if isinstance(value, torch.Tensor) and value.shape[1:] == once["global"].shape[1:]]
    assert all(not torch.equal(once[key], other[key]) for key in rows)


@every_algorithm
def test_a_run_leaves_threads_and_generator_alone(case: Case) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        here = experiment(case, workers=3)
        generator = torch.random.get_rng_state()
        run = covey.run(here)
        list(run)
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
        once = state(finished(case))
        torch.set_num_threads(2)
        torch.manual_seed(2)
        assert differences(once, state(finished(case))) == []
    finally:
        torch.set_num_threads(before)
