"""The virtual clock watches a run: with a radio that waits, every algorithm learns what it learns
without one.
"""

from dataclasses import replace

import pytest

from covey.wireless import personal_only
from tests.laws.cases import TREES, Case, differences, every, every_algorithm, finished, state
from tests.laws.test_idle import ALONE
from tests.radio.law_cases import AIR


@every_algorithm
def test_a_clock_changes_nothing(case: Case) -> None:
    tree = (
        {"tree": TREES[3]} if len(case.algorithm.tiers()) == 2 or case.algorithm.any_depth else {}
    )
    plain, timed = finished(case, **tree), finished(case, **tree, radio=AIR)
    assert all(record.radio is not None for record in timed.history)
    without = state(timed) | {"history": state(plain)["history"]}
    assert differences(state(plain), without) == []


@every_algorithm
def test_seconds_and_joules(case: Case) -> None:
    """They are there in every round; twice the cycles and half the rates take twice the time at
    twice the energy.
    """
    tree = (
        {"tree": TREES[3]} if len(case.algorithm.tiers()) == 2 or case.algorithm.any_depth else {}
    )
    wires = {"wire_rate": AIR.cells.wire_rate / 2, "wire_delay": AIR.cells.wire_delay * 2}
    cells = replace(AIR.cells, bandwidth=AIR.cells.bandwidth / 2, **wires)
    radio = replace(AIR, deadline=None, policy=personal_only)
    slower = replace(
        radio, devices=replace(AIR.devices, cycles=2 * AIR.devices.cycles), cells=cells
    )
    fast, slow = finished(case, **tree, radio=radio), finished(case, **tree, radio=slower)
    for one, two in zip(fast.history, slow.history, strict=True):
        assert min(one.radio.seconds, one.radio.joules) >= 0
        assert two.radio.seconds == pytest.approx(2 * one.radio.seconds, rel=1e-12)
        assert two.radio.joules == pytest.approx(2 * one.radio.joules, rel=1e-12)
        assert one.radio.upload_bytes == one.bytes(fast.runtime.tree.links[-1], "up")
    sent = any(record.bytes() for record in fast.history)
    assert not sent or sum(record.radio.seconds for record in fast.history if record.radio) > 0


@every({name: case for name, case in ALONE.items() if "radio" not in case.settings and not case.l1})
def test_who_was_not_asked_spends_nothing(case: Case) -> None:
    """Neither those who train beside the ones asked, nor those under an edge that was not asked."""
    tree = (
        {"tree": TREES[3]} if len(case.algorithm.tiers()) == 2 or case.algorithm.any_depth else {}
    )
    skip, train = (finished(case, **tree, radio=AIR, idle=idle) for idle in ("skip", "train"))
    assert [record.radio for record in skip.history] == [record.radio for record in train.history]
