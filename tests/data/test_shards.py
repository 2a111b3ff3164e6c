"""Shards: what they answer, and what they refuse."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from covey.data import Part, Shards
from covey.errors import ConfigError
from tests.given import refused


def shards(**changes: Any) -> Shards:
    """Two devices, six examples of two features: each trains on one, validates on one, is tested on
    one.
    """
    fields: dict[str, Any] = {
        "x": torch.arange(12.0).reshape(6, 2), "y": torch.tensor([0, 1, 2, 0, 1, 2]),
        "train": Part.of([[0], [3]]), "validation": Part.of([[1], [4]]), "test": Part.of([[2], [5]]),
        "classes": 3,
    }  # fmt: skip
    return Shards(**{**fields, **changes})


def test_part_knows_what_each_device_holds() -> None:
    part = Part.of([[5, 1], [], [2]])
    assert part.devices == 3
    assert part.counts().tolist() == [2, 0, 1]
    assert [part.held(d).tolist() for d in range(3)] == [[5, 1], [], [2]]
    assert part.index.dtype == part.offset.dtype == torch.int64


def test_part_may_hold_nothing() -> None:
    part = Part.of([[], []])
    assert part.counts().tolist() == [0, 0]
    assert part.index.dtype == torch.int64


def test_part_refuses_other_types() -> None:
    with refused("Part.index", "torch.float32 of shape (2,)", "Part.of"):
        Part(torch.zeros(2), torch.tensor([0, 2]))


@pytest.mark.parametrize("offset", [[0, 1], [1, 2], [0, 2, 1, 2], []])
def test_part_refuses_offsets_that_do_not_rise_to_the_end(offset: list[int]) -> None:
    with refused("rise from 0 to 2", str(offset), "Part.of"):
        Part(torch.tensor([0, 1]), torch.tensor(offset, dtype=torch.int64))


def test_parts_by_name() -> None:
    ready = shards()
    assert ready.devices == 2
    assert [ready.part(s) for s in ("train", "validation", "test")] == [
        ready.train,
        ready.validation,
        ready.test,
    ]
    error = r"'valid' \(did you mean 'validation'\?\); ask for one of 'train', 'validation', 'test'"
    with pytest.raises(ConfigError, match=error):
        ready.part("valid")


def test_paper_joins_validation_to_train() -> None:
    paper = shards().paper()
    assert [paper.train.held(d).tolist() for d in range(2)] == [[0, 1], [3, 4]]
    assert paper.validation.counts().tolist() == [0, 0]
    assert paper.test.index.tolist() == [2, 5]
    assert paper.paper().fingerprint() == paper.fingerprint()


def test_fingerprint_is_of_the_content() -> None:
    assert shards().fingerprint() == shards(name="other").fingerprint()
    assert len(shards().fingerprint()) == 64
    strided = torch.arange(12.0).reshape(6, 2).t().contiguous().t()
    assert shards(x=strided).fingerprint() == shards().fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.arange(12.0).reshape(6, 2) + 1},
        {"x": torch.arange(12.0).reshape(6, 2).double()},
        {"x": torch.arange(12.0).reshape(6, 2, 1)},
        {"y": torch.tensor([0, 1, 2, 0, 1, 1])},
        {"train": Part.of([[3], [0]])},
        {"train": Part.of([[0], [3]]), "validation": Part.of([[1, 4], []])},
        {"validation": Part.of([[2], [5]]), "test": Part.of([[1], [4]])},
    ],
)
def test_fingerprint_sees_every_change(changes: dict[str, Any]) -> None:
    assert shards(**changes).fingerprint() != shards().fingerprint()


def test_float64_is_kept() -> None:
    assert shards(x=torch.zeros(6, 2, dtype=torch.float64)).x.dtype == torch.float64


@pytest.mark.parametrize("shape", [(6,), (6, 3)])
def test_regression_targets(shape: tuple[int, ...]) -> None:
    assert shards(y=torch.zeros(shape), classes=None).classes is None


def test_validation_and_test_may_be_empty() -> None:
    nothing = Part.of([[], []])
    assert shards(validation=nothing, test=nothing).test.counts().tolist() == [0, 0]


def test_refuses_x_and_y_of_different_lengths() -> None:
    with refused("x has shape (6, 2) and y (5,)", "per example"):
        shards(y=torch.zeros(5, dtype=torch.int64))


def test_names_devices_without_training_examples() -> None:
    nothing = Part.of([[]] * 3)
    some = shards(train=Part.of([[], [0], []]), validation=nothing, test=nothing)
    assert some.receivers.tolist() == [0, 2]
    assert some.only([2]).receivers.tolist() == [2]  # device 0 is elsewhere
    assert some.chosen([1]).receivers.tolist() == []
    with refused("none of 3 devices", "at least one"):
        shards(train=nothing, validation=nothing, test=nothing)


def test_refuses_no_devices() -> None:
    with refused("0 devices", "at least one"):
        shards(train=Part.of([]), validation=Part.of([]), test=Part.of([]))


def test_refuses_parts_of_different_sizes() -> None:
    with refused("'train': 2", "'test': 1", "empty piece"):
        shards(test=Part.of([[2]]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_refuses_features_that_are_not_finite(bad: float) -> None:
    x = torch.zeros(6, 2)
    x[2, 0] = x[2, 1] = x[4, 1] = bad
    with refused("x has NaN or infinity in 2 of 6 examples", "example 2", "repair or drop"):
        shards(x=x)


def test_refuses_targets_that_are_not_finite() -> None:
    with refused("y has NaN or infinity in 1 of 6", "example 5", "repair or drop"):
        shards(y=torch.tensor([0, 0, 0, 0, 0, float("nan")]), classes=None)


@pytest.mark.parametrize("label", [-1, 3])
def test_refuses_labels_outside_the_classes(label: int) -> None:
    with refused("labels", "3 classes 0 to 2", "1 of 6", f"y[1] = {label}"):
        shards(y=torch.tensor([0, label, 2, 0, 1, 2]))


def test_refuses_labels_without_classes() -> None:
    with refused("classes is None", "classes=3"):
        shards(classes=None)


def test_refuses_targets_with_classes() -> None:
    with refused("torch.float32", "classes is 3", "y.long()"):
        shards(y=torch.zeros(6))


def test_refuses_targets_of_another_type() -> None:
    with refused("y is torch.float64", "x is torch.float32", "y.to(x.dtype)"):
        shards(y=torch.zeros(6, dtype=torch.float64), classes=None)


@pytest.mark.parametrize(
    "y", [torch.zeros(6, 1, dtype=torch.int64), torch.zeros(6, dtype=torch.int32)]
)
def test_refuses_labels_of_another_form(y: torch.Tensor) -> None:
    with refused(f"{y.dtype} of shape {tuple(y.shape)}", "y.long().reshape(-1)"):
        shards(y=y)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_refuses_integer_features(dtype: torch.dtype) -> None:
    with refused(f"x is {dtype}", "x.float() / 255"):
        shards(x=torch.zeros(6, 2, dtype=dtype))


@pytest.mark.parametrize("number", [-1, 6])
def test_refuses_an_index_out_of_range(number: int) -> None:
    with refused(f"test.index names examples {number}", "0 to 5", "positions in x"):
        shards(test=Part.of([[2], [number]]))


def test_is_frozen_and_can_be_replaced() -> None:
    with pytest.raises(AttributeError):
        shards().name = "other"
    assert replace(shards(), name="other").name == "other"
