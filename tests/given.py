"""A data loss whose batches a test gives: only solvers that compute whole descents take it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from covey.engine.batches import Batch
from covey.engine.descend import choose
from covey.engine.solvers.objective import DataLoss, Objective
from covey.engine.task import Task


class Given(DataLoss):
    """The loss of a task on the batch of each step, or on `one` at every step."""

    def __init__(
        self, task: Task, batch_of: Callable[[int], Batch] | None = None, one: Batch | None = None
    ) -> None:
        self.task = task
        self.all_examples = False
        self.fixed = one
        self._batch_of = batch_of

    def __call__(self, x: Tensor) -> Tensor:
        raise AssertionError("these steps are taken one by one")

    def expect(self, steps: int) -> None:
        """Nothing is prepared."""

    def begin(self, start: Tensor, terms: Objective) -> None:
        """Nothing is counted."""

    def batch_of(self, step: int) -> Batch:
        if self.fixed is not None:
            return self.fixed
        assert self._batch_of is not None
        return self._batch_of(step)

    def skip(self, steps: int) -> None:
        """Nothing is counted."""


def descended(
    task: Task,
    start: Tensor,
    batch_of: Callable[[int], Batch],
    terms: Objective,
    *,
    one: Batch | None = None,
) -> Tensor:
    """The rows after a descent that the engine computes as a whole."""
    loss = Given(task, batch_of, one)
    return choose(loss, start, terms)[0].run(loss, start, terms)
