"""The ranges of an algorithm's fields, as annotations: `lr: Positive`, `batch: Count | None`.

`Algorithm` checks every field when an algorithm is made, so that a wrong number is refused where it
is written. Another range is `Annotated[float, Range(-1, 1)]`. Of a list, every entry is checked.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache, wraps
from typing import Annotated, Any

from covey.errors import ConfigError, shown

LARGEST = 1e30
"""The largest size of a field's number, which a float32 still holds."""
LARGEST_COUNT = 1_000_000_000
"""The largest number of steps, rounds, examples or draws."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; with `above`, `low` is excluded.

    >>> 0.5 in Range(0, 1), 0 in Range(0, above=True), float("nan") in Range(0)
    (True, False, False)
    >>> print(Range(0, 1), Range(0, above=True), Range(1, 9, whole=True), sep="; ")
    between 0 and 1; above 0; a whole number between 1 and 9
    """

    low: float
    high: float = LARGEST
    above: bool = False
    whole: bool = False

    def __contains__(self, number: float) -> bool:
        if self.above:
            return self.low < number <= self.high
        return self.low <= number <= self.high

    def __str__(self) -> str:
        if self.whole:
            return f"a whole number between {self.low:,} and {self.high:,}"
        if self.high < LARGEST:
            return f"between {self.low:g} and {self.high:g}"
        if self.above:
            return f"above {self.low:g}"
        return f"{self.low:g} or more"


_POSITIVE = Range(0, above=True)
_COUNT = Range(1, LARGEST_COUNT, whole=True)
_SHARE = Range(0, 1)
_PROBABILITY = Range(1e-4, 0.9999)

Positive = Annotated[float, _POSITIVE]
"""A number above 0."""
NonNegative = Annotated[float, Range(0)]
"""A number of 0 or more."""
Share = Annotated[float, _SHARE]
"""A number from 0 to 1."""
Probability = Annotated[float, _PROBABILITY]
"""The probability of something that happens at times, and at times does not."""
Count = Annotated[int, _COUNT]
"""A whole number of 1 or more."""
Whole = Annotated[int, Range(0, LARGEST_COUNT, whole=True)]
"""A whole number of 0 or more."""

PerNode = float | Sequence[float]
"""One number for all nodes of a tier, or a list with one for each."""
PositivePerNode = Annotated[PerNode, _POSITIVE]
"""The same, above 0."""
SharePerNode = Annotated[PerNode, _SHARE]
"""The same, from 0 to 1."""
ProbabilityPerNode = Annotated[PerNode, _PROBABILITY]
"""The same, a probability."""
CountPerNode = Annotated[int | Sequence[int], _COUNT]
"""A whole number of 1 or more for all nodes of a tier, or a list with one for each."""


def require(algorithm: Any, **bounds: tuple[float, float] | None) -> None:
    """Raise unless all fields are of their types and in their ranges, those named in [low, high].

    None is above 0. Of a list, every entry has to be. It serves bounds that depend on other fields,
    in a `__post_init__`: what a field's annotation says is checked anyway.
    """
    check(algorithm)
    for name, bound in bounds.items():
        allowed = _POSITIVE
        if bound is not None:
            allowed = Range(*bound)
        label = f"{type(algorithm).__name__}: {name}"
        _check_range(label, getattr(algorithm, name), allowed)


def check(thing: Any) -> None:
    """Raise unless every field of a dataclass is of its type, finite and in its range.

    A default is taken as its author wrote it. Types that no file can hold are left to the class.
    """
    kind: Any = type(thing)
    rules = _rules(kind)
    for field in fields(thing):
        value = getattr(thing, field.name)
        if value is field.default:
            continue
        rule = rules.get(field.name, _Rule(Any, None))
        name = f"{kind.__name__}: {field.name}"
        if not _fits(value, rule.hint):
            raise ConfigError(f"{name} = {shown(value)} must be {_spelled(rule.hint)}.")
        _check_finite(name, value)
        if rule.range is not None:
            _check_range(name, value, rule.range)


def checked_first(post_init: Callable[..., None]) -> Callable[..., None]:
    """A `__post_init__` of an algorithm's own, which runs once the fields are checked."""

    @wraps(post_init)
    def both(algorithm: Any, *values: Any) -> None:
        check(algorithm)
        post_init(algorithm, *values)

    return both


@dataclass(frozen=True)
class _Rule:
    """The plain type of a field, and its range."""

    hint: Any
    range: Range | None


@cache
def _rules(kind: Any) -> dict[str, _Rule]:
    """The rules of a class by field; none where only a type checker knows its annotations."""
    try:
        hints = typing.get_type_hints(kind)
        marked = typing.get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, TypeError):
        return {}
    rules = {}
    for name, hint in hints.items():
        first_range = next(_ranges(marked[name]), None)
        rules[name] = _Rule(hint, first_range)
    return rules


def _ranges(hint: Any) -> Iterator[Range]:
    """The ranges in an annotation, also inside a union."""
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Range):
            yield mark
    if _is_union(hint):
        for part in typing.get_args(hint):
            yield from _ranges(part)


def _check_finite(name: str, value: Any) -> None:
    """Raise if a number, or one in a list, cannot be computed with."""
    for number in _numbers(value):
        # So written that NaN is refused, and that a whole number of any length can be compared.
        if not abs(number) <= LARGEST:
            rule = f"must be a finite number, of size {LARGEST:g} at most"
            raise ConfigError(f"{name} = {shown(value)} {rule}.")


def _check_range(name: str, value: Any, allowed: Range) -> None:
    """Raise if a number, or one in a list, is out of its range, or if the list is empty."""
    if isinstance(value, list | tuple) and not value:
        raise ConfigError(f"{name} = [] is empty; give one value for all nodes, or one for each.")
    if any(number not in allowed for number in _numbers(value)):
        raise ConfigError(f"{name} = {shown(value)} must be {allowed}.")


def _numbers(value: Any) -> list[float]:
    """The numbers of a value: itself, or those in a list."""
    values = [value]
    if isinstance(value, list | tuple):
        values = list(value)
    return [item for item in values if isinstance(item, int | float)]


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the plain type of a field; a whole number may stand for a float."""
    inside = typing.get_args(hint)
    if _is_union(hint):
        return any(_fits(value, part) for part in inside)
    if typing.get_origin(hint) is typing.Literal:
        return value in inside
    if hint in (int, float):
        return _is_number(value, whole=hint is int)
    if hint in (bool, str, types.NoneType):
        return isinstance(value, hint)
    if inside and inside[0] in (int, float):  # Sequence[int], tuple[float, ...]
        if not isinstance(value, list | tuple):
            return False
        return all(_is_number(item, whole=inside[0] is int) for item in value)
    return True


def _is_number(value: Any, *, whole: bool) -> bool:
    """Whether this is a number, and not a bool, which Python takes for one."""
    if isinstance(value, bool):
        return False
    if whole:
        return isinstance(value, int)
    return isinstance(value, int | float)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _spelled(hint: Any) -> str:
    """A type as it is written in code.

    >>> _spelled(typing.Optional[int]), _spelled(PerNode)
    ('int | None', 'float | Sequence[float]')
    """
    if _is_union(hint):
        return " | ".join(_spelled(part) for part in typing.get_args(hint))
    if hint is types.NoneType:
        return "None"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("collections.abc.", "")
