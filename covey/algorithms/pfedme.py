"""pFedMe: each device keeps a model near the global one, and the global one follows (Dinh, Tran, Nguyen, 2020).

The paper's w, theta, S, R, K, |D|, lambda, eta, eta_p (its public code's name), beta are `w`, `theta`, `sample`, `local_rounds`,
`steps`, `batch`, `lam`, `lr`, `personal_lr`, `beta`. `gamma`, `rho` give FedMac's "modified pFedMe": gamma phi_rho(theta) is
added to the inner problem. `weight_decay` is the 0.001 theta that the public code adds and the paper does not have.
Defaults are for newcomers; the paper's settings are in covey/papers/pfedme.toml.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from covey.engine import smooth_l1
from covey.engine.descend import descend
from covey.kernel.advice import HALFWAY, Levers, Loss, Round, Statement, Step, Tie, Upper, Vector, envelope
from covey.kernel.algorithm import Algorithm, require
from covey.kernel.conditions import (
    at_least_of,
    at_most,
    descended,
    envelope_bound,
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
class PFedMe(Algorithm):
    """R times: K steps of theta on f + lam/2 |theta - w_i|^2, then w_i steps towards theta; w follows the mean w_i."""

    lam: float = 5.0
    sample: Sample = None
    local_rounds: int = 20
    steps: int = 5
    lr: float = 0.05
    personal_lr: float = 0.03
    beta: float = 1.0
    batch: int | None = 20
    weight: Weight = "uniform"
    weight_decay: float = 0.0
    gamma: float = 0.0
    rho: float = 6e-5

    sends: ClassVar[str] = "its local model w_i, never the personal one"

    def __post_init__(self) -> None:
        require(self, lam=None, lr=None, personal_lr=None, beta=None, rho=None, gamma=(0, 1e9), weight_decay=(0, 1e9))
        require(self, local_rounds=(1, 1e9), steps=(1, 1e9), batch=(1, 1e9))

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

    def advice(self, loss: Loss) -> Iterator[Statement]:
        lam = self.lam + self.weight_decay
        personal = ("personal_lr", "lam")
        total = self.steps * self.local_rounds
        curve = self.gamma / self.rho
        yield from inner_step(self.personal_lr, lam, loss, steps=self.steps, total=total, curve=curve, names=personal)
        names = (*personal, "gamma")
        yield from smooth_l1_cycle(self.personal_lr, lam, self.gamma, self.rho, L=loss.L, names=names)
        largest = envelope_bound(self.lr * self.lam, self.lam)
        why = "L < 2 lam/(lr lam - 2)"
        yield from outer_step(self.lr, self.lam, names=("lr", "lam"), largest=largest, why=why)
        moved = 1 - (1 - self.lr * self.lam) ** self.local_rounds
        yield from server_step(self.beta, moved, "1 - beta (1 - (1 - lr lam)^R)")
        yield Round(self._excess)
        yield from self._theorems(loss)

    def _excess(self, h: Vector) -> Vector:
        decay = self.weight_decay
        w = theta = np.zeros_like(h)
        steps = power(self.personal_lr, self.lam + decay, h, self.steps)
        for _ in range(self.local_rounds):
            theta = descended(theta, steps, (self.lam * w - h - decay) / (h + self.lam + decay))
            w = w - self.lr * self.lam * (w - theta)
        return self.beta * w

    def _theorems(self, loss: Loss) -> Iterator[Statement]:
        lam, scale = self.lam, self.beta * self.local_rounds
        beta = (f"beta = {self.beta:g} >= 1", self.beta >= 1)
        if loss.mu:
            kappa = (lam + loss.mu) / loss.mu  # L_F = lam over mu_F = lam mu / (lam + mu)
            bound = 1 / (6 * lam * (3 + 128 * kappa / self.beta)) / scale
            conditions = [at_most("lr", self.lr, bound), beta]
            numbers = {"largest lr": bound, "kappa_F": kappa}
            yield theorem("Theorem 1 of pFedMe", conditions, numbers)
        bound = 1 / (75 * lam**3) / scale
        numbers = {"largest lr": bound}
        least = None
        if loss.L is not None:
            least = math.sqrt(8 * (loss.L + self.gamma / self.rho) ** 2 + 1)
            numbers["least lam"] = least
        wide = at_least_of(f"lam = {lam:g}", lam, "sqrt(8 L^2 + 1)", least)
        yield theorem("Theorem 2 of pFedMe", [at_most("lr", self.lr, bound), wide, beta], numbers)

    def levers(self, L: float) -> Levers:
        best = HALFWAY * min(1 / envelope(self.lam, L), 1 / self.lam)
        return Levers(
            steps=(Step("personal_lr", self.lam + self.weight_decay, "lam"),),
            uppers=(Upper("lr", best, self.lam, "w_i moves lr*lam", "theta"),),
            penalties=(Tie("lam"),),
        )
