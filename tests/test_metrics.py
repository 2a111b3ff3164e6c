"""Metrics from sums: against hand computation, over devices, in records, and in the choice."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey import Experiment, Tree
from covey.algorithms import PFedMe
from covey.data import Shards, own_parts
from covey.engine.measures.metrics import AUC, AUC_BINS, Metric, Targets, metrics_of
from covey.errors import CheckpointError, ConfigError, CoveyError
from covey.models import linear
from covey.runs.scores import record
from covey.runs.scores.devices import from_csv, to_csv
from covey.runs.selection import select
from tests.cli.command import SMALL, exits
from tests.given import played

CLASSES = Targets("classes", 4)
LABELS = Targets("labels", 3)
NAMES = ("f1", "balanced_accuracy", "top2", "auc", "ece")
DEVICES = 6


def one(name: str, targets: Targets) -> Metric:
    return metrics_of([name], targets)[0]


def examples(targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, targets and weights of three rows; the last examples of a row are padding."""
    g = torch.Generator().manual_seed(1)
    outputs = 2 * torch.randn(3, 40, targets.size, generator=g, dtype=torch.float64)
    y = torch.randint(targets.size - 1, (3, 40), generator=g)  # the last class never occurs
    if targets.kind == "labels":
        y = (torch.rand(3, 40, targets.size, generator=g) < 0.4).double()
    weight = torch.ones(3, 40)
    weight[1, 25:] = 0
    weight[2, 7:] = 0
    return outputs, y, weight


def value_of_all(metric: Metric, outputs: Tensor, y: Tensor, weight: Tensor) -> float:
    """The figure of the sums of all rows."""
    assert metric.own.sums is not None
    sums = metric.own.sums(outputs, y, weight)
    assert sums.shape == (len(y), metric.own.columns)
    assert sums.dtype == torch.float64
    return float(metric.value(sums.sum(0, keepdim=True)))


def seen(outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Any, Any]:
    """The examples that count, as one table."""
    counts = weight.flatten() > 0
    return outputs.flatten(0, 1)[counts].numpy(), y.flatten(0, 1)[counts].numpy()


def f1_of(predicted: Any, actual: Any) -> float:
    right = (predicted & actual).sum()
    precision = right / max(predicted.sum(), 1)
    recall = right / max(actual.sum(), 1)
    return 2 * precision * recall / (precision + recall) if right else 0.0


def area(scores: Any, actual: Any) -> float:
    """The fraction of pairs of a positive and a negative example that are in order."""
    gaps = scores[actual][:, None] - scores[~actual][None, :]
    return float((gaps > 0).mean() + 0.5 * (gaps == 0).mean())


def test_f1_balanced_accuracy_and_top_k_by_hand() -> None:
    given = examples(CLASSES)
    outputs, y = seen(*given)
    predicted = outputs.argmax(1)
    occurring = sorted(set(predicted) | set(y))
    f1 = np.mean([f1_of(predicted == k, y == k) for k in occurring])
    recall = np.mean([(predicted[y == k] == k).mean() for k in sorted(set(y))])
    top2 = np.mean([label in np.argsort(-row)[:2] for row, label in zip(outputs, y, strict=True)])
    assert value_of_all(one("f1", CLASSES), *given) == pytest.approx(f1, abs=1e-12)
    assert value_of_all(one("balanced_accuracy", CLASSES), *given) == pytest.approx(recall)
    assert value_of_all(one("top2", CLASSES), *given) == pytest.approx(top2)


def largest_error(sums: Tensor) -> float:
    """How far the area may be from the exact one: half the pairs that share a bin."""
    positive, negative = sums.view(2, -1, AUC_BINS)
    pairs = positive.sum(-1) * negative.sum(-1)
    shared = (positive * negative).sum(-1)
    return float((0.5 * shared / pairs)[pairs > 0].mean())


