"""The columns of a table as a model's inputs: numbers with gaps filled, words one-hot.

An encoding is measured on the devices' training rows, is the same for every device, and is kept
with the data: rows that come later are encoded alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from covey.data.shards import some
from covey.data.tables.options import Missing, TableOptions
from covey.data.tables.scaling import Floats, Moments, Scaling
from covey.data.tables.table_readers import frame_table, texts_of
from covey.data.tables.tables import Table, is_missing
from covey.errors import DataError

MOST_WORDS = 50  # of a column that is not named in `categorical`

_ENOUGH_ROWS = 20  # from which on a column of different words is taken for an identifier
_TIME = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ].*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
)

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ColumnFacts:
    """What the training rows of a device, or of all devices, have in each column.

    Encoding and scaling follow from it.
    """

    rows: int
    names: tuple[str, ...]  # empty where columns have no names
    moments: Moments
    words: Mapping[str, Mapping[str, int]]  # how often each occurs, by column of words

    @staticmethod
    def of(table: Table, rows: Numbers) -> ColumnFacts:
        """The facts of some rows of a table."""
        words = {
            name: Counter(cells[row] for row in rows.tolist() if not is_missing(cells[row]))
            for name, cells in table.words.items()
        }
        return ColumnFacts(len(rows), table.features, Moments.of(table.x, rows), words)

    @staticmethod
    def merged(parts: Sequence[ColumnFacts]) -> ColumnFacts:
        """The facts of all rows together, with the columns in the order of the first part."""
        names = parts[0].names
        moments = []
        words: dict[str, Counter[str]] = {}
        for device, part in enumerate(parts):
            if sorted(part.names) != sorted(names):
                raise DataError(
                    f"device {device} has the columns {some(part.names)}, and device 0 "
                    f"{some(names)}; list features, and describe them again."
                )
            order: Any = [part.names.index(name) for name in names] or ...
            moments.append(part.moments.each(itemgetter(order)))
            for name, counts in part.words.items():
                words.setdefault(name, Counter()).update(counts)
        together = Moments.merged(moments)
        mixed = [name for name in words if together.count[names.index(name)]]
        if mixed:
            raise DataError(
                f"column {mixed[0]!r} has words on some devices, and numbers on others; "
                "name it in categorical, and describe them again."
            )
        return ColumnFacts(sum(part.rows for part in parts), names, together, words)

    def known_of(self, least: int) -> ColumnFacts:
        """Without what fewer than `least` rows tell: means of so few values, and rare words."""
        enough = self.moments.count >= least
        moments = self.moments.each(lambda values: np.where(enough, values, 0.0))
        words = {
            name: {word: often for word, often in counts.items() if often >= least}
            for name, counts in self.words.items()
        }
        rows = self.rows if self.rows >= least else 0
        return ColumnFacts(rows, self.names, moments, words)

    def present(self, name: str) -> int:
        """How many rows have a value in a column."""
        if name in self.words:
            return sum(self.words[name].values())
        return int(self.moments.count[self.names.index(name)])

    def scaling(self, how: Encoding | None) -> Scaling:
        """The standard scaling of the inputs that an encoding makes of these columns."""
        scale = self.moments.scaling(self.rows)
        if how is None:
            return scale
        # A column of words has several inputs, all with its values, which stay unscaled.
        column = [at for at, one in enumerate(how.columns) for _ in one.names]
        return how.unscaled(Scaling(scale.kind, scale.shift[column], scale.factor[column]))


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

    def inputs(self, table: Table) -> Floats:
        """The inputs of the rows of a table, [rows, names]."""
        cells = table.column(self.name)
        if self.words is None:
            values = np.array(cells, dtype=np.float64)[:, None]
        else:
            number = {word: index for index, word in enumerate(self.words)}
            codes = np.array([number.get(cell, -1) for cell in cells], dtype=np.int64)
            known = np.flatnonzero(codes >= 0)
            values = np.zeros((len(codes), len(self.words)))
            values[known, codes[known]] = 1
        gaps = table.gaps(self.name)
        if self.means:
            values[gaps] = self.means
        if self.flagged:
            values = np.concatenate([values, gaps[:, None]], axis=1)
        return values

    def unknown(self, table: Table) -> int:
        """How many cells have a word that did not occur in training."""
        if self.words is None:
            return 0
        known = {*self.words}
        return sum(not (cell in known or is_missing(cell)) for cell in table.words[self.name])


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

    @property
    def fill(self) -> list[float]:
        """What a gap in a column of inputs becomes."""
        filled = [(*column.means, *[0.0] * column.flagged) for column in self.columns]
        return [mean for means in filled for mean in means]

    def indicator_notes(self) -> tuple[str, ...]:
        """A note that names the columns of indicators, if there are any."""
        flags = [column.names[-1] for column in self.columns if column.flagged]
        return (f"columns added, 1 where a value is missing: {some(flags)}.",) if flags else ()

    def inputs(self, table: Table) -> Floats:
        """The inputs of all rows of a table, [rows, names]."""
        return np.concatenate([column.inputs(table) for column in self.columns], axis=1)

    def applied(self, table: Table) -> Table:
        """The table with inputs as its columns, and notes that count gaps and unknown words."""
        gaps = {name: int(table.gaps(name).sum()) for name in self.features}
        unknown = {column.name: column.unknown(table) for column in self.columns}
        notes = []
        if any(gaps.values()):
            notes.append(f"missing values replaced by means of training rows: {_listed(gaps)}.")
        if any(unknown.values()):
            notes.append(f"words that no training row has: {_listed(unknown)}.")
        x = self.inputs(table)
        return replace(table, x=x, features=self.names, words={}, notes=tuple(notes))

    def unscaled(self, scaling: Scaling) -> Scaling:
        """The scaling that leaves columns of zeros and ones as they are."""
        binary = np.array([flag for column in self.columns for flag in column.binary])
        if scaling.shift.ndim != 1 or not binary.any():
            return scaling
        mask = torch.from_numpy(binary)
        shift = scaling.shift.masked_fill(mask, 0)
        return Scaling(scaling.kind, shift, scaling.factor.masked_fill(mask, 1))

    def as_dict(self) -> list[dict[str, Any]]:
        """As JSON can hold it."""
        return [vars(column) for column in self.columns]

    @staticmethod
    def read(facts: Sequence[Mapping[str, Any]]) -> Encoding:
        """What `as_dict` wrote."""
        columns = []
        for fact in facts:
            words = None if fact["words"] is None else tuple(fact["words"])
            means = tuple(fact["means"])
            columns.append(ColumnEncoding(fact["name"], words, means, fact["flagged"]))
        return Encoding(tuple(columns))


def encoding(facts: ColumnFacts, options: TableOptions) -> Encoding | None:
    """The encoding of columns, by the facts of all devices' training rows.

    None where every column is a number and gaps are not filled.
    """
    filled = options.missing in ("mean", "indicator")
    if not facts.names or not (facts.words or filled):
        return None
    check_words(facts, options, empty=True)
    columns = []
    for name, mean in zip(facts.names, facts.moments.mean.tolist(), strict=True):
        present = facts.present(name)
        words = None
        means: tuple[float, ...] = (mean,)
        if name in facts.words:
            words = tuple(sorted(facts.words[name]))
            means = tuple(facts.words[name][word] / present for word in words)
        flagged = options.missing == "indicator" and present < facts.rows
        columns.append(ColumnEncoding(name, words, means if filled else (), flagged))
    return Encoding(tuple(columns))


def check_words(facts: ColumnFacts, options: TableOptions, *, empty: bool = False) -> None:
    """Refuse words that one-hot inputs would not help, and columns without a value if `empty`."""
    reasons = {}
    for name in facts.names:
        if empty and not facts.present(name):
            reasons[name] = "has no value in any training row"
        elif facts.words.get(name) and name not in options.categorical:
            reasons[name] = _doubt(facts.words[name])
    lines = [f"  column {name!r} {reason}" for name, reason in reasons.items() if reason]
    if lines:
        names = [name for name in reasons if reasons[name]]
        remedy = f"leave them out by exclude = {names}"
        if options.features is not None:
            remedy = f"take {some(names)} out of features"
        told = f"{len(lines)} of {len(facts.names)} columns cannot be used; {remedy}, or change"
        raise DataError("\n".join([f"{told} them as said:", *lines]))


def named_columns(examples: Any, how: Encoding) -> Table:
    """The columns of a DataFrame, or of a dict, as a table; None and NaN are gaps."""
    absent = [name for name in how.features if name not in examples]
    if absent:
        raise DataError(f"the examples have no column {some(absent)}; give all features.")
    columns = {}
    for name in how.features:
        cells = examples[name]
        single = isinstance(cells, str) or not hasattr(cells, "__len__")
        if single or getattr(cells, "ndim", 1) == 0:
            cells = [cells]
        if not isinstance(cells, np.ndarray) and not hasattr(cells, "to_numpy"):
            cells = cells.tolist() if hasattr(cells, "tolist") else list(cells)
        columns[name] = texts_of(cells)
    first = how.features[0]
    count = len(columns[first])
    for name, cells in columns.items():
        if len(cells) != count:
            raise DataError(
                f"column {name!r} has {len(cells)} examples, but column {first!r} {count}; "
                "give one value for each example."
            )
    options = TableOptions(
        features=how.features, text=how.text, missing=how.missing, labelled=False
    )
    table = frame_table(columns, how.features, options, "example", range(count))
    table.faults.refuse("correct or fill them")
    return table


def _doubt(words: Mapping[str, int]) -> str:
    """Why one-hot inputs of words that occur so often would not help; empty where they may."""
    rows = sum(words.values())
    times = [word for word in words if _TIME.fullmatch(word)]
    if 2 * sum(words[word] for word in times) > rows:
        return (
            f"has dates or times, such as {times[0]}: "
            "make numbers of them, such as the hour, the weekday or the days since a start"
        )
    have = f"has {len(words)} different words in {rows} training rows ({some(list(words))})"
    if len(words) > MOST_WORDS:
        return f"{have}, more than {MOST_WORDS}: name it in categorical for a column per word"
    if rows >= _ENOUGH_ROWS and 2 * len(words) > rows:
        return f"{have}, so it seems to be a name: if not, name it in categorical"
    return ""


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} in column {name!r}" for name, count in counts.items() if count)
