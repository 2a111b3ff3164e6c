"""FedRep: devices fit heads to a shared representation, then train that (Collins et al., 2021).

The paper's phi, h_i are the columns `me.shared` and `me.private`. `private=` of the experiment
names the head's layers, by default the last one. The paper's tau_h, tau, alpha are `head_steps`,
`steps`, `head_lr` and `lr`.
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
class FedRep(Algorithm):
    """`head_steps` steps on the head, then `steps` on the base, which becomes the mean of theirs.

    The base is fixed while the head learns, and the head while the base learns. The global model is
    the shared base under the initial head. A new device fits a head and does not change the base.
    """

    sample: Sample = None
    head_steps: Count = 20  # gradient steps of the head in one round
    head_lr: Positive = 0.02  # step size of the head
    steps: Count = 5  # gradient steps of the shared layers in one round
    lr: Positive = 0.02  # step size of the shared layers
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "the shared layers of its model, never the private ones"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr", "head_lr")
    splits: ClassVar[bool] = True

    def server(self, me: Nodes, w: Rows) -> Rows:
        base = w[:, me.shared]
        head = w[:, me.private]
        replies, samples = me.ask(self.device, base, sample=self.sample)
        base = replies.mean(weight=samples)
        return torch.cat([base, head], dim=1)

    def device(self, me: Nodes, base: Rows) -> Weighted:
        x = self.fitted(me, base)
        gradient = me.grad(self.batch)
        x = descend(x, gradient, part=me.shared, steps=self.steps, lr=self.lr)
        me.keep("personal", x)
        return x[:, me.shared], me.weight(self.weight)

    def fitted(self, me: Nodes, base: Rows) -> Rows:
        """The base with each device's head after its steps."""
        last = me.recall("personal", default=me.initial())
        head = last[:, me.private]
        x = torch.cat([base, head], dim=1)
        return descend(
            x,
            me.grad(self.batch, "head"),
            part=me.private,
            steps=self.head_steps,
            lr=self.head_lr,
        )

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        return self.fitted(me, w[:, me.shared])
