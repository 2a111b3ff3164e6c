"""The metric by which a run is judged: which one it is, its direction, and how it is written."""

import numpy as np
import pytest

from covey.errors import ConfigError
from covey.report.summary import OverSeeds, summarise
from covey.runs.scores.headline import Headline, asked_for, for_devices, headline, named, selected
from tests.given import played
from tests.test_metrics import experiment

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


def test_equal_figures_are_written_alike() -> None:
    assert Headline("accuracy", True).text(0.98765) == OverSeeds(0.98765, None).percent()
    assert Headline("f1", True).text(0.98765) == str(OverSeeds(0.98765, None))
