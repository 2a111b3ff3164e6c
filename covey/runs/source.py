"""A hash of the code that classes and functions run.

Comments, docstrings and layout do not count.

Of a class or function of the user's own: its statement, those of its module that it refers to, its
bases, and every module of the user's own that these import, whole. Other statements of a script do
not count. Of an algorithm of covey's, or of an installed package: its file. Torch, numpy and Python
count by their version alone. Where there is no file, as in a console, the compiled code counts.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import os
import symtable
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from covey.origin import own_file

_FOREIGN = ("torch", "numpy", "covey")  # they count by version, but for covey's algorithms
_TARGETS = (ast.Name, ast.Attribute, ast.Subscript)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_INSIDE = ("fget", "__func__", "func")
"""The attributes in which properties, class methods and cached properties have their function."""
_IMPORTERS = ("import_module", "__import__")
"""Functions that import a module by a text."""
_UNSEEN = {"kind", "type_comment", "type_ignores"}  # fields of a tree that change nothing


def digest(things: Iterable[Any]) -> str:
    """The hash of all code that these classes and functions run, the same in every process."""
    parts: dict[str, str] = {}
    names: dict[str, set[str]] = {}  # by module of the user's own, what is needed of it
    for thing in _with_bases(things):
        module = _module(thing)
        file = _file(module)
        top = thing.__qualname__.partition(".")[0]
        tree = _tree(file)
        if tree is not None and not own_file(str(file)):
            parts[module] = _whole_text(tree)
        elif tree is not None and top in _bound(tree) and _written_in(thing, file):
            names.setdefault(module, set()).add(top)
        else:
            parts[f"{module}:{thing.__qualname__}"] = _compiled(thing)
            names.setdefault(module, set()).update(_globals(thing))
    parts |= _needed_parts(names)
    text = "\n".join(f"{name} {parts[name]}" for name in sorted(parts))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def own_files(modules: Iterable[str]) -> dict[str, Path]:
    """The files of these modules and of all that they import, as far as they are the user's own.

    The keys are paths below a folder from which they can be imported: nets.py, acme/__init__.py.
    """
    names: list[str] = []
    for module in modules:
        names += accumulate(module.split("."), "{}.{}".format)
    out = {}
    for name in _modules(names):
        file = Path(str(_file(name)))
        relative = Path(*name.split("."))
        if file.name == "__init__.py":
            relative = relative / file.name
        else:
            relative = relative.with_suffix(".py")
        out[relative.as_posix()] = file
    return out


def _needed_parts(names: dict[str, set[str]]) -> dict[str, str]:
    """The statements that define these names of modules, and all modules that they import."""
    parts: dict[str, str] = {}
    imported: list[str] = []
    for module, wanted in names.items():
        statements = _needed(module, wanted)
        parts[f"{module}:"] = "\n".join(_text(statement) for statement in statements)
        for statement in statements:
            imported += _imports(statement, module)
    return parts | _modules(imported)


def _with_bases(things: Iterable[Any]) -> list[Any]:
    """Classes with all their bases, and functions; without what counts by its version."""
    every: list[Any] = []
    for thing in things:
        if inspect.isclass(thing):
            every += thing.__mro__
        else:
            every.append(thing)
    return [thing for thing in dict.fromkeys(every) if _counts(thing)]


def _module(thing: Any) -> str:
    """The name of its module; what is executed without one counts as Python's own."""
    name: str | None = thing.__module__
    return name or "builtins"


def _counts(thing: Any) -> bool:
    module = _module(thing)
    top = module.partition(".")[0]
    if top == "builtins":
        return not hasattr(builtins, thing.__qualname__)
    if top == "covey":
        return module.startswith("covey.algorithms.")
    return top not in _FOREIGN and (top == "__main__" or top not in sys.stdlib_module_names)


def _modules(names: Iterable[str]) -> dict[str, str]:
    """The modules of the user's own among these, whole, and those that they import."""
    out: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if name in out or file is None or not own_file(file):
            continue
        tree = _tree(file)
        if tree is None:
            continue
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


@dataclass(frozen=True, eq=False)
class _Statement:
    """A statement, and which names of its module it defines or changes, and which it reads."""

    node: ast.stmt
    binds: frozenset[str]
    reads: frozenset[str]


@cache
def _analysed(tree: ast.Module) -> tuple[_Statement, ...]:
    nodes = list(_statements(tree))
    binds = [frozenset(_binds(node)) for node in nodes]
    reads = [frozenset(_references(node)) for node in nodes]
    return tuple(map(_Statement, nodes, binds, reads))


def _bound(tree: ast.Module) -> set[str]:
    return {name for statement in _analysed(tree) for name in statement.binds}


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, each import of a name as one of its own."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            yield from (ast.Import([alias]) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                yield ast.ImportFrom(statement.module, [alias], statement.level)
        else:
            yield statement


