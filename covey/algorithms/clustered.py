"""Clustered training (IFCA): k models, each device trains the one that fits it best (Ghosh, Chung,
Yin, Ramchandran, 2020).

The paper's theta_j, k, gamma, tau are `models`, `clusters`, `lr`, `steps`; of its two ways to
average, that of models. A cluster's model is the mean of the devices that picked it, and stays as
it was where nobody did.

A device picks by the loss of its data alone, the paper's F_i, also where the experiment has an
`l2`. Then it trains F_i + l2/2 |x|^2, and the pick is not the smallest value of that. l2/2
|theta_j|^2 is the same for every device: it would draw all of them to the cluster with the
smallest weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from covey.engine.descend import descend
from covey.kernel.advice import Loss, Statement
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import inner_step
from covey.kernel.fields import Count, NonNegative, Positive, Range
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Message, exact
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class Clustered(Algorithm):
    """Each device picks the model of least loss on `pick` of its training examples (None: all) and
    trains it for `steps` steps.

    The first cluster begins at the initial model, the others `spread` times a standard normal row
    away from it. The global model is the mean of all answers; a device keeps the model it picked as
    "cluster" and what it made of it as "personal".
    """

    clusters: Annotated[int, Range(1, 10_000, whole=True)] = 2  # number of models among which
    # devices pick
    spread: NonNegative = 0.1  # standard deviation of the clusters' models around the initial one
    pick: Count | None = None  # training examples by which a device picks; "none" takes all
    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.02
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps, and which cluster it picked"

    def above(self) -> str:
        return "clusters"

    def server(self, me: Nodes, w: Rows) -> Rows:
        models = self.begin(me, w) if (last := me.recall("clusters")) is None else last
        answers, *picked = me.ask(self.device, *models.unbind(1), sample=self.sample)
        means = [
            answers.mean(weight=picks, default=old)
            for picks, old in zip(picked, models.unbind(1), strict=True)
        ]
        me.keep("clusters", torch.stack(means, dim=1))
        totals, counts = zip(*(answers.sums(picks) for picks in picked), strict=True)
        return torch.stack(totals).sum(0) / torch.stack(counts).sum(0)

    def begin(self, me: Nodes, w: Rows) -> Tensor:
        """The models of all clusters, [n, k, P]."""
        away = me.normal("clusters", (self.clusters - 1) * w.shape[1]).view(
            len(w), self.clusters - 1, w.shape[1]
        )
        return torch.cat([w[:, None], w[:, None] + self.spread * away], dim=1)

    def device(self, me: Nodes, *models: Rows) -> tuple[Message, ...]:
        examples = me.batch(self.pick, "pick")
        losses = torch.cat([me.loss(model, examples) for model in models], dim=1)
        picked = one_hot(losses.argmin(1), len(models)).to(losses)
        start = torch.where(picked[:, :, None] == 1, torch.stack(models, dim=1), 0).sum(1)
        theta = descend(
            me.keep("cluster", start), me.grad(self.batch), steps=self.steps, lr=self.lr
        )
        weight = me.weight(self.weight)
        weights = picked if weight is None else picked * weight.rows
        return me.keep("personal", theta), *(exact(column) for column in weights.t()[:, :, None])

    def advice(self, loss: Loss) -> Iterator[Statement]:
        return inner_step(self.lr, 0.0, loss, steps=self.steps)
