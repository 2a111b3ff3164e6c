"""The arrays of an `.npz` file, each looked at before anything is allocated for it.

Such a file is a zip archive of arrays, and says itself how long they are. Arrays of Python objects
are refused: they could run code when they are read.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Collection
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from covey.errors import DataError

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that numpy writes
_DENSEST = 1032  # bytes that deflate can pack into one
_ENCRYPTED = 1  # bit of a member's flags


def arrays(file: IO[bytes], names: Collection[str] = ()) -> dict[str, npt.NDArray[Any]]:
    """The arrays of these names, or all, in a file; a damaged one raises a ValueError or the like.

    >>> import io
    >>> np.savez(file := io.BytesIO(), x=np.zeros(2), y=np.ones(1))
    >>> arrays(file, ["y"])
    {'y': array([1.])}
    """
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        listed = archive.infolist()
        members = {info.filename.removesuffix(".npy"): info for info in listed}
        if len(members) < len(listed):
            raise ValueError("two of its arrays have the same name")
        for info in listed:
            if info.flag_bits & _ENCRYPTED or info.compress_type not in _METHODS:
                raise ValueError(f"{info.filename} is packed in a way that numpy does not use")
        total = sum(info.file_size for info in listed)
        # Beyond what deflate can do, members overlap or lie about their length.
        if total > min(_DENSEST * size, memory()):
            raise ValueError(f"its {size:,} bytes would unpack to {total:,}")
        read = {}
        for name in names or members:
            with archive.open(members[name]) as stream:
                check_member(stream, members[name])
                stream.seek(0)
                read[name] = np.lib.format.read_array(stream, allow_pickle=False)
        return read


def check_member(stream: IO[bytes], info: zipfile.ZipInfo) -> None:
    """That an array holds plain values, as many bytes of them as its header declares."""
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
    have = info.file_size - stream.tell()
    if count * dtype.itemsize != have:
        declared = f"{count * dtype.itemsize:,} bytes"
        raise ValueError(f"{info.filename} declares {declared} and has {have:,}")


def memory() -> int:
    """How many bytes of memory the machine has; 2**40 where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**40


def check_memory(size: int, what: object, remedy: str = "download it again") -> None:
    """Refuse what would not fit into the machine's memory."""
    if size > memory():
        have = f"this machine has {memory():,}"
        raise DataError(f"{what} would take {size:,} bytes of memory, but {have}; {remedy}.")
