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
)

ALL = bool(os.environ.get("COVEY_TEST_ALL"))
CHUNKS: tuple[dict[str, int], ...] = ({"workers": 2}, {"workers": 3}, {"workers": 7}, {"memory": 1})


@every_case
def test_chunks_change_no_bit(case: Case) -> None:
    whole = state(finished(case))
    for chunks in CHUNKS if ALL or case.name in PLAIN else CHUNKS[1::2]:
        assert differences(whole, state(finished(case, **chunks))) == [], chunks


@every_algorithm
def test_chunks_change_no_bit_in_float64(case: Case) -> None:
    whole = state(finished(case, dtype=torch.float64))
    assert differences(whole, state(finished(case, dtype=torch.float64, workers=3))) == []
    assert differences(whole, state(finished(case, dtype=torch.float64, memory=1))) == []


@every_algorithm
def test_chunks_change_no_bit_of_a_module_that_runs_through_vmap(case: Case) -> None:
    whole = finished(case, model=Odd(), rounds=2)
    assert whole.runtime.task.forward.path == "vmap"
    assert (
        differences(state(whole), state(finished(case, model=Odd(), rounds=2, workers=3, memory=1)))
        == []
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", [PLAIN["FedAvg"], PLAIN["PerMFL"]], ids=str)
def test_chunks_change_no_bit_of_a_convolution(case: Case, dtype: torch.dtype) -> None:
    small = models.cnn((1, 4, 4), channels=(3,), hidden=6, classes=CLASSES, kernel=3)
    for model in (Conv(), nn.Sequential(nn.Linear(INPUTS, 16), small)):
        whole = finished(case, model=model, dtype=dtype)
        assert whole.runtime.task.forward.path == "each"
        for chunks in CHUNKS:
            assert (
                differences(state(whole), state(finished(case, model=model, dtype=dtype, **chunks)))
                == []
            ), chunks
