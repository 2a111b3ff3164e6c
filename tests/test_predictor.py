"""An algorithm may say how its models predict: scores, also of newcomers, are then of that."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import covey
from covey import Algorithm, Nodes, Rows
from covey.data import own_parts
from covey.engine.task import Batch, Predict, Task


@dataclass(frozen=True)
class Stubborn(Algorithm):
    """Its personal model says label 1 with chance .8 whatever it sees; the others are the module's."""

    def server(self, me: Nodes, w: Rows) -> Rows:
        me.ask(self.device, w)
        return w

    def device(self, me: Nodes, w: Rows) -> Rows:
        return me.keep("personal", w)

    def predictor(self, me: Nodes, model: str, rows: Rows) -> Predict | None:
        if model != "personal":
            return None

        def predict(batch: Batch, which: Tensor) -> Tensor:
            assert len(which) == len(batch.x) == len(rows[which])
            return torch.tensor([0.1, 0.8, 0.1]).log().expand(*batch.y.shape, 3)

        return predict


def shards() -> covey.data.Shards:
    g = torch.Generator().manual_seed(1)
    sizes = [4, 300, 9, 40]  # two blocks of the largest
    parts = [
        [(torch.randn(n, 2, generator=g), torch.randint(3, (n,), generator=g)) for n in sizes]
        for _ in range(3)
    ]
    return own_parts(train=parts[0], validation=parts[1], test=parts[2], classes=3)


def test_scores_are_of_what_the_algorithm_predicts() -> None:
    data, model = shards(), covey.models.linear(2, 3)
    run = covey.run(
        covey.Experiment(
            Stubborn(), data, model, covey.Tree.flat(4), rounds=1, holdout_devices=(3,)
        )
    )
    record = next(run)
    ones = [int((data.y[data.test.held(device)] == 1).sum()) for device in range(4)]
    score = record.models["personal"].scores["test"]
    assert score.accuracy == pytest.approx(sum(ones[:3]) / 313)
    expected = (
        -(sum(ones[:3]) * torch.tensor(0.8).log() + (313 - sum(ones[:3])) * torch.tensor(0.1).log())
        / 313
    )
    assert score.loss == pytest.approx(float(expected), rel=1e-5)
    assert record.models["new_personal"].scores["test"].accuracy == pytest.approx(ones[3] / 40)
    assert record.models["global"].scores["test"].loss != pytest.approx(score.loss)
    losses = {record.models[name].scores["test"].loss for name in ("new_global", "new_personal")}
    assert len(losses) == 2
    found = run.calibration(bins=10)["personal"]
    assert found.ece == pytest.approx(abs(0.8 - sum(ones[:3]) / 313), abs=1e-6)


def test_the_gradient_of_a_loss_of_ones_own() -> None:
    task = Task(covey.models.mlp(2, 4, 3), shards(), dtype=torch.float64)
    rows = torch.randn(4, task.space.width, generator=torch.Generator().manual_seed(2)).double()
    batch = task.examples.draw(7, torch.arange(4), 5)[0]
    found = task.gradient_of(
        rows, batch, lambda outputs: task.gradients.losses(outputs, batch.y).mean(1)
    )
    assert torch.allclose(found, task.gradients.gradient(rows, batch), atol=1e-14)
    none = task.examples.draw(7, torch.arange(0), 5)[0]
    calls: list[tuple[int, ...]] = []

    def noted(outputs: Tensor) -> Tensor:
        calls.append(tuple(outputs.shape))
        return outputs.sum((1, 2))

    found = task.gradient_of(rows[:0], none, noted)
    assert found.shape == (0, task.space.width)
    assert calls == [(0, 5, 3)]  # so that a rehearsal finds what cannot work


def test_examples_are_all_or_evenly_spaced() -> None:
    data = shards()
    task = Task(covey.models.linear(2, 3), data)
    batch = task.examples.spread(torch.tensor([0, 1, 2]), 6)
    assert batch.weight.tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6, [1] * 6]
    assert torch.equal(batch.x[0, :4], data.x[data.train.held(0)])
    assert torch.equal(batch.x[1], data.x[data.train.held(1)[torch.arange(6) * 50]])
    assert task.examples.spread(torch.tensor([2]), 100).x.shape[1] == 100
    small = Task(covey.models.linear(2, 3), data.chosen([0, 2]))
    assert small.examples.spread(torch.tensor([1]), 100).x.shape[1] == 32  # nobody has more


def test_labels_are_those_of_the_training_part() -> None:
    data = shards()
    task = Task(covey.models.linear(2, 3), data)
    assert torch.equal(
        task.examples.labels(torch.tensor([2, 0])), torch.from_numpy(data.labels()[[2, 0]] > 0)
    )
    assert task.examples.most_labels == 3
