"""DemLearn: groups of similar models average upwards and mix downwards (Nguyen et al., 2022).

The groups are formed anew each round. The paper's w_n^(0), w_n^(k), K, alpha (of its public code),
mu are `theta`, a group's model, `levels` (the root is the last), `alpha`, `mu`. The groups are the
top of the devices' dendrogram, which splits in two from level to level. A group of the lowest level
holds all devices below it. `linkage` is the paper's "ward" or the public code's "average". That
code also multiplies every group's mean, of means that were multiplied already, by 1.15 in its first
five rounds: `amplify` and `amplify_rounds`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import torch

from covey.engine.descend import descend
from covey.errors import ConfigError, install
from covey.fields import Count, NonNegative, Positive, Share, Whole
from covey.kernel.advice import Levers, Loss, Statement, Step
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import prox_steps
from covey.kernel.nodes import Nodes
from covey.types import Rows

Group = list[Any]
"""Its members: numbers of devices, and groups."""


@dataclass(frozen=True)
class DemLearn(Algorithm):
    """theta takes `steps` steps on f + mu/2 |theta - parent|^2; then groups form and mix.

    theta starts at the result of the last mixing. A group's model is the mean of its members,
    weighted by the number of devices they hold. Then, from the root down, every member becomes
    (1 - alpha) itself + alpha its group. "local" is theta before that mixing, "personal" after it.
    """

    levels: Count = 4  # levels of groups, the root included
    alpha: Share = 0.6  # share of a group's model in its members after mixing
    mu: NonNegative = 0.002  # pull of a device towards its group while it trains
    steps: Count = 20
    lr: Positive = 0.05
    batch: Count | None = 20
    linkage: Literal["ward", "average"] = "ward"  # how the dendrogram of devices is made
    amplify: Positive = 1.0  # factor on every group's mean in the first rounds; 1 leaves it out
    amplify_rounds: Whole = 5  # rounds in which that factor is used

    sends: ClassVar[str] = "its model after the local steps; the personal one follows from it"

    def __post_init__(self) -> None:
        if self.levels > 1 and find_spec("scipy") is None:
            needs = f"levels = {self.levels} needs scipy, which makes the dendrogram"
            raise ConfigError(f"DemLearn: {needs}; {install('demlearn')}.")

    def server(self, me: Nodes, w: Rows) -> Rows:
        devices = me.ask(self.device)
        thetas, asker, child = devices.gather()
        root = torch.empty_like(w)
        counts = me.children.to(w.device)
        parents = w.repeat_interleave(counts, dim=0)
        first = torch.cumsum(me.children, 0) - me.children
        factor = 1.0
        if me.round < self.amplify_rounds:
            factor = self.amplify
        for seed in range(len(me)):  # several seeds side by side have groups of their own
            rows = (asker == seed).nonzero()[:, 0]
            theta = thetas[rows]
            parent = torch.empty_like(theta)
            groups = self.groups(theta)
            root[seed] = self.mix_down(groups, theta, parent, factor)
            parents[first[seed] + child[rows]] = parent
        me.ask(self.mix, each=(parents,))
        return root

    def device(self, me: Nodes) -> Rows:
        theta = me.recall("personal", default=me.initial())
        parent = me.recall("_parent", default=me.initial())
        theta = descend(
            theta,
            me.grad(self.batch),
            prox=(self.mu, parent),
            steps=self.steps,
            lr=self.lr,
        )
        return me.keep("local", theta)

    def mix(self, me: Nodes, parent: Rows) -> None:
        theta = me.recall("local", default=parent)
        me.keep("_parent", parent)
        me.keep("personal", torch.lerp(theta, parent, self.alpha))

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        return descend(
            w,
            me.grad(self.batch),
            prox=(self.mu, w),
            steps=self.steps,
            lr=self.lr,
        )

    def groups(self, theta: Rows) -> Group:
        """The tree of groups of these models."""
        if self.levels == 1 or len(theta) < 2:
            return list(range(len(theta)))
        from scipy.cluster import hierarchy

        finite = torch.nan_to_num(theta.double())  # the end of the round refuses a diverged model
        finite = finite.clamp(-1e100, 1e100).cpu()
        merges = hierarchy.linkage(finite.numpy(), self.linkage)
        return members(hierarchy.to_tree(merges), self.levels)

    def mix_down(
        self,
        group: Group,
        theta: Rows,
        parent: Rows,
        factor: float,
        above: Rows | None = None,
    ) -> Rows:
        """The group's model, mixed with the model of the group above it.

        The rows of `parent` are set: each device's to the model of its group.
        """
        model = average(group, theta, factor)
        if above is not None:
            model = torch.lerp(model, above, self.alpha)
        devices, groups = split(group)
        parent[devices] = model
        for member in groups:
            self.mix_down(member, theta, parent, factor, model)
        return model

    def advice(self, loss: Loss) -> Iterator[Statement]:
        """Where all devices have the same model, grouping and mixing do not change it."""
        return prox_steps(self.lr, self.mu, loss, steps=self.steps, names=("lr", "mu"))

    def levers(self, L: float) -> Levers:
        step = Step("lr", self.mu, "mu")
        return Levers(steps=(step,))


def average(group: Group, theta: Rows, factor: float) -> Rows:
    """factor times the mean of the members' models, weighted by the devices they hold."""
    devices, groups = split(group)
    total = theta[devices].sum(0)
    for member in groups:
        total = total + size(member) * average(member, theta, factor)
    return factor * total / size(group)


def split(group: Group) -> tuple[list[int], list[Group]]:
    """The members of a group that are devices, and those that are groups."""
    devices = [member for member in group if isinstance(member, int)]
    groups = [member for member in group if isinstance(member, list)]
    return devices, groups


def size(group: Group) -> int:
    """How many devices a group holds."""
    devices, groups = split(group)
    return len(devices) + sum(size(member) for member in groups)


def members(node: Any, levels: int) -> Group:
    """The top of a dendrogram as lists in lists; of its last level, all devices below."""
    if levels == 1:
        return list(node.pre_order())
    group: Group = []
    for child in (node.left, node.right):
        if child.is_leaf():
            group.append(child.id)
        else:
            group.append(members(child, levels - 1))
    return group
