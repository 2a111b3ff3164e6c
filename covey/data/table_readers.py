"""One file of rows as a table: `.csv`, `.parquet` or `.npz`.

A row of a `.csv` file is known by the line it starts at (the header is line 1), of the others by
its number from 0.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from covey.data import npz
from covey.data.extras import needed
from covey.data.shards import SPLITS
from covey.data.tables import (
    Columns,
    Faults,
    Table,
    check_header,
    is_missing,
    is_number,
    is_word,
    joined,
    look,
    number,
)
from covey.errors import DataError

SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
PACKED = (".gz", ".xz", ".bz2", ".zip")
ENDINGS = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"

Array = npt.NDArray[Any]
Record = tuple[int, list[str]]  # the line it starts at, its cells

_LOOK = 4096  # rows of a .csv that tell which columns are words
_CHUNK = 256  # rows of a .csv that are converted together: more of them leave the processor's cache
_SEPARATORS = (",", ";", "\t", "|")
_SAMPLE = 5  # records that tell which separator a file has
_ARRAYS = (
    "give x and y (and in a table of several devices, device), "
    "or train_x, train_y, test_x and test_y"
)


def read(path: Path, columns: Columns, faults: Faults) -> Table:
    """The rows of a file; those that cannot be used go to the faults."""
    readers = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".npz": _npz}
    form = form_of(path)
    if form is None:
        raise DataError(
            f"{path} is no {ENDINGS} file (nor a .csv packed as {', '.join(PACKED)}); "
            "give one, or a folder of them."
        )
    before = len(faults.reasons)
    try:
        table = readers[form](path, columns, faults)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not len(table) and len(faults.reasons) == before:
        raise DataError(f"{path} has no rows; add some or leave it out.")
    return table


def form_of(path: Path) -> str | None:
    """The form of a file by its name, None for others.

    >>> form_of(Path("a.CSV")), form_of(Path("a.csv.gz")), form_of(Path("a.gz"))
    ('.csv', '.csv', None)
    """
    suffix = path.suffix.lower()
    if suffix in PACKED:
        suffix = Path(path.stem).suffix.lower()
        return suffix if suffix in (".csv", ".tsv") else None
    return suffix if suffix in SUFFIXES else None


def stem(path: Path) -> str:
    """The name of a file without its endings.

    >>> stem(Path("pump-1.csv.gz")), stem(Path("pump-1.v2.csv"))
    ('pump-1', 'pump-1.v2')
    """
    return Path(path.stem).stem if path.suffix.lower() in PACKED else path.stem


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """The text of a file, unpacked if it is packed."""
    openers: dict[str, Callable[..., Any]] = {
        ".gz": gzip.open,
        ".xz": lzma.open,
        ".bz2": bz2.open,
        ".zip": _only_member,
    }
    opener: Callable[..., Any] = openers.get(path.suffix.lower(), open)
    with opener(path, "rb") as packed:
        yield io.TextIOWrapper(packed, encoding="utf-8-sig", newline="")


@contextmanager
def _only_member(path: Path, mode: str) -> Iterator[IO[bytes]]:
    """The one table in a .zip archive."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if form_of(Path(name)) in (".csv", ".tsv")]
        names = [name for name in names if not name.startswith("__MACOSX/")]
        if len(names) != 1:
            raise DataError(
                f"{path} has {len(names)} .csv files among {', '.join(archive.namelist()[:5])}; "
                "pack one alone, or unpack it and name the file."
            )
        with archive.open(names[0]) as member:
            yield member


def _separator(path: Path, decimal: str) -> str:
    """What separates cells: the comma, unless another mark cuts the first records better.

    A mark fits where the header has several cells and the first records have as many.
    """
    with _opened(path) as file:
        lines = [line for line in islice(file, _SAMPLE) if line.strip()]
    counts = {}
    for mark in _SEPARATORS:
        if mark == decimal:
            continue
        try:
            records = list(csv.reader(lines, delimiter=mark, skipinitialspace=True))
        except csv.Error:
            continue
        widths = {len(record) for record in records}
        if len(widths) == 1 and widths != {1}:
            counts[mark] = widths.pop()
    if not counts or "," in counts:
        return ","
    return max(counts, key=counts.__getitem__)


