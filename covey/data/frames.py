"""A pandas or polars DataFrame as shards, by the rules for tables in files.

Neither library is imported: a frame has `columns`, and a column has `to_numpy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.data.files import check_nobody, check_options, dealing, table_columns, table_shards
from covey.data.partition import SPLIT, Split
from covey.data.scaling import Normalise
from covey.data.shards import Shards
from covey.data.table_readers import mostly_words
from covey.data.tables import Columns, Faults, Missing, Table, check_header, look, number
from covey.errors import DataError, shown

_HERE = Path("the frame")


def frame(
    df: Any,
    *,
    label: str | Sequence[str] = "label",
    device: str = "device",
    edge: str = "edge",
    part: str = "split",
    features: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    regression: bool = False,
    normalise: Normalise = "standard",
    missing: Missing = "error",
    categorical: Sequence[str] = (),
    exclude: Sequence[str] = (),
    partition: str | None = None,
    devices: int | None = None,
    labels: int | None = None,
    alpha: float | None = None,
    split: Split = SPLIT,
    seed: int = 0,
    name: str = "frame",
) -> Shards:
    """Shards of the rows of a pandas or polars DataFrame.

    `label`, `device`, `edge` and `part` name columns; edge and part may be missing. All arguments
    mean what they mean for `files`, which gives the same shards for the same table. The index of a
    pandas frame is not a column. Labels and names that are integers beside gaps, which pandas keeps
    as floats, count as integers. Messages number the rows from 0.
    """
    columns = Columns.of_labels(
        label,
        device,
        edge,
        part,
        None if features is None else tuple(features),
        exclude=tuple(exclude),
        categorical=tuple(categorical),
        missing=missing,
    )
    faults = Faults()
    check_options(columns, classes, regression=regression)
    deal = dealing(partition, devices=devices, labels=labels, alpha=alpha)
    table = frame_table(df, table_columns(columns, dealt=bool(deal)), faults, _HERE)
    if deal:
        check_nobody(table, columns, _HERE)
    return table_shards(
        table,
        columns,
        faults,
        name=name,
        deal=deal,
        classes=classes,
        regression=regression,
        normalise=normalise,
        split=split,
        seed=seed,
    )


def frame_table(df: Any, columns: Columns, faults: Faults, where: Path) -> Table:
    """The table of a frame; messages say that its rows are at `where`."""
    header = _header(df)
    check_header(header, columns, where)
    if not len(df):
        raise DataError(f"{where} has no rows; add some.")
    features = columns.chosen(header)
    cells = {feature: _cells(df[feature]) for feature in features}
    words = {
        feature: texts_of(df[feature].to_numpy())
        for feature, values in cells.items()
        if feature in columns.categorical or (isinstance(values, list) and mostly_words(values))
    }
    x = np.full((len(df), len(features)), np.nan)
    for at, feature in enumerate(features):
        if feature not in words:
            x[:, at] = _numbers(cells[feature])
    texts: dict[str, Any] = {
        role: texts_of(df[name].to_numpy()) for role, name in columns.roles(header).items()
    }
    targets = {}
    if columns.more_labels:
        targets = {name: texts_of(df[name].to_numpy()) for name in columns.label_columns}
    table = Table(
        [f"{where}, row"] * len(x),
        list(range(len(x))),
        x,
        features=features,
        words=words,
        targets=targets,
        **{"label": [], **texts},
    )
    look(table, columns, lambda row, at: _text(df[features[at]].to_numpy()[row]), faults)
    return table


def _header(df: Any) -> list[str]:
    if not hasattr(df, "columns") or not hasattr(df, "__getitem__"):
        raise DataError(
            f"df is a {type(df).__name__}; give a DataFrame of pandas or polars "
            "(of a lazy one, what collect() makes of it), or arrays to covey.data.own."
        )
    header = list(df.columns)
    odd = [name for name in header if not isinstance(name, str)]
    if odd:
        raise DataError(
            f"the frame has a column called {shown(odd[0])}; "
            "give its columns names of text, as in df.columns = df.columns.map(str)."
        )
    return header


def _cells(column: Any) -> npt.NDArray[np.float64] | list[str]:
    """A column of numbers as floats, any other as text."""
    array = column.to_numpy()
    if array.dtype.kind in "fiub":
        numbers: npt.NDArray[np.float64] = array.astype(np.float64)
        return numbers
    return texts_of(array)


def _numbers(cells: npt.NDArray[np.float64] | list[str]) -> npt.NDArray[np.float64]:
    if not isinstance(cells, list):
        return cells
    return np.array([number(_digit(cell)) for cell in cells])


def _digit(cell: str) -> str:
    """True and False beside gaps, which a frame keeps as Python objects, as 1 and 0."""
    return {"True": "1", "False": "0"}.get(cell, cell)


def texts_of(array: npt.NDArray[Any]) -> list[str]:
    """The text of every value of a column, nothing where there is none.

    >>> texts_of(np.array([1.0, np.nan])), texts_of(np.array([1.0, 2.5]))
    (['1', ''], ['1.0', '2.5'])
    """
    if array.dtype.kind == "M":  # tolist would make whole numbers of nanoseconds
        array = array.astype(str)
    if array.dtype.kind == "f" and _are_integers_with_gaps(array):
        return ["" if np.isnan(value) else str(int(value)) for value in array]
    return [_text(value) for value in array.tolist()]


def _are_integers_with_gaps(array: npt.NDArray[Any]) -> bool:
    """Whether floats are what a library makes of integers beside gaps."""
    gaps = np.isnan(array)
    values = array[~gaps]
    return bool(gaps.any() and (np.abs(values) < 2**53).all() and (values == np.rint(values)).all())


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()
