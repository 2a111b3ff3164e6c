"""A user's own arrays: what cannot be trained on is refused, with the device it belongs to and what
to do.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from covey.data import Part, Shards, own, own_parts
from covey.data.shards import Names
from covey.errors import DataError
from tests.given import refused

X = np.arange(24.0).reshape(8, 3)
Y = np.arange(8) % 2
GOOD = (X, Y)


def masked(value: Any) -> Any:
    return np.ma.masked_array(value, mask=np.arange(value.size).reshape(value.shape) == 5)


def changed(value: float) -> Any:
    x = X.copy()
    x[4, 1] = value
    return x


def second(x: Any, y: Any = Y) -> Callable[[], Shards]:
    """Two devices, of which the second has these."""
    return lambda: own([GOOD, (x, y)])


CASES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "NaN": (second(changed(np.nan)), ["x", "NaN or infinity", "example 12", "of device 1", "repair or drop"]),
    "infinity": (second(changed(np.inf)), ["infinity", "of device 1"]),
    "NaN as a target": (lambda: own([(X, X[:, 0]), (X, changed(np.nan)[:, 1])]), ["y", "NaN", "of device 1"]),
    "too large for float32": (second(changed(1e300)), ["x of device 1", "1e+300", "float32", "scale"]),
    "complex": (second(X + 1j), ["x of device 1", "complex128", "astype"]),
    "a complex tensor": (second(torch.zeros(8, 3, dtype=torch.complex64)), ["x of device 1", "complex64", "real numbers"]),
    "complex labels": (second(X, torch.zeros(8, dtype=torch.complex64)), ["y of device 1", "complex64"]),
    "objects": (second(X.astype(object)), ["x of device 1", "object", "astype"]),
    "text": (second(X.astype(str)), ["x of device 1", "<U"]),
    "labels as text": (second(X, Y.astype(str)), ["y of device 1 is text", "same kind"]),
    "dates": (second(X.astype("datetime64[s]")), ["x of device 1", "datetime64"]),
    "masked values": (second(masked(X)), ["x of device 1", "masked", "fill or drop"]),
    "masked labels": (second(X, masked(Y)), ["y of device 1", "masked"]),
    "rows of different lengths": (second([[1.0], [1.0, 2.0]], [0, 1]), ["x of device 1", "no array"]),
    "a sparse tensor": (second(torch.eye(8).to_sparse()), ["x of device 1", "sparse", "plain"]),
    "a tensor without values": (second(torch.zeros(8, 3, device="meta")), ["x of device 1", "meta", "plain"]),
    "truth values as features": (lambda: own([(X > 3, Y)]), ["x is torch.bool", "must be floats"]),
    "whole numbers as features": (lambda: own([(X.astype(np.uint8), Y)]), ["x is torch.uint8", "/ 255"]),
    "an empty device alone": (lambda: own([(X[:0], Y[:0])]), ["none of the 1 devices", "at least one"]),
    "no device": (lambda: own([]), ["0 devices", "at least one pair"]),
    "other lengths": (second(X, Y[:-1]), ["device 1", "(8, 3)", "(7,)", "per example"]),
    "one number": (second(1.0, 1), ["device 1", "()", "per example"]),
    "another width": (second(X[:, :2]), ["x of device 0", "(3,)", "of device 1", "(2,)"]),
    "another type of labels": (second(X, Y.astype(float)), ["y of device 0", "int64", "of device 1", "float64"]),
    "another width to test on": (
        lambda: own_parts(train=[GOOD, GOOD], test=[GOOD, (X[:, :1], Y)]), ["x of device 0", "of device 1", "(1,)"]
    ),
    "float labels of classes": (lambda: own([(X, Y.astype(float))], classes=2), ["regression", "classes is 2", "y.long()"]),
    "labels on two axes": (lambda: own([(X, Y[:, None])]), ["labels are one axis"]),
    "a negative label": (second(X, Y - 1), ["y[8] = -1", "of device 1", "from 0"]),
    "a label beyond the classes": (lambda: own([GOOD, (X, Y + 1)], classes=2), ["= 2", "of device 1", "classes="]),
    "labels that are identities": (lambda: own([(X, Y + 10**12)]), ["largest label is 1000000000001", "from 0"]),
    "no classes": (lambda: own([GOOD], classes=0), ["classes = 0", "1 to"]),
    "half a class": (lambda: own([GOOD], classes=2.5), ["classes = 2.5"]),  # type: ignore[arg-type]
    "classes of True": (lambda: own([GOOD], classes=True), ["classes = True"]),
    "classes beyond all bounds": (lambda: own([GOOD], classes=10**23), ["classes = 1000", "1 to"]),
    "no features": (lambda: own([(X[:, :0], Y)]), ["no features"]),
    "no pair": (lambda: own([GOOD, X]), ["device 1", "a pair of arrays (x, y)"]),  # type: ignore[list-item]
    "three arrays": (lambda: own([(X, Y, Y)]), ["device 0", "a pair of arrays"]),  # type: ignore[list-item]
    "a dictionary of devices": (lambda: own({"a": GOOD}), ["own is a dict", "list"]),  # type: ignore[arg-type]
    "one array": (lambda: own(X), ["own is a ndarray", "list"]),  # type: ignore[arg-type]
    "no list to test on": (lambda: own_parts(train=[GOOD], test=X), ["test is a ndarray"]),  # type: ignore[arg-type]
    "half a split": (lambda: own([GOOD], split=0.5), ["split=0.5", "three fractions"]),  # type: ignore[arg-type]
    "a split in text": (lambda: own([GOOD], split="abc"), ["split='abc'"]),  # type: ignore[arg-type]
    "a split of True": (lambda: own([GOOD], split=(True, 0, 0)), ["split=(True"]),
    "a seed of text": (lambda: own([GOOD], seed="0"), ["seed='0'"]),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_it_is_refused_by_name(what: str) -> None:
    make, words = CASES[what]
    with refused(*words):
        make()


def test_what_may_be_odd_is_taken() -> None:
    turned = (X.astype(">f8")[::-1], Y > 0)
    assert own([turned, (X.astype(np.float16), Y.astype(np.uint8))]).classes == 2
    assert own([(np.ma.masked_array(X), Y), (X.tolist(), Y.tolist())]).devices == 2  # type: ignore[list-item]
    assert own([(torch.tensor(X, requires_grad=True), Y)]).x.requires_grad is False


PLAIN = {
    "x": torch.zeros(4, 2), "y": torch.tensor([0, 1, 0, 1]), "train": Part.of([[0], [1]]),
    "validation": Part.of([[], []]), "test": Part.of([[2], [3]]), "classes": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.zeros((4, 2))}, ["x is ndarray", "torch.from_numpy"]),
        ({"y": [0, 1, 0, 1]}, ["y is list"]),
        ({"x": torch.eye(4).to_sparse()}, ["x is torch.sparse"]),
        ({"x": torch.zeros(4, 2, dtype=torch.complex64)}, ["x is torch.complex64"]),
        ({"edges": (3, -1)}, ["edges = 3, -1", "at least one"]),
        ({"edges": (2, 0)}, ["edges = 2, 0", "at least one"]),
        ({"names": Names(devices=("a",))}, ["1 names of devices", "for 2"]),
        ({"names": Names(classes=("a", "b", "c"))}, ["3 names of classes", "for 2"]),
        ({"names": Names(edges=("north",))}, ["1 names of edges", "for 0"]),
    ],
)
def test_shards_refuse(change: dict[str, Any], words: list[str]) -> None:
    Shards(**PLAIN)  # type: ignore[arg-type]
    with refused(*words):
        Shards(**{**PLAIN, **change})


@pytest.mark.parametrize("piece", [[0.5], [True, False], ["1"], [[0, 1]], 3, [None]])
def test_a_part_is_of_whole_numbers(piece: Any) -> None:
    """A fraction used to be cut, and a mask taken for the numbers 0 and 1."""
    with pytest.raises(DataError, match="examples of device 1"):
        Part.of([[0], piece])