@pytest.mark.parametrize("targets", [CLASSES, LABELS, Targets("classes", 2)])
def test_auc_is_within_its_error_of_the_exact_area(targets: Targets) -> None:
    outputs, y, weight = examples(replace(targets, size=targets.size + (targets.size == 2)))
    outputs = outputs[..., : targets.size]
    metric = AUC(targets)
    table, actual = seen(outputs, y, weight)
    if targets.kind == "classes":
        odds = torch.logit(torch.softmax(torch.tensor(table), 1)).numpy()
        columns = [1] if targets.size == 2 else range(3)  # class 3 never occurs
        exact = np.mean([area(odds[:, k], actual == k) for k in columns])
    else:
        exact = np.mean([area(table[:, k], actual[:, k] > 0) for k in range(3)])
    sums = metric.sums(outputs, y, weight).sum(0, keepdim=True)
    error = largest_error(sums)
    assert 0 < error < 0.005
    assert abs(float(metric.value(sums)) - exact) <= error * (1 + 1e-12)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("scale", [0.001, 0.01, 1, 60, 10_000])
def test_auc_does_not_depend_on_the_scale_of_the_outputs(classes: int, scale: float) -> None:
    rng = np.random.default_rng(classes)
    y = rng.integers(0, classes, 2000)
    scores = rng.normal(size=(2000, classes)) + 0.6 * np.eye(classes)[y]
    outputs = torch.tensor(scale * scores)
    odds = np.stack(
        [
            outputs[:, k] - torch.cat([outputs[:, :k], outputs[:, k + 1 :]], 1).logsumexp(1)
            for k in range(classes)
        ]
    )
    counted = [1] if classes == 2 else range(classes)
    exact = np.mean([area(odds[k], y == k) for k in counted])
    metric = AUC(Targets("classes", classes))
    sums = metric.sums(outputs[None], torch.tensor(y)[None], torch.ones(1, 2000))
    assert largest_error(sums) < 0.006
    assert float(metric.value(sums)) == pytest.approx(exact, abs=5e-4)


def test_auc_of_scores_in_order_is_one_and_of_equal_scores_a_half() -> None:
    metric = one("auc", Targets("classes", 2))
    y = torch.tensor([[0, 0, 1, 1]])
    logits = torch.tensor([[-30.0, -1, 1, 50]])
    outputs = torch.stack([torch.zeros(1, 4), logits], dim=-1)
    weight = torch.ones(1, 4)
    assert value_of_all(metric, outputs, y, weight) == 1
    assert value_of_all(metric, torch.zeros_like(outputs), y, weight) == 0.5
    assert math.isnan(value_of_all(metric, outputs, torch.zeros_like(y), weight))


def test_labels_by_hand() -> None:
    given = examples(LABELS)
    outputs, y = seen(*given)
    predicted = outputs > 0
    f1 = np.mean([f1_of(predicted[:, k], y[:, k] > 0) for k in range(3)])
    assert value_of_all(one("f1", LABELS), *given) == pytest.approx(f1)
    accuracy = one("accuracy", LABELS)
    assert accuracy.name == "label_accuracy"
    assert value_of_all(accuracy, *given) == pytest.approx((predicted == (y > 0)).mean())
    probabilities = torch.sigmoid(given[0]), *given[1:]
    targets = replace(LABELS, logits=False)
    assert value_of_all(one("f1", targets), *probabilities) == pytest.approx(f1)


def test_a_model_with_more_outputs_than_classes() -> None:
    outputs, y, weight = examples(CLASSES)
    wide = torch.cat([outputs, outputs[..., :2] + 1], dim=-1)
    for name in NAMES:
        assert 0 < value_of_all(one(name, CLASSES), wide, y, weight) < 1


