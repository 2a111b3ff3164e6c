"""pFedMe: each device keeps a model near the global one, which follows (Dinh, Tran, Nguyen, 2020).

The paper's w, theta, S, R, K, |D|, lambda, eta, eta_p (its public code's name), beta are `w`,
`theta`, `sample`, `local_rounds`, `steps`, `batch`, `lam`, `lr`, `personal_lr`, `beta`. nu of (8)
is `tol`. `gamma`, `rho` give FedMac's "modified pFedMe": gamma phi_rho(theta) is added to the inner
problem. `weight_decay` is the 0.001 theta that the public code adds and the paper does not have.
Defaults are for newcomers; the paper's settings are in covey/papers/pfedme.toml.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from covey.engine.descend import descend
from covey.kernel.advice import (
    HALFWAY,
    Levers,
    Loss,
    RoundFactor,
    Statement,
    Step,
    Tie,
    Upper,
    Vector,
    envelope,
)
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import (
    at_least_of,
    at_most,
    descended,
    envelope_bound,
    inner_step,
    momentum_step,
    outer_step,
    power,
    server_step,
    smooth_l1_cycle,
    theorem,
)
from covey.kernel.fields import Count, NonNegative, Positive
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

    def advice(self, loss: Loss) -> Iterator[Statement]:
        lam = self.lam + self.weight_decay
        personal = ("personal_lr", "lam")
        total = self.steps * self.local_rounds
        curve = self.gamma / self.rho
        yield from inner_step(
            self.personal_lr,
            lam,
            loss,
            steps=self.steps,
            total=total,
            curve=curve,
            names=personal,
        )
        if self.method == "nesterov":
            yield from momentum_step(self.personal_lr, lam, loss, names=personal)
        names = (*personal, "gamma")
        yield from smooth_l1_cycle(
            self.personal_lr,
            lam,
            self.gamma,
            self.rho,
            L=loss.L,
            names=names,
        )
        largest = envelope_bound(self.lr * self.lam, self.lam)
        yield from outer_step(
            self.lr,
            self.lam,
            names=("lr", "lam"),
            largest=largest,
            why="L < 2 lam/(lr lam - 2)",
        )
        moved = 1 - (1 - self.lr * self.lam) ** self.local_rounds
        yield from server_step(self.beta, moved, "1 - beta (1 - (1 - lr lam)^R)")
        if self.method == "gradient" and not self.tol:  # else steps differ in number or in law
            yield RoundFactor(self._excess)
        yield from self._theorems(loss)

    def _excess(self, h: Vector) -> Vector:
        decay = self.weight_decay
        w = theta = np.zeros_like(h)
        steps = power(self.personal_lr, self.lam + decay, h, self.steps)
        curvature = h + self.lam + decay
        for _ in range(self.local_rounds):
            minimiser = (self.lam * w - h - decay) / curvature
            theta = descended(theta, steps, minimiser)
            w = w - self.lr * self.lam * (w - theta)
        return self.beta * w

    def _theorems(self, loss: Loss) -> Iterator[Statement]:
        lam = self.lam
        scale = self.beta * self.local_rounds
        beta = (f"beta = {self.beta:g} >= 1", self.beta >= 1)
        if loss.mu:
            kappa = (lam + loss.mu) / loss.mu  # L_F = lam over mu_F = lam mu / (lam + mu)
            slow = 3 + 128 * kappa / self.beta
            largest = 1 / (6 * lam * slow)  # eta_hat_1
            bound = largest / scale
            fewest = 2 * kappa / (largest * lam)  # mu_F = lam / kappa_F
            conditions = [at_most("lr", self.lr, bound), beta]
            if loss.rounds is not None:
                shown = f"rounds T = {loss.rounds}"
                conditions += [at_least_of(shown, loss.rounds, "2/(eta_1 mu_F)", fewest)]
            numbers = {"largest lr": bound, "kappa_F": kappa, "fewest T": fewest}
            yield theorem("Theorem 1 of pFedMe", conditions, numbers)
        bound = 1 / (75 * lam**3) / scale
        numbers = {"largest lr": bound}
        min_lam = None
        if loss.L is not None:
            smooth = loss.L + self.gamma / self.rho
            min_lam = math.sqrt(8 * smooth**2 + 1)
            numbers["least lam"] = min_lam
        wide = at_least_of(f"lam = {lam:g}", lam, "sqrt(8 L^2 + 1)", min_lam)
        conditions = [at_most("lr", self.lr, bound), wide, beta]
        yield theorem("Theorem 2 of pFedMe", conditions, numbers)

    def levers(self, L: float) -> Levers:
        steepest = max(envelope(self.lam, L), self.lam)
        best = HALFWAY / steepest
        theta = Step("personal_lr", self.lam + self.weight_decay, "lam")
        w_i = Upper("lr", best, self.lam, "w_i moves lr*lam", "theta")
        lam = Tie("lam")
        return Levers(steps=(theta,), uppers=(w_i,), penalties=(lam,))
