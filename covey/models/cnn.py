"""A convolutional network: convolutions with ReLU and pooling (the papers' CNN).

Linear layers follow.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import isqrt, prod
from typing import Literal

from torch import nn

from covey.errors import ModelError
from covey.models.mlp import mlp


def cnn(
    shape: Sequence[int] = (1, 28, 28),
    *,
    channels: Sequence[int] = (32, 64),
    hidden: int | Sequence[int] = 512,
    classes: int = 10,
    kernel: int = 5,
    padding: Literal["same", "valid"] = "same",
    stride: int = 2,
) -> nn.Sequential:
    """A convolutional network for images of this shape, flat or not.

    Each convolution is followed by ReLU and a pooling of 2 x 2 points. A convolution keeps the size
    of an image with padding "same" and cuts off the border with "valid". A pooling halves it with
    `stride` 2 and takes off one point with 1. `hidden` is the width of the linear layer before the
    scores, or lists several.

    >>> sum(p.numel() for p in cnn().parameters())
    1663370
    """
    image = image_shape(shape)
    widths = (hidden,) if isinstance(hidden, int) else tuple(hidden)
    if padding not in ("same", "valid"):
        raise ModelError(f"cnn(..., padding={padding!r}): give 'same' or 'valid'.")
    if min(*channels, *widths, classes, kernel, stride) < 1:
        raise ModelError(
            f"cnn({tuple(shape)}, ...): channels, hidden, classes, "
            "kernel and stride must each be 1 or more."
        )
    layers: list[nn.Module] = [nn.Flatten(), nn.Unflatten(1, image)]
    sides = image[1:]
    border = kernel - 1 if padding == "valid" else 0
    for before, after in pairwise((image[0], *channels)):
        layers += [
            nn.Conv2d(before, after, kernel, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2, stride),
        ]
        sides = tuple((side - border - 2) // stride + 1 for side in sides)
    if min(sides) < 1:
        raise ModelError(
            f"cnn({tuple(shape)}, ...): {len(channels)} poolings leave nothing of {image}; "
            "give fewer or larger images."
        )
    return nn.Sequential(*layers, *mlp((image[0], *channels)[-1] * prod(sides), *widths, classes))


def image_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The (channels, height, width) of examples of this shape.

    Examples without channels are grey, and flat ones are square.

    >>> image_shape((28, 28)), image_shape((64,))
    ((1, 28, 28), (1, 8, 8))
    """
    image = tuple(shape)
    if len(shape) == 2:
        image = (1, *shape)
    if len(shape) == 1:
        side = isqrt(max(shape[0], 0))
        if side**2 == shape[0]:
            image = (1, side, side)
    if len(image) != 3 or min(image) < 1:
        raise ModelError(
            f"examples of shape {tuple(shape)} are no images; "
            "give (channels, height, width), each 1 or more."
        )
    return image
