"""pFedMe: each device keeps a model near the global one, and the global one follows (Dinh, Tran, Nguyen, 2020).

The paper's w, theta, S, R, K, |D|, lambda, eta, eta_p (its public code's name), beta are `w`, `theta`, `sample`, `local_rounds`,
`steps`, `batch`, `lam`, `lr`, `personal_lr`, `beta`. `gamma`, `rho` give FedMac's "modified pFedMe": gamma phi_rho(theta) is
added to the inner problem. `weight_decay` is the 0.001 theta that the public code adds and the paper does not have.
Defaults are for newcomers; the paper's settings are in covey/papers/pfedme.toml.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from covey.engine import smooth_l1
from covey.engine.descend import descend
from covey.kernel.algorithm import Algorithm
from covey.kernel.fields import Count, NonNegative, Positive
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Exact
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """R times: K steps of theta on f + lam/2 |theta - w_i|^2, then w_i steps towards theta; w follows the mean w_i."""

    lam: Positive = 5.0
    sample: Sample = None
    local_rounds: Count = 20
    steps: Count = 5
    lr: Positive = 0.05
    personal_lr: Positive = 0.03
    beta: Positive = 1.0
    batch: Count | None = 20
    weight: Weight = "uniform"
    weight_decay: NonNegative = 0.0
    gamma: NonNegative = 0.0
    rho: Positive = 6e-5

    sends: ClassVar[str] = "its local model w_i, never the personal one"

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return torch.lerp(w, devices.mean(weight=samples), self.beta)

    def device(self, me: Nodes, w: Rows) -> tuple[Rows, Exact | None]:
        theta = w
        for _ in range(self.local_rounds):
            theta = descend(theta, me.grad(me.batch(self.batch)), prox=(self.lam, w), l1=(self.gamma, self.rho),
                            decay=self.weight_decay, steps=self.steps, lr=self.personal_lr)  # fmt: skip
            w = torch.lerp(w, theta, self.lr * self.lam)  # w - eta lambda (w - theta)
        me.keep("personal", theta)
        return me.keep("local", w), me.weight(self.weight)

    def cut(self, tier: str, round: int = 0) -> float | None:
        return smooth_l1.threshold(rho=self.rho, lr=self.personal_lr, gamma=self.gamma, lam=self.lam)
