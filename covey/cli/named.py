"""The things that a file names: algorithms, data and models; their fields are checked.

The table of a named thing holds its name and parameters of the class or function that makes it:
those that TOML can hold. A thing of the user's own is named package.module:Class.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo
from torch import nn

from covey import draws
from covey.cli import glossary, modules, pretrained, registry
from covey.cli.registry import FACTS
from covey.cli.validate import STRICT, check, nearest
from covey.data import Shards
from covey.engine.generator import Seeded
from covey.errors import ConfigError

KINDS = {"algorithm": "algorithms", "data": "data", "model": "models"}
"""The kind of thing that each table of a file names."""
SECTIONS = {kind: section for section, kind in KINDS.items()}
"""The table of a file in which something of this kind stands."""

_BY_NAME = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
# What TOML can hold, or nothing.
_PLAIN = (
    types.EllipsisType,
    types.NoneType,
    bool,
    int,
    float,
    str,
    list,
    tuple,
)


def make(section: str, table: Mapping[str, Any], **offered: Any) -> Any:
    """The thing that a table names.

    `offered` are parameters it takes where the table does not give them.
    """
    fields = checked(section, table)
    name = table["name"]
    build = maker(section, name)
    parameters = inspect.signature(build).parameters
    arguments = {key: value for key, value in offered.items() if key in parameters}
    for key, value in _parameters(section, fields, build).items():
        from_data = key in offered or _from_data(section, key)
        if value is not None or not from_data:
            arguments[key] = _as_tuple(value, offered.get(key, parameters[key].default))
    if name not in registry.REGISTRY[KINDS[section]]:
        return modules.make(section, name, build, arguments)
    try:
        return build(**arguments)
    except (
        RuntimeError,
        MemoryError,
        OverflowError,
    ) as error:  # of sizes beyond all memory
        raise ConfigError(f"[{section}] {name} cannot be made of these values: {error}.") from error


def make_model(table: Mapping[str, Any], shards: Shards, seed: int) -> nn.Module:
    """The model, with its pretrained weights, adapters and frozen layers.

    Parameters that no seed resets later, as a user's own may be, are drawn from the seed here.
    """
    facts = {name: fact(shards) for name, fact in FACTS.items()}
    if facts["tokens"] is None:
        del facts["tokens"]
        _need_no_tokens(table, shards)
    with Seeded(draws.key(seed, "module"), f"model.name = {table.get('name')!r}"):
        model: nn.Module = make("model", table, **facts)
        options = pretrained.fields(maker("model", table["name"]))
        values = checked("model", table).model_dump()
        return pretrained.prepared(model, {name: values[name] for name in options})


def _parameters(section: str, fields: BaseModel, build: Callable[..., Any]) -> dict[str, Any]:
    """The fields that are parameters of the class or function."""
    if section != "model":
        return dict(fields)
    return pretrained.without_options(fields, build)


def _need_no_tokens(table: Mapping[str, Any], shards: Shards) -> None:
    """Refuse a model of token ids for data that has none."""
    fields = checked("model", table)
    parameters = inspect.signature(maker("model", table["name"])).parameters
    wanted = parameters.get("tokens")
    if wanted is None or wanted.default is not wanted.empty:
        return
    if getattr(fields, "tokens", None) is None:
        raise ConfigError(
            f"model.name = {table['name']!r} takes token ids, but the data {shards.name} has "
            "numbers; choose data with tokens, or another model."
        )


def checked(section: str, table: Mapping[str, Any], prefix: str | None = None) -> BaseModel:
    """The fields of a named thing, checked.

    `place` is where the table stands, unless in its own section.
    """
    prefix = prefix or section
    names = registry.names(KINDS[section])
    name = table.get("name")
    if not isinstance(name, str) or not (name in names or modules.is_own(section, name)):
        own = ""
        if section == "algorithm":
            own = f", or {modules.FORM} of your own"
        listed = f"one of {', '.join(names)}{own}"
        if name is None:
            raise ConfigError(f"[{prefix}] needs a name: {listed}.")
        meant = nearest(str(name), names)
        raise ConfigError(f"{prefix}.name = {name!r} is unknown{meant}; {listed}.")
    fields = {key: value for key, value in table.items() if key != "name"}
    return check(schema(maker(section, name), section), fields, f"{prefix}.")


def maker(section: str, name: str) -> Callable[..., Any]:
    """The class or function by a name that was checked."""
    if modules.is_own(section, name):
        return modules.find(section, name)
    entry = registry.find(KINDS[section], name)
    assert entry is not None
    return entry.make


@cache
def schema(build: Callable[..., Any], section: str) -> type[BaseModel]:
    """What a file may give a class or function."""
    hints = _hints(build)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(build).parameters.items():
        default = _default(section, parameter)
        by_name = parameter.kind in _BY_NAME and not _reserved(section, name)
        if by_name and isinstance(default, _PLAIN):
            hint = hints.get(name, Any)
            fields[name] = (hint | None if default is None else hint, default)
    if section == "model":
        fields |= pretrained.fields(build)
    return create_model(build.__name__, __config__=STRICT, **fields)


def defaults(kind: str, name: str) -> dict[str, Any]:
    """Everything a file may say of a named thing, with the defaults; what has none is "..."."""
    section = SECTIONS.get(kind, kind)
    if not modules.is_own(section, name) and registry.find(kind, name) is None:
        names = registry.names(kind)
        meant = nearest(name, names)
        raise ConfigError(f"{name!r} is not among the {kind}{meant}; one of {', '.join(names)}.")
    out = {"name": name}
    if kind in SECTIONS:
        build = maker(section, name)
        for key, field in _own_fields(section, build).items():
            out[key] = "..." if field.is_required() else field.get_default()
    return typing.cast(dict[str, Any], without_null(out))


def _own_fields(section: str, build: Callable[..., Any]) -> dict[str, FieldInfo]:
    """The fields of a named thing alone, without the options of every model."""
    fields = schema(build, section).model_fields
    if section != "model":
        return fields
    return pretrained.without_options(fields.items(), build)


def explain(kind: str, name: str) -> dict[str, str]:
    """What each field of a named thing may be and means, where that is known; one line each."""
    if kind not in SECTIONS:
        return {}
    section = SECTIONS[kind]
    build = maker(section, name)
    hints = _hints(build)
    out = {}
    for key in _own_fields(section, build):
        values = glossary.kind_of(hints.get(key))
        meaning = ""
        if kind == "algorithms":
            meaning = glossary.meaning(name, key, build)
        out[key] = ": ".join(part for part in (values, meaning) if part)
    return out


def resolved(section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with its defaults.

    What the data decides of a model is left out where the table does not give it.
    """
    values = checked(section, table).model_dump()
    build = maker(section, table["name"])
    fields = {
        key: value for key, value in values.items() if not _is_silent(section, key, value, build)
    }
    return {"name": table["name"], **fields}


