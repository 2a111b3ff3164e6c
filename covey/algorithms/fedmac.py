"""FedMac: personal and global model are tied by correlation, and both may be sparse (Li, Liu, Zhang et al., 2021).

The paper's w, theta, S, R, |D|, lambda, gamma, gamma_w, eta, eta_p, beta, rho are `w`, `theta`, `sample`, `local_rounds`,
`batch`, `lam`, `gamma`, `gamma_w`, `lr`, `personal_lr`, `beta`, `rho`. `steps` is 1, as in its experiments; theta is carried from
one local round to the next, without which it would never be more than one step from w.
Defaults are for newcomers; the paper's settings are in covey/papers/fedmac.toml.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from covey.engine import smooth_l1
from covey.engine.descend import NO_DATA, descend
from covey.kernel.algorithm import Algorithm, require
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Exact
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class FedMac(Algorithm):
    """theta descends f + gamma phi_rho - lam <theta, w_i>; w_i steps on lam (w_i - theta) + gamma_w tanh(w_i / rho); w follows.

    `l1="prox"` replaces the smooth l1 by soft thresholds, which reach zero. `floor`: a device whose share of non-zeros is
    below it trains with `gamma_low`; `gamma_w` is off from round `gamma_w_until` on, and `cut_after` says whether its larger
    cut stays ("keep") or goes with it ("off").
    """

    lam: float = 1e-4
    gamma: float = 0.0
    gamma_w: float = 0.0
    rho: float = 6e-5
    sample: Sample = None
    local_rounds: int = 20
    steps: int = 1
    lr: float = 3000.0
    personal_lr: float = 0.05
    beta: float = 1.0
    batch: int | None = 20
    weight: Weight = "uniform"
    l1: Literal["smooth", "prox"] = "smooth"
    floor: float | None = None
    gamma_low: float = 0.0
    gamma_w_until: int | None = 100
    cut_after: Literal["keep", "off"] = "keep"

    sends: ClassVar[str] = "its local model w_i, cut to zeros, never the personal one"

    def __post_init__(self) -> None:
        require(self, lam=None, lr=None, personal_lr=None, beta=None, rho=None, floor=(0, 1))
        require(self, gamma=(0, 1e9), gamma_w=(0, 1e9), gamma_low=(0, 1e9), gamma_w_until=(0, 1e9))
        require(self, local_rounds=(1, 1e9), steps=(1, 1e9), batch=(1, 1e9))

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return torch.lerp(w, devices.mean(weight=samples), self.beta)

    def device(self, me: Nodes, w: Rows) -> tuple[Rows, Exact | None]:
        gamma, gamma_w, theta = self.sparsity(me, w), self.upper(me.round), w
        rho = self.rho if self.l1 == "smooth" else 0.0
        for _ in range(self.local_rounds):
            theta = descend(theta, me.grad(me.batch(self.batch)), linear=-self.lam * w, l1=(gamma, rho),
                            steps=self.steps, lr=self.personal_lr)  # fmt: skip
            w = descend(w, NO_DATA, prox=(self.lam, theta), l1=(gamma_w, rho), steps=1, lr=self.lr)
        me.keep("personal", theta)
        return me.keep("local", w), me.weight(self.weight)

    def sparsity(self, me: Nodes, w: Rows) -> float | Rows:
        """gamma of each device this round: low while its last personal model is below the floor."""
        if self.floor is None:
            return self.gamma
        last, cut = me.recall("personal", default=w), self.threshold()
        return smooth_l1.floored(self.gamma, last, threshold=cut, floor=self.floor, low=self.gamma_low)

    def upper(self, round: int) -> float:
        return 0.0 if self.gamma_w_until is not None and round >= self.gamma_w_until else self.gamma_w

    def threshold(self) -> float | None:
        return smooth_l1.threshold(rho=self.rho, lr=self.personal_lr, gamma=self.gamma)

    def cut(self, tier: str, round: int = 0) -> float | None:
        """What travels is w_i: its own threshold, or that of the thetas it averages where it has no penalty itself."""
        if self.cut_after == "off" and self.gamma_w and self.upper(round) == 0:
            return self.threshold()
        own = smooth_l1.threshold(rho=self.rho, lr=self.lr, gamma=self.gamma_w, lam=self.lam)
        return own if own is not None else self.threshold()

    def zero(self, tier: str, model: str) -> float | None:
        return self.threshold() if model == "personal" else self.cut(tier)
