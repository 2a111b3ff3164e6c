"""Rows read from files: features as numbers, the other columns as text.

Each row knows its place in its file, so that an error can name it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from covey.data.shards import SPLITS
from covey.errors import DataError, meant

LARGEST = float(np.finfo(np.float32).max)
_ROLES = ("label", "device", "edge", "part")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_NEARLY_NUMBER = re.compile(r"[+-]?[\d_]+([.,][\d_]+)?")
_MISSING = frozenset(("", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "?", "-"))

Missing = Literal["error", "drop", "mean", "indicator"]
"""What becomes of a cell without a value. error: the row is refused. drop: the row is left out.
mean: the mean of its column over all devices' training rows. indicator: the mean, and a column that
is 1 where the value is missing."""


@dataclass(frozen=True)
class Columns:
    """The names of a file's columns.

    `needed` are required columns besides the label and the features.
    """

    label: str = "label"
    device: str = "device"
    edge: str = "edge"
    part: str = "split"
    features: tuple[str, ...] | None = None  # None: all the other columns
    needed: tuple[str, ...] = ()
    labelled: bool = True  # False: examples to predict, of which only features and devices are read
    exclude: tuple[str, ...] = ()  # columns that are not read
    categorical: tuple[str, ...] = ()  # columns of words, even where the words are numbers
    text: tuple[str, ...] | None = None  # all columns of words; None: those that look so
    missing: Missing = "error"
    decimal: str = "."
    more_labels: tuple[str, ...] = ()  # label columns beside `label`; each has targets of its own

    @staticmethod
    def of_labels(label: str | Sequence[str], *others: Any, **options: Any) -> Columns:
        """The columns of a table with one label column or several."""
        if isinstance(label, str):
            return Columns(label, *others, **options)
        names = tuple(label)
        if len(names) < 2 or len(set(names)) < len(names):
            raise DataError(
                f"label = {list(names)}; list two columns or more, each once, or give one name."
            )
        return replace(Columns(names[0], *others, **options), more_labels=names[1:])

    @property
    def label_columns(self) -> tuple[str, ...]:
        """All label columns that are read."""
        if not self.labelled:
            return ()
        return (self.label, *self.more_labels)

    def roles(self, header: Sequence[str]) -> dict[str, str]:
        """The columns of text that this header has, by what they are for.

        >>> Columns(label="state").roles(["heat", "state", "edge"])
        {'label': 'state', 'edge': 'edge'}
        >>> Columns(label="state", labelled=False).roles(["heat", "state", "device"])
        {'device': 'device'}
        """
        read = _ROLES if self.labelled else ("device",)
        names = {role: getattr(self, role) for role in read}
        return {
            role: name
            for role, name in names.items()
            if name in header and name not in self.exclude
        }

    def chosen(self, header: Sequence[str]) -> tuple[str, ...]:
        """The features of a file with this header."""
        if self.features is not None:
            return self.features
        others = [*(getattr(self, role) for role in _ROLES), *self.more_labels, *self.exclude]
        return tuple(name for name in header if name not in others)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of one file or of several; a column of text that is not there is None."""

    source: list[str]  # such as "pumps.csv, line", which the position completes
    position: list[int]
    x: npt.NDArray[Any]  # [rows, ...] uint8, float32 or float64
    label: list[str]  # empty where examples have none
    device: list[str] | None = None
    edge: list[str] | None = None
    part: list[str] | None = None
    features: tuple[str, ...] = ()  # empty where columns have no names
    words: Mapping[str, list[str]] = field(default_factory=dict)  # of columns of text, NaN in x
    targets: Mapping[str, list[str]] = field(default_factory=dict)
    """The cells of every label column, where there are several; `label` has the first one's."""
    notes: tuple[str, ...] = ()  # what the user should know of the rows

    def __len__(self) -> int:
        return len(self.position)

    def where(self, row: int) -> str:
        """Where a row stands, as in "pumps.csv, line 7"."""
        return f"{self.source[row]} {self.position[row]}"

    def taken(self, rows: npt.NDArray[np.int64]) -> Table:
        """Some of the rows, in this order."""

        def some_of(cells: Any) -> Any:
            if not cells:  # examples to predict have no labels
                return cells
            return [cells[row] for row in rows.tolist()]

        texts = {name: some_of(getattr(self, name)) for name in ("source", "position", *_ROLES)}
        words = {name: some_of(cells) for name, cells in self.words.items()}
        targets = {name: some_of(cells) for name, cells in self.targets.items()}
        return replace(self, x=self.x[rows], words=words, targets=targets, **texts)

    def under(self, *, device: str, edge: str | None) -> Table:
        """The same rows, all of one device."""
        return replace(
            self,
            device=[device] * len(self),
            edge=None if edge is None else [edge] * len(self),
        )


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

    def add_rows(self, table: Table, rows: Sequence[int], why: str) -> None:
        """The same reason for some rows of a table."""
        for row in rows:
            self.add(table.source[row], table.position[row], why)

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
            f"  {source} {position}: {why}"
            for (source, position), why in sorted(self.reasons.items())
        ]
        advice = "; ".join([advice, *self.hints])
        more = [f"  and {len(lines) - 5} more"] if len(lines) > 5 else []
        count = "1 row" if len(lines) == 1 else f"{len(lines)} rows"
        raise DataError("\n".join([f"{count} cannot be used; {advice}:", *lines[:5], *more]))


