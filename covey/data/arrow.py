"""A data set that the Hugging Face library `datasets` has saved to disk, as shards.

Such a folder has Arrow files beside `state.json` and `dataset_info.json`, or one such folder for
each part beside `dataset_dict.json`. They are read with pyarrow; `datasets` is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.data import npz
from covey.data.extras import needed
from covey.data.files import (
    check_nobody,
    check_options,
    dealing,
    is_folder,
    table_columns,
    table_shards,
)
from covey.data.formats import named
from covey.data.frames import frame_table, texts_of
from covey.data.images import pixels_of, side_of
from covey.data.partition import SPLIT, Split
from covey.data.scaling import Normalise
from covey.data.shards import Shards, some
from covey.data.tables import Columns, Faults, Missing, Table, check_header, look
from covey.errors import DataError

_PARTS = {"train": "train", "validation": "validation", "val": "validation", "valid": "validation"}
_PARTS |= {"dev": "validation", "test": "test"}


def arrow(
    path: str,
    *,
    label: str | Sequence[str] = "label",
    device: str = "device",
    edge: str = "edge",
    part: str = "split",
    features: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    regression: bool = False,
    size: int | Sequence[int] | None = None,
    grey: bool = False,
    normalise: Normalise | None = None,
    missing: Missing = "error",
    categorical: Sequence[str] = (),
    exclude: Sequence[str] = (),
    partition: str | None = None,
    devices: int | None = None,
    labels: int | None = None,
    alpha: float | None = None,
    split: Split = SPLIT,
    seed: int = 0,
) -> Shards:
    """Shards of a folder that `save_to_disk` of Hugging Face's datasets has written.

    Its columns are those of a table, with the arguments of `files`. If there is a column of images,
    it alone is x unless `features` lists others; `size` and `grey` are those of `images`. Classes
    that the data set names keep their order. In a folder of several parts, these are the parts, and
    `part` is what their column is called. `normalise` is "unit" for images, else "standard".
    """
    folder = Path(path).expanduser()
    data = _read(folder, part)
    columns = Columns.of_labels(
        label,
        device,
        edge,
        part,
        data.features(features),
        exclude=tuple(exclude),
        categorical=tuple(categorical),
        missing=missing,
    )
    check_options(columns, classes, regression=regression)
    deal = dealing(partition, devices=devices, labels=labels, alpha=alpha)
    needed_columns = table_columns(columns, dealt=bool(deal))
    faults = Faults()
    pictures = data.is_image(columns)
    if pictures:
        check_header(data.columns, needed_columns, folder)
        table = _images_table(data, columns, folder, size=size, grey=grey)
        look(table, columns, _no_cell, faults)
    else:
        table = frame_table(data, needed_columns, faults, folder)
    if deal:
        check_nobody(table, columns, folder)
    if classes is None and not regression and not columns.more_labels:
        classes = data.names.get(columns.label)
    return table_shards(
        table,
        columns,
        faults,
        name=folder.resolve().name,
        deal=deal,
        classes=classes,
        regression=regression,
        normalise=normalise or ("unit" if pictures else "standard"),
        split=split,
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class _Column:
    """A column as a frame has it."""

    values: npt.NDArray[Any]

    def to_numpy(self) -> npt.NDArray[Any]:
        """The values; classes by name."""
        return self.values


@dataclass(frozen=True, eq=False)
class _Data:
    """The columns of all parts; it can be read as a frame."""

    tables: Sequence[Any]  # of pyarrow, one for each part
    parts: Sequence[str]  # their names, empty where there is one without
    part: str  # what the column of parts is called
    names: dict[str, list[str]]  # of the classes, by column
    images: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        own = list(self.tables[0].column_names)
        return [*own, self.part] if self.parts else own

    def __len__(self) -> int:
        return sum(table.num_rows for table in self.tables)

    def __getitem__(self, name: str) -> _Column:
        if self.parts and name == self.part:
            sizes = [table.num_rows for table in self.tables]
            return _Column(np.repeat(np.array(self.parts), sizes))
        kind = str(self.tables[0].schema.field(name).type)
        if kind.startswith(("list", "large_list", "fixed_size_list", "struct", "extension")):
            raise DataError(
                f"column {name!r} holds {kind:.60}; "
                "numbers, text and images are read, so leave it out, as in "
                f"exclude = [{name!r}], or make columns of it."
            )
        values = np.concatenate([table.column(name).to_numpy() for table in self.tables])
        if name in self.names:
            values = _class_names(values, self.names[name])
        return _Column(values)

    def features(self, chosen: Sequence[str] | None) -> tuple[str, ...] | None:
        """The columns of features: those listed, or the images; None for all columns."""
        if chosen is not None:
            return tuple(chosen)
        if len(self.images) > 1:
            raise DataError(
                f"there are images in the columns {some(self.images)}; "
                f"list one of them, as in features = [{self.images[0]!r}]."
            )
        return self.images or None

    def is_image(self, columns: Columns) -> bool:
        """Whether x is a column of images."""
        chosen = [name for name in columns.features or () if name in self.images]
        if chosen and len(columns.features or ()) > 1:
            raise DataError(
                f"features = {list(columns.features or ())} has images and other columns; "
                f"list images alone, as in features = [{chosen[0]!r}], or none."
            )
        return bool(chosen)


def _class_names(codes: npt.NDArray[Any], names: Sequence[str]) -> npt.NDArray[Any]:
    """The names of classes by number; -1 and gaps, which mean no class, stay without one."""
    known = [*names, None]
    return np.array(
        [known[int(code)] if 0 <= code < len(names) else None for code in codes], dtype=object
    )


def _read(folder: Path, part: str) -> _Data:
    if not is_folder(folder):
        start = "the file's own folder if an experiment file names them, else at the current folder"
        raise DataError(f"there is no folder {folder}; relative paths start at {start}.")
    if (folder / "dataset_dict.json").is_file():
        found = _json(folder / "dataset_dict.json").get("splits", [])
        odd = [name for name in found if name not in _PARTS]
        if odd or not found:
            raise DataError(
                f"{folder} has the parts {some(found)}; covey knows {', '.join(_PARTS)}, "
                f"so give one of them alone, as in path = {str(folder / (odd or ['all'])[0])!r}."
            )
        parts = [_PARTS[name] for name in found]
        folders = [folder / name for name in found]
    elif (folder / "state.json").is_file():
        parts = []
        folders = [folder]
    else:
        raise DataError(
            f"{folder} has neither state.json nor dataset_dict.json; "
            "give a folder that save_to_disk of Hugging Face's datasets has written."
        )
    tables = [_table(below) for below in folders]
    _check_alike(tables, folders)
    kinds = _json(folders[0] / "dataset_info.json").get("features") or {}
    names = {name: kind["names"] for name, kind in kinds.items() if _type(kind) == "ClassLabel"}
    images = tuple(name for name, kind in kinds.items() if _type(kind) == "Image")
    return _Data(tables, parts, part, names, images)


def _type(kind: Any) -> str:
    return str(kind.get("_type")) if isinstance(kind, dict) else "list"


def _json(path: Path) -> dict[str, Any]:
    with named(path, "save the data set again"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError("it holds no object")
    return content


def _table(folder: Path) -> Any:
    """The rows of the Arrow files of one part."""
    pyarrow = needed("pyarrow", extra="parquet", to=f"read {folder}")
    tables = []
    state = folder / "state.json"
    with named(state, "save the data set again"):
        files = [folder / Path(file["filename"]).name for file in _json(state)["_data_files"]]
    for path in files:
        with named(path, "save the data set again"):
            npz.check_memory(path.stat().st_size, path)
            with path.open("rb") as file:
                tables.append(pyarrow.ipc.open_stream(file).read_all())
    if not tables:
        raise DataError(f"{folder} names no file of rows; save the data set again.")
    return pyarrow.concat_tables(tables)


def _check_alike(tables: Sequence[Any], folders: Sequence[Path]) -> None:
    for table, folder in zip(tables, folders, strict=True):
        if table.schema.names != tables[0].schema.names:
            raise DataError(
                f"{folders[0]} has the columns {some(tables[0].column_names)}, "
                f"{folder} {some(table.column_names)}; give all parts the same."
            )


def _no_cell(row: int, feature: int) -> str:
    """The text of a number that cannot be used, which images of bytes have not."""
    return ""


def _images_table(
    data: _Data,
    columns: Columns,
    folder: Path,
    *,
    size: int | Sequence[int] | None,
    grey: bool,
) -> Table:
    """The table of a column of images."""
    (name,) = columns.features or ()
    cells = [cell for table in data.tables for cell in table.column(name).to_pylist()]
    files = {
        f"{folder}, row {row}": (cell or {}).get("bytes") or b"" for row, cell in enumerate(cells)
    }
    x = pixels_of(files, folder, size=side_of(size), grey=grey)
    roles = columns.roles(data.columns)
    texts: dict[str, Any] = {role: texts_of(data[name].to_numpy()) for role, name in roles.items()}
    targets = {}
    if columns.more_labels:
        targets = {name: texts_of(data[name].to_numpy()) for name in columns.label_columns}
    return Table(
        [f"{folder}, row"] * len(x),
        list(range(len(x))),
        x,
        targets=targets,
        **{"label": [], **texts},
    )
