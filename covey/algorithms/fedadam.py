"""FedAdam: FedAvg whose server takes Adam's steps (Reddi et al., 2021, Algorithm 2).

The paper's Delta, m, v, beta_1, beta_2, tau, eta, eta_l, K are `change`, `mean`, `square`, `beta1`,
`beta2`, `tau`, `server_lr`, `lr`, `steps`. As there, v begins at tau^2 and no bias is corrected.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from covey.engine.descend import descend
from covey.fields import Count, Positive, Range
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class FedAdam(Algorithm):
    """v <- beta2 v + (1 - beta2) Delta^2, w <- w + server_lr m / (sqrt(v) + tau).

    Delta is the mean change of the devices' models, and m <- beta1 m + (1 - beta1) Delta.
    """

    server_lr: Positive = 0.03  # step of the server
    beta1: Annotated[float, Range(0, 0.9999)] = 0.9  # share of the mean change that is kept
    beta2: Annotated[float, Range(0, 0.9999)] = 0.99  # share of the mean square that is kept
    tau: Positive = 0.001  # added to the root of the mean square
    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.1
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        change = devices.mean(weight=samples) - w
        mean = me.recall("_mean", default=torch.zeros_like(w))
        square = me.recall("_square", default=torch.full_like(w, self.tau).square())
        mean = self.beta1 * mean + (1 - self.beta1) * change
        square = self.mean_square(square, change**2)
        me.keep("_mean", mean)
        me.keep("_square", square)
        return w + self.server_lr * mean / (square.sqrt() + self.tau)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        x = descend(w, me.grad(self.batch), steps=self.steps, lr=self.lr)
        return x, me.weight(self.weight)

    def mean_square(self, before: Rows, new: Rows) -> Rows:
        """v, from that of before and Delta^2."""
        return self.beta2 * before + (1 - self.beta2) * new
