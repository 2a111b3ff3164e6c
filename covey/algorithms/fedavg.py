"""FedAvg: devices train from the global model, the server averages (McMahan et al., 2017).

The paper weighs device k by n_k/n, its share of the examples: `weight="samples"`. The default is a
plain mean, as in all methods here, so that they minimise one objective and reduce to each other at
their defaults (docs/decisions/0023-weights-of-a-mean.md).
"""

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
class FedAvg(Algorithm):
    """`sample` devices take `steps` mini-batch steps of size `lr` from w; w becomes their mean.

    The paper's S, R, eta are `sample`, `steps`, `lr`.
    """

    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.1
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return devices.mean(weight=samples)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        gradient = me.grad(self.batch)
        x = descend(w, gradient, steps=self.steps, lr=self.lr)
        return x, me.weight(self.weight)
