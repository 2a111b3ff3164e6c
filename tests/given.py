"""What many tests begin with: a run to its end, an expected error, a loss of given batches."""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

import covey
from covey.engine.batches import Batch
from covey.engine.descend import choose
from covey.engine.solvers.objective import DataLoss, Objective
from covey.engine.task import Task
from covey.errors import DataError

Rounds = TypeVar("Rounds", bound=Iterator[Any])


def drained(run: Rounds) -> Rounds:
    """The run, or runs side by side, after the last round."""
    for _ in run:
        pass
    return run


def played(experiment: covey.Experiment, **options: Any) -> covey.Run:
    """The run of an experiment after its last round."""
    return drained(covey.run(experiment, **options))


def signal_of(work: Callable[[], Any]) -> int:
    """Do this in a process of its own; the signal that ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
        child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status)


def refused(*words: str) -> pytest.RaisesExc[DataError]:
    """A DataError whose text has these words in this order."""
    return pytest.raises(DataError, match="(?s)" + ".*".join(map(re.escape, words)))


def labelled(
    sizes: Sequence[int],
    shape: Sequence[int],
    *,
    classes: int = 3,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> list[tuple[Tensor, Tensor]]:
    """Random examples of this shape with random labels, for devices of these sizes."""
    draw = torch.Generator().manual_seed(seed)
    pairs = []
    for size in sizes:
        x = torch.randn(size, *shape, generator=draw, dtype=dtype)
        pairs.append((x, torch.randint(classes, (size,), generator=draw)))
    return pairs


class Given(DataLoss):
    """The loss of a task on the batch of each step, or on `one` at every step.

    Only solvers that compute whole descents take it.
    """

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
