"""Rows read from files: features as numbers, the other columns as text.

Each row knows its place in its file, so that an error can name it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.data.shards import SPLITS
from covey.data.tables.options import ROLES, TableOptions
from covey.errors import DataError, meant

LARGEST = float(np.finfo(np.float32).max)
GAPS_HINT = 'for missing values, set missing to "drop", "mean" or "indicator"'
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_NEARLY_NUMBER = re.compile(r"[+-]?[\d_]+([.,][\d_]+)?")
_MISSING = frozenset(("", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "?", "-"))


@dataclass(frozen=True)
class Faults:
    """Rows that cannot be used, and why.

    They are gathered so that one message names several. A row counts once.
    """

    reasons: dict[tuple[str, int], str] = field(default_factory=dict)
    hints: dict[str, None] = field(default_factory=dict)  # what else may be done, in order

    def add(self, source: str, position: int, why: str) -> None:
        """One more, unless something is known of that row already."""
        self.reasons.setdefault((source, position), why)

    def refuse(self, advice: str) -> None:
        """A DataError that names the first five, if there are any.

        >>> faults = Faults()
        >>> faults.add("pumps.csv, line", 7, "column 'heat' is empty")
        >>> faults.refuse("correct or remove it")
        Traceback (most recent call last):
        covey.errors.DataError: 1 row cannot be used; correct or remove it:
          pumps.csv, line 7: column 'heat' is empty
        """
        if not self.reasons:
            return
        lines = [
            f"{source} {position}: {why}"
            for (source, position), why in sorted(self.reasons.items())
        ]
        advice = "; ".join([advice, *self.hints])
        raise DataError(listing("row", f"cannot be used; {advice}", lines))


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of one file or of several; a column of text that is not there is None."""

    source: list[str]  # such as "pumps.csv, line", which the position completes
    position: list[int]
    x: npt.NDArray[Any]  # [rows, ...] uint8, float32 or float64
    label: list[str] = field(default_factory=list)  # empty where examples have none
    device: list[str] | None = None
    edge: list[str] | None = None
    part: list[str] | None = None
    features: tuple[str, ...] = ()  # empty where columns have no names
    words: Mapping[str, list[str]] = field(default_factory=dict)  # of columns of text, NaN in x
    targets: Mapping[str, list[str]] = field(default_factory=dict)
    """The cells of every label column, where there are several; `label` has the first one's."""
    notes: tuple[str, ...] = ()  # what the user should know of the rows
    faults: Faults = field(default_factory=Faults)  # of its file, whatever rows are taken

    @staticmethod
    def read(
        source: str,
        positions: Sequence[int],
        x: npt.NDArray[Any],
        header: Sequence[str],
        options: TableOptions,
        texts: Callable[[str], list[str]],
        words: Mapping[str, list[str]] | None = None,
    ) -> Table:
        """The table of rows that were just read, with what is wrong with them.

        `texts` gives the cells of a column of the file by its name. With `words`, columns of text,
        the columns of x have names too: those of the features.
        """
        names = options.roles(header)
        roles: dict[str, Any] = {role: texts(name) for role, name in names.items()}
        targets = {}
        if options.several and options.labelled:
            targets = {name: texts(name) for name in options.labels}
        features = () if words is None else options.chosen(header)
        table = Table(
            [source] * len(x),
            list(positions),
            x,
            features=features,
            words=words or {},
            targets=targets,
            **roles,
        )
        _look(table, options)
        if x.dtype.kind == "f" and len(table):
            _look_at_features(table, options, texts)
        return table

    def __len__(self) -> int:
        return len(self.position)

    def where(self, row: int) -> str:
        """Where a row stands, as in "pumps.csv, line 7"."""
        return f"{self.source[row]} {self.position[row]}"

    def reject(self, rows: Iterable[int], why: str) -> None:
        """Note the same fault of some rows."""
        for row in rows:
            self.faults.add(self.source[row], self.position[row], why)

    def column(self, name: str) -> npt.NDArray[Any] | list[str]:
        """The numbers of a feature, or its words."""
        if name in self.words:
            return self.words[name]
        return self.x[:, self.features.index(name)]

    def gaps(self, name: str) -> npt.NDArray[np.bool_]:
        """The rows in which a feature has no value."""
        cells = self.column(name)
        if isinstance(cells, list):
            return np.array([is_missing(cell) for cell in cells], dtype=bool)
        gaps: npt.NDArray[np.bool_] = np.isnan(cells)
        return gaps

    def taken(self, rows: npt.NDArray[np.int64]) -> Table:
        """Some of the rows, in this order."""

        def some_of(cells: Any) -> Any:
            if not cells:  # examples to predict have no labels
                return cells
            return [cells[row] for row in rows.tolist()]

        texts = {name: some_of(getattr(self, name)) for name in ("source", "position", *ROLES)}
        words = {name: some_of(cells) for name, cells in self.words.items()}
        targets = {name: some_of(cells) for name, cells in self.targets.items()}
        return replace(self, x=self.x[rows], words=words, targets=targets, **texts)