def _binds(statement: ast.stmt) -> set[str]:
    """The names of a module that a statement defines or changes."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    out = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            out.add(node.name)
        elif isinstance(node, ast.alias):
            out.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, _TARGETS) and isinstance(node.ctx, ast.Store):
            target: ast.expr = node
            while isinstance(target, ast.Attribute | ast.Subscript):
                target = target.value
            if isinstance(target, ast.Name):
                out.add(target.id)
    return out


def _needed(module: str, names: Iterable[str]) -> list[ast.stmt]:
    """The statements of a module that define these names and the names that those refer to."""
    tree = _tree(_file(module))
    if tree is None:
        return []
    statements = _analysed(tree)
    wanted = {*names, "*"}
    chosen: set[int] = set()
    before = -1
    while len(chosen) > before:
        before = len(chosen)
        for number, statement in enumerate(statements):
            if number not in chosen and _touched(statement, module) & wanted:
                chosen.add(number)
                wanted |= statement.reads | statement.binds
    return [statements[number].node for number in sorted(chosen)]


def _touched(statement: _Statement, module: str) -> frozenset[str]:
    """The names that a statement may change.

    A module's calls may change the names that they read; a script's calls are the run itself.
    """
    if isinstance(statement.node, ast.Expr) and module != "__main__":
        return statement.binds | statement.reads
    return statement.binds


def _references(statement: ast.stmt) -> set[str]:
    """The names of its module that a statement reads, also inside functions."""
    text = ast.unparse(ast.fix_missing_locations(statement))
    top = symtable.symtable(text, "<statement>", "exec")
    symbols = top.get_symbols()
    out = {symbol.get_name() for symbol in symbols if symbol.is_referenced()}
    inside = top.get_children()
    while inside:
        table = inside.pop()
        symbols = table.get_symbols()
        out |= {symbol.get_name() for symbol in symbols if symbol.is_global()}
        inside += table.get_children()
    return out


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
            names += _imported_by_name(part, package)
    with_packages: list[str] = []
    for name in names:
        parts = name.split(".")
        with_packages += accumulate(parts, "{}.{}".format)
    return with_packages


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


def _imported_by_name(call: ast.Call, package: str) -> list[str]:
    """The module that import_module("late") or __import__("late") imports, if it is written out."""
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = [value.value for value in values if isinstance(value, ast.Constant)]
    names = [text for text in texts if isinstance(text, str)]
    if not names:
        return []
    inside = names[0].lstrip(".")
    statement = ast.ImportFrom(inside, [], len(names[0]) - len(inside))
    return _imported_from(statement, package)


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


def _functions(thing: Any) -> dict[str, FunctionType]:
    """A function itself, or those of a class by name."""
    if not inspect.isclass(thing):
        plain = inspect.unwrap(thing)
        if isinstance(plain, FunctionType):
            return {thing.__qualname__: plain}
        return {}
    out = {}
    for name, value in vars(thing).items():
        plain = _unwrapped(value)
        if isinstance(plain, FunctionType):
            out[name] = plain
    return out


def _unwrapped(value: Any) -> Any:
    """The function inside a property, a class method or a decorator."""
    for key in _INSIDE:
        if hasattr(value, key):
            value = getattr(value, key)
            break
    if callable(value):
        return inspect.unwrap(value)
    return value


def _written_in(thing: Any, file: str | None) -> bool:
    """Whether its functions come from this file, and not from text executed under its name."""
    if thing.__qualname__.endswith("<lambda>"):
        return False  # a function may have several
    functions = _functions(thing).values()
    files = {function.__code__.co_filename for function in functions}
    files -= {"<string>"}  # a dataclass has methods from strings
    paths = {os.path.realpath(path) for path in files}
    return not paths or os.path.realpath(str(file)) in paths


def _globals(thing: Any) -> set[str]:
    codes = [function.__code__ for function in _functions(thing).values()]
    out: set[str] = set()
    while codes:
        code = codes.pop()
        out |= set(code.co_names)
        codes += [value for value in code.co_consts if isinstance(value, CodeType)]
    return out


def _compiled(thing: Any, seen: tuple[Any, ...] = ()) -> str:
    """What Python made of a class or function, and of those of its module that it refers to."""
    functions = _functions(thing)
    parts = []
    for name, function in sorted(functions.items()):
        code = _code(function.__code__, function.__doc__)
        parts.append(f"{name} {code} {function.__defaults__!r}")
    if inspect.isclass(thing):
        parts += _constants(thing)
    scope: dict[str, Any] = {}
    for function in functions.values():
        scope = function.__globals__
        break
    for name in sorted(_globals(thing)):
        other = scope.get(name)
        if not isinstance(other, FunctionType | type) or other in seen:
            continue
        if _module(other) == _module(thing):
            parts.append(_compiled(other, (*seen, thing, other)))
    return "\n".join(parts)


def _constants(kind: type) -> list[str]:
    """The numbers and texts of a class, by name."""
    out = []
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, int | float | str) and not name.startswith("__"):
            out.append(f"{name} {value!r}")
    return out


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
