"""A user's own model, algorithm or data: what a file names as package.module:name.

Naming it runs its code, so a file may name only what is defined in the user's own modules: those
below the current folder, the file's folder or a folder of PYTHONPATH. What belongs to Python,
torch, numpy or an installed package is refused, and is not even imported: `subprocess:getoutput`
would run any command. A package may declare what it offers as entry points (covey/installed.py).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from importlib.machinery import ModuleSpec
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from covey.data import Shards
from covey.errors import ConfigError, CoveyError
from covey.kernel.algorithm import Algorithm
from covey.origin import FAULTS, below, own_file, told

FORM = "package.module:Class"
FUNCTION_FORM = "package.module:function"
_KINDS: dict[str, type] = {"algorithm": Algorithm, "model": nn.Module, "data": Shards}
_WANTED = {
    "algorithm": "a frozen dataclass derived from covey.Algorithm, with a `server`",
    "model": "a class derived from torch.nn.Module, or a function that returns a module",
    "data": "a function that returns covey.data.Shards",
    "augment": "a function of the examples x and the random numbers u",
    "loss": "a function of outputs and targets",
    "metric": "a function of outputs and targets, with one number per example",
    "solver": "a function of x and the gradient, or a class with `begin` and `direction`",
    "tracker": "a class with the methods of covey.Tracker: start, log and finish",
}
_RETURNS = {
    "algorithm": "an algorithm",
    "model": "a torch.nn.Module",
    "data": "covey.data.Shards",
}
_METHODS = {"tracker": ("start", "log", "finish"), "solver": ("begin", "direction")}
"""What a class must have."""
_FILES: list[str] = []  # folders of the experiment files that were read: modules may lie there too


def is_own(section: str, name: object) -> bool:
    """Whether a name is of the user's own, which models, algorithms and data can be.

    >>> is_own("model", "nets:Net"), is_own("model", "cnn"), is_own("tree", "trees:Tree")
    (True, False, False)
    """
    return section in _KINDS and isinstance(name, str) and ":" in name


def is_own_name(text: str) -> bool:
    """Whether a text has the form of a name of the user's own, wherever it stands.

    >>> is_own_name("acme.nets:Net"), is_own_name("http://a"), is_own_name("a:1")
    (True, False, False)
    """
    where, _, attribute = text.partition(":")
    return all(part.isidentifier() for part in (*where.split("."), attribute))


def look_beside(file: Path) -> None:
    """Look for modules in this file's folder too, after all others."""
    folder = os.path.abspath(file.parent)
    if folder not in _FILES:
        _FILES.append(folder)


def find(section: str, name: str, *, setting: str | None = None) -> Callable[..., Any]:
    """The class or function of that name, looked for in the current folder first.

    `setting` is what the user wrote, for errors.
    """
    where, _, attribute = name.partition(":")
    setting = setting or f"{section}.name = {name!r}"
    if not is_own_name(name):
        example = "nets:Net for the class Net in nets.py"
        raise ConfigError(f"{setting}: write it as {FORM}, for instance {example}.")
    module = _import(where, setting)
    if not hasattr(module, attribute):
        able = {key: value for key, value in vars(module).items() if makes(value, section)}
        own = [key for key, value in able.items() if value.__module__ == where]
        has = ", ".join(own) or f"no {section}"
        raise ConfigError(f"{setting}: {where} has no {attribute}; it has {has}.")
    thing = getattr(module, attribute)
    _need_own(thing, setting)
    if not makes(thing, section):
        raise ConfigError(f"{setting} is {_what(thing)}; name {_WANTED[section]}.")
    made: Callable[..., Any] = thing
    return made


def make(
    section: str,
    name: str,
    thing: Callable[..., Any],
    arguments: Mapping[str, Any],
) -> Any:
    """What a class or function makes of these arguments; errors in it are said with their line."""
    setting = f"{section}.name = {name!r}"
    try:
        made = thing(**arguments)
    except CoveyError:
        raise
    except FAULTS as error:
        values = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        call = f"{thing.__name__}({values})"
        raise ConfigError(f"{setting}: {call} fails with {told(error)}") from error
    if not isinstance(made, _KINDS[section]):
        raise ConfigError(f"{setting} returned {_what(made)}; it must return {_RETURNS[section]}.")
    return made


