"""A hash of the code that classes and functions run; comments, docstrings and layout do not count.

A class or function of the user's own counts by its whole module and by every module of the user's
own that this one imports: an unrelated edit there counts too. In a script, and where there is no
file, its compiled code counts, with what it refers to, and every module of the user's own that the
script imports. An algorithm of covey's, or of an installed package, counts by its file. Torch,
numpy and Python count by their version alone.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from covey.origin import own_file

_VERSIONED = ("torch", "numpy")  # packages that count by version
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_INSIDE = ("fget", "__func__", "func")
"""The attributes in which properties, class methods and cached properties have their function."""
_IMPORTERS = ("import_module", "__import__")
"""Functions that import a module by a text."""
_UNSEEN = {"kind", "type_comment", "type_ignores"}  # fields of a tree that change nothing


def digest(things: Iterable[Any]) -> str:
    """The hash of all code that these classes and functions run, the same in every process."""
    parts: dict[str, str] = {}
    every: list[Any] = []  # classes with all their bases, and functions
    for thing in things:
        every += thing.__mro__ if inspect.isclass(thing) else [thing]
    for thing in filter(_counts, dict.fromkeys(every)):
        module = _module(thing)
        file = _file(module)
        tree = _tree(file)
        name = f"{module}:{thing.__qualname__}"
        parts[name] = ""
        if tree is None or module == "__main__" or name.endswith("<lambda>"):
            parts[name] = _compiled(thing, set())
        if tree is None:
            continue
        if module == "__main__":  # other statements of a script are the run itself
            parts |= _modules(_imports(tree, module))
        elif own_file(file):
            parts |= _modules([module])
        else:
            parts[module] = _whole_text(tree)
    text = "\n".join(f"{name} {parts[name]}" for name in sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def own_files(modules: Iterable[str]) -> dict[str, Path]:
    """The files of these modules and of all that they import, as far as they are the user's own.

    The keys are paths below a folder from which they can be imported: nets.py, acme/__init__.py.
    """
    out = {}
    for name in _modules(modules):
        file = Path(str(_file(name)))
        relative = Path(*name.split("."))
        if file.name == "__init__.py":
            relative = relative / file.name
        else:
            relative = relative.with_suffix(".py")
        out[relative.as_posix()] = file
    return out


def _module(thing: Any) -> str:
    """The name of its module; what is executed without one counts as Python's own."""
    name: str | None = thing.__module__
    return name or "builtins"


def _counts(thing: Any) -> bool:
    """Whether the code of a class or function counts, and not the version of its package."""
    module = _module(thing)
    top = module.partition(".")[0]
    if top == "builtins":
        return not hasattr(builtins, thing.__qualname__)
    if top == "covey":
        return module.startswith("covey.algorithms.")
    return top not in _VERSIONED and (top == "__main__" or top not in sys.stdlib_module_names)


def _modules(names: Iterable[str]) -> dict[str, str]:
    """The text of the user's own among these modules, of their packages and what they import."""
    out: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        for name in accumulate(waiting.pop().split("."), "{}.{}".format):
            file = _file(name)
            if name in out or not own_file(file):
                continue
            tree = _tree(file)
            if tree is not None:
                out[name] = _whole_text(tree)
                waiting += _imports(tree, name)
    return out


