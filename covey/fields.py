"""Options: a frozen class states them, and its annotations read, check and document them.

    @dataclass(frozen=True)
    class StopSettings:
        patience: Count  # scored rounds in a row without a better model
        min_delta: NonNegative = 0.0  # what a model has to be better by

`read(StopSettings, {"patience": 5}, "stop.")` makes one of a table of a file. An error names the
key, shows the value and says the rule; it has the nearest name for a key that is unknown. Another
range is `Annotated[float, Range(-1, 1)]`; of a list, every entry is checked. A comment behind a
field is its meaning. The parameters of a function are options too.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache, wraps
from itertools import chain
from typing import Annotated, Any, TypeVar

from covey.errors import ConfigError, closest, is_number, meant, shown

LARGEST = 1e30
"""The largest size of a field's number, which a float32 still holds."""
LARGEST_COUNT = 1_000_000_000
"""The largest number of steps, rounds, examples or draws."""
REQUIRED = inspect.Parameter.empty
"""The default of an option that has none."""
T = TypeVar("T")


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

    def __contains__(self, number: Any) -> bool:
        if not isinstance(number, int | float):
            return True
        if self.above:
            return self.low < number <= self.high
        return self.low <= number <= self.high

    def __str__(self) -> str:
        if self.whole:
            return f"a whole number between {self.low:,} and {self.high:,}"
        if self.high < LARGEST:
            low = f"above {self.low:g}, at most" if self.above else f"between {self.low:g} and"
            return f"{low} {self.high:g}"
        if self.above:
            return f"above {self.low:g}"
        return f"{self.low:g} or more"


@dataclass(frozen=True)
class Match:
    """Text that a pattern matches as a whole; `words` say what text that is."""

    pattern: str
    words: str

    def __contains__(self, text: Any) -> bool:
        return not isinstance(text, str) or re.fullmatch(self.pattern, text) is not None

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Named:
    """Values that a file gives by name, such as types of torch."""

    names: tuple[tuple[str, Any], ...]

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, Hashable) and value in chain(*self.names)

    def __str__(self) -> str:
        return " or ".join(f'"{name}"' for name, _ in self.names)


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
Seed = Annotated[int, Range(-(2**63), 2**63 - 1, whole=True)]
"""A whole number of 64 bits."""

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


@dataclass(frozen=True)
class Option:
    """One option: its type with its range, and its default; REQUIRED where it must be given."""

    hint: Any
    default: Any = REQUIRED

    @property
    def decides_bits(self) -> bool:
        """Whether runs that differ in it differ in bits."""
        return _NO_BITS not in getattr(self.hint, "__metadata__", ())


_NO_BITS = "changes no bit of a run"
NoBits = Annotated[T, _NO_BITS]
"""The type of an option that changes no bit of a run: `NoBits[Count]`."""


def read(kind: type[T], table: Mapping[str, Any], place: str) -> T:
    """The options of a class from a table; `place` stands before a key in errors.

    >>> @dataclass(frozen=True)
    ... class Walk:
    ...     steps: Count
    ...     lr: Positive = 0.1
    >>> read(Walk, {"steps": 3}, "walk.")
    Walk(steps=3, lr=0.1)
    >>> read(Walk, {"setps": 3}, "walk.")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    covey.errors.ConfigError: unknown key walk.setps (did you mean walk.steps?); known are ...
    """
    return kind(**values(options(kind), table, place))


