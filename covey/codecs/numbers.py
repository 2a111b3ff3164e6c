"""The formats in which values travel: as they are, or in 16 bits as IEEE's half or bfloat16.

To nearest, ties to even, by way of float32 as torch converts. What is finite stays finite: beyond
the format's range it becomes the largest number there is. Infinity stays infinite, and every NaN
becomes the same one, since what torch makes of the bits of a NaN differs between its vectors and
their remainders.
"""

import ctypes
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey import native
from covey.codecs import bits
from covey.codecs.bits import Bytes, Values
from covey.errors import DecodeError

HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}
_INFINITE = {"f16": 0x7C00, "bf16": 0x7F80}
_NAN = {"f16": 0x7E00, "bf16": 0x7FC0}
_AT_ONCE = 1 << 24  # values that torch rounds together


Format = Literal["own", "f16", "bf16"]
"""The formats of values on the wire: the row's own, or 16 bits."""


def size(values: str, own: int) -> int:
    """Bytes of one value on the wire; `own` is that of the row's type."""
    return own if values == "own" else 2


def rounded(rows: Tensor, values: str) -> Tensor:
    """The rows as they arrive, on any device; the rows themselves in their own format.

    >>> rounded(torch.tensor([0.1, 1e6, -torch.inf]), "f16").tolist()
    [0.0999755859375, 65504.0, -inf]
    """
    if values == "own":
        return rows
    rows = rows.detach()
    if native.serves(rows) and native.packs():
        array = rows.contiguous().numpy()
        # numpy asks for larger pages than torch: three times as fast on a row of ten million.
        out = np.empty_like(array)
        native.blur(array, out, brain=values == "bf16")
        return torch.from_numpy(out)
    half = HALVES[values]
    largest = torch.finfo(half).max
    parts = []
    for part in torch.split(rows.reshape(-1), _AT_ONCE):
        near = part.clamp(-largest, largest).float().to(half).to(rows.dtype)
        near = torch.where(part.isinf(), part, near)
        parts.append(near.masked_fill(part.isnan(), torch.nan))
    return torch.cat(parts).reshape(rows.shape)


def bits_of(row: Values, values: str) -> Bytes:
    """A bit for each value of one row that does not arrive as 0."""
    if values == "own":
        return bits.of_values(row)
    if not native.packs():
        return bits.of_values(to_little(rounded(to_tensor(row), values)))
    packed = np.empty(bits.length(len(row)), np.uint8)
    native.nonzero_halves(row, packed, brain=values == "bf16")
    return packed


def to_wire(row: Values, values: str) -> NDArray[Any]:
    """The bytes that travel."""
    if values == "own":
        return row
    if native.packs():
        halves = np.empty(2 * len(row), np.uint8)
        native.narrow(row, halves, brain=values == "bf16")
        return halves
    words = (
        rounded(to_tensor(row), values)
        .float()
        .to(HALVES[values])
        .view(torch.int16)
        .numpy()
        .astype("<u2")
    )
    words[np.isnan(row)] = _NAN[values]
    return words


def from_wire(block: Bytes, values: str, dtype: np.dtype[Any]) -> Values:
    """The reverse of `to_wire`, read-only and at any address.

    DecodeError for a NaN that `to_wire` does not make.
    """
    if values == "own":
        return block.view(dtype)
    out = np.empty(len(block) // 2, dtype)
    if native.packs():
        strange = native.widen(block, out, brain=values == "bf16")
    else:
        words = block.view("<u2").astype(np.uint16)
        strange = int((((words & 0x7FFF) > _INFINITE[values]) & (words != _NAN[values])).sum())
        out[:] = (
            torch.from_numpy(words.view(np.int16)).view(HALVES[values]).to(torch.float64).numpy()
        )
    if strange:
        raise DecodeError(
            f"{strange} values are a NaN in other bits than {_NAN[values]:#06x}, expected none."
        )
    return out


def to_tensor(row: Values) -> Tensor:
    """One row that owns its memory, in the machine's byte order."""
    return torch.from_numpy(row.astype(row.dtype.newbyteorder("="), copy=False))


def borrowed(row: NDArray[Any]) -> Tensor:
    """One row in the memory that it lies in, which must not be written; a copy where it cannot be.

    torch warns of memory that numpy takes to be read-only, so it gets the address.
    """
    same_order = row.dtype == row.dtype.newbyteorder("=")
    if not (same_order and row.flags.aligned and row.flags.c_contiguous and row.size):
        return to_tensor(row.copy())
    memory: Any = (ctypes.c_char * row.nbytes).from_address(row.ctypes.data)
    memory.owner = row
    return torch.from_numpy(np.frombuffer(memory, row.dtype.newbyteorder("=")))


def to_little(row: Tensor) -> Values:
    """One row as little-endian numbers in main memory, one after the other."""
    values: Values = np.ascontiguousarray(row.detach().cpu().numpy())
    return values.astype(values.dtype.newbyteorder("<"), copy=False)
