"""The formats in which data sets are published, read into arrays.

An error names the damaged file. Every reader of FORMATS takes the files of one form of a set and
returns all its examples, the official training part first.
"""

from __future__ import annotations

import gzip
import json
import math
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from covey.atomic import replacing
from covey.data.published import catalog, pickles
from covey.data.published.catalog import KnownSet
from covey.data.published.locations import Located
from covey.data.shards import numbered
from covey.data.tables import npz
from covey.errors import DataError, reading

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Pair = tuple[Bytes, npt.NDArray[Any]]
"""Images [n, height, width] or [n, channels, height, width], and labels [n]."""
Files = Sequence[Path]

_SIDE = 28
_LARGEST_MEMBER = 2**30  # bytes; the largest of CIFAR's files has 155 million


class Arrays(NamedTuple):
    """A data set as it was published."""

    x: Bytes  # [n, channels, height, width]
    y: Numbers  # [n]
    train: int  # the first so many are the official training part
    writers: Numbers | None = None  # [n], positions in writer_names
    writer_names: tuple[str, ...] = ()

    def written_by(self, names: Sequence[str]) -> Arrays:
        """The same, with the name of the writer of every example."""
        writer_names, writers = numbered(names)
        return self._replace(writers=writers, writer_names=writer_names)


def read(entry: KnownSet, located: Located) -> Arrays:
    """All examples of a set in the files that were found, which must be as this set's are."""
    arrays = FORMATS[located.way.format](located.files)
    if arrays.x.shape[1:] != entry.shape:
        have = tuple(arrays.x.shape[1:])
        raise DataError(
            f"{located.folder} has images of shape {have}, "
            f"but those of {entry.name} have {entry.shape}; download its own files."
        )
    wrong = np.flatnonzero((arrays.y < 0) | (arrays.y >= len(entry.classes)))
    if len(wrong):
        raise DataError(
            f"{located.folder}: image {wrong[0]} has the label {arrays.y[wrong[0]]}, "
            f"but {entry.name} has the classes 0 to {len(entry.classes) - 1}; "
            "download its own files."
        )
    return arrays


def keep(path: Path, arrays: Arrays, source: str) -> None:
    """Keep these examples as one .npz file for the next time, with where they came from."""
    columns = arrays._asdict() | {"writer_names": np.array(arrays.writer_names, dtype=str)}
    if arrays.writers is None:
        columns["writers"] = np.empty(0, dtype=np.int64)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part, open(part, "xb") as file:
            np.savez(file, **columns, source=source)
    except OSError as error:
        raise DataError(
            f"cannot keep the data in {path}: {error}; "
            "choose a writable folder with data_dir or COVEY_DATA."
        ) from error


def kept(path: Path, source: str | None = None) -> Arrays | None:
    """The examples that `keep` wrote.

    None where the file is missing, or its examples came from another source.
    """
    if not path.is_file():
        return None
    with reading(path, "delete it"), open(path, "rb") as file:
        if source is not None and str(npz.arrays(file, ["source"])["source"]) != source:
            return None
        held = npz.arrays(file, Arrays._fields)
        x = held["x"]
        train = int(held["train"])
        writers = held["writers"]
        if x.dtype != np.uint8 or x.ndim != 4:
            raise ValueError(f"x is {x.dtype} of shape {x.shape}, not bytes with four axes")
        one_each = x.shape[:1]
        for name, shapes in (("y", [one_each]), ("writers", [one_each, (0,)])):
            if held[name].dtype != np.int64 or held[name].shape not in shapes:
                have = f"{held[name].dtype} of shape {held[name].shape}"
                raise ValueError(f"{name} is {have} for {len(x)} images")
        if not 0 <= train <= len(x):
            raise ValueError(f"{train} of its {len(x)} images are to train on")
        if len(writers) and not 0 <= writers.min() <= writers.max() < len(held["writer_names"]):
            raise ValueError("it names writers that it does not list")
        names = tuple(held["writer_names"].tolist())
        return Arrays(x, held["y"], train, writers if len(writers) else None, names)


