"""Numbers to predict: the loss they choose, and RMSE, MAE and R2 against numpy, from the device to
the picture.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import covey
from covey import Experiment, Tree, data, models
from covey.algorithms import FedAvg, PFedMe
from covey.data import Shards
from covey.engine.measures.metrics import EXAMPLES, error_sums, of_numbers
from covey.engine.task import Task
from covey.errors import ConfigError
from covey.report.pictures import data_picture, plot
from covey.runs.run import Run
from covey.runs.scores.devices import from_csv, to_csv
from covey.runs.scores.headline import headline
from covey.runs.selection import select
from tests.cli.command import covey as command
from tests.cli.command import exits

Floats = npt.NDArray[np.float64]
SIZES = (30, 9, 460, 55, 21)  # one device has more examples than a block of a full pass
FLAT = Tree.flat(len(SIZES))


def numbers(outputs: int = 0, dtype: torch.dtype = torch.float64, shift: float = 5.0) -> Shards:
    """Devices with a rule each, every output around another mean; targets [n], or [n, outputs]."""
    rng = np.random.default_rng(3)
    pairs = []
    for size in SIZES:
        x = rng.normal(size=(size, 4))
        y = x @ rng.normal(size=(4, max(outputs, 1))) + shift * (1 + np.arange(max(outputs, 1)))
        pairs.append(
            (torch.tensor(x, dtype=dtype), torch.tensor(y if outputs else y[:, 0], dtype=dtype))
        )
    return data.own(pairs)


def started(shards: Shards, outputs: int = 1, **more: Any) -> Run:
    """Personal models that not all devices have yet."""
    settings = {
        "rounds": 2, "parts": ("train", "validation", "test"), "dtype": torch.float64, **more,
    }  # fmt: skip
    algorithm = PFedMe(sample=2, lr=0.01, personal_lr=0.01)
    return covey.run(Experiment(algorithm, shards, models.linear(4, outputs), FLAT, **settings))


def expected(errors: Floats, y: Floats) -> list[float]:
    """RMSE, MAE and R2 of all examples."""
    spread = ((y - y.mean(0)) ** 2).sum()
    return [
        float(np.sqrt((errors**2).mean())),
        float(np.abs(errors).mean()),
        float(1 - (errors**2).sum() / spread),
    ]


def answers(run: Run, model: str, part: str) -> tuple[list[Floats], list[Floats], list[bool]]:
    """Of each device: errors, targets, and whether it holds the model."""
    ids, rows = run.rows(model)
    by_node = dict(zip(ids.tolist(), rows, strict=True))
    shards = run.experiment.data
    errors, targets, holds = [], [], []
    for device in range(shards.devices):
        node = 0 if model == "global" else device
        examples = shards.part(part).held(device)
        y = shards.y[examples].numpy().reshape(len(examples), -1)
        with torch.no_grad():
            module = run.runtime.task.space.fill(by_node.get(node, run.w[0]))
            outputs = module(shards.x[examples]).numpy()
        errors.append(outputs.reshape(y.shape) - y)
        targets.append(y)
        holds.append(node in by_node)
    return errors, targets, holds


@pytest.mark.parametrize("outputs", [0, 1, 3])
@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_errors_are_those_of_numpy_over_all_examples(outputs: int, part: str) -> None:
    run = started(numbers(outputs), max(outputs, 1))
    for record in run:
        for model in ("global", "local", "personal"):
            score = record.models[model].scores[part]
            errors, targets, holds = answers(run, model, part)
            everybody = expected(np.concatenate(errors), np.concatenate(targets))
            held = [k for k, yes in enumerate(holds) if yes]
            holders = expected(
                np.concatenate([errors[k] for k in held]),
                np.concatenate([targets[k] for k in held]),
            )
            assert [score.rmse_fallback, score.mae_fallback, score.r2_fallback] == pytest.approx(
                everybody, rel=1e-9
            )
            assert [score.rmse, score.mae, score.r2] == pytest.approx(holders, rel=1e-9)
            assert score.accuracy is None
            assert (score.rmse == score.rmse_fallback) == all(holds)
    assert not all(answers(run, "personal", part)[2])


def test_devices_have_errors_of_their_own_also_in_a_file() -> None:
    run = started(numbers(2), 2, rounds=1)
    list(run)
    lines = {(line.model, line.part, line.device): line for line in run.devices()}
    for model in ("global", "personal"):
        errors, _, holds = answers(run, model, "test")
        for device, mine in enumerate(errors):
            line = lines[model, "test", str(device)]
            assert line.rmse == pytest.approx(np.sqrt((mine**2).mean()), rel=1e-9)
            assert line.mae == pytest.approx(np.abs(mine).mean(), rel=1e-9)
            last = (line.last_rmse, line.last_mae, line.holds)
            assert last == (line.rmse, line.mae, holds[device])
    text = to_csv(run.devices())
    assert from_csv(text) == run.devices()
    assert text.splitlines()[0].endswith("holds,rmse,mae,last_rmse,last_mae")


def test_classes_have_no_errors_and_no_columns_for_them() -> None:
    shards = data.digits(devices=3)
    run = covey.run(Experiment(FedAvg(steps=1), shards, models.linear(64, 10), Tree.flat(3), 1))
    score = next(run).models["global"].scores["test"]
    assert (score.rmse, score.mae, score.r2, score.rmse_fallback) == (None, None, None, None)
    text = to_csv(run.devices())
    assert text.splitlines()[0].endswith(",holds")
    assert from_csv(text) == run.devices()


def test_the_compiled_kernel_and_torch_agree_and_the_loss_stays_the_kernels() -> None:
    shards = numbers(0, torch.float32)
    task = Task(models.mlp(4, 3, 1), shards, loss="mse")
    ids = torch.arange(shards.devices)
    rows = task.space.initial(1).repeat(shards.devices, 1)
    tally = task.evaluate(rows, "train", ids, metrics=True)
    assert torch.equal(tally.loss, task.evaluate(rows, "train", ids).loss)
    slow = Task(
        models.mlp(4, 3, 1), shards, loss=lambda outputs, y: 0.5 * (outputs[:, 0] - y).square()
    )
    other = slow.evaluate(rows, "train", ids, metrics=True)
    torch.testing.assert_close(tally.sums[:, 3:], other.sums[:, 3:], rtol=1e-6, atol=0)
    torch.testing.assert_close(tally.sums[:, 4] / 2, tally.loss, rtol=1e-5, atol=0)
    plain = task.evaluate(rows, "train", ids)
    assert plain.sums.shape[1] == 3  # a program that asks for a loss need not pay for the errors


def errors_of(sums: list[float], count: float, outputs: int) -> dict[str, float | None]:
    """RMSE, MAE and R2 of the sums of errors over so many examples."""
    metrics = of_numbers(outputs)
    of_errors = torch.tensor([sums], dtype=torch.float64)
    known = {metrics[0].terms[0]: of_errors, EXAMPLES: of_errors.new_full((1, 1), count)}
    return {metric.name: metric.figures(known)[0] for metric in metrics}


def test_equal_targets_have_no_r2() -> None:
    for value in (0.1, 0.0, 1e7 / 3, 1e200):
        y = torch.full((1, 1000), value, dtype=torch.float64)
        [sums] = error_sums(y + 1, y, torch.ones(1, 1000)).tolist()
        assert errors_of(sums, 1000, 1)["r2"] is None
    assert set(errors_of([0.0] * 7, 0, 1).values()) == {None}


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("mean", [0.0, 5.0, 1e6, 3e7, -1e7 / 3])
def test_r2_does_not_depend_on_the_mean_of_the_targets(mean: float, outputs: int) -> None:
    """As the sums of four devices of 50 examples each."""
    rng = np.random.default_rng(0)
    y = mean + rng.normal(size=(4, 50, outputs))
    predicted = y + 0.3 * rng.normal(size=y.shape)
    sums = error_sums(torch.tensor(predicted), torch.tensor(y), torch.ones(4, 50)).sum(0)
    spread = ((y - y.mean((0, 1))) ** 2).sum()
    expected = 1 - ((predicted - y) ** 2).sum() / spread
    assert errors_of(sums.tolist(), 200, outputs)["r2"] == pytest.approx(expected, abs=1e-5)


def test_outputs_that_are_no_predictions_have_a_loss_alone() -> None:
    def likelihood(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Of a normal distribution by its mean and log deviation."""
        return outputs[:, 1] + 0.5 * ((outputs[:, 0] - y) * torch.exp(-outputs[:, 1])).square()

    shards = numbers(shift=0.0)
    run = covey.run(
        Experiment(FedAvg(lr=0.001), shards, models.linear(4, 2), FLAT, 1, loss=likelihood)
    )
    score = next(run).models["global"].scores["test"]
    assert score.loss is not None
    assert (score.rmse, score.mae, score.r2) == (None, None, None)


