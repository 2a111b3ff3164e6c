"""A user's own texts, one per device, to predict the next character.

They are `.txt` files in a folder, or a column of a table.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from covey.data.arrays.windows import Windows, token_names
from covey.data.partitions import partition
from covey.data.partitions.partition import SPLIT, Split
from covey.data.shards import Shards, some
from covey.data.tables.options import files_below
from covey.errors import DataError, reading

_SUFFIX = ".txt"


class _Speaker(NamedTuple):
    """One device's text, and the edge that it stands under."""

    device: str
    edge: str
    text: str


def text(
    path: str,
    *,
    length: int = 64,
    column: str = "text",
    device: str = "device",
    edge: str = "edge",
    split: Split = SPLIT,
    seed: int = 0,
) -> Shards:
    """Shards of the user's texts in UTF-8, to predict the next character.

    The path is a folder with one `.txt` file per device, in subfolders named after edges if there
    are edges. Or it is a `.csv` table with a column of texts and one of devices, and perhaps one
    of edges; the texts of a device follow one another, each in a line of its own.

    Texts are cut into sequences of `length` characters. The tokens are the characters that somebody
    trains on; any other character is token 0.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "ada.txt").write_text("to be or not to be", encoding="utf-8")
    ...     _ = Path(folder, "bob.txt").write_text("not so", encoding="utf-8")
    ...     shards = text(folder, length=4, split=(1, 0, 0))
    >>> shards.names.devices, "".join(shards.names.tokens[1:]), tuple(shards.x.shape)
    (('ada', 'bob'), ' benorst', (7, 4))
    """
    where = Path(path).expanduser()
    if where.is_dir():
        speakers = _folder(where)
    elif where.suffix.lower() == ".csv" and where.exists():
        speakers = _table(where, column, device, edge)
    else:
        raise DataError(
            f"there is no folder of {_SUFFIX} files and no .csv table {where}; give one of them."
        )
    speakers.sort(key=lambda speaker: speaker.edge)  # devices of an edge are consecutive
    edges = Counter(speaker.edge for speaker in speakers)
    if set(edges) == {""}:
        edges.clear()
    windows = Windows.of([speaker.text for speaker in speakers], length)
    parts = partition.split(windows.pieces, split=split, seed=seed)
    tokens = token_names(windows.vocabulary(parts[0].index))
    devices = [speaker.device for speaker in speakers]
    return windows.shards(tokens, parts, where.resolve().name, devices, edges)


def device_text(
    path: Path,
    *,
    tokens: tuple[str, ...],
    length: int,
    split: Split = SPLIT,
    seed: int = 0,
) -> Shards:
    """The shards of one new device, from its text, with the tokens of the run."""
    windows = Windows.of([_read(path)], length)
    parts = partition.split(windows.pieces, split=split, seed=seed)
    return windows.shards(tokens, parts, path.stem, [path.stem])


def _folder(folder: Path) -> list[_Speaker]:
    """The texts under a folder, all in it or all one level below it."""
    paths = [path for path in files_below(folder) if path.suffix == _SUFFIX]
    if not paths:
        raise DataError(f"there is no {_SUFFIX} file in {folder}; put one there for each device.")
    if {len(path.parts) for path in paths} not in ({1}, {2}):
        raise DataError(
            f"the {_SUFFIX} files of {folder} do not lie all in it or all in subfolders of it; "
            "give every device a subfolder named after its edge, or none."
        )
    names = Counter(path.stem for path in paths)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise DataError(f"{folder} has several files called {some(twice)}; rename the devices.")
    return [_Speaker(path.stem, path.parent.name, _read(folder / path)) for path in paths]


def _read(path: Path) -> str:
    with reading(path, "save it in UTF-8"):
        return path.read_text(encoding="utf-8-sig")


def _table(path: Path, column: str, device: str, edge: str) -> list[_Speaker]:
    """The texts of a table, by device."""
    lines: dict[str, list[str]] = {}
    edges: dict[str, str] = {}
    fix = "save it as CSV in UTF-8"
    with reading(path, fix), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        header = reader.fieldnames or []
        for wanted in (column, device):
            if wanted not in header:
                raise DataError(f"{path} has no column {wanted!r}; it has {some(list(header))}.")
        for row in reader:
            name = row[device]
            lines.setdefault(name, []).append(row[column] or "")
            under = row.get(edge) or ""
            if edges.setdefault(name, under) != under:
                raise DataError(
                    f"{path}, line {reader.line_num}: device {name!r} is under edge {under!r}, "
                    f"but under {edges[name]!r} before; give each device one edge."
                )
    if not lines:
        raise DataError(f"{path} has no rows; add some.")
    return [_Speaker(name, edges[name], "\n".join(texts)) for name, texts in lines.items()]
