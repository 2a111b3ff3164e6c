"""Batch normalization: statistics by hand, gradients as torch has them, and the three modes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Experiment, Tree, data
from covey.algorithms import FedAvg, FedBN
from covey.engine.modules import norm
from covey.engine.modules.layout import ParameterLayout
from covey.engine.task import STATISTICS, Task
from covey.errors import ConfigError, CoveyError, DataError, ModelError
from covey.runs.saved.fingerprint import of as fingerprint
from tests.given import labelled, played
from tests.laws.networks import NormedCnn, NormedMlp, NormedOtherwise, normed_sequence

EXACT = 1e-12
SIZES = (9, 14, 30)


def normed_images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip


def normed_points() -> nn.Module:
    """BatchNorm1d whose examples have three values of each channel."""
    points = nn.Unflatten(1, (2, 3))
    return nn.Sequential(points, nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(6, 3))


class OtherCnn(NormedCnn):
    """The same with an operation that no graph knows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fmax(super().forward(x), torch.zeros(()))


NETS: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "sequence": (normed_sequence, (6,), "batched"),
    "points": (normed_points, (6,), "batched"),
    "class": (NormedMlp, (6,), "batched"),
    "otherwise": (NormedOtherwise, (6,), "vmap"),
    "images": (normed_images, (1, 6, 6), "each"),
    "residual": (NormedCnn, (1, 6, 6), "each"),
    "residual otherwise": (OtherCnn, (1, 6, 6), "each"),
}
every_net = pytest.mark.parametrize("name", NETS)


def shards(shape: tuple[int, ...], sizes: tuple[int, ...] = SIZES) -> data.Shards:
    return data.own(labelled(sizes, shape, seed=3, dtype=torch.float64), classes=3)


def task_of(name: str) -> tuple[Task, Tensor, Tensor]:
    """The task of a network, its devices and a row for each."""
    make, shape, _ = NETS[name]
    task = Task(make(), shards(shape), dtype=torch.float64)
    rows = torch.stack([task.space.initial(seed).double() for seed in range(len(SIZES))])
    return task, torch.arange(len(SIZES)), rows


def test_statistics_by_hand() -> None:
    """h = W x + b; the layer subtracts the mean of h and divides by sqrt(variance + eps)."""
    task, ids, rows = task_of("sequence")
    statistics = task.statistics(rows, ids)
    batch = task.examples.spread(ids, 5)
    outputs = task.outputs(rows, batch)
    for device in range(len(ids)):
        w, b, gamma, beta, head, bias = (
            p.detach().numpy() for p in task.space.fill(rows[device]).parameters()
        )
        part = task.shards.train
        own = part.index[part.offset[device] : part.offset[device + 1]]
        h = task.shards.x[own].numpy() @ w.T + b
        mean, variance = h.mean(0), h.var(0)
        np.testing.assert_allclose(statistics[device].numpy(), [*mean, *variance], atol=EXACT)
        h = batch.x[device].numpy() @ w.T + b
        hidden = np.maximum((h - mean) / np.sqrt(variance + 1e-5) * gamma + beta, 0)
        np.testing.assert_allclose(outputs[device].numpy(), hidden @ head.T + bias, atol=EXACT)


@every_net
def test_gradients_are_torchs_own_on_the_batch_without_its_padding(name: str) -> None:
    task, ids, rows = task_of(name)
    assert task.path == NETS[name][2]
    padded = task.examples.spread(ids, 20)
    assert padded.weight is not None
    assert bool((padded.weight == 0).any())
    drawn = task.examples.draw(5, ids, 6)[0]
    for batch in (padded, drawn):
        gradients = task.gradients.gradient(rows, batch)
        for i in range(len(rows)):
            count = len(batch.y[i])
            if batch.weight is not None:
                count = int(batch.weight[i].sum())
            module = task.space.fill(rows[i]).train()
            loss = F.cross_entropy(module(batch.x[i, :count]), batch.y[i, :count])
            loss.backward()
            by_name = dict(module.named_parameters())
            for slot in task.space.slots:
                expected = by_name[slot.name].grad
                assert expected is not None
                stored = slot.oriented(expected).reshape(-1)
                error = gradients[i, slot.start : slot.stop] - stored
                assert error.abs().max() <= EXACT, slot.name


@every_net
def test_a_filled_module_in_eval_mode_scores_as_the_task_does(name: str) -> None:
    task, ids, rows = task_of(name)
    statistics = task.statistics(rows, ids)
    score = task.evaluate(rows, "test", ids)
    part = task.shards.test
    for device in range(len(ids)):
        module = task.space.fill(rows[device], statistics[device]).eval()
        own = part.index[part.offset[device] : part.offset[device + 1]]
        loss = F.cross_entropy(module(task.shards.x[own]), task.shards.y[own], reduction="sum")
        assert loss.item() == pytest.approx(score.loss[device].item(), abs=EXACT)


