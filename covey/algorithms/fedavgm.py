"""FedAvgM: FedAvg with momentum at the server (Hsu, Qi, Brown, 2019).

The paper's v, beta, eta are `velocity`, `momentum`, `lr`. Reddi et al. (2021) add the server's
step size `server_lr`. With momentum = 0 and server_lr = 1 it is FedAvg, bit for bit.
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
class FedAvgM(Algorithm):
    """v <- momentum v + (w - mean of the devices' models), w <- w - server_lr v."""

    momentum: Annotated[float, Range(0, 0.9999)] = 0.9  # share of the velocity that is kept
    server_lr: Positive = 1.0  # step of the server along its velocity
    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.1
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        mean = devices.mean(weight=samples)
        before = me.recall("_velocity", default=torch.zeros_like(w))
        me.keep("_velocity", self.momentum * before + (w - mean))
        moved = torch.lerp(w, mean, self.server_lr)  # the mean's own bits where server_lr is 1
        return moved - self.server_lr * self.momentum * before

    def device(self, me: Nodes, w: Rows) -> Weighted:
        x = descend(w, me.grad(self.batch), steps=self.steps, lr=self.lr)
        return x, me.weight(self.weight)