def without_null(value: Any) -> Any:
    """A value as TOML can hold it: None is "none".

    A table in a list, such as a level of `nested`, leaves it out.
    """
    if isinstance(value, dict):
        return {key: without_null(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_without_none(inside) if isinstance(inside, dict) else inside for inside in value]
    return "none" if value is None else value


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _default(section: str, parameter: inspect.Parameter) -> Any:
    """The default of a parameter: None where the data decides it, "..." where it must be given."""
    if _from_data(section, parameter.name):
        return None
    if parameter.default is parameter.empty:
        return ...
    return parameter.default


def _as_tuple(value: Any, default: Any) -> Any:
    """A list of TOML as the tuple that stands there by default."""
    if isinstance(value, list) and isinstance(default, tuple):
        return tuple(value)
    return value


def _hints(build: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters.

    There are none where a user's own are names that only a type checker knows.
    """
    try:
        return typing.get_type_hints(build.__init__ if inspect.isclass(build) else build)
    except (NameError, AttributeError):
        return {}


def _from_data(section: str, name: str) -> bool:
    """Whether the data decides a parameter where the file does not."""
    return section == "model" and name in FACTS


def _is_silent(section: str, name: str, value: Any, build: Callable[..., Any]) -> bool:
    """Whether a value of a table says nothing: the data decides it, or an option is not used."""
    if section != "model":
        return False
    return (value is None and name in FACTS) or pretrained.is_silent(name, value, build)


def _reserved(section: str, name: str) -> bool:
    """Whether a key of this name would mean something else, or is none."""
    return name == "name" or name.startswith("_") or (section, name) == ("data", "seed")