def makes(thing: object, section: str) -> bool:
    """Whether it can be called to make one; of a function, that shows in what it returns."""
    if not inspect.isclass(thing):
        functions = ("model", "data", "augment", "loss", "metric", "solver")
        return section in functions and inspect.isfunction(thing)
    if section == "algorithm":
        whole = is_dataclass(thing) and not inspect.isabstract(thing)
        return issubclass(thing, Algorithm) and whole
    if section in _METHODS:
        return all(callable(getattr(thing, method, None)) for method in _METHODS[section])
    return section == "model" and issubclass(thing, nn.Module)


def wanted(section: str) -> str:
    """What a name in this table must be of."""
    return _WANTED[section]


def _import(where: str, setting: str) -> ModuleType:
    """The module of this name, imported if it and all packages around it are the user's own.

    The current folder comes before all others, the folders of files after them.
    """
    if (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    sys.path += [folder for folder in _FILES if folder not in sys.path]
    importlib.invalidate_caches()
    for name in accumulate(where.split("."), "{}.{}".format):
        spec = _spec(name)
        if spec is None:
            wanted = where.replace(".", "/") + ".py"
            fix = f"start covey in the folder that holds {wanted}, or add that folder to PYTHONPATH"
            raise ConfigError(f"{setting}: there is no module {name}; {fix}.")
        # a folder without __init__.py has no code of its own; os is "frozen" and has no file
        namespace = spec.origin is None and spec.submodule_search_locations is not None
        file = spec.origin if spec.has_location else None
        if name == "__main__" or not (namespace or _allowed(file)):
            raise ConfigError(f"{setting}: {_foreign(name, file)}")
        try:
            importlib.import_module(name)
        except FAULTS as error:
            raise ConfigError(f"{setting}: importing {name} fails with {told(error)}") from error
    return sys.modules[where]


def _spec(name: str) -> ModuleSpec | None:
    """Where a module lies; what is around it has been imported, itself it is not."""
    module = sys.modules.get(name)
    if module is not None:
        return module.__spec__ or ModuleSpec(name, None, origin="built-in")
    try:
        return importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):  # the module around it is no package
        return None


def _need_own(thing: object, setting: str) -> None:
    """An error unless this is defined in a user's module: a name may have been imported there."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return  # an object, which is no class or function and refused as such
    origin = inspect.unwrap(thing) if inspect.isfunction(thing) else thing
    name = getattr(origin, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    if name == "__main__" or not _allowed(file):
        raise ConfigError(f"{setting} is defined elsewhere: {_foreign(name, file)}")


def _foreign(name: str, file: str | None) -> str:
    """Why a module's names may not be used, and what to do."""
    whose = "not a module of yours"
    if name == "__main__":
        whose = "the program that runs"
    elif name.partition(".")[0] in sys.stdlib_module_names:
        whose = "Python's own"
    elif file and not own_file(file):
        whose = "an installed package's"
    elif file:
        folder = os.path.dirname(file)
        whose = f"in {folder}, which is neither below this folder nor the file's nor in PYTHONPATH"
    return (
        f"{name} is {whose}, and a file may only name what is defined in a module of your own; "
        f"write a function or class of your own that uses it, in a module with another name."
    )


def _allowed(file: str | None) -> bool:
    """Whether a file lies below a folder of a user's own modules."""
    if not own_file(file):
        return False
    paths = {os.path.abspath(str(file)), os.path.realpath(str(file))}
    listed = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [os.getcwd(), *_FILES, *(entry for entry in listed if entry)]
    roots = {form(folder) for folder in folders for form in (os.path.abspath, os.path.realpath)}
    return any(below(path, root) for path in paths for root in roots)


def _what(thing: object) -> str:
    if inspect.isclass(thing):
        return f"the class {thing.__qualname__}"
    if inspect.isfunction(thing):
        return "a function"
    return f"{thing!r:.40} of type {type(thing).__name__}"