def values(schema: Mapping[str, Option], table: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The value of every option, from a table or its default."""
    for key in table:
        if key not in schema:
            known = ", ".join(schema) or "none"
            raise ConfigError(
                f"unknown key {place}{key}{nearest(key, schema, place)}; known are {known}."
            )
    out = {}
    for name, option in schema.items():
        key = f"{place}{name}"
        if name in table:
            default = plain(option.default, option.hint)
            out[name] = _value(table[name], option.hint, _Label(key, spelled, default))
        elif option.default is REQUIRED:
            raise ConfigError(f"{key} is missing and has no default; add it to the file.")
        else:
            out[name] = option.default
    return out


def named_kind(kinds: Mapping[str, type[T]], name: Any, place: str) -> type[T]:
    """The class of options that a table names; an error where there is none of that name."""
    if not isinstance(name, str) or name not in kinds:
        listed = ", ".join(kinds)
        raise ConfigError(f"{place} = {shown(name)}{meant(name, kinds)}: choose one of {listed}.")
    return kinds[name]


def options(kind: Any) -> dict[str, Option]:
    """The options of a class, or of a function that takes them as parameters."""
    return _options(kind)


@cache
def _options(kind: Any) -> dict[str, Option]:
    hints = _hints(kind)
    out = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            out[name] = Option(hints.get(name, Any), parameter.default)
    if is_dataclass(kind):
        for each in dataclasses.fields(kind):
            option = out.pop(each.name, None)
            if option is not None and each.metadata.get("in_files", True):
                if each.default_factory is not dataclasses.MISSING:
                    option = replace(option, default=each.default_factory())
                out[each.name] = option
    return out


def _hints(kind: Any) -> dict[str, Any]:
    """The annotations of a class or function; none where only a type checker knows them."""
    if inspect.isclass(kind) and not is_dataclass(kind):
        kind = kind.__init__
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, TypeError):
        return {}


def plain(value: Any, hint: Any = Any) -> Any:
    """A value as a file holds it: options of a class as a table, lists; None stays None."""
    for arm in _arms(hint):
        for rule in arm.rules:
            if isinstance(rule, Named) and value in rule:
                return next(name for name, named in rule.names if named == value)
    if is_dataclass(value) and not isinstance(value, type):
        schema = options(type(value))
        return {name: plain(getattr(value, name), schema[name].hint) for name in schema}
    if isinstance(value, Mapping):
        return {key: plain(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inside) for inside in value]
    return value


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
        place = _Label(f"{type(algorithm).__name__}: {name}")
        _value(getattr(algorithm, name), Annotated[Any, allowed], place)


def check(thing: Any) -> None:
    """Raise unless every field of a dataclass is of its type, finite and in its range.

    A default is taken as its author wrote it. Types that no file can hold are left to the class. A
    number of numpy's or torch's becomes Python's.
    """
    for name, value in checked(thing, f"{type(thing).__name__}: ").items():
        given = getattr(thing, name)
        entries = given if type(given) in (list, tuple) else [given]
        if any(map(_is_scalar, entries)):
            object.__setattr__(thing, name, value)


def checked(thing: Any, place: str = "") -> dict[str, Any]:
    """The values of a dataclass that are not its defaults, in the form of their types."""
    out = {}
    for name, option in options(type(thing)).items():
        value = getattr(thing, name)
        if value is not option.default:
            out[name] = _value(value, option.hint, _Label(f"{place}{name}"))
    return out


def checked_first(post_init: Callable[..., None]) -> Callable[..., None]:
    """A `__post_init__` of an algorithm's own, which runs once the fields are checked."""

    @wraps(post_init)
    def both(algorithm: Any, *values: Any) -> None:
        check(algorithm)
        post_init(algorithm, *values)

    return both


@dataclass(frozen=True)
class _Label:
    """What an error calls a value, how it shows it, and the default of its option."""

    name: str
    show: Callable[[Any], str] = shown
    default: Any = REQUIRED

    def inside(self, key: object) -> _Label:
        return replace(self, name=f"{self.name}.{key}", default=REQUIRED)

    def wrong(self, value: Any, rule: str, hint: str = "") -> ConfigError:
        fix = ""
        if self.default is not REQUIRED and not isinstance(self.default, Mapping):
            fix = f"; the default is {self.show(self.default)}"
        return ConfigError(f"{self.name} = {self.show(value)}{hint} must be {rule}{fix}.")


@dataclass(frozen=True)
class _Arm:
    """One type of those that an annotation allows, and its rules."""

    hint: Any
    rules: tuple[Any, ...]

    @property
    def item(self) -> Any:
        """What a list of this type holds, with the rules of the list."""
        inside = typing.get_args(self.hint)
        item = inside[0] if inside else Any
        return Annotated[item, *self.rules] if self.rules else item

    def __str__(self) -> str:
        """The type in words."""
        if self.hint is types.NoneType:
            return '"none"'
        if typing.get_origin(self.hint) is typing.Literal:
            return " or ".join(map(spelled, typing.get_args(self.hint)))
        word = _WORDS.get(typing.get_origin(self.hint) or self.hint)
        if word is None and is_dataclass(self.hint):
            word = "a table"
        if word is None:
            word = getattr(self.hint, "__name__", str(self.hint))
        rules = " and ".join(str(rule) for rule in self.rules)
        if isinstance(next(iter(self.rules), None), Match | Named) or rules.startswith("a whole"):
            return rules
        return f"{word} {'of ' * rules[:1].isdigit()}{rules}".strip()


_LISTS = (list, tuple, collections.abc.Sequence)
_TABLES = (dict, collections.abc.Mapping)
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    collections.abc.Callable: "a function",
    **dict.fromkeys(_LISTS, "a list"),
    **dict.fromkeys(_TABLES, "a table"),
}
_PLAIN = (bool, int, float, str, list, tuple, dict, types.NoneType, datetime.date, datetime.time)


