"""One file of rows as a table: `.csv`, `.parquet` or `.npz`.

A row of a `.csv` file is known by the line it starts at (the header is line 1), of the others by
its number from 0.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

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
    joined,
    look,
    number,
)
from covey.errors import DataError

SUFFIXES = (".csv", ".parquet", ".npz")
ENDINGS = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"

Array = npt.NDArray[Any]
Record = tuple[int, list[str]]  # the line it starts at, its cells

_CHUNK = 256  # rows of a .csv that are converted together: more of them leave the processor's cache
_ARRAYS = (
    "give x and y (and in a table of several devices, device), "
    "or train_x, train_y, test_x and test_y"
)


def read(path: Path, columns: Columns, faults: Faults) -> Table:
    """The rows of a file; those that cannot be used go to the faults."""
    readers = {".csv": _csv, ".parquet": _parquet, ".npz": _npz}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise DataError(f"{path} is no {ENDINGS} file; give one, or a folder of them.")
    before = len(faults.reasons)
    try:
        table = readers[suffix](path, columns, faults)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not len(table) and len(faults.reasons) == before:
        raise DataError(f"{path} has no rows; add some or leave it out.")
    return table


def _csv(path: Path, columns: Columns, faults: Faults) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True, skipinitialspace=True)
        try:
            return _sheet(path, _records(reader), columns, faults)
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num}: {error}; see that every quote is closed."
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not text in UTF-8 ({error.reason}); save it as CSV in UTF-8."
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
    tables = [_piece(source, [], header, columns, faults)]
    while chunk := list(islice(records, _CHUNK)):
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
    x = _numbers(list(map(itemgetter(*positions), rows))).reshape(len(rows), len(positions))
    texts = {role: _cells(rows, header.index(name)) for role, name in columns.roles(header).items()}
    table = Table(
        [source] * len(rows),
        lines,
        x,
        features=features,
        **{"label": [], **texts},
    )
    look(
        table,
        columns,
        lambda row, feature: rows[row][positions[feature]].strip(),
        faults,
    )
    return table


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
    x = np.stack([_column(data.column(name)) for name in features], axis=1)
    texts = {
        role: _texts(data.column(name).to_pylist()) for role, name in columns.roles(header).items()
    }
    table = Table(
        [f"{path}, row"] * len(x),
        list(range(len(x))),
        x,
        features=features,
        **{"label": [], **texts},
    )
    look(
        table,
        columns,
        lambda row, feature: _text(data.column(features[feature])[row].as_py()),
        faults,
    )
    return table


def _column(column: Any) -> npt.NDArray[np.float64]:
    array: Array = column.to_numpy()
    if array.dtype.kind in "fiub":
        return array.astype(np.float64)
    return _numbers(_texts(column.to_pylist()))


def _npz(path: Path, columns: Columns, faults: Faults) -> Table:
    arrays = _arrays(path)
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
    texts = {
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
