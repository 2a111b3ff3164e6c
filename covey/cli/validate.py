"""Strict checks of TOML tables against their schemas.

Every error names the place, the value, the rule and a fix.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from covey.errors import ConfigError, closest, shown

T = typing.TypeVar("T", bound=BaseModel)
STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


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
    """Refuse what no field takes, wherever it stands: great depths, dates, numbers not finite.

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
            left.extend((f"{path}.{key}".lstrip("."), item, depth + 1) for key, item in items)
        elif isinstance(value, datetime.date | datetime.time):
            rule = "is a date or a time, which no field takes; put text in quotes"
            raise ConfigError(f"{path} = {value} {rule}.")
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


def check(schema: type[T], table: Mapping[str, Any], prefix: str) -> T:
    """The table as its schema; `prefix` is the table's place in the file.

    "none" is read as None where a field may be None.
    """
    for key in table:
        if key not in schema.model_fields:
            keys = ", ".join(schema.model_fields)
            raise ConfigError(
                f"unknown key {prefix}{key}{nearest(key, schema.model_fields, prefix)}; "
                f"known are {keys}."
            )
    text = json.dumps(_with_null(table, schema))
    try:
        return schema.model_validate_json(text)  # JSON mode: strict, yet a list may become a tuple
    except ValidationError as error:
        raise ConfigError(_explain(error, schema, prefix)) from error


def _with_null(table: Mapping[str, Any], schema: type[BaseModel]) -> dict[str, Any]:
    fields = schema.model_fields
    return {
        key: None if value == "none" and _optional(fields[key].annotation) else value
        for key, value in table.items()
    }


def _optional(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return type(None) in typing.get_args(annotation)
    return annotation is None


def _explain(error: ValidationError, schema: type[BaseModel], prefix: str) -> str:
    """The first wrong value with every rule it could have met, and the default as the fix."""
    key = error.errors()[0]["loc"][0]
    errors = [item for item in error.errors() if item["loc"][0] == key]
    first = errors[0]
    rules = dict.fromkeys(_rule(item["msg"]) for item in errors)
    path = [str(part) for part in first["loc"] if str(part) not in _NOISE]
    full_key = prefix + ".".join(path)
    field = schema.model_fields[str(key)]
    if first["type"] == "unexpected_keyword_argument":
        fields = _fields_inside(field.annotation)
        hint = nearest(str(first["loc"][-1]), fields)
        return f"unknown key {full_key}{hint}; known are {', '.join(fields)}."
    if first["type"] == "missing":
        return f"{full_key} is missing and has no default; add it to the file."
    verb = ":" if first["type"] == "value_error" else " must be"
    value = spell(first["input"])
    if len(value) > _LONGEST:
        value = f"{value[:_LONGEST]}..."
    if first["type"] == "literal_error":
        value += nearest(first["input"], _literals(field.annotation))
    fix = f"{_default(field)}{_as_list(full_key, first)}"
    return f"{full_key} = {value}{verb} {' or '.join(rules)}{fix}."


def _literals(annotation: Any) -> list[str]:
    """The words that an annotation lists, also inside a list."""
    if isinstance(annotation, str):
        return [annotation]
    return [word for inside in typing.get_args(annotation) for word in _literals(inside)]


def _as_list(key: str, error: Mapping[str, Any]) -> str:
    """How a list is written on a command line, where text is given for one.

    A shell takes quotes away, so that ["f1", "auc"] arrives as [f1, auc].
    """
    text = error["input"]
    if error["type"] not in ("list_type", "tuple_type") or not isinstance(text, str):
        return ""
    items = [item.strip() for item in text.strip("[]").split(",")]
    return f"; on a command line: '{key}={json.dumps(items)}'"


def _default(field: FieldInfo) -> str:
    """The default of a field, to follow the rules; "" where it has none or a whole table."""
    default = field.get_default(call_default_factory=True)
    if field.is_required() or isinstance(default, dict | BaseModel):
        return ""
    return f"; the default is {spell(default)}"


_LONGEST = 200  # characters of a wrong value that are shown
_NOISE = {"int", "float", "str", "bool", "none"}
_NOISE |= {"constrained-str", "constrained-int", "constrained-float"}
_WORDS = {
    "Input should be ": "",
    "Value error, ": "",
    "String should match pattern": "text that matches",
    "a valid array": "a list",
    "an object": "a table",
}


def _rule(message: str) -> str:
    """A rule in the words of TOML, to follow "must be"."""
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message.rstrip(".")


def _fields_inside(annotation: Any) -> list[str]:
    """The fields of the dataclass that a list such as tuple[Level, ...] holds."""
    kinds = [kind for kind in typing.get_args(annotation) if dataclasses.is_dataclass(kind)]
    return [field.name for kind in kinds for field in dataclasses.fields(kind)]


def spell(value: Any) -> str:
    """A value as a file would have it."""
    return '"none"' if value is None else json.dumps(value, default=str)


def nearest(key: str, choices: typing.Iterable[str], prefix: str = "") -> str:
    """What the user may have meant, to follow what was written."""
    choice = closest(key, choices)
    if choice is None:
        return ""
    return f" (did you mean {prefix}{choice}?)"
