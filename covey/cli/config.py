"""An experiment as a TOML file: strict, every mistake named with its place, its value, the rule and a fix.

TOML has no null: a value that may be None is written "none" (batch = "none" takes all of a device's data at every step).
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import inspect
import json
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Union

import tomli_w
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from covey.cli.registry import REGISTRY
from covey.data import Shards
from covey.errors import ConfigError
from covey.experiment import Experiment
from covey.tree import Tree

T = typing.TypeVar("T", bound=BaseModel)
_STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
_SECTIONS = {"algorithm": "algorithms", "data": "data", "model": "models"}
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class TreeConfig(BaseModel):
    """`edges`: how many, or how many devices each has. `children`: child counts of every node, tier by tier, for deeper trees."""

    model_config = _STRICT
    edges: int | list[int] | None = None
    children: list[list[int]] | None = None
    tiers: list[str] | None = None

    def build(self, devices: int) -> Tree:
        """The tree over this many devices."""
        if self.edges is not None and self.children is not None:
            raise ConfigError("tree.edges and tree.children are both given; keep one of them.")
        if self.children is not None:
            return Tree(tuple(map(tuple, self.children)), tuple(self.tiers or ()))
        if self.tiers is not None:
            raise ConfigError("tree.tiers names the tiers of tree.children; give those too, or leave out tree.tiers.")
        if self.edges is None:
            return Tree.flat(devices)
        return Tree.grouped(self.edges if isinstance(self.edges, list) else _even(devices, self.edges))


class Config(BaseModel):
    """The plain part of a file; the tables [algorithm], [data] and [model] follow what they name."""

    model_config = _STRICT
    name: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$")
    rounds: int = Field(60, ge=1)
    seed: int = 0
    seeds: int = Field(1, ge=1)
    loss: Literal["cross_entropy", "squared_error"] = "cross_entropy"
    l2: float = Field(0.0, ge=0, allow_inf_nan=False)
    private: list[str] = []
    idle: Literal["skip", "train"] = "skip"
    codec: str | dict[str, str] = "dense"
    batches: Literal["uniform", "cyclic"] = "uniform"
    protocol: Literal["honest", "paper"] = "honest"
    start: Literal["seed", "module"] = "seed"
    score_every: int = Field(1, ge=1)
    score_train_every: int | None = Field(None, ge=1)
    parts: list[Literal["train", "validation", "test"]] = ["validation", "test"]
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    workers: int | None = Field(None, ge=1)
    memory: int = Field(2**31, ge=1)
    capture: bool = True
    checkpoint_every: int = Field(10, ge=1)
    algorithm: dict[str, Any] = {}
    data: dict[str, Any] = {}
    model: dict[str, Any] = {}
    tree: TreeConfig = TreeConfig()

    def experiment(self, seed: int) -> Experiment:
        """The experiment of one seed: its own initial weights, partition and draws."""
        shards = _make("data", self.data, seed=seed)
        self._need_parts(shards)
        plain = (
            "rounds",
            "loss",
            "l2",
            "idle",
            "codec",
            "batches",
            "protocol",
            "start",
            "score_every",
            "score_train_every",
            "device",
            "workers",
            "memory",
            "capture",
        )
        return Experiment(
            algorithm=_make("algorithm", self.algorithm),
            data=shards,
            model=_make("model", self.model, shards=shards),
            tree=self.tree.build(shards.devices),
            seed=seed,
            private=tuple(self.private),
            parts=tuple(self.parts),
            dtype=_DTYPES[self.dtype],
            **{name: getattr(self, name) for name in plain},
        )

    def _need_parts(self, shards: Shards) -> None:
        """The summary takes the round from validation data and the figures from test data; paper runs use test alone."""
        for part in ("test",) if self.protocol == "paper" else ("validation", "test"):
            if part not in self.parts:
                raise ConfigError(f"parts = {_spell(self.parts)} lacks {_spell(part)}, which the summary is made from; add it.")
            if not shards.part(part).counts().sum():
                raise ConfigError(f"no device has {part} examples, which the summary is made from; change data.split.")

    def resolved(self) -> dict[str, Any]:
        """Every value that decides a run, defaults filled in, as TOML can hold it."""
        out = self.model_dump()
        for section in _SECTIONS:
            values = _values(section, getattr(self, section)).model_dump()
            out[section] = {"name": getattr(self, section)["name"], **values}
        out["tree"] = {key: value for key, value in out["tree"].items() if value is not None}
        return typing.cast(dict[str, Any], _without_null(out))

    def text(self) -> str:
        """The resolved file."""
        return tomli_w.dumps(self.resolved())


def load(path: Path | None, changes: Sequence[str] = ()) -> Config:
    """The experiment in a file (None: the demo), with changes such as "algorithm.lam1=15" applied, wholly checked."""
    table = _read(path)
    for change in sorted(
        changes, key=lambda change: ".name=" not in change.replace(" ", "")
    ):  # a name drops the fields of another
        _apply(table, change)
    _refuse_dates(table, "")
    if isinstance(tree := table.get("tree"), dict):
        table["tree"] = _check(TreeConfig, _with_null(tree, TreeConfig), "tree.").model_dump(exclude_none=True)
    config = _check(Config, _with_null(table, Config), "")
    for section in _SECTIONS:
        _values(section, getattr(config, section))
    return config


SECTIONS = {kind: section for section, kind in _SECTIONS.items()}
"""The table of a file in which something of this kind stands."""


def defaults(kind: str, name: str) -> dict[str, Any]:
    """Everything a file may say of a named thing, with the defaults; what has none is "..."."""
    entries = REGISTRY[kind]
    if name not in entries:
        raise ConfigError(f"{name!r} is not among the {kind}{_nearest(name, entries)}; one of {', '.join(entries)}.")
    fields = _schema(entries[name].make).model_fields if kind in SECTIONS else {}
    values = {key: "..." if field.is_required() else field.get_default() for key, field in fields.items()}
    return typing.cast(dict[str, Any], _without_null({"name": name, **values}))


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return tomllib.loads(resources.files("covey.cli").joinpath("demo.toml").read_text())
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}; `covey run` without a file runs the demo.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from error


def _apply(table: dict[str, Any], change: str) -> None:
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


def _refuse_dates(value: Any, place: str) -> None:
    """TOML has dates and times, which no field takes."""
    if isinstance(value, datetime.date | datetime.time):
        raise ConfigError(f"{place} = {value} is a date or a time, which no field takes; put text in quotes.")
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        _refuse_dates(item, f"{place}.{key}".lstrip("."))


def _make(section: str, table: Mapping[str, Any], **given: Any) -> Any:
    values = _values(section, table)
    make = REGISTRY[_SECTIONS[section]][table["name"]].make
    fields = type(values).model_fields
    known = inspect.signature(make).parameters
    return make(**{name: getattr(values, name) for name in fields}, **{k: v for k, v in given.items() if k in known})


def _values(section: str, table: Mapping[str, Any]) -> BaseModel:
    """The fields of a named thing, checked; `name` says which."""
    entries = REGISTRY[_SECTIONS[section]]
    name = table.get("name")
    if not isinstance(name, str) or name not in entries:
        listed = f"one of {', '.join(entries)}"
        if name is None:
            raise ConfigError(f"[{section}] needs a name: {listed}.")
        raise ConfigError(f"{section}.name = {name!r} is unknown{_nearest(str(name), entries)}; {listed}.")
    schema = _schema(entries[name].make)
    return _check(schema, _with_null({k: v for k, v in table.items() if k != "name"}, schema), f"{section}.")


@cache
def _schema(make: Callable[..., Any]) -> type[BaseModel]:
    """What a class or function takes, except what the experiment gives it."""
    hints = typing.get_type_hints(make.__init__ if inspect.isclass(make) else make)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(make).parameters.items():
        if name not in ("shards", "seed"):
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (hints[name], default)
    return create_model(make.__name__, __config__=_STRICT, **fields)


def _check(schema: type[T], table: Mapping[str, Any], prefix: str) -> T:
    for key in table:
        if key not in schema.model_fields:
            known = ", ".join(schema.model_fields)
            raise ConfigError(f"unknown key {prefix}{key}{_nearest(key, schema.model_fields, prefix)}; known are {known}.")
    try:
        return schema.model_validate_json(json.dumps(table))  # JSON mode: strict, yet a list may become a tuple
    except ValidationError as error:
        raise ConfigError(_explain(error, schema, prefix)) from error


def _explain(error: ValidationError, schema: type[BaseModel], prefix: str) -> str:
    """The first wrong value with every rule it could have met, and the default as the fix."""
    key = error.errors()[0]["loc"][0]
    mine = [e for e in error.errors() if e["loc"][0] == key]
    rules = dict.fromkeys(_rule(e["msg"]) for e in mine)
    place = ".".join(str(part) for part in mine[0]["loc"] if isinstance(part, int | str) and str(part) not in _NOISE)
    field = schema.model_fields[str(key)]
    default = field.get_default(call_default_factory=True)
    fix = "" if field.is_required() or isinstance(default, dict | BaseModel) else f"; the default is {_spell(default)}"
    if mine[0]["type"] == "unexpected_keyword_argument":
        known = _fields_inside(field.annotation)
        return f"unknown key {prefix}{place}{_nearest(str(mine[0]['loc'][-1]), known)}; known are {', '.join(known)}."
    if mine[0]["type"] == "missing":
        return f"{prefix}{place} is missing and has no default; add it to the file."
    verb = ":" if mine[0]["type"] == "value_error" else " must be"
    return f"{prefix}{place} = {_spell(mine[0]['input'])}{verb} {' or '.join(rules)}{fix}."


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


def _spell(value: Any) -> str:
    return '"none"' if value is None else json.dumps(value, default=str)


def _nearest(key: str, known: typing.Iterable[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def _with_null(table: Mapping[str, Any], schema: type[BaseModel]) -> dict[str, Any]:
    """ "none" becomes None where a field may be None."""
    out = dict(table)
    for name, field in schema.model_fields.items():
        if out.get(name) == "none" and _optional(field.annotation):
            out[name] = None
    return out


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):  # a table in a list, such as a level of `nested`, leaves out what is None
        return [{k: v for k, v in item.items() if v is not None} if isinstance(item, dict) else item for item in value]
    return "none" if value is None else value


def _optional(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return type(None) in typing.get_args(annotation)
    return annotation is None


def _even(devices: int, edges: int) -> list[int]:
    if not 1 <= edges <= devices:
        raise ConfigError(f"tree.edges = {edges} for {devices} devices: give 1 to {devices}.")
    return [devices // edges + (i < devices % edges) for i in range(edges)]
