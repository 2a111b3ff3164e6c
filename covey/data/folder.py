"""A folder with one file per device, read as one table.

Files lie in subfolders named after edges if there are edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from covey.data.shards import some
from covey.data.table_readers import ENDINGS, form_of, read, stem
from covey.data.tables import Columns, Faults, Table, check_named, joined
from covey.errors import DataError


def folder_table(folder: Path, columns: Columns, faults: Faults) -> Table:
    """The table of all files under a folder, one per device."""
    if columns.part != Columns.part:
        columns = replace(columns, needed=(columns.part,))
    tables: dict[Path, Table] = {}
    for path, table in _read_all(_paths(folder), columns, faults).items():
        edge = None if path.parent == folder else path.parent.name
        check_named(table, columns, path)
        check_alone(table, columns, path)
        table = table.under(device=stem(path), edge=edge)
        tables[path] = _aligned(table, path, *next(iter(tables.items()), (path, table)))
    _check_alike(tables, columns)
    return joined(list(tables.values()))


def _read_all(paths: Sequence[Path], columns: Columns, faults: Faults) -> dict[Path, Table]:
    """The table of every file.

    Where files disagree whether a column has words or numbers, most of all its cells decide.
    """
    found = {path: Faults() for path in paths}
    tables = {path: read(path, columns, found[path]) for path in paths}
    disputed = _disputed(list(tables.values()))
    for path, table in tables.items():
        text = {*table.words} - disputed.keys() | {name for name in disputed if disputed[name]}
        if text != table.words.keys():
            found[path] = Faults()
            tables[path] = read(path, replace(columns, text=tuple(text)), found[path])
        for (source, position), why in found[path].reasons.items():
            faults.add(source, position, why)
        faults.hints.update(found[path].hints)
    return tables


def _disputed(tables: Sequence[Table]) -> dict[str, bool]:
    """The columns that have words in some tables only, and whether most of their cells are words.

    A column without any value in a file has neither there.
    """
    disputed = {}
    for name in dict.fromkeys(name for table in tables for name in table.words):
        words = sum(len(table.words.get(name, ())) for table in tables)
        others = [table for table in tables if name in table.features and name not in table.words]
        numbers = sum(len(table) for table in others)
        values = sum(
            int(np.isfinite(table.x[:, table.features.index(name)]).sum()) for table in others
        )
        if numbers:
            disputed[name] = words > values
    return disputed


def _is_table(path: Path, folder: Path) -> bool:
    """Whether a path below a folder is a file of rows, and not hidden."""
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return form_of(path) is not None and path.is_file() and not hidden


def _paths(folder: Path) -> list[Path]:
    """The devices' files under a folder, all in it or all one level below it."""
    paths = [
        path.relative_to(folder) for path in sorted(folder.rglob("*")) if _is_table(path, folder)
    ]
    if not paths:
        raise DataError(
            f"there is no {ENDINGS} file in the folder {folder}; put one there for each device."
        )
    first = paths[0]
    for path in paths:
        if len(path.parts) > 2:
            raise DataError(
                f"{path} lies too deep in {folder}; "
                "a device's file lies in the folder or in its edge's subfolder."
            )
        if len(path.parts) != len(first.parts):
            raise DataError(
                f"{folder} has devices with an edge and without, such as {first} and {path}; "
                "give every device a subfolder."
            )
    _check_twice(paths, folder)
    return [folder / path for path in paths]


def _check_twice(paths: Sequence[Path], folder: Path) -> None:
    by_name: dict[str, Path] = {}
    for path in paths:
        name = stem(path)
        if name in by_name:
            raise DataError(
                f"{by_name[name]} and {path} in {folder} are both called {name!r}; "
                "rename one of the devices."
            )
        by_name[name] = path


def check_alone(table: Table, columns: Columns, path: Path) -> None:
    """That a device's file does not speak of several devices or edges."""
    for name, cells in (
        (columns.device, table.device),
        (columns.edge, table.edge),
    ):
        values = sorted(set(cells or ()))
        if len(values) > 1:
            raise DataError(
                f"{path} should hold one device, "
                f"but its column {name!r} has {len(values)} values ({some(values)}); "
                "give a table of several devices as the path itself, or split it into files."
            )


def _aligned(table: Table, path: Path, first: Path, like: Table) -> Table:
    """The same table with its columns in the order of another."""
    lacks = [name for name in like.features if name not in table.features]
    extra = [name for name in table.features if name not in like.features]
    if lacks or extra:
        told = [f"lacks {some(lacks)}"] * bool(lacks) + [f"has {some(extra)} besides"] * bool(extra)
        raise DataError(
            f"compared with {first}, {path} {' and '.join(told)}; give all files the same features."
        )
    if table.x.shape[1:] != like.x.shape[1:]:
        shapes = f"{like.x.shape[1:]} in {first} and {table.x.shape[1:]} in {path}"
        raise DataError(f"examples have shape {shapes}; give all files the same features.")
    order = [table.features.index(name) for name in like.features]
    if table.features != like.features:
        return replace(table, x=table.x[:, order], features=like.features)
    return table


def _check_alike(tables: dict[Path, Table], columns: Columns) -> None:
    """That all files say which rows train and which test, or none."""
    having = [path for path, table in tables.items() if table.part is not None]
    lacking = [path for path, table in tables.items() if table.part is None]
    if having and lacking:
        raise DataError(
            f"{having[0]} is split into parts (column {columns.part!r}) and {lacking[0]} is not; "
            "split all or none."
        )
