"""The things that a file names: algorithms, data and models; their fields are checked.

The table of a named thing holds its name and parameters of the class or function that makes it:
those that TOML can hold. A thing of the user's own is named package.module:Class.

A field's meaning is a phrase that several algorithms share, or one of the algorithm's own. That
stands in the algorithm's file, in a comment behind the field, which may go on below it:

    mix: float = 0.5  # share of the global model in a device's own,
    # from the second round on
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from torch import nn

from covey import draws, fields
from covey.algorithms import ALGORITHMS
from covey.data import Shards
from covey.engine.modules.generator import Seeded
from covey.errors import ConfigError
from covey.fields import Option, nearest
from covey.files import modules, pretrained, registry
from covey.files.registry import FACTS, KINDS, SECTIONS

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_PLAIN = (types.NoneType, bool, int, float, str, list, tuple)
"""What TOML can hold, or nothing."""

SHARED = {
    "batch": 'examples per step of a device; "none" takes all',
    "beta": "server step towards the mean of the replies; 1 takes the mean",
    "cut_after": "whether messages are still cut to zeros after the penalty has ended",
    "device_sample": 'cohort size of an edge; a fraction is a share of its devices, "none" all',
    "edge_rounds": "rounds between an edge and its devices in one round of the server",
    "floor": "share of non-zeros below which a device trains with gamma_low",
    "gamma_low": "weight of the l1 penalty on a device below the floor",
    "l1": 'how the l1 penalty is minimised: smoothed, or by soft thresholds ("prox")',
    "lam": "pull of the personal model towards the model above it (lambda)",
    "local_rounds": "times that a device updates personal and local model in one round",
    "lr": "step size of the local steps",
    "method": "how the inner steps are taken: by gradient descent, or with Nesterov's momentum",
    "personal_lr": "step size of the personal model",
    "personal_steps": "gradient steps of the personal model or layers in one round",
    "rho": "width of the smoothed l1 norm around zero",
    "sample": 'cohort size of the server; a fraction is a share of its children, "none" all',
    "sigma": "how fast weights fall with the distance of models",
    "steps": "gradient steps of a device in one round",
    "tol": "gradient norm at which a device stops its inner steps early; 0: never",
    "weight": "weights of the replies: equal, or by the number of training examples",
    "weight_decay": "weight decay: factor of the weights in every gradient",
}
"""Fields that mean the same wherever they are."""


def make(section: str, table: Mapping[str, Any], **offered: Any) -> Any:
    """The thing that a table names.

    `offered` are parameters it takes where the table does not give them.
    """
    values = checked(section, table)
    name = table["name"]
    build = maker(section, name)
    parameters = inspect.signature(build).parameters
    arguments = {key: value for key, value in offered.items() if key in parameters}
    for key, value in values.items():
        if key not in parameters:
            continue  # an option of every model
        from_data = key in offered or (section == "model" and key in FACTS)
        if value is None and from_data:
            continue
        default = offered.get(key, parameters[key].default)
        listed = isinstance(value, list) and isinstance(default, tuple)
        arguments[key] = tuple(value) if listed else value
    if name not in registry.REGISTRY[KINDS[section]]:
        return modules.make(section, name, build, arguments)
    try:
        return build(**arguments)
    except (RuntimeError, MemoryError, OverflowError) as error:  # of sizes beyond all memory
        raise ConfigError(f"[{section}] {name} cannot be made of these values: {error}.") from error


def make_model(table: Mapping[str, Any], shards: Shards, seed: int) -> nn.Module:
    """The model, with its pretrained weights, adapters and frozen layers.

    Parameters that no seed resets later, as a user's own may be, are drawn from the seed here.
    """
    facts = registry.facts(shards)
    values = checked("model", table)
    build = maker("model", table["name"])
    if facts["tokens"] is None:
        del facts["tokens"]
        wanted = inspect.signature(build).parameters.get("tokens")
        needed = wanted is not None and wanted.default is wanted.empty
        if needed and values.get("tokens") is None:
            raise ConfigError(
                f"model.name = {table['name']!r} takes token ids, but the data {shards.name} has "
                "numbers; choose data with tokens, or another model."
            )
    with Seeded(draws.key(seed, "module"), f"model.name = {table['name']!r}"):
        model: nn.Module = make("model", table, **facts)
        shared = pretrained.options_beside(build)
        return pretrained.prepared(model, {name: values[name] for name in shared})


def checked(section: str, table: Mapping[str, Any], prefix: str | None = None) -> dict[str, Any]:
    """The fields of a named thing, checked.

    `prefix` is where the table stands, unless in its own section.
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
    given = dict(table)
    del given["name"]
    return fields.values(schema(maker(section, name), section), given, f"{prefix}.")


def maker(section: str, name: str) -> Callable[..., Any]:
    """The class or function by a name that was checked."""
    if modules.is_own(section, name):
        return modules.find(section, name)
    entry = registry.find(KINDS[section], name)
    assert entry is not None
    return entry.make


