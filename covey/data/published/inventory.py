"""Which data sets are there, and whether their files are as published."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from covey.data.published import formats, locations
from covey.data.published.catalog import CATALOG, KnownSet, known
from covey.data.published.formats import Arrays
from covey.errors import install, reading


@dataclass(frozen=True)
class SetStatus:
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


class FileVerdict(NamedTuple):
    """What is to be said of one file."""

    file: Path
    text: str
    good: bool


def present(data_dir: str | Path | None = None) -> list[SetStatus]:
    """What there is of every data set in the data folder.

    >>> [status.name for status in present("nowhere") if not status.present]
    ['mnist', 'fashion_mnist', 'emnist-digits', 'emnist-byclass', 'femnist', 'cifar10', 'cifar100']
    """
    root = locations.folder(data_dir)
    out = []
    for entry in CATALOG.values():
        located = locations.find(entry, root)
        copy = locations.hub_copy(entry, root)
        copied = bool(located.missing) and copy.is_file()
        is_there = copied or not located.missing
        source = f"hub copy {copy}" if copied else f"{located.way.format} in {located.folder}"
        get = locations.advice(entry, root)
        if entry.repository is not None:
            get = f"covey fetches {entry.repository} from the hub ({install('hub')}), or {get}"
        out.append(
            SetStatus(
                entry.name,
                present=is_there,
                source=source if is_there else "",
                files=(copy,) if copied else located.files,
                missing=() if copied else located.missing,
                train=entry.train,
                test=entry.test,
                classes=len(entry.classes),
                get=get,
            )
        )
    return out


def check(name: str, data_dir: str | Path | None = None) -> list[FileVerdict]:
    """A verdict on every file that `load` would read this set from, and on every one that it lacks.

    A file whose checksum is published is compared with that; if one has none, the set is read and
    its numbers must fit.
    """
    entry = known(name)
    root = locations.folder(data_dir)
    located = locations.find(entry, root)
    copy = locations.hub_copy(entry, root)
    if located.missing and copy.is_file():
        return [FileVerdict(copy, *_counted(entry, formats.kept(copy)))]
    out = [FileVerdict(located.folder / file, "missing", False) for file in located.missing]
    summed = [path for path in located.files if path.name in entry.md5]
    out += [FileVerdict(path, *_compared(entry, path)) for path in summed]
    rest = [path for path in located.files if path not in summed]
    if rest and not located.missing:
        said = _counted(entry, formats.read(entry, located))
        out += [FileVerdict(path, *said) for path in rest]
    return out


def _compared(entry: KnownSet, path: Path) -> tuple[str, bool]:
    with reading(path), open(path, "rb") as stream:
        have = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    want = entry.md5[path.name]
    if have == want:
        return "md5 as published", True
    if path.suffix == ".gz" and locations.unpacked_md5(path) == entry.md5.get(path.stem):
        return "recompressed, contents as published", True
    return f"md5 is {have}, published is {want}; download it again from {entry.page}", False


def _counted(entry: KnownSet, arrays: Arrays | None) -> tuple[str, bool]:
    assert arrays is not None  # its file was there a moment ago
    images = len(arrays.x)
    labels = len(np.unique(arrays.y))
    numbers = f"no published checksum known; {images} images, {labels} labels, shapes fit"
    if entry.test and (arrays.train, images - arrays.train) != (entry.train, entry.test):
        numbers += f", but {entry.train} to train and {entry.test} to test on are published"
        return numbers, False
    return numbers, True
