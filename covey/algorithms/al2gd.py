"""AL2GD: L2GD on known clusters, with a coin for the server and one for every edge (Lyu et al.,
2022; PerMFL's comparison).

A cluster is an edge. p_0, p_j, lambda, gamma are `p`, `edge_p`, `lam`, `gamma`. The server's coin
is first: with chance p_0 the edges' means move towards the mean of all. Otherwise each edge flips
its own: with chance p_j its devices move towards its mean, else they step on their losses. Each
move is divided by its chance, so that on average they are a step of size `lr` on the whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from covey import draws
from covey.engine.descend import descend
from covey.kernel.advice import Levers, Loss, Statement, Step
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import averaging_step, inner_step, largest, smallest
from covey.kernel.fields import Count, NonNegative, Positive, Probability, ProbabilityPerNode
from covey.kernel.nodes import Nodes
from covey.kernel.replies import Exact, exact
from covey.types import Rows


@dataclass(frozen=True)
class AL2GD(Algorithm):
    """Descends sum_i f_i(x_i) + lam/2 |x_i - m_j|^2 + gamma/2 |m_j - m|^2, m_j the mean of i's edge
    and m of all devices.

    At the minimum grad f_i + lam (x_i - m_j) + gamma (m_j - m) = 0; a constant lr stays in a ball
    around it. A round is all flips up to and including the first of the server's coin that moves
    edges. `edge_p` may be a list with one entry per edge. New devices take 1/p steps on f + lam/2
    |x - m_j|^2.
    """

    lam: NonNegative = 1.0  # pull of a device towards the mean of its edge (lambda)
    gamma: NonNegative = 1.0  # pull of an edge's mean towards the mean of all
    p: Probability = 0.1  # probability that a flip of the server's coin moves the edges' means
    edge_p: ProbabilityPerNode = 0.2  # probability that a flip of an edge's coin moves its devices,
    # one for all or one per edge
    lr: Positive = 0.02  # step size of the whole problem, divided by the probability of a move
    batch: Count | None = 20

    sends: ClassVar[str] = "its personal model, to its edge only"

    def above(self) -> str:
        return "edge"

    def server(self, me: Nodes, w: Rows) -> Rows:
        flips = draws.failures(me.uniform("coin"), self.p)
        edges, sizes = me.ask(self.edge, exact(flips))
        mean = edges.mean(weight=sizes)
        me.ask(self.shift, mean)
        return mean

    def edge(self, me: Nodes, flips: Rows) -> tuple[Rows, Exact]:
        p, mean, left, going = (
            me.own(self.edge_p),
            me.initial(),
            flips,
            torch.ones_like(flips, dtype=torch.bool),
        )
        one = torch.ones_like(flips)
        lr, pull = (
            self.lr / (1 - self.p) / (1 - p) * one,
            self.lr * self.lam / (1 - self.p) / p * one,
        )
        while True:  # at least once: the server needs a mean even if no flip is left
            steps = torch.minimum(draws.failures(me.uniform("coin"), p), left)
            mean = me.ask(self.device, exact(torch.cat([steps, lr], 1)), where=going).mean(
                default=mean
            )
            going = left > steps
            me.ask(self.pull, mean, exact(pull), where=going)
            left = left - steps - going.to(left)
            if not bool(going.any()):
                return me.keep("edge", mean), exact(me.children[:, None].to(left))

    def shift(self, me: Nodes, mean: Rows) -> None:
        edge = me.recall("edge", default=mean)
        step = self.lr * self.gamma / self.p * (edge - mean)
        me.ask(self.move, step)
        me.keep("edge", edge - step)

    def device(self, me: Nodes, flips: Rows) -> Rows:
        steps, lr = flips[:, 0].long(), flips[:, 1:]
        x = me.recall("personal", default=me.initial())
        return me.keep("personal", descend(x, me.grad(self.batch), steps=steps, lr=lr))

    def pull(self, me: Nodes, mean: Rows, by: Rows) -> None:
        me.keep("personal", torch.lerp(me.recall("personal", default=mean), mean, by))

    def move(self, me: Nodes, step: Rows) -> None:
        me.keep("personal", me.recall("personal", default=me.initial()) - step)

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        return descend(
            w, me.grad(self.batch), prox=(self.lam, w), steps=round(1 / self.p), lr=self.lr
        )

    def advice(self, loss: Loss) -> Iterator[Statement]:
        local = self.lr / (1 - self.p) / (1 - largest(self.edge_p))
        pull = self.lr * self.lam / (1 - self.p) / smallest(self.edge_p)
        yield from inner_step(local, 0.0, loss, steps=2, names=("lr/((1-p)(1-edge_p))", "lam"))
        yield from averaging_step(pull, "lr*lam/((1-p) edge_p)")
        yield from averaging_step(self.lr * self.gamma / self.p, "lr*gamma/p")

    def levers(self, L: float) -> Levers:
        times = 1 / (1 - self.p) / (1 - largest(self.edge_p))
        return Levers(steps=(Step("lr", times=times),))
