"""The accounting of experiments/baselines: what a method is said to evaluate is what a run
evaluates.
"""

from typing import Any

import pytest

import covey
from covey.algorithms import ALGORITHMS, PerFedAvg, PerMFL
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
    # three standard deviations
    assert total / asked.data.devices / rounds == pytest.approx(GRADIENTS, rel=0.3)


def test_the_hessian_free_method_is_the_one_whose_figures_are_printed() -> None:
    for point in METHODS["perfedavg-hf"].points:
        method = METHODS["perfedavg-hf"].make(point, 20)
        assert isinstance(method, PerFedAvg)
        assert method.hessian == "difference"


def test_the_methods_are_algorithms_and_none_whose_figures_are_printed_is_missing() -> None:
    """A new file joins the experiment when somebody chooses its grid."""
    families = {method.partition("-")[0] for method in METHODS}
    assert families <= set(ALGORITHMS) - {"nested", "centralised"}  # a yardstick is no method
    assert len(families) >= 26


@pytest.mark.parametrize("idle", ["skip", "train"])
def test_devices_with_their_own_numbers_of_steps_are_counted_one_by_one(idle: Any) -> None:
    """Those who were not asked are counted where they train."""
    data = covey.data.digits(devices=6)
    model = covey.models.linear(64, 10)
    tree = covey.Tree.grouped([3, 3])
    steps = [1, 2, 3, 4, 5, 6]
    by_edge = [2 * (1 + 2 + 3), 3 * (4 + 5 + 6)]  # edge rounds times the steps of its devices
    for batch in (5, None):
        algorithm = PerMFL(steps=steps, edge_rounds=[2, 3], batch=batch, sample=1)
        asked = covey.Experiment(algorithm, data, model, tree, rounds=3, idle=idle)
        for record in covey.run(asked):
            (edge,) = record.cohorts["edge"]
            assert record.gradients == (sum(by_edge) if idle == "train" else by_edge[edge])


def test_idle_devices_under_an_edge_that_is_asked_are_counted_too() -> None:
    data = covey.data.digits(devices=6)
    model = covey.models.linear(64, 10)
    tree = covey.Tree.grouped([2, 4])
    algorithm = PerMFL(steps=3, edge_rounds=2, batch=5, device_sample=0.5)
    counts = {}
    for idle in ("skip", "train"):
        (record,) = covey.run(covey.Experiment(algorithm, data, model, tree, rounds=1, idle=idle))
        counts[idle] = record.gradients
    assert counts == {"skip": 3 * 2 * 3, "train": 6 * 2 * 3}  # devices, edge rounds, steps
