"""sFedHP: sparse personalized learning on a tree, with a personal model, an edge model and a global one (Liu et al., 2023).

The paper's w, phi_i, theta_ij, S, R, K, |D|, lambda1, lambda2, gamma1, gamma2, eta1 (of w_i), eta2 (of theta), beta, rho are
`w`, `phi`, `theta`, `sample`, `edge_rounds`, `steps`, `batch`, `lam1`, `lam2`, `gamma1`, `gamma2`, `lr1`, `lr2`, `beta`, `rho`.
Defaults are for newcomers; the paper's settings are in covey/papers/sfedhp.toml.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from covey.engine import smooth_l1
from covey.engine.descend import NO_DATA, descend
from covey.kernel.algorithm import Algorithm, require
from covey.kernel.nodes import Nodes
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class SFedHP(Algorithm):
    """theta descends f + gamma1 phi_rho + lam1/2 |theta - phi|^2; phi is (10); w_i follows (11).

    `l1="prox"` replaces the smooth l1 by soft thresholds, which reach zero. `floor`: a device whose share of non-zeros is
    below it trains with `gamma_low`; `gamma2` is off from round `gamma2_until` on, and `cut_after` says whether w and phi are
    still cut when they travel then. "keep" holds the sparsity that gamma2 has made; "off" lets it go.
    """

    lam1: float = 1.0
    lam2: float = 1.0
    gamma1: float = 0.0
    gamma2: float = 0.0
    rho: float = 6e-5
    sample: Sample = None
    device_sample: Sample = None
    edge_rounds: int = 20
    steps: int = 5
    lr1: float = 0.4
    lr2: float = 0.03
    beta: float = 1.0
    batch: int | None = 20
    l1: Literal["smooth", "prox"] = "smooth"
    floor: float | None = None
    gamma_low: float = 0.0
    gamma2_until: int | None = 100
    cut_after: Literal["keep", "off"] = "keep"

    sends: ClassVar[str] = "its personal model, cut to zeros, to its edge only"

    def __post_init__(self) -> None:
        require(self, lam1=None, lam2=None, lr1=None, lr2=None, beta=None, rho=None, floor=(0, 1))
        require(self, gamma1=(0, 1e9), gamma2=(0, 1e9), gamma_low=(0, 1e9), gamma2_until=(0, 1e9))
        require(self, edge_rounds=(1, 1e9), steps=(1, 1e9), batch=(1, 1e9))

    def server(self, me: Nodes, w: Rows) -> Rows:
        edges = me.ask(self.edge, w, sample=self.sample)
        return torch.lerp(w, edges.mean(), self.beta)

    def edge(self, me: Nodes, w: Rows) -> Rows:
        phi = w
        gamma2 = self.upper(me.round)
        for _ in range(self.edge_rounds):
            theta = me.ask(self.device, phi, sample=self.device_sample).mean()
            phi = torch.lerp(w, theta, self.lam1 / (self.lam1 + self.lam2))  # the mean of both, weighted by lam2 and lam1
            w = descend(w, NO_DATA, prox=(self.lam2, phi), l1=(gamma2, self.width), steps=1, lr=self.lr1)
        me.keep("edge", phi)
        return me.keep("edge_global", w)

    def device(self, me: Nodes, phi: Rows) -> Rows:
        start = me.recall("personal", default=phi, since=me.round)  # warm within a round
        theta = descend(start, me.grad(me.batch(self.batch)), prox=(self.lam1, phi), l1=(self.sparsity(me, phi), self.width),
                        steps=self.steps, lr=self.lr2)  # fmt: skip
        return me.keep("personal", theta)

    def above(self) -> str:
        return "edge"

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        for _ in range(self.edge_rounds):
            theta = self.device(me, w)
        return theta

    def sparsity(self, me: Nodes, phi: Rows) -> float | Rows:
        """gamma1 of each device, decided at its first step of a round: low while its last personal model is below the floor."""
        if self.floor is None:
            return self.gamma1
        last, cut = me.recall("personal", default=phi), self.cut("device")
        now = smooth_l1.floored(self.gamma1, last, threshold=cut, floor=self.floor, low=self.gamma_low)
        return me.keep("_gamma1", me.recall("_gamma1", default=now, since=me.round))

    def upper(self, round: int) -> float:
        """gamma2, which ends with its rounds."""
        return 0.0 if self.gamma2_until is not None and round >= self.gamma2_until else self.gamma2

    @property
    def width(self) -> float:
        """The rho of `descend`, where 0 means a soft threshold."""
        return self.rho if self.l1 == "smooth" else 0.0

    def cut(self, tier: str, round: int = 0) -> float | None:
        if tier == "device":
            return smooth_l1.threshold(rho=self.rho, lr=self.lr2, gamma=self.gamma1, lam=self.lam1)
        if self.cut_after == "off" and self.upper(round) == 0:
            return None
        lam = self.lam1 * self.lam2 / (self.lam1 + self.lam2)
        return smooth_l1.threshold(rho=self.rho, lr=self.lr1, gamma=self.gamma2, lam=lam)
