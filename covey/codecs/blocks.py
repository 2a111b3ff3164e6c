"""The two kinds of block a message is made of, raw values and packed bits, with every length checked."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.codecs import header
from covey.errors import ConfigError, DecodeError

Bits = NDArray[np.bool_]
Values = NDArray[np.floating[Any]]
LITTLE_ENDIAN: dict[torch.dtype, np.dtype[np.floating[Any]]] = {
    torch.float32: np.dtype("<f4"),
    torch.float64: np.dtype("<f8"),
}
PATTERNS = {torch.float32: torch.int32, torch.float64: torch.int64}


def bit_bytes(width: int) -> int:
    """How many bytes `width` bits take."""
    return (width + 7) // 8


def patterns(rows: Tensor) -> Tensor:
    """The same memory read as integers: 0 exactly where all bits are 0, so that -0.0 counts as a value."""
    check_dtype(rows)
    return rows.detach().view(PATTERNS[rows.dtype])


def count(sent: Tensor) -> Tensor:
    """How many of each row are not 0, `[n]` int64."""
    if sent.device.type != "cpu":
        return sent.count_nonzero(dim=1)
    # numpy here is four times as fast as torch, which would make counting as slow as encoding
    return torch.from_numpy(np.count_nonzero(sent.numpy(), axis=1).astype(np.int64, copy=False))


def check_dtype(rows: Tensor) -> None:
    """Refuse what the header has no number format for."""
    if rows.dtype not in PATTERNS:
        raise ConfigError(f"a codec carries float32 or float64 rows, not {rows.dtype}; convert the row first.")


def check_rows(rows: Tensor, mask: Tensor | None, *, ndim: int) -> None:
    """Refuse rows of another shape, and masks that do not say yes or no to each of their values."""
    check_dtype(rows)
    if rows.ndim != ndim:
        raise ConfigError(f"expected {'one row [P]' if ndim == 1 else 'rows [n, P]'}, got shape {list(rows.shape)}.")
    if mask is not None and (mask.dtype != torch.bool or mask.shape not in (rows.shape, rows.shape[-1:])):
        raise ConfigError(f"a mask for {list(rows.shape)} must be bool and as wide, got {mask.dtype} {list(mask.shape)}.")


def to_values(row: Tensor) -> Values:
    """One row as little-endian numbers in main memory."""
    values: Values = row.detach().cpu().numpy().astype(LITTLE_ENDIAN[row.dtype], copy=False)
    return values


def to_bits(mask: Tensor) -> Bits:
    """One mask in main memory."""
    bits: Bits = mask.detach().cpu().numpy()
    return bits


def pack_bits(bits: Bits) -> bytes:
    """Eight to a byte, lowest bit first, padded with zeros."""
    return np.packbits(bits, bitorder="little").tobytes()


class Reader:
    """Reads the blocks of one message from front to back; a block that is not all there is a DecodeError."""

    def __init__(self, message: bytes) -> None:
        self._message = memoryview(message)
        self._at = header.SIZE

    def bits(self, width: int) -> Bits:
        """The next `width` bits."""
        packed = np.frombuffer(self._take(bit_bytes(width), f"{width} mask bits"), dtype=np.uint8)
        if width % 8 and packed[-1] >> (width % 8):
            raise DecodeError(f"last mask byte is {packed[-1]:#04x}, expected only its low {width % 8} bits to be used.")
        return np.unpackbits(packed, count=width, bitorder="little").view(np.bool_)

    def values(self, count: int, dtype: torch.dtype) -> Values:
        """The next `count` values, in memory of their own."""
        stored = LITTLE_ENDIAN[dtype]
        block = self._take(count * stored.itemsize, f"{count} values of {dtype}")
        return np.frombuffer(block, dtype=stored).astype(stored.newbyteorder("="), copy=True)

    def end(self) -> None:
        """Refuse bytes after the last block."""
        if self._at != len(self._message):
            raise DecodeError(f"message of {len(self._message)} bytes, expected it to end after {self._at}.")

    def _take(self, size: int, what: str) -> memoryview:
        found = len(self._message) - self._at
        if found < size:
            raise DecodeError(f"message ends early: {what} need {size} bytes, found {found}.")
        self._at += size
        return self._message[self._at - size : self._at]
