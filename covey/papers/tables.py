"""Rows of the papers' tables, read from PAPER/TABLE.toml.

A table has `methods` and `settings`, and every method runs in every setting. A method has a table
`algorithm`, and `cells`: the printed cell that each of its models is compared with. It may have a
`model` of its own. A setting has `data`, `model`, `tree` and `rounds`. Its `common` are fields of
all algorithms that have them, and its `methods` change fields of single ones. With `extends` a
table has the methods of another.
"""

from __future__ import annotations

import fnmatch
import hashlib
import inspect
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey.algorithms import ALGORITHMS
from covey.errors import ConfigError

FOLDER = Path(__file__).parent

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One method in one setting. `cells` are names of printed cells, by the name of our model."""

    paper: str
    table: str
    setting: str
    method: str
    algorithm: Fields
    data: Fields
    model: Fields
    tree: Fields
    rounds: int
    score_every: int
    printed: str  # the group of printed cells
    cells: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Setting and method, by which `--rows` selects."""
        return f"{self.setting}/{self.method}"

    @property
    def key(self) -> str:
        """The name of the row among all rows of its paper."""
        return f"{self.table}/{self.name}"

    def digest(self) -> str:
        """A short hash of all that decides the figures: a result of other settings is no result."""
        decides = [dict(self.algorithm), dict(self.data), dict(self.model), dict(self.tree)]
        text = json.dumps(decides, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Table:
    """A table of a paper: its rows, and what its paper does not print."""

    paper: str
    name: str
    title: str
    rows: tuple[Row, ...]
    unprinted: tuple[str, ...]  # our choices where the paper prints none

    @property
    def path(self) -> str:
        """Its name on the command line."""
        return f"{self.paper}/{self.name}"


def names() -> list[str]:
    """All tables, as PAPER/TABLE.

    >>> "sfedhp/table2" in names()
    True
    """
    return [f"{path.parent.name}/{path.stem}" for path in sorted(FOLDER.glob("*/*.toml"))]


def select(patterns: Sequence[str]) -> list[Table]:
    """The tables that any of the patterns names, each once, in the order of the patterns."""
    out: dict[str, None] = {}
    for pattern in patterns:
        matching = fnmatch.filter(names(), pattern)
        if not matching:
            raise ConfigError(f"there is no table {pattern!r}; one of {', '.join(names())}.")
        out |= dict.fromkeys(matching)
    return [read(name) for name in out]


def rows_of(tables: Sequence[Table], pattern: str = "*") -> list[Row]:
    """The rows whose setting/method matches the pattern."""
    rows = [row for table in tables for row in table.rows]
    matching = [row for row in rows if fnmatch.fnmatchcase(row.name, pattern)]
    if not matching:
        some = ", ".join(row.name for row in rows[:6])
        raise ConfigError(f"no row matches {pattern!r}; rows are {some}, ...")
    return matching


def read(name: str) -> Table:
    """The table of this name, PAPER/TABLE."""
    paper, _, table = name.partition("/")
    content = tomllib.loads((FOLDER / paper / f"{table}.toml").read_text())
    content["methods"] = _methods(paper, content)
    return Table(
        paper=paper,
        name=table,
        title=content["title"],
        rows=tuple(_rows(paper, table, content)),
        unprinted=tuple(content.get("unprinted", ())),
    )


def _methods(paper: str, content: Fields) -> dict[str, Any]:
    """The methods of a table, those of the table that it extends first."""
    inherited: dict[str, Any] = {}
    if "extends" in content:
        path = FOLDER / paper / f"{content['extends']}.toml"
        inherited = _methods(paper, tomllib.loads(path.read_text()))
    return {**inherited, **content.get("methods", {})}


def _rows(paper: str, table: str, content: Fields) -> Iterator[Row]:
    for setting, values in content["settings"].items():
        for method, entry in content["methods"].items():
            if method in values.get("without", ()):
                continue
            yield Row(
                paper=paper,
                table=table,
                setting=setting,
                method=method,
                algorithm=_algorithm(method, entry["algorithm"], values),
                data=values["data"],
                model=entry.get("model", values["model"]),
                tree=values.get("tree", {}),
                rounds=values["rounds"],
                score_every=values.get("score_every", 5),
                printed=values["printed"],
                cells=entry.get("cells", {}),
            )


def _algorithm(method: str, table: Fields, setting: Fields) -> dict[str, Any]:
    """The fields of an algorithm in a setting."""
    known = inspect.signature(ALGORITHMS[table["name"]]).parameters
    common = setting.get("common", {})
    shared = {name: value for name, value in common.items() if name in known}
    return {**shared, **table, **setting.get("methods", {}).get(method, {})}
