"""What an experiment file can name, each entry with a line about it.

The kinds are algorithms, data, models, partitions, codecs, settings, and what rooms add.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from covey import codecs, data, installed, models, rooms
from covey.algorithms import ALGORITHMS
from covey.codecs import CODECS
from covey.data import Shards
from covey.errors import ConfigError
from covey.files import modules


@dataclass(frozen=True)
class Listed:
    """One thing by its name in a file, and what makes it."""

    name: str
    make: Callable[..., Any]
    line: str
    package: str = ""  # by which it was installed; empty for covey's own
    broken: bool = False  # it cannot be used, and `line` says why


def mlp(inputs: int, outputs: int, *, hidden: Sequence[int] = (100,)) -> nn.Module:
    """Linear layers with ReLU between them; `hidden` lists their widths."""
    return models.mlp(inputs, *hidden, outputs)


FACTS = ("inputs", "outputs", "classes", "shape", "tokens", "by_position")
"""The parameters of a model that the data decides; a file may give them instead."""


def facts(shards: Shards) -> dict[str, Any]:
    """What the data decides of a model, by the names of the parameters that take it."""
    outputs = shards.classes
    if outputs is None:
        outputs = shards.y[0].numel()
    return {
        "inputs": shards.x[0].numel(),
        "outputs": outputs,
        "classes": outputs,
        "shape": tuple(shards.x.shape[1:]),
        "tokens": shards.tokens,
        "by_position": shards.by_position,
    }


def _line(thing: object) -> str:
    """The first line of a docstring; of an algorithm or a model of covey's, that of its file."""
    home = thing.__module__
    whole = inspect.isclass(thing) or home.startswith("covey.models.")
    return _first(sys.modules[home].__doc__ if whole else inspect.getdoc(thing))


def _first(text: str | None) -> str:
    return next(iter((text or "").strip().splitlines()), "")


def _entries(things: dict[str, Any]) -> dict[str, Listed]:
    return {name: Listed(name, thing, _line(thing)) for name, thing in things.items()}


_OWN = (
    "a module of your own, or a function that makes one; keys are its arguments; "
    "inputs, outputs, classes, shape, tokens and by_position are set by the data"
)
_OWN_DATA = "a function of your own that returns covey.data.Shards; keys are its arguments"
_DATA = (
    *("digits", "synthetic", "speakers", "text", "files", "images", "arrow", "census"),
    *("mnist", "fashion_mnist", "emnist", "femnist", "cifar10", "cifar100"),
)
_MODELS = (
    *("linear", "mlp", "cnn", "lenet", "permfl_cnn", "vgg"),
    *("lstm", "gru", "transformer"),
)
REGISTRY: dict[str, dict[str, Listed]] = {
    "algorithms": _entries(dict(ALGORITHMS)),
    "data": _entries({name: getattr(data, name) for name in _DATA})
    | {modules.FUNCTION_FORM: Listed(modules.FUNCTION_FORM, data.own, _OWN_DATA)},
    "models": _entries({name: getattr(models, name) for name in _MODELS} | {"mlp": mlp})
    | {modules.FORM: Listed(modules.FORM, nn.Module, _OWN)},
    "partitions": {name: Listed(name, data.deal, line) for name, line in data.PARTITIONS.items()},
    "codecs": {
        name: Listed(name, type(codec), _line(type(codec))) for name, codec in CODECS.items()
    },
    **{
        kind: {name: Listed(name, *entry) for name, entry in rooms.load(where).items()}
        for kind, where in rooms.added("lists").items()
    },
    "settings": {},
}
"""What covey itself has."""

KINDS = {"algorithm": "algorithms", "data": "data", "model": "models"}
"""The kind of thing that each table of a file names."""
SECTIONS = {kind: section for section, kind in KINDS.items()}
"""The table of a file in which something of this kind stands."""


def find(kind: str, name: str) -> Listed | None:
    """What a file means by this name: covey's own, or what an installed package declares."""
    declared = installed.find(kind, name, REGISTRY[kind])
    if declared is None:
        return REGISTRY[kind].get(name)
    if kind == "codecs":
        codec = type(codecs.declared_codec(declared))
        return Listed(name, codec, _first(codec.__doc__), declared.package)
    thing = declared.load()
    if not modules.makes(thing, SECTIONS[kind]):
        wanted = modules.wanted(SECTIONS[kind])
        raise declared.wrong(f"it is of type {type(thing).__name__}, but must be {wanted}.")
    return Listed(name, thing, _first(inspect.getdoc(thing)), declared.package)


def method(name: str) -> str:
    """What an algorithm is called where figures are shown: as its paper has it, or its class.

    >>> method("pfedme"), method("fedavg"), method("mine:Mean")
    ('pFedMe', 'FedAvg', 'Mean')
    """
    entry = REGISTRY["algorithms"].get(name)
    if entry is None:
        return name.rpartition(":")[2]
    return entry.line.partition(":")[0]


def names(kind: str) -> list[str]:
    """Every name of a kind; nothing is loaded."""
    return list(dict.fromkeys([*REGISTRY.get(kind, ()), *installed.declared(kind)]))


def entries(kind: str) -> list[Listed]:
    """Everything of a kind, what cannot be used with the reason."""
    out = list(REGISTRY.get(kind, {}).values())
    for name, declared in installed.declared(kind).items():
        packages = ", ".join(point.package for point in declared)
        try:
            entry = find(kind, name)
        except ConfigError as error:
            entry = Listed(name, lambda: None, f"broken: {error}", packages, broken=True)
        assert entry is not None
        out.append(entry)
    return out
