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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from covey.data import catalog, npz, pickles
from covey.data.catalog import KnownSet
from covey.data.extras import needed
from covey.data.locations import Located
from covey.errors import DataError

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Pair = tuple[
    Bytes, npt.NDArray[Any]
]  # images [n, height, width] or [n, channels, height, width], and labels [n]
Files = Sequence[Path]

_SIDE = 28
_BLOCK = 2**20
_LARGEST_MEMBER = 2**30  # bytes; the largest of CIFAR's files has 155 million


class Arrays(NamedTuple):
    """A data set as it was published."""

    x: Bytes  # [n, channels, height, width]
    y: Numbers  # [n]
    train: int  # the first so many are the official training part
    writers: Numbers | None = None  # [n], positions in writer_names
    writer_names: tuple[str, ...] = ()


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


def idx(stream: IO[bytes], name: str, axes: int) -> Bytes:
    """The array of bytes in an idx file.

    The file has two zeros, 8 for bytes, the number of axes, their lengths, and the values.

    >>> import io
    >>> idx(io.BytesIO(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])), "labels", 1)
    array([7, 9], dtype=uint8)
    """
    with named(name):
        magic = stream.read(4)
        if magic != bytes([0, 0, 8, axes]):
            raise DataError(
                f"{name} begins with {magic!r}, "
                f"so it is not an idx file of bytes with {axes} axes; download it again."
            )
        shape = struct.unpack(f">{axes}I", stream.read(4 * axes))
        npz.check_memory(math.prod(shape), name)
        array = np.empty(shape, dtype=np.uint8)
        room = array.reshape(-1).data
        filled = 0
        while filled < len(room) and (block := stream.read(min(len(room) - filled, _BLOCK))):
            room[filled : filled + len(block)] = block
            filled += len(block)
        if filled < len(room) or stream.read(1):
            raise DataError(
                f"{name} does not have the {len(room)} values that its header declares; "
                "download it again."
            )
    return array


@contextmanager
def named(name: object, remedy: str = "download it again") -> Iterator[None]:
    """What goes wrong while reading, as a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise DataError(
            f"{name} cannot be read ({type(error).__name__}: {error}); if it is damaged, {remedy}."
        ) from error


def _idx_files(files: Files, *, turned: bool = False) -> Arrays:
    """Images and labels of the training part, then of the test part."""
    arrays = []
    for path, axes in zip(files, (3, 1, 3, 1), strict=True):
        with named(path), open(path, "rb") as stream:
            arrays.append(idx(_unpacked(stream), str(path), axes))
    return _idx_arrays(arrays, files, turned)


def _idx_zip(files: Files, *, members: Sequence[str]) -> Arrays:
    """The same inside EMNIST's zip archive."""
    (path,) = files
    arrays = []
    with named(path), zipfile.ZipFile(path) as archive:
        paths = {Path(name).name: name for name in archive.namelist()}
        for member, axes in zip(members, (3, 1, 3, 1), strict=True):
            with archive.open(paths[member]) as stream:
                arrays.append(idx(_unpacked(stream), f"{path} ({member})", axes))
    return _idx_arrays(arrays, members, turned=True)


def _idx_arrays(arrays: Sequence[Bytes], names: Sequence[object], turned: bool) -> Arrays:
    train_x, train_y, test_x, test_y = arrays
    pairs = [(_upright(x) if turned else x, y) for x, y in ((train_x, train_y), (test_x, test_y))]
    return _joined(pairs, [names[1], names[3]])


def _upright(x: Bytes) -> Bytes:
    """EMNIST keeps its images column by column."""
    return x.transpose(0, 2, 1)


def _cifar_binary(files: Files, *, members: Sequence[str], labels: int) -> Arrays:
    """Records of one image each.

    A record has the labels, one byte each with the finest last, then the red, green and blue plane.
    """
    pairs = []
    names = []
    for name, data in _contents(files, members):
        size = labels + 3 * 32 * 32
        if not data or len(data) % size:
            raise DataError(
                f"{name} has {len(data)} bytes, not a multiple of the {size} of an image; "
                "download it again."
            )
        records = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
        pairs.append((records[:, labels:].reshape(-1, 3, 32, 32), records[:, labels - 1]))
        names.append(name)
    return _joined(pairs, names)


def _cifar_python(files: Files, *, members: Sequence[str], labels: str) -> Arrays:
    """Pickled dictionaries with the images as rows of 3072 bytes."""
    pairs = []
    names = []
    for name, data in _contents(files, members):
        content = pickles.batch(data, name)
        if lacking := {"data", labels} - content.keys():
            raise DataError(
                f"{name} has no {lacking.pop()!r}, only {', '.join(content)}; "
                "download the official file again."
            )
        with named(name):
            pairs.append(
                (
                    content["data"].reshape(-1, 3, 32, 32),
                    _labels(content[labels]),
                )
            )
        names.append(name)
    return _joined(pairs, names)


