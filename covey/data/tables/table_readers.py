"""One file of rows as a table: `.csv`, `.parquet` or `.npz`; and the columns of a frame.

A row of a `.csv` file is known by the line it starts at (the header is line 1), of the others by
its number from 0.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from covey.data.shards import SPLITS
from covey.data.tables import npz
from covey.data.tables.options import TableOptions
from covey.data.tables.tables import (
    Table,
    check_header,
    has_words,
    is_number,
    joined,
    number,
)
from covey.errors import DataError, needed, reading

SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
ENDINGS = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"

Array = npt.NDArray[Any]

_LOOK = 4096  # rows of a .csv that tell which columns are words
_CHUNK = 256  # rows of a .csv that are converted together: more of them leave the processor's cache
_SEPARATORS = (",", ";", "\t", "|")
_SAMPLE = 5  # records that tell which separator a file has
_DIGITS = {"True": "1", "False": "0"}
"""True and False beside numbers, which a frame keeps as Python objects."""


def read(path: Path, options: TableOptions) -> Table:
    """The rows of a file, with the faults of those that cannot be used."""
    readers = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".npz": _npz}
    form = form_of(path)
    if form is None:
        raise DataError(
            f"{path} is no {ENDINGS} file (nor a .csv packed as .gz); "
            "give one, or a folder of them."
        )
    try:
        table = readers[form](path, options)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{path} cannot be read: {reason}; see that it is there and whole."
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not text in UTF-8 ({error.reason}); save it as CSV in UTF-8."
        ) from error
    if not len(table) and not table.faults.reasons:
        raise DataError(f"{path} has no rows; add some or leave it out.")
    return table


def form_of(path: Path) -> str | None:
    """The form of a file by its name, None for others.

    >>> form_of(Path("a.CSV")), form_of(Path("a.csv.gz")), form_of(Path("a.gz"))
    ('.csv', '.csv', None)
    """
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower()
        return suffix if suffix in (".csv", ".tsv") else None
    return suffix if suffix in SUFFIXES else None


def stem(path: Path) -> str:
    """The name of a file without its endings.

    >>> stem(Path("pump-1.csv.gz")), stem(Path("pump-1.v2.csv"))
    ('pump-1', 'pump-1.v2')
    """
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def frame_table(
    frame: Any,
    header: Sequence[str],
    options: TableOptions,
    source: str,
    positions: Sequence[int],
) -> Table:
    """The table of the columns of a frame, each a list of text or a column of some library."""
    features = options.chosen(header)
    x = np.full((len(positions), len(features)), np.nan)
    words = {}
    for at, name in enumerate(features):
        column = frame[name]
        numbers = _numeric(column)
        cells = [] if numbers is not None else _cells(column)
        if has_words(name, options, cells):
            words[name] = _cells(column)
            continue
        if isinstance(column, list):
            numbers = _numbers(_pointed(cells, options))
        elif numbers is None:
            numbers = _numbers([_DIGITS.get(cell, cell) for cell in cells])
        x[:, at] = numbers

    def texts(name: str) -> list[str]:
        cells = _cells(frame[name])
        if name not in options.labels or options.decimal == ".":
            return cells
        pairs = zip(cells, _pointed(cells, options), strict=True)
        return [pointed if is_number(pointed) else cell for cell, pointed in pairs]

    return Table.read(source, positions, x, header, options, texts, words)


def frame_rows(frame: Any, header: Sequence[str], options: TableOptions, where: Path) -> Table:
    """The rows of a frame at `where`, known by their numbers."""
    check_header(header, options, where)
    if not len(frame):
        raise DataError(f"{where} has no rows; add some.")
    return frame_table(frame, header, options, f"{where}, row", range(len(frame)))


def _numeric(column: Any) -> Array | None:
    """The values of a column of numbers; None of text, and of a list."""
    if isinstance(column, list):
        return None
    array: Array = column.to_numpy() if hasattr(column, "to_numpy") else column
    return array if array.dtype.kind in "fiub" else None


def _cells(column: Any) -> list[str]:
    """The text of every value; a list has it already."""
    return column if isinstance(column, list) else texts_of(column)


def texts_of(column: Any) -> list[str]:
    """The text of every value of a column, nothing where there is none.

    >>> texts_of(np.array([1.0, np.nan])), texts_of(np.array([1.0, 2.5]))
    (['1', ''], ['1.0', '2.5'])
    """
    if hasattr(column, "to_pylist"):  # of pyarrow, whose gaps an array of numbers would not keep
        column = column.to_pylist()
    if hasattr(column, "to_numpy"):
        column = column.to_numpy()
    if isinstance(column, list):
        return ["" if value is None else str(value).strip() for value in column]
    if column.dtype.kind == "M":  # tolist would make whole numbers of nanoseconds
        column = column.astype(str)
    if column.dtype.kind == "f" and column.ndim == 1:
        gaps = np.isnan(column)
        values = column[~gaps]
        exact = (np.abs(values) < 2**53).all()
        whole = exact and (values == np.rint(values)).all()
        if gaps.any() and whole:  # what a library makes of integers beside gaps
            return ["" if np.isnan(value) else str(int(value)) for value in column]
    return texts_of(column.tolist())


def _numbers(cells: Sequence[str]) -> npt.NDArray[np.float64]:
    """The numbers in cells; NaN where there is none."""
    if "_" not in "".join(cells):  # numpy would read 1_000 as a thousand
        try:
            return np.array(cells, dtype=np.float64)
        except ValueError:
            pass
    return np.array(list(map(number, cells)))


def _pointed(cells: list[str], options: TableOptions) -> list[str]:
    """Cells with decimal points."""
    if options.decimal == ".":
        return cells
    return [cell.replace(options.decimal, ".") for cell in cells]


def _csv(path: Path, options: TableOptions) -> Table:
    """The rows of a table of text, piece by piece."""
    records = _records(path, _separator(path, options.decimal))
    _, first = next(records, (0, []))
    if not first:
        raise DataError(f"{path} is empty; its first line must name the columns.")
    header = [name.strip() for name in first]
    check_header(header, options, path)
    start = list(islice(records, _LOOK))
    if options.text is None:
        look = _sheet([cells for _, cells in start if len(cells) == len(header)], header)
        names = options.chosen(header)
        text = [name for name in names if has_words(name, options, look[name])]
        options = replace(options, text=text)
    source = f"{path}, line"
    records = chain(start, records)
    tables: list[Table] = []
    while (piece := list(islice(records, _CHUNK))) or not tables:
        fitting = [record for record in piece if len(record[1]) == len(header)]
        sheet = _sheet([cells for _, cells in fitting], header)
        table = frame_table(sheet, header, options, source, [line for line, _ in fitting])
        tables.append(table)
        for line, cells in piece:
            if len(cells) != len(header):
                have = f"has {len(cells)} cells where the header has {len(header)}"
                table.faults.add(source, line, have)
    return joined(tables)


def _records(path: Path, mark: str) -> Iterator[tuple[int, list[str]]]:
    """Every record that is not a blank line, behind the line it starts at."""
    with _opened(path) as file:
        reader = csv.reader(file, strict=True, skipinitialspace=True, delimiter=mark)
        line = 1
        try:
            for cells in reader:
                if cells:
                    yield line, cells
                line = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num}: {error}; see that every quote is closed."
            ) from error


def _sheet(rows: Sequence[Sequence[str]], header: Sequence[str]) -> dict[str, list[str]]:
    """The cells of every column."""
    return {name: [row[at].strip() for row in rows] for at, name in enumerate(header)}


def _opened(path: Path) -> IO[str]:
    """The text of a file, unpacked if it is packed."""
    opener: Callable[..., IO[str]] = gzip.open if path.suffix.lower() == ".gz" else open
    return opener(path, "rt", encoding="utf-8-sig", newline="")


def _separator(path: Path, decimal: str) -> str:
    """What separates cells: the comma, unless another mark cuts the first records better.

    A mark fits where the header has several cells and the first records have as many.
    """
    with _opened(path) as file:
        lines = [line for line in islice(file, _SAMPLE) if line.strip()]
    counts = {}
    for mark in _SEPARATORS:
        if mark != decimal:
            with suppress(csv.Error):
                records = csv.reader(lines, delimiter=mark, skipinitialspace=True)
                widths = set(map(len, records))
                if len(widths) == 1 and widths != {1}:
                    counts[mark] = widths.pop()
    if not counts or "," in counts:
        return ","
    return max(counts, key=counts.__getitem__)


def _parquet(path: Path, options: TableOptions) -> Table:
    parquet = needed("pyarrow.parquet", extra="parquet", to=f"read {path}")
    with reading(path, "write it again"):
        file = parquet.ParquetFile(path)
        # A run of equal values takes a few bytes, however long it is.
        values = file.metadata.num_rows * file.metadata.num_columns
        npz.check_memory(8 * values, path, "give fewer rows")
        data = file.read()
    return frame_rows(data, data.column_names, options, path)


def _npz(path: Path, options: TableOptions) -> Table:
    """The examples in arrays x and y, or train_x, train_y and so on."""
    if options.several and options.labelled:
        raise DataError(
            f"label lists {len(options.labels)} columns, but {path} has one array y; give a "
            ".csv or .parquet table, or arrays to covey.data.own."
        )
    if options.features:
        raise DataError(
            f"features = {list(options.features)}, but the columns of x in {path} have no names; "
            "leave features out."
        )
    remedy = "write it with numpy.savez, and text as array.astype(str)"
    with open(path, "rb") as file, reading(path, remedy):
        arrays = npz.arrays(file)
    options = replace(options, label="y")
    if "train_x" not in arrays or not options.labelled:
        return _examples(path, f"{path}, row", arrays, options)
    tables = []
    for split in SPLITS:
        start = f"{split}_"
        own = {name.removeprefix(start): arrays[name] for name in arrays if name.startswith(start)}
        if own:
            own[options.part] = np.full(len(own.get("x", ())), split)
            tables.append(_examples(path, f"{path}, {split} row", own, options))
    shapes = sorted({table.x.shape[1:] for table in tables})
    if len(shapes) > 1:
        raise DataError(
            f"{path} has examples of shapes {shapes}; give its parts the same features."
        )
    return joined(tables)


def _examples(
    path: Path,
    source: str,
    arrays: Mapping[str, Array],
    options: TableOptions,
) -> Table:
    """The table of an array x of features, an array y of labels, and columns of text."""
    _check_arrays(path, arrays, options)
    # Pixels stay bytes and float32 stays itself, for the sake of memory.
    x = arrays["x"]
    if x.dtype not in (np.uint8, np.float32):
        x = x.astype(np.float64)

    def texts(name: str) -> list[str]:
        array = arrays[name]
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8", "replace")
        return texts_of(array.tolist())

    return Table.read(source, range(len(x)), x, list(arrays), options, texts)


def _check_arrays(path: Path, arrays: Mapping[str, Array], options: TableOptions) -> None:
    """That the arrays are there, of numbers and of one length."""
    wanted = ["x", *options.needed]
    remedy = "give x (and where rows are of several devices, device)"
    if options.labelled:
        wanted.insert(1, "y")
        remedy = (
            "give x and y (and in a table of several devices, device), "
            "or train_x, train_y, test_x and test_y"
        )
    for name in wanted:
        if name not in arrays:
            raise DataError(
                f"{path} has no array {name!r} among {', '.join(arrays) or 'none at all'}; "
                f"{remedy}."
            )
    x = arrays["x"]
    names = options.roles(list(arrays)).values()
    if x.dtype.kind not in "fiub":
        raise DataError(
            f"x in {path} is an array of {x.dtype}; give numbers, as in x.astype('float32')."
        )
    if x.ndim < 2 or any(arrays[name].shape != x.shape[:1] for name in names):
        shapes = ", ".join(f"{name} {arrays[name].shape}" for name in ("x", *names))
        raise DataError(
            f"the arrays in {path} have shapes {shapes}; "
            "give x one row for each example, the others one value."
        )
