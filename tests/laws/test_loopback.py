"""A node that has only its own shard, its own rows and bytes on its links does what it does in the simulator, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import covey
from tests.laws.cases import CASES, PLAIN, Case, differences, every, experiment, finished, state

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
WIRED = {name: case for name, case in CASES.items() if "radio" not in case.settings}
"""Radio runs have a virtual clock, which only the simulator has."""

INT8 = {"name": "int8", "rounding": "stochastic"}
LINKS: dict[str, dict[str, Any]] = {
    "int8 updates with feedback": {"name": "int8", "update": True, "feedback": True},
    "stochastic int8 updates": {**INT8, "update": True},
    "stochastic int4 with feedback": {"name": "int4", "rounding": "stochastic", "feedback": True},
    "the largest tenth, with feedback": {"name": "coo", "keep": 0.1, "feedback": True},
    "the largest half of updates, with feedback": {"name": "bitmap", "keep": 0.5, "update": True, "feedback": True},
}
CODED = [PLAIN[name] for name in ("FedAvg", "SFedHP", "PerMFL", "Pruned", "Scaffold", "FedMac")]


def ran(case: Case, runtime: str, **changes: Any) -> covey.Run:
    run = covey.run(experiment(case, **changes), runtime=runtime)
    for _ in run:
        pass
    return run


@every(WIRED)
def test_every_case_is_the_simulators(case: Case) -> None:
    assert differences(state(finished(case)), state(ran(case, "loopback"))) == []


@pytest.mark.parametrize("case", (WIRED if ALL else PLAIN).values(), ids=str)
def test_every_case_is_the_simulators_in_float64(case: Case) -> None:
    changes: dict[str, Any] = {"dtype": torch.float64, "rounds": 2}
    assert differences(state(finished(case, **changes)), state(ran(case, "loopback", **changes))) == []


@pytest.mark.parametrize("codec", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("case", list(WIRED.values()) if ALL else CODED, ids=str)
def test_codecs_with_memory_and_draws(case: Case, codec: dict[str, Any]) -> None:
    """Updates are of what goes up; the other options hold in both directions."""
    assert differences(state(finished(case, codec=codec)), state(ran(case, "loopback", codec=codec))) == []
