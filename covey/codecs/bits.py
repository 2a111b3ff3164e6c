"""One bit per value of a row, which says whether the value is sent.

Eight bits go into a byte, lowest first, padded with zeros.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import native

Bytes = NDArray[np.uint8]
Values = NDArray[np.floating[Any]]
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)


def length(width: int) -> int:
    """How many bytes `width` bits take."""
    return (width + 7) // 8


def of_mask(mask: NDArray[np.bool_]) -> Bytes:
    """The bits of one mask."""
    return np.packbits(mask, bitorder="little")


def of_values(values: Values) -> Bytes:
    """A bit where a value has any bit set: -0.0 is a value.

    >>> of_values(np.array([1.0, 0.0, -0.0]))
    array([5], dtype=uint8)
    """
    if not native.packs():
        return np.packbits(values.view(f"<u{values.itemsize}") != 0, bitorder="little")
    bits = np.empty(length(len(values)), np.uint8)
    native.nonzero(values, bits)
    return bits


def unpack(bits: Bytes, width: int) -> NDArray[np.bool_]:
    """Yes or no for each."""
    return np.unpackbits(bits, count=width, bitorder="little").view(np.bool_)


def count(bits: Bytes, width: int) -> int:
    """How many bits are set."""
    if native.packs():
        return native.ones(bits, width)
    return int(_ONES[bits].sum())


def squeeze(values: Values, bits: Bytes, sent: int) -> Values:
    """The values under the bits, `sent` in all, moved together."""
    if not native.packs():
        return values[unpack(bits, len(values))]
    together = np.empty(sent, values.dtype)
    native.squeeze(values, bits, together)
    return together


def spread(values: Values, bits: Bytes, width: int) -> Values:
    """The reverse, zeros elsewhere; as many bits are set as there are values."""
    if native.packs():
        row = np.empty(width, values.dtype)
        native.spread(values, bits, row)
        return row
    row = np.zeros(width, values.dtype)
    row[unpack(bits, width)] = values
    return row
