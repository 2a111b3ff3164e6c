"""Rows of the papers' tables, read from PAPER/TABLE.toml.

A table has `methods` and `settings`, and every method runs in every setting. A method has a table
`algorithm`, and `cells`: the printed cell that each of its models is compared with. It may have a
`model` or a `tree` of its own. A setting has `data`, `model`, `tree` and `rounds`, or has them from
`defaults`. Its `common` are fields of all algorithms that have them, and its `methods` change
fields of single ones. It leaves out the methods in `without`, or all but those in `only`. With
`idle = "skip"` devices that do not take part in a round do not train. With `extends` a table has
the methods, orderings and reasons of another. A table with `rows` shows those rows of other tables
of its paper, and the cells of its `models`. A setting may have the table of a room, of which a
method may change fields. With a clock it has the model "latency, ms" beside the others. `links` of
a method are the fields `private` and `codec` of its experiment.

`quantities` of a setting name what is measured beside accuracies, and stand among the models, too.
"last accuracy, %", "non-zeros, %" and "loss" of every model are of the last scored round. "falls"
of every model are the points by which its accuracy falls from a scored round to the next, in the
mean; an unstable model has large ones. "weights sent, thousands" are those that all devices, and
edges, send upwards in a round, zeros and pruned weights left out. A chain names a quantity as
METHOD:MODEL loss.

Where a paper does not print the fields of an algorithm, a setting may search them. Its `search` has
a grid for a method, such as `search.fedavg = { lr = [0.01, 0.1] }`. Every point of the grid trains
for `search_rounds` rounds and is scored on validation data. The row then runs at the best point,
and is marked as searched.

An ordering is a claim of the paper. Its `chain` lists groups of METHOD:MODEL, where METHOD may be a
pattern. All of a group are above all of the next, by more than `over` points; with `by = "best"`
only the best of each group are compared. With `by = "equal"` all differ by less than a point. With
`about` a figure, or what it is above the next, is about that much: a quarter more or less at most.
With `by = "saves"` this is the share in percent that the second group saves of the first. With
`of = "area"` it is about speed: the mean over all rounds is compared. It is checked in every
setting that a pattern of `settings`, words with spaces between, matches and that has all its
methods. A chain may also name rows of several settings, as SETTING/METHOD:MODEL. An ordering
without a chain is a claim that no row of the table can check, and is listed as not run. `why` gives
reasons for differences, by patterns of SETTING/METHOD, which match whole names.
"""

from __future__ import annotations

import fnmatch
import hashlib
import inspect
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from covey import rooms
from covey.algorithms import ALGORITHMS
from covey.data.shards import some
from covey.errors import ConfigError, meant
from covey.kernel.nodes import Idle

FOLDER = Path(__file__).parent
LIST = "list"  # the word that shows tables instead of running them

