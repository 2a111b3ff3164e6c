"""Nested envelopes on a tree of any depth: the idea behind all the tree algorithms, as data; their
mathematical oracle.

Every level holds a model x, and given the model a of the level above it descends (what is below it)
+ lam/2 |x - a|^2 or -lam <x, a> + gamma phi_rho(x) + ridge/2 |x|^2. Below the last level are the
data. Below the others are the envelopes of the next level, whose gradient needs only its answer:
pull (x - answer), or -pull answer for correlation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from covey.engine import smooth_l1
from covey.engine.descend import descend
from covey.errors import ConfigError, TreeError, shown
from covey.kernel.advice import Advice, Levers, Loss, RoundFactor, Statement, Vector
from covey.kernel.algorithm import Algorithm
from covey.kernel.conditions import descended, inner_step, power, smooth_l1_cycle
from covey.kernel.fields import Count, NonNegative, Positive, check
from covey.kernel.nodes import Nodes
from covey.tree import Sample, Tree
from covey.types import Rows

_ASKS = 10_000  # asks of a round up to which its factor is worked out


@dataclass(frozen=True)
class Level:
    """One level of models: the tier that computes it, how it is tied to the level above, and how it
    descends.

    `warm`: within a round it goes on from its own last model, else it starts from the model above.
    `pull` is the weight of the next level's answer in the gradient; None takes that level's `lam`,
    which makes it the gradient of the envelope. `sample`: how many children are asked, where the
    next level is on another tier. On the last level, `fresh` draws a mini-batch per step, else one
    batch serves them all.
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
            raise ConfigError(
                f"a warm level of tier {self.tier} goes on from what it kept, so it needs a name."
            )

    def advice(self, loss: Loss) -> Iterator[Advice]:
        """What theory says of this level alone, whose loss is that of the levels below it."""
        lam = self.ridge + (self.lam if self.coupling == "prox" else 0.0)
        yield from inner_step(self.lr, lam, loss, steps=self.steps, curve=self.gamma / self.rho)
        names = ("lr", "lam", "gamma")
        yield from smooth_l1_cycle(self.lr, lam, self.gamma, self.rho, L=loss.L, names=names)


