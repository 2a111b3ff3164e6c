"""FedMac: a personal and a global model, tied by correlation, both sparse (Li, Liu et al., 2021).

The paper's w, theta, S, R, |D| are `w`, `theta`, `sample`, `local_rounds`, `batch`. Its lambda,
gamma, gamma_w, rho, eta, eta_p, beta are `lam`, `gamma`, `gamma_w`, `rho`, `lr`, `personal_lr`,
`beta`. Its nu is `tol` squared. `steps` is 1, as in its experiments. theta is carried from one
local round to the next; else it would never be more than one step from w.
Defaults are for newcomers; the paper's settings are in covey/papers/fedmac.toml.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from covey.engine.descend import NO_DATA
from covey.engine.solvers.alternate import Move, alternate
from covey.fields import Count, NonNegative, Positive, Share, Whole
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.maths.penalty import L1
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class FedMac(Algorithm):
    """theta descends f + gamma phi_rho - lam <theta, w_i>; w_i steps by (6); w follows their mean.

    `l1="prox"` replaces the smooth l1 by soft thresholds, which reach zero. A device whose share of
    non-zeros is below `floor` trains with `gamma_low`. `gamma_w` is off from round `gamma_w_until`
    on. `cut_after` says whether its larger cut stays then ("keep") or ends with it ("off"). theta
    takes `steps` steps by `method`, or fewer once the norm of its gradient is at most `tol`. With
    `tol` 0 it takes all steps.
    """

    lam: Positive = 1e-4  # weight of the correlation between personal and local model (lambda)
    gamma: NonNegative = 0.0  # weight of the l1 penalty on the personal model
    gamma_w: NonNegative = 0.0  # weight of the l1 penalty on the local and global model
    rho: Positive = 6e-5
    sample: Sample = None
    local_rounds: Count = 20
    steps: Count = 1  # gradient steps of the personal model in each local round
    lr: Positive = 3000.0  # step size of the local model w_i, relative to lam (eta)
    personal_lr: Positive = 0.05
    beta: Positive = 1.0
    batch: Count | None = 20
    weight: Weight = "uniform"
    l1: Literal["smooth", "prox"] = "smooth"
    floor: Share | None = None
    gamma_low: NonNegative = 0.0
    gamma_w_until: Whole | None = 100  # the round from which gamma_w is off; "none": never
    cut_after: Literal["keep", "off"] = "keep"
    tol: NonNegative = 0.0
    method: Literal["gradient", "nesterov"] = "gradient"

    sends: ClassVar[str] = "its local model w_i, cut to zeros, never the personal one"

    def server(self, me: Nodes, w: Rows) -> Rows:
        w_i, samples = me.ask(self.device, w, sample=self.sample)
        return torch.lerp(w, w_i.mean(weight=samples), self.beta)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        batches = me.batches(self.batch, self.local_rounds)
        rows = alternate(
            {"theta": w, "w": w},
            Move(  # (9)
                "theta",
                me.grad(batches),
                linear=(-self.lam, "w"),
                l1=self.l1_of_theta.term_of(me, w),
                steps=self.steps,
                lr=self.personal_lr,
                tol=self.tol or None,
                method=self.method,
            ),
            Move(  # (6)
                "w",
                NO_DATA,
                prox=(self.lam, "theta"),
                l1=self.l1_of_w.term(me.round),
                lr=self.lr,
            ),
            times=self.local_rounds,
        )
        me.keep("personal", rows["theta"])
        return me.keep("local", rows["w"]), me.weight(self.weight)

    @property
    def l1_of_theta(self) -> L1:
        """The penalty of a device's personal model; correlation adds no curvature."""
        return L1(
            self.gamma,
            self.rho,
            lr=self.personal_lr,
            kind=self.l1,
            floor=self.floor,
            low=self.gamma_low,
        )

    @property
    def l1_of_w(self) -> L1:
        """The penalty of a device's copy of the global model."""
        return L1(
            self.gamma_w,
            self.rho,
            lr=self.lr,
            lam=self.lam,
            kind=self.l1,
            until=self.gamma_w_until,
            cut_after=self.cut_after,
        )

    def cut(self, tier: str, round: int = 0) -> float | None:
        """w_i travels: its own cut, or that of the thetas it averages where it has none."""
        cut = self.l1_of_w.cut(round)
        if cut is None:
            return self.l1_of_theta.cut()
        return cut

    def zero(self, tier: str, model: str) -> float | None:
        if model == "personal":
            return self.l1_of_theta.cut()
        return self.cut(tier)
