"""L2GD: local models near their mean, by random steps and averages (Hanzely, Richtarik, 2020).

The paper's x_i, lambda, p are `x`, `lam`, `p`; its alpha/n is `lr`. Every iteration flips one coin
for all devices. With probability 1 - p they step on their losses; with probability p they move
towards their mean. A round is all flips up to and including the first that averages, so that
devices send once per round.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from covey import draws
from covey.engine.descend import descend
from covey.fields import Count, NonNegative, Positive, Probability
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.kernel.replies import exact
from covey.types import Rows


@dataclass(frozen=True)
class L2GD(Algorithm):
    """Descends sum_i f_i(x_i) + lam/2 |x_i - mean|^2; the mean is the global model.

    A step is x - lr/(1-p) grad f or x - lr lam/p (x - mean). At the minimum
    x_i = mean - grad f_i(x_i)/lam. With a constant lr the iterates stay in a ball around it. New
    devices take 1/p steps on f + lam/2 |x - mean|^2.
    """

    lam: NonNegative = 1.0  # pull of a device towards the mean of all (lambda)
    p: Probability = 0.1  # probability that a flip of the coin moves devices towards their mean
    lr: Positive = 0.02  # step size of the whole problem, divided by the probability of a move
    batch: Count | None = 20

    sends: ClassVar[str] = "its personal model"
    plain_steps: ClassVar[str | None] = "its step size and p weigh the loss against the mean"

    def server(self, me: Nodes, w: Rows) -> Rows:
        steps = draws.failures(me.uniform("coin"), self.p)
        devices = me.ask(self.device, exact(steps))
        mean = devices.mean()
        me.ask(self.pull, mean)
        return mean

    def device(self, me: Nodes, steps: Rows) -> Rows:
        x = me.recall("personal", default=me.initial())
        x = descend(
            x,
            me.grad(self.batch),
            steps=steps[:, 0].long(),
            lr=self.lr / (1 - self.p),
        )
        return me.keep("personal", x)

    def pull(self, me: Nodes, mean: Rows) -> None:
        x = me.recall("personal", default=mean)
        share = self.lr * self.lam / self.p
        x = torch.lerp(x, mean, share)
        me.keep("personal", x)

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        return descend(
            w,
            me.grad(self.batch),
            prox=(self.lam, w),
            steps=round(1 / self.p),
            lr=self.lr,
        )
