"""How every single device does, against plain modules on its own examples."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

import covey
from covey import Experiment, Tree, data, models
from covey.algorithms import PerMFL, PFedMe
from covey.engine.measures.metrics import EXAMPLES, Targets, of_numbers, usual
from covey.runs.scores.devices import from_csv, table, to_csv
from covey.runs.scores.figures import NodeFigures
from tests.given import played
from tests.laws.cases import CASES, experiment


def test_each_device_has_the_accuracy_of_its_own_module() -> None:
    shards = data.digits(devices=6, labels=3)
    run = played(
        Experiment(PerMFL(edge_rounds=2), shards, models.mlp(64, 8, 10), Tree.grouped([2, 4]), 6)
    )
    lines = {(line.device, line.model): line for line in run.devices() if line.part == "test"}
    assert len(lines) == 6 * 3
    for device in range(6):
        index = shards.test.held(device)
        line = lines[str(device), "personal"]
        scores: list[tuple[Any, float | None, float | None]] = [
            ("chosen", line.accuracy, line.loss),
            ("last", line.last_accuracy, line.last_loss),
        ]
        for which, accuracy, loss in scores:
            outputs = run.module("personal", device, which)(shards.x[index])
            right = (outputs.argmax(1) == shards.y[index]).double().mean()
            torch.testing.assert_close(torch.tensor(accuracy).double(), right)
            mean = nn.functional.cross_entropy(outputs, shards.y[index])
            torch.testing.assert_close(torch.tensor(loss), mean, rtol=1e-4, atol=1e-6)
        assert line.edge == ("0" if device < 2 else "1")
        assert line.examples == len(index)
        assert line.last_round == 6
        assert line.holds


def test_means_over_devices_are_the_reported_scores() -> None:
    for name in ("FedPer-sample", "PFedMe-sample", "HierFAVG-sample-samples"):
        run = covey.run(experiment(CASES[name], rounds=5, score_every=2))
        record = list(run)[-1]
        for model, scores in record.models.items():
            lines = [line for line in run.devices() if (line.model, line.part) == (model, "test")]
            total = sum(line.examples for line in lines)
            mean = sum((line.last_accuracy or 0) * line.examples for line in lines) / total
            assert abs(mean - (scores.scores["test"].accuracy_fallback or 0)) < 1e-12
            holders = [line for line in lines if line.holds]
            assert len(holders) <= len(lines)


def test_devices_that_hold_none_are_named(tmp_path: object) -> None:
    run = played(experiment(CASES["PFedMe-sample"], rounds=1, score_every=1))
    holds = {line.device for line in run.devices() if line.model == "personal" and line.holds}
    assert holds == {str(device) for device in run.history[0].cohorts["device"]}


def test_a_table_survives_its_file() -> None:
    run = played(experiment(CASES["PerMFL"], rounds=2, score_every=1))
    assert from_csv(to_csv(run.devices())) == run.devices()
    assert from_csv(to_csv([])) == []


def test_a_resumed_run_knows_its_devices(tmp_path: object) -> None:
    for score_every in (2, 3):
        whole = covey.run(experiment(CASES["PerMFL"], rounds=6, score_every=score_every))
        part = covey.run(experiment(CASES["PerMFL"], rounds=6, score_every=score_every))
        for record in part:
            if record.round == 3:
                part.save(f"{tmp_path}/{score_every}")
                break
        more = covey.run(
            experiment(CASES["PerMFL"], rounds=6, score_every=score_every),
            resume=f"{tmp_path}/{score_every}",
        )
        list(whole), list(more)
        assert more.devices() == whole.devices()


def test_regression_and_names() -> None:
    draw = torch.Generator().manual_seed(0)
    pairs = [(x := torch.randn(20, 3, generator=draw), x.sum(1, keepdim=True)) for _ in range(3)]
    run = played(
        Experiment(
            PFedMe(), data.own(pairs), nn.Linear(3, 1), Tree.flat(3), 2, loss="squared_error"
        )
    )
    assert all(
        line.accuracy is None and line.loss is not None and line.edge is None
        for line in run.devices()
    )


def test_a_resumed_run_knows_its_devices_before_it_goes_on(tmp_path: Path) -> None:
    run = covey.run(experiment(CASES["PerMFL"], rounds=6, score_every=2))
    for record in run:
        if record.round == 3:
            break
    run.save(tmp_path / "saved.safetensors")
    wanted = run.devices()
    assert {line.last_round for line in wanted} == {4}
    again = covey.run(
        experiment(CASES["PerMFL"], rounds=6, score_every=2), resume=tmp_path / "saved.safetensors"
    )
    assert again.devices() == wanted


def test_a_round_that_was_scored_for_being_the_last_is_forgotten_when_there_are_more(
    tmp_path: Path,
) -> None:
    run = played(experiment(CASES["PerMFL"], rounds=3, score_every=2))
    assert {line.last_round for line in run.devices()} == {3}
    run.save(tmp_path / "saved.safetensors")
    longer = covey.run(
        experiment(CASES["PerMFL"], rounds=6, score_every=2), resume=tmp_path / "saved.safetensors"
    )
    assert {(line.round, line.last_round) for line in longer.devices()} == {(2, 2)}


def test_no_figures_of_another_machine_end_a_run() -> None:
    """Negative sums of squares have no root, and a report may hold any number."""
    errors = of_numbers(1)[0].terms[0]
    for squared in (-1.0, -math.inf, math.inf, math.nan, 1e290):
        sums = torch.tensor([[1.0, squared, 1.0, 0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
        known = {errors: sums, EXAMPLES: torch.full_like(sums[:, :1], 2.0)}
        assert [metric.figures(known) for metric in of_numbers(1)][1] == [0.5]
        figures = torch.tensor([[-1.0, squared, 4.0, 1.0, squared, squared]], dtype=torch.float64)
        by_part = {"test": NodeFigures(1, torch.tensor([0]), figures)}
        (line,) = table({"m": (0, by_part)}, {}, ["0"], [None], of_numbers(1))
        assert line.rmse is None or not line.rmse < 0


def test_what_a_device_did_not_tell_is_unknown() -> None:
    for row in ([-1.0, 2.0, 4.0, 1.0], [-1.0, 2.0, 4.0, 1.0, math.nan, math.nan]):
        told = NodeFigures(1, torch.tensor([0]), torch.tensor([row], dtype=torch.float64))
        metrics = usual(Targets("numbers", 1))
        (line,) = table({"m": (0, {"test": told})}, {}, ["0"], [None], metrics)
        assert (line.loss, line.rmse, line.mae) == (0.5, None, None)
