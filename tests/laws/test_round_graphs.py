"""A whole round replayed on static memory does what it does when it runs: every algorithm, with
what stands in for a CUDA graph.
"""

from __future__ import annotations

import os

import covey
from tests import peek
from tests.laws.cases import PLAIN, Case, differences, every, experiment, state
from tests.laws.test_graphs import CAPTURED, Rerun

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
ROUNDS = 4


def plain(here: covey.Experiment) -> covey.Run:
    run = covey.run(here)
    list(run)
    return run


@every(CAPTURED if ALL else PLAIN)
def test_replaying_a_round_changes_no_bit(case: Case) -> None:
    here = experiment(case, rounds=ROUNDS)
    run = covey.run(here)
    rounds = peek.use_round_graphs(run, Rerun)
    list(run)
    assert (rounds.replays > 0) != (rounds.reason is not None)
    assert differences(state(run), state(plain(here))) == []
