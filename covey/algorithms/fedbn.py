"""FedBN: FedAvg whose normalization layers stay on the device (Li et al., 2021).

The paper's w_{u,k}^{(l)} of a BatchNorm layer l are the columns `me.private`, all other weights are
`me.shared`. The paper's E is `steps`, counted in mini-batches here. `private="norm"`, the default,
names the parameters of all normalization layers: BatchNorm, GroupNorm, LayerNorm and the like.
BatchNorm's statistics are a device's own in every method (docs/decisions/0053-batch-norm.md).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from covey.engine.descend import descend
from covey.fields import Count, Positive
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class FedBN(Algorithm):
    """Devices take `steps` steps on all layers; all but the norm layers become the mean of theirs.

    Norm layers are in no message of training. The global model has the initial norm layers and is
    scored with each device's own. A new device trains norm layers of its own for one round.
    """

    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.1
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps, without the normalization layers"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)
    splits: ClassVar[bool] = True
    private_default: ClassVar[tuple[str, ...]] = ("norm",)

    def server(self, me: Nodes, w: Rows) -> Rows:
        others = w[:, me.shared]
        norms = w[:, me.private]
        replies, samples = me.ask(self.device, others, sample=self.sample)
        others = replies.mean(weight=samples)
        return torch.cat([others, norms], dim=1)

    def device(self, me: Nodes, others: Rows) -> Weighted:
        last = me.recall("personal", default=me.initial())
        norms = last[:, me.private]
        x = torch.cat([others, norms], dim=1)
        gradient = me.grad(self.batch)
        x = descend(x, gradient, steps=self.steps, lr=self.lr)
        me.keep("personal", x)
        return x[:, me.shared], me.weight(self.weight)