@cache
def schema(build: Callable[..., Any], section: str) -> dict[str, Option]:
    """What a file may give a class or function."""
    out: dict[str, Option] = {}
    parameters = inspect.signature(build).parameters
    for name, option in fields.options(build).items():
        reserved = name == "name" or name.startswith("_") or (section, name) == ("data", "seed")
        if reserved or parameters[name].kind not in _BY_NAME:
            continue
        if section == "model" and name in FACTS:
            out[name] = Option(option.hint | None, None)
        elif option.default is fields.REQUIRED or isinstance(option.default, _PLAIN):
            hint = option.hint | None if option.default is None else option.hint
            out[name] = Option(hint, option.default)
    if section == "model":
        out |= pretrained.options_beside(build)
    return out


def defaults(kind: str, name: str) -> dict[str, Any]:
    """Everything a file may say of a named thing, with the defaults; what has none is "..."."""
    section = SECTIONS.get(kind, kind)
    if not modules.is_own(section, name) and registry.find(kind, name) is None:
        names = registry.names(kind)
        meant = nearest(name, names)
        raise ConfigError(f"{name!r} is not among the {kind}{meant}; one of {', '.join(names)}.")
    out = {} if kind == "settings" else {"name": name}
    for key, option in _listed(kind, name).items():
        out[key] = "..."
        if option.default is not fields.REQUIRED:
            out[key] = fields.plain(option.default, option.hint)
    return typing.cast(dict[str, Any], without_null(out))


def _listed(kind: str, name: str) -> dict[str, Option]:
    """The options of a thing by its name; of some kinds, a file gives none."""
    if kind == "settings":
        return fields.options(registry.REGISTRY[kind][name].make)
    if kind not in SECTIONS:
        return {}
    build = maker(SECTIONS[kind], name)
    out = dict(schema(build, SECTIONS[kind]))
    if kind == "models":
        for option in pretrained.options_beside(build):
            del out[option]
    return out


def explain(kind: str, name: str) -> dict[str, str]:
    """What each field of a named thing may be and means, where that is known; one line each."""
    out = {}
    for key, option in _listed(kind, name).items():
        told = ""
        if kind == "algorithms":
            told = meaning(name, key, maker("algorithm", name))
        elif kind == "settings":
            told = fields.meanings(registry.REGISTRY[kind][name].make).get(key, "")
        out[key] = ": ".join(part for part in (fields.words(option.hint), told) if part)
    return out


def meaning(name: str, field: str, make: object = None) -> str:
    """What a field of an algorithm means; "" where nobody says it.

    >>> meaning("fedavg", "lr")
    'step size of the local steps'
    >>> meaning("permfl", "gamma")
    'pull of an edge towards the server'
    """
    comment = fields.meanings(make or ALGORITHMS.get(name)).get(field, "")
    if comment:
        return comment
    if name not in ALGORITHMS:
        return ""
    return SHARED.get(field, "")


def resolved(section: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with its defaults.

    Of a model, options that are not used are left out, and what the data decides where the table
    does not give it.
    """
    out = {"name": table["name"], **fields.plain(checked(section, table))}
    if section == "model":
        shared = pretrained.options_beside(maker(section, table["name"]))
        for key, value in list(out.items()):
            from_data = key in FACTS and value in (None, "none")
            unused = key in shared and value in (None, [], (), "", "none")
            if from_data or unused:
                del out[key]
    return out


def without_null(value: Any) -> Any:
    """A value as TOML can hold it: None is "none".

    A table in a list, such as a level of `nested`, leaves it out.
    """
    if isinstance(value, dict):
        return {key: without_null(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [
            {key: item for key, item in inside.items() if item is not None}
            if isinstance(inside, dict)
            else inside
            for inside in value
        ]
    return "none" if value is None else value


def taken_over(
    section: str,
    old: dict[str, Any],
    name: Any,
    changes: Sequence[str],
    notes: list[str],
) -> dict[str, Any]:
    """The fields of an algorithm that another one has too, with the same meaning.

    A note says which are dropped.
    """
    if section != "algorithm" or not isinstance(name, str):
        return {}
    old_name = str(old["name"])
    changed = {change.partition("=")[0].strip() for change in changes}
    kept = {}
    dropped = []
    for key, value in old.items():
        if key == "name":
            continue
        if _same_field(old_name, name, key, value):
            kept[key] = value
        elif f"{section}.{key}" not in changed:
            dropped.append(f"{key} = {fields.spelled(value)}")
    if dropped:
        note = f"dropped {', '.join(dropped)}, fields of {old_name} alone"
        if kept:
            note += f"; kept {', '.join(kept)}"
        notes.append(f"algorithm.name = {name}: {note}")
    return kept


def _same_field(old: str, new: str, key: str, value: Any) -> bool:
    """Whether two algorithms mean the same by this field, and the new one may have this value."""
    try:
        makers = [maker("algorithm", name) for name in (old, new)]
        schemas = [schema(build, "algorithm") for build in makers]
    except (ConfigError, AssertionError):  # a name that is wrong is refused later, by name
        return False
    if any(key not in schema for schema in schemas):
        return False
    both = zip((old, new), makers, strict=True)
    meanings = {meaning(name, key, build) for name, build in both}
    if len(meanings - {""}) > 1:
        return False
    try:
        fields.values({key: schemas[1][key]}, {key: value}, "")
    except ConfigError:
        return False
    return True
