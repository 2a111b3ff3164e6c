"""Centralised training: one model on all data as on one node; the baseline of global models.

It is not a federated method. The data stays on the devices, but every single step asks all devices
for a gradient. Their mean, weighted by numbers of examples, is the gradient of the pooled data. A
round sends `steps` times as much as a round of FedAvg, and a gradient tells more of a device's
examples than a model after many steps.
"""

from dataclasses import dataclass
from typing import ClassVar

from covey.engine.descend import descend
from covey.fields import Count, Positive
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Weighted
from covey.types import Rows


@dataclass(frozen=True)
class Centralised(Algorithm):
    """Each round, the server takes `steps` steps of size `lr` on the loss of all examples.

    With `batch` a device draws that many of its examples per step. Its gradient is weighted by its
    number of examples: the mean is an unbiased estimate from a batch stratified by device. With
    None every step is one of plain gradient descent.
    """

    steps: Count = 20
    lr: Positive = 0.1
    batch: Count | None = 20

    sends: ClassVar[str] = "its gradient, at every single step"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)
    plain_steps: ClassVar[str | None] = "its steps are the server's, along a mean of gradients"

    def server(self, me: Nodes, w: Rows) -> Rows:
        for _ in range(self.steps):
            gradients, samples = me.ask(self.device, w)
            w = w - self.lr * gradients.mean(weight=samples)
        return w

    def device(self, me: Nodes, w: Rows) -> Weighted:
        gradient = me.grad(self.batch)
        return gradient(w), me.weight("samples")

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        gradient = me.grad(self.batch)  # as of FedAvg, on its own data
        return descend(w, gradient, steps=self.steps, lr=self.lr)
