"""The accounting of experiments/baselines: what a method is said to evaluate is what a run evaluates."""

import pytest

import covey
from covey.algorithms import ALGORITHMS
from experiments.baselines.budget import counted, gradients
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
    with counted() as count:
        list(covey.run(asked))
    assert count.total == 2 * GRADIENTS * asked.data.devices


@pytest.mark.parametrize("method", COINS)
def test_coins_take_it_on_average(method: str) -> None:
    rounds, asked = 100, experiment("digits", method, 0, seed=0, rounds=100)
    with counted() as count:
        list(covey.run(asked))
    assert count.total / asked.data.devices / rounds == pytest.approx(GRADIENTS, rel=0.3)  # three standard deviations


def test_no_algorithm_is_missing() -> None:
    families = {method.partition("-")[0] for method in METHODS}
    assert families | {"nested"} == set(ALGORITHMS)
