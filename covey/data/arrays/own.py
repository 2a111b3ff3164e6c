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
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from covey import draws
from covey.data.partitions import partition
from covey.data.partitions.partition import SPLIT, Parts, Split
from covey.data.shards import MOST_CLASSES, Names, Part, Shards, some
from covey.data.tables.scaling import scaled, scaling
from covey.errors import DataError, shown

Array = Tensor | npt.NDArray[Any]
Pairs = Sequence[tuple[Array, Array | Sequence[Any]] | Dataset[Any]]
Texts = npt.NDArray[np.str_]
Ready = tuple[Tensor, Tensor | Texts]  # x and y of one device
Numbers = Tensor | npt.NDArray[Any] | Sequence[int]

CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency


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
    parts = partition.split(_pieces(pairs), split=split, seed=seed)
    return _shards(pairs, parts, len(pairs), classes, tokens, name)


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
    pairs = _converted(train, "train")
    n = len(pairs)
    _check_filled(pairs)
    for split, given in (("validation", validation), ("test", test)):
        own: list[Ready] = [(torch.empty(0), torch.empty(0))] * n
        if given is not None:
            own = _converted(given, split)
        if len(own) != n:
            raise DataError(
                f"{split} has {len(own)} devices and train has {n}; "
                "give a device without examples a pair of empty arrays."
            )
        pairs += own
    pieces = _pieces(pairs)
    parts = (
        Part.of(pieces[:n]),
        Part.of(pieces[n : 2 * n]),
        Part.of(pieces[2 * n :]),
    )
    return _shards(pairs, parts, n, classes, tokens, name)


def own_pool(
    x: Any,
    y: Any,
    offsets: Numbers,
    *,
    index: Numbers | None = None,
    split: Split = SPLIT,
    seed: int = 0,
    classes: int | None = None,
    tokens: bool | int = False,
    name: str = "own",
) -> Shards:
    """Shards of devices that hold examples of one pair of arrays (x, y).

    Device d holds the examples index[offsets[d]], ..., index[offsets[d + 1] - 1]; without `index`
    the examples themselves are in this order. Several devices may hold an example. x, y, `classes`
    and `tokens` are as in `own`. Each device's examples are shuffled and cut into train, validation
    and test, by the seed and the device's number alone. Nothing is made for single devices, of
    which there may be very many.

    >>> x = np.zeros((5, 2))
    >>> shards = own_pool(x, np.array([0, 1, 0, 1, 1]), [0, 2, 5], split=(1, 0, 0))
    >>> shards.devices, shards.train.counts().tolist()
    (2, [2, 3])
    >>> index = np.array([4, 4, 0, 1])
    >>> shards = own_pool(x, np.array([0, 1, 0, 1, 1]), [0, 1, 4], index=index, split=(1, 0, 0))
    >>> shards.train.held(0).tolist(), sorted(shards.train.held(1).tolist())
    ([4], [0, 1, 4])
    """
    partition.check_split(split)
    pool = own_parts(train=[(x, y)], classes=classes, tokens=tokens, name=name)
    ends = _whole_numbers(offsets, "offsets")
    numbers = torch.arange(len(pool.x)) if index is None else _whole_numbers(index, "index")
    train, validation, test = _split(Part(numbers, ends), split, seed)
    return replace(pool, train=train, validation=validation, test=test)


def _whole_numbers(given: Numbers, name: str) -> Tensor:
    """Whole numbers on one axis."""
    array = np.asarray(given)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise DataError(
            f"{name} is {array.dtype} of shape {array.shape}; give whole numbers on one axis."
        )
    return torch.from_numpy(array.astype(np.int64))


def _split(part: Part, split: Split, seed: int) -> Parts:
    """Every device's examples in random order, cut by the fractions of `split`.

    Test and validation get their rounded share, train the rest and at least one example.
    """
    counts = part.counts()
    owner = part.owners()
    place = torch.arange(len(owner)) - part.offset[owner]
    most = torch.clamp(counts - 1, min=0)
    test_share = (counts.double() * split[2]).round().long()
    test = torch.minimum(test_share, most)
    validation_share = (counts.double() * split[1]).round().long()
    validation = torch.minimum(validation_share, most - test)
    train = counts - validation - test
    address = draws.key(seed, "split")
    bits = draws.bits(address, (owner << 32) + place, 1)[:, 0]
    order = torch.from_numpy(np.lexsort((bits.numpy(), owner.numpy())))
    shuffled = Part(part.index[order], part.offset)
    second = train[owner]
    third = second + validation[owner]
    middle = (place >= second) & (place < third)
    return (
        shuffled.entries(place < second),
        shuffled.entries(middle),
        shuffled.entries(place >= third),
    )


def _check_filled(pairs: list[Ready]) -> None:
    if not pairs:
        raise DataError("there are 0 devices; give at least one pair (x, y).")
    if not any(len(x) for x, _ in pairs):
        raise DataError(
            f"none of the {len(pairs)} devices has a training example; give at least one some."
        )


