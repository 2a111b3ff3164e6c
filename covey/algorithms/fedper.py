"""FedPer: devices share the base layers; each keeps its own head (Arivazhagan et al., 2019).

The paper's W_B, W_P are the columns `me.shared` and `me.private`: `private=` of the experiment
names the head's layers, by default the last one. Its mean weighs by samples: `weight="samples"`.
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
class FedPer(Algorithm):
    """Devices take `steps` steps on base and head together; the base becomes the mean of theirs.

    A head is in no message of training. The global model is the shared base under the initial head.
    """

    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.02
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "the shared layers of its model, never the private ones"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)
    splits: ClassVar[bool] = True

    def server(self, me: Nodes, w: Rows) -> Rows:
        base = w[:, me.shared]
        head = w[:, me.private]
        replies, samples = me.ask(self.device, base, sample=self.sample)
        base = replies.mean(weight=samples)
        return torch.cat([base, head], dim=1)

    def device(self, me: Nodes, base: Rows) -> Weighted:
        last = me.recall("personal", default=me.initial())
        head = last[:, me.private]
        x = torch.cat([base, head], dim=1)
        gradient = me.grad(self.batch)
        x = descend(x, gradient, steps=self.steps, lr=self.lr)
        me.keep("personal", x)
        return x[:, me.shared], me.weight(self.weight)
