"""Ditto: FedAvg's global model, and a personal one that is held near it (Li et al., 2021).

The paper's w, v_k, lambda, eta_g, eta_l are `w`, `v`, `lam`, `lr`, `personal_lr`. A device keeps
v_k from round to round, and pulls it to the w that a round begins with. The public code draws one
batch for both models; here each model has its own.
"""

from dataclasses import dataclass
from typing import ClassVar

from covey.engine.descend import descend
from covey.fields import Count, NonNegative, Positive
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class Ditto(Algorithm):
    """The global model is FedAvg's to the bit; a device's v descends f + lam/2 |v - w|^2.

    v starts each round at its last value.
    """

    lam: NonNegative = 1.0
    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.02
    personal_steps: Count = 20
    personal_lr: Positive = 0.02
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps, never the personal one"

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return devices.mean(weight=samples)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        self.adapt(me, w)
        gradient = me.grad(self.batch)
        x = descend(w, gradient, steps=self.steps, lr=self.lr)
        return x, me.weight(self.weight)

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        v = me.recall("personal", default=w)
        v = descend(
            v,
            me.grad(self.batch, "personal"),
            prox=(self.lam, w),
            steps=self.personal_steps,
            lr=self.personal_lr,
        )
        return me.keep("personal", v)