@pytest.mark.parametrize("loss", ["auto", "mse", "squared_error"])
def test_float_targets_choose_the_squared_error(loss: Any) -> None:
    experiment = Experiment(FedAvg(), numbers(), models.linear(4, 1), FLAT, 1, loss=loss)
    assert experiment.loss == "squared_error"
    assert experiment.fingerprint()["loss"] == "squared_error"
    assert Experiment(FedAvg(), numbers(), models.linear(4, 1), FLAT, 1).loss == "squared_error"


def test_labels_choose_the_cross_entropy_and_are_numbers_if_a_squared_error_is_named() -> None:
    pairs = [(np.ones((5, 2)), np.array([0, 1, 2, 4, 3])) for _ in range(2)]
    shards = data.own(pairs)
    classes = Experiment(FedAvg(), shards, models.linear(2, 5), Tree.flat(2), 1)
    assert classes.loss == "cross_entropy"
    experiment = Experiment(
        FedAvg(lr=0.01), shards, models.linear(2, 1), Tree.flat(2), 1, loss="mse"
    )
    assert experiment.data.classes is None
    assert experiment.data.y.tolist() == shards.y.tolist()
    assert next(covey.run(experiment)).models["global"].scores["test"].rmse is not None


def test_numbers_have_no_cross_entropy_but_probabilities_do() -> None:
    with pytest.raises(ConfigError, match="targets are numbers, not classes; leave loss out"):
        Experiment(FedAvg(), numbers(), models.linear(4, 3), FLAT, 1, loss="cross_entropy")
    soft = replace(numbers(3), y=torch.softmax(numbers(3).y, dim=1))
    experiment = Experiment(
        FedAvg(), soft, models.linear(4, 3), FLAT, 1, loss="cross_entropy", dtype=torch.float64
    )
    score = next(covey.run(experiment)).models["global"].scores["test"]
    assert score.rmse is None  # outputs are logits