def _csv(path: Path, columns: Columns, faults: Faults) -> Table:
    try:
        return _csv_table(path, columns, faults)
    except (EOFError, lzma.LZMAError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); pack it again.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not text in UTF-8 ({error.reason}); save it as CSV in UTF-8."
        ) from error


def _csv_table(path: Path, columns: Columns, faults: Faults) -> Table:
    mark = _separator(path, columns.decimal)
    with _opened(path) as file:
        reader = csv.reader(file, strict=True, skipinitialspace=True, delimiter=mark)
        try:
            return _sheet(path, _records(reader), columns, faults)
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num}: {error}; see that every quote is closed."
            ) from error


def _records(reader: Any) -> Iterator[Record]:
    """Every record that is not a blank line."""
    line = 1
    for cells in reader:
        if cells:
            yield line, cells
        line = reader.line_num + 1


def _sheet(path: Path, records: Iterator[Record], columns: Columns, faults: Faults) -> Table:
    _, first = next(records, (0, []))
    if not first:
        raise DataError(f"{path} is empty; its first line must name the columns.")
    header = [name.strip() for name in first]
    source = f"{path}, line"
    check_header(header, columns, path)
    start = list(islice(records, _LOOK))
    columns = replace(columns, text=_text_columns(start, header, columns))
    records = chain(start, records)
    rows = 0
    tables = [_piece(source, [], header, columns, faults)]
    while chunk := list(islice(records, _CHUNK)):
        rows += len(chunk)
        npz.check_memory(8 * rows * len(header), path)  # a packed file may unpack to any length
        tables.append(
            _piece(
                source,
                _fitting(source, chunk, header, faults),
                header,
                columns,
                faults,
            )
        )
    return joined(tables)


def _text_columns(
    records: Sequence[Record], header: Sequence[str], columns: Columns
) -> tuple[str, ...]:
    """The features that are words: those named so, and those whose first cells mostly are."""
    rows = [cells for _, cells in records if len(cells) == len(header)]
    return _words_among(columns, header, lambda name: _cells(rows, header.index(name)))


def _words_among(
    columns: Columns, header: Sequence[str], cells: Callable[[str], Sequence[str]]
) -> tuple[str, ...]:
    """The features that are columns of words."""
    features = columns.chosen(header)
    if columns.text is not None:
        return tuple(name for name in features if name in columns.text)
    return tuple(
        name for name in features if name in columns.categorical or mostly_words(cells(name))
    )


def mostly_words(cells: Sequence[str]) -> bool:
    """Whether most of the cells that are not missing are words.

    >>> mostly_words(["red", "NA", "blue", "7"]), mostly_words(["1", "warm", "3"])
    (True, False)
    """
    present = [cell for cell in cells if not is_missing(cell)]
    return 2 * sum(map(is_word, present)) > len(present)


def _fitting(
    source: str, records: list[Record], header: Sequence[str], faults: Faults
) -> list[Record]:
    """The records with a cell for every column."""
    misfits = [(line, len(cells)) for line, cells in records if len(cells) != len(header)]
    for line, count in misfits:
        faults.add(
            source,
            line,
            f"has {count} cells where the header has {len(header)}",
        )
    if misfits:
        return [record for record in records if len(record[1]) == len(header)]
    return records


