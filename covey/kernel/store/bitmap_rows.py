"""Rows without their zeros: a bit for every number, then the numbers that are not 0.

Such rows differ in length. A cell has room for a row of up to so many numbers, and there are cells
of several sizes. Bits are kept as they are: only +0 counts as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_FEWEST = 16
"""Numbers in the smallest cell."""
_ALIGNED = 8
"""Bytes of which every part of a cell is a multiple."""
Array = npt.NDArray[np.generic]


def capacities(width: int) -> list[int]:
    """How many numbers the cells for rows of this width hold, the largest first.

    >>> capacities(64)
    [64, 48, 36, 27, 20, 16]
    """
    out = [width]
    while out[-1] > _FEWEST:
        out.append(max(_FEWEST, out[-1] * 3 // 4))
    return out


def kinds(rows: Tensor) -> Tensor:
    """The number of the smallest cell that each row fits into, int64 [n]."""
    counts = torch.from_numpy(_nonzero(rows.numpy()).sum(1))
    rising = torch.tensor(capacities(rows.shape[1])[::-1])
    return len(rising) - 1 - torch.searchsorted(rising, counts)


@dataclass(frozen=True)
class CellLayout:
    """The layout of one kind of cell for rows of `width` numbers of a type."""

    width: int
    kind: int
    dtype: torch.dtype

    @property
    def capacity(self) -> int:
        """How many numbers it holds."""
        return capacities(self.width)[self.kind]

    @property
    def _bits(self) -> int:
        """The bytes of the bits."""
        return _aligned((self.width + 7) // 8)

    @property
    def bytes(self) -> int:
        """The bytes of a cell."""
        return self._bits + _aligned(self.capacity * self.dtype.itemsize)

    def encode(self, rows: Tensor) -> Tensor:
        """Rows [n, width] as cells, uint8 [n, bytes]."""
        numbers = rows.numpy()
        mask = _nonzero(numbers)
        packed = np.packbits(mask, axis=1)
        cells = np.zeros((len(numbers), self.bytes), dtype=np.uint8)
        cells[:, : packed.shape[1]] = packed
        values = np.zeros((len(numbers), self.capacity), dtype=numbers.dtype)
        values[self._used(mask)] = numbers[mask]
        raw = values.view(np.uint8)
        cells[:, self._bits : self._bits + raw.shape[1]] = raw
        return torch.from_numpy(cells)

    def decode(self, cells: Tensor) -> Tensor:
        """The rows in cells."""
        packed = cells.numpy()
        bits = np.unpackbits(packed[:, : self._bits], axis=1, count=self.width)
        mask = bits.view(np.bool_)
        stop = self._bits + self.capacity * self.dtype.itemsize
        raw = np.ascontiguousarray(packed[:, self._bits : stop])
        out = torch.zeros(len(packed), self.width, dtype=self.dtype)
        numbers = out.numpy()
        numbers[mask] = raw.view(numbers.dtype)[self._used(mask)]
        return out

    def _used(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which places for numbers are taken, [n, capacity]."""
        counts = mask.sum(1)
        used: npt.NDArray[np.bool_] = np.arange(self.capacity) < counts[:, None]
        return used


def _nonzero(numbers: Array) -> npt.NDArray[np.bool_]:
    """Which numbers have any bit; -0 has one."""
    whole = {4: np.int32, 8: np.int64}[numbers.dtype.itemsize]
    mask: npt.NDArray[np.bool_] = np.ascontiguousarray(numbers).view(whole) != 0
    return mask


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
