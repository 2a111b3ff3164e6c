"""Calibration by hand, and of the models of a run against a loop over devices."""

import math
from typing import Any

import pytest
import torch

import covey
from covey.algorithms import FineTune, Local
from covey.engine.measures.calibration import calibration, read, sums
from covey.errors import ConfigError


def test_five_examples_by_hand() -> None:
    """Two bins of ten hold them: [.6, .7) three, of which one is right; [.9, 1] two, both right."""
    chances = torch.tensor(
        [[0.62, 0.38], [0.35, 0.65], [0.65, 0.35], [0.9, 0.1], [0.0, 1.0]]
    ).double()
    labels = torch.tensor([1, 1, 1, 0, 1])
    found = calibration(chances, labels, bins=10)
    assert found.count == 5
    # |1 - (.62 + .65 + .65)| + |2 - (.9 + 1)|, over five
    assert found.ece == pytest.approx((0.92 + 0.1) / 5)
    assert found.mce == pytest.approx(0.92 / 3)
    assert (found.confidence, found.accuracy) == pytest.approx(
        ((0.62 + 0.65 + 0.65 + 0.9 + 1) / 5, 3 / 5)
    )
    # twice the square of what the label lacks: .62, .35, .65, .1, 0
    assert found.brier == pytest.approx(2 * (0.62**2 + 0.35**2 + 0.65**2 + 0.1**2) / 5)
    assert found.log_loss == pytest.approx(
        -(math.log(0.38) + math.log(0.65) + math.log(0.35) + math.log(0.9)) / 5
    )


def test_an_honest_coin_is_calibrated_and_a_boaster_is_not() -> None:
    labels = torch.tensor([0, 1] * 50)
    assert calibration(torch.full((100, 2), 0.5), labels).ece == pytest.approx(0.0)
    assert calibration(torch.tensor([[0.95, 0.05]]).expand(100, 2), labels).ece == pytest.approx(
        0.45
    )
    assert calibration(torch.full((100, 2), 0.5), labels).brier == pytest.approx(0.5)


def test_sums_of_devices_add_up_and_what_has_no_weight_does_not_count() -> None:
    draw = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(3, 7, 4, generator=draw), torch.randint(4, (3, 7), generator=draw)
    weight = torch.ones(3, 7)
    weight[1, 4:] = 0
    kept = weight.bool()
    whole = calibration(torch.softmax(outputs[kept].double(), dim=1), y[kept])
    apart = read(sums(outputs, y, weight, 15).sum(0))
    assert whole.count == apart.count == 18
    for name in ("ece", "brier", "log_loss", "mce", "confidence", "accuracy"):
        assert getattr(whole, name) == pytest.approx(getattr(apart, name))


def test_the_models_of_a_run() -> None:
    data, model = covey.data.digits(devices=6), covey.models.linear(64, 10)
    run = covey.run(covey.Experiment(FineTune(sample=4), data, model, covey.Tree.flat(6), rounds=2))
    record = list(run)[-1]
    before = dict(run.meter.totals)
    found = run.calibration(bins=5)
    assert run.meter.totals == before  # a look is no part of the run
    assert found.keys() == record.models.keys()
    for name in found:
        ids, rows = run.rows(name)
        devices = range(6) if name == "global" else ids.tolist()
        chances, labels = [], []
        for device in devices:
            examples = data.test.held(device)
            module = run.runtime.task.space.fill(
                rows[0 if name == "global" else ids.tolist().index(device)]
            )
            chances.append(torch.softmax(module(data.x[examples]).detach().double(), dim=1))
            labels.append(data.y[examples])
        by_hand = calibration(torch.cat(chances), torch.cat(labels), bins=5)
        for figure in ("ece", "brier", "log_loss", "count", "mce", "confidence", "accuracy"):
            assert getattr(found[name], figure) == pytest.approx(getattr(by_hand, figure), rel=1e-5)
        assert found[name].log_loss == pytest.approx(
            record.models[name].scores["test"].loss, rel=1e-5
        )
    with pytest.raises(ConfigError, match="give train, validation or test"):
        run.calibration("tset")


def test_numbers_have_no_calibration() -> None:
    pairs = [(torch.randn(8, 2), torch.randn(8))] * 2
    model, tree = covey.models.linear(2, 1), covey.Tree.flat(2)
    settings: dict[str, Any] = {"loss": "squared_error", "rounds": 1}
    run = covey.run(
        covey.Experiment(Local(steps=1), covey.data.own(pairs), model, tree, **settings)
    )
    with pytest.raises(ConfigError, match="probabilities of classes"):
        run.calibration()
