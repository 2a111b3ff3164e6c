"""What runs say of their scores is what scored.json has, with every runtime."""

import json

import pytest

from tests.laws.capture import machine
from tests.laws.scored import FILE, RULE, RUNTIMES, cases, digest, finished, form, outline

CAPTURED = json.loads(FILE.read_text())
CASES = dict(cases())


def test_every_case_is_captured() -> None:
    assert set(CAPTURED["runs"]) == set(CASES), RULE


@pytest.mark.parametrize("name", CASES)
def test_scores_are_told_as_before(name: str) -> None:
    by_runtime = [finished(CASES[name], runtime) for runtime in RUNTIMES]
    first, *others = by_runtime
    assert others == [first] * len(others)
    known = CAPTURED["runs"][name]
    assert outline(first) == pytest.approx(known["outline"], rel=2e-3, abs=1e-6), RULE
    assert form(first) == known["form"], RULE
    if CAPTURED["machine"] == machine():
        assert digest(first) == known["bits"], RULE
