"""A user's own arrays or torch Datasets, one per device, as shards.

A device is a pair of arrays (x, y), numpy or torch, or a map-style `Dataset` of such pairs.

Integer y are class labels, float y are regression targets, and True and False are two classes.
Labels number the classes from 0; if all of 1, ..., k occur and nothing else, they are taken as k
classes with these names. Labels that are text name their classes, which are numbered in sorted
order, those of all devices together.

Floats keep their type; an experiment trains in its own `dtype`. Images of bytes (uint8) become
floats in [0, 1] with their channels on the first axis: an example is [height, width], [height,
width, channels] or [channels, height, width]. With `tokens`, x holds token ids and stays whole
numbers; y may then have a label per position, with `NO_TARGET` where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from covey.data import partition
from covey.data.datasets import arrays_of
from covey.data.partition import SPLIT, Split
from covey.data.pixels import channels_first, scaled
from covey.data.scaling import Scaling, scaling
from covey.data.shards import MOST_CLASSES, Names, Part, Shards, some
from covey.errors import DataError, shown

Array = Tensor | npt.NDArray[Any]
Pairs = Sequence[tuple[Array, Array | Sequence[Any]] | Dataset[Any]]
Texts = npt.NDArray[np.str_]
Ready = tuple[Tensor, Tensor | Texts]  # x and y of one device


def own(
    devices: Pairs,
    *,
    split: Split = SPLIT,
    seed: int = 0,
    classes: int | None = None,
    tokens: bool | int = False,
    name: str = "own",
) -> Shards:
    """Shards of one pair (x, y), or one torch Dataset of pairs, per device.

    Each device's examples are shuffled and cut into train, validation and test. A device with
    empty arrays receives models, but never trains. `tokens` says that x holds token ids: their
    number, or True for one more than the largest.

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
    >>> shards = own([(np.full((2, 8, 8), 255, dtype=np.uint8), ["ok", "hot"])] * 2)
    >>> tuple(shards.x.shape), float(shards.x.max()), shards.names.classes, shards.y.tolist()
    ((4, 1, 8, 8), 1.0, ('hot', 'ok'), [1, 0, 1, 0])
    """
    pairs = _converted(devices, "own")
    _check_filled(pairs)
    train, validation, test = partition.split(_pieces(pairs), split=split, seed=seed)
    examples = _joined(pairs, len(pairs)).numbered(classes)
    x, how = _pixels(examples.x, tokens)
    x, count = _token_ids(x, tokens)
    return Shards(
        x,
        examples.y,
        train,
        validation,
        test,
        classes=examples.classes,
        name=name,
        names=Names(classes=examples.names),
        scaling=how,
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
    """Shards of a split made beforehand: one pair (x, y) or Dataset per device in each part.

    A part left out is empty. A device without training examples receives models and is scored on
    its other parts, but never trains. `tokens` is as in `own`.

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
    examples = _joined(pairs, n).numbered(classes)
    x, how = _pixels(examples.x, tokens)
    x, count = _token_ids(x, tokens)
    return Shards(
        x,
        examples.y,
        parts[0],
        parts[1],
        parts[2],
        classes=examples.classes,
        name=name,
        names=Names(classes=examples.names),
        scaling=how,
        tokens=count,
    )


def _ready(pairs: Pairs | None, split: str, *, devices: int) -> list[Ready]:
    if pairs is None:
        return [(torch.empty(0), torch.empty(0))] * devices
    if len(_listed(pairs, split)) != devices:
        raise DataError(
            f"{split} has {len(pairs)} devices and train has {devices}; "
            "give a device without examples a pair of empty arrays."
        )
    return _converted(pairs, split)


