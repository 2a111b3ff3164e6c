"""Clustered training (IFCA): k models; each device trains its best fit (Ghosh et al., 2020).

The paper's theta_j, k, gamma, tau are `models`, `clusters`, `lr`, `steps`. Of its two variants this
is model averaging. A cluster's model is the mean of the devices that picked it. It does not change
where no device picked it.

A device picks by the loss of its data alone, the paper's F_i, also where the experiment has an
`l2`. Then it trains F_i + l2/2 |x|^2, and the pick is not the smallest value of that. The term
l2/2 |theta_j|^2 is the same for every device: it would draw all of them to the cluster with the
smallest weights.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from covey.engine.descend import descend
from covey.fields import Count, NonNegative, Positive, Range
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Message, exact
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class Clustered(Algorithm):
    """Each device picks the model of lowest loss and trains it for `steps` steps.

    The loss is that of `pick` of its training examples (None: all). The first cluster starts at the
    initial model, the others `spread` times a standard normal row away from it. The global model is
    the mean of all answers. A device keeps the model it picked as "cluster" and the trained one as
    "personal".
    """

    clusters: Annotated[int, Range(1, 10_000, whole=True)] = 2  # number of models to pick from
    spread: NonNegative = 0.1  # standard deviation of the clusters' models around the initial one
    pick: Count | None = None  # training examples by which a device picks; "none" takes all
    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.02
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps, and which cluster it picked"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)

    def above(self) -> str:
        return "clusters"

    def server(self, me: Nodes, w: Rows) -> Rows:
        models = me.recall("clusters")
        if models is None:
            models = self.begin(me, w)
        by_cluster = models.unbind(1)
        answers, *picked = me.ask(self.device, *by_cluster, sample=self.sample)
        means = []
        totals = []
        counts = []
        for weight, old in zip(picked, by_cluster, strict=True):
            means.append(answers.mean(weight=weight, default=old))
            cluster_total, cluster_count = answers.sums(weight)
            totals.append(cluster_total)
            counts.append(cluster_count)
        me.keep("clusters", torch.stack(means, dim=1))
        total = torch.stack(totals).sum(0)
        count = torch.stack(counts).sum(0)
        return total / count

    def begin(self, me: Nodes, w: Rows) -> Tensor:
        """The models of all clusters, [n, k, P]."""
        others = self.clusters - 1
        width = w.shape[1]
        noise = me.normal("clusters", others * width)
        noise = noise.view(len(w), others, width)
        first = w[:, None]
        rest = first + self.spread * noise
        return torch.cat([first, rest], dim=1)

    def device(self, me: Nodes, *models: Rows) -> tuple[Message, ...]:
        picked = self.picked(me, *models)
        is_picked = picked[:, :, None] == 1
        rows = torch.stack(models, dim=1)
        start = torch.where(is_picked, rows, 0).sum(1)
        me.keep("cluster", start)
        gradient = me.grad(self.batch)
        theta = descend(start, gradient, steps=self.steps, lr=self.lr)
        me.keep("personal", theta)
        weight = me.weight(self.weight)
        if weight is not None:
            picked = picked * weight.rows
        columns = picked.t()[:, :, None]
        return theta, *(exact(column) for column in columns)

    def picked(self, me: Nodes, *models: Rows) -> Tensor:
        """1 in the column of the model of lowest loss, else 0, [n, k]."""
        examples = me.batch(self.pick, "pick")
        losses = [me.loss(model, examples) for model in models]
        table = torch.cat(losses, dim=1)
        best = table.argmin(1)
        return one_hot(best, len(models)).to(table)
