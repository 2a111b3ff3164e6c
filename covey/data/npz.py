"""The arrays of an `.npz` file, each looked at before anything is allocated for it.

Such a file is a zip archive of arrays, and says itself how long they are. Arrays of Python objects
are refused: they could run code when they are read.
"""

from __future__ import annotations

import math
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from covey.errors import DataError

Array = npt.NDArray[Any]

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that numpy writes
_DENSEST = 1032  # bytes that deflate can pack into one
_ENCRYPTED = 1  # bit of a member's flags


def arrays(path: Path, names: Sequence[str] | None = None) -> dict[str, Array]:
    """The arrays of these names, or all, in a file; a damaged one raises a ValueError or the like.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder, "two.npz"), x=np.zeros(2), y=np.ones(1))
    ...     arrays(Path(folder, "two.npz"), ["y"])
    {'y': array([1.])}
    """
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        _check_members(archive.infolist(), members, path.stat().st_size)
        lacking = [name for name in names or () if name not in members]
        if lacking:
            raise ValueError(f"it has no array {lacking[0]!r}")
        return {name: _array(archive, members[name]) for name in names or members}


def memory() -> int:
    """How many bytes of memory the machine has; 2**40 where it does not say."""
    if sys.platform == "win32":
        return 2**40
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 2**40


def check_memory(size: int, name: object) -> None:
    """Refuse what would not fit into the machine's memory."""
    if size > memory():
        have = f"this machine has {memory():,}"
        raise DataError(
            f"{name} would take {size:,} bytes of memory, but {have}; download it again."
        )


def _check_members(
    listed: Sequence[zipfile.ZipInfo],
    members: dict[str, zipfile.ZipInfo],
    size: int,
) -> None:
    if len(members) < len(listed):
        raise ValueError("two of its arrays have the same name")
    for info in listed:
        if info.flag_bits & _ENCRYPTED or info.compress_type not in _METHODS:
            raise ValueError(f"{info.filename} is packed in a way that numpy does not use")
    total = sum(info.file_size for info in listed)
    # Beyond what deflate can do, members overlap or lie about their length.
    if total > min(_DENSEST * size, memory()):
        raise ValueError(f"its {size:,} bytes would unpack to {total:,}")


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    with archive.open(info) as stream:
        _check_header(stream, info)
    with archive.open(info) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _check_header(stream: IO[bytes], info: zipfile.ZipInfo) -> None:
    """That an array has as many bytes as its header declares."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(stream)
    if version not in readers:
        raise ValueError(f"{info.filename} is of version {version} of numpy's format")
    shape, _, dtype = readers[version](stream)
    if dtype.hasobject:
        raise ValueError(f"{info.filename} holds Python objects; Object arrays are not loaded")
    count = math.prod(shape)
    if any(length < 0 for length in shape) or (count and not dtype.itemsize):
        raise ValueError(f"{info.filename} has the shape {shape} of {dtype}")
    declared = count * dtype.itemsize
    if declared != info.file_size - stream.tell():
        have = f"{info.file_size - stream.tell():,} bytes"
        raise ValueError(f"{info.filename} declares {declared:,} bytes and has {have}")
