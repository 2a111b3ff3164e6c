"""A user's own arrays become shards, or a message that says what to change."""

from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey import Experiment, Tree
from covey.algorithms import FedAvg
from covey.data import Shards, own, own_parts
from covey.errors import DataError, ModelError
from covey.models import linear
from tests.given import refused

rng = np.random.default_rng(0)
PAIRS = [(rng.normal(size=(n, 3)), rng.integers(0, 4, n)) for n in (20, 40, 8)]


def test_every_device_keeps_its_own_examples() -> None:
    shards = own(PAIRS, classes=4)
    counts = [shards.part(split).counts().tolist() for split in ("train", "validation", "test")]
    assert counts == [[12, 24, 5], [3, 6, 1], [5, 10, 2]]
    for device, (x, y) in enumerate(PAIRS):
        held = (
            torch.cat([shards.part(s).held(device) for s in ("train", "validation", "test")])
            .sort()
            .values
        )
        assert np.array_equal(shards.x[held].numpy(), x)
        assert np.array_equal(shards.y[held].numpy(), y)


def test_the_seed_decides() -> None:
    assert own(PAIRS, seed=1).fingerprint() == own(PAIRS, seed=1).fingerprint()
    assert own(PAIRS, seed=1).fingerprint() != own(PAIRS, seed=2).fingerprint()


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", ">f8", "longdouble"])
def test_floats_keep_their_type_and_the_largest_serves_all_devices(kind: str) -> None:
    want = {"float16": torch.float16, "float32": torch.float32}.get(kind, torch.float64)
    assert own([(np.zeros((4, 2), dtype=kind), np.zeros(4))]).x.dtype == want
    assert own([(torch.zeros(4, 2, dtype=want), torch.zeros(4))]).x.dtype == want
    both = own([(np.ones((4, 2), dtype="float32"), np.ones(4)), (np.ones((4, 2)), np.ones(4))])
    assert (both.x.dtype, both.y.dtype) == (torch.float64, torch.float64)


def test_a_run_in_float64_trains_on_the_numbers_of_the_user() -> None:
    x = np.random.default_rng(0).normal(size=(8, 3))
    experiment = covey.Experiment(
        FedAvg(steps=1, lr=1.0, batch=None),
        own_parts(train=[(x, x[:, 0])]),
        covey.models.linear(3, 1, bias=False),
        covey.Tree.flat(1),
        rounds=1,
        dtype=torch.float64,
        parts=("train",),
    )
    run = covey.run(experiment)
    w = run.w[0].numpy()
    next(run)
    expected = w - x.T @ (x @ w - x[:, 0]) / 8
    np.testing.assert_allclose(run.w[0].numpy(), expected, rtol=0, atol=1e-13)


def test_float_targets_mean_regression_in_the_type_of_x() -> None:
    shards = own([(torch.zeros(4, 2, dtype=torch.float64), np.zeros((4, 2), dtype=np.float32))])
    assert shards.classes is None
    assert shards.y.dtype == torch.float64


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", ">i4", "bool"])
def test_integer_targets_mean_labels(kind: str) -> None:
    shards = own([(np.zeros((4, 2)), np.array([0, 1, 1, 0]).astype(kind))])
    assert shards.classes == 2
    assert shards.y.dtype == torch.int64


def test_arrays_may_be_read_only_or_reversed_and_are_copied() -> None:
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 0, 1])
    x.setflags(write=False)
    shards = own([(x[::-1], y[::-1])])
    assert shards.x[0].tolist() == [6, 7]
    assert shards.y.tolist() == [1, 0, 1, 0]


def test_ready_made_parts() -> None:
    one, two = PAIRS[0], PAIRS[1]
    nothing = (np.empty((0, 3)), np.empty(0))
    shards = own_parts(train=[one, two], test=[two, nothing], name="mine")
    assert shards.train.counts().tolist() == [20, 40]
    assert shards.validation.counts().tolist() == [0, 0]
    assert shards.test.counts().tolist() == [40, 0]
    assert np.array_equal(shards.x[shards.test.held(0)].numpy(), two[0])
    assert (shards.name, shards.classes) == ("mine", 4)


