"""Methods as the public code of PerMFL runs them, where that is not the method as published.

`experiments.papers.settings` runs them in rows of PerMFL's Table 1. `UncutFedMac` is for rows of
FedMac's Figure 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from covey import Algorithm, Nodes, Rows
from covey.algorithms.fedmac import FedMac
from covey.algorithms.pfedbayes import by_local, by_personal, sigmoid, softplus
from covey.engine.descend import Stepper, descend
from covey.fields import Count, NonNegative, Positive, Probability
from covey.kernel.replies import Exact, exact


@dataclass(frozen=True)
class PulledPerMFL(Algorithm):
    """PerMFL whose devices have a pull of their own; teams step with lambda.

    In the public code the arguments of a device's base class are shifted by one, so that a
    device's lambda is the number of its steps, 20.
    """

    pull: Positive = 20.0
    lam: Positive = 0.5
    gamma: Positive = 1.5
    beta: Positive = 0.6
    lr: Positive = 0.01
    edge_lr: Positive = 0.03
    edge_rounds: Count = 10
    steps: Count = 20
    batch: Count | None = 124

    def server(self, me: Nodes, x: Rows) -> Rows:
        edges = me.ask(self.edge, x)
        return x - self.beta * self.gamma * (x - edges.mean())

    def edge(self, me: Nodes, x: Rows) -> Rows:
        w = x
        for _ in range(self.edge_rounds):
            theta = me.ask(self.device, w).mean()
            w = w - self.edge_lr * (self.lam * (w - theta) + self.gamma * (w - x))
        return w

    def device(self, me: Nodes, w: Rows) -> Rows:
        gradient = me.grad(self.batch)
        theta = descend(w, gradient, prox=(self.pull, w), steps=self.steps, lr=self.lr)
        return me.keep("personal", theta)

    def above(self) -> str:
        return "edge"


@dataclass(frozen=True)
class ShrinkingAL2GD(Algorithm):
    """AL2GD without its means: a flip of the server's coin shrinks all models.

    In the public code the half of the step that has the mean is a statement of its own, without
    effect. All weights are 1, for which the step of a team's coin is the identity. A round is one
    flip. Where no coin falls, a device takes `steps` steps. The code draws both probabilities from
    [0, 1]; here they are given.
    """

    p: Probability = 0.5
    edge_p: Probability = 0.5
    lr: Positive = 0.03
    steps: Count = 20
    batch: Count | None = 124

    def server(self, me: Nodes, w: Rows) -> Rows:
        shrinks = (me.uniform("coin") < self.p).to(w)
        return me.ask(self.edge, exact(shrinks)).mean()

    def edge(self, me: Nodes, shrinks: Rows) -> Rows:
        rests = (me.uniform("coin") < self.edge_p).to(shrinks)
        task = torch.cat([shrinks, rests], 1)
        return me.ask(self.device, exact(task)).mean()

    def device(self, me: Nodes, task: Rows) -> Rows:
        shrinks = task[:, :1] > 0
        trains = (task == 0).all(1)
        x = me.recall("personal", default=me.initial())
        lr = self.lr / (1 - self.p) / (1 - self.edge_p)
        trained = descend(x, me.grad(self.batch), steps=self.steps * trains.long(), lr=lr)
        shrunk = (1 - self.lr / self.p) * x
        return me.keep("personal", torch.where(shrinks, shrunk, trained))

    def above(self) -> str:
        return "edge"


@dataclass(frozen=True)
class QuietPFedBayes(Algorithm):
    """pFedBayes with other draws: their standard deviation is that of q times `noise`.

    In the public code it is .001, and the divergence weighs zeta / 20 beside the sum of a batch's
    losses, which is `tie` = 10 / 20 / 124 beside their mean. Adam starts anew in each round here.
    """

    noise: NonNegative = 0.001
    tie: NonNegative = 10 / 20 / 124
    local_rounds: Count = 20
    steps: Count = 5
    lr: Positive = 0.01
    personal_lr: Positive = 0.005
    batch: Count | None = 124
    rho: float = -3.0

    def server(self, me: Nodes, mu: Rows) -> Rows:
        rho = me.recall("_rho", default=torch.full_like(mu, self.rho))
        mus, rhos, samples = me.ask(self.device, mu, rho)
        me.keep("_rho", rhos.mean(weight=samples))
        return mus.mean(weight=samples)

    def device(self, me: Nodes, local_mu: Rows, local_rho: Rows) -> tuple[Rows, Rows, Exact | None]:
        mu = me.recall("personal", default=local_mu)
        rho = me.recall("_personal_rho", default=local_rho)
        personal = Stepper("adam", self.personal_lr)
        local = Stepper("adam", self.lr)
        for _ in range(self.local_rounds):
            gradient = me.grad(me.batch(self.batch))
            s = softplus(local_rho)
            for _ in range(self.steps):
                sigma = softplus(rho)
                noise = self.noise * me.normal("epsilon", mu.shape[1])
                g = gradient(mu + sigma * noise)
                by_mu, by_sigma = by_personal(mu, sigma, local_mu, s)
                by_sigma = g * noise + self.tie * by_sigma
                gradients = (g + self.tie * by_mu, by_sigma * sigmoid(rho))
                mu, rho = personal.step((mu, rho), gradients)
            by_mu, by_s = by_local(mu, softplus(rho), local_mu, s)
            gradients = (self.tie * by_mu, self.tie * by_s * sigmoid(local_rho))
            local_mu, local_rho = local.step((local_mu, local_rho), gradients)
        me.keep("personal", mu)
        me.keep("_personal_rho", rho)
        return local_mu, local_rho, me.weight("samples")


@dataclass(frozen=True)
class UncutFedMac(FedMac):
    """FedMac whose messages keep weights below the cut; non-zeros are still counted above it."""

    def cut(self, tier: str, round: int = 0) -> float | None:
        return None

    def zero(self, tier: str, model: str) -> float | None:
        return self.l1_of_theta.cut() if model == "personal" else super().cut(tier)