def _pieces(pairs: list[Ready]) -> list[npt.NDArray[np.int64]]:
    """The numbers of the examples of every pair."""
    ends = accumulate((len(x) for x, _ in pairs), initial=0)
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise(ends)]


def _shards(
    pairs: list[Ready],
    parts: Parts,
    devices: int,
    classes: int | None,
    tokens: bool | int,
    name: str,
) -> Shards:
    """The examples of all pairs, which go through the devices once for each part."""
    # A pair without examples says nothing about shapes: an empty list of labels arrives as floats.
    filled = [(number % devices, *pair) for number, pair in enumerate(pairs) if len(pair[0])]
    owners, every_x, every_y = zip(*filled, strict=True)
    x = _together("x", every_x, owners)
    y, classes, names = _numbered(every_y, owners, classes)
    how = None
    count = None
    if tokens is not False and (x.is_floating_point() or x.dtype == torch.bool):
        raise DataError(
            f"tokens = {tokens}, but x is {x.dtype}; give whole numbers, as in x.astype('int64')."
        )
    if tokens is not False:
        x = x.long()
        # A negative id is refused later, with its place.
        count = max(int(x.max()) + 1, 1) if tokens is True else tokens
    elif x.dtype == torch.uint8 and x.ndim > 2:
        how = scaling("unit", x, torch.arange(0))
        x = scaled(channels_first(x), how)
    return Shards(
        x,
        y,
        *parts,
        classes=classes,
        name=name,
        names=Names(classes=names),
        scaling=how,
        tokens=count,
    )


def _converted(pairs: Any, name: str) -> list[Ready]:
    """The x and y of every device, as tensors or as an array of text."""
    if isinstance(pairs, Dataset):
        raise DataError(
            f"{name} is one {type(pairs).__name__}; give a list with one Dataset per device, "
            "as torch.utils.data.Subset makes them of one."
        )
    if not isinstance(pairs, list | tuple):
        raise DataError(
            f"{name} is a {type(pairs).__name__}; give a list with one pair (x, y) per device."
        )
    ready: list[Ready] = []
    for device, pair in enumerate(pairs):
        if isinstance(pair, Dataset):
            pair = _arrays_of(pair, f"{name}: device {device}")
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DataError(
                f"{name}: device {device} is {shown(pair)}; "
                "give a pair of arrays (x, y), or a torch Dataset."
            )
        x = _tensor(pair[0], f"{name}: x of device {device}")
        y = _targets(pair[1], x, f"{name}: y of device {device}")
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise DataError(
                f"{name}: device {device} has x of shape {tuple(x.shape)} and y of shape "
                f"{tuple(y.shape)}; "
                "give one row of x and one of y per example."
            )
        ready.append((x, y))
    return ready


def _arrays_of(dataset: Any, name: str) -> tuple[Any, Any]:
    """All x and all y of a map-style Dataset of pairs, in its order.

    The tensors of a `TensorDataset`, or of a `Subset` of one, are taken whole. Any other Dataset is
    read example by example, its transforms included.
    """
    tensors = _tensors(dataset)
    if tensors is not None:
        if len(tensors) != 2:
            raise DataError(f"{name} has a TensorDataset of {len(tensors)} tensors; give x and y.")
        return tensors[0], tensors[1]
    kind = type(dataset).__name__
    streamed = isinstance(dataset, IterableDataset)
    if streamed or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{name} is a {kind} without length or positions; "
            "give a map-style Dataset, or arrays (x, y)."
        )
    x = []
    y = []
    for number in range(len(dataset)):
        try:
            example = dataset[number]
        except Exception as error:  # it is the user's code
            raise DataError(
                f"{name}: example {number} of its {kind} cannot be read "
                f"({type(error).__name__}: {error}); correct the Dataset or its transform."
            ) from error
        if not isinstance(example, list | tuple) or len(example) != 2:
            raise DataError(
                f"{name}: example {number} of its {kind} is {shown(example)}; "
                "give a Dataset of pairs (x, y)."
            )
        x.append(_tensor(example[0], f"{name}: x of example {number}"))
        y.append(example[1])
        if x[-1].shape != x[0].shape:
            raise DataError(
                f"{name}: x of example 0 has shape {tuple(x[0].shape)}, "
                f"of example {number} {tuple(x[-1].shape)}; "
                "give the Dataset a transform that makes them alike."
            )
    if not x:
        return np.empty(0), np.empty(0)
    if all(isinstance(value, Tensor) and value.shape == y[0].shape for value in y):
        return torch.stack(x), torch.stack(y)
    return torch.stack(x), [value.tolist() if isinstance(value, Tensor) else value for value in y]


def _tensors(dataset: Dataset[Any]) -> tuple[Tensor, ...] | None:
    """The tensors behind a Dataset, None where examples have to be asked for one by one."""
    # Only the classes themselves: a subclass may change what an example is.
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Subset:
        inner = _tensors(dataset.dataset)
        if inner is not None:
            index = torch.as_tensor(dataset.indices, dtype=torch.int64)
            return tuple(tensor[index] for tensor in inner)
    return None