def _piece(
    source: str,
    records: Sequence[Record],
    header: Sequence[str],
    columns: Columns,
    faults: Faults,
) -> Table:
    """The table of a few records."""
    lines = [line for line, _ in records]
    rows = [cells for _, cells in records]
    features = columns.chosen(header)
    positions = [header.index(name) for name in features]
    words = {name: _cells(rows, header.index(name)) for name in columns.text or ()}
    x = _values(rows, features, header, columns)
    texts: dict[str, Any] = {
        role: _cells(rows, header.index(name)) for role, name in columns.roles(header).items()
    }
    if columns.decimal != "." and "label" in texts:
        texts["label"] = [_number_with_point(label, columns.decimal) for label in texts["label"]]
    targets = {}
    if columns.more_labels:
        for name in columns.label_columns:
            cells = _cells(rows, header.index(name))
            targets[name] = [_number_with_point(cell, columns.decimal) for cell in cells]
    table = Table(
        [source] * len(rows),
        lines,
        x,
        features=features,
        words=words,
        targets=targets,
        **{"label": [], **texts},
    )
    look(
        table,
        columns,
        lambda row, feature: rows[row][positions[feature]].strip(),
        faults,
    )
    return table


def _values(
    rows: Sequence[Sequence[str]],
    features: Sequence[str],
    header: Sequence[str],
    columns: Columns,
) -> npt.NDArray[np.float64]:
    """The numbers of the features, [rows, features]; NaN in columns of words."""
    x = np.full((len(rows), len(features)), np.nan)
    numeric = [at for at, name in enumerate(features) if name not in (columns.text or ())]
    if not numeric or not rows:
        return x
    positions = [header.index(features[at]) for at in numeric]
    cells = list(map(itemgetter(*positions), rows))
    if columns.decimal != ".":
        cells = [_with_points(row, columns.decimal) for row in cells]
    numbers = _numbers(cells).reshape(len(rows), len(positions))
    if len(numeric) == len(features):
        return numbers
    x[:, numeric] = numbers
    return x


def _number_with_point(label: str, decimal: str) -> str:
    """A label, with a decimal point if it is a number."""
    text = label.replace(decimal, ".")
    return text if is_number(text) else label


def _with_points(cells: Any, decimal: str) -> Any:
    """A cell, or a tuple of cells, with decimal points."""
    if isinstance(cells, str):
        return cells.replace(decimal, ".")
    return tuple(cell.replace(decimal, ".") for cell in cells)


def _cells(rows: Sequence[Sequence[str]], column: int) -> list[str]:
    return list(map(str.strip, map(itemgetter(column), rows)))


def _numbers(cells: Sequence[Any]) -> npt.NDArray[np.float64]:
    """The numbers in cells, or in tuples of cells; NaN where there is none."""
    try:
        if any("_" in "".join(row) for row in cells):
            raise ValueError  # numpy would read 1_000 as a thousand
        return np.array(cells, dtype=np.float64)
    except ValueError:
        return np.array(
            [number(row) if isinstance(row, str) else list(map(number, row)) for row in cells]
        )


def _parquet(path: Path, columns: Columns, faults: Faults) -> Table:
    parquet = needed("pyarrow.parquet", extra="parquet", to=f"read {path}")
    try:
        return _parquet_table(path, parquet.ParquetFile(path), columns, faults)
    except (DataError, OSError):
        raise
    except Exception as error:  # a damaged file can fail in any way
        reason = str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read as .parquet: {reason}; write it again.") from error


def _parquet_table(path: Path, file: Any, columns: Columns, faults: Faults) -> Table:
    # A run of equal values takes a few bytes, however long it is.
    npz.check_memory(8 * file.metadata.num_rows * file.metadata.num_columns, path)
    data = file.read()
    header = data.column_names
    check_header(header, columns, path)
    features = columns.chosen(header)
    words = {
        name: _texts(data.column(name).to_pylist())
        for name in _words_among(columns, header, lambda name: _parquet_cells(data.column(name)))
    }
    x = np.full((data.num_rows, len(features)), np.nan)
    for at, name in enumerate(features):
        if name not in words:
            x[:, at] = _column(data.column(name))
    texts: dict[str, Any] = {
        role: _texts(data.column(name).to_pylist()) for role, name in columns.roles(header).items()
    }
    targets = {}
    if columns.more_labels:
        for name in columns.label_columns:
            targets[name] = _texts(data.column(name).to_pylist())
    table = Table(
        [f"{path}, row"] * len(x),
        list(range(len(x))),
        x,
        features=features,
        words=words,
        targets=targets,
        **{"label": [], **texts},
    )
    look(
        table,
        columns,
        lambda row, feature: _text(data.column(features[feature])[row].as_py()),
        faults,
    )
    return table


