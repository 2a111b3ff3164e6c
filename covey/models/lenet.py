"""LeNet: two convolutions of 5 x 5 points without padding, then three linear layers.

The widths are those of pFedMe's code for CIFAR-10.
"""

from collections.abc import Sequence

from torch import nn

from covey.models.cnn import cnn


def lenet(shape: Sequence[int] = (3, 32, 32), *, classes: int = 10) -> nn.Sequential:
    """A module for images of this shape, flat or not.

    >>> sum(p.numel() for p in lenet().parameters())
    64102
    """
    return cnn(
        shape,
        channels=(6, 16),
        hidden=(120, 100),
        classes=classes,
        kernel=5,
        padding="valid",
    )
