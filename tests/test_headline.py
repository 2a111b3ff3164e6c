"""The metric by which a run is judged: which one it is, its direction, and how it is written."""

import numpy as np
import pytest

from covey.errors import ConfigError
from covey.grid import sweep
from covey.grid.axes import axis
from covey.grid.grid import in_words
from covey.grid.pool import Job
from covey.grid.result import MethodRow, Result
from covey.grid.tables import methods
from covey.report.summary import OverSeeds, summarise
from covey.runs.scores.headline import Headline, asked_for, for_devices, headline, named, selected
from tests.given import played
from tests.test_metrics import NAMES, experiment

LOWER = ("loss", "rmse", "mae", "perplexity", "ece", "-margin")
HIGHER = ("accuracy", "f1", "auc", "balanced_accuracy", "label_accuracy", "top3", "r2", "margin")


def test_the_direction_of_every_metric() -> None:
    assert not any(named(name).higher for name in LOWER)
    assert all(named(name).higher for name in HIGHER)
    for metric in map(named, (*LOWER, *HIGHER)):
        good, bad = (0.8, 0.4) if metric.higher else (0.4, 0.8)
        assert metric.badness(good) < metric.badness(bad) < metric.badness(None)
        gain = metric.gain(good, bad)
        assert gain is not None
        assert gain > 0
        assert metric.gain(None, bad) is None
    assert named("rmse").gain(1.0, 0.0) is None


def test_only_the_accuracy_is_in_per_cent() -> None:
    texts = {name: named(name).with_unit(0.5) for name in (*LOWER, *HIGHER)}
    assert texts.pop("accuracy") == "50.00 %"
    assert not any("%" in text for text in texts.values())
    assert texts["rmse"] == "RMSE 0.5"
    assert named("f1").text(None) == "-"


@pytest.mark.parametrize(
    ("kind", "select", "shown", "chosen_by"),
    [
        ("classes", "", "accuracy", "accuracy"),
        ("classes", "ece", "ece", "ece"),
        ("numbers", "", "rmse", "loss"),
        ("numbers", "r2", "r2", "r2"),
        ("labels", "", "loss", "loss"),
        ("labels", "accuracy", "label_accuracy", "label_accuracy"),
    ],
)
def test_a_run_is_judged_by_its_select_or_by_what_it_has(
    kind: str, select: str, shown: str, chosen_by: str
) -> None:
    run = played(experiment(kind, metrics=(), select=select, rounds=1))
    assert headline(run.history) == named(shown)
    model = run.history[0].models["personal"]
    assert selected(model) == named(chosen_by)
    metric = selected(model)
    value = metric.of(model.scores["validation"])
    assert value is not None
    assert model.quality("validation") == (value if metric.higher else -value)


def test_devices_fall_back_to_a_figure_that_they_have() -> None:
    run = played(experiment("numbers", metrics=(), select="r2", rounds=1))
    lines = run.devices()
    assert for_devices(headline(run.history), lines) == named("rmse")  # r2 is of all devices
    with pytest.raises(ConfigError, match="--metric 'r2': devices have rmse, mae, loss"):
        asked_for("r2", named("r2"), lines)
    (gain,) = summarise([run.history], devices=[lines]).gains
    assert gain.figure == "rmse"


def test_gains_of_devices_are_in_the_metric_of_select() -> None:
    run = played(experiment(metrics=(), select="ece", rounds=2))
    lines = [line for line in run.devices() if line.part == "test"]
    own = {line.device: line.metrics["ece"] for line in lines if line.model == "personal"}
    base = {line.device: line.metrics["ece"] for line in lines if line.model == "global"}
    gains = [(base[name] or 0.0) - (own[name] or 0.0) for name in own]
    (gain,) = summarise([run.history], devices=[run.devices()]).gains
    assert gain.figure == "ece"
    assert gain.median == pytest.approx(np.median(gains))
    assert (gain.better, gain.worse) == (sum(g > 0 for g in gains), sum(g < 0 for g in gains))


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


def test_equal_figures_are_written_alike() -> None:
    assert Headline("accuracy", True).text(0.98765) == OverSeeds(0.98765, None).percent()
    assert Headline("f1", True).text(0.98765) == str(OverSeeds(0.98765, None))