def shards(kind: str = "classes") -> Shards:
    g = torch.Generator().manual_seed(0)

    def part(size: int) -> list[tuple[Tensor, Tensor]]:
        out = []
        for device in range(DEVICES):
            count = size + device
            x = torch.randn(count, 3, generator=g)
            y = torch.randint(3, (count,), generator=g)
            if kind == "labels":
                y = (x[:, :2] + torch.randn(count, 2, generator=g) > 0).float()
            if kind == "numbers":
                y = x.sum(1, keepdim=True)
            out.append((x, y))
        return out

    classes = 3 if kind == "classes" else None
    return own_parts(train=part(8), validation=part(5), test=part(6), classes=classes)


def experiment(kind: str = "classes", **settings: Any) -> Experiment:
    outputs = {"classes": 3, "labels": 2, "numbers": 1}[kind]
    if kind == "labels":
        settings = {"loss": "bce", **settings}
    given = {"rounds": 3, "metrics": NAMES, **settings}
    algorithm = PFedMe(lr=0.05, batch=4, sample=0.5)
    return Experiment(algorithm, shards(kind), linear(3, outputs), Tree.flat(DEVICES), **given)


def plain(run: Any) -> list[dict[str, Any]]:
    """The records without what no two runs share."""
    out = []
    for entry in run.history:
        facts = entry.as_dict()
        del facts["seconds"], facts["spent"]
        out.append(facts)
    return out


def test_a_record_has_the_metrics_of_the_examples_of_all_devices() -> None:
    run = played(experiment())
    model = run.module("global")
    data = run.experiment.data
    part = data.part("test")
    x, y = data.x[part.index], data.y[part.index]
    with torch.no_grad():
        outputs = model(x)
    score = run.history[-1].models["global"].scores["test"]
    for metric in metrics_of(NAMES, Targets("classes", 3)):
        expected = value_of_all(metric, outputs[None], y[None], torch.ones(1, len(y)))
        assert score.metrics[metric.name] == pytest.approx(expected, abs=1e-6)
        assert score.metrics_fallback[metric.name] == score.metrics[metric.name]
    figures = run.history[-1].figures()
    assert figures["global/test/f1"] == score.metrics["f1"]
    assert f"f1 {score.metrics['f1']:.4g}" in str(run.history[-1])


def test_holders_alone_and_everybody_differ_where_not_all_hold_a_model() -> None:
    score = next(iter(covey.run(experiment()))).models["personal"].scores["test"]
    assert score.metrics.keys() == score.metrics_fallback.keys() == set(NAMES)
    assert score.metrics != score.metrics_fallback


def test_metrics_change_nothing_else() -> None:
    with_metrics = plain(played(experiment()))
    without = plain(played(experiment(metrics=())))
    for facts in with_metrics:
        for model in facts["models"].values():
            for score in model["scores"].values():
                del score["metrics"], score["metrics_fallback"]
    for facts in (*with_metrics, *without):
        traffic = facts["traffic"]
        facts["traffic"] = {key: traffic[key] for key in traffic if "train" in key}
    assert with_metrics == without


def test_the_confusion_matrix_is_that_of_all_devices() -> None:
    run = played(experiment(metrics=["f1", "confusion"], rounds=1))
    data = run.experiment.data
    part = data.part("test")
    with torch.no_grad():
        predicted = run.module("global")(data.x[part.index]).argmax(1)
    expected = np.zeros((3, 3), dtype=int)
    np.add.at(expected, (data.y[part.index].numpy(), predicted.numpy()), 1)
    score = run.history[0].models["global"].scores["test"]
    assert score.confusion == expected.tolist()
    assert score.metrics.keys() == {"f1"}
    assert run.devices()[0].metrics.keys() == {"f1"}


def test_a_record_goes_to_json_and_back() -> None:
    asked = experiment(metrics=["confusion"], rounds=1, select="ece")
    last = played(asked).history[-1]
    assert record.read(json.loads(json.dumps(last.as_dict()))) == last


