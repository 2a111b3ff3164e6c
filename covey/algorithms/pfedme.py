"""pFedMe: each device keeps a model near the global one, which follows (Dinh, Tran, Nguyen, 2020).

The paper's w, theta, S, R, K, |D|, lambda, eta, eta_p (its public code's name), beta are `w`,
`theta`, `sample`, `local_rounds`, `steps`, `batch`, `lam`, `lr`, `personal_lr`, `beta`. nu of (8)
is `tol`. `gamma`, `rho` give FedMac's "modified pFedMe": gamma phi_rho(theta) is added to the inner
problem. `weight_decay` is the 0.001 theta that the public code adds and the paper does not have.
Defaults are for newcomers; the paper's settings are in covey/papers/pfedme.toml.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from covey.engine.descend import descend
from covey.fields import Count, NonNegative, Positive
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.maths.penalty import L1
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """R times: K steps of theta on f + lam/2 |theta - w_i|^2, w_i steps towards theta; w follows.

    theta takes its steps by `method`, or fewer once the norm of its gradient is at most `tol`. With
    `tol` 0 it takes all steps.
    """

    lam: Positive = 5.0
    sample: Sample = None
    local_rounds: Count = 20
    steps: Count = 5  # gradient steps of the personal model in each local round
    lr: Positive = 0.05  # step size of the local model w_i towards the personal one (eta)
    personal_lr: Positive = 0.03
    beta: Positive = 1.0
    batch: Count | None = 20
    weight: Weight = "uniform"
    weight_decay: NonNegative = 0.0  # factor of the weights themselves
    # in the personal model's gradient
    gamma: NonNegative = 0.0  # weight of an l1 penalty on the personal model; 0 is pFedMe itself
    rho: Positive = 6e-5
    tol: NonNegative = 0.0
    method: Literal["gradient", "nesterov"] = "gradient"

    sends: ClassVar[str] = "its local model w_i, never the personal one"

    def server(self, me: Nodes, w: Rows) -> Rows:
        w_i, samples = me.ask(self.device, w, sample=self.sample)
        return torch.lerp(w, w_i.mean(weight=samples), self.beta)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        theta = w
        for _ in range(self.local_rounds):
            gradient = me.grad(me.batch(self.batch))
            theta = descend(  # (7)
                theta,
                gradient,
                prox=(self.lam, w),
                l1=self.l1.term(),
                decay=self.weight_decay,
                steps=self.steps,
                lr=self.personal_lr,
                tol=self.tol or None,
                method=self.method,
            )
            w = torch.lerp(w, theta, self.lr * self.lam)  # w - eta lambda (w - theta), by (6)
        me.keep("personal", theta)
        return me.keep("local", w), me.weight(self.weight)

    @property
    def l1(self) -> L1:
        """The penalty of the modified pFedMe."""
        return L1(self.gamma, self.rho, lr=self.personal_lr, lam=self.lam)

    def cut(self, tier: str, round: int = 0) -> float | None:
        return self.l1.cut()
