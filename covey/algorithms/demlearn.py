"""DemLearn: groups of similar models, found anew each round, average upwards and mix downwards
(Nguyen et al., 2022).

The paper's w_n^(0), w_n^(k), K, alpha (of its public code), mu are `theta`, a group's model,
`levels` (the root is the last), `alpha`, `mu`. The groups are the top of the devices' dendrogram,
which splits in two from level to level; one of the lowest level holds all devices below it.
`linkage` is the paper's "ward" or the public code's "average". That code also multiplies every
group's mean, of means that were multiplied already, by 1.15 in its first five rounds: `amplify` and
`amplify_rounds`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import torch

from covey.engine.descend import descend
from covey.errors import ConfigError
from covey.kernel.advice import Levers, Loss, RoundFactor, Statement, Step
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import inner_step, prox_round
from covey.kernel.fields import Count, NonNegative, Positive, Share, Whole
from covey.kernel.nodes import Nodes
from covey.types import Rows

Group = list[Any]
"""Its members: numbers of devices, and groups."""


@dataclass(frozen=True)
class DemLearn(Algorithm):
    """theta takes `steps` steps on f + mu/2 |theta - parent|^2 from where the last mixing left it;
    then the groups are found.

    A group's model is the mean of its members', each weighing as many devices as it holds; then,
    from the root down, every member becomes (1 - alpha) itself + alpha its group. "local" is theta
    before that mixing, "personal" after it.
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

    sends: ClassVar[str] = "its model after the local steps"

    def __post_init__(self) -> None:
        if self.levels > 1 and find_spec("scipy") is None:
            needs = f"levels = {self.levels} needs scipy, which makes the dendrogram"
            raise ConfigError(f"DemLearn: {needs}; pip install 'covey[demlearn]'.")

    def server(self, me: Nodes, w: Rows) -> Rows:
        thetas, asker, child = me.ask(self.device).gather()
        root, parents = torch.empty_like(w), w.repeat_interleave(me.children.to(w.device), dim=0)
        first = torch.cumsum(me.children, 0) - me.children
        factor = self.amplify if me.round < self.amplify_rounds else 1.0
        for at in range(len(me)):  # with several seeds side by side, each has groups of its own
            mine = (asker == at).nonzero()[:, 0]
            theta, parent = thetas[mine], torch.empty_like(thetas[mine])
            root[at] = self.mix_down(self.groups(theta), theta, parent, factor)
            parents[first[at] + child[mine]] = parent
        me.ask(self.mix, each=(parents,))
        return root

    def device(self, me: Nodes) -> Rows:
        theta, parent = (me.recall(name, default=me.initial()) for name in ("personal", "_parent"))
        return me.keep(
            "local",
            descend(
                theta, me.grad(self.batch), prox=(self.mu, parent), steps=self.steps, lr=self.lr
            ),
        )

    def mix(self, me: Nodes, parent: Rows) -> None:
        me.keep(
            "personal",
            torch.lerp(me.recall("local", default=parent), me.keep("_parent", parent), self.alpha),
        )

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        return descend(w, me.grad(self.batch), prox=(self.mu, w), steps=self.steps, lr=self.lr)

    def groups(self, theta: Rows) -> Group:
        """The tree of groups of these models."""
        if self.levels == 1 or len(theta) < 2:
            return list(range(len(theta)))
        from scipy.cluster import hierarchy

        finite = (
            torch.nan_to_num(theta.double()).clamp(-1e100, 1e100).cpu()
        )  # what diverges is refused when the round ends
        return members(
            hierarchy.to_tree(hierarchy.linkage(finite.numpy(), self.linkage)), self.levels
        )

    def mix_down(
        self, group: Group, theta: Rows, parent: Rows, factor: float, above: Rows | None = None
    ) -> Rows:
        """The group's model, mixed with that of the group it is in; `parent` gets, for every device
        below, that of its group.
        """
        model = average(group, theta, factor)
        model = model if above is None else torch.lerp(model, above, self.alpha)
        parent[[member for member in group if isinstance(member, int)]] = model
        for member in group:
            if isinstance(member, list):
                self.mix_down(member, theta, parent, factor, model)
        return model

    def advice(self, loss: Loss) -> Iterator[Statement]:
        """Where all devices have the same model, groups and mixing leave it as it is."""
        yield from inner_step(self.lr, self.mu, loss, steps=self.steps, names=("lr", "mu"))
        yield RoundFactor(prox_round(self.lr, self.mu, self.steps))

    def levers(self, L: float) -> Levers:
        return Levers(steps=(Step("lr", self.mu, "mu"),))


def average(group: Group, theta: Rows, factor: float) -> Rows:
    """factor times the mean of the members' models, each weighing as many devices as it holds."""
    total = theta[[member for member in group if isinstance(member, int)]].sum(0)
    for member in group:
        if isinstance(member, list):
            total = total + size(member) * average(member, theta, factor)
    return factor * total / size(group)


def size(group: Group) -> int:
    """How many devices a group holds."""
    return sum(1 if isinstance(member, int) else size(member) for member in group)


def members(node: Any, levels: int) -> Group:
    """The top of a dendrogram as lists in lists; of its last level, all devices below."""
    if levels == 1:
        return list(node.pre_order())
    return [
        child.id if child.is_leaf() else members(child, levels - 1)
        for child in (node.left, node.right)
    ]
