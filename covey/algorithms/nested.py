"""Nested envelopes on a tree of any depth: the idea behind all tree algorithms, as data.

It is their mathematical oracle. Every level holds a model x. Given the model a of the level above,
it descends (the loss below it) + lam/2 |x - a|^2 or -lam <x, a> + gamma phi_rho(x)
+ ridge/2 |x|^2. Below the last level are the data. Below the others are the envelopes of the next
level, whose gradient needs only its answer: pull (x - answer), or -pull answer for correlation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from covey.engine.descend import descend
from covey.engine.solvers import smooth_l1
from covey.errors import ConfigError, TreeError, shown
from covey.fields import Count, NonNegative, Positive, check
from covey.kernel.algorithm import Algorithm
from covey.kernel.nodes import Nodes
from covey.tree import Sample, Tree
from covey.types import Rows


@dataclass(frozen=True)
class Level:
    """One level of models: its tier, its tie to the level above, and how it descends.

    A `warm` level continues from its own last model of the round; others start from the model
    above. `pull` is the weight of the next level's answer in the gradient. None takes that level's
    `lam`, which makes it the gradient of the envelope. `sample` is the number of children asked,
    where the next level is on another tier. On the last level, `fresh` draws a mini-batch per step;
    else all steps use one batch.
    """

    tier: str
    name: str = ""
    lam: NonNegative = 0.0
    coupling: Literal["prox", "correlation"] = "prox"
    steps: Count = 1
    lr: Positive = 1.0
    gamma: NonNegative = 0.0
    rho: Positive = 6e-5
    ridge: NonNegative = 0.0
    pull: float | None = None
    warm: bool = False
    sample: Sample = None
    batch: Count | None = None
    fresh: bool = True
    tol: NonNegative | None = None
    method: Literal["gradient", "nesterov"] = "gradient"

    def __post_init__(self) -> None:
        check(self)
        if self.warm and not self.name:
            level = f"a warm level of tier {self.tier}"
            raise ConfigError(f"{level} goes on from what it kept, so it needs a name.")

    @property
    def prox(self) -> float:
        """The weight of lam/2 |x - a|^2."""
        if self.coupling == "prox":
            return self.lam
        return 0.0

    def gradient(self, x: Rows, anchor: Rows) -> Rows:
        """The gradient of all terms but those of the levels below."""
        terms = -self.lam * anchor
        if self.coupling == "prox":
            terms = self.lam * (x - anchor)
        terms = terms + self.ridge * x
        if self.gamma:
            terms = terms + self.gamma * smooth_l1.grad(x, self.rho)
        return terms


@dataclass(frozen=True)
class Nested(Algorithm):
    """Levels of models, from the server's down to the devices' last.

    Several levels may share a tier. Only a link between tiers costs bytes.
    """

    levels: tuple[Level, ...]  # one table per level of models, from the server down: tier, lam,
    # steps, lr, ...

    sends: ClassVar[str] = "the model of the highest level it holds, to the node above"

    def __post_init__(self) -> None:
        listed = isinstance(self.levels, list | tuple)
        if not listed or not all(isinstance(level, Level) for level in self.levels):
            value = shown(self.levels)
            raise ConfigError(f"Nested: levels = {value} must be a list of Level(...).")
        object.__setattr__(self, "levels", tuple(self.levels))
        if len(self.tiers()) < 2:
            order = "the server's first and the devices' last"
            raise ConfigError(f"Nested needs levels on two tiers or more, {order}.")

    def tiers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(level.tier for level in self.levels))

    def fit(self, tree: Tree) -> tuple[Tree, str | None]:
        if tree.tiers != self.tiers():
            own = ", ".join(self.tiers())
            raise TreeError(
                f"Nested has levels for {own}, but this tree has {', '.join(tree.tiers)}; "
                "give each tier a level."
            )
        return tree, None

    def cut(self, tier: str, round: int = 0) -> float | None:
        """The largest threshold of the levels of a tier."""
        thresholds = []
        for index, level in enumerate(self.levels):
            threshold = self.threshold(index)
            if level.tier == tier and threshold is not None:
                thresholds.append(threshold)
        return max(thresholds, default=None)

    def threshold(self, index: int) -> float | None:
        level = self.levels[index]
        pull = 0.0
        if index + 1 < len(self.levels):
            pull = self.pull(index)
        return smooth_l1.threshold(
            rho=level.rho,
            lr=level.lr,
            gamma=level.gamma,
            lam=level.lam + level.ridge + pull,
        )

    def pull(self, index: int) -> float:
        """The weight of the next level's answer."""
        pull = self.levels[index].pull
        if pull is None:
            return self.levels[index + 1].lam
        return pull

    def first_of(self, tier: str) -> int:
        """The index of a tier's first level."""
        tiers = [level.tier for level in self.levels]
        return tiers.index(tier)

    def above(self) -> str:
        """The level above the devices' first, unless it is the server's."""
        tiers = self.tiers()
        of_devices = self.first_of(tiers[-1])
        level = self.levels[of_devices - 1]
        if level.tier == tiers[0]:
            return "global"
        return level.name or "global"

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        answer = self.below(me, w)
        return me.kept.get(self.levels[-1].name, answer)

    def server(self, me: Nodes, x: Rows) -> Rows:
        return self.solve(me, 0, x)

    def below(self, me: Nodes, anchor: Rows) -> Rows:
        return self.solve(me, self.first_of(me.tier), anchor)

    def solve(self, me: Nodes, index: int, anchor: Rows) -> Rows:
        """The model of a level after its steps, given the model above."""
        level = self.levels[index]
        x = anchor
        if level.warm:
            x = me.recall(level.name, default=anchor, since=me.round)
        if index + 1 == len(self.levels):
            x = self.descend_data(me, level, x, anchor)
        else:
            for _ in range(level.steps):
                from_below = self.pulled(me, index, x)
                gradient = from_below + level.gradient(x, anchor)
                x = x - level.lr * gradient
        if level.name:
            me.keep(level.name, x)
        return x

    def pulled(self, me: Nodes, index: int, x: Rows) -> Rows:
        """The gradient of the envelopes below, from their answer."""
        level = self.levels[index]
        child = self.levels[index + 1]
        if child.tier == level.tier:
            answer = self.solve(me, index + 1, x)
        else:
            replies = me.ask(self.below, x, sample=level.sample)
            answer = replies.mean()
        pull = self.pull(index)
        if child.coupling == "prox":
            return pull * (x - answer)
        return -pull * answer

    def descend_data(self, me: Nodes, level: Level, x: Rows, anchor: Rows) -> Rows:
        """The last level, below which are the data."""
        if level.fresh:
            gradient = me.grad(level.batch)
        else:
            gradient = me.grad(me.batch(level.batch))
        prox = None
        linear = None
        if level.coupling == "correlation":
            linear = -level.lam * anchor
        elif level.lam:
            prox = (level.lam, anchor)
        return descend(
            x,
            gradient,
            prox=prox,
            linear=linear,
            decay=level.ridge,
            l1=(level.gamma, level.rho),
            steps=level.steps,
            lr=level.lr,
            tol=level.tol,
            method=level.method,
        )