def test_figures_that_every_record_has_are_named_too() -> None:
    score = played(experiment("numbers", metrics=["rmse"], rounds=1)).history[0].models["global"]
    test = score.scores["test"]
    assert test.metrics == {"rmse": test.rmse}


@pytest.mark.parametrize(
    ("name", "kind", "sign"),
    [("f1", "classes", 1), ("ece", "classes", -1), ("loss", "classes", -1), ("mae", "numbers", -1)],
)
def test_the_round_is_chosen_by_the_metric_on_validation(name: str, kind: str, sign: int) -> None:
    run = played(experiment(kind, metrics=(), select=name, rounds=6))
    figures = [entry.models["personal"].scores["validation"].figure(name) for entry in run.history]
    best = max(range(6), key=lambda k: sign * (figures[k] or 0.0))
    assert select(run.history, "personal").chosen.round == best
    assert run.chosen["chosen personal"].round == best
    assert replace(run.experiment, rounds=7).select == run.experiment.select


def test_a_saved_run_goes_on_with_its_metrics(tmp_path: Path) -> None:
    whole = played(experiment(select="f1"))
    run = covey.run(experiment(select="f1"))
    next(run)
    run.save(tmp_path / "saved.safetensors")
    resumed = played(experiment(select="f1"), resume=tmp_path / "saved.safetensors")
    assert plain(resumed) == plain(whole)
    assert resumed.devices() == whole.devices()
    with pytest.raises(CheckpointError, match="select"):
        covey.run(experiment(), resume=tmp_path / "saved.safetensors")


def margin(outputs: Tensor, y: Tensor) -> Tensor:
    """The label's logit over the largest other."""
    label = outputs.gather(1, y[:, None])
    others = outputs.scatter(1, y[:, None], -torch.inf)
    return label[:, 0] - others.amax(1)


def test_a_metric_of_ones_own_is_a_mean_over_examples() -> None:
    run = played(experiment(metrics=(margin,), select="margin", rounds=1))
    data = run.experiment.data
    part = data.part("test")
    with torch.no_grad():
        values = margin(run.module("global")(data.x[part.index]), data.y[part.index])
    score = run.history[0].models["global"].scores["test"]
    assert score.metrics["margin"] == pytest.approx(float(values.mean()), abs=1e-6)
    assert run.experiment.select == "margin"
    assert experiment(metrics=(margin,), select="-margin").select == "-margin"


