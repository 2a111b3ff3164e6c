"""Two devices and a deadline, worked by hand: (12) to (18), the energies, Theorem 2, and the best
shares.

f = 1 and 0.5 GHz, C = 100 cycles, N_v = 50,000, N_u = 100,000, tau_v = 2, tau_hat = 1, tau_u = 3, q
= 32, p = 0.5 W, B = 10 MHz, and signals 3 and 1 times the noise. So the steps that no pruning
shortens take 20 and 40 ms, those on the whole shared part 30 and 60 ms, and its 3.2 Mbit take 160
and 320 ms over the whole band, at 20 and 10 Mbit/s. The deadline is 100 ms: A = 80 and 60 ms.
"""

from typing import Any

import pytest
import torch

from covey.codecs import CODECS
from covey.errors import ConfigError
from covey.radio.latency import mask_bits
from covey.wireless import (
    Cells,
    Channel,
    Devices,
    LogDistance,
    Noise,
    Scenario,
    Work,
    encoded_bits,
    equal,
    fixed,
    optimal,
    plan,
)

DEVICES = Devices.of(
    [0, 0], distance=[6e-12**-0.5, 2e-12**-0.5], cpu=[1e9, 0.5e9], cycles=100.0, power=0.5, capacitance=1e-27,
    names=("near", "straggler"),
)  # fmt: skip
WORK = Work(shared=100_000, personal=50_000, bits=32, steps=3, personal_steps=2, probe_steps=1)
CHANNEL = Channel(Noise(1e-12), LogDistance(reference=0.0, exponent=2.0), fading="none")


def scenario(**changes: object) -> Scenario:
    values: dict[str, Any] = {
        "cells": Cells.of(10e6, wire_rate=1e9, wire_delay=0.002),
        "deadline": 0.1,
        "rho_max": 1.0,
        **changes,
    }
    return Scenario(DEVICES, channel=CHANNEL, work=WORK, **values)


def near(*values: float) -> object:
    return pytest.approx(values, rel=1e-12)


def test_a_fixed_ratio_and_a_straggler() -> None:
    """0.8 pruned, half the band each: 20 + 6 + 64 = 90 ms in time, 40 + 12 + 128 = 180 ms late; the
    wire adds 2 + 3.2 ms.
    """
    done = plan(scenario(), fixed(0.8))
    assert done.formula.compute[0].tolist() == near(0.026, 0.052)
    assert done.formula.upload[0].tolist() == near(0.064, 0.128)
    assert done.formula.latency[0].tolist() == near(0.090, 0.180)
    assert done.late(done.formula)[0].tolist() == [False, True]
    assert done.round_seconds().tolist() == near(0.1852)
    # header and mask add 100,048 bits: 10.005 and 20.01 ms
    assert done.late()[0].tolist() == [True, True]
    assert done.encoded.latency[0].tolist() == near(0.1000048, 0.2000096)
    assert "200 ms, the deadline is 100 ms" in done.why(1)
    assert done.why(0).startswith("with header and mask it ends after 100 ms")


def test_energy() -> None:
    """26 million cycles each: at 1e-27 f^2 joules a cycle 26 and 6.5 mJ; half a watt for 64 and 128
    ms: 32 and 64 mJ.
    """
    timing = plan(scenario(), fixed(0.8)).formula
    assert timing.compute_joules[0].tolist() == near(0.026, 0.0065)
    assert timing.joules[0].tolist() == near(0.058, 0.0705)


def test_theorem_2_with_equal_shares() -> None:
    """kept = A / (c + s / b): 80 / (30 + 320) = 8/35 and 60 / (60 + 640) = 3/35; both end at the
    deadline.
    """
    done = plan(scenario(), equal)
    assert (1 - done.ratio[0]).tolist() == near(8 / 35, 3 / 35)
    assert done.formula.latency[0].tolist() == near(0.1, 0.1)
    assert not done.late(done.formula).any()


def test_equal_shares_under_a_cap_are_late() -> None:
    """At most 0.9 pruned: the straggler takes 40 + (60 + 640) / 10 = 110 ms."""
    done = plan(scenario(rho_max=0.9), equal)
    assert done.formula.latency[0].tolist() == near(0.1, 0.11)


