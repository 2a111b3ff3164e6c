"""A user's own model or algorithm: the class, or the function, that a file names as package.module:Class.

Naming it runs its code: an experiment file from elsewhere deserves the look that a program would get.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

from torch import nn

from covey.algorithm import Algorithm
from covey.errors import ConfigError, CoveyError

FORM = "package.module:Class"
_KINDS: dict[str, type] = {"algorithm": Algorithm, "model": nn.Module}
_WANTED = {
    "algorithm": "a frozen dataclass derived from covey.Algorithm, with a `server`",
    "model": "a class derived from torch.nn.Module, or a function that returns a module",
}


def is_own(section: str, name: object) -> bool:
    """Whether this name is of something outside covey, which only models and algorithms can be.

    >>> is_own("model", "nets:Net"), is_own("model", "cnn"), is_own("data", "sets:Set")
    (True, False, False)
    """
    return section in _KINDS and isinstance(name, str) and ":" in name


def find(section: str, name: str) -> Callable[..., Any]:
    """The class of that name, or a function that makes a model; the current folder is looked in first, as by `python -m`."""
    where, _, attribute = name.partition(":")
    place = f"{section}.name = {name!r}"
    if not all(part.isidentifier() for part in (*where.split("."), attribute)):
        raise ConfigError(f"{place}: write it as {FORM}, for instance nets:Net for the class Net in nets.py.")
    module = _import(where, place)
    if not hasattr(module, attribute):
        has = [key for key, value in vars(module).items() if _makes(value, section) and value.__module__ == where]
        raise ConfigError(f"{place}: {where} has no {attribute}; it has {', '.join(has) or f'no {section}'}.")
    thing = getattr(module, attribute)
    if not _makes(thing, section):
        raise ConfigError(f"{place} is {_what(thing)}; name {_WANTED[section]}.")
    made: Callable[..., Any] = thing
    return made


def make(section: str, name: str, arguments: Mapping[str, Any]) -> Any:
    """What the class or function of that name makes of these arguments; whatever goes wrong there is said with its line."""
    thing, place = find(section, name), f"{section}.name = {name!r}"
    try:
        made = thing(**arguments)
    except CoveyError:
        raise
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise ConfigError(f"{place}: {name.partition(':')[2]}({given}) fails with {_told(error)}") from error
    if not isinstance(made, _KINDS[section]):
        raise ConfigError(f"{place} returned {_what(made)}; it must return a torch.nn.Module.")
    return made


def _import(where: str, place: str) -> ModuleType:
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):  # it is there, but imports what is not
            raise ConfigError(f"{place}: importing {where} fails with {_told(error)}") from error
        fix = f"start covey in the folder that holds {where.replace('.', '/')}.py, or add that folder to PYTHONPATH"
        raise ConfigError(f"{place}: there is no module {error.name}; {fix}.") from error
    except Exception as error:
        raise ConfigError(f"{place}: importing {where} fails with {_told(error)}") from error


def _makes(thing: object, section: str) -> bool:
    """Whether it can be called to make one; of a function, that shows in what it returns."""
    if not inspect.isclass(thing):
        return section == "model" and inspect.isfunction(thing)
    return issubclass(thing, _KINDS[section]) and (section == "model" or (is_dataclass(thing) and not inspect.isabstract(thing)))


def _what(thing: object) -> str:
    if inspect.isclass(thing):
        return f"the class {thing.__qualname__}"
    return "a function" if inspect.isfunction(thing) else f"{thing!r:.40} of type {type(thing).__name__}"


def _told(error: Exception) -> str:
    """The error in one line, with the last place in the user's own files, from where a library may have been called."""
    others = ("<", __file__, sys.prefix, sys.base_prefix)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    line = f" ({os.path.relpath(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first.rstrip('.')}{line}."