def _converted(pairs: Pairs, name: str) -> list[Ready]:
    ready: list[Ready] = []
    for device, pair in enumerate(_listed(pairs, name)):
        if isinstance(pair, Dataset):
            pair = arrays_of(pair, f"{name}: device {device}")
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DataError(
                f"{name}: device {device} is {shown(pair)}; "
                "give a pair of arrays (x, y), or a torch Dataset."
            )
        x = _tensor(pair[0], f"{name}: x of device {device}")
        y = _targets(pair[1], f"{name}: y of device {device}")
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise DataError(
                f"{name}: device {device} has x of shape {tuple(x.shape)} and y of shape "
                f"{tuple(y.shape)}; "
                "give one row of x and one of y per example."
            )
        if isinstance(y, Tensor):
            y = _of_one_type(y, x)
        ready.append((x, y))
    return ready


def _of_one_type(y: Tensor, x: Tensor) -> Tensor:
    """Targets in the type of float features, labels as int64; True and False stay."""
    if y.dtype == torch.bool:
        return y
    if not y.is_floating_point():
        return y.long()
    if x.is_floating_point():
        return y.to(x.dtype)
    if x.dtype == torch.uint8:
        return y.float()  # what images of bytes become
    return y


def _listed(pairs: Any, name: str) -> Sequence[Any]:
    if isinstance(pairs, Dataset):
        raise DataError(
            f"{name} is one {type(pairs).__name__}; give a list with one Dataset per device, "
            "as torch.utils.data.Subset makes them of one."
        )
    if not isinstance(pairs, list | tuple):
        raise DataError(
            f"{name} is a {type(pairs).__name__}; give a list with one pair (x, y) per device."
        )
    return pairs


def _targets(array: Any, name: str) -> Tensor | Texts:
    """Numbers as a tensor, or text labels as an array of text."""
    if isinstance(array, Tensor):
        return _tensor(array, name)
    values = array if isinstance(array, list | tuple) else _flat(array)
    text = [isinstance(value, str) for value in values]
    if not any(text):
        return _tensor(array, name)
    wrong = [place for place, value in enumerate(values) if not isinstance(value, str) or not value]
    if wrong:
        raise DataError(
            f"{name} has text labels, but {shown(values[wrong[0]])} at {wrong[0]}; "
            "give every example one that is not empty."
        )
    return np.array(list(values), dtype=np.str_)


def _flat(array: Any) -> Sequence[Any]:
    """The values of an array of text or of Python objects on one axis; nothing of any other."""
    try:
        array = np.asarray(array)
    except ValueError:
        return ()
    if array.dtype.kind not in "UTO" or array.ndim != 1:
        return ()
    values: list[Any] = array.tolist()
    return values


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
    dtype = array.dtype.newbyteorder("=")
    if array.dtype.kind == "f" and dtype.itemsize > 8:
        dtype = np.dtype(np.float64)  # torch has no larger one
    if array.dtype.kind == "f":
        lost = np.isfinite(array) & (np.abs(array) > np.finfo(np.float32).max)
        if lost.any():
            raise DataError(f"{name} has {array[lost][0]:g}, too large for float32; scale it.")
    return torch.from_numpy(array.astype(dtype, order="C"))


def _plain(tensor: Tensor, name: str) -> Tensor:
    odd = tensor.layout != torch.strided or tensor.device.type == "meta"
    if odd or tensor.is_complex() or tensor.is_quantized:
        have = f"{tensor.dtype}, {tensor.layout} on {tensor.device.type}"
        raise DataError(f"{name} is a tensor of {have}; give a plain one of real numbers.")
    return tensor.detach().cpu()


@dataclass(frozen=True, eq=False)
class _Examples:
    """The examples of all devices and parts, one after the other."""

    x: Tensor
    y: Tensor
    names: tuple[str, ...] = ()  # of the classes, where labels were text
    classes: int | None = None  # None: not known yet, or regression

    def numbered(self, classes: int | None) -> _Examples:
        """The same with labels that count from 0 and the number of classes."""
        if self.names and classes not in (None, len(self.names)):
            raise DataError(
                f"classes = {shown(classes)}, but the labels are {len(self.names)} names "
                f"({some(self.names)}); leave classes out."
            )
        if self.names:
            return replace(self, classes=len(self.names))
        if self.y.dtype == torch.bool:
            return replace(self, y=self.y.long(), classes=2 if classes is None else classes)
        y, number, names = _numbered(self.y, classes)
        return replace(self, y=y, classes=number, names=names)


