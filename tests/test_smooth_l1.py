"""rho log cosh(x / rho) against what the papers and its own definition say (facts 2.6 and 7.10)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey.engine.solvers import smooth_l1
from covey.errors import ConfigError

RHO = 6e-5
quick = settings(max_examples=200)
numbers = st.floats(-1e3, 1e3, allow_nan=False)
rhos = st.floats(1e-5, 10.0)


def signs(x: Tensor) -> list[bool]:
    return torch.signbit(x).tolist()


def descend(
    x: float, *, lr: float, gamma: float, lam: float, steps: int = 3000, g: float = 0.0
) -> list[float]:
    """Gradient descent on g x + gamma phi(x) + lam/2 x^2: the last two points, where a 2-cycle
    shows.
    """
    path = [x]
    for _ in range(steps):
        path.append(path[-1] - lr * (g + gamma * math.tanh(path[-1] / RHO) + lam * path[-1]))
    return path[-2:]


@quick
@given(x=numbers, rho=rhos)
def test_it_is_at_most_rho_log_2_below_the_l1_norm(x: float, rho: float) -> None:
    gap = abs(x) - smooth_l1.value(torch.tensor([x], dtype=torch.float64), rho).item()
    assert -1e-12 <= gap <= rho * math.log(2) + 1e-12


def test_it_is_the_sum_of_log_cosh_over_the_last_axis() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        smooth_l1.value(x, 0.5), (0.5 * torch.log(torch.cosh(x / 0.5))).sum(-1)
    )


@quick
@given(x=numbers, y=numbers, rho=rhos)
def test_its_gradient_is_lipschitz(x: float, y: float, rho: float) -> None:
    a, b = smooth_l1.grad(torch.tensor([x, y], dtype=torch.float64), rho).tolist()
    assert abs(a - b) <= abs(x - y) / rho + 1e-12


def test_it_does_not_overflow() -> None:
    x = torch.tensor([[1e6 * RHO * 2], [-1e30], [0.0]])
    assert smooth_l1.value(x, RHO)[:2].tolist() == pytest.approx([1e6 * RHO * 2, 1e30], rel=1e-5)
    assert smooth_l1.value(x, RHO)[2] == 0
    assert smooth_l1.grad(x, RHO).flatten().tolist() == [1.0, -1.0, 0.0]


@quick
@given(x=st.floats(-5, 5), rho=st.floats(0.1, 2.0))
def test_the_gradient_is_that_of_the_value(x: float, rho: float) -> None:
    point = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    (automatic,) = torch.autograd.grad(smooth_l1.value(point, rho), point)
    h = torch.tensor([1e-5], dtype=torch.float64)
    difference = (smooth_l1.value(point + h, rho) - smooth_l1.value(point - h, rho)) / (2 * h)
    exact = smooth_l1.grad(point, rho).item()
    assert exact == pytest.approx(automatic.item(), abs=1e-12)
    assert exact == pytest.approx(difference.item(), abs=1e-6)


@pytest.mark.parametrize("g", [0.0, 0.0004, -0.0009, 0.00099])
def test_it_rests_near_zero_but_not_at_zero(g: float) -> None:
    _, x = descend(0.01, lr=0.05, gamma=0.001, lam=0.0, g=g)
    assert x == pytest.approx(RHO * math.atanh(-g / 0.001), abs=1e-12)
    assert abs(x) < 2.65 * RHO
    limit = smooth_l1.threshold(rho=RHO, lr=0.05, gamma=0.001)
    assert smooth_l1.cut(torch.tensor([x]), limit).item() == 0


@pytest.mark.parametrize(
    ("curvature", "settles"), [(1.9, True), (1.99, True), (2.01, False), (2.1, False)]
)
def test_descent_is_stable_up_to_a_curvature_of_two_over_lr(
    curvature: float, settles: bool
) -> None:
    lam, lr = 5.0, 0.05
    gamma = (curvature / lr - lam) * RHO  # so that lr (gamma / rho + lam) = curvature
    before, after = descend(1e-6, lr=lr, gamma=gamma, lam=lam)
    assert (abs(after) < 1e-9) is settles
    assert abs(before + after) < 1e-9
    assert abs(after) <= lr * gamma / (2 - lr * lam)


@pytest.mark.parametrize("curvature", [2.01, 2.1, 2.5, 4.0, 10.0, 100.0])
def test_the_amplitude_solves_its_equation_and_reaches_its_limit_only_far_past_the_edge(
    curvature: float,
) -> None:
    """a = limit tanh(a / rho): less than half of the limit just past the edge, 99 % of it from a =
    2.65 rho on.
    """
    lam, lr = 5.0, 0.05
    gamma = (curvature / lr - lam) * RHO
    limit = lr * gamma / (2 - lr * lam)
    before, after = descend(1e-6, lr=lr, gamma=gamma, lam=lam, steps=20_000)
    amplitude = abs(after)
    assert before == pytest.approx(-after, rel=1e-6)
    assert amplitude == pytest.approx(limit * math.tanh(amplitude / RHO), rel=1e-6)
    assert amplitude <= limit * (1 + 1e-12)
    assert (amplitude > 0.99 * limit) == (amplitude > 2.65 * RHO)
    assert (amplitude < 0.5 * limit) == (curvature < 2.15)


@pytest.mark.parametrize(("lam", "amplitude"), [(25.0, 5.3e-4), (30.0, 8.0e-4)])
def test_past_the_edge_it_alternates_and_the_threshold_is_above(
    lam: float, amplitude: float
) -> None:
    before, after = descend(0.3, lr=0.05, gamma=0.008, lam=lam)
    assert before == pytest.approx(-after)
    assert abs(after) == pytest.approx(amplitude, rel=0.01)
    assert abs(after) == pytest.approx(0.05 * 0.008 / (2 - 0.05 * lam), rel=1e-6)
    limit = smooth_l1.threshold(rho=RHO, lr=0.05, gamma=0.008, lam=lam)
    assert limit == pytest.approx(2 * abs(after), rel=1e-6)


def test_the_papers_small_penalty_is_past_the_edge_too() -> None:
    assert 0.05 * (25 + 0.001 / RHO) > 2
    before, after = descend(0.3, lr=0.05, gamma=0.001, lam=25.0)
    assert before == pytest.approx(-after)
    assert abs(after) > 1e-6


def test_the_threshold() -> None:
    assert smooth_l1.threshold(rho=RHO, lr=0.05, gamma=0.0, lam=100.0) is None
    assert smooth_l1.threshold(rho=RHO, lr=0.05, gamma=0.001) == 3 * RHO
    assert smooth_l1.threshold(rho=RHO, lr=0.05, gamma=0.008, lam=25.0) == pytest.approx(
        2 * 0.0004 / 0.75
    )
    with pytest.raises(ConfigError, match=r"0\.05 \* 40\.0 = 2 must be below 2: the step diverges"):
        smooth_l1.threshold(rho=RHO, lr=0.05, gamma=0.001, lam=40.0)


@quick
@given(x=st.lists(numbers, min_size=1, max_size=8), limit=st.floats(0, 10))
def test_the_soft_threshold(x: list[float], limit: float) -> None:
    rows = torch.tensor([x, x], dtype=torch.float64)
    expected = torch.sign(rows) * (rows.abs() - limit).clamp(min=0)
    got = smooth_l1.soft(rows, limit)
    torch.testing.assert_close(got, expected)
    by_row = smooth_l1.soft(rows, torch.tensor([[limit], [0.0]], dtype=torch.float64))
    assert torch.equal(by_row[0], got[0])
    assert torch.equal(by_row[1], rows[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_are_plus_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([-0.5, -0.0, 0.0, 0.5, -1.0, 1.0], dtype=dtype)
    for zeros in (
        smooth_l1.soft(x, 1.0),
        smooth_l1.soft(x, torch.ones(6, 1))[0],
        smooth_l1.cut(x, 1.0),
    ):
        assert zeros.tolist() == [0.0] * 6
        assert signs(zeros) == [False] * 6


def test_the_soft_threshold_keeps_the_dtype() -> None:
    rows = smooth_l1.soft(torch.ones(1, 2), torch.ones(1, 1, dtype=torch.float64))
    assert rows.dtype == torch.float32


def test_the_cut_is_not_in_place_and_hides_no_divergence() -> None:
    rows = torch.tensor([[1.0, -2.0, 0.5, math.nan, -math.inf]])
    kept = rows.clone()
    got = smooth_l1.cut(rows, 1.0)
    torch.testing.assert_close(
        got, torch.tensor([[0.0, -2.0, 0.0, math.nan, -math.inf]]), equal_nan=True
    )
    torch.testing.assert_close(rows, kept, equal_nan=True)
    assert smooth_l1.cut(rows, None) is rows


def test_nonzeros_is_what_survives_the_cut() -> None:
    rows = torch.tensor([[1.0, -2.0, 0.5, 0.0], [0.0, 0.0, -0.0, 0.0]], dtype=torch.float64)
    assert smooth_l1.nonzeros(rows, 1.0).tolist() == [0.25, 0.0]
    assert smooth_l1.nonzeros(rows, None).tolist() == [0.75, 0.0]
    assert smooth_l1.nonzeros(rows, None).dtype == torch.float64
    assert smooth_l1.nonzeros(torch.empty(0, 4), 1.0).shape == (0,)
    assert smooth_l1.nonzeros(torch.empty(2, 0), 1.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_penalty_drops_below_the_floor_and_not_at_it(dtype: torch.dtype) -> None:
    rows = torch.tensor([[1.0] * k + [0.01] * (10 - k) for k in (1, 2, 3)], dtype=dtype)
    got = smooth_l1.floored(0.5, rows, threshold=0.1, floor=0.2, low=0.25)
    assert got.dtype == dtype
    assert got.tolist() == [[0.25], [0.5], [0.5]]
    assert smooth_l1.floored(0.5, rows, threshold=None, floor=0.2, low=0.25).tolist() == [[0.5]] * 3
    assert smooth_l1.floored(0.5, rows[:0], threshold=0.1, floor=0.2, low=0.25).shape == (0, 1)
