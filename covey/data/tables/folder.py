"""A folder with one file per device, read as one table.

Files lie in subfolders named after edges if there are edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from covey.data.shards import some
from covey.data.tables.options import TableOptions, files_below
from covey.data.tables.table_readers import ENDINGS, form_of, read, stem
from covey.data.tables.tables import Table, joined
from covey.errors import DataError


def folder_table(folder: Path, options: TableOptions) -> Table:
    """The table of all files under a folder, one per device."""
    if options.renamed("part"):
        options = replace(options, needed=[options.part])
    tables: list[Table] = []
    paths = _paths(folder)
    for path, table in zip(paths, _read_all(paths, options), strict=True):
        check_alone(table, options, path)
        edge = None if path.parent == folder else [path.parent.name] * len(table)
        table = replace(table, device=[stem(path)] * len(table), edge=edge)
        tables.append(_aligned(table, path, paths[0], tables[0] if tables else table))
    split = [table.part is not None for table in tables]
    if any(split) and not all(split):
        raise DataError(
            f"{paths[split.index(True)]} is split into parts (column {options.part!r}) and "
            f"{paths[split.index(False)]} is not; split all or none."
        )
    return joined(tables)


def check_alone(table: Table, options: TableOptions, path: Path) -> None:
    """That a device's file does not speak of several devices or edges."""
    for name, cells in ((options.device, table.device), (options.edge, table.edge)):
        values = sorted(set(cells or ()))
        if len(values) > 1:
            raise DataError(
                f"{path} should hold one device, "
                f"but its column {name!r} has {len(values)} values ({some(values)}); "
                "give a table of several devices as the path itself, or split it into files."
            )


def _read_all(paths: Sequence[Path], options: TableOptions) -> list[Table]:
    """The table of every file.

    Where files disagree whether a column has words or numbers, most of all its cells decide. A
    column without any value in a file has neither there.
    """
    tables = [read(path, options) for path in paths]
    text = set()
    for name in {name for table in tables for name in table.words}:
        words = sum(len(table.words.get(name, ())) for table in tables)
        others = [table for table in tables if name in table.features and name not in table.words]
        values = sum(int(np.isfinite(table.column(name)).sum()) for table in others)
        if words > values or not any(map(len, others)):
            text.add(name)
    for number, (path, table) in enumerate(zip(paths, tables, strict=True)):
        own = text & {*table.features}
        if own != table.words.keys():
            tables[number] = read(path, replace(options, text=tuple(own)))
    return tables


def _paths(folder: Path) -> list[Path]:
    """The devices' files under a folder, all in it or all one level below it."""
    paths = [path for path in files_below(folder) if form_of(path) is not None]
    if not paths:
        raise DataError(
            f"there is no {ENDINGS} file in the folder {folder}; put one there for each device."
        )
    by_name: dict[str, Path] = {}
    for path in paths:
        if len(path.parts) > 2:
            raise DataError(
                f"{path} lies too deep in {folder}; "
                "a device's file lies in the folder or in its edge's subfolder."
            )
        if len(path.parts) != len(paths[0].parts):
            raise DataError(
                f"{folder} has devices with an edge and without, such as {paths[0]} and {path}; "
                "give every device a subfolder."
            )
        other = by_name.setdefault(stem(path), path)
        if other is not path:
            raise DataError(
                f"{other} and {path} in {folder} are both called {stem(path)!r}; "
                "rename one of the devices."
            )
    return [folder / path for path in paths]


def _aligned(table: Table, path: Path, first: Path, like: Table) -> Table:
    """The same table with its columns in the order of another."""
    lacks = [name for name in like.features if name not in table.features]
    extra = [name for name in table.features if name not in like.features]
    if lacks or extra:
        told = [f"lacks {some(lacks)}"] if lacks else []
        told += [f"has {some(extra)} besides"] if extra else []
        raise DataError(
            f"compared with {first}, {path} {' and '.join(told)}; give all files the same features."
        )
    if table.x.shape[1:] != like.x.shape[1:]:
        shapes = f"{like.x.shape[1:]} in {first} and {table.x.shape[1:]} in {path}"
        raise DataError(f"examples have shape {shapes}; give all files the same features.")
    if table.features == like.features:
        return table
    order = [table.features.index(name) for name in like.features]
    return replace(table, x=table.x[:, order], features=like.features)
