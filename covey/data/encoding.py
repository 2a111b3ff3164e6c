"""The columns of a table as a model's inputs: numbers with gaps filled, words one-hot.

An encoding is measured on the devices' training rows, is the same for every device, and is kept
with the data: rows that come later are encoded alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from covey.data.scaling import Scaling
from covey.data.shards import some
from covey.data.tables import Missing, Table, complaint, is_missing, is_number, number
from covey.errors import DataError

MOST_WORDS = 50  # of a column that is not named in `categorical`

_ENOUGH_ROWS = 20  # from which on a column of different words is taken for an identifier
_TIME = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ].*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
)

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ColumnEncoding:
    """One column of a file: a number, or words of which each gets a column of zeros and ones.

    A word that did not occur in training has zeros in all of them.
    """

    name: str
    words: tuple[str, ...] | None = None  # None: numbers
    means: tuple[float, ...] = ()  # what a gap becomes; empty: a gap is refused
    flagged: bool = False  # one more column is 1 where the value is missing

    @property
    def names(self) -> list[str]:
        """The columns of inputs.

        >>> ColumnEncoding("sex", ("female", "male"), flagged=True).names
        ['sex=female', 'sex=male', 'sex is missing']
        """
        names = [self.name]
        if self.words is not None:
            names = [f"{self.name}={word}" for word in self.words]
        if self.flagged:
            names.append(f"{self.name} is missing")
        return names

    @property
    def binary(self) -> list[bool]:
        """Which of these columns hold zeros and ones."""
        return [self.words is not None or name != self.name for name in self.names]

    def inputs(self, cells: Floats | Sequence[str]) -> Floats:
        """The inputs of some rows, [rows, names]."""
        if self.words is None:
            values = np.asarray(cells, dtype=np.float64)[:, None].copy()
            gaps = np.isnan(values[:, 0])
        else:
            values = _one_hot(cells, self.words)
            gaps = np.array([is_missing(str(cell)) for cell in cells], dtype=bool)
        if self.means:
            values[gaps] = self.means
        if self.flagged:
            values = np.concatenate([values, gaps[:, None]], axis=1)
        return values

    def unknown(self, cells: Sequence[str]) -> list[str]:
        """The words among cells that did not occur in training."""
        known = set(self.words or ())
        return [cell for cell in cells if cell not in known and not is_missing(cell)]


@dataclass(frozen=True)
class Encoding:
    """How the columns of a file become inputs."""

    columns: tuple[ColumnEncoding, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of the file, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def text(self) -> tuple[str, ...]:
        """The columns of words."""
        return tuple(column.name for column in self.columns if column.words is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of inputs."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def missing(self) -> Missing:
        """What becomes of a gap in a row that comes later."""
        return "mean" if self.columns[0].means else "error"

    def indicator_notes(self) -> tuple[str, ...]:
        """A note that names the columns of indicators, if there are any."""
        flags = [column.names[-1] for column in self.columns if column.flagged]
        if not flags:
            return ()
        return (f"columns added, 1 where a value is missing: {some(flags)}.",)

    def inputs(self, table: Table) -> Floats:
        """The inputs of all rows of a table, [rows, names]."""
        return np.concatenate(
            [column.inputs(_cells(table, column)) for column in self.columns], axis=1
        )

    def applied(self, table: Table) -> Table:
        """The table with inputs as its columns, and notes that count gaps and unknown words."""
        notes = _notes(table, self.columns)
        return replace(table, x=self.inputs(table), features=self.names, words={}, notes=notes)

    def unscaled(self, scaling: Scaling) -> Scaling:
        """The scaling that leaves columns of zeros and ones as they are."""
        binary = np.array([flag for column in self.columns for flag in column.binary])
        if scaling.shift.ndim != 1 or not binary.any():
            return scaling
        shift = scaling.shift.clone()
        factor = scaling.factor.clone()
        shift[binary] = 0
        factor[binary] = 1
        return Scaling(scaling.kind, shift, factor)

    @property
    def fill(self) -> list[float]:
        """What a gap in a column of inputs becomes."""
        return [
            mean for column in self.columns for mean in (*column.means, *[0.0] * column.flagged)
        ]

    def as_dict(self) -> list[dict[str, Any]]:
        """As JSON can hold it."""
        return [vars(column) for column in self.columns]

    @staticmethod
    def read(facts: Sequence[Mapping[str, Any]]) -> Encoding:
        """What `as_dict` wrote."""
        return Encoding(
            tuple(
                ColumnEncoding(
                    fact["name"],
                    None if fact["words"] is None else tuple(fact["words"]),
                    tuple(fact["means"]),
                    fact["flagged"],
                )
                for fact in facts
            )
        )


def encoding(
    table: Table,
    train: Tensor,
    *,
    missing: Missing,
    categorical: Sequence[str] = (),
    listed: bool = False,
) -> Encoding | None:
    """The encoding of a table, measured on its training rows.

    None where every column is a number and gaps are not filled. `listed` says that the user has
    listed the features.
    """
    filled = missing in ("mean", "indicator")
    if not table.words and not filled:
        return None
    if not table.features:
        if np.isnan(table.x).any():
            raise DataError(
                f'missing = "{missing}" needs columns with names, which an array x has not; '
                'fill its NaN, or set missing to "drop".'
            )
        return None
    rows: Numbers = np.unique(train.numpy())
    _check_columns(table, rows, categorical, listed=listed)
    return Encoding(tuple(_measured(table, name, rows, missing) for name in table.features))


def _check_columns(
    table: Table, rows: Numbers, categorical: Sequence[str], *, listed: bool
) -> None:
    """Refuse columns without a value in training, and words that one-hot inputs would not help."""
    reasons = {}
    for name in table.features:
        present = _present(table, name, rows)
        if not len(present):
            reasons[name] = "has no value in any training row"
        elif name in table.words and name not in categorical:
            reasons[name] = _doubt([str(cell) for cell in present])
    reasons = {name: reason for name, reason in reasons.items() if reason}
    if reasons:
        lines = [f"  column {name!r} {reason}" for name, reason in reasons.items()]
        remedy = f"leave them out by exclude = {list(reasons)}"
        if listed:
            remedy = f"take {some(list(reasons))} out of features"
        raise DataError(
            "\n".join(
                [
                    f"{len(reasons)} of {len(table.features)} columns cannot be used; {remedy}, "
                    "or change them as said:",
                    *lines,
                ]
            )
        )


def _present(table: Table, name: str, rows: Numbers) -> Floats | list[str]:
    """The values of a column in some rows, without gaps."""
    if name in table.words:
        cells = [table.words[name][row] for row in rows.tolist()]
        return [cell for cell in cells if not is_missing(cell)]
    values: Floats = table.x[rows, table.features.index(name)]
    return values[~np.isnan(values)]


def named_columns(examples: Any, how: Encoding) -> Table:
    """The columns of a DataFrame, or of a dict, as a table; None and NaN are gaps."""
    absent = [name for name in how.features if name not in examples]
    if absent:
        raise DataError(f"the examples have no column {some(absent)}; give all features.")
    texts = {name: _texts(examples[name]) for name in how.features}
    count = len(texts[how.features[0]])
    uneven = [name for name in how.features if len(texts[name]) != count]
    if uneven:
        raise DataError(
            f"column {uneven[0]!r} has {len(texts[uneven[0]])} examples, but column "
            f"{how.features[0]!r} {count}; give one value for each example."
        )
    x = np.full((count, len(how.features)), np.nan)
    for at, name in enumerate(how.features):
        if name not in how.text:
            x[:, at] = [_number(name, row, cell) for row, cell in enumerate(texts[name])]
    words = {name: texts[name] for name in how.text}
    gaps = np.isnan(x[:, [name not in how.text for name in how.features]]).any()
    if how.missing == "error" and (gaps or any(map(is_missing, chain(*words.values())))):
        raise DataError("the examples have missing values; remove or fill them first.")
    source = ["example"] * count
    return Table(source, list(range(count)), x, [], features=how.features, words=words)


def _texts(cells: Any) -> list[str]:
    """The text of each cell, or of a single one."""
    if isinstance(cells, str) or not hasattr(cells, "__len__"):
        cells = [cells]
    return ["" if cell is None else str(cell).strip() for cell in cells]


def _number(name: str, row: int, cell: str) -> float:
    if not is_missing(cell) and not is_number(cell):
        raise DataError(f"column {name!r} of example {row} {complaint(cell)}; correct it.")
    return number(cell)


def _measured(table: Table, name: str, rows: Numbers, missing: Missing) -> ColumnEncoding:
    """The encoding of one column."""
    present = _present(table, name, rows)
    words = None
    if name in table.words:
        words = tuple(sorted({str(cell) for cell in present}))
        values = _one_hot(present, words)
    else:
        values = np.asarray(present)[:, None]
    if missing not in ("mean", "indicator"):
        return ColumnEncoding(name, words)
    flagged = missing == "indicator" and len(values) < len(rows)
    return ColumnEncoding(name, words, tuple(values.mean(axis=0).tolist()), flagged)


def _doubt(cells: Sequence[str]) -> str:
    """Why one-hot inputs of these words would not help; empty where they may."""
    words = Counter(cells)
    if _most(cells, _TIME):
        return (
            f"has dates or times, such as {cells[0]}: "
            "make numbers of them, such as the hour, the weekday or the days since a start"
        )
    have = f"has {len(words)} different words in {len(cells)} training rows ({some(list(words))})"
    if len(words) > MOST_WORDS:
        return f"{have}, more than {MOST_WORDS}: name it in categorical for a column per word"
    if len(cells) >= _ENOUGH_ROWS and 2 * len(words) > len(cells):
        return f"{have}, so it seems to be a name: if not, name it in categorical"
    return ""


def _most(cells: Sequence[str], pattern: re.Pattern[str]) -> bool:
    return 2 * sum(pattern.fullmatch(cell) is not None for cell in cells) > len(cells)


def _one_hot(cells: Floats | Sequence[str], words: Sequence[str]) -> Floats:
    number = {word: index for index, word in enumerate(words)}
    codes = np.array([number.get(str(cell), -1) for cell in cells], dtype=np.int64)
    values = np.zeros((len(codes), len(words)))
    known = np.flatnonzero(codes >= 0)
    values[known, codes[known]] = 1
    return values


def _notes(table: Table, columns: Sequence[ColumnEncoding]) -> tuple[str, ...]:
    """How many gaps were filled, and how many words are unknown, by column."""
    gaps = {column.name: _gaps(table, column) for column in columns}
    unknown = {
        column.name: len(column.unknown(table.words[column.name]))
        for column in columns
        if column.words is not None
    }
    notes = []
    if any(gaps.values()):
        notes.append(f"missing values replaced by means of training rows: {_listed(gaps)}.")
    if any(unknown.values()):
        notes.append(f"words that no training row has: {_listed(unknown)}.")
    return tuple(notes)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} in column {name!r}" for name, count in counts.items() if count)


def _gaps(table: Table, column: ColumnEncoding) -> int:
    if column.words is not None:
        return sum(map(is_missing, table.words[column.name]))
    return int(np.isnan(table.x[:, table.features.index(column.name)]).sum())


def _cells(table: Table, column: ColumnEncoding) -> Floats | Sequence[str]:
    if column.words is not None:
        return table.words[column.name]
    values: Floats = table.x[:, table.features.index(column.name)]
    return values