def test_a_hessian_product_is_the_derivative_of_the_gradient() -> None:
    task, ids, rows = task_of("otherwise")
    v = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = task.examples.draw(5, ids, 6)[0]
    step = 1e-6
    difference = task.gradients.gradient(rows + step * v, batch) - task.gradients.gradient(
        rows - step * v, batch
    )
    product = task.gradients.hessian_product(rows, batch, v)
    assert float((product - difference / (2 * step)).abs().max()) < 1e-6


def test_of_many_examples_a_stated_number_at_even_distances_counts() -> None:
    task = Task(normed_sequence(), shards((6,), (900, 20)), dtype=torch.float64)
    rows = task.space.initial(0).double().expand(2, -1)
    statistics = task.statistics(rows, torch.arange(2))
    part = task.shards.train
    count = int(part.counts()[0])
    chosen = part.index[torch.arange(STATISTICS) * count // STATISTICS]
    first: Any = task.space.fill(rows[0])
    with torch.no_grad():
        hidden = first[0](task.shards.x[chosen])
    assert (statistics[0, :8] - hidden.mean(0)).abs().max() <= EXACT


def test_statistics_of_devices_pool_to_those_of_all_examples() -> None:
    space = ParameterLayout(normed_sequence())
    x = torch.randn(3, 50, 8, dtype=torch.float64)  # three devices of as many examples
    x[1] += 2.0
    of_devices = torch.cat([x.mean(1), x.var(1, unbiased=False)], dim=1)
    whole = x.flatten(0, 1)
    pooled = norm.pooled(space.norms, of_devices)
    assert (pooled[:8] - whole.mean(0)).abs().max() <= EXACT
    assert (pooled[8:] - whole.var(0, unbiased=False)).abs().max() <= EXACT


def test_a_layer_that_is_not_used_keeps_0_and_1() -> None:
    class Unused(NormedMlp):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.BatchNorm1d(4)

    task = Task(Unused(), shards((6,)))
    statistics = task.statistics(task.space.initial(0)[None], torch.tensor([0]))
    assert statistics[0, 16:].tolist() == [0.0] * 4 + [1.0] * 4


# The other modes


def experiment(model: nn.Module, **changes: Any) -> Experiment:
    plain: dict[str, Any] = {
        "algorithm": FedAvg(steps=2, lr=0.1, batch=4), "data": shards((6,)), "tree": Tree.flat(3),
        "rounds": 1, "workers": 1,
    }  # fmt: skip
    return Experiment(model=model, **{**plain, **changes})


@pytest.mark.parametrize(
    ("channels", "groups"), [(3, 1), (6, 1), (16, 4), (32, 8), (64, 16), (100, 25), (512, 32)]
)
def test_groups_have_four_channels_or_more(channels: int, groups: int) -> None:
    assert norm.groups(nn.BatchNorm2d(channels)) == groups
    assert norm.groups(nn.BatchNorm1d(channels)) == 1


def test_group_norm_takes_the_place_of_every_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8, eps=0.1), nn.SyncBatchNorm(8))
    with torch.no_grad():
        model[1].weight.fill_(3.0)
    grouped: Any = norm.prepared(model, "group")
    assert [type(layer) for layer in grouped] == [nn.Conv2d, nn.GroupNorm, nn.GroupNorm]
    assert (grouped[1].num_groups, grouped[1].eps, grouped[1].weight[0].item()) == (2, 0.1, 3.0)
    assert type(model[1]) is nn.BatchNorm2d  # the user's own module is as it was
    run = played(experiment(normed_sequence(), norm="group"))
    assert isinstance(run.module()[1], nn.GroupNorm)
    assert run.runtime.task.space.norms == ()


def pretrained() -> nn.Sequential:
    model = normed_sequence()
    model(2.0 + 3.0 * torch.randn(50, 6, generator=torch.Generator().manual_seed(2)))
    assert isinstance(model, nn.Sequential)
    return model


def test_frozen_layers_keep_the_statistics_of_the_module_and_learn_weight_and_bias() -> None:
    model = pretrained()
    run = covey.run(experiment(model, norm="frozen", start="module"))
    task = run.runtime.task
    x = torch.randn(1, 5, 6)
    rows = task.space.row(task.space.module)[None]
    batch = covey.engine.batches.Batch((x[0], torch.zeros(5)), torch.arange(5)[None])
    expected = model.eval()(x[0])
    assert torch.allclose(task.outputs(rows, batch)[0], expected, atol=1e-6)
    assert torch.allclose(task.space.fill(rows[0]).train()(x[0]), expected, atol=1e-6)
    list(run)
    after: Any = run.module()
    before: Any = model
    assert torch.equal(after[1].running_mean, before[1].running_mean)
    assert torch.equal(after[1].running_var, before[1].running_var)
    assert not torch.equal(after[1].weight, before[1].weight)
    model.load_state_dict(after.state_dict())  # the names are BatchNorm's