@cache
def _arms(hint: Any, rules: tuple[Any, ...] = ()) -> tuple[_Arm, ...]:
    """The types that an annotation allows, each with its rules."""
    if typing.get_origin(hint) is Annotated:
        own = [rule for rule in hint.__metadata__ if isinstance(rule, Range | Match | Named)]
        return _arms(hint.__origin__, (*rules, *own))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(arm for part in typing.get_args(hint) for arm in _arms(part, rules))
    return (_Arm(hint, rules),)


def words(hint: Any) -> str:
    """A type in words; "" where any value will do.

    >>> words(int), words(Positive | None), words(typing.Literal["ward", "average"])
    ('a whole number', 'a number above 0 or "none"', '"ward" or "average"')
    """
    arms = [str(arm) for arm in _arms(hint) if arm.hint is not Any]
    if "a number" in arms and "a whole number" in arms:
        arms.remove("a whole number")
    return " or ".join(dict.fromkeys(arms))


def _value(value: Any, hint: Any, place: _Label) -> Any:
    """A value in the form of its type; an error unless it has that type and is in its range."""
    arms = _arms(hint)
    others = [arm for arm in arms if arm.hint not in (int, float)]
    if _is_scalar(value) and not any(_fits(value, arm) for arm in others):
        value = value.item()
    if isinstance(value, str) and value == "none" and types.NoneType in [arm.hint for arm in arms]:
        return None
    fitting = [arm for arm in arms if _fits(value, arm)]
    if not fitting:
        literals = [str(word) for arm in arms for word in typing.get_args(arm.hint)]
        named = [rule for arm in arms for rule in arm.rules if isinstance(rule, Named)]
        literals += [name for rule in named for name, _ in rule.names]
        rule = f"{words(hint)}{_as_list(value, arms, place)}"
        raise place.wrong(value, rule, nearest(value, literals))
    # So written that NaN is refused, and that a whole number of any length can be compared.
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise place.wrong(value, f"a finite number, of size {LARGEST:g} at most")
    if isinstance(value, list | tuple) and not value and any(arm.rules for arm in fitting):
        rule = "is empty; give one value for all nodes, or one for each"
        raise ConfigError(f"{place.name} = [] {rule}.")
    broken = [rule for arm in fitting for rule in arm.rules if value not in rule]
    kept = [arm for arm in fitting if all(value in rule for rule in arm.rules)]
    if not kept:
        raise place.wrong(value, " or ".join(dict.fromkeys(map(str, broken))))
    return _formed(value, kept, place)


def _is_scalar(value: Any) -> bool:
    """Whether this is a number of numpy's or torch's, an array without axes."""
    return hasattr(value, "item") and getattr(value, "shape", None) == ()


