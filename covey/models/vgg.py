"""A VGG: convolutions of 3 x 3 points with GroupNorm and ReLU, then linear layers.

Poolings stand between the convolutions. GroupNorm stands where the papers have BatchNorm, whose
running statistics would leak between devices. Both have the same number of parameters.
"""

from collections.abc import Sequence
from math import prod
from typing import Literal

from torch import nn

from covey.errors import ModelError
from covey.models.cnn import image_shape
from covey.models.mlp import mlp

Layer = int | Literal["M"]
"""A convolution to so many channels, or a pooling."""

_WIDTHS = (16, 32, 64, 128, 128)
_SMALL: tuple[Layer, ...] = tuple(layer for width in _WIDTHS for layer in (width, "M"))
"""The papers' VGG for CIFAR: a pooling after each convolution."""


def vgg(
    shape: Sequence[int] = (3, 32, 32),
    *,
    layers: Sequence[Layer] = _SMALL,
    head: Sequence[int] = (),
    classes: int = 10,
    groups: int | None = 8,
) -> nn.Sequential:
    """A VGG for images of this shape, flat or not.

    `head` lists the widths of hidden linear layers. A number in `layers` is a convolution to so
    many channels, "M" a pooling that halves an image. `groups` are GroupNorm's; None leaves it out.

    >>> sum(p.numel() for p in vgg(head=(128, 128)).parameters())
    280074
    """
    image = image_shape(shape)
    channels = [layer for layer in layers if layer != "M"]
    sizes = (*channels, *head, classes)
    if not all(isinstance(size, int) and size >= 1 for size in sizes):
        arguments = f"layers={tuple(layers)}, head={tuple(head)}, classes={classes}"
        raise ModelError(
            f"vgg({arguments}): give numbers of 1 or more, and 'M' in layers for a pooling."
        )
    uneven = [size for size in channels if groups is not None and (groups < 1 or size % groups)]
    if uneven:
        raise ModelError(
            f"vgg(groups={groups}, ...): {uneven[0]} channels do not fall into so many groups; "
            "give a divisor, or None."
        )
    inside = image[0]
    modules = [nn.Flatten(), nn.Unflatten(1, image)]
    for layer in layers:
        if layer == "M":
            modules.append(nn.MaxPool2d(2))
        else:
            norm = [] if groups is None else [nn.GroupNorm(groups, layer)]
            modules += [nn.Conv2d(inside, layer, 3, padding=1), *norm, nn.ReLU()]
            inside = layer
    poolings = list(layers).count("M")
    points = prod(side // 2**poolings for side in image[1:])
    if not points:
        raise ModelError(
            f"vgg({tuple(shape)}, ...): {poolings} poolings leave nothing of {image}; "
            "give fewer or larger images."
        )
    return nn.Sequential(*modules, *mlp(inside * points, *head, classes))
