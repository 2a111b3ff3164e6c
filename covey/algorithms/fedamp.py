"""FedAMP: each device is sent a mean of all models, weighted by similarity (Huang et al., 2021).

The paper's w_i, u_i, xi_ij, A, sigma, lambda are `theta`, `u`, `weights`, 1 - exp(-x/sigma),
`sigma`, `lam`. Its alpha_k is `alpha`, or less in a round k in which `alpha` is too large. FedAMP
descends sum_i f_i + lam/2 sum_{i<j} A(|w_i - w_j|^2) in two turns: a step of size alpha_k on A at
the server, then steps on each f_i, tied by lam/alpha_k to the result of the first.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from covey.engine.descend import descend
from covey.fields import Count, NonNegative, Positive, Range
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.maths import attention
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class FedAMP(Algorithm):
    """u_i = sum_j xi_ij w_j, xi_ij = alpha_k A'; `steps` on f_i + lam/(2 alpha_k) |w_i - u_i|^2.

    Where `alpha` would make a self weight xi_ii negative, alpha_k is the largest step that does
    not: at the default sigma, from 12 devices on. The server sends lam/alpha_k beside u_i, as one
    number. What it exceeds lam/alpha by grows with the number of devices, and acts at the end of a
    step, not at its start: `lr` is as stable with many devices as with two. The server holds the
    last model of every device, the initial one where a device has sent none. The global model,
    which no device uses, is their mean.
    """

    lam: NonNegative = 1.0  # weight of the attraction between models (lambda)
    alpha: Annotated[float, Range(1e-9)] = 1.0  # step size on the attraction; less where a weight
    # would be negative
    sigma: Positive = 10.0
    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.02
    batch: Count | None = 20

    sends: ClassVar[str] = "its personal model; the server holds everybody's"

    def server(self, me: Nodes, w: Rows) -> Rows:
        initial = w[:, None].repeat(1, me.max_children, 1)
        models: Tensor = me.recall("_models", default=initial)
        weights, tie = self.weights(models)
        u = attention.mixed(weights, models).flatten(0, 1)
        ties = tie.repeat_interleave(me.max_children, dim=0)
        theta = me.ask(self.device, each=(u, ties), sample=self.sample)
        models = theta.gather().into(models)
        me.keep("_models", models)
        return models.mean(1)

    def weights(self, models: Tensor) -> tuple[Tensor, Rows]:
        """xi, [n, N, N]: rows that sum to 1, none of them negative; and lam/alpha_k, [n, 1]."""
        distances = attention.squared_distances(models)
        slope = attention.exp(-distances / self.sigma) / self.sigma  # A'
        slope = attention.only_others(slope)
        sums = slope.sum(2, keepdim=True)
        max_slope = sums.amax(1, keepdim=True)
        inverse_step = max_slope.clamp(min=1 / self.alpha)  # 1/alpha_k
        weights = attention.with_itself(slope / inverse_step)
        tie = self.lam * inverse_step[:, 0]
        return weights, tie

    def device(self, me: Nodes, u: Rows, tie: Rows) -> Rows:
        gradient = me.grad(self.batch)
        lr = self.lr / (1 + self.lr * (tie - self.lam * torch.full_like(tie, 1 / self.alpha)))
        theta = descend(u, gradient, prox=(tie, u), steps=self.steps, lr=lr)
        return me.keep("personal", theta)

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        tie = w.new_full((len(w), 1), self.lam / self.alpha)
        return self.device(me, w, tie)
