"""sFedHP: a sparse personal, edge and global model, each tied to the one above (Liu et al., 2023).

The paper's w, phi_i, theta_ij, S, R, K, |D| are `w`, `phi`, `theta`, `sample`, `edge_rounds`,
`steps`, `batch`. Its lambda1, lambda2, gamma1, gamma2, rho, eta1 (of w_i), eta2 (of theta), beta
are `lam1`, `lam2`, `gamma1`, `gamma2`, `rho`, `lr1`, `lr2`, `beta`. nu of (9) is `tol` squared.
Defaults are for newcomers; the paper's settings are in covey/papers/sfedhp.toml.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from covey.engine.descend import NO_DATA, descend
from covey.fields import Count, NonNegative, Positive, Share, Whole
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.maths.penalty import L1
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class SFedHP(Algorithm):
    """theta descends f + gamma1 phi_rho + lam1/2 |theta - phi|^2; phi is (10); w_i follows (11).

    `l1="prox"` replaces the smooth l1 by soft thresholds, which reach zero. A device whose share of
    non-zeros is below `floor` trains with `gamma_low`. `gamma2` is off from round `gamma2_until`
    on. `cut_after` says whether w and phi are still cut then when they travel: "keep" holds the
    sparsity that gamma2 has made, "off" lets it go. theta takes `steps` steps by `method`, or fewer
    once the norm of its gradient is at most `tol`. With `tol` 0 it takes all steps.

    `tie` says which phi a device is tied to. "edge" is phi_i, the mean of its edge, as in Algorithm
    1. "own" is its own phi_ij, as in (3), (5) and (8), which stays on the device; its edge sends it
    w_i. They are the same with one device per edge.
    """

    lam1: Positive = 1.0  # pull of a device's model towards its edge's (lambda1)
    lam2: Positive = 1.0  # pull of an edge's model towards the global one (lambda2)
    gamma1: NonNegative = 0.0  # weight of the l1 penalty on the personal model
    gamma2: NonNegative = 0.0  # weight of the l1 penalty on the edges' and global model
    rho: Positive = 6e-5
    sample: Sample = None
    device_sample: Sample = None
    edge_rounds: Count = 20
    steps: Count = 5  # gradient steps of the personal model in each edge round
    lr1: Positive = 0.4  # step size of an edge's copy of the global model (eta1)
    lr2: Positive = 0.03  # step size of the personal model (eta2)
    beta: Positive = 1.0
    batch: Count | None = 20
    l1: Literal["smooth", "prox"] = "smooth"
    floor: Share | None = None
    gamma_low: NonNegative = 0.0
    gamma2_until: Whole | None = 100  # the round from which gamma2 is off; "none": never
    cut_after: Literal["keep", "off"] = "keep"
    tol: NonNegative = 0.0
    method: Literal["gradient", "nesterov"] = "gradient"
    tie: Literal["edge", "own"] = "edge"  # what a device is tied to: phi_i, or phi_ij

    sends: ClassVar[str] = "its personal model, cut to zeros, to its edge only"

    def server(self, me: Nodes, w: Rows) -> Rows:
        w_i = me.ask(self.edge, w, sample=self.sample)
        return torch.lerp(w, w_i.mean(), self.beta)

    def edge(self, me: Nodes, w: Rows) -> Rows:
        phi = w
        share = self.lam1 / (self.lam1 + self.lam2)
        l1 = self.l1_of_w.term(me.round)
        for _ in range(self.edge_rounds):
            if self.tie == "own":
                theta = me.ask(self.own_device, w, sample=self.device_sample)
            else:
                theta = me.ask(self.device, phi, sample=self.device_sample)
            phi = torch.lerp(w, theta.mean(), share)  # (10)
            w = descend(w, NO_DATA, prox=(self.lam2, phi), l1=l1, steps=1, lr=self.lr1)  # (11)
        me.keep("edge", phi)
        return me.keep("edge_global", w)

    def device(self, me: Nodes, phi: Rows) -> Rows:
        theta = me.recall("personal", default=phi, since=me.round)  # warm within a round
        gradient = me.grad(me.batch(self.batch))  # (7)
        l1 = self.l1_of_theta.term_of(me, phi, kept="_gamma1")
        theta = descend(  # (8)
            theta,
            gradient,
            prox=(self.lam1, phi),
            l1=l1,
            steps=self.steps,
            lr=self.lr2,
            tol=self.tol or None,
            method=self.method,
        )
        return me.keep("personal", theta)

    def own_device(self, me: Nodes, w: Rows) -> Rows:
        """As `device`, tied to the phi_ij of (8); `w` is the edge's w_i."""
        phi = me.recall("_phi", default=w, since=me.round)
        theta = self.device(me, phi)
        share = self.lam1 / (self.lam1 + self.lam2)
        me.keep("_phi", torch.lerp(w, theta, share))  # (10)
        return theta

    @property
    def l1_of_theta(self) -> L1:
        """The penalty of a device's personal model."""
        return L1(
            self.gamma1,
            self.rho,
            lr=self.lr2,
            lam=self.lam1,
            kind=self.l1,
            floor=self.floor,
            low=self.gamma_low,
        )

    @property
    def l1_of_w(self) -> L1:
        """The penalty of an edge's w_i, whose ties have the curvature lam by (10) and (11)."""
        lam = self.lam1 * self.lam2 / (self.lam1 + self.lam2)
        return L1(
            self.gamma2,
            self.rho,
            lr=self.lr1,
            lam=lam,
            kind=self.l1,
            until=self.gamma2_until,
            cut_after=self.cut_after,
        )

    def cut(self, tier: str, round: int = 0) -> float | None:
        if tier == "device":
            return self.l1_of_theta.cut(round)
        return self.l1_of_w.cut(round)

    def above(self) -> str:
        return "edge_global" if self.tie == "own" else "edge"

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        program = self.own_device if self.tie == "own" else self.device
        for _ in range(self.edge_rounds):
            theta = program(me, w)
        return theta
