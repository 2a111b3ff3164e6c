"""Work in several threads that fails or is dropped: nothing happens afterwards, and nothing stays."""

import dataclasses
import gc
import threading
import weakref
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import covey
from tests import peek


@dataclasses.dataclass(frozen=True)
class Slow(covey.Algorithm):
    """From round 1 on, device 0 fails at once; the others keep something only when they hear of it."""

    failed: ClassVar[threading.Event] = threading.Event()

    def server(self, me: covey.Nodes, w: Tensor) -> Tensor:
        return me.ask(self.device, w).mean()

    def device(self, me: covey.Nodes, w: Tensor) -> Tensor:
        if me.round and 0 in me.ids.tolist():
            self.failed.set()
            raise KeyboardInterrupt
        if me.round:
            assert self.failed.wait(10)
            threading.Event().wait(0.2)
        return me.keep("personal", w + 1)


def experiment(rounds: int = 3) -> covey.Experiment:
    data = covey.data.synthetic(devices=8, sizes=[20] * 8, seed=1)
    return covey.Experiment(
        Slow(), data, covey.models.linear(60, 10), covey.Tree.flat(8), rounds=rounds, workers=4
    )


def test_a_round_that_fails_in_one_thread_leaves_nothing_of_the_others() -> None:
    Slow.failed.clear()
    run = covey.run(experiment())
    next(run)
    before, sent = run.rows("personal")[1].clone(), run.meter.bytes()
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert torch.equal(run.rows("personal")[1], before)
    assert peek.store(run).rounds("device", "personal", torch.arange(8)).tolist() == [0] * 8
    assert run.meter.bytes() == sent
    assert run.round == 1


def test_a_run_that_is_dropped_is_freed_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        run = covey.run(experiment(rounds=1))
        list(run)
        simulator = weakref.ref(run.runtime)
        del run
        assert simulator() is None
    finally:
        gc.enable()
