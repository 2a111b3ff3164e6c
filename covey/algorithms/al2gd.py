"""AL2GD: L2GD on given clusters, with a coin for the server and one per edge (Lyu et al., 2022).

PerMFL compares with it. A cluster is an edge. p_0, p_j, lambda, gamma are `p`, `edge_p`, `lam`,
`gamma`. The server flips its coin first: with probability p_0 the edges' means move towards the
mean of all. Otherwise each edge flips its own coin: with probability p_j its devices move towards
its mean, else they step on their losses. Each move is divided by its probability, so that the
expected move is a step of size `lr` on the whole objective.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from covey import draws
from covey.engine.descend import descend
from covey.fields import (
    Count,
    NonNegative,
    Positive,
    Probability,
    ProbabilityPerNode,
)
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Exact, exact
from covey.types import Rows


@dataclass(frozen=True)
class AL2GD(Algorithm):
    """Descends sum_i f_i(x_i) + lam/2 |x_i - m_j|^2 + gamma/2 |m_j - m|^2.

    m_j is the mean of device i's edge, and m the mean of all devices. At the minimum
    grad f_i + lam (x_i - m_j) + gamma (m_j - m) = 0. With a constant lr the iterates stay in a ball
    around it. A round is all flips up to and including the first flip of the server's coin that
    moves edges. `edge_p` may be a list with one entry per edge. New devices take 1/p steps on
    f + lam/2 |x - m_j|^2.
    """

    lam: NonNegative = 1.0  # pull of a device towards the mean of its edge (lambda)
    gamma: NonNegative = 1.0  # pull of an edge's mean towards the mean of all
    p: Probability = 0.1  # probability that a flip of the server's coin moves the edges' means
    edge_p: ProbabilityPerNode = 0.2  # probability that a flip of an edge's coin moves its devices,
    # one for all or one per edge
    lr: Positive = 0.02  # step size of the whole problem, divided by the probability of a move
    batch: Count | None = 20

    sends: ClassVar[str] = "its personal model, to its edge only"
    plain_steps: ClassVar[str | None] = (
        "its step size and probabilities weigh the loss against the means"
    )

    def above(self) -> str:
        return "edge"

    def server(self, me: Nodes, w: Rows) -> Rows:
        flips = draws.failures(me.uniform("coin"), self.p)
        edges, sizes = me.ask(self.edge, exact(flips))
        mean = edges.mean(weight=sizes)
        me.ask(self.shift, mean)
        return mean

    def edge(self, me: Nodes, flips: Rows) -> tuple[Rows, Exact]:
        p = me.own(self.edge_p)
        ones = torch.ones_like(flips)
        not_server = 1 - self.p
        lr = self.lr / not_server / (1 - p) * ones
        pull = self.lr * self.lam / not_server / p * ones
        mean = me.initial()
        left = flips
        going = torch.ones_like(flips, dtype=torch.bool)
        while True:  # at least once: the server needs a mean even if no flip is left
            until_average = draws.failures(me.uniform("coin"), p)
            steps = torch.minimum(until_average, left)
            task = torch.cat([steps, lr], 1)
            devices = me.ask(self.device, exact(task), where=going)
            mean = devices.mean(default=mean)
            going = left > steps
            me.ask(self.pull, mean, exact(pull), where=going)
            left = left - steps - going.to(left)
            if not bool(going.any()):
                break
        me.keep("edge", mean)
        return mean, exact(me.children[:, None].to(left))

    def shift(self, me: Nodes, mean: Rows) -> None:
        edge = me.recall("edge", default=mean)
        step = self.lr * self.gamma / self.p * (edge - mean)
        me.ask(self.move, step)
        me.keep("edge", edge - step)

    def device(self, me: Nodes, task: Rows) -> Rows:
        steps = task[:, 0].long()
        lr = task[:, 1:]
        x = me.recall("personal", default=me.initial())
        gradient = me.grad(self.batch)
        x = descend(x, gradient, steps=steps, lr=lr)
        return me.keep("personal", x)

    def pull(self, me: Nodes, mean: Rows, share: Rows) -> None:
        x = me.recall("personal", default=mean)
        x = torch.lerp(x, mean, share)
        me.keep("personal", x)

    def move(self, me: Nodes, step: Rows) -> None:
        x = me.recall("personal", default=me.initial())
        me.keep("personal", x - step)

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        return descend(
            w,
            me.grad(self.batch),
            prox=(self.lam, w),
            steps=round(1 / self.p),
            lr=self.lr,
        )
