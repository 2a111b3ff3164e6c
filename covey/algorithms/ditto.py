"""Ditto: FedAvg's global model, and a personal one that is held near it (Li et al., 2021).

The paper's w, v_k, lambda, eta_g, eta_l are `w`, `v`, `lam`, `lr`, `personal_lr`. A device keeps
v_k from round to round, and pulls it to the w that a round begins with. The public code draws one
batch for both models; here each model has its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from covey.engine.descend import descend
from covey.kernel.advice import (
    Levers,
    Loss,
    RoundFactor,
    Statement,
    Step,
    Tie,
    Vector,
)
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import inner_step, power
from covey.kernel.fields import Count, NonNegative, Positive
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

    def advice(self, loss: Loss) -> Iterator[Statement]:
        """v continues from its last value, so that one step a round adds up as two would."""
        yield from inner_step(self.lr, 0.0, loss, steps=self.steps)
        lasting = max(self.personal_steps, 2)
        personal = ("personal_lr", "lam")
        yield from inner_step(self.personal_lr, self.lam, loss, steps=lasting, names=personal)
        yield RoundFactor(self._excess)

    def _excess(self, h: Vector) -> Vector:
        """The excess of the slower of the two models, which do not depend on each other.

        Only the sizes of the two factors matter: the root of those of twice as many steps.
        """
        v = power(self.personal_lr, self.lam, h, 2 * self.personal_steps)
        w = power(self.lr, 0.0, h, 2 * self.steps)
        slower: Vector = np.maximum(v, w)
        excess: Vector = slower / (1 + np.sqrt(1 + slower))  # sqrt(1 + slower) - 1
        return excess

    def levers(self, L: float) -> Levers:
        steps = (Step("lr"), Step("personal_lr", self.lam, "lam"))
        return Levers(steps, penalties=(Tie("lam"),))
