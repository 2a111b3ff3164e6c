"""Tables of a TOML file against what they may hold: strict, every mistake named with its place, its value, the rule and a fix."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from covey.errors import ConfigError

T = typing.TypeVar("T", bound=BaseModel)
STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)


def apply(table: dict[str, Any], change: str) -> None:
    """Make one change such as "algorithm.lam1=15" in the table of a file."""
    key, equals, value = change.partition("=")
    if not equals or not key:
        raise ConfigError(f"{change!r} is neither a file nor a change; write changes as algorithm.lam1=15.")
    *parents, last = key.strip().split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{change!r}: {parent} is a value, not a table.")
    try:
        new = tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        new = value.strip()
    if last == "name" and parents and table.get("name") not in (None, new):
        table.clear()  # another algorithm's fields would be unknown to this one
    table[last] = new


def check(schema: type[T], table: Mapping[str, Any], prefix: str) -> T:
    """The table as its schema, "none" as None where a field may be None; `prefix` is where it stands in the file."""
    for key in table:
        if key not in schema.model_fields:
            known = ", ".join(schema.model_fields)
            raise ConfigError(f"unknown key {prefix}{key}{nearest(key, schema.model_fields, prefix)}; known are {known}.")
    given = json.dumps(_with_null(table, schema))
    try:
        return schema.model_validate_json(given)  # JSON mode: strict, yet a list may become a tuple
    except ValidationError as error:
        raise ConfigError(_explain(error, schema, prefix)) from error


def _with_null(table: Mapping[str, Any], schema: type[BaseModel]) -> dict[str, Any]:
    fields = schema.model_fields
    return {key: None if value == "none" and _optional(fields[key].annotation) else value for key, value in table.items()}


def _optional(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return type(None) in typing.get_args(annotation)
    return annotation is None


def _explain(error: ValidationError, schema: type[BaseModel], prefix: str) -> str:
    """The first wrong value with every rule it could have met, and the default as the fix."""
    key = error.errors()[0]["loc"][0]
    mine = [e for e in error.errors() if e["loc"][0] == key]
    rules = dict.fromkeys(_rule(e["msg"]) for e in mine)
    place = ".".join(str(part) for part in mine[0]["loc"] if isinstance(part, int | str) and str(part) not in _NOISE)
    field = schema.model_fields[str(key)]
    default = field.get_default(call_default_factory=True)
    fix = "" if field.is_required() or isinstance(default, dict | BaseModel) else f"; the default is {spell(default)}"
    if mine[0]["type"] == "unexpected_keyword_argument":
        known = _fields_inside(field.annotation)
        return f"unknown key {prefix}{place}{nearest(str(mine[0]['loc'][-1]), known)}; known are {', '.join(known)}."
    if mine[0]["type"] == "missing":
        return f"{prefix}{place} is missing and has no default; add it to the file."
    verb = ":" if mine[0]["type"] == "value_error" else " must be"
    return f"{prefix}{place} = {spell(mine[0]['input'])}{verb} {' or '.join(rules)}{fix}."


_NOISE = {"int", "float", "str", "bool", "none", "constrained-str"}
_WORDS = {
    "Input should be ": "", "Value error, ": "", "String should match pattern": "text that matches",
    "a valid array": "a list", "an object": "a table",
}  # fmt: skip


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


def nearest(key: str, known: typing.Iterable[str], prefix: str = "") -> str:
    """What the user may have meant, to follow what was written."""
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
