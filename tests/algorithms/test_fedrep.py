"""FedRep (Collins et al., 2021, Algorithm 1) by hand: heads first under a fixed base, then the base
under fixed heads.
"""

from dataclasses import replace

import pytest
import torch

from covey.algorithms import FedRep
from covey.runs.newcomers import Newcomers
from tests.algorithms.parts import DATA, Pair, deviation, pair, start, step
from tests.given import drained

EXACT = 1e-12


@pytest.mark.parametrize("sample", [None, 2])
def test_rounds_by_hand(sample: int | None) -> None:
    run = start(FedRep(sample=sample, head_steps=3, head_lr=0.2, steps=2, lr=0.1, batch=None))
    base, head = pair(run.module())
    own: dict[int, Pair] = {}
    for record in run:
        asked = record.cohorts["device"]
        for i in asked:
            now = (base, own[i][1] if i in own else head)
            for _ in range(3):
                now = step(now, DATA[i], head=0.2)
            for _ in range(2):
                now = step(now, DATA[i], base=0.1)
            own[i] = now
        base = torch.stack([own[i][0] for i in asked]).mean(0)
        assert deviation(run, "global", 0, (base, head)) <= EXACT
        assert all(deviation(run, "personal", i, own[i]) <= EXACT for i in own)


def test_only_the_shared_layers_are_sent() -> None:
    run = drained(start(FedRep(head_steps=1, steps=1, batch=None)))
    for direction in ("up", "down"):
        assert run.meter.traffic(direction=direction).values == 3 * 4 * 6


def test_a_new_device_fits_its_head_to_the_base_it_gets() -> None:
    """Gradient steps on least squares: the distance to the best head shrinks by I - lr H each."""
    run = drained(start(FedRep(head_steps=3, head_lr=0.2, steps=1, lr=0.05, batch=None), rounds=2))
    steps, lr = 400, 1.5
    long = replace(run.experiment, algorithm=FedRep(head_steps=steps, head_lr=lr, batch=None))
    new = Newcomers([long], [long.data.chosen([2])])
    base, start_head = pair(run.module())
    new_base, head = pair(new.task.space.fill(new.adapted(run.w, round=2)[0]))
    inputs, targets = DATA[2]
    features = inputs @ base.T
    best = torch.linalg.lstsq(features, targets[:, None]).solution.T
    hessian = features.T @ features / len(features)
    shrink = torch.eye(len(hessian), dtype=hessian.dtype) - lr * hessian
    expected = best + (start_head - best) @ torch.linalg.matrix_power(shrink, steps)
    assert torch.equal(new_base, base)
    assert (best - expected).norm() < 0.1 * (best - start_head).norm()
    torch.testing.assert_close(head, expected, rtol=0, atol=EXACT)
