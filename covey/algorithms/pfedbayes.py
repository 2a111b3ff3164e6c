"""pFedBayes: every device holds a Gaussian over models, kept near the one it was sent by a divergence (Zhang et al., 2022).

The paper's q_i = N(mu, sigma^2) with sigma = log(1 + e^rho), the local w_i, S, R, b, zeta, beta are `mu` and `rho`, `local_mu`
and `local_rho`, `sample`, `local_rounds`, `batch`, `zeta`, `beta`; `steps` is the 5 of a public code, `lr` and `personal_lr` its
two rates. A mean is a row like any model: the global, "local" and "personal" rows that are kept and scored are means, and their
rhos travel and are kept beside them. Predictions are the mean's; with `draws`, those of devices average so many draws of q.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from covey.engine import rowwise
from covey.engine.descend import Stepper
from covey.engine.task import Batch, Predict
from covey.kernel.algorithm import Algorithm
from covey.kernel.fields import Count, NonNegative, Positive, Range, Whole
from covey.kernel.nodes import Nodes
from covey.tree import Sample
from covey.types import Rows

softplus, sigmoid = rowwise.elementwise(F.softplus), rowwise.elementwise(torch.sigmoid)


@dataclass(frozen=True)
class PFedBayes(Algorithm):
    """R times, on one batch: K steps of q on E_q f + zeta/n KL(q | local), then one step of local on zeta/n KL(q | local).

    f is the mean loss over n examples, so this is the evidence bound divided by n. q goes on from its last round, as in the
    public code; with `restart` from what was sent. Both optimisers start anew in each round.
    """

    zeta: NonNegative = 1.0
    sample: Sample = None
    local_rounds: Count = 20
    steps: Count = 5
    lr: Positive = 0.003
    personal_lr: Positive = 0.003
    beta: Positive = 1.0
    batch: Count | None = 100
    rho: Annotated[float, Range(-700, 700)] = -3.0
    method: Literal["adam", "gradient"] = "adam"
    restart: bool = False
    draws: Whole = 0

    sends: ClassVar[str] = "mean and rho of its local distribution, never the personal one"

    def server(self, me: Nodes, mu: Rows) -> Rows:
        rho = me.recall("_rho", default=torch.full_like(mu, self.rho))
        mus, rhos = me.ask(self.device, mu, rho, sample=self.sample)
        me.keep("_rho", torch.lerp(rho, rhos.mean(), self.beta))
        return torch.lerp(mu, mus.mean(), self.beta)

    def device(self, me: Nodes, local_mu: Rows, local_rho: Rows) -> tuple[Rows, Rows]:
        since = me.round if self.restart else 0
        mu, rho = me.recall("personal", local_mu, since), me.recall("_personal_rho", local_rho, since)
        tie = self.zeta / me.count.clamp(min=1)
        personal, local = Stepper(self.method, self.personal_lr), Stepper(self.method, self.lr)
        for _ in range(self.local_rounds):
            gradient = me.grad(me.batch(self.batch))
            for _ in range(self.steps):
                noise = me.normal("epsilon", mu.shape[1])
                g = gradient(mu + softplus(rho) * noise)
                by_mu, by_rho, *_ = divergence_gradients(mu, rho, local_mu, local_rho)
                mu, rho = personal.step((mu, rho), (g + tie * by_mu, g * noise * sigmoid(rho) + tie * by_rho))
            *_, by_mu, by_rho = divergence_gradients(mu, rho, local_mu, local_rho)
            local_mu, local_rho = local.step((local_mu, local_rho), (tie * by_mu, tie * by_rho))
        me.keep("personal", mu), me.keep("_personal_rho", rho)
        return me.keep("local", local_mu), me.keep("_local_rho", local_rho)

    def adapt(self, me: Nodes, mu: Rows) -> Rows:
        self.device(me, mu, torch.full_like(mu, self.rho))
        return me.kept["personal"]

    def predictor(self, me: Nodes, model: str, rows: Rows) -> Predict | None:
        if not self.draws or model == "global":
            return None
        sigma = softplus(me.recall(f"_{model}_rho", default=torch.full_like(rows, self.rho)))
        drawn = [rows + sigma * me.normal(f"{model} predicts", rows.shape[1]) for _ in range(self.draws)]

        def predict(batch: Batch, which: Tensor) -> Tensor:
            logs = [torch.log_softmax(me.outputs(one[which], batch), dim=-1) for one in drawn]
            return torch.logsumexp(torch.stack(logs), dim=0) - math.log(self.draws)

        return predict


def divergence(mu: Rows, rho: Rows, local_mu: Rows, local_rho: Rows) -> Rows:
    """KL(N(mu, sigma^2) | N(m, s^2)) = sum of log(s / sigma) + (sigma^2 + (mu - m)^2) / (2 s^2) - 1/2, [n, 1]."""
    sigma, s = softplus(rho), softplus(local_rho)
    each = torch.log(s / sigma) + (sigma * sigma + (mu - local_mu) ** 2) / (2 * s * s) - 0.5
    return each.sum(1, keepdim=True)


def divergence_gradients(mu: Rows, rho: Rows, local_mu: Rows, local_rho: Rows) -> tuple[Rows, Rows, Rows, Rows]:
    """The derivatives of `divergence` by mu, rho, m and the rho of s; that of sigma by rho is sigmoid(rho)."""
    sigma, s, gap = softplus(rho), softplus(local_rho), mu - local_mu
    by_mu, by_sigma = gap / (s * s), sigma / (s * s) - 1 / sigma
    by_s = 1 / s - (sigma * sigma + gap * gap) / (s * s * s)
    return by_mu, by_sigma * sigmoid(rho), -by_mu, by_s * sigmoid(local_rho)
