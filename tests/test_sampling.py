"""Scores on a sample of the devices: who is asked, what it costs, how far it is from the scores on
all.
"""

import csv
import io
import json
import math
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import covey
from covey import Algorithm, Experiment, Nodes, Tree, draws
from covey.algorithms import FedAlt, FedAvg, HierFAVG
from covey.data import Shards, own_parts
from covey.engine.measures.metrics import Targets, f1, top
from covey.errors import ConfigError
from covey.models import linear
from covey.report.summary import summarise
from covey.runs.run import Round
from covey.runs.scores.sampling import jackknife, standard_error
from tests import peek
from tests.cli.command import SMALL, exits
from tests.given import drained, played
from tests.laws.cases import differences, state

DEVICES = 30
TREES = {"flat": Tree.flat(DEVICES), "tree": Tree.grouped([5, 12, 1, 12])}


def shards(counts: list[int], regression: bool = False) -> Shards:
    """Devices whose labels a model cannot learn alike, with so many test examples each."""
    g = torch.Generator().manual_seed(0)

    def part(sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
        out = []
        for device, size in enumerate(sizes):
            x = torch.randn(size, 3, generator=g, dtype=torch.float64)
            noise = torch.rand(size, generator=g) < device / (2 * len(sizes))
            label = (x.sum(1) > 0) ^ noise
            out.append((x, x.sum(1) + device * noise if regression else label.long()))
        return out

    same = [6] * len(counts)
    return own_parts(
        train=part(same), validation=part(counts), test=part(counts), classes=None if regression else 2,
    )  # fmt: skip


def ragged(count: int = DEVICES) -> list[int]:
    return [1 + 7 * device % 11 for device in range(count)]


def experiment(tree: str = "flat", regression: bool = False, **changes: Any) -> Experiment:
    algorithm = (
        FedAvg(lr=0.1, steps=1) if tree == "flat" else HierFAVG(lr=0.1, steps=1, edge_rounds=1)
    )
    settings: dict[str, Any] = {
        "algorithm": algorithm, "rounds": 3, "dtype": torch.float64, **changes,
    }  # fmt: skip
    model = linear(3, 1 if regression else 2)
    data = settings.pop("data", None) or shards(ragged(), regression)
    return Experiment(data=data, model=model, tree=TREES[tree], **settings)


def drawn(seed: int, round: int, count: int, devices: int = DEVICES) -> list[int]:
    """The devices of the address (seed, round, "score")."""
    key = draws.keys([seed], round, "score")
    zero = torch.zeros(1, dtype=torch.int64)
    return draws.choose(key, zero, sizes=zero + devices, picks=zero + count)[1].tolist()


def test_without_it_a_record_has_no_word_of_it() -> None:
    record = played(experiment()).history[-1]
    score = record.as_dict()["models"]["global"]["scores"]["test"]
    assert not {"sampled", "standard_error", "standard_error_fallback"} & set(score)
    assert "±" not in str(record)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("idle", ["skip", "train"])
def test_training_does_not_depend_on_it(tree: str, idle: str) -> None:
    plain = played(
        experiment(
            tree, idle=idle, algorithm=FedAlt() if tree == "flat" else HierFAVG(device_sample=0.5)
        )
    )
    sampled = played(replace(plain.experiment, score_sample=7))
    for record, other in zip(plain.history, sampled.history, strict=True):
        assert record.cohorts == other.cohorts
        assert record.gradients == other.gradients
        assert record.bytes() == other.bytes()
    assert torch.equal(plain.w, sampled.w)
    columns = [
        [(name, ids, rounds, rows) for _, name, ids, rounds, rows in peek.columns(run)]
        for run in (plain, sampled)
    ]
    for kept, others in zip(*columns, strict=True):
        assert kept[0] == others[0]
        assert all(torch.equal(a, b) for a, b in zip(kept[1:], others[1:], strict=True))


@dataclass(frozen=True)
class Watched(Algorithm):
    """Devices keep a model of their own; which of them predict is written down."""

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.device, w).mean()

    def device(self, me: Nodes, w: Tensor) -> Tensor:
        return me.keep("personal", w + 0.1 * me.normal("noise", w.shape[1]))

    def predictor(self, me: Nodes, name: str, rows: Tensor) -> Any:
        TOUCHED.update(me.ids.tolist())
        return super().predictor(me, name, rows)