def joined(tables: Sequence[Table]) -> Table:
    """The rows of all tables, one after the other.

    A column of text that one of the tables lacks is None.
    """

    def column(name: str) -> Any:
        columns = [getattr(table, name) for table in tables]
        if any(cells is None for cells in columns):
            return None
        return list(chain.from_iterable(columns))

    texts = {name: column(name) for name in ("source", "position", *_ROLES)}
    words = {
        name: list(chain.from_iterable(table.words[name] for table in tables))
        for name in tables[0].words
    }
    targets = {
        name: list(chain.from_iterable(table.targets[name] for table in tables))
        for name in tables[0].targets
    }
    return Table(
        x=np.concatenate([table.x for table in tables]),
        features=tables[0].features,
        words=words,
        targets=targets,
        **texts,
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


def is_word(cell: str) -> bool:
    """Whether a cell is neither a number nor meant to be one.

    >>> is_word("warm"), is_word("1.5"), is_word("1,5"), is_word("1_000"), is_word("2026-01-31")
    (True, False, False, False, True)
    """
    return not is_number(cell) and _NEARLY_NUMBER.fullmatch(cell) is None


def number(cell: str) -> float:
    """The number in a cell, NaN where there is none.

    >>> number("-2.5"), number("warm")
    (-2.5, nan)
    """
    return float(cell) if is_number(cell) else math.nan


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


def look(
    table: Table,
    columns: Columns,
    cell: Callable[[int, int], str],
    faults: Faults,
) -> None:
    """Add what is wrong with each row to `faults`.

    cell(row, feature) is the file's text of a value.
    """
    for role in _ROLES:
        texts = getattr(table, role) or []
        if columns.missing != "error" and role in ("label", "device"):
            continue  # rows without a label or a device are left out later
        if "" in texts:
            empty = [row for row, text in enumerate(texts) if not text]
            faults.add_rows(table, empty, f"column {getattr(columns, role)!r} is empty")
            if role in ("label", "device") and columns.labelled:
                faults.hints[GAPS_HINT] = None
    for name in columns.more_labels:
        empty = [row for row, text in enumerate(table.targets.get(name, [])) if not text]
        if empty and columns.missing == "error":
            faults.add_rows(table, empty, f"column {name!r} is empty")
            faults.hints[GAPS_HINT] = None
    for row, text in enumerate(table.part or []):
        if text not in SPLITS:
            why = f"column {columns.part!r} is {text!r}, not {_listed(SPLITS)}"
            faults.add_rows(table, [row], why)
    _look_at_features(table, columns, cell, faults)


GAPS_HINT = 'for missing values, set missing to "drop", "mean" or "indicator"'
COMMA_HINT = 'for decimal commas, set decimal = ","'
WORDS_HINT = "for a column of words, name it in categorical"


def _look_at_features(
    table: Table, columns: Columns, cell: Callable[[int, int], str], faults: Faults
) -> None:
    if table.x.dtype.kind != "f" or not len(table):
        return
    wrong = unusable(table.x.reshape(len(table), -1))
    for feature, name in enumerate(table.features):
        if name in table.words:
            wrong[:, feature] = [is_missing(word) for word in table.words[name]]
    for row, feature in np.argwhere(wrong).tolist():
        text = cell(row, feature)
        gap = is_missing(text)
        if gap and columns.missing != "error":
            continue
        name = "a value of x"
        if table.features:
            name = f"column {table.features[feature]!r}"
        faults.add_rows(table, [row], f"{name} {complaint(text)}")
        if gap and columns.labelled:
            faults.hints[GAPS_HINT] = None
        elif _DECIMAL_COMMA.fullmatch(text):
            faults.hints[COMMA_HINT] = None
        elif columns.labelled and not is_number(text):
            faults.hints[WORDS_HINT] = None


def check_header(header: Sequence[str], columns: Columns, path: Path) -> None:
    """That the columns a file needs are there, once each, and have names."""
    label = columns.label_columns
    listed = (*(columns.features or ()), *columns.exclude, *columns.categorical)
    for name in (*label, *listed, *columns.needed):
        if name not in header:
            advice = ""
            if name == columns.device:
                advice = ' To deal its rows to devices, set partition = "iid" and devices = 10.'
                if name != Columns.device:
                    advice = f"{advice[:-1]}, and leave out device = {name!r}."
            raise DataError(
                f"{path} has no column {name!r}{meant(name, header)}; "
                f"its columns are {_some(header)}.{advice}"
            )
    features = columns.chosen(header)
    if not features:
        raise DataError(f"{path} has no column of features beside {_some(header)}; add one.")
    if "" in features:
        raise DataError(
            f"column {header.index('') + 1} of {path} has no name; "
            "name it, leave it out by exclude = [''], or list the columns to use as features."
        )
    for name in (*features, *columns.roles(header).values(), *label[1:]):
        if header.count(name) > 1:
            raise DataError(
                f"{path} has {header.count(name)} columns {name!r}; give each a name of its own."
            )


def check_named(table: Table, columns: Columns, path: Path) -> None:
    """That features the user lists can be found by name."""
    if columns.features and not table.features:
        raise DataError(
            f"features = {list(columns.features)}, but the columns of x in {path} have no names; "
            "leave features out."
        )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _some(header: Sequence[str]) -> str:
    return ", ".join(header[:20]) + (f" and {len(header) - 20} more" if len(header) > 20 else "")
