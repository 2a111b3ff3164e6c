"""Losses by name, with settings, and losses of torch and of one's own."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import covey
from covey import Experiment, Tree, data
from covey.algorithms import FedAvg, PFedGP
from covey.engine.measures.losses import PerExample, loss_function, resolved_loss
from covey.engine.measures.named_losses import Focal, balanced, named_loss
from covey.errors import ConfigError
from tests.given import played

DEVICES = 3


def classes() -> data.Shards:
    """Three devices with labels 0 to 2, 0 being the most frequent."""
    draw = torch.Generator().manual_seed(1)
    pairs = []
    for _ in range(DEVICES):
        x = torch.randn(24, 4, generator=draw)
        y = (x[:, 0] > 0.5).long() + (x[:, 1] > 1.0).long()
        pairs.append((x, y))
    return data.own(pairs, classes=3)


def several_labels() -> data.Shards:
    draw = torch.Generator().manual_seed(2)
    inputs = [torch.randn(24, 4, generator=draw) for _ in range(DEVICES)]
    return data.own([(x, (x[:, :3] > 0.3).float()) for x in inputs])


def numbers() -> data.Shards:
    draw = torch.Generator().manual_seed(3)
    inputs = [torch.randn(24, 4, generator=draw) for _ in range(DEVICES)]
    return data.own([(x, x[:, :2].sum(1)) for x in inputs])


def trained(shards: data.Shards, loss: Any, outputs: int) -> Tensor:
    """The global row after two rounds."""
    model = nn.Linear(4, outputs)
    algorithm = FedAvg(steps=3, lr=0.2, batch=6)
    tree = Tree.flat(DEVICES)
    run = played(Experiment(algorithm, shards, model, tree, rounds=2, loss=loss))
    return run.w


def test_a_weighted_and_smoothed_cross_entropy_is_the_smoothed_one_times_the_weight() -> None:
    outputs = torch.randn(7, 3, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 2, 1, 0, 0])
    settings = {"name": "cross_entropy", "weights": [1, 2, 3], "smoothing": 0.2}
    losses = loss_function(resolved_loss(settings, classes()))(outputs, y)
    plain = F.cross_entropy(outputs, y, reduction="none", label_smoothing=0.2)
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(losses, plain * weights[y], rtol=0, atol=1e-14)


def test_focal_loss_at_gamma_0_is_cross_entropy_and_by_hand_at_2() -> None:
    outputs = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0])
    assert float(Focal(0.0)(outputs, y)) == pytest.approx(math.log(2), abs=1e-15)
    assert float(Focal(2.0)(outputs, y)) == pytest.approx(0.25 * math.log(2), abs=1e-15)


def test_balanced_weights_give_every_class_the_same_total() -> None:
    shards = classes()
    counts = shards.labels().sum(0)
    weights = balanced(shards)
    totals = [count * weight for count, weight in zip(counts, weights, strict=True)]
    assert totals == pytest.approx([counts.sum() / 3] * 3)


def test_binary_cross_entropy_is_the_mean_over_labels() -> None:
    outputs = torch.randn(5, 3, dtype=torch.float64)
    y = (torch.randn(5, 3) > 0).double()
    loss = named_loss({"name": "bce", "positive": [1, 2, 3]}, several_labels())
    positive = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    expected = F.binary_cross_entropy_with_logits(
        outputs, y, reduction="none", pos_weight=positive
    ).mean(1)
    torch.testing.assert_close(loss(outputs, y), expected, rtol=0, atol=0)


def test_huber_is_squared_error_near_and_linear_far() -> None:
    loss = named_loss({"name": "huber", "delta": 1.0}, numbers())
    outputs = torch.tensor([[0.5], [3.0]])
    losses = loss(outputs, torch.zeros(2))
    assert losses.tolist() == pytest.approx([0.125, 2.5])
    near = trained(numbers(), {"name": "huber", "delta": 1e6}, 1)
    squared = trained(numbers(), "squared_error", 1)
    torch.testing.assert_close(near, squared, rtol=1e-5, atol=1e-6)


def own_mean(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y)


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum"), own_mean, "cross_entropy"],
    ids=["mean of torch", "sum of torch", "mean of one's own", "by name"],
)
def test_a_reduced_cross_entropy_trains_as_cross_entropy(loss: Any) -> None:
    plain = trained(classes(), {"name": "cross_entropy", "smoothing": 0.0}, 3)
    torch.testing.assert_close(trained(classes(), loss, 3), plain, rtol=1e-5, atol=1e-6)


def test_mean_squared_error_of_torch_pairs_every_output_with_its_own_target() -> None:
    outputs = torch.tensor([[1.0], [2.0], [4.0]])
    losses = PerExample(nn.MSELoss())(outputs, torch.tensor([1.0, 0.0, 1.0]))
    assert losses.tolist() == [0.0, 4.0, 9.0]


def test_binary_cross_entropy_of_torch_trains_as_bce() -> None:
    by_name = trained(several_labels(), "bce", 3)
    of_torch = trained(several_labels(), nn.BCEWithLogitsLoss(), 3)
    torch.testing.assert_close(of_torch, by_name, rtol=1e-6, atol=1e-7)


def needs_values(outputs: Tensor, y: Tensor) -> Tensor:
    if float(outputs.sum()) > 0:
        return outputs.sum()
    return outputs.square().sum()


BAD: dict[str, tuple[data.Shards, Any, list[str]]] = {
    "no such loss": (classes(), "hinge", ["'hinge'", "focal", "bce", "huber"]),
    "no such loss in a table": (classes(), {"name": "hinge", "c": 1}, ["hinge", "focal"]),
    "no name": (classes(), {"gamma": 2}, ["lacks a name", "gamma = ...", "focal"]),
    "no such setting": (classes(), {"name": "focal", "alpha": 1}, ["loss.alpha", "gamma, weights"]),
    "a setting of a wrong type": (classes(), {"name": "focal", "gamma": "2"}, ["gamma", "number"]),
    "a negative setting": (classes(), {"name": "huber", "delta": -1}, ["delta = -1", "above 0"]),
    "a smoothing of 1": (classes(), {"name": "cross_entropy", "smoothing": 1}, ["smoothing = 1", "0.9999"]),
    "too few weights": (classes(), {"name": "focal", "weights": [1, 2]}, ["2 weights for 3 classes"]),
    "no weight above 0": (
        classes(), {"name": "cross_entropy", "weights": [0, 0, 0]}, ["all weights are 0", "raise some"],
    ),
    "a weight alone": (classes(), {"name": "focal", "weights": 2}, ["weights = 2", "balanced"]),
    "focal for numbers": (numbers(), "focal", ["needs labels", "numbers"]),
    "bce for classes": (classes(), "bce", ["yes-or-no", "cross_entropy"]),
    "bce for numbers": (numbers(), "bce", ["bce: a target is", "0 to 1"]),
    "weights of other labels": (
        several_labels(), {"name": "bce", "positive": [1]}, ["1 weights `positive` for 3 labels"],
    ),
    "a class": (classes(), torch.nn.CrossEntropyLoss, ["is a class", "CrossEntropyLoss()"]),
    "a number": (classes(), 3, ["loss = 3", "table"]),
    "one number that cannot be split": (classes(), needs_values, ["example by example", "none"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_loss_is_refused_with_a_fix(case: str) -> None:
    shards, loss, words = BAD[case]
    with pytest.raises(ConfigError) as error:
        trained(shards, loss, 3)
    for word in words:
        assert word in str(error.value)


def test_cross_entropy_refuses_several_labels_per_example_and_names_bce() -> None:
    rows = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]])
    parts: dict[str, Any] = {
        "algorithm": FedAvg(),
        "data": data.own([(torch.zeros(4, 2), rows)] * 2, split=(1, 0, 0)),
        "model": covey.models.linear(2, 3),
        "tree": Tree.flat(2),
        "rounds": 1,
    }
    with pytest.raises(ConfigError, match=r"3 targets of example 1 are no prob.*sum is 2.*'bce'"):
        Experiment(**parts, loss="cross_entropy")
    Experiment(**parts, loss="bce")


def noted(shards: data.Shards, loss: Any, algorithm: FedAvg, outputs: int) -> list[str]:
    """The notes of a run that are about its loss."""
    model = nn.Linear(shards.x.shape[1], outputs)
    tree = Tree.flat(shards.devices)
    run = covey.run(Experiment(algorithm, shards, model, tree, rounds=1, loss=loss))
    return [note for note in run.notes if note.startswith("loss ")]


def test_a_huber_delta_far_below_the_spread_of_the_targets_is_noted() -> None:
    x = torch.zeros(6, 2)
    y = torch.tensor([0.0, 20.0, 40.0, 0.0, 20.0, 40.0])  # of standard deviation 16.3
    shards = data.own_parts(train=[(x, y), (x, y)])
    loss = {"name": "huber", "delta": 1.6}
    assert "delta to about 16" in noted(shards, loss, FedAvg(), 1)[0]
    assert "standard deviation of the targets is 16.3" in noted(shards, "huber", FedAvg(), 1)[0]
    assert noted(shards, {**loss, "delta": 1.7}, FedAvg(), 1) == []


def test_a_default_step_for_many_labels_is_noted() -> None:
    x = torch.zeros(6, 2)
    y = torch.eye(6)
    shards = data.own_parts(train=[(x, y), (x, y)])
    default = FedAvg().lr
    note = noted(shards, "bce", FedAvg(), 6)[0]
    assert "the mean over 6 labels" in note
    assert f"try lr = {6 * default:.2g}" in note
    assert noted(shards, "bce", FedAvg(lr=6 * default), 6) == []
    few = data.own_parts(train=[(x, y[:, :3]), (x, y[:, :3])])
    assert noted(few, "bce", FedAvg(), 3) == []


def notes_of(shards: Any, *more: nn.Module, **settings: Any) -> str:
    """All notes of a run of FedAvg, with these layers after a linear one."""
    model = nn.Sequential(nn.Linear(shards.x.shape[1], shards.classes or 1), *more)
    tree = Tree.flat(shards.devices)
    algorithm = settings.pop("algorithm", FedAvg(batch=None))
    return "\n".join(
        covey.run(Experiment(algorithm, shards, model, tree, rounds=1, **settings)).notes
    )


def test_a_softmax_before_a_cross_entropy_is_noted() -> None:
    shards = classes()
    for layer in (nn.Softmax(1), nn.LogSoftmax(1)):
        for loss in ("auto", "focal", {"name": "cross_entropy", "smoothing": 0.1}):
            words = f"ends in {type(layer).__name__}, but the loss takes logits"
            assert words in notes_of(shards, layer, loss=loss)
        own = notes_of(shards, layer, loss=nn.NLLLoss())  # which takes logarithms
        assert "logits" not in own
    assert "logits" not in notes_of(shards, nn.Softmax(1), nn.Linear(3, 3))


def test_data_of_one_class_is_noted() -> None:
    x = torch.zeros(6, 2)
    y = torch.ones(6, dtype=torch.int64)
    words = "all training examples have the same class"
    assert words in notes_of(data.own_parts(train=[(x, y), (x, y)]))
    assert words not in notes_of(data.own_parts(train=[(x, y), (x, 0 * y)]))


def test_batches_of_more_than_twice_the_examples_are_noted_with_how_many_devices() -> None:
    x = torch.zeros(9, 2)
    y = torch.arange(9) % 2
    shards = data.own_parts(train=[(x[:4], y[:4]), (x[:5], y[:5]), (x, y)])
    words = "twice the training examples of 2 of 3 devices"
    assert f"batch = 11 is more than {words}" in notes_of(shards, algorithm=FedAvg(batch=11))
    for settings in (
        {"algorithm": FedAvg(batch=8)},
        {"algorithm": FedAvg(batch=11), "batches": "cyclic"},
        {"algorithm": FedAvg(batch=11), "solver": {"epochs": 2}},
        {"algorithm": PFedGP(batch=11)},
    ):
        assert "batch = " not in notes_of(shards, **settings)


def test_a_step_as_many_times_as_large_as_there_are_labels_learns_as_one_label_does() -> None:
    """Equal labels: the mean over K of them has 1 / K of the gradient in each output."""
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(12, 3, generator=draw)
    label = (x[:, :1] > 0).float()
    rows = []
    for labels in (1, 8):
        shards = data.own_parts(train=[(x, label.expand(12, labels))])
        model = nn.Linear(3, labels)
        for parameter in model.parameters():
            parameter.data.zero_()
        algorithm = FedAvg(lr=0.1 * labels, batch=None)
        tree = Tree.flat(1)
        settings: dict[str, Any] = {"loss": "bce", "start": "module", "rounds": 3}
        run = played(Experiment(algorithm, shards, model, tree, **settings))
        weight = run.module().state_dict()["weight"]
        rows.append(weight[0])
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5, 1.0, 2.0])
def test_focal_has_a_gradient_where_an_example_is_certain(gamma: float) -> None:
    outputs = torch.tensor([[30.0, 0.0], [0.3, 0.0]], requires_grad=True)
    loss = Focal(gamma)(outputs, torch.tensor([0, 0])).sum()
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert bool(torch.isfinite(gradient).all())
    assert gradient[0].abs().max() < 1e-6 < gradient[1].abs().min()


def test_a_loss_far_above_the_first_is_noted_once() -> None:
    x = torch.ones(4, 1)
    shards = data.own([(x, torch.zeros(4))] * 2, split=(0.5, 0.5, 0))

    def notes(lr: float) -> list[str]:
        experiment = Experiment(
            FedAvg(steps=1, lr=lr, batch=None), shards, nn.Linear(1, 1), Tree.flat(2), rounds=6,
            loss="mse", parts=("validation",),
        )  # fmt: skip
        run = played(experiment)
        return [note for note in run.notes if "validation loss of the global model" in note]

    assert notes(0.1) == []
    (note,) = notes(2.0)  # every round multiplies the error by -3 and the loss by 9
    assert note.startswith("round 3: ")
    assert "covey advise" in note