Fields = Mapping[str, Any]
Grid = Mapping[str, Sequence[Any]]
"""The values to try, by the name of a field."""


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
    printed: str  # the group of printed cells; "" where there is none
    cells: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, Fields] = field(default_factory=dict)
    """Tables of rooms by name, as the file of a paper states them, in SI units."""
    links: Fields = field(default_factory=dict)
    quantities: tuple[str, ...] = ()  # what is measured beside accuracies
    idle: Idle = "train"  # what devices do that are not asked
    search: Grid = field(default_factory=dict)  # fields of the algorithm that are searched
    search_rounds: int = 0

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
        always = (self.algorithm, self.data, self.model, self.tree)
        decides = [dict(fields) for fields in always]
        others = (*self.sections.values(), self.links)
        decides += [dict(fields) for fields in others if fields]
        if self.idle != "train":
            decides.append({"idle": self.idle})
        if self.quantities:
            decides.append({"quantities": list(self.quantities)})
        if self.search:
            decides.append({"search": dict(self.search), "rounds": self.search_rounds})
        text = json.dumps(decides, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Ordering:
    """A claim of a paper about the order of its figures."""

    claim: str
    chain: tuple[tuple[str, ...], ...] = ()  # groups of METHOD:MODEL, from high to low
    by: str = "all"  # or "best", "equal" or "saves"
    settings: str = "*"  # the settings in which it is claimed
    over: float = 0.0  # the points by which the paper has it at least
    about: float | None = None  # what the paper has, in about
    of: str = "models"  # the figures that are compared: best rounds ("models"), or "area"
    printed: float | None = None  # the gap in points, where the paper prints it and no figures

    @staticmethod
    def read(entry: Fields, methods: Iterable[str]) -> Ordering:
        """An ordering, in whose chain METHOD is every method that a pattern stands for."""
        chain = []
        for group in entry.get("chain", ()):
            names: list[str] = []
            for name in group:
                pattern, _, model = name.partition(":")
                matching = fnmatch.filter(methods, pattern)
                names += [f"{method}:{model}" for method in matching] or [name]
            chain.append(tuple(names))
        return Ordering(**{**entry, "chain": tuple(chain)})

    @property
    def names(self) -> list[str]:
        """All names of the chain."""
        return [name for group in self.chain for name in group]

    @property
    def names_rows(self) -> bool:
        """Whether it names rows as SETTING/METHOD:MODEL, and not methods of one setting."""
        return any("/" in name for name in self.names)


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper: its rows, its claims, and what its paper does not print."""

    paper: str
    name: str
    title: str
    rows: tuple[Row, ...]
    unprinted: tuple[str, ...] = ()  # our choices where the paper prints none
    orderings: tuple[Ordering, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Its name on the command line."""
        return f"{self.paper}/{self.name}"

    def reason(self, row: Row) -> str:
        """Why a figure of this row may differ from the printed one, as far as that is known."""
        for pattern, reason in self.why.items():
            if fnmatch.fnmatchcase(row.name, pattern):
                return reason
        return ""


def names() -> list[str]:
    """All tables, as PAPER/TABLE.

    >>> "sfedhp/table2" in names()
    True
    """
    return [f"{path.parent.name}/{path.stem}" for path in sorted(FOLDER.glob("*/*.toml"))]


def select(patterns: Sequence[str]) -> list[PaperTable]:
    """The tables that any of the patterns names, each once, in the order of the patterns."""
    out: dict[str, None] = {}
    for pattern in patterns:
        matching = fnmatch.filter(names(), pattern)
        own = fnmatch.filter(names(), f"{pattern}/*")
        if not matching and own:
            rule = f"name a table of it, {', '.join(own)}, or '{pattern}/*' for all"
            raise ConfigError(f"{pattern!r} is a paper; {rule}.")
        if not matching:
            hint = meant(pattern, [LIST, *names()])
            raise ConfigError(f"there is no table {pattern!r}{hint}; one of {', '.join(names())}.")
        out |= dict.fromkeys(matching)
    return [read(name) for name in out]


def of_paper(paper: str) -> list[PaperTable]:
    """All tables of a paper."""
    return [read(name) for name in names() if name.startswith(f"{paper}/")]


def rows_of(tables: Sequence[PaperTable], pattern: str = "*") -> list[Row]:
    """The rows whose setting/method matches the pattern."""
    rows = [row for table in tables for row in table.rows]
    matching = [row for row in rows if fnmatch.fnmatchcase(row.name, pattern)]
    if not matching:
        settings = some(list(dict.fromkeys(row.setting for row in rows)), 12)
        methods = some(list(dict.fromkeys(row.method for row in rows)), 12)
        rule = f"a row is SETTING/METHOD; settings are {settings}; methods are {methods}"
        raise ConfigError(f"no row matches {pattern!r}; {rule}.")
    return matching


def read(name: str) -> PaperTable:
    """The table of this name, PAPER/TABLE."""
    paper, _, table = name.partition("/")
    content = _content(paper, table)
    rows = list(_rows(paper, table, content))
    if "rows" in content:
        others = [each for each in names() if each.startswith(f"{paper}/") and each != name]
        theirs = [row for each in others for row in read(each).rows]
        rows = [
            replace(row, cells={model: row.cells[model] for model in content["models"]})
            for pattern in content["rows"]
            for row in theirs
            if fnmatch.fnmatchcase(row.key, pattern)
        ]
    return PaperTable(
        paper=paper,
        name=table,
        title=content["title"],
        rows=tuple(rows),
        unprinted=tuple(content.get("unprinted", ())),
        orderings=tuple(
            Ordering.read(entry, content.get("methods", {}))
            for entry in content.get("orderings", ())
        ),
        why=content.get("why", {}),
    )


def _content(paper: str, table: str) -> dict[str, Any]:
    """The content of a file, with what it has from the one that it extends."""
    content = tomllib.loads((FOLDER / paper / f"{table}.toml").read_text(encoding="utf-8"))
    if "extends" in content:
        base = _content(paper, content["extends"])
        for name in ("methods", "why"):
            own = content.get(name, {})
            content[name] = {**base.get(name, {}), **own}
        content.setdefault("orderings", base.get("orderings", []))
    return content


def _rows(paper: str, table: str, content: Fields) -> Iterator[Row]:
    for setting, own in content.get("settings", {}).items():
        values = {**content.get("defaults", {}), **own}
        for method, entry in content["methods"].items():
            if method in values.get("without", ()):
                continue
            if method not in values.get("only", (method,)):
                continue
            known = inspect.signature(ALGORITHMS[entry["algorithm"]["name"]]).parameters
            changed = values.get("methods", {}).get(method, {})
            every = values.get("common", {})
            common = {name: value for name, value in every.items() if name in known}
            added = rooms.added("rows")
            sections = {room: {**values.get(room, {}), **entry.get(room, {})} for room in added}
            yield Row(
                paper=paper,
                table=table,
                setting=setting,
                method=method,
                algorithm=common | entry["algorithm"] | changed,
                data=values["data"],
                model=entry.get("model", values["model"]),
                tree=entry.get("tree", values.get("tree", {})),
                rounds=values["rounds"],
                score_every=values.get("score_every", 5),
                printed=values.get("printed", ""),
                cells=entry.get("cells", {}),
                sections={room: section for room, section in sections.items() if section},
                links=entry.get("links", {}),
                quantities=tuple(values.get("quantities", ())),
                idle=values.get("idle", "train"),
                search=values.get("search", {}).get(method, {}),
                search_rounds=values.get("search_rounds", 0),
            )
