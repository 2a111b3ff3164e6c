"""Partial pruning and personalization: devices keep some layers, and prune of the shared ones what matters least to them.

Liu and Ratnarajah, 2023, Algorithm 1. The paper's u, v_k, m_k, rho_k, tau_u, tau-hat_u, tau_v, eta_u, eta_v are `u`, `v`, `mask`,
`ratio`, `steps`, `probe_steps`, `personal_steps`, `lr`, `personal_lr`; K_j, the devices that kept weight j, is a reply's `cover`.
Which layers are v is the experiment's `private`: by default "conv*" as in the paper, and where no layer convolves the last one;
"" for pruning alone (its reference 14). A weight that nobody kept stays as it was, where (15) would divide by zero. Masks save
bytes with the codec "bitmap".
Defaults are for newcomers; the paper's settings are in covey/papers/wireless.toml.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from covey.engine.descend import descend
from covey.errors import ConfigError
from covey.kernel.advice import Loss, Statement
from covey.kernel.algorithm import Algorithm, PerNode, require
from covey.kernel.conditions import inner_step
from covey.kernel.nodes import Nodes, Weight
from covey.kernel.replies import Exact, Masked, Replies
from covey.kernel.work import Work
from covey.maths import prune
from covey.tree import Sample
from covey.types import Rows


@dataclass(frozen=True)
class Pruned(Algorithm):
    """v learns; probe steps on u say which weights move; u restarts without the `ratio` that moved least, learns, is averaged.

    One ranking goes over all shared weights, biases too. `ratio` may be a list with one entry per device, or "plan": what the
    experiment's radio allows each device in each round. With
    `order="together"` u and v learn at once after the probe, `steps` long (FedSim), else v before it (FedAlt). Every edge
    averages its devices per weight, `edge_rounds` times, and passes on the weights that any of them kept. `sample` says how many
    the server asks, `device_sample` how many an edge does. A round's notes are the share of u that each device has "kept" and
    its "error" |u - u m|^2 / rho (Assumption 2); and, of whoever averages, how many kept its least "cover"ed weight (kappa*) and
    the share of weights "uncovered".
    """

    ratio: PerNode | Literal["plan"] = 0.5
    order: Literal["alternate", "together"] = "alternate"
    sample: Sample = None
    device_sample: Sample = None
    edge_rounds: int = 1
    steps: int = 20
    probe_steps: int = 1
    personal_steps: int = 20
    lr: float = 0.02
    personal_lr: float = 0.02
    batch: int | None = 128
    weight: Weight = "uniform"

    sends: ClassVar[str] = "the shared weights it kept and which they are, never the private layers"
    splits: ClassVar[bool] = True
    private_default: ClassVar[tuple[str, ...]] = ("conv*", "head")  # the paper's, and a last layer where no layer convolves
    any_depth: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self, lr=None, personal_lr=None, batch=(1, 1e9), **({} if self.planned else {"ratio": (0, 1)}))
        require(self, edge_rounds=(1, 1e9), steps=(1, 1e9), probe_steps=(1, 1e9), personal_steps=(1, 1e9))

    @property
    def planned(self) -> bool:
        return self.ratio == "plan"

    def work(self, shared: int, private: int) -> Work | None:
        if not self.planned:
            return None
        personal = self.steps if self.order == "together" else self.personal_steps
        return Work(shared, private, steps=self.steps, personal_steps=personal, probe_steps=self.probe_steps,
                    numbers=int(self.weight == "samples"))  # fmt: skip

    def above(self) -> str:
        return "edge"

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        alone = replace(self, ratio=0.0) if self.planned else self  # nobody plans for a newcomer
        return Algorithm.adapt(alone, me, w)

    def server(self, me: Nodes, w: Rows) -> Rows:
        if me.shared.stop == 0:
            raise ConfigError("Pruned prunes the shared layers, but all are private; leave some out of `private`.")
        u = w[:, me.shared]
        return torch.cat([self.merged(me, u, *me.ask(self.below, u, sample=self.sample)), w[:, me.private]], dim=1)

    def below(self, me: Nodes, u: Rows) -> tuple[Masked, Exact | None]:
        return self.device(me, u) if me.leaf else self.edge(me, u)

    def edge(self, me: Nodes, u: Rows) -> tuple[Masked, Exact | None]:
        covered = torch.zeros_like(u, dtype=torch.bool)
        for _ in range(self.edge_rounds):
            replies, samples = me.ask(self.below, u, sample=self.device_sample)
            u, covered = self.merged(me, u, replies, samples), covered | (replies.cover > 0)
        me.keep(me.tier, torch.cat([u, me.initial()[:, me.private]], dim=1))
        return Masked(u, covered), me.weight(self.weight)

    def merged(self, me: Nodes, u: Rows, replies: Replies, samples: Replies) -> Rows:
        """(15): the mean of each weight over those who kept it, the last value where nobody did."""
        me.note("cover", replies.cover.amin(dim=1))
        me.note("uncovered", (replies.cover == 0).to(u).mean(dim=1))
        return replies.mean(weight=samples, default=u)

    def device(self, me: Nodes, u: Rows) -> tuple[Masked, Exact | None]:
        together, ratio = self.order == "together", me.planned if self.ratio == "plan" else me.own(self.ratio)
        v = me.recall("personal", default=me.initial())[:, me.private]
        x = torch.cat([u, v], dim=1)
        if not together:
            x = descend(
                x, me.grad(self.batch, "personal"), part=me.private, steps=self.personal_steps, lr=self.personal_lr
            )  # (8)
        probe = descend(x, me.grad(self.batch, "probe"), part=me.shared, steps=self.probe_steps, lr=self.lr)
        mask = prune.mask(prune.change(probe, x)[:, me.shared], ratio)
        x = torch.cat([u * mask, x[:, me.private]], dim=1)  # (9): the probe is forgotten
        moving = torch.cat([mask, torch.full_like(v, together, dtype=torch.bool)], dim=1)
        x = descend(x, me.grad(self.batch), mask=moving, steps=self.steps,
                    lr=me.by_part(self.lr, self.personal_lr) if together else self.lr)  # (10)  # fmt: skip
        error = (u * ~mask).square().sum(dim=1, keepdim=True)
        me.note("kept", mask.to(u).mean(dim=1))
        me.note("error", error / (ratio + (error == 0).to(u)))  # 0 where nothing was lost, also at a ratio of 0
        return Masked(me.keep("personal", x)[:, me.shared], mask), me.weight(self.weight)

    def advice(self, loss: Loss) -> Iterator[Statement]:
        """Only some columns move at a time, and their curvature is at most that of all columns."""
        above = replace(loss, exact=False)
        yield from inner_step(self.lr, 0.0, above, steps=self.steps)
        personal = ("personal_lr", "lam")
        yield from inner_step(self.personal_lr, 0.0, above, steps=self.personal_steps, names=personal)
