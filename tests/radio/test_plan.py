"""Plans of whole scenarios: several rounds and cells, who is left out and why, what more band or
time does.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import ConfigError
from covey.radio.plan import plan_for
from covey.wireless import (
    POLICIES,
    Cells,
    Channel,
    Devices,
    Noise,
    Plan,
    Reason,
    Scenario,
    Spread,
    Work,
    fair,
    optimal,
    plan,
    weighted,
)

quick = settings(max_examples=15)
seeds = st.integers(0, 10**6)
NOISES = {"power": Noise(1e-14), "density": Noise(10**-20.4, per_hertz=True)}


def scenario(
    seed: int = 0, *, devices: int = 10, cells: int = 1, noise: str = "power", **changes: Any
) -> Scenario:
    values: dict[str, Any] = {
        "deadline": 0.025,
        "rho_max": 0.95,
        "work": Work(20_000, 5_000, steps=5, personal_steps=3),
        **changes,
    }
    population = Devices.of(
        torch.arange(devices) % cells, distance=Spread("disc", (20.0, 200.0)), cpu=3e9,
        cycles=Spread("uniform", (15.0, 40.0)), power=0.63, seed=seed,
    )  # fmt: skip
    return Scenario(
        population, Cells.of(20e6, count=cells), Channel(NOISES[noise]), seed=seed, **values
    )


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_makes_a_plan(policy: str, noise: str) -> None:
    done = plan(scenario(cells=2, noise=noise), POLICIES[policy], rounds=3)
    assert done.share.shape == done.ratio.shape == done.formula.latency.shape == (3, 10)
    for cell in range(2):
        assert (done.share[:, cell::2].sum(1) <= 1 + 1e-9).all()
    summary = done.summary()
    assert math.isfinite(summary["round_ms"])
    if policy in ("optimal", "fair", "pruning_only"):
        assert not done.late(done.formula).any()
        assert max(done.certificate.worst().values()) < 1e-9


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_cell_has_the_same_bits_beside_others(policy: str, noise: str) -> None:
    """Shares are found for all cells in the same steps; where one needs more of them the others
    have stopped.
    """
    whole = scenario(5, devices=40, cells=5, noise=noise)
    together = plan(whole, POLICIES[policy])
    for cell in range(5):
        mine = (whole.devices.cell == cell).nonzero()[:, 0]
        alone = replace(
            whole,
            devices=replace(whole.devices.take(mine), cell=torch.zeros(8, dtype=torch.int64)),
            cells=Cells.of(20e6),
        )
        found = plan_for(together.gain[:, mine], alone, POLICIES[policy], rounds=range(1))
        assert torch.equal(found.share, together.share[:, mine])
        assert torch.equal(found.kept, together.kept[:, mine])


def test_rounds_together_are_rounds_apart() -> None:
    together = plan(scenario(cells=2), rounds=range(2, 6))
    for row, number in enumerate(range(2, 6)):
        alone = plan(scenario(cells=2), rounds=range(number, number + 1))
        assert torch.equal(together.gain[row], alone.gain[0])
        assert torch.equal(together.share[row], alone.share[0])


@quick
@given(seed=seeds, noise=st.sampled_from(list(NOISES)), factor=st.floats(1.0, 4.0))
def test_more_band_and_more_time_never_hurt(seed: int, noise: str, factor: float) -> None:
    s = scenario(seed, noise=noise, rho_max=1.0)
    now = plan(s).summary()["sum_ratio"]
    assert plan(replace(s, deadline=s.deadline * factor)).summary()["sum_ratio"] <= now + 1e-12
    assert plan(replace(s, cells=Cells.of(20e6 * factor))).summary()["sum_ratio"] <= now + 1e-12


def test_everybody_meets_the_deadline_at_it_or_prunes_nothing() -> None:
    done = plan(scenario(), rounds=20)
    at = (done.formula.latency - 0.025).abs() < 1e-12
    assert (at | (done.ratio == 0) | ~done.asked).all()


def _with(column: str, value: float, **changes: Any) -> Plan:
    """A plan in which one thing of device 3 is different."""
    s = scenario(**changes)
    columns = {
        "cycles": torch.full_like(s.devices.cycles, 20.0),
        column: getattr(s.devices, column).clone(),
    }
    columns[column][3] = value
    return plan(replace(s, devices=replace(s.devices, **columns)))


@pytest.mark.parametrize(
    ("column", "value", "reason", "words"),
    [
        ("cpu", 1e7, Reason.TIME, "its personal and probe steps take"),
        ("cpu", 30e6, Reason.COMPUTING, "need a ratio above 0.95"),
        ("distance", 3e4, Reason.CHANNEL, "over the whole band"),
    ],
)
def test_who_is_left_out_is_named_with_the_reason(
    column: str, value: float, reason: Reason, words: str
) -> None:
    """At 30 MHz 20 cycles a weight take 23.3 ms of personal and probe steps, and 66.7 ms for the
    rest: 1.7 ms are 2.5 % of it.
    """
    done = _with(column, value)
    assert done.reason[0, 3] == reason
    assert words in done.why(3)
    assert done.share[0, 3] == 0
    assert done.ratio[0, 3] == 1
    assert done.formula.latency[0, 3] == 0
    assert done.formula.joules[0, 3] == 0
    assert done.asked[0].sum() == 9


def test_a_crowd_loses_its_neediest() -> None:
    done = plan(scenario(devices=300))
    left = done.reason[0] == Reason.CROWDED
    assert left.any()
    least = done.problem.share(0.05)
    assert least[left].min() >= least[done.asked[0]].max()
    assert "does not fit beside" in done.why(int(left.nonzero()[0]))
    assert done.share.sum() == pytest.approx(1)


def test_the_starved_are_explained() -> None:
    done = plan(scenario(devices=40, rho_max=0.9))
    assert done.starved.any()
    at = int(done.starved[0].nonzero()[0])
    assert "more band is worth" in done.why(at)
    assert "the median device's" in done.why(at)
    assert not plan(scenario(devices=40, rho_max=0.9), fair).starved.any()


def test_weights_move_band() -> None:
    s = scenario(devices=20)
    weight = torch.ones(20)
    weight[7] = 50.0
    moved, plain = (plan(s, policy, rounds=2) for policy in (weighted(weight), optimal))
    assert moved.ratio[:, 7].sum() <= plain.ratio[:, 7].sum()
    assert torch.equal(plan(s, weighted(torch.ones(20))).share, plan(s).share)


def test_cells_have_their_own_band_and_wire() -> None:
    s = scenario(devices=20, cells=2)
    s = replace(s, cells=Cells.of([5e6, 80e6], wire_rate=[1e9, 1e8], wire_delay=[0.0, 0.5]))
    done = plan(s)
    assert done.ratio[0, 0::2].mean() > done.ratio[0, 1::2].mean()
    assert done.round_seconds().item() == pytest.approx(0.025 + 0.5 + 32 * 20_000 / 1e8, abs=0.003)
    alone = plan(
        replace(s, cells=Cells.of([5e6, 1e6], wire_rate=[1e9, 1e8], wire_delay=[0.0, 0.5]))
    )
    assert torch.allclose(done.share[0, 0::2], alone.share[0, 0::2], rtol=1e-9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deadline": 0.0}, "deadline = 0.0 must be above 0"),
        ({"deadline": math.inf}, "deadline = inf"),
        ({"rho_max": 0.0}, "rho_max = 0.0"),
        ({"rho_max": 1.1}, "rho_max"),
    ],
)
def test_wrong_scenarios_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scenario(**changes)


def test_a_device_in_no_cell_is_named() -> None:
    s = scenario(cells=3)
    with pytest.raises(ConfigError, match="cell 2, but there are 2 cells"):
        replace(s, cells=Cells.of(20e6, count=2))
