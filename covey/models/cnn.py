"""A convolutional network: convolutions with ReLU and pooling, then two linear layers (the papers' CNN)."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from covey.errors import ModelError


def cnn(
    shape: Sequence[int] = (1, 28, 28),
    *,
    channels: Sequence[int] = (32, 64),
    hidden: int = 512,
    classes: int = 10,
    kernel: int = 5,
) -> nn.Sequential:
    """A module for images of this shape, flat or not: each convolution keeps the size of an image and a pooling halves it.

    >>> sum(p.numel() for p in cnn().parameters())
    1663370
    """
    if len(shape) != 3 or min(*shape, *channels, hidden, classes, kernel) < 1:
        raise ModelError(f"cnn({tuple(shape)}, ...): give (channels, height, width) and sizes, each 1 or more.")
    sides = [side // 2 ** len(channels) for side in shape[1:]]
    if not prod(sides):
        raise ModelError(f"cnn({tuple(shape)}, ...): {len(channels)} poolings leave nothing of such an image.")
    layers: list[nn.Module] = [nn.Flatten(), nn.Unflatten(1, tuple(shape))]
    for before, after in pairwise((shape[0], *channels)):
        layers += [nn.Conv2d(before, after, kernel, padding="same"), nn.ReLU(), nn.MaxPool2d(2)]
    inside = (shape[0], *channels)[-1] * prod(sides)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inside, hidden), nn.ReLU(), nn.Linear(hidden, classes))
