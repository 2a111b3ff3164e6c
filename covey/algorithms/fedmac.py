"""FedMac: a personal and a global model, tied by correlation, both sparse (Li, Liu et al., 2021).

The paper's w, theta, S, R, |D| are `w`, `theta`, `sample`, `local_rounds`, `batch`. Its lambda,
gamma, gamma_w, rho, eta, eta_p, beta are `lam`, `gamma`, `gamma_w`, `rho`, `lr`, `personal_lr`,
`beta`. Its nu is `tol` squared. `steps` is 1, as in its experiments. theta is carried from one
local round to the next; else it would never be more than one step from w.
Defaults are for newcomers; the paper's settings are in covey/papers/fedmac.toml.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from covey.engine.alternate import Move, alternate
from covey.engine.descend import NO_DATA
from covey.kernel.advice import (
    HALFWAY,
    Advice,
    Levers,
    Loss,
    RoundFactor,
    Statement,
    Step,
    Upper,
    Vector,
)
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import (
    Condition,
    at_most,
    descended,
    inner_step,
    momentum_step,
    outer_step,
    power,
    server_step,
    smooth_l1_cycle,
    theorem,
)
from covey.kernel.fields import Count, NonNegative, Positive, Share, Whole
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

    def advice(self, loss: Loss) -> Iterator[Statement]:
        yield from self._personal_steps(loss)
        if self.l1 == "smooth":
            yield from smooth_l1_cycle(
                self.lr,
                self.lam,
                self.gamma_w,
                self.rho,
                names=("lr", "lam", "gamma_w"),
            )
        yield from self._penalty_step()
        yield from self._outer_steps()
        if self.method == "gradient" and not self.tol:  # else steps differ in number or in law
            yield RoundFactor(self._excess)
        yield from self._correlation(loss)

    def _personal_steps(self, loss: Loss) -> Iterator[Advice]:
        """The steps of theta."""
        smooth = self.l1 == "smooth"
        curve = 0.0
        if smooth:
            curve = self.gamma / self.rho
        names = ("personal_lr", "lam")
        yield from inner_step(
            self.personal_lr,
            0.0,
            loss,
            steps=self.steps * self.local_rounds,
            curve=curve,
            names=names,
        )
        if self.method == "nesterov":
            yield from momentum_step(self.personal_lr, 0.0, loss, names=names)
        if smooth:
            yield from smooth_l1_cycle(
                self.personal_lr,
                0.0,
                self.gamma,
                self.rho,
                L=loss.L,
                names=(*names, "gamma"),
            )

    def _outer_steps(self) -> Iterator[Advice]:
        """The steps of w_i towards theta, and of the server towards their mean."""
        moved = self.lr * self.lam
        largest = math.inf
        if moved > 2:
            largest = self.lr * self.lam**2 / (moved - 2)
        yield from outer_step(
            self.lr,
            self.lam,
            names=("lr", "lam"),
            largest=largest,
            why="lam < L < lr lam^2/(lr lam - 2)",
        )
        moved_in_all = 1 - (1 - moved) ** self.local_rounds
        yield from server_step(self.beta, moved_in_all, "1 - beta (1 - (1 - lr lam)^R)")

    def _penalty_step(self) -> Iterator[Advice]:
        if not self.gamma_w:
            return
        moved = self.lr * self.gamma_w
        product = f"lr*gamma_w = {self.lr:g}*{self.gamma_w:g} = {moved:g}"
        text = f"{product}: how far the penalty moves a weight of w_i in one step"
        numbers = {"lr*gamma_w": moved}
        if moved > 0.1:  # weights of trained models are of this size
            far = "more than most weights of a model are large; lower gamma_w or lr"
            yield Advice("warning", "penalty step", f"{text}, {far}.", numbers)
        else:
            yield Advice("note", "penalty step", f"{text}.", numbers)

    def _excess(self, h: Vector) -> Vector:
        w = theta = np.zeros_like(h)
        steps = power(self.personal_lr, 0.0, h, self.steps)
        for _ in range(self.local_rounds):
            minimiser = (self.lam * (1 + w) - h) / h
            theta = descended(theta, steps, minimiser)
            w = w - self.lr * self.lam * (w - theta)
        return self.beta * w

    def _correlation(self, loss: Loss) -> Iterator[Statement]:
        """What -lam <theta, w> does to theta, and to the convexity of the whole."""
        pull = self.personal_lr * self.lam
        if pull * self.steps * self.local_rounds < 0.01:
            text = (
                f"the correlation adds personal_lr*lam*w = {pull:.2g}*w per step, so that theta is "
                f"nearly local SGD and what acts is lr*lam = {self.lr * self.lam:g}, an average of "
                "its path; raise lam, and lower lr, to tie theta to w."
            )
            numbers = {"personal_lr*lam": pull, "lr*lam": self.lr * self.lam}
            yield Advice("note", "correlation", text, numbers)
        if loss.mu is not None:
            yield self._theorem(loss.mu)

    def _theorem(self, mu: float) -> Advice:
        lam = self.lam
        needed = f"lam = {lam:g} < mu = {mu:g}, without which the problem is not convex"
        convex: Condition = (needed, lam < mu)
        if lam >= mu:
            return theorem("Theorem 1 of FedMac", [convex], {"lam": lam, "mu": mu})
        smooth = lam
        if self.l1 == "smooth":
            smooth = lam + self.gamma_w / self.rho
        strong = lam - lam**2 / mu
        scale = self.beta * self.local_rounds
        bound = 1 / ((18 + 256 * smooth / strong) * smooth) / scale
        beta: Condition = (f"beta = {self.beta:g} >= 1", self.beta >= 1)
        numbers = {"largest lr": bound, "L_F": smooth, "mu_F": strong}
        conditions = [convex, at_most("lr", self.lr, bound), beta]
        return theorem("Theorem 1 of FedMac", conditions, numbers)

    def levers(self, L: float) -> Levers:
        w_i = Upper("lr", HALFWAY / self.lam, self.lam, "w_i moves lr*lam", "theta")
        return Levers(steps=(Step("personal_lr"),), uppers=(w_i,))
