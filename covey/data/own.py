"""A user's own arrays, one pair (x, y) per device, as shards.

Arrays may be numpy or torch. Integer y are class labels, float y are regression targets. Labels
number the classes from 0; if all of 1, ..., k occur and nothing else, they are taken as k classes
with these names. Float features in numpy become float32, because numpy makes float64 unasked; a
torch tensor keeps its type. An experiment trains in its own `dtype`. With `tokens`, x holds token
ids and stays whole numbers; y may then have a label per position, with `NO_TARGET` where there is
none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey.data import partition
from covey.data.partition import SPLIT, Split
from covey.data.shards import MOST_CLASSES, Names, Part, Shards, some
from covey.errors import DataError, shown

Array = Tensor | npt.NDArray[Any]
Pairs = Sequence[tuple[Array, Array]]


def own(
    devices: Pairs,
    *,
    split: Split = SPLIT,
    seed: int = 0,
    classes: int | None = None,
    tokens: bool | int = False,
    name: str = "own",
) -> Shards:
    """Shards of one pair (x, y) per device.

    Each device's examples are shuffled and cut into train, validation and test. `tokens` says that
    x holds token ids: their number, or True for one more than the largest.

    >>> rng = np.random.default_rng(0)
    >>> shards = own([(rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for _ in range(4)])
    >>> shards.devices, shards.classes, shards.train.counts().tolist()
    (4, 2, [12, 12, 12, 12])
    >>> shards = own([(np.zeros((3, 2)), np.array([1, 2, 3]))] * 2)
    >>> shards.classes, shards.names.classes, shards.y.tolist()
    (3, ('1', '2', '3'), [0, 1, 2, 0, 1, 2])
    >>> text = np.array([[0, 1, 2], [2, 1, 0]])
    >>> shards = own([(text[:, :-1], text[:, 1:])] * 2, split=(1, 0, 0), tokens=True)
    >>> shards.x.dtype, shards.tokens, shards.classes
    (torch.int64, 3, 3)
    """
    pairs = _converted(devices, "own")
    _check_filled(pairs)
    train, validation, test = partition.split(_pieces(pairs), split=split, seed=seed)
    x, y = _joined(pairs, len(pairs))
    y, classes, names = _numbered(y, classes)
    x, count = _token_ids(x, tokens)
    return Shards(
        x,
        y,
        train,
        validation,
        test,
        classes=classes,
        name=name,
        names=names,
        tokens=count,
    )


def own_parts(
    *,
    train: Pairs,
    validation: Pairs | None = None,
    test: Pairs | None = None,
    classes: int | None = None,
    tokens: bool | int = False,
    name: str = "own",
) -> Shards:
    """Shards of a split made beforehand: one pair (x, y) per device in each part.

    A part left out is empty. `tokens` is as in `own`.

    >>> one = (np.zeros((3, 2)), np.array([0, 1, 2]))
    >>> own_parts(train=[one, one], test=[one, one]).test.counts().tolist()
    [3, 3]
    """
    ready = _converted(train, "train")
    n = len(ready)
    _check_filled(ready)
    pairs = [
        *ready,
        *_ready(validation, "validation", devices=n),
        *_ready(test, "test", devices=n),
    ]
    parts = [Part.of(_pieces(pairs)[start : start + n]) for start in (0, n, 2 * n)]
    x, y = _joined(pairs, n)
    y, classes, names = _numbered(y, classes)
    x, count = _token_ids(x, tokens)
    return Shards(
        x,
        y,
        parts[0],
        parts[1],
        parts[2],
        classes=classes,
        name=name,
        names=names,
        tokens=count,
    )


def _ready(pairs: Pairs | None, split: str, *, devices: int) -> list[tuple[Tensor, Tensor]]:
    if pairs is None:
        return [(torch.empty(0), torch.empty(0))] * devices
    if len(_listed(pairs, split)) != devices:
        raise DataError(
            f"{split} has {len(pairs)} devices and train has {devices}; "
            "give a device without examples a pair of empty arrays."
        )
    return _converted(pairs, split)


def _converted(pairs: Pairs, name: str) -> list[tuple[Tensor, Tensor]]:
    ready = []
    for device, pair in enumerate(_listed(pairs, name)):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DataError(
                f"{name}: device {device} is {shown(pair)}; give a pair of arrays (x, y)."
            )
        x = _tensor(pair[0], f"{name}: x of device {device}")
        y = _tensor(pair[1], f"{name}: y of device {device}")
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise DataError(
                f"{name}: device {device} has x of shape {tuple(x.shape)} and y of shape "
                f"{tuple(y.shape)}; "
                "give one row of x and one of y per example."
            )
        if not y.is_floating_point():
            y = y.long()
        elif x.is_floating_point():
            y = y.to(x.dtype)
        ready.append((x, y))
    return ready


def _listed(pairs: Any, name: str) -> Sequence[Any]:
    if not isinstance(pairs, list | tuple):
        raise DataError(
            f"{name} is a {type(pairs).__name__}; give a list with one pair (x, y) per device."
        )
    return pairs


def _tensor(array: Any, name: str) -> Tensor:
    if isinstance(array, Tensor):
        return _plain(array, name)
    if np.ma.is_masked(array):
        raise DataError(
            f"{name} has masked values, which would be taken as they are; fill or drop them."
        )
    try:
        array = np.asarray(array)
    except ValueError as error:  # of lists of different lengths
        raise DataError(
            f"{name} is no array: {error}; give one row of as many numbers per example."
        ) from error
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{name} is an array of {array.dtype}; give numbers, as in array.astype('float32')."
        )
    # Copied: torch wants its own byte order, positive strides and memory it may write to.
    if array.dtype.kind == "f":
        dtype = np.dtype(np.float32)
    else:
        dtype = array.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):
        copy = array.astype(dtype, order="C")
    if array.dtype.kind == "f":
        lost = np.isfinite(array) & ~np.isfinite(copy)
        if lost.any():
            raise DataError(f"{name} has {array[lost][0]:g}, too large for float32; scale it.")
    return torch.from_numpy(copy)


def _plain(tensor: Tensor, name: str) -> Tensor:
    odd = tensor.layout != torch.strided or tensor.device.type == "meta"
    if odd or tensor.is_complex() or tensor.is_quantized:
        have = f"{tensor.dtype}, {tensor.layout} on {tensor.device.type}"
        raise DataError(f"{name} is a tensor of {have}; give a plain one of real numbers.")
    return tensor.detach().cpu()


def _joined(pairs: list[tuple[Tensor, Tensor]], devices: int) -> tuple[Tensor, Tensor]:
    """All examples, of pairs that go through the devices once for each part."""
    # A pair without examples says nothing about shapes: an empty list of labels arrives as floats.
    filled = [(index % devices, *pair) for index, pair in enumerate(pairs) if len(pair[0])]
    first, first_x, first_y = filled[0]
    for device, x, y in filled:
        for name, have, want in (("x", x, first_x), ("y", y, first_y)):
            if have.dtype != want.dtype or have.shape[1:] != want.shape[1:]:
                raise DataError(
                    f"{name} of device {first} is {want.dtype} with examples of shape "
                    f"{tuple(want.shape[1:])}, "
                    f"of device {device} {have.dtype} with {tuple(have.shape[1:])}; "
                    "give all devices the same type and shape."
                )
    return torch.cat([x for _, x, _ in filled]), torch.cat([y for _, _, y in filled])


def _pieces(pairs: list[tuple[Tensor, Tensor]]) -> list[npt.NDArray[np.int64]]:
    ends = accumulate((len(x) for x, _ in pairs), initial=0)
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise(ends)]


def _numbered(y: Tensor, classes: int | None) -> tuple[Tensor, int | None, Names]:
    """Labels that count from 0, the number of classes, and their names.

    Classes have names only where the labels counted from 1.
    """
    if y.is_floating_point() or y.ndim != 1:
        return y, _classes(y, classes), Names()
    occurring = torch.unique(y)
    k = len(occurring)
    from_one = k > 1 and torch.equal(occurring, torch.arange(1, k + 1))
    if not from_one or classes not in (None, k):
        return y, _classes(y, classes), Names()
    return (
        y - 1,
        k,
        Names(classes=tuple(str(label) for label in range(1, k + 1))),
    )


def _token_ids(x: Tensor, tokens: bool | int) -> tuple[Tensor, int | None]:
    """The features, whole numbers where they are token ids, and how many token ids there are."""
    if tokens is False:
        return x, None
    if x.is_floating_point() or x.dtype == torch.bool:
        raise DataError(
            f"tokens = {tokens}, but x is {x.dtype}; give whole numbers, as in x.astype('int64')."
        )
    x = x.long()
    if tokens is True:
        return x, max(int(x.max()) + 1, 1)  # a negative id is refused later, with its place
    return x, tokens


def _classes(y: Tensor, classes: int | None) -> int | None:
    if classes is not None or y.is_floating_point():
        return classes
    largest = int(y.max())
    if largest >= MOST_CLASSES:
        rule = "number the classes from 0, or give float targets for regression"
        raise DataError(
            f"the largest label is {largest}, which would mean as many classes; {rule}."
        )
    return max(largest + 1, 1)  # a negative label is refused later, with its place


def _check_filled(pairs: list[tuple[Tensor, Tensor]]) -> None:
    if not pairs:
        raise DataError("there are 0 devices; give at least one pair (x, y).")
    empty = [device for device, (x, _) in enumerate(pairs) if len(x) == 0]
    if empty:
        raise DataError(
            f"{len(empty)} of {len(pairs)} devices have no training example (devices "
            f"{some(empty)}); "
            "give each of them examples or leave it out."
        )
