"""FedSim: layers that stay on the device learn together with shared ones (Pillutla et al., 2022).

The paper's u, v_i, tau, gamma_u, gamma_v are `u`, `v`, `steps`, `lr`, `personal_lr`. The
experiment's `private` says which layers are v, by default the last one. Edges average the nodes
below them `edge_rounds` times, as in HierFAVG.
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
class FedSim(SharedLayers):
    """A device's model is [u, v]; it descends both at once, for `steps` steps; u is averaged.

    u and v have step sizes of their own. The server asks `sample` nodes, an edge `device_sample`.
    The private columns of the global row keep their initial values. That row is scored with each
    device's own private columns.
    """

    sample: Sample = None
    device_sample: Sample = None
    edge_rounds: Count = 1
    steps: Count = 20
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
            personal_steps=self.steps,
            probe_steps=0,
        )

    def device(self, me: Nodes, u: Rows) -> Weighted:
        last = me.recall("personal", default=me.initial())
        v = last[:, me.private]
        x = torch.cat([u, v], dim=1)
        gradient = me.grad(self.batch)
        lr = me.by_part(self.lr, self.personal_lr)
        x = descend(x, gradient, steps=self.steps, lr=lr)
        me.keep("personal", x)
        return x[:, me.shared], me.weight(self.weight)
