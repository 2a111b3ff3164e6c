"""Which layers stay on the devices when an experiment does not say, and what a run tells of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey import Algorithm, Experiment, Tree, data, models
from covey.algorithms import FedAlt, FedAvg, FedPer, FedRep, FedSim, Pruned
from tests.cli.command import covey as command
from tests.cli.command import exits

SHARDS = data.digits(devices=4, labels=2)
SPLITTING = (FedPer, FedRep, FedAlt, FedSim, Pruned)
every_splitting = pytest.mark.parametrize("cls", SPLITTING)
SMALL = ("rounds=2", "data.name=digits", "data.devices=6", "model.name=mlp", "model.hidden=[8]")


def experiment(algorithm: Algorithm, **changes: Any) -> Experiment:
    plain = {"data": SHARDS, "model": models.mlp(64, 5, 10), "tree": Tree.flat(4), "rounds": 1}
    return Experiment(algorithm, **{**plain, **changes})


@every_splitting
def test_the_last_layer_is_private_by_default_and_never_sent(cls: type[Algorithm]) -> None:
    run = covey.run(experiment(cls()))
    assert run.experiment.private == ("head",)
    assert run.notes == [
        f'{cls.__name__}: layer 3 stays on each device (private = "head"); private = "" shares all.'
    ]
    list(run)
    space = run.runtime.task.space
    head = slice(space.shared, None)
    assert space.width - space.shared == 5 * 10 + 10
    assert torch.equal(run.w[:, head], run.runtime.start[:, head])
    assert not torch.equal(run.w[:, : space.shared], run.runtime.start[:, : space.shared])
    assert len(run.rows("personal")[1][:, head].unique(dim=0)) == 4


@every_splitting
def test_said_or_not_it_is_the_same_experiment(cls: type[Algorithm]) -> None:
    named = experiment(cls(), private="head").fingerprint()
    assert experiment(cls()).fingerprint() == named
    assert experiment(cls(), private="auto").fingerprint() == named
    assert experiment(cls(), private="").fingerprint() != named


@every_splitting
@pytest.mark.parametrize("none", ["", (), []], ids=repr)
def test_an_empty_pattern_asks_for_none(cls: type[Algorithm], none: Any) -> None:
    run = covey.run(experiment(cls(), private=none))
    assert run.experiment.private == ()
    assert run.notes == [f"{cls.__name__} shares all layers: no layer is private."]


def test_pruned_keeps_convolutions_where_there_are_any() -> None:
    model = models.cnn((1, 8, 8), channels=(2, 3), hidden=6, kernel=3)
    kept = experiment(Pruned(), model=model)
    assert kept.private == ("conv*",)
    assert experiment(FedAlt(), model=model).private == ("head",)
    (note,) = covey.run(kept).notes
    assert 'stay on each device (private = "conv*")' in note


def test_a_model_of_one_layer_is_shared_as_a_whole() -> None:
    run = covey.run(experiment(FedPer(), model=models.linear(64, 10)))
    assert run.experiment.private == ()
    assert run.notes == ["FedPer shares all layers: no layer is private."]


def test_nothing_is_said_of_algorithms_that_share_everything() -> None:
    run = covey.run(experiment(FedAvg()))
    assert (run.experiment.private, run.notes) == ((), [])


def test_the_command_says_it_first_and_names_the_rows(tmp_path: Path) -> None:
    ended = exits(0, "run", *SMALL, "algorithm.name=fedper", "--out", tmp_path / "run")
    engine, first = [
        line for line in ended.out.splitlines() if not line.startswith("note: algorithm.name")
    ][:2]
    assert engine.startswith("engine: ")
    assert first.startswith("note: FedPer: layer 3 stays on each device")
    assert "shared layers, own head" in ended.out
    assert "shared layers, own head" in covey.load(tmp_path / "run").table()
    none = command("run", *SMALL, "algorithm.name=fedper", 'private=""', "--out", tmp_path / "none")
    assert "\nnote: FedPer shares all layers" in none.out
    assert "own head" not in none.out


def test_local_training_has_no_global_model_to_show(tmp_path: Path) -> None:
    ended = exits(0, "run", *SMALL, "algorithm.name=local", "--out", tmp_path / "run")
    assert "personal" in ended.out
    assert "global" not in ended.out
    assert "global" not in covey.load(tmp_path / "run").table()
    other = command("run", *SMALL, "algorithm.name=fedavg", "--out", tmp_path / "other")
    assert "global" in other.out
