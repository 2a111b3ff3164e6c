"""PerMFL: a model per tier, held near the one above by a squared distance (Banerjee et al., 2024).

The paper's x, w_i, theta_ij, T, K, L, lambda, gamma, alpha, eta, beta are `x`, `w`, `theta`,
rounds, `edge_rounds`, `steps`, `lam`, `gamma`, `lr`, `edge_lr`, `beta`; its team is an edge.
Defaults are for newcomers; the paper's settings are in covey/papers/permfl.toml.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from covey.engine.descend import descend
from covey.fields import Count, CountPerNode, Positive, PositivePerNode
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Replies
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class PerMFL(Algorithm):
    """theta descends f + lam/2 |theta - w|^2, w envelopes of that + gamma/2 |w - x|^2, x theirs.

    `lr` (alpha) and `steps` (L) may be lists with one entry per device, `edge_lr` (eta) and
    `edge_rounds` (K) with one per edge. `sample` edges take part in a round and `device_sample`
    devices in each edge round. With `stale="include"` the server averages the last model of every
    edge, as the authors' code does, not only of the edges asked.
    """

    lam: Positive = 1.5  # pull of a device towards its edge (lambda)
    gamma: Positive = 1.5  # pull of an edge towards the server
    beta: Positive = 0.6  # step of the server towards the mean of the edges
    lr: PositivePerNode = 0.03  # step size of the devices, one for all or one per device (alpha)
    edge_lr: PositivePerNode = 0.3  # step size of the edges, one for all or one per edge (eta)
    edge_rounds: CountPerNode = 10  # rounds between an edge and its devices in one round,
    # one for all or one per edge
    steps: CountPerNode = 20  # gradient steps of a device in each edge round,
    # one for all or one per device
    sample: Sample = None
    device_sample: Sample = None
    batch: Count | None = 20
    stale: Literal["exclude", "include"] = "exclude"  # whether the server also averages the last
    # models of edges that were not asked

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
            gradient = self.lam * (w - theta) + self.gamma * (w - x)
            w = torch.where(going, w - eta * gradient, w)  # (9)
        return me.keep("edge", w)

    def device(self, me: Nodes, w: Rows) -> Rows:
        alpha = me.own(self.lr)
        steps = me.own(self.steps)
        gradient = me.grad(self.batch)
        theta = descend(w, gradient, prox=(self.lam, w), steps=steps, lr=alpha)  # (4)
        return me.keep("personal", theta)

    def mean_of_edges(self, me: Nodes, x: Rows, edges: Replies) -> Rows:
        """The mean of the edges asked or, with `stale`, of what each edge sent last, at first x."""
        if self.stale == "exclude":
            return edges.mean()
        initial = x[:, None].repeat(1, me.max_children, 1)
        last = me.recall("_edges", default=initial)
        last = edges.gather().into(last)
        me.keep("_edges", last)
        return last.mean(1)

    def above(self) -> str:
        return "edge"
