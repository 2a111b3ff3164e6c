"""The pages of the API: one directive of mkdocstrings for each public name."""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from covey.algorithms import ALGORITHMS
from covey.files.config import defaults, explain

INTRODUCTIONS = {
    "covey": "The names of `import covey`.",
    "covey.algorithms": "One class per paper, with its fields.",
    "covey.data": "Data sets, your own tables and arrays, partitions.",
    "covey.models": "Networks of the papers. Any other `torch.nn.Module` works too.",
    "covey.wireless": "Radio cells, plans and the virtual clock.",
}
MODULES: dict[str, ModuleType] = {
    name: import_module(name) for name in INTRODUCTIONS if find_spec(name) is not None
}
"""The modules that are there: that of a room goes with it."""
FIRST = (
    "Experiment", "run", "runs", "Run", "Round", "load", "Tree", "Algorithm", "Nodes", "Replies",
    "descend",
)  # fmt: skip
"""The names a reader looks for first; the others follow by the alphabet."""


def pages() -> dict[str, str]:
    """The text of every page, by its address in the site."""
    return {f"api/{name}.md": _page(name) for name in MODULES}


def _page(module: str) -> str:
    names = [name for name in MODULES[module].__all__ if _is_shown(MODULES[module], name)]
    names.sort(key=_place)
    blocks = [_directive(module, name) for name in names]
    return "\n".join([f"# {module}", "", INTRODUCTIONS[module], "", *blocks])


def _place(name: str) -> tuple[int, str]:
    if name in FIRST:
        return FIRST.index(name), ""
    return len(FIRST), name.lower()


def _is_shown(module: ModuleType, name: str) -> bool:
    """Modules have pages of their own."""
    return not isinstance(getattr(module, name), ModuleType)


def _directive(module: str, name: str) -> str:
    lines = [
        f"::: {_path(module, name)}",
        "    options:",
        f"      heading: {module}.{name}",
        f"      toc_label: {name}",
    ]
    keys = {kind.__name__: key for key, kind in ALGORITHMS.items()}
    if name in keys:
        lines += ["      members: false", "      inherited_members: false", ""]
        lines += _fields(keys[name])
    return "\n".join([*lines, ""])


def _fields(algorithm: str) -> list[str]:
    """The table of an algorithm's fields, as `covey list algorithms NAME` prints it."""
    values = defaults("algorithms", algorithm)
    meanings = explain("algorithms", algorithm)
    del values["name"]
    if not values:
        return []
    rows = [
        f"| `{field}` | `{value}` | {_cell(meanings.get(field, ''))} |"
        for field, value in values.items()
    ]
    return ["| field | default | meaning |", "|---|---|---|", *rows]


def _cell(text: str) -> str:
    """Text that stands in one cell of a table."""
    return text.replace("|", "\\|")


def _path(module: str, name: str) -> str:
    """Where the name is defined: covey's classes and functions know, aliases are looked up."""
    value: Any = getattr(MODULES[module], name)
    defined = inspect.isclass(value) or inspect.isfunction(value)
    if defined and value.__module__.startswith("covey."):
        return f"{value.__module__}.{value.__qualname__}"
    return f"{module}.{name}"
