"""Numbers of many nodes as text, in the fewest bytes: for JSON files and pages.

Whole numbers take one, two or four bytes each, other numbers the four bytes of a float32. A number
that is not known is NaN in memory. As whole numbers have no NaN, the largest number of their type
stands for it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_WHOLE = ("u1", "u2", "u4")


def pack(values: Array, *, whole: bool) -> dict[str, Any]:
    """The numbers with their type and shape; `whole` says that all known ones are whole.

    >>> pack(np.array([3.0, np.nan]), whole=True)
    {'dtype': 'u1', 'shape': [2], 'data': 'A/8='}
    """
    dtype = "f4"
    packed = values
    if whole:
        unknown = np.isnan(values)
        dtype = _smallest(values[~unknown])
        packed = np.where(unknown, np.iinfo(dtype).max, values)
    with np.errstate(over="ignore"):  # a sum beyond float32 is infinite
        little = packed.astype(f"<{dtype}")
    text = base64.b64encode(np.ascontiguousarray(little).tobytes()).decode()
    return {"dtype": dtype, "shape": list(values.shape), "data": text}


def packed_size(values: Array, *, whole: bool) -> int:
    """The bytes of packed numbers, before base64."""
    dtype = "f4"
    if whole:
        dtype = _smallest(values[~np.isnan(values)])
    return values.size * np.dtype(dtype).itemsize


def unpack(packed: Mapping[str, Any]) -> Array:
    """The numbers that `pack` wrote; a ValueError where it cannot have written this.

    >>> unpack(pack(np.array([3.0, np.nan]), whole=True))
    array([ 3., nan])
    """
    dtype = packed["dtype"]
    if dtype not in ("f4", *_WHOLE):
        raise ValueError(f"numbers of the type {dtype!r}")
    try:
        data = base64.b64decode(packed["data"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"numbers that are no base64: {error}") from error
    little = np.frombuffer(data, dtype=f"<{dtype}").reshape(packed["shape"])
    values = little.astype(np.float64)
    if dtype in _WHOLE:
        values[little == np.iinfo(dtype).max] = np.nan
    return values


def _smallest(values: Array) -> str:
    """The smallest type that holds these whole numbers, and one more for the unknown."""
    largest = values.max(initial=0)
    for dtype in _WHOLE:
        if largest < np.iinfo(dtype).max:
            return dtype
    raise ValueError(f"{largest:g} is too large for four bytes")
