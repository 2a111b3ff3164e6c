"""FedAlt: layers that stay on the device learn before the shared ones (Pillutla et al., 2022).

The paper's u, v_i, tau_u, tau_v, gamma_u, gamma_v are `u`, `v`, `steps`, `personal_steps`, `lr`,
`personal_lr`. The experiment's `private` says which layers are v, by default the last one. Edges
average the nodes below them `edge_rounds` times, as in HierFAVG.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from covey.algorithms.shared.layers import SharedLayers
from covey.engine.descend import descend
from covey.fields import Count, Positive
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.kernel.work import Work
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class FedAlt(SharedLayers):
    """A device's model is [u, v]; it descends v with u fixed, then u with v fixed; u is averaged.

    It takes `personal_steps` steps on v and `steps` on u. The server asks `sample` nodes, an edge
    `device_sample`. The private columns of the global row keep their initial values. That row is
    scored with each device's own private columns.
    """

    sample: Sample = None
    device_sample: Sample = None
    edge_rounds: Count = 1
    steps: Count = 20  # gradient steps of the shared layers in one round
    personal_steps: Count = 20
    lr: Positive = 0.01  # step size of the shared layers
    personal_lr: Positive = 0.01  # step size of the private layers
    batch: Count | None = 32
    weight: Weight = "uniform"

    step_sizes: ClassVar[tuple[str, ...]] = ("lr", "personal_lr")

    def work(self, shared: int, private: int) -> Work:
        return Work(
            shared,
            private,
            steps=self.steps,
            personal_steps=self.personal_steps,
            probe_steps=0,
        )

    def device(self, me: Nodes, u: Rows) -> Weighted:
        last = me.recall("personal", default=me.initial())
        v = last[:, me.private]
        x = torch.cat([u, v], dim=1)
        gradient_of_v = me.grad(self.batch, "personal")
        gradient_of_u = me.grad(self.batch)
        x = descend(
            x,
            gradient_of_v,
            part=me.private,
            steps=self.personal_steps,
            lr=self.personal_lr,
        )
        x = descend(x, gradient_of_u, part=me.shared, steps=self.steps, lr=self.lr)
        me.keep("personal", x)
        return x[:, me.shared], me.weight(self.weight)
