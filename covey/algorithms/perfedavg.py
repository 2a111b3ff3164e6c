"""Per-FedAvg: a global model that one gradient step personalizes (Fallah et al., 2020).

The paper's alpha, beta, tau, delta are `alpha`, `lr`, `steps`, `delta`. Its D, D', D'' are three
batches of a device's training examples, drawn anew at every step. A device's personal model is w
after one step of size alpha on another training batch.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from covey.engine.descend import descend
from covey.engine.solvers.alternate import Move, alternate
from covey.fields import Count, NonNegative, Positive
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Weighted
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """FedAvg on f(x - alpha grad f(x)), whose gradient is (I - alpha H(x)) g.

    g is grad f(x - alpha grad f(x)). `order="first"` leaves out H; "hessian-free" needs the product
    H g, not H. `hessian="exact"` computes it by autograd, at the cost of two gradients.
    `hessian="difference"` is the paper's: the difference of the gradients at x + delta g and
    x - delta g. With ReLUs it is far off unless delta is tiny, because units switch between the two
    points. A model that autograd cannot differentiate twice gets the difference, and the run's
    notes and engine say so.
    """

    alpha: NonNegative = 0.03  # size of the one step that makes a personal model
    sample: Sample = None
    steps: Count = 20
    lr: Positive = 0.05  # step size of the meta model
    order: Literal["first", "hessian-free"] = "first"  # whether second derivatives are left out
    hessian: Literal["exact", "difference"] = "exact"  # how products with the Hessian are computed
    delta: Positive = 1e-3  # distance of the two gradients of a difference
    batch: Count | None = 20
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its model after the local steps, never the personal one"
    plain_steps: ClassVar[str | None] = "its gradient is taken after a plain step of size alpha"

    @property
    def hessians(self) -> bool:
        return self.order == "hessian-free" and self.hessian == "exact"

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices, samples = me.ask(self.device, w, sample=self.sample)
        return devices.mean(weight=samples)

    def device(self, me: Nodes, w: Rows) -> Weighted:
        self.adapt(me, w)
        inner = me.grad(self.batch, "inner")
        outer = me.grad(self.batch)

        def meta(x: Rows) -> Rows:
            adapted = descend(x, inner, steps=1, lr=self.alpha)
            g = outer(adapted)
            return g - self.alpha * self.curved(me, x, g)

        if self.order == "hessian-free":
            x = descend(w, meta, steps=self.steps, lr=self.lr)
        else:
            x = alternate(
                {"x": w, "adapted": w},
                Move("adapted", inner, start="x", lr=self.alpha),
                Move("x", outer, at="adapted", lr=self.lr),
                times=self.steps,
            )["x"]
        return x, me.weight(self.weight)

    def curved(self, me: Nodes, x: Rows, g: Rows) -> Rows:
        """H(x) g on one batch."""
        gradient = me.grad(me.batch(self.batch, "curvature"), same_draw=True)
        if self.hessian == "exact" and me.has_hessian:
            return gradient.hessian_product(x, g)
        ahead = gradient(x + self.delta * g)
        behind = gradient(x - self.delta * g)
        return (ahead - behind) / (2 * self.delta)

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        gradient = me.grad(self.batch, "personal")
        theta = descend(w, gradient, steps=1, lr=self.alpha)
        return me.keep("personal", theta)
