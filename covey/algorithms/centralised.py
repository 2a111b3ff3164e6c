"""Centralised training: one model on everybody's data as on one node; the yardstick of every global
model.

It is no federated method and not meant to be one. The data stays where it is, but every single step
asks all devices for a gradient and takes their mean by numbers of examples, which is the gradient
of the pooled data. So a round sends `steps` times what one of FedAvg does, and a gradient tells
more of a device's examples than a model after many steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from covey.engine.descend import descend
from covey.kernel.advice import Loss, Statement
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import inner_step
from covey.kernel.fields import Count, Positive
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Exact
from covey.types import Rows


@dataclass(frozen=True)
class Centralised(Algorithm):
    """Each round, the server takes `steps` steps of size `lr` along the gradient of all examples of
    all devices.

    With `batch` a device draws as many of its own examples for a step and its gradient weighs as
    much as all of them: the mean is unbiased, of a batch that is stratified by device. With None
    every step is one of plain gradient descent.
    """

    steps: Count = 20
    lr: Positive = 0.1
    batch: Count | None = 20

    sends: ClassVar[str] = "its gradient, at every single step"

    def server(self, me: Nodes, w: Rows) -> Rows:
        for _ in range(self.steps):
            gradients, samples = me.ask(self.device, w)
            w = w - self.lr * gradients.mean(weight=samples)
        return w

    def device(self, me: Nodes, w: Rows) -> tuple[Rows, Exact | None]:
        gradient = me.grad(self.batch)
        return gradient(w), me.weight("samples")

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        return descend(
            w, me.grad(self.batch), steps=self.steps, lr=self.lr
        )  # as of FedAvg, on its own data

    def advice(self, loss: Loss) -> Iterator[Statement]:
        return inner_step(self.lr, 0.0, loss, steps=self.steps)
