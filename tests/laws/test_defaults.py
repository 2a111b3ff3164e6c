"""Constructed with no argument, every algorithm in the folder works on two populations: the law of
experiments/defaults.

One seed with one and a half more points of slack, since FedAMP's gap to FineTune is 4.0, 2.2 and
2.1 points at seeds 0, 1 and 2; `python -m experiments.defaults.run` takes three.
"""

import os
from functools import cache

import pytest

from covey import Algorithm
from experiments.defaults.law import (
    EXCEPTIONS,
    GLOBAL_TOO,
    ONE_MODEL,
    ROUNDS,
    SLOW,
    WORLDS,
    YARDSTICKS,
    Scores,
    found,
    limits,
    rounds_of,
    scores,
    worlds_of,
)

SEED, SLACK = 0, 1.5
ALGORITHMS = {cls.__name__: cls for cls in found()}
ALL = bool(os.environ.get("COVEY_TEST_ALL"))
TWICE = ("FedMac", "PFedMe", "SFedHP")
"""Methods that are held to both populations in every run of the tests; the others in test-all."""

PAIRS = [
    (cls, world)
    for name, cls in ALGORITHMS.items()
    if name not in EXCEPTIONS
    for world in worlds_of(name)
    if ALL or world == "digits" or name in TWICE or "digits" not in worlds_of(name)
]


@cache
def yardsticks(world: str, rounds: int) -> dict[str, Scores]:
    """The yardsticks' scores, once in a process."""
    return {
        name: scores(algorithm, WORLDS[world], SEED, rounds)
        for name, algorithm in YARDSTICKS.items()
    }


@pytest.mark.parametrize(
    ("cls", "world"), PAIRS, ids=[f"{cls.__name__}-{world}" for cls, world in PAIRS]
)
def test_defaults_work(cls: type[Algorithm], world: str) -> None:
    name = cls.__name__
    reached = scores(cls(), WORLDS[world], SEED, rounds_of(name))
    demands = limits(name, world, reached, yardsticks(world, rounds_of(name)), SLACK)
    assert demands
    broken = [
        f"{d.model} {d.score:.1f} % < {d.least:.1f} % ({d.why})" for d in demands if not d.holds
    ]
    assert not broken, (
        f"{name}() on the {world} after {rounds_of(name)} rounds: {'; '.join(broken)}"
    )


def test_names_in_the_law_are_algorithms_and_exceptions_have_reasons() -> None:
    for name in (*EXCEPTIONS, *SLOW, *ONE_MODEL, *GLOBAL_TOO):
        assert name in ALGORITHMS
    assert all(EXCEPTIONS.values())
    assert not set(EXCEPTIONS) & set(SLOW)


def test_a_new_file_is_held_to_the_law_without_an_entry() -> None:
    """Both a personal model that is too weak and a global one without a personal one beside it."""
    sticks: dict[str, Scores] = {
        "FineTune": {"global": 92.0, "personal": 98.0},
        "FedAvg": {"global": 92.0},
    }
    assert worlds_of("New") == list(WORLDS)
    assert rounds_of("New") == ROUNDS
    (tuned, other) = limits("New", "digits", {"global": 96.5, "personal": 94.0}, sticks)
    assert (tuned.least, tuned.holds) == (95.0, False)
    assert (other.least, other.holds) == (94.5, False)
    (alone,) = limits("New", "synthetic", {"global": 89.0}, sticks)
    assert (alone.model, alone.least, alone.holds) == ("global", 89.0, True)


def test_the_law_demands_what_it_says() -> None:
    sticks: dict[str, Scores] = {
        "FineTune": {"global": 92.0, "personal": 98.0},
        "FedAvg": {"global": 92.0},
    }
    reached = {"global": 83.9, "personal": 97.0}
    assert [d.why for d in limits("PFedMe", "digits", reached, sticks) if not d.holds] == ["84 %"]
    assert all(d.holds for d in limits("PFedMe", "digits", reached, sticks, slack=1.0))
    assert all(d.holds for d in limits("PFedMe", "synthetic", reached, sticks))
    edge, other, best = limits("HierFAVG", "digits", {"global": 88.9, "edge": 95.0}, sticks)
    assert (edge.model, edge.holds, other.holds, best.model, best.holds) == (
        "edge", True, True, "global", False,
    )  # fmt: skip
    assert limits("PFedGP", "digits", {"global": 90.0, "personal": 93.0}, sticks)[0].holds
