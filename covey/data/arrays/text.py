"""A user's own texts, one per device, to predict the next character.

They are `.txt` files in a folder, or a column of a table.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from covey.data.arrays.windows import Windows, token_names
from covey.data.partitions import partition
from covey.data.partitions.partition import SPLIT, Split
from covey.data.shards import Names, Shards, some
from covey.errors import DataError

_SUFFIX = ".txt"


@dataclass(frozen=True)
class _Speaker:
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
    windows = Windows.of([speaker.text for speaker in speakers], length)
    parts = partition.split(windows.pieces, split=split, seed=seed)
    tokens = token_names(windows.vocabulary(parts[0].index))
    x, y = windows.encoded(tokens)
    edges = _edges(speakers)
    devices = tuple(speaker.device for speaker in speakers)
    return Shards(
        x,
        y,
        *parts,
        classes=len(tokens),
        name=where.resolve().name,
        edges=tuple(edges.values()),
        names=Names(devices, tuple(edges), tokens, tokens=tokens),
        tokens=len(tokens),
    )


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
    x, y = windows.encoded(tokens)
    return Shards(
        x,
        y,
        *parts,
        classes=len(tokens),
        name=path.stem,
        names=Names((path.stem,), classes=tokens, tokens=tokens),
        tokens=len(tokens),
    )


def _folder(folder: Path) -> list[_Speaker]:
    """The texts under a folder, all in it or all one level below it."""
    listed = sorted(folder.rglob(f"*{_SUFFIX}"))
    paths = [path for path in listed if path.is_file() and not path.name.startswith(".")]
    if not paths:
        raise DataError(f"there is no {_SUFFIX} file in {folder}; put one there for each device.")
    depths = {len(path.relative_to(folder).parts) for path in paths}
    if depths not in ({1}, {2}):
        raise DataError(
            f"the {_SUFFIX} files of {folder} do not lie all in it or all in subfolders of it; "
            "give every device a subfolder named after its edge, or none."
        )
    speakers = []
    for path in paths:
        edge = "" if path.parent == folder else path.parent.name
        speakers.append(_Speaker(path.stem, edge, _read(path)))
    _check_names(speakers, folder)
    return speakers


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not text in UTF-8 ({error.reason}); save it in UTF-8."
        ) from error


def _check_names(speakers: list[_Speaker], folder: Path) -> None:
    names = [speaker.device for speaker in speakers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{folder} has several files called {some(twice)}; rename the devices.")


def _table(path: Path, column: str, device: str, edge: str) -> list[_Speaker]:
    """The texts of a table, by device."""
    lines: dict[str, list[str]] = {}
    edges: dict[str, str] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            header = reader.fieldnames or []
            lacking = [name for name in (column, device) if name not in header]
            if lacking:
                raise DataError(
                    f"{path} has no column {lacking[0]!r}; it has {some(list(header))}."
                )
            for row in reader:
                name = row[device]
                lines.setdefault(name, []).append(row[column] or "")
                under = row.get(edge) or ""
                if edges.setdefault(name, under) != under:
                    raise DataError(
                        f"{path}, line {reader.line_num}: device {name!r} is under edge {under!r}, "
                        f"but under {edges[name]!r} before; give each device one edge."
                    )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV in UTF-8: {error}.") from error
    if not lines:
        raise DataError(f"{path} has no rows; add some.")
    return [_Speaker(name, edges[name], "\n".join(texts)) for name, texts in lines.items()]


def _edges(speakers: list[_Speaker]) -> dict[str, int]:
    """How many devices stand under each edge; empty where there are no edges."""
    out: dict[str, int] = {}
    for speaker in speakers:
        out[speaker.edge] = out.get(speaker.edge, 0) + 1
    if set(out) == {""}:
        return {}
    return out