def _targets(array: Any, x: Tensor, name: str) -> Tensor | Texts:
    """Text labels as an array of text, or numbers in the type that goes with x."""
    values = () if isinstance(array, Tensor) else array
    if not isinstance(values, list | tuple):
        flat = np.asarray(array)
        values = flat.tolist() if flat.ndim == 1 and flat.dtype.kind in "UTO" else ()
    text = [isinstance(value, str) and value != "" for value in values]
    if any(text):
        if not all(text):
            place = text.index(False)
            raise DataError(
                f"{name} has text labels, but {shown(values[place])} at {place}; "
                "give every example one that is not empty."
            )
        return np.array(list(values), dtype=np.str_)
    y = _tensor(array, name)
    if y.is_floating_point() and x.is_floating_point():
        return y.to(x.dtype)
    if y.is_floating_point() and x.dtype == torch.uint8:
        return y.float()  # what images of bytes become
    whole = not y.is_floating_point() and y.dtype != torch.bool
    return y.long() if whole else y


def _tensor(array: Any, name: str) -> Tensor:
    """Numbers as a plain tensor of real numbers."""
    if isinstance(array, Tensor):
        odd = array.layout != torch.strided or array.device.type == "meta"
        if odd or array.is_complex() or array.is_quantized:
            raise DataError(
                f"{name} is a tensor of {array.dtype}, {array.layout} on {array.device.type}; "
                "give a plain one of real numbers."
            )
        return array.detach().cpu()
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


def _together(name: str, tensors: Sequence[Tensor], owners: Sequence[int]) -> Tensor:
    """All tensors one after the other, which are of one type and shape."""
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
    return torch.cat(list(tensors))


def _numbered(
    labels: Sequence[Tensor | Texts], owners: Sequence[int], classes: int | None
) -> tuple[Tensor, int | None, tuple[str, ...]]:
    """Labels that count from 0, the number of classes if they are not targets, and their names.

    Numbers have names only where they counted from 1.
    """
    texts = [y for y in labels if not isinstance(y, Tensor)]
    tensors = [y for y in labels if isinstance(y, Tensor)]
    if texts and tensors:
        kinds = [isinstance(y, Tensor) for y in labels]
        raise DataError(
            f"y of device {owners[kinds.index(False)]} is text, "
            f"of device {owners[kinds.index(True)]} numbers; "
            "give all devices the same kind of labels."
        )
    if texts:
        names, codes = np.unique(np.concatenate(texts), return_inverse=True)
        if classes not in (None, len(names)):
            raise DataError(
                f"classes = {shown(classes)}, but the labels are {len(names)} names "
                f"({some(names.tolist())}); leave classes out."
            )
        numbers = torch.from_numpy(codes.astype(np.int64))
        return numbers, len(names), tuple(map(str, names))
    truths = all(y.dtype == torch.bool and y.ndim == 1 for y in tensors)
    whole = [y.long() if y.dtype == torch.bool else y for y in tensors]
    y = _together("y", whole, owners)
    if truths and classes is None:
        classes = 2
    if truths or y.is_floating_point():
        return y, classes, ()
    occurring = torch.unique(y)
    k = len(occurring)
    from_one = y.ndim == 1 and k > 1 and torch.equal(occurring, torch.arange(1, k + 1))
    if from_one and classes in (None, k):
        return y - 1, k, tuple(str(label) for label in range(1, k + 1))
    if classes is None:
        classes = max(int(y.max()) + 1, 1)  # a negative label is refused later, with its place
        if classes > MOST_CLASSES:
            raise DataError(
                f"the largest label is {classes - 1}, which would mean as many classes; "
                "number the classes from 0, or give float targets for regression."
            )
    return y, classes, ()


def channels_first(x: Tensor) -> Tensor:
    """Images of bytes as [n, channels, height, width].

    They may be [n, height, width], or have their channels (1, 3 or 4) on the last axis. A shape
    that can be read in two ways is refused.

    >>> shapes = ((5, 8, 9), (5, 8, 9, 3), (5, 3, 8, 9))
    >>> [tuple(channels_first(torch.zeros(shape)).shape) for shape in shapes]
    [(5, 1, 8, 9), (5, 3, 8, 9), (5, 3, 8, 9)]
    """
    if x.ndim == 3:
        return x.unsqueeze(1)
    shape = tuple(x.shape[1:])
    if x.ndim != 4:
        raise DataError(
            f"x is {x.dtype} with examples of shape {shape}, which is not that of an image; "
            "give [height, width], [height, width, channels] or [channels, height, width], "
            "or floats, as in x / 255."
        )
    first = shape[0] in CHANNELS
    if first == (shape[2] in CHANNELS):
        fault = "has no axis of 1, 3 or 4 channels"
        if first:
            fault = "may have its channels on the first axis or on the last"
        raise DataError(
            f"x is {x.dtype} with images of shape {shape}, which {fault}; "
            "give floats with the channels on the first axis, as in x / 255."
        )
    return x if first else x.permute(0, 3, 1, 2)
