"""Rows together = rows apart: workers and chunks change no bit of any model, score or byte count."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.laws.cases import PLAIN, Case, Conv, Odd, differences, every_algorithm, every_case, finished, state

CHUNKS: tuple[dict[str, int], ...] = ({"workers": 2}, {"workers": 3}, {"workers": 7}, {"memory": 1})


@every_case
def test_chunks_change_no_bit(case: Case) -> None:
    whole = state(finished(case))
    for chunks in CHUNKS:
        assert differences(whole, state(finished(case, **chunks))) == [], chunks


@every_algorithm
def test_chunks_change_no_bit_in_float64(case: Case) -> None:
    whole = state(finished(case, dtype=torch.float64))
    assert differences(whole, state(finished(case, dtype=torch.float64, workers=3))) == []
    assert differences(whole, state(finished(case, dtype=torch.float64, memory=1))) == []


@every_algorithm
def test_chunks_change_no_bit_of_a_module_that_runs_through_vmap(case: Case) -> None:
    whole = finished(case, model=Odd(), rounds=2)
    assert whole.simulator.task.forward.path == "vmap"
    assert differences(state(whole), state(finished(case, model=Odd(), rounds=2, workers=3, memory=1))) == []


@pytest.mark.parametrize("case", [PLAIN["FedAvg"], PLAIN["PerMFL"]], ids=str)
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_chunks_change_a_convolution_by_rounding_only(case: Case, dtype: torch.dtype, rounding: float) -> None:
    """A chunk of one row is a plain convolution, one of many a grouped one, and these add up in different orders."""
    whole, apart = (state(finished(case, model=Conv(), dtype=dtype, **chunks)) for chunks in ({}, {"memory": 1}))
    for key, rows in floats(whole):
        torch.testing.assert_close(apart[key], rows, rtol=rounding, atol=rounding)


def floats(state: dict[str, Any]) -> list[tuple[str, Tensor]]:
    return [(key, rows) for key, rows in state.items() if isinstance(rows, Tensor) and rows.is_floating_point()]