@dataclass(frozen=True)
class Nested(Algorithm):
    """Levels from the server's to the devices' last; several may share a tier, and only a link
    between tiers costs bytes.
    """

    levels: tuple[Level, ...]  # one table per level of models, from the server down: tier, lam,
    # steps, lr, ...

    sends: ClassVar[str] = "the model of the highest level it holds, to the node above"

    def __post_init__(self) -> None:
        listed = isinstance(self.levels, list | tuple)
        if not listed or not all(isinstance(level, Level) for level in self.levels):
            raise ConfigError(
                f"Nested: levels = {shown(self.levels)} must be a list of Level(...)."
            )
        object.__setattr__(self, "levels", tuple(self.levels))
        if len(self.tiers()) < 2:
            raise ConfigError(
                "Nested needs levels on two tiers or more, the server's first and the devices' last."
            )

    def tiers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(level.tier for level in self.levels))

    def fit(self, tree: Tree) -> tuple[Tree, str | None]:
        if tree.tiers != self.tiers():
            raise TreeError(
                f"Nested has levels for {', '.join(self.tiers())}, but this tree has {', '.join(tree.tiers)}; "
                "give each tier a level."
            )
        return tree, None

    def cut(self, tier: str, round: int = 0) -> float | None:
        """The largest threshold of the levels of a tier."""
        found = [self.threshold(at) for at, level in enumerate(self.levels) if level.tier == tier]
        return max((cut for cut in found if cut is not None), default=None)

    def threshold(self, at: int) -> float | None:
        level = self.levels[at]
        pull = 0.0 if at + 1 == len(self.levels) else self.pull(at)
        return smooth_l1.threshold(
            rho=level.rho, lr=level.lr, gamma=level.gamma, lam=level.lam + level.ridge + pull
        )

    def pull(self, at: int) -> float:
        """The weight of the next level's answer."""
        pull = self.levels[at].pull
        return self.levels[at + 1].lam if pull is None else pull

    def above(self) -> str:
        """The level above the devices' first, unless it is the server's."""
        at = next(i for i, level in enumerate(self.levels) if level.tier == self.tiers()[-1]) - 1
        return (
            self.levels[at].name
            if self.levels[at].tier != self.tiers()[0] and self.levels[at].name
            else "global"
        )

    def adapt(self, me: Nodes, w: Rows) -> Rows:
        answer = self.below(me, w)
        return me.kept.get(self.levels[-1].name, answer)

    def server(self, me: Nodes, x: Rows) -> Rows:
        return self.solve(me, 0, x)

    def below(self, me: Nodes, anchor: Rows) -> Rows:
        return self.solve(
            me, next(i for i, level in enumerate(self.levels) if level.tier == me.tier), anchor
        )

    def solve(self, me: Nodes, at: int, anchor: Rows) -> Rows:
        """The model of a level after its steps, given the one above."""
        level = self.levels[at]
        x = me.recall(level.name, default=anchor, since=me.round) if level.warm else anchor
        if at + 1 == len(self.levels):
            x = self.descend_data(me, level, x, anchor)
        else:
            for _ in range(level.steps):
                x = x - level.lr * (self.pulled(me, at, x) + _own_terms(level, x, anchor))
        return me.keep(level.name, x) if level.name else x

    def pulled(self, me: Nodes, at: int, x: Rows) -> Rows:
        """The gradient of the envelopes below, from their answer."""
        level, child = self.levels[at], self.levels[at + 1]
        near = child.tier == level.tier
        answer = (
            self.solve(me, at + 1, x) if near else me.ask(self.below, x, sample=level.sample).mean()
        )
        pull = self.pull(at)
        return pull * (x - answer) if child.coupling == "prox" else -pull * answer

    def descend_data(self, me: Nodes, level: Level, x: Rows, anchor: Rows) -> Rows:
        """The last level, whose next is the data."""
        gradient = me.grad(level.batch if level.fresh else me.batch(level.batch))
        prox = (level.lam, anchor) if level.coupling == "prox" and level.lam else None
        linear = -level.lam * anchor if level.coupling == "correlation" else None
        return descend(x, gradient, prox=prox, linear=linear, decay=level.ridge, l1=(level.gamma, level.rho),
                       steps=level.steps, lr=level.lr, tol=level.tol, method=level.method)  # fmt: skip

    def advice(self, loss: Loss) -> Iterator[Statement]:
        """Every level by itself, then a round of all levels."""
        for level, below in zip(self.levels, [*self.levels[1:], None], strict=True):
            under = loss if below is None else _under(below.lam, loss)
            for item in level.advice(under):
                about = f"{level.name or level.tier}: {item.about}"
                yield Advice(item.level, about, item.text, item.numbers)
        last = self.levels[-1]
        asks = math.prod(level.steps for level in self.levels[:-1])
        if last.tol is None and last.method == "gradient" and asks <= _ASKS:
            yield RoundFactor(lambda h: self._answer(0, np.zeros_like(h), h, {}))

    def _answer(self, at: int, anchor: Vector, h: Vector, ends: dict[int, Vector]) -> Vector:
        """What `solve` makes of an anchor, both relative to the start of the round.

        `ends` has the rows that levels ended with.
        """
        level = self.levels[at]
        x = ends.get(at, anchor) if level.warm else anchor
        prox = level.lam if level.coupling == "prox" else 0.0
        linear = level.lam - prox
        if at + 1 == len(self.levels):
            end = (level.lam * anchor + linear - h - level.ridge) / (h + level.ridge + prox)
            x = descended(x, power(level.lr, level.ridge + prox, h, level.steps), end)
        else:
            pull, below = self.pull(at), self.levels[at + 1]
            for _ in range(level.steps):
                answer = self._answer(at + 1, x, h, ends)
                pulled = -pull * (1 + answer)
                if below.coupling == "prox":
                    pulled = pull * (x - answer)
                own = prox * (x - anchor) - linear * (1 + anchor) + level.ridge * (1 + x)
                x = x - level.lr * (pulled + own)
        ends[at] = x
        return x

    def levers(self, L: float) -> Levers:
        why = "the steps of Nested are those of its levels; `--theory` checks each"
        return Levers(without=why)


def _own_terms(level: Level, x: Rows, anchor: Rows) -> Rows:
    tie = level.lam * (x - anchor) if level.coupling == "prox" else -level.lam * anchor
    return (
        tie + level.ridge * x + (level.gamma * smooth_l1.grad(x, level.rho) if level.gamma else 0.0)
    )


def _under(lam: float, loss: Loss) -> Loss:
    """An upper level's loss: an envelope of curvature lam L/(lam+L), at most lam, never exact."""
    L = lam
    if loss.L is not None:
        L = lam * loss.L / (lam + loss.L) if lam + loss.L else 0.0
    return Loss(L, None, exact=False)