def _formed(value: Any, arms: Sequence[_Arm], place: _Label) -> Any:
    """A value as the first of the types that it fits has it; what stands inside is checked."""
    hint = arms[0].hint
    if isinstance(value, list | tuple) and (hint is not Any or arms[0].rules):
        return _list(value, arms[0], place)
    if isinstance(value, Mapping) and is_dataclass(hint):
        given = values(options(hint), value, f"{place.name}.")
        try:
            return typing.cast(Any, hint)(**given)
        except ConfigError as error:
            raise ConfigError(f"{place.name} = {place.show(value)}: {error}") from error
    if isinstance(value, Mapping) and typing.get_args(hint):
        inside = typing.get_args(hint)[-1]
        return {key: _value(item, inside, place.inside(key)) for key, item in value.items()}
    if isinstance(value, int) and all(arm.hint is float for arm in arms):
        return float(value)
    for rule in arms[0].rules:
        if isinstance(rule, Named):
            return dict(rule.names).get(value, value)
    return value


def _list(value: Sequence[Any], arm: _Arm, place: _Label) -> Any:
    """The entries of a list, each checked, as a tuple where that is the type."""
    inside = typing.get_args(arm.hint)
    pair = typing.get_origin(arm.hint) is tuple and inside[-1:] != (...,)
    if pair and len(inside) != len(value):
        raise place.wrong(value, f"a list of {len(inside)}")
    items = inside if pair else (arm.item,) * len(value)
    out = [
        _value(item, hint, place.inside(number))
        for number, (item, hint) in enumerate(zip(value, items, strict=True))
    ]
    if typing.get_origin(arm.hint) is tuple or isinstance(value, tuple):
        return tuple(out)
    return out


def _as_list(value: Any, arms: Sequence[_Arm], place: _Label) -> str:
    """How a list is written on a command line, where text is given for one.

    A shell takes quotes away, so that ["f1", "auc"] arrives as [f1, auc].
    """
    lists = [arm for arm in arms if (typing.get_origin(arm.hint) or arm.hint) in _LISTS]
    if place.show is not spelled or not isinstance(value, str) or not lists:
        return ""
    items = [item.strip() for item in value.strip("[]").split(",")]
    return f" (on a command line: '{place.name}={spelled(items)}')"


def _fits(value: Any, arm: _Arm) -> bool:
    """Whether a value is of a type; a whole number may stand for a number."""
    hint = arm.hint
    kind = typing.get_origin(hint) or hint
    if hint is Any or any(isinstance(rule, Named) and value in rule for rule in arm.rules):
        return True
    if kind is typing.Literal:
        return any(type(value) is type(word) and value == word for word in typing.get_args(hint))
    if kind in (int, float):
        return is_number(value, whole=kind is int)
    if kind in (bool, str, types.NoneType):
        return isinstance(value, kind)
    if kind in _LISTS:
        return isinstance(value, list | tuple)
    if kind in _TABLES:
        return isinstance(value, Mapping)
    if kind is collections.abc.Callable:
        return callable(value)
    if is_dataclass(kind) and isinstance(value, Mapping):
        return True
    try:
        return isinstance(value, kind) or not isinstance(value, _PLAIN)
    except TypeError:  # no class, such as a NewType: only a type checker knows what fits
        return True


def spelled(value: Any) -> str:
    """A value as a file would have it, cut where it is long."""
    if value is None:
        return '"none"'
    text = json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:200]}..."


def nearest(key: Any, choices: Iterable[str], prefix: str = "") -> str:
    """What the user may have meant, to follow what was written."""
    choice = closest(key, choices)
    if choice is None:
        return ""
    return f" (did you mean {prefix}{choice}?)"


_FOR_TOOLS = ("fmt:", "noqa", "type:", "pragma:")
_COMMENT = re.compile(r"^ {4}(\w+)\s*:[^#\n]*#\s*(.+(?:\n {4}# .+)*)$", re.M)


def meanings(kind: Any) -> dict[str, str]:
    """The comments behind the fields of a class, which may go on below them, by field."""
    out: dict[str, str] = {}
    for each in reversed(getattr(kind, "__mro__", ())):
        out |= _comments(each)
    return out


@cache
def _comments(kind: type) -> dict[str, str]:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return {}
    comments = _COMMENT.findall(textwrap.dedent(source))
    plain = {name: re.sub(r"\s*\n {4}# ", " ", comment).strip() for name, comment in comments}
    return {name: text for name, text in plain.items() if not text.startswith(_FOR_TOOLS)}
