"""The shares are the best there are: against a generic solver, by their certificate, and by what
must hold of any optimum.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.radio.policies import assigned as allocate
from covey.radio.policies import fastest
from covey.radio.problem import root
from covey.radio.solve import admit, best, certify, level
from covey.wireless import Problem, Reason
from experiments.plan.run import generic
from tests.radio.instances import problem

quick = settings(max_examples=25)
seeds, sizes, flags = st.integers(0, 2**32 - 1), st.integers(1, 12), st.booleans()
caps = st.sampled_from([0.6, 0.95, 1.0])


def cost(p: Problem, ratio: torch.Tensor) -> float:
    return float((p.weight * ratio).sum())


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_a_generic_solver_finds_the_same(density: bool, mask: bool) -> None:
    for seed in range(12):
        p = problem(seed, density=density, mask=mask, rho_max=(0.95, 1.0)[seed % 2])
        found = best(p)
        asked = found.reason == 0
        if not asked.any():
            continue
        theirs, sum_of_ratios = generic(p)
        mine = cost(p.take(asked), found.ratio[asked])
        assert mine <= sum_of_ratios + 1e-12
        assert mine == pytest.approx(sum_of_ratios, rel=1e-6)
        assert (found.share[asked] - theirs).abs().max() < 1e-3


@quick
@given(seed=seeds, n=sizes, groups=st.integers(1, 4), density=flags, mask=flags, rho_max=caps)
def test_feasible_and_certified(
    seed: int, n: int, groups: int, density: bool, mask: bool, rho_max: float
) -> None:
    p = problem(seed, devices=n, groups=groups, density=density, mask=mask, rho_max=rho_max)
    for solver in (best, level):
        found = solver(p)
        assert max(found.certificate.worst().values()) < 1e-9
        assert (p.total(found.share) <= 1 + 1e-12).all()
        asked = found.reason == Reason.ASKED
        assert (found.share[~asked] == 0).all()
        assert (found.ratio[~asked] == 1).all()
        assert (found.ratio[asked] <= rho_max + 1e-9).all()
        assert (found.ratio >= 0).all()
        q, kept = p.take(asked), found.kept[asked]
        e = q.rate(found.share[asked])
        time = kept * q.compute + torch.where(e > 0, (kept * q.send + q.mask) / e, 0.0)
        assert (time <= q.budget * (1 + 1e-9)).all()  # everybody asked meets the deadline ...
        # ... and at it, or prunes nothing
        assert ((time >= q.budget * (1 - 1e-9)) | (kept > 1 - 1e-9) | (kept < 1e-9)).all()


@quick
@given(seed=seeds, n=sizes, density=flags, rho_max=caps, data=st.data())
def test_order_does_not_matter(
    seed: int, n: int, density: bool, rho_max: float, data: st.DataObject
) -> None:
    p = problem(seed, devices=n, density=density, rho_max=rho_max)
    order = torch.tensor(data.draw(st.permutations(range(n))))
    plain, shuffled = best(p), best(p.take(order))
    assert torch.allclose(plain.share[order], shuffled.share, rtol=1e-9, atol=1e-12)
    assert torch.equal(plain.reason[order], shuffled.reason)


@quick
@given(seed=seeds, n=sizes, density=flags, factor=st.floats(1e-6, 1e6))
def test_the_unit_of_time_does_not_matter(seed: int, n: int, density: bool, factor: float) -> None:
    p = problem(seed, devices=n, density=density, mask=True)
    scaled = replace(
        p, **{name: getattr(p, name) * factor for name in ("budget", "compute", "send", "mask")}
    )
    one, other = best(p), best(scaled)
    assert torch.allclose(one.share, other.share, rtol=1e-8, atol=1e-10)
    assert torch.allclose(one.price, other.price, rtol=1e-8)


@quick
@given(seed=seeds, n=sizes, density=flags, more=st.floats(1.0, 10.0))
def test_more_time_or_a_faster_channel_never_hurts(
    seed: int, n: int, density: bool, more: float
) -> None:
    """Without a cap everybody is asked; under one it holds as long as nobody has to be dropped."""
    p = problem(seed, devices=n, density=density, rho_max=1.0)
    now = cost(p, best(p).ratio)
    assert cost(p, best(replace(p, budget=p.budget * more)).ratio) <= now + 1e-12
    assert cost(p, best(replace(p, send=p.send / more)).ratio) <= now + 1e-12
    assert cost(p, best(replace(p, compute=p.compute / more)).ratio) <= now + 1e-12


@quick
@given(seed=seeds, n=sizes, density=flags)
def test_each_policy_is_the_best_in_its_own_sense(seed: int, n: int, density: bool) -> None:
    p = problem(seed, devices=n, density=density, rho_max=1.0)
    sums, worst = {}, {}
    for name, found in {"best": best(p), "level": level(p), "equal": allocate(p)}.items():
        sums[name], worst[name] = cost(p, found.ratio), float(found.ratio.max())
    assert sums["best"] <= min(sums.values()) + 1e-12
    assert worst["level"] <= min(worst.values()) + 1e-12


@quick
@given(seed=seeds, n=st.integers(2, 12), groups=st.integers(2, 5), density=flags)
def test_groups_do_not_meet(seed: int, n: int, groups: int, density: bool) -> None:
    p = problem(seed, devices=n, groups=groups, density=density)
    together = best(p)
    for g in range(groups):
        mine = p.group == g
        alone = best(replace(p.take(mine), group=torch.zeros(n, dtype=torch.int64), groups=1))
        assert torch.allclose(together.share[mine], alone.share, rtol=1e-9, atol=1e-12)


@quick
@given(seed=seeds, density=flags, weight=st.floats(1.5, 100.0))
def test_a_heavier_device_prunes_less(seed: int, density: bool, weight: float) -> None:
    p = problem(seed, density=density, rho_max=1.0)
    heavy = p.weight.clone()
    heavy[0] = weight
    assert best(replace(p, weight=heavy)).ratio[0] <= best(p).ratio[0] + 1e-12


@quick
@given(seed=seeds, density=flags)
def test_the_fair_level_is_the_same_for_all(seed: int, density: bool) -> None:
    found = level(problem(seed, density=density))
    ratios = found.ratio[found.reason == Reason.ASKED]
    assert len(ratios) == 0 or ratios.max() - ratios.min() < 1e-12


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("rho_max", [0.95, 1.0])
def test_many_cells_over_many_orders_of_magnitude_are_certified(
    density: bool, rho_max: float
) -> None:
    p = problem(11, devices=12, groups=400, density=density, mask=True, rho_max=rho_max)
    # as good as random
    exponents = torch.linspace(-6, 3, len(p.budget), dtype=torch.float64)[torch.argsort(p.budget)]
    wide = replace(p, send=p.send * 10**exponents, compute=p.compute * 10 ** exponents.flip(0))
    wide = wide if p.snr is None else replace(wide, snr=p.snr * 10 ** exponents.roll(7))
    for solver in (best, level):
        found = solver(wide)
        assert max(found.certificate.worst().values()) < 1e-9
        assert (found.reason == Reason.ASKED).any()


def test_remarks_1_and_2() -> None:
    """The share peaks at s = A / (4 price) and ends at s = A / price; the ratio 1 - (A - sqrt(price
    s A)) / c rises with s.
    """
    a, c, price = 1.0, 0.8, 2.0
    s = torch.linspace(0.01, 0.499, 2000, dtype=torch.float64)
    ones = torch.ones_like(s)
    p = Problem(
        a * ones, c * ones, s, 0 * ones, ones, None, torch.zeros(2000, dtype=torch.int64), 1, 1.0
    )
    share = p.demand(price * ones, ones)
    assert s[share.argmax()] == pytest.approx(a / (4 * price), abs=3e-4)
    assert (share[s < 0.124].diff() > 0).all()
    assert share[-1] < 2e-3
    ratio = 1 - p.kept(share)
    assert torch.allclose(ratio, 1 - (a - torch.sqrt(price * s * a)) / c)
    assert (ratio.diff() > 0).all()
    faster = replace(p, compute=p.compute / 1.1)
    assert (faster.demand(price * ones, ones) > share).all()


def test_no_pruning_where_there_is_band_for_all() -> None:
    p = replace(problem(3), budget=torch.full((8,), 10.0, dtype=torch.float64))
    found = best(p)
    assert (found.ratio == 0).all()
    assert found.price.tolist() == [0]
    assert found.share.sum() < 1


def test_the_largest_needs_are_dropped_until_the_others_fit() -> None:
    """Least shares .5, .3, .25 and .48 of a band: .5 goes, then .48."""
    share = torch.tensor([0.5, 0.3, 0.25, 0.48], dtype=torch.float64)
    ones = torch.ones(4, dtype=torch.float64)
    # With A = c = 1, keeping .5 takes .5 send / (1 - .5) of the band, which is send.
    p = Problem(ones, ones, share, 0 * ones, ones, None, torch.zeros(4, dtype=torch.int64), 1, 0.5)
    assert admit(p)[1].tolist() == pytest.approx(share.tolist())
    assert admit(p)[0].tolist() == [Reason.CROWDED, 0, 0, Reason.CROWDED]
    assert max(best(p).certificate.worst().values()) < 1e-12


def test_each_reason() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    budget = torch.tensor([-0.1, 0.04, 1.0, 1.0], dtype=torch.float64)
    send = torch.tensor([1, 1, 30, 1], dtype=torch.float64)
    p = Problem(
        budget, ones, send, 0 * ones, ones, None, torch.zeros(4, dtype=torch.int64), 1, 0.95
    )
    assert admit(p)[0].tolist() == [Reason.TIME, Reason.COMPUTING, Reason.CHANNEL, Reason.ASKED]


def test_nobody_in_a_cell_and_no_devices_at_all() -> None:
    p = problem(0, devices=4)
    empty = best(replace(p, groups=3, group=p.group + 2))
    assert empty.price[:2].tolist() == [0, 0]
    assert len(best(p.take(torch.zeros(4, dtype=torch.bool))).share) == 0


@quick
@given(seed=seeds, density=flags)
def test_a_certificate_tells_the_best_shares_from_others(seed: int, density: bool) -> None:
    """The gap is a bound: what the optimum gains over any other shares is never more."""
    p = problem(seed, density=density, rho_max=1.0)
    found, equal = best(p), allocate(p)
    high = p.share(1.0).clamp(max=1.0)
    shares = equal.share.minimum(high)
    other = certify(p, shares, found.price, torch.zeros_like(high), high)
    gain = cost(p, (1 - p.kept(shares)).clamp(0, 1)) - cost(p, found.ratio)
    assert gain <= float(other.gap) * float(p.kept(shares).sum()) + 1e-12


@quick
@given(seed=seeds, n=sizes, density=flags, ratio=st.sampled_from([0.0, 0.5, 0.9]))
def test_the_fastest_shares_end_together(seed: int, n: int, density: bool, ratio: float) -> None:
    p = problem(seed, devices=n, density=density, mask=True)
    found = fastest(p, ratio=ratio)
    time = (
        (1 - ratio) * p.compute + ((1 - ratio) * p.send + p.mask) / p.rate(found.share) - p.budget
    )
    even = (
        (1 - ratio) * p.compute
        + ((1 - ratio) * p.send + p.mask) / p.rate(torch.full_like(p.send, 1 / n))
        - p.budget
    )
    assert time.max() - time.min() < 1e-9 * float(p.send.max() + p.compute.max())
    assert time.max() <= even.max() + 1e-12
    assert found.share.sum() == pytest.approx(1, abs=1e-9)


@quick
@given(seed=seeds, density=flags)
def test_slopes_are_derivatives_and_fall(seed: int, density: bool) -> None:
    p = problem(seed, density=density, mask=True)
    b = torch.linspace(0.01, 0.99, 8, dtype=torch.float64)
    step = 1e-6 * b
    assert torch.allclose(p.slope(b), (p.kept(b + step) - p.kept(b - step)) / (2 * step), rtol=1e-6)
    bend = b * (p.slope(b + step).log() - p.slope(b - step).log()) / (2 * step)
    assert torch.allclose(p.bend(b), bend, rtol=1e-5, atol=1e-8)
    assert (p.bend(b) < 0).all()
    assert torch.allclose(p.share(p.kept(b).clamp(max=1e9)), b, rtol=1e-9)


def test_a_weak_signal_loses_no_digits() -> None:
    """At an snr of 1e-9 the slope of the rate is snr^2 / 2 over log(1 + snr); a difference would
    have lost half the digits.
    """
    p = replace(problem(0, devices=1, density=True), snr=torch.tensor([1e-9], dtype=torch.float64))
    assert p.rate_slope(torch.ones(1, dtype=torch.float64)).item() == pytest.approx(
        0.5e-9, rel=2e-9
    )
    assert max(best(p).certificate.worst().values()) < 1e-9


def test_a_root_beyond_the_bracket_is_its_end() -> None:
    start = torch.zeros(1, dtype=torch.float64)
    found = root(lambda x: (x - 3, torch.ones_like(x)), start, low=-1.0, high=1.0)
    assert found.item() == pytest.approx(1.0)