TOUCHED: set[int] = set()


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("idle", ["skip", "train"])
def test_only_the_devices_drawn_are_touched(tree: str, idle: str) -> None:
    algorithm = Watched() if tree == "flat" else WatchedTree()
    run = covey.run(experiment(tree, algorithm=algorithm, score_sample=7, idle=idle, seed=4))
    cohorts = []
    for _ in range(3):
        TOUCHED.clear()
        next(run)
        cohorts.append(sorted(TOUCHED))
    assert cohorts == [drawn(4, round, 7) for round in range(3)]
    assert cohorts[0] != cohorts[1]


@dataclass(frozen=True)
class WatchedTree(Watched):
    """The same under edges."""

    def server(self, me: Nodes, w: Tensor) -> Tensor:
        return me.ask(self.edge, w).mean()

    def edge(self, me: Nodes, w: Tensor) -> Tensor:
        return me.keep("edge", me.ask(self.device, w).mean())


@pytest.mark.parametrize("tree", TREES)
def test_bytes_of_scores_shrink_with_the_sample(tree: str) -> None:
    whole, sampled = played(experiment(tree)), played(experiment(tree, score_sample=6))
    link = "server-device" if tree == "flat" else "edge-device"
    for direction in ("down", "up"):
        key = (link, direction, "score")
        for record, other in zip(whole.history, sampled.history, strict=True):
            assert other.traffic[key].bytes * DEVICES == record.traffic[key].bytes * 6
            assert other.traffic[key].messages * DEVICES == record.traffic[key].messages * 6
    if tree == "tree":  # edges keep models of their own, and are all asked
        key = ("server-edge", "down", "score")
        assert whole.history[0].traffic[key] == sampled.history[0].traffic[key]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("regression", [False, True])
def test_figures_are_those_of_the_devices_drawn(tree: str, regression: bool) -> None:
    """Against the sums of every device in a run that scores all."""
    whole = played(experiment(tree, regression, rounds=1))
    record = played(experiment(tree, regression, rounds=1, score_sample=8)).history[0]
    lines = {(line.model, line.part, int(line.device)): line for line in whole.devices()}
    chosen = drawn(0, 0, 8)
    for part in ("validation", "test"):
        picked = [lines["global", part, device] for device in chosen]
        counts = np.array([line.examples for line in picked], dtype=float)
        score = record.models["global"].scores[part]
        assert score.sampled == score.devices == 8
        losses = np.array([line.loss for line in picked]) * counts
        assert score.loss == pytest.approx(losses.sum() / counts.sum(), rel=1e-12)
        totals = losses
        if not regression:
            totals = np.array([line.accuracy for line in picked]) * counts
            assert score.accuracy == pytest.approx(totals.sum() / counts.sum(), rel=1e-12)
        residuals = totals - totals.sum() / counts.sum() * counts
        variance = (1 - 8 / DEVICES) / 8 * residuals.var(ddof=1) / counts.mean() ** 2
        # The mean of the residuals is 0, so that their variance is the sum of squares over n - 1.
        assert score.standard_error == pytest.approx(math.sqrt(variance), rel=1e-9)
        assert score.standard_error_fallback == score.standard_error


def test_the_standard_error_by_hand() -> None:
    right, count = torch.tensor([[1.0, 3.0], [2.0, 4.0]]).double()
    # r = 4/6, residuals 1 - 4/3 = -1/3 and 3 - 8/3 = 1/3, s^2 = 2/9, mean count 3, fpc 1 - 2/10
    assert standard_error(right, count, 10) == pytest.approx(
        math.sqrt(0.8 / 2 * 2 / 9) / 3, rel=1e-12
    )
    assert standard_error(right, count, 2) == 0.0
    assert standard_error(right[:1], count[:1], 10) is None
    assert standard_error(right[:1], count[:1], 1) == 0.0
    assert standard_error(right, torch.zeros(2), 10) is None


def test_it_is_the_error_of_all_possible_samples() -> None:
    """Over every sample of 3 of 7 devices with as many examples, the mean of se^2 is the variance
    of the estimate.
    """
    right = torch.tensor([1.0, 5.0, 2.0, 9.0, 7.0, 0.0, 4.0]).double()
    count = torch.full_like(right, 10.0)
    samples = [list(chosen) for chosen in combinations(range(7), 3)]
    estimates = np.array([float(right[chosen].sum() / count[chosen].sum()) for chosen in samples])
    squares = [(standard_error(right[chosen], count[chosen], 7) or 0.0) ** 2 for chosen in samples]
    assert estimates.mean() == pytest.approx(float(right.sum() / count.sum()), rel=1e-12)
    assert np.mean(squares) == pytest.approx(estimates.var(), rel=1e-12)


