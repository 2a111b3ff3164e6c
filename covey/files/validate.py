"""TOML as text: its values, and changes of them such as "algorithm.lam1=15"."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from covey.errors import ConfigError, shown

_DEEPEST = 32  # tables and lists inside each other; what a file may say has at most six


def parsed(text: str, name: object) -> dict[str, Any]:
    """The table in a text of TOML; `name` is what an error calls the text.

    Some editors put a mark of their encoding before the text.
    """
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}.") from error
    except RecursionError as error:
        raise ConfigError(f"{name} has tables or lists too deep inside each other.") from error
    except ValueError as error:  # of a whole number with thousands of digits
        raise ConfigError(f"{name} has a number that cannot be read: {error}.") from error


def check_plain(table: Mapping[str, Any]) -> None:
    """Refuse what no field takes, wherever it stands: great depths, numbers not finite.

    TOML itself asks for no whole number beyond 64 bits.

    >>> check_plain({"lr": float("inf")})
    Traceback (most recent call last):
    covey.errors.ConfigError: lr = inf must be a finite number, an integer of at most 64 bits.
    """
    # A stack, because Python's own is too short for hostile depths.
    left: list[tuple[str, Any, int]] = [("", table, 0)]
    while left:
        path, value, depth = left.pop()
        if isinstance(value, Mapping | list):
            if depth > _DEEPEST:
                raise ConfigError(
                    f"{path[:100]}... has tables or lists too deep inside each other."
                )
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, item in items:
                left.append((f"{path}.{key}".lstrip("."), item, depth + 1))
        elif isinstance(value, int | float) and not -(2**63) <= value < 2**63:
            finite = isinstance(value, float) and math.isfinite(value)
            if not finite:
                rule = "must be a finite number, an integer of at most 64 bits"
                raise ConfigError(f"{path} = {shown(value)} {rule}.")


_NAME_OR_TABLE = ("solver", "loss")
"""Settings that are a name, or a table with a name: a change of a table's key is one of both."""

Renamed = Callable[[str, dict[str, Any], Any], dict[str, Any]]
"""(section, its table, another name): the fields that the thing of the other name takes over."""


def apply(table: dict[str, Any], change: str, renamed: Renamed | None = None) -> None:
    """Make one change such as "algorithm.lam1=15" in the table of a file.

    Another name in a section drops its fields, which would be unknown to what is named now, but
    for those that `renamed` says it takes over.
    """
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"{change!r} is neither a file nor a change; write changes as algorithm.lam1=15."
        )
    *parents, last = key.strip().split(".")
    if parents and parents[0] in _NAME_OR_TABLE and isinstance(table.get(parents[0]), str):
        table[parents[0]] = {"name": table[parents[0]]}
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{change!r}: {parent} is a value, not a table.")
    value = value_of(text, change)
    if last == "name" and parents and table.get("name") not in (None, value):
        kept = {}
        if renamed is not None:
            kept = renamed(".".join(parents), dict(table), value)
        table.clear()
        table |= kept
    table[last] = value


_BARE_POINT = re.compile(r"([+-]?)(\d*)\.(\d*)(([eE][+-]?\d+)?)")
_PYTHON = {"True": True, "False": False, "None": "none"}


def value_of(text: str, change: str) -> Any:
    """The value behind the equals sign of a change.

    It is TOML or, as on a command line, also .03, 3., True or text without quotes.
    """
    word = text.strip()
    if word in _PYTHON:
        return _PYTHON[word]
    if (bare := _BARE_POINT.fullmatch(word)) and (bare[2] or bare[3]):
        return float(word)
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return word
    except (ValueError, RecursionError):
        return parsed(f"x = {text}", shown(change))["x"]  # which says what is wrong
