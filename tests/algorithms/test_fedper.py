"""FedPer (Arivazhagan et al., 2019) by hand: base and head step together, only the base is sent and
averaged.
"""

import pytest
import torch

from covey.algorithms import FedPer
from tests.algorithms.parts import DATA, Pair, deviation, pair, start, step
from tests.given import drained

EXACT = 1e-12


@pytest.mark.parametrize("sample", [None, 2])
def test_rounds_by_hand(sample: int | None) -> None:
    run = start(FedPer(sample=sample, steps=3, lr=0.1, batch=None, weight="samples"))
    base, head = pair(run.module())
    own: dict[int, Pair] = {}
    for record in run:
        asked = record.cohorts["device"]
        for i in asked:
            now = (base, own[i][1] if i in own else head)
            for _ in range(3):
                now = step(now, DATA[i], base=0.1, head=0.1)
            own[i] = now
        counts = {i: len(DATA[i][1]) for i in asked}
        weighted = torch.stack([counts[i] * own[i][0] for i in asked])
        base = weighted.sum(0) / sum(counts.values())
        # the global head stays as it began
        assert deviation(run, "global", 0, (base, head)) <= EXACT
        assert all(deviation(run, "personal", i, own[i]) <= EXACT for i in own)


def test_only_the_shared_layers_are_sent() -> None:
    run = drained(start(FedPer(steps=1, lr=0.1, batch=None)))
    for direction in ("up", "down"):
        # rounds, devices, weights of the base
        assert run.meter.traffic(direction=direction).values == 3 * 4 * 6


def test_heads_differ_and_the_base_is_one() -> None:
    run = drained(start(FedPer(steps=2, lr=0.1, batch=None), rounds=2))
    heads = torch.stack([pair(run.module("personal", i))[1] for i in range(4)])
    assert torch.pdist(heads.flatten(1)).min() > 1e-3
