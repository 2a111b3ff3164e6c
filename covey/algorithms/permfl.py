"""PerMFL: a model per tier, held near the one above by a squared distance (Banerjee et al., 2024).

The paper's x, w_i, theta_ij, T, K, L, lambda, gamma, alpha, eta, beta are `x`, `w`, `theta`,
rounds, `edge_rounds`, `steps`, `lam`, `gamma`, `lr`, `edge_lr`, `beta`; its team is an edge.
Defaults are for newcomers; the paper's settings are in covey/papers/permfl.toml.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from covey.engine.descend import descend
from covey.kernel.algorithm import Algorithm
from covey.kernel.fields import Count, CountPerNode, Positive, PositivePerNode
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Replies
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class PerMFL(Algorithm):
    """theta descends f + lam/2 |theta - w|^2, w envelopes of that + gamma/2 |w - x|^2, x theirs.

    `lr` (alpha) and `steps` (L) may be lists with one entry per device, `edge_lr` (eta) and
    `edge_rounds` (K) with one per edge. `sample` edges take part in a round and `device_sample`
    devices in each edge round. `stale="include"`: the server averages the last model of every edge,
    as the authors' code does, not only of those asked.
    """

    lam: Positive = 1.5
    gamma: Positive = 1.5
    beta: Positive = 0.6
    lr: PositivePerNode = 0.03
    edge_lr: PositivePerNode = 0.3
    edge_rounds: CountPerNode = 10
    steps: CountPerNode = 20
    sample: Sample = None
    device_sample: Sample = None
    batch: Count | None = 20
    stale: Literal["exclude", "include"] = "exclude"

    sends: ClassVar[str] = "its personal model, to its edge only"

    def server(self, me: Nodes, x: Rows) -> Rows:
        edges = me.ask(self.edge, x, sample=self.sample)
        mean = self.mean_of_edges(me, x, edges)
        return x - self.beta * self.gamma * (x - mean)  # (13)

    def edge(self, me: Nodes, x: Rows) -> Rows:
        w = x
        eta = me.own(self.edge_lr)
        for _, going in me.rounds(self.edge_rounds):
            devices = me.ask(self.device, w, sample=self.device_sample, where=going)
            theta = devices.mean(default=w)
            step = eta * (self.lam * (w - theta) + self.gamma * (w - x))  # (9)
            w = torch.where(going, w - step, w)
        return me.keep("edge", w)

    def device(self, me: Nodes, w: Rows) -> Rows:
        alpha = me.own(self.lr)
        steps = me.own(self.steps)
        theta = descend(w, me.grad(self.batch), prox=(self.lam, w), steps=steps, lr=alpha)  # (4)
        return me.keep("personal", theta)

    def mean_of_edges(self, me: Nodes, x: Rows, edges: Replies) -> Rows:
        """The mean of the edges asked or, with `stale`, of what each edge sent last, at first x."""
        if self.stale == "exclude":
            return edges.mean()
        last = me.recall("_edges", default=x[:, None].repeat(1, me.fan, 1))
        return me.keep("_edges", edges.gather().into(last)).mean(1)

    def above(self) -> str:
        return "edge"
