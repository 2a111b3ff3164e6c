"""Images of bytes: which axis holds the channels, and how they become floats."""

from __future__ import annotations

import torch
from torch import Tensor

from covey.data.scaling import Scaling
from covey.errors import DataError

CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency
_BLOCK = 4096  # images that are scaled at once, so that no second copy of all of them is made


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
    last = shape[2] in CHANNELS
    if first == last:
        fault = "has no axis of 1, 3 or 4 channels"
        if first:
            fault = "may have its channels on the first axis or on the last"
        raise DataError(
            f"x is {x.dtype} with images of shape {shape}, which {fault}; "
            "give floats with the channels on the first axis, as in x / 255."
        )
    if first:
        return x
    return x.permute(0, 3, 1, 2)


def scaled(images: Tensor, how: Scaling) -> Tensor:
    """Images of bytes as floats, block by block.

    >>> from covey.data.scaling import scaling
    >>> images = torch.tensor([[0, 255]], dtype=torch.uint8)
    >>> scaled(images, scaling("unit", images, torch.tensor([0])))
    tensor([[0., 1.]])
    """
    x = torch.empty(images.shape, dtype=torch.float32)
    for start in range(0, len(x), _BLOCK):
        x[start : start + _BLOCK] = how(images[start : start + _BLOCK])
    return x
