"""pFedBayes: each device holds a Gaussian over models, near the global one (Zhang et al., 2022).

A divergence holds it there. The paper's q_i = N(mu, sigma^2) with sigma = log(1 + e^rho), the local
w_i, S, R, b, zeta, beta are `mu` and `rho`, `local_mu` and `local_rho`, `sample`, `local_rounds`,
`batch`, `zeta`, `beta`. `steps` is the 5 of a public code, `lr` and `personal_lr` its two rates. A
mean is a row like any model: the global, "local" and "personal" rows that are kept and scored are
means. Their rhos travel and are kept beside them. Predictions use the mean; with `draws`, a
device's prediction averages that many draws of q.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine.descend import Stepper
from covey.engine.modules import rowwise
from covey.engine.task import Batch, Predict
from covey.fields import Count, NonNegative, Positive, Range, Whole
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.tree import Sample
from covey.types import Rows

softplus = rowwise.elementwise(F.softplus)
sigmoid = rowwise.elementwise(torch.sigmoid)


@dataclass(frozen=True)
class PFedBayes(Algorithm):
    """R times: K steps of q on E_q f + zeta/n KL(q | local), one of local on zeta/n KL(q | local).

    These steps share one batch. f is the mean loss over n examples, so that the first objective is
    the evidence bound divided by n. q continues from its last round, as in the public code; with
    `restart` it starts from the distribution received. Both optimisers start anew in each round.
    """

    zeta: NonNegative = 1.0  # weight of the divergence between personal and local distribution
    sample: Sample = None
    local_rounds: Count = 20
    steps: Count = 5  # gradient steps of the personal distribution in each local round
    lr: Positive = 0.003  # step size of the local distribution
    personal_lr: Positive = 0.003  # step size of the personal distribution
    beta: Positive = 1.0
    batch: Count | None = 100
    rho: Annotated[float, Range(-700, 700)] = -3.0  # initial rho;
    # the standard deviation is log(1 + e^rho)
    method: Literal["adam", "gradient"] = "adam"  # the optimiser of both distributions
    restart: bool = False  # whether the personal distribution starts every round
    # from the one received
    draws: Whole = 0  # draws of a model that a prediction averages; 0 predicts by the mean

    sends: ClassVar[str] = "mean and rho of its local distribution, never the personal one"
    plain_steps: ClassVar[str | None] = "it takes the steps of its own `method`"

    def server(self, me: Nodes, mu: Rows) -> Rows:
        initial = torch.full_like(mu, self.rho)
        rho = me.recall("_rho", default=initial)
        mus, rhos = me.ask(self.device, mu, rho, sample=self.sample)
        rho = torch.lerp(rho, rhos.mean(), self.beta)
        me.keep("_rho", rho)
        return torch.lerp(mu, mus.mean(), self.beta)

    def device(self, me: Nodes, local_mu: Rows, local_rho: Rows) -> tuple[Rows, Rows]:
        since = 0
        if self.restart:
            since = me.round
        mu = me.recall("personal", local_mu, since)
        rho = me.recall("_personal_rho", local_rho, since)
        tie = self.zeta / me.count.clamp(min=1)
        personal = Stepper(self.method, self.personal_lr)
        local = Stepper(self.method, self.lr)
        for _ in range(self.local_rounds):
            gradient = me.grad(me.batch(self.batch))
            s = softplus(local_rho)
            for _ in range(self.steps):
                sigma = softplus(rho)
                noise = me.normal("epsilon", mu.shape[1])
                g = gradient(mu + sigma * noise)
                by_mu, by_sigma = by_personal(mu, sigma, local_mu, s)
                by_mu = g + tie * by_mu
                by_sigma = g * noise + tie * by_sigma
                mu, rho = personal.step((mu, rho), (by_mu, by_sigma * sigmoid(rho)))
            by_mu, by_s = by_local(mu, softplus(rho), local_mu, s)
            gradients = (tie * by_mu, tie * by_s * sigmoid(local_rho))
            local_mu, local_rho = local.step((local_mu, local_rho), gradients)
        me.keep("personal", mu)
        me.keep("_personal_rho", rho)
        me.keep("local", local_mu)
        me.keep("_local_rho", local_rho)
        return local_mu, local_rho

    def adapt(self, me: Nodes, mu: Rows) -> Rows:
        self.device(me, mu, torch.full_like(mu, self.rho))
        return me.kept["personal"]

    def predictor(self, me: Nodes, model: str, rows: Rows) -> Predict | None:
        if not self.draws or model == "global":
            return None
        initial = torch.full_like(rows, self.rho)
        sigma = softplus(me.recall(f"_{model}_rho", default=initial))
        drawn = []
        for _ in range(self.draws):
            noise = me.normal(f"{model} predicts", rows.shape[1])
            drawn.append(rows + sigma * noise)

        def predict(batch: Batch, which: Tensor) -> Tensor:
            logs = []
            for models in drawn:
                outputs = me.outputs(models[which], batch)
                logs.append(torch.log_softmax(outputs, dim=-1))
            total = torch.logsumexp(torch.stack(logs), dim=0)
            return total - math.log(self.draws)

        return predict


def by_personal(
    mu: Rows,
    sigma: Rows,
    local_mu: Rows,
    s: Rows,
) -> tuple[Rows, Rows]:
    """The derivatives of KL(N(mu, sigma^2) | N(m, s^2)) by mu and sigma.

    They are (mu - m)/s^2 and sigma/s^2 - 1/sigma, for the divergence is the sum of
    log(s / sigma) + (sigma^2 + (mu - m)^2) / (2 s^2) - 1/2.

    They are so written that both are exactly 0 where the two distributions are equal. Adam would
    make a whole step of a rounding error.
    """
    precision = 1 / (s * s)
    by_mu = (mu - local_mu) * precision
    by_sigma = (sigma - s) * (sigma + s) * precision / sigma
    return by_mu, by_sigma


def by_local(
    mu: Rows,
    sigma: Rows,
    local_mu: Rows,
    s: Rows,
) -> tuple[Rows, Rows]:
    """The derivatives of the same by m and s.

    They are (m - mu)/s^2 and 1/s - (sigma^2 + (mu - m)^2)/s^3.
    """
    precision = 1 / (s * s)
    gap = local_mu - mu
    by_s = ((s - sigma) * (s + sigma) - gap * gap) * precision / s
    return gap * precision, by_s
