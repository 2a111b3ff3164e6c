"""Rows together = rows apart: workers and chunks change no bit of any model, score or byte count."""

import os

import pytest
import torch
from torch import nn

from covey import models
from tests.laws.cases import (
    CLASSES,
    INPUTS,
    PLAIN,
    Case,
    Conv,
    Odd,
    differences,
    every_algorithm,
    every_case,
    finished,
    state,
    whole,
)

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
CHUNKS: tuple[dict[str, int], ...] = ({"workers": 2}, {"workers": 3}, {"workers": 7}, {"memory": 1})
ONE_BY_ONE = {"workers": 3, "memory": 1}
"""Every row alone, in three threads: what every variant of an algorithm is held to in CI."""


@every_case
def test_chunks_change_no_bit(case: Case) -> None:
    together = state(whole(case.name))
    for chunks in chunks_of(case):
        assert differences(together, state(finished(case, **chunks))) == [], chunks


def chunks_of(case: Case) -> tuple[dict[str, int], ...]:
    if ALL:
        return CHUNKS
    return CHUNKS[1:] if case.name in PLAIN else (ONE_BY_ONE,)


@every_algorithm
def test_chunks_change_no_bit_in_float64(case: Case) -> None:
    together = state(whole(case.name, torch.float64))
    apart = state(finished(case, dtype=torch.float64, **ONE_BY_ONE))
    assert differences(together, apart) == []


@every_algorithm
def test_chunks_change_no_bit_of_a_module_that_runs_through_vmap(case: Case) -> None:
    together = finished(case, model=Odd(), rounds=2)
    assert together.runtime.task.forward.path == "vmap"
    apart = finished(case, model=Odd(), rounds=2, **ONE_BY_ONE)
    assert differences(state(together), state(apart)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", [PLAIN["FedAvg"], PLAIN["PerMFL"]], ids=str)
def test_chunks_change_no_bit_of_a_convolution(case: Case, dtype: torch.dtype) -> None:
    small = models.cnn((1, 4, 4), channels=(3,), hidden=6, classes=CLASSES, kernel=3)
    for model in (Conv(), nn.Sequential(nn.Linear(INPUTS, 16), small)):
        together = finished(case, model=model, dtype=dtype)
        assert together.runtime.task.forward.path == "each"
        for chunks in CHUNKS if ALL else CHUNKS[1::2]:
            apart = finished(case, model=model, dtype=dtype, **chunks)
            assert differences(state(together), state(apart)) == [], chunks
