"""The objective of a descent: a data loss, known by its gradient, and the terms added to it."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from covey.engine.solvers import smooth_l1
from covey.errors import ConfigError
from covey.types import Rows

if TYPE_CHECKING:
    from covey.engine.batches import Batch
    from covey.engine.task import Task

Gradient = Callable[[Rows], Rows]
Coefficient = float | Tensor
"""One number for all rows, or a column [n, 1]; a step size may also be a row [1, P]."""
Method = Literal["gradient", "nesterov", "adam"]


MIN_STEPS = 3
"""With fewer on a batch, the products with the anchor and with the batch itself cost more than they
save (gram.py)."""


class NoData:
    """The gradient where there is no data loss, as at an edge: zeros."""

    def __call__(self, x: Rows) -> Rows:
        return torch.zeros_like(x)

    def __repr__(self) -> str:
        return "NO_DATA"


NO_DATA = NoData()
"""Given to `descend` as the gradient, it moves the rows by the other terms alone."""


class DataLoss(ABC):
    """The gradient of a data loss whose examples the engine knows, for whole descents at once.

    An interface; `me.grad` gives the one that programs use.
    """

    task: Task
    all_examples: bool
    """Whether every step takes the gradient of all examples, so that there are no batches."""
    fixed: Batch | None
    """The batch of every step, where all steps have the same."""
    by_turn: bool = False
    """Whether every turn of `alternate` has one batch for all its steps."""

    def unfactored(self, terms: Objective) -> str | None:
        """Why steps cannot be factored (gram.py), whoever computes them; None if they can."""
        task = self.task
        if isinstance(task.stack, str):
            return task.stack
        if task.augment:
            return "the examples are augmented"
        if self.fixed is None:
            return "not all steps have the same batch"
        if terms.l1 is not None:
            return "an l1 term is set"
        if terms.linear is not None:
            return "a linear term is set"
        if terms.mask is not None:
            return "a mask is set"
        if terms.part is not None:
            return "only a part of the columns moves"
        first = task.stack.layers[0]
        _, inputs = task.space.slots[first.weight].shape
        _, examples = self.fixed.examples.shape
        if 2 * examples > inputs:
            return "the batch has more than half as many examples as the model has inputs"
        return None

    @abstractmethod
    def __call__(self, x: Rows) -> Rows:
        """The gradient at x; the next call is of the next step."""

    @property
    def round(self) -> int:
        """The round of the descent, on which a step size may depend."""
        return 0

    def epoch_steps(self, epochs: float) -> int | Tensor:
        """The steps of so many passes over a row's examples."""
        raise ConfigError("solver: epochs are passes over examples, but these steps have none.")

    @abstractmethod
    def expect(self, steps: int) -> None:
        """Called where so many steps will be taken from now on, so that they can be prepared."""

    @abstractmethod
    def begin(self, start: Rows, terms: Objective) -> None:
        """Called before a descent from `start`."""

    @abstractmethod
    def batch_of(self, step: int) -> Batch:
        """The batch of a step of the descent that has begun."""

    def of_turn(self, turn: int) -> DataLoss:
        """The loss of one of several turns, where each has a batch of its own; else itself."""
        return self

    @abstractmethod
    def skip(self, steps: int) -> None:
        """Called after a descent that took its steps without calling the gradient."""

    def recall(self, name: str, default: Rows) -> Rows:
        """What the rows' devices have kept of a solver's state, `default` where they have none."""
        return default

    def keep(self, name: str, rows: Rows) -> None:
        """Let the rows' devices keep a part of a solver's state."""
        raise ConfigError("solver: state is kept by devices, but these steps are of none.")


@dataclass(frozen=True, eq=False)
class Objective:
    """What is added to the data loss, and how far and how fast to go."""

    steps: int | Tensor
    lr: Coefficient
    prox: tuple[Coefficient, Rows] | None = None
    l1: tuple[Coefficient, float] | None = None
    linear: Rows | None = None
    mask: Tensor | None = None
    part: slice | None = None
    decay: float = 0.0
    method: Method = "gradient"
    tol: float | None = None

    def gradient(self, x: Rows, data: Rows) -> Rows:
        """The gradient of everything smooth at x, given that of the data loss."""
        total = data
        if self.prox is not None:
            lam, anchor = self.prox
            total = total + lam * (x - anchor)
        if self.l1 is not None:
            gamma, rho = self.l1
            if rho > 0:
                total = total + gamma * smooth_l1.grad(x, rho)
        if self.linear is not None:
            total = total + self.linear
        if self.decay:
            total = total + self.decay * x
        return self.restrict(total)

    def quadratic(
        self,
        start: Rows,
        lr: float,
        l2: float,
    ) -> tuple[float, float, Rows]:
        """(shrink, pull, anchor): a step on prox and decay takes x to shrink x + pull anchor."""
        lam: Coefficient = 0.0
        anchor = start
        if self.prox is not None:
            lam, anchor = self.prox
        assert not isinstance(lam, Tensor)
        return 1 - lr * (lam + self.decay + l2), lr * lam, anchor

    def shrink(self, x: Rows, lr: Coefficient) -> Rows:
        """The proximal step of an exact l1 (rho = 0)."""
        gamma = self.exact_l1
        if gamma is None:
            return x
        soft = smooth_l1.soft(x, lr * gamma)
        if self.part is None and self.mask is None:
            return soft
        return x + self.restrict(soft - x)

    @property
    def exact_l1(self) -> Coefficient | None:
        """The weight gamma of an exact l1 term (rho = 0); None where there is none."""
        if self.l1 is None:
            return None
        gamma, rho = self.l1
        if rho > 0:
            return None
        return gamma

    def active(self, step: int, total: Rows, moving: Tensor | None) -> Tensor | None:
        """Which rows still move, [n, 1], of those that moved until now; None when all do."""
        conditions = []
        if moving is not None:
            conditions.append(moving)
        if isinstance(self.steps, Tensor):
            conditions.append(self.steps.reshape(-1, 1) > step)
        if self.tol is not None:
            size = total.norm(dim=1, keepdim=True)
            conditions.append(size > self.tol)
        if not conditions:
            return None
        return functools.reduce(torch.logical_and, conditions)

    @property
    def longest(self) -> int:
        """The maximum of the rows' steps."""
        if isinstance(self.steps, int):
            return self.steps
        if not self.steps.numel():
            return 0
        return int(self.steps.max())

    def moving(self, rows: Rows) -> Tensor | float:
        """How many weights move in all steps together, [n] or the same for all.

        With `tol` it is an upper bound.
        """
        width = rows.shape[1]
        part = self.part or slice(None)
        columns = range(*part.indices(width))
        weights: Tensor | float = float(len(columns))
        if self.mask is not None:
            mask = self.mask.expand(rows.shape)[:, part]
            weights = mask.sum(dim=1).double()
        if isinstance(self.steps, Tensor):
            steps = self.steps.reshape(-1)
            return weights * steps.to(rows.device).double()
        return weights * self.steps

    def restrict(self, total: Rows) -> Rows:
        """The entries that move; the others are 0."""
        if self.mask is not None:
            total = total * self.mask
        if self.part is not None:
            keep = torch.zeros_like(total)
            keep[:, self.part] = total[:, self.part]
            total = keep
        return total
