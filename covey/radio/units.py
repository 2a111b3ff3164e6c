"""Quantities with units, such as "20 MHz" or "-174 dBm/Hz", as SI numbers.

A wrong or missing unit is an error.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from covey.errors import ConfigError


class Unit(NamedTuple):
    """The kind of quantity, the unit in SI units, and whether numbers are levels in decibels."""

    kind: str
    scale: float
    decibel: bool = False


UNITS = {
    "Hz": Unit("frequency", 1.0),
    "kHz": Unit("frequency", 1e3),
    "MHz": Unit("frequency", 1e6),
    "GHz": Unit("frequency", 1e9),
    "s": Unit("time", 1.0),
    "ms": Unit("time", 1e-3),
    "us": Unit("time", 1e-6),
    "m": Unit("length", 1.0),
    "km": Unit("length", 1e3),
    "bit/s": Unit("rate", 1.0),
    "kbit/s": Unit("rate", 1e3),
    "Mbit/s": Unit("rate", 1e6),
    "Gbit/s": Unit("rate", 1e9),
    "W": Unit("power", 1.0),
    "mW": Unit("power", 1e-3),
    "dBm": Unit("power", 1e-3, True),
    "dBW": Unit("power", 1.0, True),
    "W/Hz": Unit("power per hertz", 1.0),
    "dBm/Hz": Unit("power per hertz", 1e-3, True),
    "dB": Unit("decibels", 1.0),
    "": Unit("", 1.0),  # of plain numbers
}
_MIN = 1e-30  # of SI numbers
_MAX = 1e30
_MAX_DECIBELS = 500.0
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
    """A number with a unit in SI units, or a plain one; infinite where it exceeds a float.

    >>> to_si(30, "dBm"), to_si(20, "MHz"), to_si(1e5, "dBm")
    (1.0, 20000000.0, inf)
    """
    scale = UNITS[unit].scale
    if not UNITS[unit].decibel:
        return scale * number
    try:
        return scale * float(10 ** (number / 10))
    except OverflowError:
        return math.inf


def quantity(text: object, name: str, *kinds: str) -> Quantity:
    """The number and unit in a text such as "25 ms".

    `name` is its name in errors. `kinds` are the kinds of quantities allowed.

    >>> quantity("25 ms", "deadline", "time").si
    0.025
    """
    units = [unit for unit in UNITS if UNITS[unit].kind in kinds]
    examples = ", ".join(f'"1 {unit}"' for unit in units)
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f"{name} = {text!r} must be a number with a unit, such as {examples}.")
    number = float(match[1])
    unit = match[2]
    if unit not in units:
        fault = f"is a {UNITS[unit].kind}" if unit in UNITS else "has an unknown unit"
        raise ConfigError(
            f"{name} = {text!r} {fault}; it must be a {' or a '.join(kinds)}, such as {examples}."
        )
    value = Quantity(number, unit)
    largest = _MAX_DECIBELS if value.kind == "decibels" else _MAX
    if value.number != 0 and not _MIN <= abs(value.si) <= largest:
        raise ConfigError(
            f"{name} = {text!r} is out of range, of which no finite rate follows; "
            f"give 0, or {_MIN:g} to {largest:g} in SI units."
        )
    return value
