"""Many devices whose examples lie in one pair of arrays; nothing is made for single devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from covey import draws
from covey.data.own import own_parts
from covey.data.partition import SPLIT, Split, check_split
from covey.data.shards import Part, Shards
from covey.errors import DataError

Numbers = Tensor | npt.NDArray[Any] | Sequence[int]


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
    and test, by the seed and the device's number alone.

    >>> x = np.zeros((5, 2))
    >>> shards = own_pool(x, np.array([0, 1, 0, 1, 1]), [0, 2, 5], split=(1, 0, 0))
    >>> shards.devices, shards.train.counts().tolist()
    (2, [2, 3])
    >>> index = np.array([4, 4, 0, 1])
    >>> shards = own_pool(x, np.array([0, 1, 0, 1, 1]), [0, 1, 4], index=index, split=(1, 0, 0))
    >>> shards.train.held(0).tolist(), sorted(shards.train.held(1).tolist())
    ([4], [0, 1, 4])
    """
    check_split(split)
    pool = own_parts(train=[(x, y)], classes=classes, tokens=tokens, name=name)
    ends = _numbers(offsets, "offsets")
    numbers = torch.arange(len(pool.x))
    if index is not None:
        numbers = _numbers(index, "index")
    everything = Part(numbers, ends)
    train, validation, test = _split(everything, split, seed)
    return Shards(
        pool.x,
        pool.y,
        train,
        validation,
        test,
        classes=pool.classes,
        name=name,
        names=pool.names,
        scaling=pool.scaling,
        tokens=pool.tokens,
    )


def _numbers(given: Numbers, name: str) -> Tensor:
    """Whole numbers on one axis."""
    if isinstance(given, Tensor):
        given = given.numpy()
    array = np.asarray(given)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        have = f"{array.dtype} of shape {array.shape}"
        raise DataError(f"{name} is {have}; give whole numbers on one axis.")
    return torch.from_numpy(array.astype(np.int64))


def _split(part: Part, split: Split, seed: int) -> tuple[Part, Part, Part]:
    """Every device's examples in random order, cut by the fractions of `split`.

    Test and validation get their rounded share, train the rest and at least one example.
    """
    counts = part.counts()
    owner = torch.repeat_interleave(torch.arange(part.devices), counts)
    place = torch.arange(len(owner)) - part.offset[owner]
    most = torch.clamp(counts - 1, min=0)
    _, share, last = split
    test = torch.minimum((counts.double() * last).round().long(), most)
    validation = torch.minimum((counts.double() * share).round().long(), most - test)
    train = counts - validation - test
    order = _shuffled(owner, place, seed)
    index = part.index[order]
    second = train[owner]
    third = second + validation[owner]
    return (
        _part(index[place < second], train),
        _part(index[(place >= second) & (place < third)], validation),
        _part(index[place >= third], test),
    )


def _shuffled(owner: Tensor, place: Tensor, seed: int) -> Tensor:
    """An order of all examples in which every device's own are in random order."""
    address = draws.key(seed, "split")
    ids = (owner << 32) + place
    bits = draws.bits(address, ids, 1)[:, 0]
    return torch.from_numpy(np.lexsort((bits.numpy(), owner.numpy())))


def _part(index: Tensor, counts: Tensor) -> Part:
    offset = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Part(index, offset)
