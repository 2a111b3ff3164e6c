"""FedMac: personal and global model are tied by correlation, and both may be sparse (Li, Liu, Zhang et al., 2021).

The paper's w, theta, S, R, |D|, lambda, gamma, gamma_w, eta, eta_p, beta, rho are `w`, `theta`, `sample`, `local_rounds`,
`batch`, `lam`, `gamma`, `gamma_w`, `lr`, `personal_lr`, `beta`, `rho`. `steps` is 1, as in its experiments; theta is carried from
one local round to the next, without which it would never be more than one step from w.
Defaults are for newcomers; the paper's settings are in covey/papers/fedmac.toml.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from covey.engine import smooth_l1
from covey.engine.descend import descend
from covey.kernel.advice import HALFWAY, Advice, Levers, Loss, Round, Statement, Step, Upper, Vector
from covey.kernel.algorithm import Algorithm, require
from covey.kernel.conditions import (
    Condition,
    at_most,
    descended,
    inner_step,
    outer_step,
    power,
    server_step,
    smooth_l1_cycle,
    theorem,
)
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
            w = descend(w, torch.zeros_like, prox=(self.lam, theta), l1=(gamma_w, rho), steps=1, lr=self.lr)
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

    def advice(self, loss: Loss) -> Iterator[Statement]:
        lr, lam, smooth = self.lr, self.lam, self.l1 == "smooth"
        curve = self.gamma / self.rho if smooth else 0.0
        total = self.steps * self.local_rounds
        names = ("personal_lr", "lam")
        yield from inner_step(self.personal_lr, 0.0, loss, steps=total, curve=curve, names=names)
        if smooth:
            yield from smooth_l1_cycle(self.personal_lr, 0.0, self.gamma, self.rho, L=loss.L, names=(*names, "gamma"))
            yield from smooth_l1_cycle(lr, lam, self.gamma_w, self.rho, names=("lr", "lam", "gamma_w"))
        yield from self._penalty_step()
        largest = lr * lam**2 / (lr * lam - 2) if lr * lam > 2 else math.inf
        why = "lam < L < lr lam^2/(lr lam - 2)"
        yield from outer_step(lr, lam, names=("lr", "lam"), largest=largest, why=why)
        moved = 1 - (1 - lr * lam) ** self.local_rounds
        yield from server_step(self.beta, moved, "1 - beta (1 - (1 - lr lam)^R)")
        yield Round(self._excess)
        yield from self._correlation(loss)

    def _penalty_step(self) -> Iterator[Advice]:
        if not self.gamma_w:
            return
        moved = self.lr * self.gamma_w
        text = f"lr*gamma_w = {self.lr:g}*{self.gamma_w:g} = {moved:g}: how far the penalty moves a weight of w_i in one step"
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
            theta = descended(theta, steps, (self.lam * (1 + w) - h) / h)
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
        curve = self.gamma_w / self.rho if self.l1 == "smooth" else 0.0
        smooth, strong = lam + curve, lam - lam**2 / mu
        bound = 1 / ((18 + 256 * smooth / strong) * smooth) / (self.beta * self.local_rounds)
        beta: Condition = (f"beta = {self.beta:g} >= 1", self.beta >= 1)
        numbers = {"largest lr": bound, "L_F": smooth, "mu_F": strong}
        conditions = [convex, at_most("lr", self.lr, bound), beta]
        return theorem("Theorem 1 of FedMac", conditions, numbers)

    def levers(self, L: float) -> Levers:
        w_i = Upper("lr", HALFWAY / self.lam, self.lam, "w_i moves lr*lam", "theta")
        return Levers(steps=(Step("personal_lr"),), uppers=(w_i,))