INTEGERS = np.zeros(4, dtype=int)
REFUSED: dict[str, tuple[list[Any], list[str]]] = {
    "no devices": ([], ["0 devices", "at least one pair"]),
    "other lengths": ([PAIRS[0], (np.zeros((4, 3)), np.zeros(5, dtype=int))], ["device 1", "(4, 3)", "(5,)", "per example"]),
    "text as features": ([(np.array([["a"], ["b"]]), np.array([0, 1]))], ["x of device 0", "<U1", "give numbers"]),
    "integer features": ([(np.zeros((4, 3), dtype=np.uint8), INTEGERS)], ["torch.uint8", "/ 255"]),
    "other shapes": ([PAIRS[0], (np.zeros((4, 2)), INTEGERS)], ["x of device 0", "(3,)", "of device 1", "(2,)", "same type and shape"]),
    "labels here and targets there": (
        [PAIRS[0], (np.zeros((4, 3)), np.zeros(4))], ["y of device 0 is torch.int64", "of device 1 torch.float64", "same type and shape"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name: str) -> None:
    pairs, words = REFUSED[name]
    with refused(*words):
        own(pairs)


def test_refuses_parts_of_different_sizes() -> None:
    with refused("validation has 1 devices and train has 3", "empty arrays"):
        own_parts(train=PAIRS, validation=PAIRS[:1])


def test_an_empty_device_receives() -> None:
    nothing: tuple[Any, list[int]] = (np.empty(0), [])
    shards = own([PAIRS[0], (np.empty((0, 3)), np.empty(0, dtype=int)), nothing])
    assert shards.receivers.tolist() == [1, 2]
    assert shards.receiver_notes() == (
        "2 of 3 devices have no training examples: they receive, but never train.",
    )
    with refused("none of the 2 devices", "give at least one some"):
        own([nothing, nothing])


def named(*labels: int, **more: Any) -> Shards:
    return own_parts(train=[(np.zeros((len(labels), 2)), np.array(labels))], **more)


@pytest.mark.parametrize("given", [{}, {"classes": 3}])
def test_labels_from_one_are_classes_of_that_name(given: dict[str, Any]) -> None:
    shards = named(3, 1, 2, 3, **given)
    assert (shards.classes, shards.names.classes) == (3, ("1", "2", "3"))
    assert shards.y.tolist() == [2, 0, 1, 2]
    assert shards.numbers().y.tolist() == [3, 1, 2, 3]


@pytest.mark.parametrize(
    ("labels", "more", "classes"),
    [
        ((0, 1, 2), {}, 3),
        ((1, 1), {}, 2),
        ((1, 3), {}, 4),
        ((1, 2), {"classes": 3}, 3),
        ((2, 3), {}, 4),
    ],
    ids=["from 0", "one label", "with a gap", "0 may be absent", "from 2"],
)
def test_other_labels_are_as_they_are(
    labels: tuple[int, ...], more: dict[str, Any], classes: int
) -> None:
    shards = named(*labels, **more)
    assert (shards.classes, shards.names.classes, shards.y.tolist()) == (classes, (), list(labels))


def test_labels_from_one_with_a_gap_are_explained() -> None:
    with pytest.raises(
        DataError, match=r"3 classes 0 to 2 .* count from 1: give y - 1, or classes=4 if no example"
    ):
        named(1, 3, 3, classes=3)


def test_a_model_too_small_for_labels_with_gaps_says_which_labels_are_absent() -> None:
    shards = named(0, 10, 20, 0)
    with pytest.raises(
        ModelError, match=r"3 outputs, but the labels need 21: .* the label 1, 2, 3, 4, 5, \.\.\."
    ) as caught:
        covey.run(Experiment(FedAvg(), shards, linear(2, 3), Tree.flat(1), 1))
    assert "Number the 3 labels that occur from 0 to 2" in str(caught.value)


def test_a_model_too_small_for_labels_without_gaps_is_just_too_small() -> None:
    with pytest.raises(ModelError, match=r"^the model has 2 outputs, but the labels need 3\.$"):
        covey.run(Experiment(FedAvg(), named(1, 2, 3), linear(2, 2), Tree.flat(1), 1))
    run = covey.run(
        Experiment(FedAvg(), named(1, 2, 3), linear(2, 3), Tree.flat(1), 1, parts=("train",))
    )
    next(run)
