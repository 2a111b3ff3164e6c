"""Partial pruning and personalization: devices keep some layers to themselves and prune the others.

Liu and Ratnarajah, 2023, Algorithm 1. The paper's u, v_k, m_k, rho_k are `u`, `v`, `mask`, `ratio`.
Its tau_u, tau-hat_u, tau_v, eta_u, eta_v are `steps`, `probe_steps`, `personal_steps`, `lr`,
`personal_lr`. K_j, the devices that kept weight j, is a reply's `cover`. The experiment's `private`
says which layers are v: by default "conv*" as in the paper, the last layer where no layer
convolves, and "" for pruning alone (its reference 14). A weight that no device kept does not
change, where (15) would divide by zero. Masks save bytes with the codec "bitmap".
Defaults are for newcomers; the paper's settings are in covey/papers/wireless.toml.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from covey.engine.descend import descend
from covey.errors import ConfigError
from covey.fields import Count, Positive, SharePerNode
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Exact, Masked, Replies
from covey.kernel.work import Work
from covey.maths import prune
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class Pruned(Algorithm):
    """v learns; a probe shows which weights of u move; u restarts with those, learns, is averaged.

    One ranking goes over all shared weights, biases too. `ratio` may be a list with one entry per
    device, or "plan": the ratio that the environment plans for each device and round. With
    `order="together"` u and v learn at once after the probe, for `steps` steps (FedSim). Else v
    learns before it (FedAlt). Every edge averages its devices per weight, `edge_rounds` times, and
    passes on the weights that any of them kept. The server asks `sample` nodes, an edge
    `device_sample`.

    A round's notes of a device are the share of u that it "kept" and its "error" |u - u m|^2 / rho
    (Assumption 2). Those of a node that averages are "cover", the min over weights of the devices
    that kept it (kappa*), and "uncovered", the share of weights that no device kept.
    """

    ratio: SharePerNode | Literal["plan"] = 0.5  # share of shared weights that a device prunes,
    # one for all or one per device; "plan": what the channel allows
    order: Literal["alternate", "together"] = "alternate"  # whether private and shared layers
    # learn in turn or at once
    sample: Sample = None
    device_sample: Sample = None
    edge_rounds: Count = 1
    steps: Count = 20  # gradient steps of the shared layers in one round
    probe_steps: Count = 1  # steps that show which weights matter least
    personal_steps: Count = 20
    lr: Positive = 0.02  # step size of the shared layers
    personal_lr: Positive = 0.02  # step size of the private layers
    batch: Count | None = 128
    weight: Weight = "uniform"

    sends: ClassVar[str] = "the shared weights it kept and which they are, never the private layers"
    step_sizes: ClassVar[tuple[str, ...]] = ("lr", "personal_lr")
    splits: ClassVar[bool] = True
    private_default: ClassVar[tuple[str, ...]] = ("conv*", "head")
    any_depth: ClassVar[bool] = True

    def server(self, me: Nodes, w: Rows) -> Rows:
        u = self.shared_part(me, w)
        v = w[:, me.private]
        replies, samples = me.ask(self.below, u, sample=self.sample)
        u = self.merged(me, u, replies, samples)  # (15)
        return torch.cat([u, v], dim=1)

    def edge(self, me: Nodes, u: Rows) -> tuple[Masked, Exact | None]:
        covered = torch.zeros_like(u, dtype=torch.bool)
        for _ in range(self.edge_rounds):
            replies, samples = me.ask(self.below, u, sample=self.device_sample)
            u = self.merged(me, u, replies, samples)  # (15)
            covered = covered | (replies.cover > 0)
        v = me.initial()[:, me.private]
        x = torch.cat([u, v], dim=1)
        me.keep(me.tier, x)
        return Masked(u, covered), me.weight(self.weight)

    def device(self, me: Nodes, u: Rows) -> tuple[Masked, Exact | None]:
        last = me.recall("personal", default=me.initial())
        v = last[:, me.private]
        x = torch.cat([u, v], dim=1)
        x = descend(  # (8)
            x,
            me.grad(self.batch, "personal"),
            part=me.private,
            steps=self.personal_steps,
            lr=self.personal_lr,
        )
        v = x[:, me.private]
        mask = self.mask(me, x)  # line 7, by (6)
        x = torch.cat([u * mask, v], dim=1)  # (9)
        fixed = torch.zeros_like(v, dtype=torch.bool)
        moving = torch.cat([mask, fixed], dim=1)
        gradient = me.grad(self.batch)
        x = descend(x, gradient, mask=moving, steps=self.steps, lr=self.lr)  # (10)
        return self.answer(me, u, x, mask)

    def together(self, me: Nodes, u: Rows) -> tuple[Masked, Exact | None]:
        """FedSim's order instead of `device`: u and v learn at once after the probe."""
        last = me.recall("personal", default=me.initial())
        v = last[:, me.private]
        x = torch.cat([u, v], dim=1)
        mask = self.mask(me, x)
        x = torch.cat([u * mask, v], dim=1)
        private = torch.ones_like(v, dtype=torch.bool)
        moving = torch.cat([mask, private], dim=1)
        gradient = me.grad(self.batch)
        lr = me.by_part(self.lr, self.personal_lr)
        x = descend(x, gradient, mask=moving, steps=self.steps, lr=lr)
        return self.answer(me, u, x, mask)

    def below(self, me: Nodes, u: Rows) -> tuple[Masked, Exact | None]:
        """The program of the nodes asked: of edges, or of devices in their order."""
        if not me.leaf:
            return self.edge(me, u)
        if self.order == "together":
            return self.together(me, u)
        return self.device(me, u)

    def shared_part(self, me: Nodes, w: Rows) -> Rows:
        """The columns of w that are shared; an error where there are none to prune."""
        if me.shared.stop == 0:
            problem = "Pruned prunes the shared layers, but all are private"
            raise ConfigError(f"{problem}; leave some out of `private`.")
        return w[:, me.shared]

    def mask(self, me: Nodes, x: Rows) -> Tensor:
        """The shared weights to keep: all but the `ratio` that the probe moves least."""
        probe = descend(
            x,
            me.grad(self.batch, "probe"),
            part=me.shared,
            steps=self.probe_steps,
            lr=self.lr,
        )
        importance = prune.change(probe, x)[:, me.shared]
        return prune.mask(importance, self.ratio_of(me))

    def ratio_of(self, me: Nodes) -> float | Tensor:
        """Each device's ratio: that of the plan, or the field's value."""
        if self.ratio == "plan":
            return me.planned
        return me.own(self.ratio)

    def merged(self, me: Nodes, u: Rows, replies: Replies, samples: Replies) -> Rows:
        """The mean of each weight over the devices that kept it, its last value where none did."""
        mean = replies.mean(weight=samples, default=u)
        uncovered = (replies.cover == 0).to(u)
        me.note("cover", replies.cover.amin(dim=1))
        me.note("uncovered", uncovered.mean(dim=1))
        return mean

    def answer(
        self,
        me: Nodes,
        u: Rows,
        x: Rows,
        mask: Tensor,
    ) -> tuple[Masked, Exact | None]:
        """The message of a device: the part of its model x that it did not prune.

        The device keeps x. u is the shared part that it received.
        """
        pruned = u * ~mask
        error = pruned.square().sum(dim=1, keepdim=True)
        kept = mask.to(u)
        me.note("kept", kept.mean(dim=1))
        lossless = (error == 0).to(u)  # so that the error is 0 there, also at a ratio of 0
        me.note("error", error / (self.ratio_of(me) + lossless))
        me.keep("personal", x)
        shared = x[:, me.shared]
        return Masked(shared, mask), me.weight(self.weight)

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        algorithm = self
        if self.planned:  # no plan has a ratio for a new device
            algorithm = replace(self, ratio=0.0)
        algorithm.below(me, w[:, me.shared])
        return me.kept["personal"]

    def above(self) -> str:
        return "edge"

    @property
    def planned(self) -> bool:
        return self.ratio == "plan"

    def work(self, shared: int, private: int) -> Work | None:
        if not self.planned:
            return None
        personal_steps = self.personal_steps
        if self.order == "together":
            personal_steps = self.steps
        return Work(
            shared,
            private,
            steps=self.steps,
            personal_steps=personal_steps,
            probe_steps=self.probe_steps,
            numbers=int(self.weight == "samples"),
        )
