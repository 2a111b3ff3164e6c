"""Scaling: whose examples decide it, and that it is the same function for everybody."""

from typing import Any

import numpy as np
import pytest
import torch

from covey.data import Scaling, scaling
from covey.errors import DataError

PIXELS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (50, 3, 4, 5), dtype=np.uint8))
TRAIN = torch.arange(20)


def test_unit_and_half_need_no_statistics() -> None:
    unit, half = (scaling(kind, PIXELS, TRAIN)(PIXELS) for kind in ("unit", "half"))
    torch.testing.assert_close(unit, PIXELS.float() / 255)
    torch.testing.assert_close(half, 2 * unit - 1)
    assert torch.equal(scaling("none", PIXELS, TRAIN)(PIXELS), PIXELS.float())


@pytest.mark.parametrize(
    ("kind", "over"), [("channel", (0, 2, 3)), ("pixel", (0,)), ("standard", (0,))]
)
def test_statistics_are_those_of_training_examples_alone(kind: Any, over: tuple[int, ...]) -> None:
    how = scaling(kind, PIXELS, TRAIN)
    seen = PIXELS[:20].double()
    mean = seen.mean(over, keepdim=True)[0]
    deviation = seen.std(over, keepdim=True, correction=0)[0]
    eps = 1e-3 if kind == "pixel" else 0.0
    torch.testing.assert_close(
        how(PIXELS).double(), (PIXELS.double() - mean) / (deviation + eps), rtol=1e-5, atol=1e-5
    )
    other = PIXELS.clone()
    other[20:] = 255 - other[20:]
    again = scaling(kind, other, TRAIN)
    assert torch.equal(how.shift, again.shift)
    assert torch.equal(how.factor, again.factor)


def test_the_papers_own_looks_at_everything() -> None:
    how = scaling("paper", PIXELS, TRAIN)
    everything = PIXELS.double()
    want = (everything - everything.mean(0)) / (everything.std(0, correction=0) + 1e-3)
    torch.testing.assert_close(how(PIXELS).double(), want, rtol=1e-5, atol=1e-5)


def test_a_feature_that_never_varies_is_only_centred() -> None:
    values = torch.tensor([[5.0, 1e9], [5.0, 1e9 + 2]], dtype=torch.float64)
    how = scaling("standard", values, torch.arange(2))
    assert torch.equal(how(values), torch.tensor([[0.0, -1.0], [0.0, 1.0]], dtype=torch.float64))


def test_a_channel_of_flat_examples_is_all_of_them() -> None:
    flat = PIXELS.reshape(50, -1)
    how = scaling("channel", flat, TRAIN)
    assert how.shift.numel() == 1
    assert abs(float(how(flat[:20]).mean())) < 1e-5


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(DataError, match="normalise = 'sphere': choose one of 'none', 'unit'"):
        scaling("sphere", PIXELS, TRAIN)  # type: ignore[arg-type]
    assert Scaling("none", torch.zeros(()), torch.ones(()))(PIXELS).dtype == torch.float32
