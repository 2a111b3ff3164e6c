"""Units are read, converted and checked."""

import pytest

from covey.errors import ConfigError
from covey.radio.units import quantity


@pytest.mark.parametrize(
    ("text", "kind", "si"),
    [
        ("20 MHz", "frequency", 20e6),
        ("2.5GHz", "frequency", 2.5e9),
        ("25 ms", "time", 0.025),
        ("30 dBm", "power", 1.0),
        ("0 dBW", "power", 1.0),
        ("500 mW", "power", 0.5),
        ("-174 dBm/Hz", "power per hertz", 10**-20.4),
        ("1_000 m", "length", 1000.0),
        (".2 km", "length", 200.0),
        ("1e3 kbit/s", "rate", 1e6),
        ("-3 dB", "decibels", -3.0),
    ],
)
def test_a_quantity_in_si_units(text: str, kind: str, si: float) -> None:
    assert quantity(text, "x", kind).si == pytest.approx(si, rel=1e-14)


@pytest.mark.parametrize("text", [20, 20.0, None, True, "", "MHz", "20", "20 30 MHz", ["20 MHz"]])
def test_a_number_needs_a_unit(text: object) -> None:
    with pytest.raises(ConfigError, match=r"bandwidth = .* must be a number with a unit"):
        quantity(text, "bandwidth", "frequency")


@pytest.mark.parametrize(
    ("text", "words"),
    [("20 dBm", "is a power"), ("20 parsec", "unknown unit"), ("20 mhz", "unknown unit")],
)
def test_a_wrong_unit_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        quantity(text, "bandwidth", "frequency")


def test_a_power_may_not_be_out_of_range() -> None:
    with pytest.raises(ConfigError, match="out of range"):
        quantity("1e400 W", "power", "power")
