"""HeurFedAMP: FedAMP with a softmax of cosines as weights (Huang et al., 2021).

The paper's w_i, u_i, xi_ii, sigma, lambda/alpha_k are `theta`, `u`, `self_weight`, `sigma`, `lam`.
Defaults are those of FedMac's comparison, but for lam, which is 5 there.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from covey.engine.descend import descend
from covey.fields import Count, NonNegative, Positive, Share
from covey.kernel.advice import Levers, Loss, Statement, Step, Tie
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import prox_steps
from covey.kernel.nodes import Nodes
from covey.maths import attention
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class HeurFedAMP(Algorithm):
    """u_i = xi_ii w_i + (1 - xi_ii) sum_j softmax_j(sigma cos(w_i, w_j)) w_j.

    From u_i, a device takes `steps` steps on f_i + lam/2 |w_i - u_i|^2. The server holds the last
    model of every device, the initial one where a device has sent none. The global model, which no
    device uses, is their mean.
    """

    self_weight: Share = 0.5  # weight of a device's own model in the mean that it is sent
    sigma: NonNegative = 50.0  # how much similar models weigh: factor of the cosine in a softmax
    lam: NonNegative = 1.0  # pull of a device towards the mean that it is sent (lambda)
    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.02
    batch: Count | None = 20

    sends: ClassVar[str] = "its personal model; the server holds everybody's"

    def server(self, me: Nodes, w: Rows) -> Rows:
        initial = w[:, None].repeat(1, me.max_children, 1)
        models: Tensor = me.recall("_models", default=initial)
        weights = self.weights(models)
        u = attention.mixed(weights, models).flatten(0, 1)
        theta = me.ask(self.device, each=(u,), sample=self.sample)
        models = theta.gather().into(models)
        me.keep("_models", models)
        return models.mean(1)

    def weights(self, models: Tensor) -> Tensor:
        """xi, [n, N, N]: rows that sum to 1, none of them negative."""
        cosines = self.sigma * attention.cosines(models)
        cosines = attention.only_others(cosines, -math.inf)
        similarity = cosines.softmax(2)
        similarity = similarity.nan_to_num(0)  # a single device has no others to weigh
        return attention.with_itself((1 - self.self_weight) * similarity)

    def device(self, me: Nodes, u: Rows) -> Rows:
        theta = descend(
            u,
            me.grad(self.batch),
            prox=(self.lam, u),
            steps=self.steps,
            lr=self.lr,
        )
        return me.keep("personal", theta)

    def advice(self, loss: Loss) -> Iterator[Statement]:
        return prox_steps(self.lr, self.lam, loss, steps=self.steps)

    def levers(self, L: float) -> Levers:
        step = Step("lr", self.lam, "lam")
        return Levers(steps=(step,), penalties=(Tie("lam"),))