def _parquet_cells(column: Any) -> list[str]:
    """The text of a column; nothing where it is known to hold numbers."""
    array: Array = column.to_numpy()
    return [] if array.dtype.kind in "fiub" else _texts(column.to_pylist())


def _column(column: Any) -> npt.NDArray[np.float64]:
    array: Array = column.to_numpy()
    if array.dtype.kind in "fiub":
        return array.astype(np.float64)
    return _numbers(_texts(column.to_pylist()))


def _npz(path: Path, columns: Columns, faults: Faults) -> Table:
    arrays = _arrays(path)
    if columns.more_labels and columns.labelled:
        raise DataError(
            f"label lists {len(columns.label_columns)} columns, but {path} has one array y; give a "
            ".csv or .parquet table, or arrays to covey.data.own."
        )
    columns = replace(columns, label="y")
    if "train_x" not in arrays or not columns.labelled:
        return _examples(path, f"{path}, row", arrays, columns, faults)
    tables = []
    for split in SPLITS:
        own = {
            name.removeprefix(f"{split}_"): array
            for name, array in arrays.items()
            if name.startswith(f"{split}_")
        }
        if own:
            own[columns.part] = np.full(len(own.get("x", ())), split)
            tables.append(_examples(path, f"{path}, {split} row", own, columns, faults))
    return _side_by_side(path, tables)


def _side_by_side(path: Path, tables: Sequence[Table]) -> Table:
    shapes = sorted({table.x.shape[1:] for table in tables})
    if len(shapes) > 1:
        raise DataError(
            f"{path} has examples of shapes {shapes}; give its parts the same features."
        )
    return joined(tables)


def _arrays(path: Path) -> dict[str, Array]:
    """The arrays in a file, none of Python objects: those could run code when they are read."""
    try:
        return npz.arrays(path)
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        reason = str(error) or type(error).__name__
        remedy = "Write it with numpy.savez, and text as array.astype(str)"
        raise DataError(f"{path} cannot be read as .npz: {reason}. {remedy}.") from error


def _examples(
    path: Path,
    source: str,
    arrays: Mapping[str, Array],
    columns: Columns,
    faults: Faults,
) -> Table:
    """The table of an array x of features, an array y of labels, and columns of text."""
    _check_arrays(path, arrays, columns)
    # Pixels stay bytes and float32 stays itself, for the sake of memory.
    if arrays["x"].dtype in (np.uint8, np.float32):
        x = arrays["x"]
    else:
        x = arrays["x"].astype(np.float64)
    texts: dict[str, Any] = {
        role: _texts(_decoded(arrays[name]).tolist())
        for role, name in columns.roles(list(arrays)).items()
    }
    table = Table(
        [source] * len(x),
        list(range(len(x))),
        x,
        features=(),
        **{"label": [], **texts},
    )
    look(table, columns, lambda row, position: str(x[row].flat[position]), faults)
    return table


def _check_arrays(path: Path, arrays: Mapping[str, Array], columns: Columns) -> None:
    needed = ["x", *columns.needed]
    remedy = "give x (and where rows are of several devices, device)"
    if columns.labelled:
        needed.insert(1, "y")
        remedy = _ARRAYS
    for name in needed:
        if name not in arrays:
            raise DataError(
                f"{path} has no array {name!r} among {', '.join(arrays) or 'none at all'}; "
                f"{remedy}."
            )
    x = arrays["x"]
    names = columns.roles(list(arrays)).values()
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


def _decoded(array: Array) -> Array:
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    return array


def _texts(values: Sequence[object]) -> list[str]:
    return list(map(_text, values))


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()
