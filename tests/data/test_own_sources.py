"""Text labels, images of bytes and torch Datasets as a user's own data."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import covey
from covey import Experiment, Tree
from covey.algorithms import FedAvg
from covey.data import own, own_parts
from covey.models import linear
from tests.given import refused

WHOLE = (1, 0, 0)


def zeros(count: int) -> np.ndarray:
    return np.zeros((count, 2))


@pytest.mark.parametrize("form", [list, np.array, lambda labels: np.array(labels, dtype=object)])
def test_text_labels_are_numbered_in_the_order_of_all_devices_names(form: Any) -> None:
    shards = own([(zeros(2), form(["warm", "hot"])), (zeros(3), form(["ok", "hot", "ok"]))])
    assert shards.names.classes == ("hot", "ok", "warm")
    assert shards.y.tolist() == [2, 0, 1, 0, 1]
    assert shards.classes == 3


def test_text_labels_are_numbered_over_all_parts() -> None:
    train = [(zeros(1), ["b"]), (zeros(1), ["c"])]
    shards = own_parts(train=train, test=[(zeros(1), ["a"]), (zeros(0), [])])
    assert shards.names.classes == ("a", "b", "c")
    labels = [shards.y[shards.test.held(0)], shards.y[shards.train.held(1)]]
    assert [held.tolist() for held in labels] == [[0], [2]]


def test_text_labels_train() -> None:
    shards = own([(np.eye(2), ["a", "b"])] * 2, split=WHOLE)
    run = covey.run(Experiment(FedAvg(), shards, linear(2, 2), Tree.flat(2), 1, parts=("train",)))
    next(run)


def test_refuses_text_here_and_numbers_there() -> None:
    with refused("y of device 1 is text", "of device 0 numbers", "same kind"):
        own([(zeros(2), [0, 1]), (zeros(2), ["a", "b"])])


@pytest.mark.parametrize("odd", [None, float("nan"), 3, ""])
def test_names_the_place_of_a_label_that_is_missing(odd: object) -> None:
    with refused("y of device 0", "at 1", "not empty"):
        own([(zeros(3), ["a", odd, "b"])])


def test_refuses_another_number_of_classes_than_there_are_names() -> None:
    with refused("classes = 3", "2 names (a, b)", "leave classes out"):
        own([(zeros(2), ["a", "b"])], classes=3)


def test_true_and_false_are_two_classes_though_one_occurs() -> None:
    shards = own([(zeros(2), np.array([False, False]))])
    assert (shards.classes, shards.y.tolist()) == (2, [0, 0])


SHAPES = [(8, 9), (8, 9, 3), (3, 8, 9), (8, 9, 1), (4, 8, 9)]


@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_are_images_in_the_unit_interval(shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, *shape)).astype(np.uint8)
    shards = own([(images, [0, 1, 0, 1])], split=WHOLE)
    expected = images / np.float32(255)
    if len(shape) == 2:
        expected = expected[:, None]
    elif shape[2] in (1, 3):
        expected = expected.transpose(0, 3, 1, 2)
    assert shards.x.dtype == torch.float32
    np.testing.assert_allclose(shards.x.numpy(), expected, rtol=1e-6)
    assert shards.scaling.kind == "unit"


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, 8, 3), "first axis or on the last"),
        ((8, 9, 5), "has no axis of 1, 3 or 4 channels"),
        ((2, 3, 8, 9), "not that of an image"),
    ],
)
def test_refuses_bytes_that_are_no_image_or_two(shape: tuple[int, ...], words: str) -> None:
    with refused(str(shape), words, "/ 255"):
        own([(np.zeros((2, *shape), dtype=np.uint8), [0, 1])])


def test_images_of_bytes_may_have_float_targets() -> None:
    shards = own([(torch.zeros(2, 8, 8, dtype=torch.uint8), np.array([0.5, 1.5]))])
    assert (shards.classes, shards.y.dtype) == (None, torch.float32)


def test_bytes_that_are_tokens_stay_tokens() -> None:
    ids = np.zeros((2, 5), dtype=np.uint8)
    assert own([(ids, [0, 1])], tokens=True).x.dtype == torch.int64


class Squares(Dataset[Any]):
    """Pairs of a number's features and the text or number that `label` makes of it."""

    def __init__(self, count: int, label: Any = str, feature: Any = None) -> None:
        self.count = count
        self.label = label
        self.feature = feature or (lambda i: np.array([i, i * i], dtype=np.float32))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return self.feature(i), self.label(i)


def test_a_dataset_per_device_is_the_same_as_its_arrays() -> None:
    x = torch.arange(12.0).reshape(6, 2)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    whole = TensorDataset(x, y)
    pieces = [[4, 0], [1, 2, 3, 5]]
    expected = own([(x[piece], y[piece]) for piece in pieces]).fingerprint()
    assert own([Subset(whole, piece) for piece in pieces]).fingerprint() == expected
    nested = [Subset(Subset(whole, range(6)), piece) for piece in pieces]
    assert own(nested).fingerprint() == expected
    one_by_one = [[(x[i], y[i]) for i in piece] for piece in pieces]
    asked = [Squares(len(p), lambda i, p=p: p[i][1], lambda i, p=p: p[i][0]) for p in one_by_one]
    assert own(asked).fingerprint() == expected


def test_a_dataset_may_have_text_labels_and_numpy_features() -> None:
    shards = own([Squares(3), Subset(Squares(5), [4, 1])], split=WHOLE)
    assert shards.names.classes == ("0", "1", "2", "4")
    assert shards.y.tolist() == [0, 1, 2, 3, 1]
    assert shards.x[3].tolist() == [4.0, 16.0]


def test_a_dataset_may_have_images() -> None:
    image = pytest.importorskip("PIL.Image")
    shards = own([Squares(3, int, lambda i: image.new("RGB", (6, 5), (255, 0, 0)))])
    assert tuple(shards.x.shape) == (3, 3, 5, 6)
    assert shards.x[0].mean(dim=(1, 2)).tolist() == [1.0, 0.0, 0.0]


class Stream(IterableDataset[Any]):
    """Examples without positions."""

    def __iter__(self) -> Any:
        yield np.zeros(2), 0


def fail(i: int) -> Any:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Stream(), ["device 0 is a Stream", "map-style"]),
        (Squares(2, fail), ["example 0 of its Squares", "KeyError", "lost"]),
        (Squares(3, int, np.zeros), ["x of example 0 has shape (0,)", "of example 1 (1,)"]),
        (TensorDataset(torch.zeros(2)), ["TensorDataset of 1 tensors", "x and y"]),
        (Squares(0), ["none of the 1 devices", "training example"]),
    ],
)
def test_a_dataset_that_cannot_be_read_is_named(dataset: Any, words: list[str]) -> None:
    with refused(*words):
        own([dataset])


def test_one_dataset_is_not_a_list_of_devices() -> None:
    with refused("one Squares", "list with one Dataset per device", "Subset"):
        own(Squares(3))  # type: ignore[arg-type]
