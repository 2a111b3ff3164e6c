"""The positions of the set bits of a row, as the gaps between them.

A byte has seven bits of a gap, lowest first; all bytes of a gap but the last are marked. A gap is
the number of bits that are 0 since the last one, so that places grow by themselves. In a row with
one value in a hundred most gaps take one byte; from one value in eight on, the bits themselves are
shorter.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey import native
from covey.codecs import bits
from covey.codecs.bits import Bytes
from covey.errors import DecodeError

_STEPS = [1 << 7 * k for k in range(1, 5)]
"""From here on a gap takes one byte more; below 2**32 it takes five at most."""
_AT_ONCE = 1 << 24  # values whose places are looked at together


def length(packed: Bytes, width: int) -> int:
    """How many bytes the gaps before the set bits take."""
    if native.packs():
        return native.gap_length(packed, width)
    return int(_sizes(_gaps(packed, width)).sum())


def write(packed: Bytes, width: int, size: int) -> Bytes:
    """The gaps, which take `size` bytes.

    >>> write(bits.of_mask(np.arange(300) % 200 == 199), 300, 2)
    array([199,   1], dtype=uint8)
    """
    out = np.zeros(size, np.uint8)
    if native.packs():
        native.write_gaps(packed, width, out)
        return out
    distances = _gaps(packed, width)
    sizes = _sizes(distances)
    start = np.cumsum(sizes) - sizes
    for k in range(int(sizes.max(initial=0))):
        longer = sizes > k
        out[start[longer] + k] = distances[longer] >> 7 * k & 127 | (sizes[longer] > k + 1) << 7
    return out


def read(block: Bytes, sent: int, width: int) -> Bytes:
    """The bits of a block of gaps.

    DecodeError unless the block is `sent` gaps within the width, each as short as it can be.
    """
    packed = np.zeros(bits.length(width), np.uint8)
    if native.packs() and native.read_gaps(block, sent, packed, width):
        return packed
    positions = places(block, sent, width)  # finds what is wrong, if the kernel has not liked it
    packed[:] = 0
    np.bitwise_or.at(packed, positions >> 3, (1 << (positions & 7)).astype(np.uint8))
    return packed


def lengths(sent: Tensor) -> Tensor:
    """The number of bytes that the gaps of each row take, `[n]` int64.

    A gap precedes each value that is not 0; `sent` is `[n, P]`, on any device.
    """
    n, width = sent.shape
    if n > 1 and sent.stride(0) == 0:  # one mask for all of them
        return lengths(sent[:1]).expand(n)
    if sent.device.type == "cpu" and native.packs():
        pack = bits.of_mask if sent.dtype == torch.bool else bits.of_values
        return torch.tensor(
            [native.gap_length(pack(row), width) for row in sent.contiguous().numpy()],
            dtype=torch.int64,
        )
    out = torch.zeros(n, dtype=torch.int64, device=sent.device)
    few = max(1, _AT_ONCE // max(1, width))
    column = torch.arange(width, device=sent.device)
    for k in range(0, n if width else 0, few):
        yes = sent[k : k + few] != 0
        last = column.expand(yes.shape).masked_fill(~yes, -1).cummax(dim=1).values
        gap = column - 1 - torch.nn.functional.pad(last[:, :-1], (1, 0), value=-1)
        for step in (0, *_STEPS):
            out[k : k + few] += ((gap >= step) & yes).sum(dim=1)
    return out


def _gaps(packed: Bytes, width: int) -> NDArray[np.int64]:
    return np.diff(np.flatnonzero(bits.unpack(packed, width)), prepend=-1) - 1


def _sizes(gaps: NDArray[np.int64]) -> NDArray[np.int64]:
    return 1 + np.searchsorted(_STEPS, gaps, side="right")


def places(block: Bytes, sent: int, width: int) -> NDArray[np.int64]:
    """The positions of the bits, in memory that grows with `block`, not with the width.

    Errors are those of `read`.
    """
    ends = np.flatnonzero(block < 128)
    if len(ends) != sent or (len(block) and block[-1] > 127):
        raise DecodeError(
            f"{len(block)} bytes hold {len(ends)} whole gaps, "
            f"expected {sent} and nothing after them."
        )
    sizes = np.diff(ends, prepend=-1)
    if (long := np.flatnonzero((sizes > 5) | ((sizes > 1) & (block[ends] == 0)))).size:
        raise DecodeError(
            f"gap {long[0]} takes {sizes[long[0]]} bytes, expected it in the fewest that hold it."
        )
    start = ends + 1 - sizes
    distances = np.zeros(sent, np.int64)
    for k in range(int(sizes.max(initial=0))):
        longer = sizes > k
        distances[longer] |= (block[start[longer] + k].astype(np.int64) & 127) << 7 * k
    # Before they are added up, which might be too much for 64 bits.
    if sent and int(distances.max()) >= width:
        raise DecodeError(
            f"a gap of {distances.max()}, expected less than the row's {width} values."
        )
    positions = np.cumsum(distances + 1) - 1
    if sent and positions[-1] >= width:
        last = f"the gaps end at place {positions[-1]}"
        raise DecodeError(f"{last}, expected all of them within {width} values.")
    return positions
