"""Quantities as people write them, "20 MHz" or "-174 dBm/Hz", turned into SI numbers; a wrong or
missing unit is an error.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from covey.errors import ConfigError


class Unit(NamedTuple):
    """What it measures, how many SI units it is, and whether its number is a level in decibels."""

    kind: str
    scale: float
    decibel: bool = False


UNITS = {
    "Hz": Unit("frequency", 1.0), "kHz": Unit("frequency", 1e3), "MHz": Unit("frequency", 1e6), "GHz": Unit("frequency", 1e9),
    "s": Unit("time", 1.0), "ms": Unit("time", 1e-3), "us": Unit("time", 1e-6),
    "m": Unit("length", 1.0), "km": Unit("length", 1e3),
    "bit/s": Unit("rate", 1.0), "kbit/s": Unit("rate", 1e3), "Mbit/s": Unit("rate", 1e6), "Gbit/s": Unit("rate", 1e9),
    "W": Unit("power", 1.0), "mW": Unit("power", 1e-3), "dBm": Unit("power", 1e-3, True), "dBW": Unit("power", 1.0, True),
    "W/Hz": Unit("power per hertz", 1.0), "dBm/Hz": Unit("power per hertz", 1e-3, True),
    "dB": Unit("decibels", 1.0),
}  # fmt: skip
_SMALLEST, _LARGEST, _LOUDEST = 1e-30, 1e30, 500.0  # of SI numbers, and of decibels
_FORM = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z/]+)\s*")


class Quantity(NamedTuple):
    """A number with its unit."""

    number: float
    unit: str

    @property
    def kind(self) -> str:
        return UNITS[self.unit].kind

    @property
    def si(self) -> float:
        """In hertz, seconds, metres, bit/s, watts or watts per hertz; decibels stay decibels."""
        return to_si(self.number, self.unit)


def to_si(number: float, unit: str) -> float:
    """A number of some unit in SI units; infinite where no number is large enough.

    >>> to_si(30, "dBm"), to_si(20, "MHz"), to_si(1e5, "dBm")
    (1.0, 20000000.0, inf)
    """
    known = UNITS[unit]
    if not known.decibel:
        return known.scale * number
    try:
        ratio: float = 10 ** (number / 10)
    except OverflowError:
        return math.inf
    return known.scale * ratio


def quantity(text: object, name: str, *kinds: str) -> Quantity:
    """The number and unit in a text such as "25 ms"; `name` is what an error calls it, `kinds` what
    it may measure.

    >>> quantity("25 ms", "deadline", "time").si
    0.025
    """
    examples = ", ".join(f'"1 {unit}"' for unit, known in UNITS.items() if known.kind in kinds)
    if not isinstance(text, str) or (match := _FORM.fullmatch(text)) is None:
        raise ConfigError(f"{name} = {text!r} must be a number with a unit, such as {examples}.")
    number, unit = float(match[1]), match[2]
    if unit not in UNITS or UNITS[unit].kind not in kinds:
        what = f"is a {UNITS[unit].kind}" if unit in UNITS else "has an unknown unit"
        raise ConfigError(
            f"{name} = {text!r} {what}; it must be a {' or a '.join(kinds)}, such as {examples}."
        )
    size = abs(to_si(number, unit))
    most = _LOUDEST if UNITS[unit].kind == "decibels" else _LARGEST
    if not (number == 0 or _SMALLEST <= size <= most):
        rule = f"give 0, or {_SMALLEST:g} to {most:g} in SI units"
        raise ConfigError(
            f"{name} = {text!r} is out of range, of which no finite rate follows; {rule}."
        )
    return Quantity(number, unit)
