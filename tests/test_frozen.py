"""Frozen parameters: no row holds them, everybody shares them, and a run is for one set of values."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import covey
from covey.algorithms import FedAvg
from covey.engine.modules.layout import freeze
from covey.engine.task import Task
from covey.errors import CheckpointError, ConfigError, ModelError
from covey.models import mlp
from tests.given import drained

TREE = covey.Tree.flat(3)


def data() -> covey.data.Shards:
    draw = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(3):
        x = torch.randn(12, 6, generator=draw)
        pairs.append((x, (x[:, 0] > 0).long()))
    return covey.data.own(pairs, classes=2)


def experiment(model: nn.Module, **changes: Any) -> covey.Experiment:
    plain: dict[str, Any] = {"rounds": 2, "start": "module", "frozen": "1"}
    algorithm = FedAvg(steps=2, lr=0.2, batch=4)
    return covey.Experiment(algorithm, data(), model, TREE, **{**plain, **changes})


def _whole(run: covey.Run) -> Any:
    return run.module()


def test_rows_and_messages_hold_what_trains_alone() -> None:
    model: Any = mlp(6, 5, 2)
    run = drained(covey.run(experiment(model)))
    head = 5 * 2 + 2
    assert run.w.shape == (1, head)
    assert run.engine["parameters"] == head
    assert run.engine["frozen"] == 6 * 5 + 5
    messages = 2 * 3 * 2  # rounds, devices, directions
    traffic = run.meter.traffic(lane="train")
    assert traffic.messages == messages
    assert traffic.values == messages * head
    assert any("35 of 47 parameters are frozen" in note for note in run.notes)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_run_module_is_whole() -> None:
    model: Any = mlp(6, 5, 2)
    run = drained(covey.run(experiment(model)))
    module: Any = run.module()
    assert torch.equal(module[1].weight, model[1].weight)
    assert not torch.equal(module[3].weight, model[3].weight)
    fingerprint = run.experiment.fingerprint()
    with torch.no_grad():
        model[1].weight.add_(1.0)  # the run has its own copy
    assert torch.equal(_whole(run)[1].weight, module[1].weight)
    assert run.experiment.fingerprint() == fingerprint


def test_frozen_layers_train_as_they_do_when_their_gradient_is_dropped() -> None:
    """The head of a frozen network is a linear model on the body's outputs."""
    model: Any = mlp(6, 5, 2)
    run = drained(covey.run(experiment(model)))
    shards = data()
    features = torch.relu(model[1](shards.x)).detach()
    same = replace(shards, x=features)
    head = nn.Sequential(nn.Linear(5, 2))
    head[0].load_state_dict(model[3].state_dict())
    alone = replace(run.experiment, data=same, model=head, frozen=())
    other = drained(covey.run(alone))
    torch.testing.assert_close(run.w, other.w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("start", ["seed", "module"])
def test_frozen_layers_keep_the_modules_values(start: str) -> None:
    model: Any = mlp(6, 5, 2)
    run = covey.run(experiment(model, start=start))
    module: Any = run.module()
    assert torch.equal(module[1].weight, model[1].weight)
    assert torch.equal(module[3].weight, model[3].weight) == (start == "module")


def test_all_nodes_share_one_copy() -> None:
    run = covey.run(experiment(mlp(6, 5, 2)), runtime="loopback")
    nodes: list[Any] = [run.runtime.task, *(station.task for station in _stations(run))]
    assert len(nodes) >= 4
    weights = {task.space.module[1].weight.data_ptr() for task in nodes}
    heads = {task.space.module[3].weight.data_ptr() for task in nodes}
    assert len(weights) == 1
    assert len(heads) > 1


def _stations(run: covey.Run) -> list[Any]:
    runtime: Any = run.runtime
    tiers = runtime.stations
    return [station for stations in tiers.values() for station in stations]


def test_a_tied_parameter_is_frozen_under_either_name() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.second = nn.Linear(6, 6)
            self.head = nn.Linear(6, 2)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.second(torch.tanh(self.first(x))))
            return out

    run = drained(covey.run(experiment(Tied(), frozen=["second.weight"])))
    assert run.engine["frozen"] == 36
    module: Any = run.module()
    assert module.first.weight is module.second.weight


def test_all_rows_read_one_frozen_table() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(7, 6)
            self.head = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.words(x).mean(1))
            return out

    draw = torch.Generator().manual_seed(1)
    words = torch.randint(7, (3, 20, 4), generator=draw)
    pairs = [(x, x[:, 0] % 2) for x in words]
    ids = covey.data.own(pairs, classes=2, tokens=7)
    module = freeze(Words(), ["words"])
    task = Task(module, ids)
    assert task.path == "batched"
    row = task.space.row(module)
    rows = torch.stack([row, 2 * row, -row])
    batch = task.examples.spread(torch.arange(3), 5)
    gradient = task.gradients.gradient(rows, batch)
    for i in range(3):
        alone = task.space.fill(rows[i])
        loss = nn.functional.cross_entropy(alone(batch.x[i]), batch.y[i])
        weight, bias = torch.autograd.grad(loss, list(alone.head.parameters()))
        torch.testing.assert_close(gradient[i], torch.cat([weight.t().flatten(), bias]))


def test_a_checkpoint_is_for_one_set_of_frozen_values(tmp_path: Path) -> None:
    model: Any = mlp(6, 5, 2)
    run = covey.run(experiment(model))
    next(run)
    run.save(tmp_path / "checkpoint")
    names = load_file(tmp_path / "checkpoint")
    assert sum(value.numel() for value in names.values() if value.shape[-1:] == (47,)) == 0
    covey.run(experiment(model), resume=tmp_path / "checkpoint")
    with torch.no_grad():
        model[1].bias[0] += 1e-3
    with pytest.raises(CheckpointError, match="values of frozen parameters changed"):
        covey.run(experiment(model), resume=tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=r"its (frozen|model) is"):
        covey.run(experiment(model, frozen=()), resume=tmp_path / "checkpoint")


def test_mistakes_are_named() -> None:
    with pytest.raises(ModelError, match=r"frozen pattern 'bdy' matches no parameter; they are 1"):
        experiment(mlp(6, 5, 2), frozen="bdy")
    with pytest.raises(ConfigError, match=r"frozen = 3 must be text or a list"):
        experiment(mlp(6, 5, 2), frozen=3)
    with pytest.raises(ModelError, match="no trainable parameter"):
        covey.run(experiment(mlp(6, 5, 2), frozen="*"))