def test_the_round_with_the_smallest_error_is_chosen() -> None:
    run = covey.run(
        Experiment(FedAvg(lr=0.01), numbers(), models.linear(4, 1), FLAT, 6, dtype=torch.float64)
    )
    history = list(run)
    errors = [
        record.models["global"].scores["validation"].rmse_fallback or 0.0 for record in history
    ]
    assert select(history).chosen.round == int(np.argmin(errors))


def table(path: Path, *, words: bool = False) -> Path:
    """Three pumps whose quality is a whole number, each number of which is rare; an experiment file
    beside it.
    """
    rng = np.random.default_rng(1)
    rows = ["device,heat,flow,quality"]
    for number in range(120):
        heat, flow = rng.normal(size=2)
        quality = str(round(500 + 90 * heat - 50 * flow))
        rows.append(
            f"pump-{number % 3},{heat:.4f},{flow:.4f},{'ok' if words and number == 7 else quality}"
        )
    path.with_suffix(".csv").write_text("\n".join(rows))
    return path.with_suffix(".csv")


def experiment_file(folder: Path, loss: str = "mse", **more: Any) -> Path:
    path = folder / "pumps.toml"
    path.write_text(f"""
        loss = "{loss}"
        rounds = 3
        algorithm = {{ name = "finetune", lr = 0.05, tune_lr = 0.05 }}
        data = {{ name = "files", path = "{table(folder / "pumps", **more)}", label = "quality" }}
        model = {{ name = "linear" }}
    """)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on whole numbers."""
    place = tmp_path_factory.mktemp("numbers")
    ended = exits(0, "run", experiment_file(place), "--out", place / "run")
    (place / "out.txt").write_text(ended.out)
    return place


def test_a_file_that_names_the_loss_predicts_whole_numbers(folder: Path) -> None:
    out = (folder / "out.txt").read_text()
    assert "round 1/3  global RMSE " in out
    assert "errors in the units of the target" in out
    heads = next(line for line in out.splitlines() if line.startswith("model")).split()
    assert heads[:8] == ["model", "kept", "by", "test", "RMSE", "(all)", "MAE", "R2"]
    assert " - " not in out
    assert "(RMSE: median " in out
    summary = json.loads((folder / "run" / "summary.json").read_text())
    figures = {model["model"]: model for model in summary["models"]}
    assert figures["global"]["rmse"]["mean"] > figures["global"]["mae"]["mean"] > 0
    assert figures["global"]["r2"]["mean"] < 1
    line = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["models"]["global"]["scores"]["test"]["rmse"] > 0


def test_such_a_run_goes_on_though_its_resolved_file_says_more(folder: Path) -> None:
    before = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    exits(0, "run", "--resume", folder / "run", "rounds=4")
    after = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    assert after[:3] == before[:3]
    assert len(after) == 4


def test_predictions_of_a_loaded_run_have_the_errors_of_its_table(folder: Path) -> None:
    run = covey.load(folder / "run")
    shards = run.experiment.data
    line = next(
        one
        for one in run.devices()
        if (one.model, one.part, one.device) == ("personal", "test", "pump-1")
    )
    examples = shards.test.held(1)
    raw = shards.x[examples].double() / shards.scaling.factor + shards.scaling.shift
    predicted = run.predict(raw, device="pump-1")
    assert predicted.shape == (len(examples),)
    error = predicted - shards.y[examples].numpy()
    assert float(np.sqrt((error.astype(np.float64) ** 2).mean())) == pytest.approx(
        line.rmse, rel=1e-4
    )


def test_text_among_the_labels_is_named(tmp_path: Path) -> None:
    ended = exits(2, "run", experiment_file(tmp_path, words=True), "--out", tmp_path / "run")
    assert "line 9: label is 'ok', which is not a number" in ended.err


def test_words_as_classes_are_no_numbers() -> None:
    shards = replace(
        data.digits(devices=2),
        names=replace(data.digits().names, classes=tuple("abcdefghij"), devices=()),
    )
    with pytest.raises(ConfigError, match="predicts numbers, but the labels of digits are a, b, c"):
        Experiment(FedAvg(), shards, models.linear(64, 1), Tree.flat(2), 1, loss="squared_error")


def test_show_has_a_histogram_of_targets(tmp_path: Path) -> None:
    path = experiment_file(tmp_path)
    picture = tmp_path / "data.png"
    ended = exits(0, "data", "show", path, "--out", picture)
    assert "numbers to predict" in ended.out
    assert "targets " in ended.out
    assert "█" in ended.out
    facts = json.loads(command("data", "show", path, "--out", picture, "--json").out)["targets"]
    values = np.genfromtxt(tmp_path / "pumps.csv", delimiter=",", skip_header=1, usecols=3)  # type: ignore[call-overload]
    assert values.min() <= facts["min"] < facts["mean"] < facts["max"] <= values.max()
    assert sum(facts["counts"]) == 72
    assert facts["limits"][0] == facts["min"]


def test_the_histogram_is_numpys_device_by_device() -> None:
    shards = numbers(2)
    limits, counts = data_picture.target_histogram(shards)
    for device in range(shards.devices):
        mine = shards.y[shards.train.held(device)].numpy()
        assert counts[device].tolist() == np.histogram(mine, bins=limits)[0].tolist()


def test_the_picture_of_a_run_shows_the_rmse() -> None:
    history = list(started(numbers()))
    assert headline(history).axis == "RMSE"
    curve = [plot.value_of(record, "global", headline(history)) for record in history]
    assert curve == [record.models["global"].scores["test"].rmse for record in history]