def test_the_best_shares_starve_the_straggler() -> None:
    """More band is worth at most A/s = 60/320 to it, and still 80 * 160 / 190^2 to the other when
    that has all: kept 80 / 190.
    """
    done = plan(scenario(), optimal)
    assert done.share[0].tolist() == near(1, 0)
    assert (1 - done.ratio[0]).tolist() == near(8 / 19, 0)
    assert done.starved[0].tolist() == [False, True]
    # it trains its personal part, and sends nothing
    assert done.formula.latency[0].tolist() == near(0.1, 0.04)


def test_the_best_shares_under_a_cap() -> None:
    """Keeping 0.05 takes the straggler 0.05 * 320 / (60 - 3) = 16/57 of the band; the other has
    41/57 and keeps 3280/10350.
    """
    done = plan(scenario(rho_max=0.95), optimal)
    assert done.share[0].tolist() == near(41 / 57, 16 / 57)
    assert (1 - done.ratio[0]).tolist() == near(3280 / 10350, 0.05)
    assert done.formula.latency[0].tolist() == near(0.1, 0.1)
    assert done.price[0, 0].item() <= 80 * 160 / (30 * 41 / 57 + 160) ** 2 * (1 + 1e-12)
    assert "more band is worth" in done.why(1)


def test_real_bytes_beside_the_formula() -> None:
    """At 0.8 pruned 20,000 weights are kept: 640,000 bits by the formula, 6 bytes and 12,500 bytes
    of mask more as encoded.
    """
    done = plan(scenario(), fixed(0.8))
    row, mask = torch.randn(100_000), torch.zeros(100_000, dtype=torch.bool)
    mask[:20_000] = True
    length = 8 * len(CODECS["bitmap"].encode(row, mask))
    assert length == 640_000 + 8 * 12_506
    bits = encoded_bits(WORK, done.kept)
    assert bits.tolist() == [[length, length]]
    assert done.encoded.upload[0].tolist() == near(length / 10e6, length / 5e6)
    assert done.timing(bits / 2).upload[0].tolist() == near(length / 20e6, length / 10e6)
    assert mask_bits(WORK).item() == 8 * 12_506


def test_a_plan_for_the_mask_meets_the_deadline_in_real_bytes() -> None:
    paper, real = (plan(scenario(rho_max=0.95, mask=mask)) for mask in (False, True))
    assert paper.late().all()
    assert not paper.late(paper.formula).any()
    assert not real.late().any()
    assert (paper.summary()["late"], paper.summary()["late_by_formula"]) == (2, 0)
    why = "with header and mask it ends after 107 ms, the deadline is 100 ms"
    assert paper.why(0) == f"{why}; mask = true plans for them"
    # a weight is whole: at most one more than planned is sent
    assert real.encoded.latency.max() <= 0.1 * (1 + 1e-4)
    assert real.encoded.latency.max() > 0.0999


def test_the_whole_model_pruned_and_no_probe() -> None:
    assert WORK.whole().shared == 150_000
    assert WORK.whole().personal == 0
    assert WORK.unprobed().constant_cycles(DEVICES.cycles).tolist() == [1e7, 1e7]


def test_numbers_beside_the_weights_count_as_messages_of_their_own() -> None:
    """A number of examples, for one, is a message of one float32."""
    number = 8 * len(CODECS["dense"].encode(torch.zeros(1)))
    alone = Work(shared=20)
    beside = Work(shared=20, numbers=2)
    assert float(mask_bits(beside) - mask_bits(alone)) == 2 * number
    kept = torch.tensor([0.5, 0.0], dtype=torch.float64)
    more = encoded_bits(beside, kept) - encoded_bits(alone, kept)
    assert more.tolist() == [2 * number, 0]  # nobody who keeps nothing sends anything
    by_codec = beside.sent_by(CODECS["bitmap"], 8)
    number = 8 * len(CODECS["dense"].encode(torch.zeros(1, dtype=torch.float64)))
    assert by_codec.extra == alone.sent_by(CODECS["bitmap"], 8).extra + 2 * number


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"shared": 0}, "shared = 0"),
        ({"shared": 9, "bits": 0}, "bits = 0"),
        ({"shared": 9, "steps": 0}, "steps = 0"),
    ],
)
def test_wrong_work_is_named(values: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Work(**values)
