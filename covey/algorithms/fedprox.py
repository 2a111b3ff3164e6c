"""FedProx: FedAvg whose devices are held near the global model (Li et al., 2020)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from covey.engine.descend import descend
from covey.fields import Count, NonNegative, Positive
from covey.kernel.advice import Levers, Loss, Statement, Step
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import prox_steps
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class FedProx(Algorithm):
    """As FedAvg, each step on f(x) + mu/2 |x - w|^2."""

    mu: NonNegative = 0.001  # pull of a device towards the global model while it trains
    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.1
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps"

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return devices.mean(weight=samples)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        x = descend(
            w,
            me.grad(self.batch),
            prox=(self.mu, w),
            steps=self.steps,
            lr=self.lr,
        )
        return x, me.weight(self.weight)

    def advice(self, loss: Loss) -> Iterator[Statement]:
        return prox_steps(self.lr, self.mu, loss, steps=self.steps, names=("lr", "mu"))

    def levers(self, L: float) -> Levers:
        step = Step("lr", self.mu, "mu")
        return Levers(steps=(step,))
