"""FedSim: some layers are shared, the others stay on the device; both learn at once (Pillutla et
al., 2022).

The paper's u, v_i, tau, gamma_u, gamma_v are `u`, `v`, `steps`, `lr`, `personal_lr`. Which layers
are v is the experiment's `private`, by default the last one. Edges average what is under them
`edge_rounds` times, as in HierFAVG.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from covey.engine.descend import descend
from covey.kernel.advice import Loss, Statement
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import inner_step
from covey.kernel.fields import Count, Positive
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Exact
from covey.kernel.work import Work
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class FedSim(Algorithm):
    """A device's model is [u, v], with v its own: `steps` on both, each with its step size; u is
    averaged.

    `sample` says how many the server asks, `device_sample` how many an edge does. The private
    columns of the global row stay as they began; it is scored with each device's own.
    """

    sample: Sample = None
    device_sample: Sample = None
    edge_rounds: Count = 1
    steps: Count = 20
    lr: Positive = 0.01  # step size of the shared layers
    personal_lr: Positive = 0.01  # step size of the private layers
    batch: Count | None = 32
    weight: Weight = "uniform"

    sends: ClassVar[str] = "its shared layers after the local steps, never the private ones"
    splits: ClassVar[bool] = True
    any_depth: ClassVar[bool] = True

    def work(self, shared: int, private: int) -> Work:
        return Work(shared, private, steps=self.steps, personal_steps=self.steps, probe_steps=0)

    def above(self) -> str:
        return "edge"

    def server(self, me: Nodes, w: Rows) -> Rows:
        replies, samples = me.ask(self.below, w[:, me.shared], sample=self.sample)
        return torch.cat([replies.mean(weight=samples), w[:, me.private]], dim=1)

    def below(self, me: Nodes, u: Rows) -> tuple[Rows, Exact | None]:
        return self.device(me, u) if me.leaf else self.edge(me, u)

    def edge(self, me: Nodes, u: Rows) -> tuple[Rows, Exact | None]:
        for _ in range(self.edge_rounds):
            replies, samples = me.ask(self.below, u, sample=self.device_sample)
            u = replies.mean(weight=samples)
        me.keep(me.tier, torch.cat([u, me.initial()[:, me.private]], dim=1))
        return u, me.weight(self.weight)

    def device(self, me: Nodes, u: Rows) -> tuple[Rows, Exact | None]:
        v = me.recall("personal", default=me.initial())[:, me.private]
        x = descend(
            torch.cat([u, v], dim=1),
            me.grad(self.batch),
            steps=self.steps,
            lr=me.by_part(self.lr, self.personal_lr),
        )
        return me.keep("personal", x)[:, me.shared], me.weight(self.weight)

    def advice(self, loss: Loss) -> Iterator[Statement]:
        """Only some columns move at a time, and their curvature is at most that of all columns."""
        above = replace(loss, exact=False)
        yield from inner_step(self.lr, 0.0, above, steps=self.steps)
        personal = ("personal_lr", "lam")
        yield from inner_step(self.personal_lr, 0.0, above, steps=self.steps, names=personal)