def listing(thing: str, fault: str, lines: Sequence[str]) -> str:
    """An error about so many things, with a line on each of the first five.

    >>> print(listing("row", "cannot be used", ["line 7: column 'heat' is empty"]))
    1 row cannot be used:
      line 7: column 'heat' is empty
    """
    count = f"1 {thing}" if len(lines) == 1 else f"{len(lines)} {thing}s"
    more = [f"and {len(lines) - 5} more"] if len(lines) > 5 else []
    return "\n  ".join([f"{count} {fault}:", *lines[:5], *more])


def joined(tables: Sequence[Table]) -> Table:
    """The rows of all tables, one after the other.

    A column of text that one of the tables lacks is None.
    """

    def column(name: str) -> Any:
        columns = [getattr(table, name) for table in tables]
        if any(cells is None for cells in columns):
            return None
        return list(chain.from_iterable(columns))

    def columns(name: str) -> dict[str, list[str]]:
        own = [getattr(table, name) for table in tables]
        return {key: list(chain.from_iterable(cells[key] for cells in own)) for key in own[0]}

    return Table(
        **{name: column(name) for name in ("source", "position", *ROLES)},
        x=np.concatenate([table.x for table in tables]),
        features=tables[0].features,
        words=columns("words"),
        targets=columns("targets"),
        faults=Faults(
            {row: why for table in tables for row, why in table.faults.reasons.items()},
            {hint: None for table in tables for hint in table.faults.hints},
        ),
    )


def is_missing(cell: str) -> bool:
    """Whether a cell is empty or has one of the usual words for a missing value.

    >>> [is_missing(cell) for cell in ("", "NA", "nan", "?", "-", "0", "none")]
    [True, True, True, True, True, False, False]
    """
    return cell.lower() in _MISSING


def lacks_name(cell: str) -> bool:
    """Whether a label or the name of a device is missing; "-" is a name, as beside "+"."""
    return cell != "-" and is_missing(cell)


def is_number(cell: str) -> bool:
    """Whether a cell holds a number, NaN and infinity among them.

    >>> is_number(" 1.5e3 "), is_number("nan"), is_number("1_000"), is_number("warm")
    (True, True, False, False)
    """
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python would read 1_000 as a thousand


def number(cell: str) -> float:
    """The number in a cell, NaN where there is none.

    >>> number("-2.5"), number("warm")
    (-2.5, nan)
    """
    return float(cell) if is_number(cell) else math.nan


def has_words(name: str, options: TableOptions, cells: Sequence[str]) -> bool:
    """Whether a feature is a column of words: it is named so, or most of its cells are words.

    A word is neither a number nor meant to be one, as 1,5 and 1_000 are.

    >>> has_words("hue", TableOptions(), ["red", "NA", "2026-01-31", "7"])
    True
    >>> has_words("heat", TableOptions(), ["1,5", "warm", "1_000"])
    False
    """
    if options.text is not None:
        return name in options.text
    if name in options.categorical:
        return True
    present = [cell for cell in cells if not is_missing(cell)]
    words = [cell for cell in present if not is_number(cell) and not _NEARLY_NUMBER.fullmatch(cell)]
    return 2 * len(words) > len(present)


