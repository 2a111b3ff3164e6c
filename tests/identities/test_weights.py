"""Methods that coincide do so at their defaults of `weight`, on devices of very different sizes."""

from dataclasses import fields
from typing import Any

import pytest

from covey import Algorithm
from covey.algorithms import (
    ALGORITHMS,
    APFL,
    Ditto,
    FedAlt,
    FedAvg,
    FedPer,
    FedProx,
    FineTune,
    PerFedAvg,
)
from tests.identities.worlds import FLAT, deviation, trajectory
from tests.laws.cases import with_fields

SETTINGS: dict[str, Any] = {"steps": 3, "lr": 0.1, "batch": None}
SAME: dict[str, Algorithm] = {
    "FedProx": FedProx(mu=0.0, **SETTINGS),
    "FineTune": FineTune(**SETTINGS),
    "Ditto": Ditto(**SETTINGS),
    "PerFedAvg": PerFedAvg(alpha=0.0, **SETTINGS),
    "APFL": APFL(**SETTINGS),
    "FedPer": FedPer(**SETTINGS),
    "FedAlt": FedAlt(**SETTINGS),
}


@pytest.mark.parametrize("weight", ["default", "samples"])
@pytest.mark.parametrize("name", SAME)
def test_both_weights_lead_where_fedavg_leads(name: str, weight: str) -> None:
    changes: dict[str, Any] = {} if weight == "default" else {"weight": weight}
    plain, other = (with_fields(method, **changes) for method in (FedAvg(**SETTINGS), SAME[name]))
    rows = [
        trajectory(method, "least squares", FLAT, rounds=2, private="")[0]
        for method in (plain, other)
    ]
    assert deviation(*rows) <= 1e-13


def test_the_two_weights_differ() -> None:
    both = [FedAvg(**SETTINGS), FedAvg(weight="samples", **SETTINGS)]
    assert deviation(*(trajectory(a, "least squares", FLAT, rounds=2)[0] for a in both)) > 1e-3


def test_no_method_has_another_default() -> None:
    methods: list[Any] = list(ALGORITHMS.values())
    every = [field for method in methods for field in fields(method)]
    defaults = [field.default for field in every if field.name == "weight"]
    assert len(defaults) > 10
    assert set(defaults) == {"uniform"}
