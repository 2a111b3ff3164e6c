"""HierFAVG: edges average their devices, then the server the edges (Liu et al., 2020; h-SGD).

The paper's tau1, tau2 are `steps`, `edge_rounds`; PerMFL's h-SGD writes L, K. The paper weighs by
samples (`weight="samples"`): a device by its own samples, an edge by those of all devices below it,
asked or not. h-SGD weighs uniformly.
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
class HierFAVG(Algorithm):
    """`edge_rounds` times, devices take `steps` steps from their edge's model; it becomes the mean.

    Then w becomes the mean of the edges' models.
    """

    sample: Sample = None
    device_sample: Sample = None
    edge_rounds: Count = 10
    steps: Count = 20  # gradient steps of a device in each edge round
    lr: Positive = 0.01
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps, every edge round"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)

    def above(self) -> str:
        return "edge"

    def server(self, me: Nodes, w: Rows) -> Rows:
        edges, samples = me.ask(self.edge, w, sample=self.sample)
        return edges.mean(weight=samples)

    def edge(self, me: Nodes, w: Rows) -> Weighted:
        for _ in range(self.edge_rounds):
            devices, samples = me.ask(self.device, w, sample=self.device_sample)
            w = devices.mean(weight=samples)
        return me.keep("edge", w), me.weight(self.weight)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        gradient = me.grad(self.batch)
        x = descend(w, gradient, steps=self.steps, lr=self.lr)
        return x, me.weight(self.weight)
