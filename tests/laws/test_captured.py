"""The bits of every case, of the demo and of the examples are those of captured.json."""

import json
from collections.abc import Callable

import pytest

from covey import Run
from tests.laws.capture import FILE, RULE, digest, everything, machine, outline
from tests.laws.cases import state

CAPTURED = json.loads(FILE.read_text())
RUNS = dict(everything())


def test_what_was_captured_still_exists() -> None:
    assert set(CAPTURED["runs"]) <= set(RUNS), RULE


@pytest.mark.parametrize("name", [name for name in RUNS if name in CAPTURED["runs"]])
def test_the_bits_are_the_captured_ones(name: str) -> None:
    run: Callable[[], Run] = RUNS[name]
    ended = run()
    known = CAPTURED["runs"][name]
    assert outline(ended) == pytest.approx(known["outline"], rel=2e-3), RULE
    if CAPTURED["machine"] == machine():
        assert digest(state(ended)) == known["bits"], RULE