def _file(name: str) -> str | None:
    """The file of a module; it need not have been imported, so that lazy imports change nothing."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    top, *inside = name.split(".")
    if not top:
        return None
    spec = PathFinder.find_spec(top)
    for part in inside:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    if spec is None or not spec.has_location:
        return None
    return spec.origin


def _tree(file: str | None) -> ast.Module | None:
    """The syntax tree of a file of Python; None where it is none or is gone."""
    if file is None:
        return None
    try:
        state = os.stat(file)
    except OSError:
        return None
    return _parsed(file, state.st_mtime_ns, state.st_size)


@cache
def _parsed(file: str, changed: int, size: int) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _imports(node: ast.AST, module: str) -> list[str]:
    """The names of all modules that may be imported inside; `module` is where this stands."""
    file = _file(module) or ""
    package = module.rpartition(".")[0]
    if os.path.basename(file) == "__init__.py":
        package = module
    names: list[str] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            names += [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom):
            names += _imported_from(part, package)
        elif isinstance(part, ast.Call) and ast.unparse(part.func).endswith(_IMPORTERS):
            values = [*part.args, *(keyword.value for keyword in part.keywords)]
            texts = [value.value for value in values if isinstance(value, ast.Constant)]
            written = [text for text in texts if isinstance(text, str)]
            if written:  # import_module("late") or __import__("late")
                inside = written[0].lstrip(".")
                level = len(written[0]) - len(inside)
                names += _imported_from(ast.ImportFrom(inside, [], level), package)
    return names


def _imported_from(statement: ast.ImportFrom, package: str) -> list[str]:
    """The modules that `from ... import ...` may import; `package` is where it stands."""
    parts: list[str] = []
    if statement.level:
        parts = package.split(".")
        parts = parts[: len(parts) - statement.level + 1]
    if statement.module:
        parts.append(statement.module)
    base = ".".join(parts)
    names = [alias.name for alias in statement.names if alias.name != "*"]
    return [base, *(f"{base}.{name}" for name in names)]


@cache
def _whole_text(tree: ast.Module) -> str:
    """The text of a module: `_parsed` gives the same tree while its file does not change."""
    return _text(tree)


def _text(node: Any) -> str:
    """A syntax tree as text, without positions and docstrings, alike in all versions of Python."""
    if isinstance(node, list):
        return f"[{', '.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    values = dict(ast.iter_fields(node))
    for name, value in ast.iter_fields(node):
        if name in _UNSEEN or value in (None, []):
            del values[name]
    if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        values["body"] = node.body[1:]
    fields = ", ".join(f"{name}={_text(value)}" for name, value in values.items())
    return f"{type(node).__name__}({fields})"


def _compiled(thing: Any, seen: set[Any]) -> str:
    """What Python made of a class or function, and of what it refers to in its module."""
    seen.add(thing)
    members = {thing.__qualname__: thing}
    if inspect.isclass(thing):
        members = dict(vars(thing))
    parts = []
    for name, value in sorted(members.items()):
        function = value
        for key in _INSIDE:
            if hasattr(value, key):
                function = getattr(value, key)
                break
        if callable(function):  # that inside a property, a class method or a decorator
            function = inspect.unwrap(function)
        if isinstance(function, FunctionType):
            code = _code(function.__code__, function.__doc__)
            parts.append(f"{name} {code} {function.__defaults__!r}")
            parts += _referred(function, seen)
        elif isinstance(value, int | float | str) and not name.startswith("__"):
            parts.append(f"{name} {value!r}")
    return "\n".join(parts)


def _referred(function: FunctionType, seen: set[Any]) -> list[str]:
    """The numbers, texts, classes and functions of its module that a function refers to."""
    parts = []
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, int | float | str) and not name.startswith("__"):
            parts.append(f"{name} {value!r}")
        own = isinstance(value, FunctionType | type) and _module(value) == _module(function)
        if own and value not in seen:
            parts.append(_compiled(value, seen))
    return parts


def _names(code: CodeType) -> set[str]:
    """The names that code refers to, also in the functions inside it."""
    inside = [value for value in code.co_consts if isinstance(value, CodeType)]
    return set(code.co_names).union(*map(_names, inside))


def _code(code: CodeType, doc: str | None) -> str:
    constants = []
    for value in code.co_consts:
        if isinstance(value, CodeType):
            constants.append(_code(value, None))
        elif isinstance(value, frozenset):
            constants.append(repr(sorted(map(repr, value))))
        elif value != doc:
            constants.append(repr(value))
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
