"""Path losses at known places, fading with its known moments, and draws that do not depend on who
else is looked at.
"""

import math
from typing import Any

import pytest
import torch

from covey.errors import ConfigError
from covey.radio.latency import rate
from covey.wireless import Channel, Devices, LogDistance, Noise, Spread, Urban

NOISE = Noise(1e-14)


def metres(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_log_distance_and_the_older_urban_macro_cell() -> None:
    loss = LogDistance(reference=128.1, exponent=3.76, near=1000.0).loss(
        metres(1000, 100), metres(0, 0)
    )
    assert loss.tolist() == pytest.approx([128.1, 128.1 - 37.6])


def test_urban_macro_by_hand() -> None:
    """At 100 m and 2 GHz, antennas at 25 and 1.5 m: d3D = sqrt(100^2 + 23.5^2) = 102.7241 m; the
    line breaks at 320.2 m.
    """
    line = math.hypot(100, 23.5)
    clear = 28 + 22 * math.log10(line) + 20 * math.log10(2)
    blocked = 13.54 + 39.08 * math.log10(line) + 20 * math.log10(2)
    assert (clear, blocked) == pytest.approx((78.2774, 98.1768), abs=1e-4)
    cases: list[tuple[Any, float]] = [("yes", clear), ("no", blocked)]
    for sight, loss in cases:
        assert Urban("macro", 2e9, sight).loss(metres(100), metres(0.5)).item() == pytest.approx(
            loss
        )
    far = math.hypot(1000, 23.5)
    bent = (
        28
        + 40 * math.log10(far)
        + 20 * math.log10(2)
        - 9 * math.log10((4 * 24 * 0.5 * 2e9 / 299_792_458) ** 2 + 23.5**2)
    )
    assert Urban("macro", 2e9, "yes").loss(metres(1000), metres(0.5)).item() == pytest.approx(bent)


def test_urban_micro_by_hand() -> None:
    line = math.hypot(50, 8.5)
    clear = 32.4 + 21 * math.log10(line) + 20 * math.log10(3.5)
    blocked = 22.4 + 35.3 * math.log10(line) + 21.3 * math.log10(3.5)
    cases: list[tuple[Any, float]] = [("yes", clear), ("no", blocked)]
    for sight, loss in cases:
        assert Urban("micro", 3.5e9, sight).loss(metres(50), metres(0.5)).item() == pytest.approx(
            loss
        )


@pytest.mark.parametrize("kind", ["macro", "micro"])
def test_urban_losses_rise_with_distance_and_are_continuous_at_the_break(kind: Any) -> None:
    distance = torch.arange(10, 3000, 1, dtype=torch.float64)
    for sight in ("yes", "no"):
        loss = Urban(kind, 2e9, sight).loss(distance, torch.zeros_like(distance))
        steps = loss.diff()
        assert (steps > 0).all()
        assert steps.max() < 4


def test_sight_is_certain_up_to_18_metres_and_as_frequent_as_the_standard_says() -> None:
    assert Urban("macro").sight_probability(metres(5, 18)).tolist() == [1, 1]
    want = 18 / 100 + math.exp(-100 / 63) * (1 - 18 / 100)
    assert Urban("macro").sight_probability(metres(100)).item() == pytest.approx(want)
    channel = Channel(NOISE, Urban("macro"), fading="none")
    distance = torch.full((20_000,), 100.0, dtype=torch.float64)
    gains = channel.gain(distance, torch.arange(20_000), rounds=range(1), seed=3)
    assert len(set(gains[0].tolist())) == 2
    assert abs((gains[0] == gains.max()).double().mean() - want) < 0.01


@pytest.mark.parametrize(
    ("fading", "variance"), [("rayleigh", 1.0), ("rician", (1 + 2 * 4) / (1 + 4) ** 2)]
)
def test_fading_has_mean_1_and_its_variance(fading: Any, variance: float) -> None:
    """Power fading with Rice factor K has variance (1 + 2K) / (1 + K)^2."""
    power = Channel(NOISE, fading=fading, rice_factor=10 * math.log10(4)).fade(
        torch.arange(200_000), round=0, seed=1
    )
    assert abs(power.mean() - 1) < 0.01
    assert abs(power.var() - variance) < 0.02 * max(variance, 1)


def test_rayleigh_power_is_exponential() -> None:
    power = Channel(NOISE).fade(torch.arange(100_000), round=2, seed=0)
    for level in (0.1, 0.7, 2.0):
        assert abs((power > level).double().mean() - math.exp(-level)) < 0.006


def test_shadowing_lasts_and_fading_does_not() -> None:
    distance = torch.full((50_000,), 100.0, dtype=torch.float64)
    ids = torch.arange(50_000)
    still = Channel(NOISE, shadowing=8.0, fading="none").gain(
        distance, ids, rounds=range(3), seed=0
    )
    assert torch.equal(still[0], still[2])
    decibels = 10 * torch.log10(still[0])
    assert abs(decibels.mean() + 100) < 0.15  # 30 + 35 log10(100)
    assert abs(decibels.std() - 8) < 0.1
    moving = Channel(NOISE, shadowing=8.0).gain(distance, ids, rounds=range(3), seed=0)
    assert not torch.equal(moving[0], moving[2])


def test_a_channel_depends_on_its_own_address_alone() -> None:
    channel = Channel(NOISE, Urban(), shadowing=6.0)
    distance = torch.linspace(20, 400, 40, dtype=torch.float64)
    every = channel.gain(distance, torch.arange(40), rounds=range(5), seed=7)
    some = channel.gain(distance[11:13], torch.arange(11, 13), rounds=range(3, 5), seed=7)
    assert torch.equal(every[3:, 11:13], some)
    assert not torch.equal(every, channel.gain(distance, torch.arange(40), rounds=range(5), seed=8))


def test_noise_by_power_and_by_density() -> None:
    band, gain, power = metres(1e6, 2e6), metres(3e-12, 3e-12), metres(1, 1)
    # log2(1 + 3) = 2, whatever the band
    assert rate(band, gain, power, Noise(1e-12)).tolist() == [2e6, 4e6]
    assert rate(band, gain, power, Noise(1e-18, True)).tolist() == pytest.approx(
        [2e6, 2e6 * math.log2(2.5)]
    )
    assert rate(metres(0), metres(1), metres(1), Noise(1e-18, True)).item() == 0


def test_spreads() -> None:
    ids = torch.arange(100_000)
    disc = Spread("disc", (20.0, 100.0)).draw(1, ids)
    assert disc.min() >= 20
    assert disc.max() <= 100
    assert abs((disc < 60).double().mean() - (60**2 - 20**2) / (100**2 - 20**2)) < 0.005
    assert abs(Spread("log_uniform", (1.0, 100.0)).draw(1, ids).median() - 10) < 0.2
    assert abs(Spread("normal", (5.0, 2.0)).draw(1, ids).std() - 2) < 0.02
    assert abs(Spread("uniform", (5.0, 7.0)).draw(1, ids).mean() - 6) < 0.01


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Spread("triangle", (1.0, 2.0)), "triangle"),  # type: ignore[arg-type]
        (lambda: Spread("unifrom", (1.0, 2.0)), "did you mean"),  # type: ignore[arg-type]
        (lambda: Spread("uniform", (1.0,)), "low and high"),
        (lambda: Spread("uniform", (2.0, 1.0)), "the smaller first"),
        (lambda: Spread("log_uniform", (-1.0, 1.0)), "above 0"),
        (
            lambda: Noise(0.0),
            "Noise: watts = 0.0 must be above 0; in a file, write noise in dBm or dBm/Hz",
        ),
        (lambda: Channel(NOISE, shadowing=-1.0), "shadowing = -1"),
        (lambda: Channel(NOISE, fading="nakagami"), "fading = 'nakagami'"),  # type: ignore[arg-type]
        (lambda: Urban(carrier=3.5), "0.5 to 100 GHz"),
        (lambda: Urban(device_height=40.0), "1.5 to 13 m"),
        (lambda: LogDistance(exponent=0.0), "exponent = 0.0"),
        (
            lambda: Devices.of([0, 0], distance=[1.0, -3.0], cpu=1e9, cycles=1, power=1),
            "distance of device 1 is -3",
        ),
        (
            lambda: Devices.of([0, 0], distance=[1.0, 2.0, 3.0], cpu=1e9, cycles=1, power=1),
            "distance has 3 values for 2",
        ),
    ],
)
def test_wrong_numbers_are_named(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