def test_frozen_needs_statistics_to_freeze() -> None:
    with pytest.raises(ConfigError, match=r"layer '1' has seen no example.*norm = 'device'"):
        experiment(normed_sequence(), norm="frozen", start="module")
    with pytest.raises(ConfigError, match=r"norm = 'frozen'.*start = 'module'"):
        experiment(pretrained(), norm="frozen")


def test_a_device_does_not_use_the_statistics_that_the_module_came_with() -> None:
    fresh = experiment(normed_sequence())
    used = experiment(pretrained())
    assert fingerprint(fresh) == fingerprint(used)
    assert fingerprint(fresh)["norm"] == "device"
    assert fingerprint(fresh) != fingerprint(experiment(normed_sequence(), norm="group"))


# What is refused


class Twice(NormedMlp):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.norm(self.body(x))))
        return out


def single(examples: int = 1) -> data.Shards:
    """A device with one training example, or as many."""
    x = torch.randn(300, 6)
    y = torch.zeros(300, dtype=torch.int64)
    pair = (x[:7], y[:7])
    own = (x[:examples], y[:examples])
    return data.own_parts(train=[pair, own], test=[pair, pair], classes=3)


class Functional(NormedMlp):
    def forward(self, x: Tensor) -> Tensor:
        mean, variance = torch.zeros(6), torch.ones(6)
        out: Tensor = super().forward(F.batch_norm(x, mean, variance, training=self.training))
        return out


REFUSED: dict[str, tuple[Any, type[CoveyError], str]] = {
    "sync": (lambda: experiment(nn.SyncBatchNorm(6)), ModelError, "SyncBatchNorm.*nn.BatchNorm2d"),
    "no running statistics": (
        lambda: experiment(nn.BatchNorm1d(6, track_running_stats=False)),
        ModelError,
        "track_running_stats=False.*set it to True",
    ),
    "running statistics of instances": (
        lambda: experiment(nn.InstanceNorm1d(6, affine=True, track_running_stats=True)),
        ModelError,
        "InstanceNorm1d with track_running_stats=True.*set it to False",
    ),
    "a layer used twice": (lambda: experiment(Twice()), ModelError, "'norm'.*twice in one pass"),
    "a function of torch": (lambda: experiment(Functional()), ModelError, "calls F.batch_norm itself.*use a layer"),
    "batches of one": (
        lambda: experiment(NormedMlp(), algorithm=FedAvg(batch=1)),
        ConfigError,
        "batch = 1, but the BatchNorm layer 'norm' needs two examples",
    ),
    "a device of one example": (
        lambda: experiment(NormedMlp(), data=single(), tree=Tree.flat(2)),
        DataError,
        "device 1 has one training example.*'norm' needs two",
    ),
    "an epoch whose last batch holds one": (
        lambda: experiment(NormedMlp(), algorithm=FedAvg(batch=5), solver={"epochs": 1}),
        ConfigError,
        "device 0 has 6 training examples, so that the last batch of 5 holds one.*another batch",
    ),
    "a lap whose last batch holds one": (
        lambda: experiment(NormedMlp(), algorithm=FedAvg(batch=5), batches="cyclic"),
        ConfigError,
        "last batch of 5 holds one.*'norm' needs two",
    ),
    "all examples in blocks of which the last holds one": (
        lambda: experiment(NormedMlp(), algorithm=FedAvg(batch=None), data=single(257), tree=Tree.flat(2)),
        ConfigError,
        "device 1 has 257 training examples, so that the last batch of 256 holds one",
    ),
    "a mode nobody knows": (
        lambda: experiment(NormedMlp(), norm="batch"), ConfigError,
        'norm = .batch. must be "device" or "frozen" or "group"',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_before_training(name: str) -> None:
    make, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        covey.run(make())


def test_examples_with_several_values_may_come_one_at_a_time() -> None:
    images = data.own([(torch.randn(4, 1, 6, 6), torch.zeros(4, dtype=torch.int64))], classes=3)
    settings: dict[str, Any] = {"data": images, "tree": Tree.flat(1)}
    run = played(experiment(normed_images(), algorithm=FedAvg(batch=1, steps=2), **settings))
    assert bool(torch.isfinite(run.w).all())


def test_fedbn_keeps_every_kind_of_norm_layer() -> None:
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.Linear(8, 3)
    )
    run = covey.run(experiment(model, algorithm=FedBN()))
    assert run.experiment.private == ("norm",)
    assert run.notes[0].startswith("FedBN: layers 1, 2, 3 stay on each device")
    space = run.runtime.task.space
    assert space.width - space.shared == 3 * 2 * 8