def sum_of_all(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.sum()


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("classes", {"metrics": ["f2"]}, r"no metric 'f2'; choose from top3 .*, f1, auc"),
        ("numbers", {"metrics": ["auc"]}, r"auc is not for this data, these targets are numbers"),
        ("labels", {"metrics": ["ece"]}, r"ece is not for this data, .* yes-or-no labels"),
        ("classes", {"metrics": ["top3"]}, r"top3 is always 1, for there are 3 classes"),
        ("classes", {"metrics": ["f1", "f1"]}, r"metrics names 'f1' twice; keep one"),
        ("classes", {"metrics": 3}, r"metrics = 3 must be a list"),
        ("classes", {"metrics": [3]}, r"metrics.0 = 3 must be text or a function"),
        ("classes", {"select": "rmse"}, r"rmse is not for this data, these targets are classes"),
        ("classes", {"select": "confusion"}, r"select = 'confusion' is a table; select a figure"),
        ("classes", {"select": "-f1"}, r"select = '-f1': the largest f1 is the best; leave out"),
        ("classes", {"select": 3}, r"select = 3 must be text"),
    ],
)
def test_what_does_not_fit_is_refused_before_work(
    kind: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(kind, **{"metrics": (), **settings})


def test_a_function_that_does_not_fit_is_refused_before_work() -> None:
    with pytest.raises(ConfigError, match=r"sum_of_all returned \(\); return one number per"):
        covey.run(experiment(metrics=[sum_of_all]))
    with pytest.raises(ConfigError, match="metric MSELoss returned"):
        covey.run(experiment("numbers", metrics=[nn.MSELoss()]))


def logarithm(outputs: Tensor, y: Tensor) -> Tensor:
    return torch.where(y == 2, torch.nan, outputs[:, 0])


@pytest.mark.parametrize("runtime", ["simulator", "loopback"])
def test_a_function_that_is_not_finite_is_named_and_not_the_step_size(runtime: Any) -> None:
    said = r"metric logarithm is NaN or infinite for \d+ of \d+ examples, whose outputs are finite"
    with pytest.raises(CoveyError, match=said):
        played(experiment(metrics=[logarithm]), runtime=runtime)


def test_the_command_shows_them_and_writes_them_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "def doubt(outputs, y):\n    return -outputs.log_softmax(-1).gather(1, y[:, None])[:, 0]\n"
    )
    (tmp_path / "own_metrics.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    asked = 'metrics=["f1", "confusion", "auc", "own_metrics:doubt"]'
    ended = exits(0, "run", *SMALL, asked, "select=-doubt", "--out", folder)
    assert "in the round chosen by doubt on validation data" in ended.out
    assert re.search(r"^model +kept by +test doubt .* test % .* f1 +auc", ended.out, re.MULTILINE)
    assert re.search(r"gain in doubt: median", ended.out)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    model = summary["models"][-1]
    assert model["metrics"]["doubt"]["mean"] == pytest.approx(model["loss"]["mean"], abs=1e-5)
    text = (folder / "devices.csv").read_text(encoding="utf-8")
    lines = from_csv(text)
    assert to_csv(lines) == text
    assert {"f1", "auc", "doubt"} == lines[0].metrics.keys() == lines[0].last_metrics.keys()
    for line in lines:
        assert line.metrics["doubt"] == pytest.approx(line.loss, abs=1e-5)
    matrix = list(csv.reader(io.StringIO((folder / "confusion.csv").read_text(encoding="utf-8"))))
    assert matrix[0] == ["model", "round", "class", *(f"predicted {k}" for k in range(10))]
    own = [row[3:] for row in matrix if row[0] == model["model"]]
    right = sum(int(row[k]) for k, row in enumerate(own))
    counted = sum(int(cell) for row in own for cell in row)
    assert right / counted == pytest.approx(model["accuracy"]["mean"])
    heads = (folder / "metrics.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert {"personal/test/f1", "personal/test/f1_fallback"} <= set(heads)
    _check_devices(folder)


def _check_devices(folder: Path) -> None:
    """`covey show --devices` has the worst device first, whichever way is better."""
    for options, unit, worst in (
        ([], "doubt", max),  # of select = "-doubt"
        (["--metric", "f1"], "f1", min),
        (["--metric", "loss"], "loss", max),
    ):
        ended = exits(0, "show", folder, "--devices", *options)
        head, *rows = ended.out.splitlines()
        assert head.endswith(f"personal {unit}")
        values = [float(row.split()[-1]) for row in rows]
        assert values[0] == worst(values)
        assert values == sorted(values, reverse=worst is max)
    ended = exits(2, "show", folder, "--devices", "--metric", "rmse")
    assert "devices have accuracy, loss, f1, auc, doubt" in ended.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('metrics=["f2"]', "error: metrics: there is no metric 'f2'; choose from top3, "),
        ("select=f2", "error: metrics: there is no metric 'f2'; choose from top3, "),
        ("select=mine:margin", "error: 'mine:margin' is no name of a metric; name the function in"),
        ("metrics=[f1,auc]", 'error: metrics = "[f1,auc]" must be a list (on a'),
        ('metrics=["rmse"]', "error: metrics: rmse is not for this data, these targets are cla"),
    ],
)
def test_a_file_may_not_name_what_is_not_there(change: str, message: str, tmp_path: Path) -> None:
    assert exits(2, "run", *SMALL, change, "--out", tmp_path / "run").err.startswith(message)