@pytest.mark.parametrize("equal", [True, False])
def test_the_estimate_is_unbiased_over_many_rounds(equal: bool) -> None:
    """The model stands still, so every round draws anew from the same devices."""
    data = shards([8] * DEVICES if equal else ragged())
    still = FedAvg(lr=1e-300, steps=1)
    rounds = 400
    run = played(experiment(algorithm=still, data=data, rounds=1))
    whole = run.history[0].models["global"].scores["test"]
    run = played(experiment(algorithm=still, data=data, rounds=rounds, score_sample=10))
    scores = [record.models["global"].scores["test"] for record in run.history]
    estimates = np.array([score.accuracy for score in scores])
    assert whole.accuracy is not None
    assert 0.2 < whole.accuracy < 0.8
    spread = estimates.std(ddof=1)
    assert abs(estimates.mean() - whole.accuracy) < 3 * spread / math.sqrt(rounds)
    errors = np.array([score.standard_error for score in scores])
    assert np.sqrt((errors**2).mean()) == pytest.approx(spread, rel=0.1)
    covered = np.abs(estimates - whole.accuracy) < 2 * errors
    assert covered.mean() > 0.9


@pytest.mark.parametrize("sample", [DEVICES, DEVICES + 5])
def test_a_sample_of_all_is_all(sample: int) -> None:
    whole, sampled = played(experiment("tree")), played(experiment("tree", score_sample=sample))
    note = f"score_sample = {sample}, but {DEVICES} devices train: all of them are scored."
    assert (note in sampled.notes) == (sample > DEVICES)
    for record, other in zip(whole.history, sampled.history, strict=True):
        assert other.traffic == record.traffic
        for name, model in other.models.items():
            for part, score in model.scores.items():
                errors = (score.standard_error, score.standard_error_fallback)
                assert (score.sampled, *errors) == (DEVICES, 0.0, 0.0)
                without = {key: of._replace(error=None) for key, of in score.figures.items()}
                plain = replace(score, sampled=None, figures=without)
                assert plain == record.models[name].scores[part]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"score_sample = .* must be a whole number"):
        experiment(score_sample=value)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", '"some"'])
def test_a_file_may_not_say_them_either(value: str, tmp_path: Path) -> None:
    ended = exits(2, "run", *SMALL, f"score_sample={value}", "--out", tmp_path / "run")
    assert ended.err.startswith("error: score_sample = ")


def test_a_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    chosen = experiment("tree", rounds=6, score_every=2, score_sample=5)
    whole = played(chosen)
    run = covey.run(chosen)
    for _ in range(3):
        next(run)
    run.save(tmp_path / "run")
    again = played(chosen, resume=tmp_path / "run")
    assert not differences(state(whole), state(again))
    assert again.devices() == whole.devices()
    assert covey.history(tmp_path / "run")[1].models == whole.history[1].models


def test_seeds_side_by_side_draw_as_they_would_alone() -> None:
    each = [experiment("tree", seed=seed, score_sample=5) for seed in (3, 8)]
    runs = drained(covey.runs(each))
    for run, alone in zip(runs.seeds, each, strict=True):
        assert not differences(state(run), state(played(alone)))
    with pytest.raises(ConfigError, match="they differ in score_sample"):
        covey.runs([each[0], replace(each[1], score_sample=6)])


def test_rounds_are_chosen_by_the_scores_that_were_taken() -> None:
    run = played(experiment(rounds=12, score_sample=4))
    qualities = [record.models["global"].quality("validation") for record in run.history]
    assert run.snapshot("global", "chosen").round == qualities.index(max(qualities))


def test_devices_that_were_not_drawn_are_not_in_the_table() -> None:
    run = played(experiment(rounds=4, score_sample=9))
    lines = [line for line in run.devices() if line.part == "test"]
    chosen = lines[0].round - 1
    assert [int(line.device) for line in lines] == drawn(0, chosen, 9)
    last = set(drawn(0, 3, 9))
    assert all((line.last_accuracy is not None) == (int(line.device) in last) for line in lines)


def test_held_out_devices_are_scored_all() -> None:
    run = played(experiment(rounds=1, score_sample=4, holdout_devices=6))
    models = run.history[0].models
    assert models["global"].scores["test"].sampled == 4
    assert models["new_global"].scores["test"].sampled is None
    assert models["new_global"].scores["test"].devices == 6
    again = json.loads(json.dumps(run.history[0].as_dict()))
    assert "sampled" not in again["models"]["new_global"]["scores"]["test"]


