"""SCAFFOLD: FedAvg with control variates that correct client drift (Karimireddy et al., 2020).

The paper's x, y_i, c, c_i, K, S, eta_l, eta_g are `x`, `y`, `c`, `c_i`, `steps`, `sample`, `lr`,
`server_lr`. c_i follows its option II. Models and control variates both travel, so that every
message is twice as long.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from covey.engine.descend import descend
from covey.fields import Count, Positive
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """y descends f + <c - c_i, y> from x; c_i becomes the device's mean gradient along its steps.

    c is the mean of all c_i.
    """

    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.02
    server_lr: Positive = 1.0  # step of the server towards the mean of the answers
    batch: Count | None = 20

    sends: ClassVar[str] = "its model after the local steps, and by how much its control changed"
    plain_steps: ClassVar[str | None] = (
        "its control variates are computed from the sum of plain steps"
    )
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)
    idle_trains: ClassVar[bool] = False  # c would no longer be the mean of all c_i

    def server(self, me: Nodes, x: Rows) -> Rows:
        c = me.recall("_control", default=torch.zeros_like(x))
        y, change = me.ask(self.device, x, c, sample=self.sample)
        asked = y.count.double()  # torch divides whole numbers in float32
        share = asked / me.children  # S/N
        me.keep("_control", c + share[:, None].to(x) * change.mean())
        return torch.lerp(x, y.mean(), self.server_lr)

    def device(self, me: Nodes, x: Rows, c: Rows) -> tuple[Rows, Rows]:
        c_i = me.recall("_control", default=torch.zeros_like(x))
        gradient = me.grad(self.batch)
        y = descend(x, gradient, linear=c - c_i, steps=self.steps, lr=self.lr)
        change = (x - y) / (self.steps * self.lr) - c
        me.keep("_control", c_i + change)
        return y, change

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        no_control = torch.zeros_like(w)
        y, _ = self.device(me, w, no_control)
        return y
