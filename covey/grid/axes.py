"""Keys with several values on the command line: lists `a,b,c` and ranges `low:high[:log]`."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from covey.errors import ConfigError, is_number, shown
from covey.files.validate import value_of

_POINTS = 5  # of a range in a grid
_RANGE = re.compile(r"(?P<low>[^:]+):(?P<high>[^:]+?)(?P<log>:log)?")

Settings = dict[str, Any]
"""One value for every key that is tried."""


@dataclass(frozen=True)
class Axis:
    """A key of the file with the values that it may have: a list, or a range if `values` is empty.

    A range of whole numbers has whole numbers alone.
    """

    key: str
    values: Sequence[Any] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    def at(self, share: float) -> Any:
        """The value at a share of the way, 0 to 1.

        >>> axis("lr=0.01:1:log").at(0.5), axis("steps=1:9").at(0.5), axis("lam=1,5,15").at(0.99)
        (0.1, 5, 15)
        """
        if self.values:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        if self.log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + share * (self.high - self.low)
        if self.whole:
            return round(value)
        return float(f"{value:.4g}")

    def grid(self) -> list[Any]:
        """All values of a list, or five of a range, ends included."""
        if self.values:
            return list(self.values)
        points = [self.at(k / (_POINTS - 1)) for k in range(_POINTS)]
        return list(dict.fromkeys(points))


def axis(change: str) -> Axis:
    """A change with several values, or with one, as an axis."""
    key, equals, text = change.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(
            f"{change!r} is neither a file nor a change; write changes as algorithm.lr=0.1,0.2."
        )
    match = _RANGE.fullmatch(text.strip())
    if match and is_number(value_of(match["low"], change)):
        return _range(key, match, change)
    words = [word.strip() for word in _at_commas(text)]
    if not all(words):
        raise ConfigError(f"{change!r} has an empty value; write a list as {key}=0.1,0.2.")
    values = tuple(value_of(word, change) for word in words)
    for value in values:
        if (times := values.count(value)) > 1:
            raise ConfigError(f"{key} lists {shown(value)} {times} times; name each value once.")
    return Axis(key, values)


def product(axes: Sequence[Axis]) -> Iterator[Settings]:
    """Every combination of the axes' values; the last axis changes fastest."""
    for values in itertools.product(*(each.grid() for each in axes)):
        yield {each.key: value for each, value in zip(axes, values, strict=True)}


def _range(key: str, match: re.Match[str], change: str) -> Axis:
    low = value_of(match["low"], change)
    high = value_of(match["high"], change)
    log = bool(match["log"])
    if not is_number(low) or not is_number(high):
        form = f"{key}=LOW:HIGH or {key}=LOW:HIGH:log"
        raise ConfigError(f"{change!r} is no range of numbers; write {form}.")
    if not math.isfinite(low) or not math.isfinite(high) or low >= high:
        raise ConfigError(f"{change!r}: the range must go from a smaller to a larger number.")
    if log and low <= 0:
        raise ConfigError(f"{change!r}: a logarithmic range starts above 0; {low!r} is not.")
    whole = isinstance(low, int) and isinstance(high, int) and not log
    return Axis(key, low=float(low), high=float(high), log=log, whole=whole)


def _at_commas(text: str) -> list[str]:
    """The text cut at commas that stand in no brackets, braces or quotes.

    >>> _at_commas('[1, 2],"a,b",3')
    ['[1, 2]', '"a,b"', '3']
    """
    parts = [""]
    depth = 0
    quote = ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        depth += (letter in "[{") - (letter in "]}") if not quote else 0
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def refuse_repeats(keys: Iterable[str]) -> None:
    """Refuse a key that is given several times."""
    for key, times in Counter(keys).items():
        if times > 1:
            raise ConfigError(f"{key} is given {times} times; give one list of values.")
