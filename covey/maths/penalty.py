"""A sparsity penalty gamma phi_rho(x): in which rounds and on which devices it acts; its cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from covey.engine.solvers import smooth_l1
from covey.engine.solvers.objective import Coefficient
from covey.types import Rows

Term = tuple[Coefficient, float]
"""The `l1` of `descend`: (gamma, rho), where a rho of 0 is the soft threshold."""


class Recalls(Protocol):
    """What a penalty reads of the nodes it acts on: the round, and the rows that they keep."""

    @property
    def round(self) -> int:
        """The number of the present round."""
        ...

    def keep(self, name: str, rows: Rows) -> Rows:
        """Remember rows under a name."""
        ...

    def recall(self, name: str, default: Rows, since: int = 0) -> Rows:
        """What was kept under a name in round `since` or later."""
        ...


@dataclass(frozen=True)
class L1:
    """The l1 penalty of a model that takes steps of size `lr`; its ties have the curvature `lam`.

    `kind`: "smooth" is rho log cosh(x / rho), "prox" the soft threshold, which reaches zero.
    `until`: the round from which gamma is 0, and `cut_after` whether the cut ends with it ("off").
    `floor`: `low` in place of gamma for devices whose last model has fewer non-zeros, as a share.

    >>> sparse = L1(0.5, rho=0.01, lr=0.1, until=2)
    >>> sparse.term(1), sparse.term(2), sparse.cut(2)
    ((0.5, 0.01), (0.0, 0.01), 0.05)
    """

    gamma: float
    rho: float
    lr: float
    lam: float = 0.0
    kind: Literal["smooth", "prox"] = "smooth"
    until: int | None = None
    cut_after: Literal["keep", "off"] = "keep"
    floor: float | None = None
    low: float = 0.0

    def term(self, round: int = 0) -> tuple[float, float]:
        """The `l1` of `descend` in a round."""
        gamma = self.gamma
        if self.over(round):
            gamma = 0.0
        rho = self.rho
        if self.kind == "prox":
            rho = 0.0
        return gamma, rho

    def term_of(self, me: Recalls, default: Rows, kept: str | None = None) -> Term:
        """The `l1` of each device, by its personal model of an earlier round, or by `default`.

        A program that runs several times a round names the row that keeps its first decision.
        """
        gamma, rho = self.term(me.round)
        if self.floor is None:
            return gamma, rho
        last = me.recall("personal", default=default)
        cut = self.cut()
        gammas = smooth_l1.floored(gamma, last, threshold=cut, floor=self.floor, low=self.low)
        if kept is not None:
            gammas = me.recall(kept, default=gammas, since=me.round)
            me.keep(kept, gammas)
        return gammas, rho

    def over(self, round: int) -> bool:
        """Whether the penalty has ended."""
        return self.until is not None and round >= self.until

    def cut(self, round: int = 0) -> float | None:
        """The size up to which entries are sent as zeros; None where nothing is cut."""
        if self.cut_after == "off" and self.over(round):
            return None
        return smooth_l1.threshold(rho=self.rho, lr=self.lr, gamma=self.gamma, lam=self.lam)
