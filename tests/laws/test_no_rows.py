"""Every program runs on no rows at all, and what it keeps and answers then has the widths it has
later.
"""

import covey
from tests import peek
from tests.laws.cases import Case, Odd, assert_moved, every_algorithm, every_case, experiment


@every_case
def test_columns_have_their_widths_before_anybody_kept_a_row(case: Case) -> None:
    run = covey.run(experiment(case))
    before = {
        key: (column.template.shape[1:], column.template.dtype)
        for key, column in peek.store(run).columns.items()
    }
    assert all(len(ids) == 0 for _, _, ids, _, _ in peek.dump(run))
    next(run)
    after = {
        key: (column.template.shape[1:], column.template.dtype)
        for key, column in peek.store(run).columns.items()
    }
    assert before == after
    assert_moved(run)


@every_case
def test_no_server_answers_no_rows_of_the_right_width_and_sends_nothing(case: Case) -> None:
    run = covey.run(experiment(case))
    answer = run.runtime.play(case.algorithm.server, run.w[:0], round=0).answer
    assert answer.shape == (0, run.runtime.task.space.width)
    assert answer.dtype == run.w.dtype
    assert run.meter.bytes(lane=None) == 0


@every_algorithm
def test_no_rows_of_a_module_that_runs_through_vmap(case: Case) -> None:
    run = covey.run(experiment(case, model=Odd()))
    assert run.runtime.task.forward.path == "vmap"
    assert run.runtime.play(case.algorithm.server, run.w[:0], round=0).answer.shape == (
        0,
        run.w.shape[1],
    )
