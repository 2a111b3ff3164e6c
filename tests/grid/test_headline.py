"""Comparisons and sweeps are told in the metric by which their runs are judged."""

import pytest

from covey.grid import sweep
from covey.grid.axes import axis
from covey.grid.grid import in_words
from covey.grid.pool import Job
from covey.grid.result import MethodRow, Result
from covey.grid.tables import methods
from covey.report.summary import summarise
from covey.runs.scores.headline import named
from tests.given import played
from tests.test_metrics import NAMES, experiment


def compared(kind: str, select: str) -> Result:
    """A comparison of two runs that differ in their length."""
    histories = {}
    rows = []
    for title, rounds in (("Short", 1), ("Long", 8)):
        metrics = NAMES if kind == "classes" else ()
        run = played(experiment(kind, metrics=metrics, select=select, rounds=rounds))
        histories[title] = [list(run.history)]
        figures = summarise(histories[title]).models
        rows.append(MethodRow(title, title, 1, 0, {}, seeds=1, model="global", models=figures))
    return Result(rows, [], {"unit": "gradients", "amount": 1.0}, False, histories)


@pytest.mark.parametrize(
    ("kind", "select", "head"),
    [("classes", "ece", "test ece"), ("classes", "f1", "test f1"), ("numbers", "", "test RMSE")],
)
def test_a_comparison_has_the_best_method_first(kind: str, select: str, head: str) -> None:
    table = methods(compared(kind, select))
    assert table.heads[2] == head
    values = [float(row[2].split()[0]) for row in table.rows]
    higher = named(select or "rmse").higher
    assert values == sorted(values, reverse=higher)
    if kind == "numbers":
        assert "%" not in table.text()


def trials(metric: str, *scores: float) -> sweep.SweepResult:
    """A sweep over one key, the best trial first."""
    made = [
        sweep.SweepTrial(number, {"algorithm.lr": 0.1}, score, "personal", (3,), metric=metric)
        for number, score in enumerate(sorted(scores, reverse=True))
    ]
    return sweep.SweepResult([axis("algorithm.lr=0.1,0.2")], made)


@pytest.mark.parametrize(
    ("metric", "scores", "head", "cells"),
    [
        ("accuracy", (0.5, 0.75), "validation %", ["75.00", "50.00"]),
        ("auc", (0.5, 0.75), "validation auc", ["0.75", "0.5"]),
        ("r2", (-0.5, 0.25), "validation R2", ["0.25", "-0.5"]),
        ("-rmse", (-0.5, -0.25), "validation RMSE", ["0.25", "0.5"]),
        ("-ece", (0.0, -0.25), "validation ece", ["0", "0.25"]),
    ],
)
def test_a_sweep_is_told_in_its_metric(
    metric: str, scores: tuple[float, ...], head: str, cells: list[str]
) -> None:
    result = trials(metric, *scores)
    table = sweep.table(result)
    assert table.heads[2] == head
    assert [row[2] for row in table.rows] == cells
    lines = [line.split(",") for line in result.csv().splitlines()]
    assert lines[0][:4] == ["trial", "metric", "value", "score"]
    assert [float(line[2]) for line in lines[1:]] == [float(cell) / _scale(head) for cell in cells]
    told = in_words(Job("trial-1", {}), {"score": scores[1], "metric": metric})
    assert told == f"trial-1: {named(metric).with_unit(abs(scores[1]))} on validation"


def _scale(head: str) -> float:
    return 100.0 if head.endswith("%") else 1.0


def test_a_trial_that_failed_has_no_metric() -> None:
    assert in_words(Job("trial-1", {}), {"error": "no", "diverged": True}) == "trial-1: diverged"
    assert sweep.SweepTrial(1, {}, -float("inf")).value is None