def idx(stream: IO[bytes], name: str, axes: int) -> Bytes:
    """The array of bytes in an idx file.

    The file has two zeros, 8 for bytes, the number of axes, their lengths, and the values.

    >>> import io
    >>> idx(io.BytesIO(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])), "labels", 1)
    array([7, 9], dtype=uint8)
    """
    with reading(name):
        magic = stream.read(4)
        if magic != bytes([0, 0, 8, axes]):
            raise DataError(
                f"{name} begins with {magic!r}, "
                f"so it is not an idx file of bytes with {axes} axes; download it again."
            )
        shape = struct.unpack(f">{axes}I", stream.read(4 * axes))
        count = math.prod(shape)
        npz.check_memory(count, name)
        # No more than one beyond them: a packed file may unpack to any length.
        values = np.frombuffer(stream.read(count + 1), dtype=np.uint8)
        if len(values) != count:
            raise DataError(
                f"{name} does not have the {count} values that its header declares; "
                "download it again."
            )
        return values.reshape(shape)


def _idx_files(files: Sequence[Any], *, turned: bool = False) -> Arrays:
    """Images and labels of the training part, then of the test part."""
    arrays = []
    for path, axes in zip(files, (3, 1, 3, 1), strict=True):
        with reading(path), path.open("rb") as file:
            # By what it holds: some programs unpack a .gz file and leave it its name.
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if packed else file
            arrays.append(idx(cast(IO[bytes], stream), str(path), axes))
    train_x, train_y, test_x, test_y = arrays
    if turned:  # EMNIST keeps its images column by column
        train_x = train_x.transpose(0, 2, 1)
        test_x = test_x.transpose(0, 2, 1)
    return _joined([(train_x, train_y), (test_x, test_y)], [files[1], files[3]])


def idx_zip(files: Files, *, members: Sequence[str]) -> Arrays:
    """The same inside EMNIST's zip archive."""
    (path,) = files
    with reading(path), zipfile.ZipFile(path) as archive:
        inside = {Path(name).name: zipfile.Path(archive, name) for name in archive.namelist()}
        return _idx_files([inside[name] for name in members], turned=True)


def _cifar(files: Files, *, members: Sequence[str], batch: Callable[[bytes, str], Pair]) -> Arrays:
    """The images of all batches, each as `batch` reads it."""
    pairs = []
    names = []
    for name, data in _contents(files, members):
        pairs.append(batch(data, name))
        names.append(name)
    return _joined(pairs, names)


