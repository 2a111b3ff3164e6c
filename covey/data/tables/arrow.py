"""A data set that the Hugging Face library `datasets` has saved to disk, as shards.

Such a folder has Arrow files beside `state.json` and `dataset_info.json`, or one such folder for
each part beside `dataset_dict.json`. They are read with pyarrow; `datasets` is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.data.arrays.images import pixels_of, side_of
from covey.data.partitions.partition import SPLIT, Split
from covey.data.shards import Shards, some
from covey.data.tables import npz
from covey.data.tables.files import table_shards
from covey.data.tables.options import RELATIVE, Missing, TableOptions, is_folder
from covey.data.tables.scaling import Normalise
from covey.data.tables.table_readers import frame_rows, texts_of
from covey.data.tables.tables import Table, check_header
from covey.errors import DataError, needed, reading

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
    options = TableOptions.of(locals() | {"features": data.features(features)})
    header = data.table.column_names
    pictures = [name for name in options.features or () if name in data.images]
    if pictures:
        check_header(header, options.of_devices, folder)
        cells = data.table.column(pictures[0]).to_pylist()
        images = {
            f"{folder}, row {row}": (cell or {}).get("bytes") or b""
            for row, cell in enumerate(cells)
        }
        x = pixels_of(images, folder, side_of(size), grey)
        table = Table.read(
            f"{folder}, row", range(len(x)), x, header, options, lambda name: texts_of(data[name])
        )
    else:
        table = frame_rows(data, header, options.of_devices, folder)
    if classes is None and not regression and not options.several:
        classes = data.names.get(options.labels[0])
    usual: Normalise = "unit" if pictures else "standard"
    options = replace(options, classes=classes, normalise=normalise or usual)
    return table_shards(table, options, folder, name=folder.resolve().name)


@dataclass(frozen=True, eq=False)
class _Data:
    """The rows of all parts; they can be read as a frame."""

    table: Any  # of pyarrow
    names: dict[str, list[str]]  # of the classes, by column
    images: tuple[str, ...]  # the columns of images

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The values of a column; classes by name."""
        kind = str(self.table.schema.field(name).type)
        if kind.startswith(("list", "large_list", "fixed_size_list", "struct", "extension")):
            raise DataError(
                f"column {name!r} holds {kind:.60}; "
                "numbers, text and images are read, so leave it out, as in "
                f"exclude = [{name!r}], or make columns of it."
            )
        values: npt.NDArray[Any] = self.table.column(name).to_numpy()
        if name not in self.names:
            return values
        # -1 and gaps, which mean no class, stay without a name.
        known = dict(enumerate(self.names[name]))
        return np.array([known.get(code) for code in values.tolist()], dtype=object)

    def features(self, chosen: Sequence[str] | None) -> Sequence[str] | None:
        """The columns of features: those listed, or the images; None for all columns."""
        if chosen is None:
            if len(self.images) > 1:
                raise DataError(
                    f"there are images in the columns {some(self.images)}; "
                    f"list one of them, as in features = [{self.images[0]!r}]."
                )
            return self.images or None
        pictures = [name for name in chosen if name in self.images]
        if pictures and len(chosen) > 1:
            raise DataError(
                f"features = {list(chosen)} has images and other columns; "
                f"list images alone, as in features = [{pictures[0]!r}], or none."
            )
        return chosen


def _read(folder: Path, part: str) -> _Data:
    """The rows of a folder, or of all its parts, which a column then names."""
    if not is_folder(folder):
        raise DataError(f"there is no folder {folder}; {RELATIVE}.")
    if (folder / "dataset_dict.json").is_file():
        names = _json(folder / "dataset_dict.json").get("splits", [])
        odd = [name for name in names if name not in _PARTS]
        if odd or not names:
            raise DataError(
                f"{folder} has the parts {some(names)}; covey knows {', '.join(_PARTS)}, "
                f"so give one of them alone, as in path = {str(folder / (odd or ['all'])[0])!r}."
            )
        folders = [folder / name for name in names]
    elif (folder / "state.json").is_file():
        names = []
        folders = [folder]
    else:
        raise DataError(
            f"{folder} has neither state.json nor dataset_dict.json; "
            "give a folder that save_to_disk of Hugging Face's datasets has written."
        )
    pyarrow = needed("pyarrow", extra="parquet", to=f"read {folder}")
    tables = []
    for below in folders:
        table = _table(below, pyarrow)
        if names:
            table = table.append_column(part, [[_PARTS[below.name]] * len(table)])
        tables.append(table)
        if table.schema.names != tables[0].schema.names:
            raise DataError(
                f"{folders[0]} has the columns {some(tables[0].column_names)}, "
                f"{below} {some(table.column_names)}; give all parts the same."
            )
    kinds = _json(folders[0] / "dataset_info.json").get("features") or {}
    types = {name: kind.get("_type") for name, kind in kinds.items() if isinstance(kind, dict)}
    classes = {name: kinds[name]["names"] for name in types if types[name] == "ClassLabel"}
    images = tuple(name for name in types if types[name] == "Image")
    with reading(folder, "save the data set again"):
        return _Data(pyarrow.concat_tables(tables), classes, images)


def _json(path: Path) -> dict[str, Any]:
    with reading(path, "save the data set again"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError("it holds no object")
    return content


def _table(folder: Path, pyarrow: Any) -> Any:
    """The rows of the Arrow files of one part."""
    tables = []
    with reading(folder / "state.json", "save the data set again"):
        names = [file["filename"] for file in _json(folder / "state.json")["_data_files"]]
    for path in [folder / Path(name).name for name in names]:
        with reading(path, "save the data set again"), path.open("rb") as file:
            npz.check_memory(path.stat().st_size, path, "give fewer rows")
            tables.append(pyarrow.ipc.open_stream(file).read_all())
    if not tables:
        raise DataError(f"{folder} names no file of rows; save the data set again.")
    return pyarrow.concat_tables(tables)
