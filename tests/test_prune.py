"""Importance against closed forms and autograd; masks against a loop, for any ratio and any ties."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from covey import descend
from covey.maths import prune

DRAW = torch.Generator().manual_seed(4)
N, P = 3, 5
ROOT = torch.randn(N, P, P, generator=DRAW, dtype=torch.float64)
H, A = ROOT @ ROOT.mT, torch.randn(N, P, generator=DRAW, dtype=torch.float64)
X = torch.randn(N, P, generator=DRAW, dtype=torch.float64)


def quadratic(x: Tensor) -> Tensor:
    """1/2 (x - a)' H (x - a) of every row."""
    far = (x - A)[:, :, None]
    return (far.mT @ H @ far)[:, 0, 0] / 2


def gradient(x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(quadratic(leaf).sum(), leaf)[0]


@pytest.mark.parametrize("steps", [1, 4])
def test_change_is_the_step_size_times_the_derivative(steps: int) -> None:
    """To first order in the step size: exactly for one step, and for several up to their number
    times lr squared.
    """
    lr = 1e-6
    found = prune.change(descend(X, gradient, steps=steps, lr=lr), X) / (steps * lr)
    torch.testing.assert_close(
        found, gradient(X).abs(), rtol=1e-7 if steps == 1 else 1e-3, atol=1e-7 if steps == 1 else 1e-3,
    )  # fmt: skip


@given(
    values=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    ratio=st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.floats(0, 1)),
    column=st.booleans(),
)
def test_a_mask_drops_exactly_the_ratio_and_of_equals_the_last(
    values: list[int], ratio: float, column: bool
) -> None:
    importance = torch.tensor([values, values[::-1]], dtype=torch.float32)
    found = prune.mask(
        importance, torch.tensor([[ratio], [ratio]], dtype=torch.float64) if column else ratio
    )
    dropped = min(math.floor(ratio * (1 + 1e-7) * len(values) + 0.5), len(values))
    for row, mask in zip(importance.tolist(), found.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda j: (-row[j], j))
        assert [j for j in range(len(row)) if mask[j]] == sorted(order[: len(row) - dropped])


@pytest.mark.parametrize("width", [1, 5, 7, 1000, 99999])
def test_a_list_of_ratios_drops_as_many_as_one_ratio_in_any_precision(width: int) -> None:
    importance = torch.rand(1, width, generator=DRAW)
    for k in range(21):
        ratio = k / 20
        wanted = (2 * k * width + 20) // 40  # a half rounds up, in whole numbers
        for given_as in (
            ratio,
            torch.tensor([[ratio]]),
            torch.tensor([[ratio]], dtype=torch.float64),
        ):
            assert int((~prune.mask(importance, given_as)).sum()) == wanted


def test_rows_have_ratios_of_their_own_and_there_may_be_none() -> None:
    importance = torch.rand(3, 10, generator=DRAW)
    kept = prune.mask(importance, torch.tensor([[0.0], [0.4], [1.0]])).sum(dim=1)
    assert kept.tolist() == [10, 6, 0]
    assert prune.mask(importance[:0], torch.zeros(0, 1)).shape == (0, 10)
    assert prune.mask(importance[:0], 0.5).shape == (0, 10)
