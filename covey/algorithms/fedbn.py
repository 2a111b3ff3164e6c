"""FedBN: FedAvg whose normalization layers stay on the device (Li et al., 2021).

The paper's w_{u,k}^{(l)} of a BatchNorm layer l are the columns `me.private`, all other weights are
`me.shared`. The paper's E is `steps`, counted in mini-batches here. `private="norm"`, the default,
names the parameters of all normalization layers: BatchNorm, GroupNorm, LayerNorm and the like.
BatchNorm's statistics are a device's own in every method (docs/decisions/0053-batch-norm.md).
"""

from dataclasses import dataclass
from typing import ClassVar

from covey.algorithms.fedper import FedPer
from covey.fields import Positive


@dataclass(frozen=True)
class FedBN(FedPer):
    """FedPer with norm layers for a head: all other layers become the mean of the devices'.

    Norm layers are in no message of training. The global model has the initial norm layers and is
    scored with each device's own. A new device trains norm layers of its own for one round.
    """

    lr: Positive = 0.1

    sends: ClassVar[str] = "its model after the local steps, without the normalization layers"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)
    private_default: ClassVar[tuple[str, ...]] = ("norm",)