def _joined(pairs: list[Ready], devices: int) -> _Examples:
    """All examples, of pairs that go through the devices once for each part."""
    # A pair without examples says nothing about shapes: an empty list of labels arrives as floats.
    filled = [(index % devices, *pair) for index, pair in enumerate(pairs) if len(pair[0])]
    owners = [device for device, _, _ in filled]
    x = [features for _, features, _ in filled]
    y, names = _coded([labels for _, _, labels in filled], owners)
    _check_alike("x", x, owners)
    _check_alike("y", y, owners)
    return _Examples(torch.cat(x), torch.cat(y), names)


def _coded(
    labels: list[Tensor | Texts], owners: Sequence[int]
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Labels as tensors, and the sorted names of the classes where labels are text."""
    texts = [y for y in labels if not isinstance(y, Tensor)]
    tensors = [y for y in labels if isinstance(y, Tensor)]
    if not texts:
        if not all(y.dtype == torch.bool and y.ndim == 1 for y in tensors):
            tensors = [y.long() if y.dtype == torch.bool else y for y in tensors]
        return tensors, ()
    if tensors:
        kinds = [isinstance(y, Tensor) for y in labels]
        raise DataError(
            f"y of device {owners[kinds.index(False)]} is text, "
            f"of device {owners[kinds.index(True)]} numbers; "
            "give all devices the same kind of labels."
        )
    names, codes = np.unique(np.concatenate(texts), return_inverse=True)
    ends = np.cumsum([len(y) for y in texts])
    pieces = np.split(codes.astype(np.int64), ends[:-1])
    return [torch.from_numpy(piece) for piece in pieces], tuple(str(name) for name in names)


def _check_alike(name: str, tensors: list[Tensor], owners: Sequence[int]) -> None:
    want = tensors[0]
    for device, have in zip(owners, tensors, strict=True):
        floats = have.is_floating_point() and want.is_floating_point()
        alike = floats or have.dtype == want.dtype  # the larger type of floats serves all
        if not alike or have.shape[1:] != want.shape[1:]:
            raise DataError(
                f"{name} of device {owners[0]} is {want.dtype} with examples of shape "
                f"{tuple(want.shape[1:])}, "
                f"of device {device} {have.dtype} with {tuple(have.shape[1:])}; "
                "give all devices the same type and shape."
            )


def _pieces(pairs: list[Ready]) -> list[npt.NDArray[np.int64]]:
    ends = accumulate((len(x) for x, _ in pairs), initial=0)
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise(ends)]


def _numbered(y: Tensor, classes: int | None) -> tuple[Tensor, int | None, tuple[str, ...]]:
    """Labels that count from 0, the number of classes, and their names.

    Classes have names only where the labels counted from 1.
    """
    if y.is_floating_point() or y.ndim != 1:
        return y, _classes(y, classes), ()
    occurring = torch.unique(y)
    k = len(occurring)
    from_one = k > 1 and torch.equal(occurring, torch.arange(1, k + 1))
    if not from_one or classes not in (None, k):
        return y, _classes(y, classes), ()
    return y - 1, k, tuple(str(label) for label in range(1, k + 1))


def _pixels(x: Tensor, tokens: bool | int) -> tuple[Tensor, Scaling | None]:
    """Images of bytes as floats in [0, 1], and how they came to be; other features stay."""
    if x.dtype != torch.uint8 or x.ndim < 3 or tokens is not False:
        return x, None
    how = scaling("unit", x, torch.arange(0))
    return scaled(channels_first(x), how), how


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


def _check_filled(pairs: list[Ready]) -> None:
    if not pairs:
        raise DataError("there are 0 devices; give at least one pair (x, y).")
    if not any(len(x) for x, _ in pairs):
        raise DataError(
            f"none of the {len(pairs)} devices has a training example; give at least one some."
        )
