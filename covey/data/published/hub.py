"""Data sets from the Hugging Face hub, or from a folder laid out like one of its repositories."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from covey.data.published.catalog import KnownSet
from covey.data.published.formats import Arrays, Bytes
from covey.errors import DataError, needed

PATIENCE = 4.5
"""Seconds until a hub that does not answer counts as out of reach: a user knows within five."""
_IMAGES = ("image", "img")
_WRITER = "writer_id"


def fetch(entry: KnownSet, repository: str) -> Arrays:
    """All examples of a set in a repository's train and test splits, converted to arrays."""
    local = _local(repository)
    said = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))
    # Then the library is to use only what it has kept itself.
    offline = any(word.upper() in ("1", "ON", "YES", "TRUE") for word in said)
    # Asked before the library is imported, which takes seconds and retries for minutes.
    asks = not local and not offline and importlib.util.find_spec("datasets")
    if asks and (trouble := unreachable()):
        raise DataError(f"The hub {_endpoint()} cannot be reached: {trouble}.")
    datasets = needed("datasets", extra="hub", to=f"fetch {repository} from the hub")
    try:
        splits = datasets.load_dataset(str(Path(repository).expanduser()) if local else repository)
    except Exception as error:  # the library has errors of many kinds
        raise DataError(
            f"{repository} cannot be fetched from the hub ({type(error).__name__}: {error})."
        ) from error
    if "train" not in splits:
        raise DataError(
            f"{repository} has the splits {', '.join(splits)}, but not train; "
            "choose another repository with hub."
        )
    parts = [splits[name] for name in ("train", "test") if name in splits]
    return _converted(entry, repository, parts)


def origin(repository: str) -> str:
    """A text that tells one source from another.

    It is the repository's name, and for a folder also the sizes and times of its files.
    """
    if not _local(repository):
        return repository
    root = Path(repository).expanduser().absolute()
    files = sorted(facts([path for path in root.rglob("*") if path.is_file()]))
    return f"{root} {hashlib.sha256(repr(files).encode()).hexdigest()}"


def facts(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """The name, size and time of every file."""
    stats = [(path, path.stat()) for path in files]
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def unreachable(patience: float = PATIENCE) -> str | None:
    """The reason why the hub cannot be reached, None if it can be.

    It takes at most `patience` seconds.
    """
    answers: list[str | None] = []

    def ask() -> None:
        answer = None
        try:
            agent = {"User-Agent": "covey"}
            request = urllib.request.Request(_endpoint(), method="HEAD", headers=agent)
            urllib.request.urlopen(request, timeout=patience).close()
        except urllib.error.HTTPError as refusal:  # who refuses is there
            refusal.close()
        except Exception as error:  # an answer may be malformed in any way
            answer = str(getattr(error, "reason", error)) or type(error).__name__
        answers.append(answer)

    # In a thread of its own, because looking up a name cannot be given a time limit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    return answers[0] if answers else f"no answer within {patience:g} s"


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def _local(repository: str) -> bool:
    return Path(repository).expanduser().is_dir()


def _converted(entry: KnownSet, repository: str, parts: list[Any]) -> Arrays:
    columns = list(parts[0].column_names)
    image = _column(columns, _IMAGES, repository)
    label = _column(columns, (entry.label, "label"), repository)
    total = sum(len(part) for part in parts)
    x = np.empty((total, *entry.shape), dtype=np.uint8)
    y = np.empty(total, dtype=np.int64)
    who: list[str] = []
    wanted = [image, label, *([_WRITER] if _WRITER in columns else [])]
    for index, row in enumerate(row for part in parts for row in part.select_columns(wanted)):
        where = f"{repository}, example {index}"
        kind = row[label]
        if not isinstance(kind, int) or not 0 <= kind < len(entry.classes):
            raise DataError(
                f"{where}: the label is {kind!r}, "
                f"but {entry.name} has the classes 0 to {len(entry.classes) - 1}."
            )
        x[index] = _image(entry, row[image], where)
        y[index] = kind
        who.append(str(row.get(_WRITER)))
    arrays = Arrays(x, y, train=len(parts[0]))
    return arrays.written_by(who) if _WRITER in columns else arrays


def _column(columns: list[str], wanted: Iterable[str], repository: str) -> str:
    for name in wanted:
        if name in columns:
            return name
    raise DataError(
        f"{repository} has the columns {', '.join(columns)}, but not {' or '.join(wanted)}; "
        "choose another repository with hub."
    )


def _image(entry: KnownSet, cell: Any, where: str) -> Bytes:
    """Grey [height, width] or colour [3, height, width]."""
    if not hasattr(cell, "convert"):
        raise DataError(
            f"{where}: the image is a {type(cell).__name__}; "
            "choose a repository with a column of images with hub."
        )
    channels, height, width = entry.shape
    if cell.size != (width, height):
        raise DataError(
            f"{where}: the image has {cell.size} pixels, "
            f"but those of {entry.name} have {(width, height)}."
        )
    if channels == 1:
        return np.asarray(cell.convert("L"))
    return np.asarray(cell.convert("RGB")).transpose(2, 0, 1)
