"""Which data sets are there, and whether their files are as published."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from covey.data import cache, formats, locations
from covey.data.catalog import CATALOG, KnownSet, known
from covey.data.formats import Arrays


@dataclass(frozen=True)
class Status:
    """What there is of one data set, judged by the names of files alone."""

    name: str
    present: bool
    source: str  # the form it is there in, or ""
    files: tuple[Path, ...]
    missing: tuple[str, ...]
    train: int  # published numbers, not counted
    test: int
    classes: int
    get: str  # how to get it


class Verdict(NamedTuple):
    """What is to be said of one file."""

    file: Path
    text: str
    good: bool


def present(data_dir: str | Path | None = None) -> list[Status]:
    """What there is of every data set in the data folder.

    >>> [status.name for status in present("nowhere") if not status.present]
    ['mnist', 'fashion_mnist', 'emnist-digits', 'emnist-byclass', 'femnist', 'cifar10', 'cifar100']
    """
    root = locations.folder(data_dir)
    return [_status(one, root) for one in CATALOG.values()]


def check(name: str, data_dir: str | Path | None = None) -> list[Verdict]:
    """A verdict on every file that `load` would read this set from, and on every one that it lacks.

    A file whose checksum is published is compared with that; if one has none, the set is read and
    its numbers must fit.
    """
    one, root = known(name), locations.folder(data_dir)
    found, copy = locations.find(one, root), locations.hub_copy(one, root)
    if found.missing and copy.is_file():
        return [Verdict(copy, *_counted(one, cache.read(copy)))]
    lacking = [Verdict(found.place / file, "missing", False) for file in found.missing]
    compared = [
        Verdict(path, *_compared(one, path)) for path in found.files if path.name in one.md5
    ]
    rest = [path for path in found.files if path.name not in one.md5]
    if rest and not found.missing:
        said = _counted(one, formats.read(one, found))
        return compared + [Verdict(path, *said) for path in rest]
    return lacking + compared


def _status(one: KnownSet, root: Path) -> Status:
    found, copy = locations.find(one, root), locations.hub_copy(one, root)
    source, files, missing = f"{found.way.format} in {found.place}", found.files, found.missing
    if missing and copy.is_file():
        source, files, missing = f"hub copy {copy}", (copy,), ()
    get = locations.advice(one, root)
    if one.repository is not None:
        get = f"covey fetches {one.repository} from the hub (pip install 'covey[hub]'), or {get}"
    shown = source if not missing else ""
    return Status(
        one.name, not missing, shown, files, missing, one.train, one.test, len(one.classes), get
    )


def _compared(one: KnownSet, path: Path) -> tuple[str, bool]:
    with formats.named(path), open(path, "rb") as stream:
        have = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    want = one.md5[path.name]
    if have == want:
        return "md5 as published", True
    if path.suffix == ".gz" and locations.unpacked_md5(path) == one.md5.get(path.stem):
        return "packed anew, contents as published", True
    return f"md5 is {have}, published is {want}; get it again from {one.page}", False


def _counted(one: KnownSet, arrays: Arrays | None) -> tuple[str, bool]:
    assert arrays is not None  # its file was there a moment ago
    images, labels = len(arrays.x), len(np.unique(arrays.y))
    numbers = f"no published checksum known; {images} images, {labels} labels, shapes fit"
    published = (one.train, one.test)
    if one.test and (arrays.train, images - arrays.train) != published:
        return (
            f"{numbers}, but {published[0]} to train and {published[1]} to test on are published",
            False,
        )
    return numbers, True