def test_the_command_reports_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = exits(0, "run", *SMALL, "score_sample=3", "seeds=2", "--out", folder)
    assert "scored on 3 devices drawn in each round; standard error of" in ended.out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["sample"]["devices"] == 3
    assert 0 < summary["sample"]["standard_errors"]["personal"] < 0.5
    assert "score_sample = 3" in (folder / "config.toml").read_text()
    table = list(csv.DictReader(io.StringIO((folder / "seed-0" / "devices.csv").read_text())))
    tested = [line for line in table if (line["model"], line["part"]) == ("global", "test")]
    assert len({line["device"] for line in tested}) == 3
    before = (folder / "summary.json").read_text()
    exits(0, "run", "--resume", folder)
    after = (folder / "summary.json").read_text()
    assert json.loads(before)["models"] == json.loads(after)["models"]
    assert "scored on 3 devices" in exits(0, "show", folder).out


def test_a_summary_without_a_sample_has_no_word_of_it(tmp_path: Path) -> None:
    assert "drawn" not in exits(0, "run", *SMALL, "--out", tmp_path / "run").out
    assert "sample" not in json.loads((tmp_path / "run" / "summary.json").read_text())


def test_a_record_says_it() -> None:
    record: Round = played(experiment(rounds=1, score_sample=4)).history[0]
    score = record.models["global"].scores["test"]
    assert f"global {score.accuracy:.4f} ± {score.standard_error:.4f}" in str(record)


def test_the_jackknife_of_a_mean_is_the_error_of_a_mean() -> None:
    g = torch.Generator().manual_seed(3)
    right = torch.randint(0, 9, (12,), generator=g).double()
    counts = torch.full((12,), 9.0, dtype=torch.float64)
    sums = torch.stack([right, counts], dim=1)
    expected = standard_error(right, counts, 40)
    assert jackknife(top(2), sums, 40) == pytest.approx(expected, rel=1e-12)
    assert jackknife(top(2), sums, 12) == 0.0
    assert jackknife(top(2), sums[:1], 12) is None


def test_the_jackknife_of_f1_is_near_the_spread_over_all_samples() -> None:
    """All samples of 6 of 12 devices: the mean of se^2 is near the variance of F1."""
    metric = f1(Targets("classes", 2))
    g = torch.Generator().manual_seed(4)
    y = torch.randint(2, (12, 40), generator=g)
    outputs = torch.randn(12, 40, 2, generator=g) + 1.2 * torch.nn.functional.one_hot(y)
    assert metric.own.sums is not None
    sums = metric.own.sums(outputs, y, torch.ones(12, 40))
    samples = [sums[list(chosen)] for chosen in combinations(range(12), 6)]
    values = torch.cat([metric.value(each.sum(0, keepdim=True)) for each in samples])
    squares = [(jackknife(metric, each, 12) or math.nan) ** 2 for each in samples]
    assert np.mean(squares) == pytest.approx(float(values.var(correction=0)), rel=0.15)


@pytest.mark.parametrize("tree", list(TREES))
def test_a_record_has_the_standard_errors_of_its_metrics(tree: str) -> None:
    asked: dict[str, Any] = {"metrics": ("f1", "auc", "accuracy"), "rounds": 1}
    record = played(experiment(tree, score_sample=12, **asked)).history[0]
    score = record.models["global"].scores["test"]
    assert score.standard_errors.keys() == {"f1", "auc", "accuracy"}
    assert score.standard_errors["accuracy"] == score.standard_error
    for name, error in score.standard_errors_fallback.items():
        assert error is not None
        assert 0 < error < 0.2
        assert score.error(name) == error
        assert record.figures()[f"global/test/{name}_standard_error"] == error
    assert f"± {score.standard_errors['f1']:.2g}" in str(record)
    alone = covey.run(experiment(tree, score_sample=12, **asked), runtime="loopback")
    assert next(iter(alone)).models == record.models
    whole = played(experiment(tree, **asked)).history[0].models["global"].scores["test"]
    assert whole.standard_errors == {}
    assert whole.error("f1") is None


def test_the_error_of_the_rmse_is_not_that_of_the_loss() -> None:
    run = played(experiment(regression=True, score_sample=12, rounds=1))
    score = run.history[0].models["global"].scores["test"]
    assert score.rmse_fallback is not None
    assert score.standard_error_fallback is not None
    loss_per_square = (score.loss_fallback or 0.0) / score.rmse_fallback**2
    expected = score.standard_error_fallback / loss_per_square / (2 * score.rmse_fallback)
    assert score.error("rmse") == pytest.approx(expected)
    assert score.error("loss") == score.standard_error_fallback
    sample = summarise([run.history]).sample
    assert (sample.metric, sample.standard_errors["global"]) == ("rmse", score.error("rmse"))