def _binary_batch(data: bytes, name: str, *, labels: int) -> Pair:
    """Records of one image each.

    A record has the labels, one byte each with the finest last, then the red, green and blue plane.
    """
    size = labels + 3 * 32 * 32
    if not data or len(data) % size:
        raise DataError(
            f"{name} has {len(data)} bytes, not a multiple of the {size} of an image; "
            "download it again."
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    images = records[:, labels:].reshape(-1, 3, 32, 32)
    return images, records[:, labels - 1]


def _python_batch(data: bytes, name: str, *, labels: str) -> Pair:
    """A pickled dictionary with the images as rows of 3072 bytes."""
    content = pickles.batch(data, name)
    if lacking := {"data", labels} - content.keys():
        raise DataError(
            f"{name} has no {lacking.pop()!r}, only {', '.join(content)}; "
            "download the official file again."
        )
    with reading(name):
        return content["data"].reshape(-1, 3, 32, 32), _labels(content[labels])


def _contents(files: Files, members: Sequence[str]) -> Iterable[tuple[str, bytes]]:
    """The name and the bytes of every file, or of the members of the one archive that is there."""
    if len(files) == len(members):
        for path in files:
            with reading(path):
                yield str(path), path.read_bytes()
        return
    (path,) = files
    contents = {}
    with reading(path), tarfile.open(path) as archive:
        # In its own order: going back would mean unpacking again from the start.
        for entry in archive:
            stream = archive.extractfile(entry)
            if Path(entry.name).name in members and stream is not None:
                if entry.size > _LARGEST_MEMBER:
                    have = f"{Path(entry.name).name} would have {entry.size:,} bytes"
                    raise DataError(f"{path}: {have}; download it again.")
                contents[Path(entry.name).name] = stream.read()
    if lacking := [name for name in members if name not in contents]:
        raise DataError(f"{path} lacks {', '.join(lacking)}; download it again.")
    yield from ((f"{path} ({name})", contents[name]) for name in members)


def _leaf(files: Files) -> Arrays:
    """LEAF's files: writer by writer, pixels as fractions of 255."""
    pairs = []
    owners = []
    names = []
    for path in files:
        with reading(path):
            for writer, examples in json.loads(path.read_bytes())["user_data"].items():
                values = np.asarray(examples["x"], dtype=np.float64).reshape(-1, _SIDE, _SIDE)
                if not ((values >= 0) & (values <= 1)).all():
                    have = f"{values.min()} or {values.max()}"
                    raise ValueError(f"a pixel is {have}, not between 0 and 1")
                pixels = np.rint(values * 255).astype(np.uint8)
                pairs.append((pixels, _labels(examples["y"])))
                owners += [writer] * len(values)
                names.append(f"{path} ({writer})")
    arrays = _joined(pairs, names)
    return arrays._replace(train=len(arrays.y)).written_by(owners)


def _labels(values: Any) -> Numbers:
    """Labels as int64; a ValueError if they are not integers on one axis."""
    nested = (list, tuple, dict)
    if isinstance(values, list | tuple) and any(isinstance(value, nested) for value in values):
        # Lists of the same lists, a few bytes in a file, would be multiplied out by numpy.
        raise ValueError("its labels are lists, not numbers")
    array = np.asarray(values)
    whole = array.dtype.kind in "iu"
    if array.dtype.kind == "f":
        whole = bool((array == np.rint(array)).all())
    if array.ndim != 1 or not whole or not (np.abs(array) < 2**53).all():
        raise ValueError(f"its labels are {array.dtype} of shape {array.shape}, not integers")
    return array.astype(np.int64)


def _joined(pairs: Sequence[Pair], names: Sequence[object]) -> Arrays:
    """All parts in one array; the last is the test part."""
    for (x, y), name in zip(pairs, names, strict=True):
        if len(x) != len(y):
            raise DataError(
                f"{name} has {len(y)} labels for {len(x)} images; "
                "download it again, or the images beside it."
            )
    if not pairs:
        raise DataError("there is no example in any of the files; download them again.")
    shape = pairs[0][0].shape[1:]
    count = sum(len(x) for x, _ in pairs)
    x = np.empty((count, *shape), dtype=np.uint8)
    with reading(names[0]):
        # Into C order, which transposed parts would not give.
        np.concatenate([x for x, _ in pairs], out=x)
    y = np.concatenate([y for _, y in pairs]).astype(np.int64)
    if x.ndim == 3:
        x = x[:, None]
    test = len(pairs[-1][1])
    return Arrays(x, y, train=len(y) - test)


FORMATS: dict[str, Callable[[Files], Arrays]] = {
    "idx": _idx_files,
    "turned idx": partial(_idx_files, turned=True),
    **{
        f"{name} zip": partial(idx_zip, members=catalog.CATALOG[name].ways[0].files)
        for name in ("emnist-digits", "emnist-byclass")
    },
    "leaf": _leaf,
    "cifar-10 binary": partial(
        _cifar, members=catalog.CIFAR10_BINARY, batch=partial(_binary_batch, labels=1)
    ),
    "cifar-10 python": partial(
        _cifar, members=catalog.CIFAR10_PYTHON, batch=partial(_python_batch, labels="labels")
    ),
    "cifar-100 binary": partial(
        _cifar, members=catalog.CIFAR100_BINARY, batch=partial(_binary_batch, labels=2)
    ),
    "cifar-100 python": partial(
        _cifar, members=catalog.CIFAR100_PYTHON, batch=partial(_python_batch, labels="fine_labels")
    ),
}