def _emnist_matlab(files: Files) -> Arrays:
    """EMNIST's .mat files, which alone say who wrote what."""
    (path,) = files
    scipy = needed("scipy.io", extra="matlab", to=f"read {path}")
    with named(path):
        data = scipy.loadmat(path, simplify_cells=True)["dataset"]
        parts = [
            {key: np.asarray(value) for key, value in data[part].items()}
            for part in ("train", "test")
        ]
        images = [_upright(part["images"].reshape(-1, _SIDE, _SIDE)) for part in parts]
        labels = [_labels(part["labels"].reshape(-1)) for part in parts]
        who = _labels(np.concatenate([part["writers"].reshape(-1) for part in parts]))
    arrays = _joined(
        list(zip(images, labels, strict=True)),
        [f"{path} (train)", f"{path} (test)"],
    )
    if len(who) != len(arrays.y):
        raise DataError(
            f"{path} has {len(who)} writers for {len(arrays.y)} images; download it again."
        )
    numbers, writers = np.unique(who, return_inverse=True)
    return arrays._replace(
        writers=writers.astype(np.int64),
        writer_names=tuple(str(number) for number in numbers),
    )


def _leaf(files: Files) -> Arrays:
    """LEAF's files: writer by writer, pixels as fractions of 255."""
    pairs = []
    writers = []
    for path in files:
        with named(path):
            data = json.loads(path.read_bytes())["user_data"]
            for writer, examples in data.items():
                pairs.append((_pixels(examples["x"]), _labels(examples["y"])))
                writers.append((writer, str(path)))
    names = tuple(dict.fromkeys(writer for writer, _ in writers))
    number = {name: index for index, name in enumerate(names)}
    arrays = _joined(pairs, [f"{path} ({writer})" for writer, path in writers])
    who = np.repeat([number[writer] for writer, _ in writers], [len(y) for _, y in pairs])
    return arrays._replace(train=len(arrays.y), writers=who, writer_names=names)


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


def _pixels(fractions: list[list[float]]) -> Bytes:
    values = np.asarray(fractions, dtype=np.float64).reshape(-1, _SIDE, _SIDE)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"a pixel is {values.min()} or {values.max()}, not between 0 and 1")
    return np.rint(values * 255).astype(np.uint8)


def _joined(pairs: Sequence[Pair], names: Sequence[object]) -> Arrays:
    """All parts in one array; the last is the test part."""
    for (x, y), name in zip(pairs, names, strict=True):
        if len(x) != len(y):
            raise DataError(
                f"{name} has {len(y)} labels for {len(x)} images; "
                "download it again, or the images beside it."
            )
        if x.dtype != np.uint8:
            raise DataError(f"{name} has images of {x.dtype}, not of bytes; download it again.")
    if not pairs:
        raise DataError("there is no example in any of the files; download them again.")
    shape = pairs[0][0].shape[1:]
    x = np.empty((sum(len(x) for x, _ in pairs), *shape), dtype=np.uint8)
    with named(names[0]):
        np.concatenate(
            [x for x, _ in pairs], out=x
        )  # into C order, which transposed parts would not give
    y = np.concatenate([y for _, y in pairs]).astype(np.int64)
    return Arrays(x if x.ndim == 4 else x[:, None], y, train=len(y) - len(pairs[-1][1]))


def _contents(files: Files, members: Sequence[str]) -> Iterable[tuple[str, bytes]]:
    """Every file's name and bytes.

    They come from the files themselves, or from one archive that holds them.
    """
    if len(files) != len(members):
        (archive,) = files
        yield from _members(archive, members)
        return
    for path in files:
        with named(path):
            data = path.read_bytes()
        yield str(path), data


def _members(path: Path, members: Sequence[str]) -> Iterable[tuple[str, bytes]]:
    """The name and the bytes of some members of an archive."""
    contents = {}
    with named(path), tarfile.open(path) as archive:
        # In its own order: going back would mean unpacking again from the start.
        for entry in archive:
            if (name := Path(entry.name).name) in members and (
                stream := archive.extractfile(entry)
            ):
                if entry.size > _LARGEST_MEMBER:
                    raise DataError(
                        f"{path}: {name} would have {entry.size:,} bytes; download it again."
                    )
                contents[name] = stream.read()
    if lacking := [name for name in members if name not in contents]:
        raise DataError(f"{path} lacks {', '.join(lacking)}; download it again.")
    yield from ((f"{path} ({name})", contents[name]) for name in members)


def _unpacked(stream: IO[bytes]) -> IO[bytes]:
    """By what it holds, not by its name: some programs unpack a .gz file and leave it its name."""
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    if packed:
        return cast(IO[bytes], gzip.GzipFile(fileobj=stream))
    return stream


FORMATS: dict[str, Callable[[Files], Arrays]] = {
    "idx": _idx_files,
    "turned idx": partial(_idx_files, turned=True),
    **{
        f"emnist-{split} zip": partial(
            _idx_zip, members=catalog.known("emnist", split).ways[0].files
        )
        for split in ("digits", "byclass")
    },
    "emnist matlab": _emnist_matlab,
    "leaf": _leaf,
    "cifar-10 binary": partial(_cifar_binary, members=catalog.CIFAR10_BINARY, labels=1),
    "cifar-10 python": partial(_cifar_python, members=catalog.CIFAR10_PYTHON, labels="labels"),
    "cifar-100 binary": partial(_cifar_binary, members=catalog.CIFAR100_BINARY, labels=2),
    "cifar-100 python": partial(
        _cifar_python, members=catalog.CIFAR100_PYTHON, labels="fine_labels"
    ),
}
