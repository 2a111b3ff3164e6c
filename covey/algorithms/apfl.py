"""APFL: devices learn how to mix an own model with the global one (Deng, Kamani, Mahdavi, 2020).

The paper's w_i, v_i, v-bar_i, alpha_i, eta, tau are `x`, `v`, "personal", `alpha`, `lr`, `steps`.
alpha_i moves once a round, by a step of size `alpha_lr` along <v - w, grad f(v-bar)>. With
`alpha_lr` 0 it keeps its initial value.

This is the paper's Algorithm 1. Its authors' code (FedTorch) differs from the paper:
- It mixes the outputs of the two models, not their weights. For linear models that is the same.
- Its v steps after w, at the mixture with the new w. Here v steps at the mixture with the old w.
- Its alpha moves after the first local step of a round. Here it moves before that step, at the w
  that was sent, so that alpha is the same in all steps of a round.
- Its slope of alpha is <v - w, alpha grad_v + (1 - alpha) grad_w> + 0.02 alpha, with the gradients
  of the mixture's loss by v and w. For a linear model that is (alpha^2 + (1 - alpha)^2) <v - w,
  grad f>, plus a decay that the paper does not have.
- Its alpha moves by `lr`, not by a step size of its own, and one batch serves w, v and alpha.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from covey.engine.solvers.alternate import Mix, Move, alternate
from covey.fields import Count, NonNegative, Positive, Share
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class APFL(Algorithm):
    """FedAvg's global model; v takes `steps` steps on f(alpha v + (1 - alpha) x).

    x is the device's model during FedAvg's local steps.
    """

    alpha: Share = 0.5  # share of a device's own model in the mixture, at the beginning
    alpha_lr: NonNegative = 0.02  # step size by which that share is learned; 0 keeps it
    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.02
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps, never its own part of the mixture"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr",)
    plain_steps: ClassVar[str | None] = "it steps along gradients at a mixture of two models"

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return devices.mean(weight=samples)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        v = me.recall("_own", default=w)
        alpha = self.share(me, w, v)
        mixture = Mix("x", "v", alpha)  # alpha v + (1 - alpha) x
        rows = alternate(
            {"x": w, "v": v},
            Move("v", me.grad(self.batch, "personal"), at=mixture, lr=self.lr * alpha),
            Move("x", me.grad(self.batch), lr=self.lr),
            times=self.steps,
        )
        me.keep("_own", rows["v"])
        me.keep("personal", mixture.value(rows))
        return rows["x"], me.weight(self.weight)

    def share(self, me: Nodes, w: Rows, v: Rows) -> Rows:
        """alpha of each device in this round, [n, 1]."""
        initial = w.new_full((len(w), 1), self.alpha)
        alpha = me.recall("_alpha", default=initial)
        if self.alpha_lr:
            gradient = me.grad(self.batch, "alpha")
            mixture = torch.lerp(w, v, alpha)
            slope = (v - w) * gradient(mixture)
            step = self.alpha_lr * slope.sum(1, keepdim=True)
            alpha = (alpha - step).clamp(0, 1)
        return me.keep("_alpha", alpha)
