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


def test_parts_by_name() -> None:
    ready = shards()
    assert ready.devices == 2
    parts = [ready.part(name) for name in ("train", "validation", "test")]
    assert parts == [ready.train, ready.validation, ready.test]
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


def with_bad(bad: float) -> torch.Tensor:
    """Features of which two examples are bad."""
    x = torch.zeros(6, 2)
    x[2, 0] = x[2, 1] = x[4, 1] = bad
    return x


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "other lengths": ({"y": torch.zeros(5, dtype=torch.int64)}, ["x has shape (6, 2) and y (5,)", "per example"]),
    "no devices": (dict.fromkeys(("train", "validation", "test"), Part.of([])), ["0 devices", "at least one"]),
    "parts of other sizes": ({"test": Part.of([[2]])}, ["'train': 2", "'test': 1", "empty piece"]),
    **{
        f"features of {bad}": ({"x": with_bad(bad)}, ["x has NaN or infinity in 2 of 6 examples", "example 2", "repair or drop"])
        for bad in (float("nan"), float("inf"), float("-inf"))
    },
    "targets of nan": (
        {"y": torch.tensor([0, 0, 0, 0, 0, float("nan")]), "classes": None},
        ["y has NaN or infinity in 1 of 6", "example 5", "repair or drop"],
    ),
    **{
        f"the label {label}": ({"y": torch.tensor([0, label, 2, 0, 1, 2])}, ["labels", "3 classes 0 to 2", "1 of 6", f"y[1] = {label}"])
        for label in (-1, 3)
    },
    "labels without classes": ({"classes": None}, ["classes is None", "classes=3"]),
    "targets with classes": ({"y": torch.zeros(6)}, ["torch.float32", "classes is 3", "y.long()"]),
    "targets of another type": (
        {"y": torch.zeros(6, dtype=torch.float64), "classes": None}, ["y is torch.float64", "x is torch.float32", "y.to(x.dtype)"],
    ),
    "labels on two axes": ({"y": torch.zeros(6, 1, dtype=torch.int64)}, ["torch.int64 of shape (6, 1)", "y.long().reshape(-1)"]),
    "labels of int32": ({"y": torch.zeros(6, dtype=torch.int32)}, ["torch.int32 of shape (6,)", "y.long().reshape(-1)"]),
    **{
        f"features of {dtype}": ({"x": torch.zeros(6, 2, dtype=dtype)}, [f"x is {dtype}", "x.float() / 255"])
        for dtype in (torch.uint8, torch.int64, torch.bool)
    },
    **{
        f"the index {number}": ({"test": Part.of([[2], [number]])}, [f"test.index names examples {number}", "0 to 5", "positions in x"])
        for number in (-1, 6)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name: str) -> None:
    changes, words = REFUSED[name]
    with refused(*words):
        shards(**changes)


def test_a_part_is_of_whole_numbers_with_offsets_that_rise_to_the_end() -> None:
    with refused("Part.index", "torch.float32 of shape (2,)", "Part.of"):
        Part(torch.zeros(2), torch.tensor([0, 2]))
    for offset in ([0, 1], [1, 2], [0, 2, 1, 2], []):
        with refused("rise from 0 to 2", str(offset), "Part.of"):
            Part(torch.tensor([0, 1]), torch.tensor(offset, dtype=torch.int64))


def test_names_devices_without_training_examples() -> None:
    nothing = Part.of([[]] * 3)
    some = shards(train=Part.of([[], [0], []]), validation=nothing, test=nothing)
    assert some.receivers.tolist() == [0, 2]
    assert some.only([2]).receivers.tolist() == [2]  # device 0 is elsewhere
    assert some.chosen([1]).receivers.tolist() == []
    with refused("none of 3 devices", "at least one"):
        shards(train=nothing, validation=nothing, test=nothing)


def test_is_frozen_and_can_be_replaced() -> None:
    with pytest.raises(AttributeError):
        shards().name = "other"
    assert replace(shards(), name="other").name == "other"