def complaint(cell: str) -> str:
    """What is wrong with a cell that ought to hold a number a float32 can hold.

    >>> complaint(""), complaint("warm"), complaint("1e99")
    ('is empty', "is 'warm', which is not a number", 'is 1e99, too large for float32')
    """
    if not cell:
        return "is empty"
    if is_missing(cell) and not is_number(cell):
        return f"is {cell!r}, a missing value"
    if not is_number(cell):
        return f"is {cell!r}, which is not a number"
    value = number(cell)
    if math.isnan(value):
        return "is NaN"
    if math.isinf(value):
        return "is infinite"
    return f"is {cell}, too large for float32"


def unusable(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which floats a float32 cannot hold, NaN and infinity among them."""
    fine: npt.NDArray[np.bool_] = np.abs(values) <= LARGEST  # which NaN is not
    return ~fine


def _look(table: Table, options: TableOptions) -> None:
    """Reject rows that lack a label, a device, an edge or a part."""
    columns: dict[str, Any] = {**(table.targets or {options.labels[0]: table.label})}
    columns |= {getattr(options, role): getattr(table, role) for role in ROLES[1:]}
    for name, cells in columns.items():
        owned = name in (*options.labels, options.device)
        if owned and options.missing != "error":
            continue  # rows without a label or a device are left out later
        empty = [row for row, cell in enumerate(cells or ()) if not cell]
        if empty:
            table.reject(empty, f"column {name!r} is empty")
            if owned and options.labelled:
                table.faults.hints[GAPS_HINT] = None
    for row, text in enumerate(table.part or []):
        if text not in SPLITS:
            why = f"column {options.part!r} is {text!r}, not train, validation or test"
            table.reject([row], why)


def _look_at_features(
    table: Table, options: TableOptions, texts: Callable[[str], list[str]]
) -> None:
    """Reject rows with cells that a float32 cannot hold, or with gaps that are not filled."""
    hints = table.faults.hints
    x = table.x.reshape(len(table), -1)
    wrong = unusable(x)
    for at, name in enumerate(table.features):
        if name in table.words:
            wrong[:, at] = table.gaps(name)
    for at in np.flatnonzero(wrong.any(axis=0)).tolist():
        name = f"column {table.features[at]!r}" if table.features else "a value of x"
        cells = texts(table.features[at]) if table.features else list(map(str, x[:, at]))
        for row in np.flatnonzero(wrong[:, at]).tolist():
            gap = is_missing(cells[row])
            if gap and options.missing != "error":
                continue
            table.reject([row], f"{name} {complaint(cells[row])}")
            if not options.labelled:
                continue
            if gap:
                hints[GAPS_HINT] = None
            elif _DECIMAL_COMMA.fullmatch(cells[row]):
                hints['for decimal commas, set decimal = ","'] = None
            elif not is_number(cells[row]):
                hints["for a column of words, name it in categorical"] = None


def check_header(header: Sequence[str], options: TableOptions, path: Path) -> None:
    """That the columns a file needs are there, once each, and have names."""
    labels = options.labels if options.labelled else ()
    listed = (*(options.features or ()), *options.exclude, *options.categorical)
    for name in (*labels, *listed, *options.needed):
        if name not in header:
            advice = ""
            if name == options.device:
                advice = ' To deal its rows to devices, set partition = "iid" and devices = 10.'
                if options.renamed("device"):
                    advice = f"{advice[:-1]}, and leave out device = {name!r}."
            raise DataError(
                f"{path} has no column {name!r}{meant(name, header)}; "
                f"its columns are {_some(header)}.{advice}"
            )
    features = options.chosen(header)
    if not features:
        raise DataError(f"{path} has no column of features beside {_some(header)}; add one.")
    if "" in features:
        raise DataError(
            f"column {header.index('') + 1} of {path} has no name; "
            "name it, leave it out by exclude = [''], or list the columns to use as features."
        )
    for name in (*features, *options.roles(header).values(), *labels[1:]):
        if header.count(name) > 1:
            raise DataError(
                f"{path} has {header.count(name)} columns {name!r}; give each a name of its own."
            )


def _some(header: Sequence[str]) -> str:
    return ", ".join(header[:20]) + (f" and {len(header) - 20} more" if len(header) > 20 else "")
