"""The accounting of experiments/baselines: what a method is said to evaluate is what a run evaluates."""

import pytest

import covey
from covey.algorithms import ALGORITHMS, PerMFL
from experiments.baselines.budget import gradients
from experiments.baselines.methods import GRADIENTS, METHODS
from experiments.baselines.run import experiment

COINS = ("l2gd", "al2gd")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_same_budget(method: str) -> None:
    for point in METHODS[method].points:
        assert gradients(METHODS[method].make(point, 20)) == pytest.approx(GRADIENTS)


@pytest.mark.parametrize("method", [method for method in METHODS if method not in COINS])
def test_a_run_takes_what_its_budget_says(method: str) -> None:
    asked = experiment("digits", method, 0, seed=0, rounds=2)
    assert [record.gradients for record in covey.run(asked)] == [GRADIENTS * asked.data.devices] * 2


@pytest.mark.parametrize("method", COINS)
def test_coins_take_it_on_average(method: str) -> None:
    rounds, asked = 100, experiment("digits", method, 0, seed=0, rounds=100)
    total = sum(record.gradients for record in covey.run(asked))
    assert total / asked.data.devices / rounds == pytest.approx(GRADIENTS, rel=0.3)  # three standard deviations


def test_no_algorithm_is_missing() -> None:
    families = {method.partition("-")[0] for method in METHODS}
    assert families | {"nested"} == set(ALGORITHMS)


def test_devices_with_their_own_numbers_of_steps_are_counted_one_by_one() -> None:
    """And those who were not asked are not, though they train."""
    data, model, tree = covey.data.digits(devices=6), covey.models.linear(64, 10), covey.Tree.grouped([3, 3])
    steps = [1, 2, 3, 4, 5, 6]
    for batch in (5, None):
        algorithm = PerMFL(steps=steps, edge_rounds=[2, 3], batch=batch, sample=1)
        for record in covey.run(covey.Experiment(algorithm, data, model, tree, rounds=3, idle="train")):
            (edge,) = record.cohorts["edge"]
            assert record.gradients == (2 + edge) * sum(steps[3 * edge : 3 * edge + 3])
