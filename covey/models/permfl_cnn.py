"""PerMFL's convolutional networks, one per data set of its experiments.

The MNIST network serves EMNIST too. Where its code has a log-softmax and the negative
log-likelihood, these give scores for cross-entropy, which is the same.
"""

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from covey.errors import ModelError, meant
from covey.models.cnn import cnn

_NETS: dict[str, dict[str, Any]] = {
    "mnist": {
        "channels": (16, 32),
        "hidden": 128,
        "kernel": 2,
        "padding": "valid",
        "stride": 1,
    },
    "fmnist": {"channels": (32, 64), "hidden": 128, "kernel": 3},
    "cifar100": {"channels": (64, 128, 256), "hidden": 512, "kernel": 3},
}


def permfl_cnn(
    shape: Sequence[int] = (1, 28, 28),
    *,
    net: Literal["mnist", "fmnist", "cifar100"] = "mnist",
    classes: int = 10,
) -> nn.Sequential:
    """PerMFL's network for one of its data sets, for images of this shape, flat or not.

    >>> sum(p.numel() for p in permfl_cnn((3, 32, 32), net="cifar100", classes=100).parameters())
    2519780
    """
    if net not in _NETS:
        raise ModelError(
            f"permfl_cnn(..., net={net!r}){meant(net, _NETS)}: "
            f"give one of {', '.join(map(repr, _NETS))}."
        )
    return cnn(shape, classes=classes, **_NETS[net])
