"""FedAvg, then a few local steps: the simplest personal model that uses all devices' data."""

from dataclasses import dataclass
from typing import ClassVar

from covey.engine.descend import descend
from covey.fields import Count, Positive
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class FineTune(Algorithm):
    """The global model is FedAvg's to the bit; a device tunes the w that it receives.

    Its personal model is w after `tune_steps` steps of size `tune_lr`.
    """

    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.02
    tune_steps: Count = 20  # steps from the global model to a device's own
    tune_lr: Positive = 0.02  # step size of those steps
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps, never the tuned one"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr", "tune_lr")

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return devices.mean(weight=samples)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        gradient = me.grad(self.batch)
        x = descend(w, gradient, steps=self.steps, lr=self.lr)
        gradient = me.grad(self.batch, "tune")
        theta = descend(w, gradient, steps=self.tune_steps, lr=self.tune_lr)
        me.keep("personal", theta)
        return x, me.weight(self.weight)
