"""Rows as small integers and a scale per block: the arithmetic of the quantised codecs.

The scale is the block's largest magnitude over `levels` (127 or 7), with the last bits of its
fraction, as many as levels has, cut off. So every multiple of it is exact: machines of all kinds
agree to the bit, and a second time changes nothing. The price is 2**-16 (2**-20) of the largest
value at most. A scale is 0 for a block of zeros, NaN for one that holds NaN or infinity, and else a
normal number, so that what is far below the smallest of those becomes 0.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey import draws, native
from covey.codecs import numbers
from covey.codecs.bits import Bytes, Values
from covey.codecs.blocks import PATTERNS
from covey.errors import DecodeError

Integers = NDArray[np.int8]
_AT_ONCE = 1 << 23  # values that torch rounds together


def blocks(width: int, block: int) -> int:
    """How many blocks a row has, the last one perhaps shorter."""
    return -(-width // block)


def quantise(
    row: Values,
    *,
    block: int,
    levels: int,
    key: int | None,
) -> tuple[Integers, Values]:
    """The integers and scales of one row.

    Values are rounded to nearest, ties to even, or with a key by the draws of that key.

    >>> quantise(np.array([-6.9, 0.0, 3.2]), block=2, levels=7, key=None)[0]
    array([-7,  0,  7], dtype=int8)
    """
    if native.packs():
        integers = np.empty(len(row), np.int8)
        scales = np.empty(blocks(len(row), block), row.dtype)
        native.quantise(row, integers, scales, block=block, levels=levels, key=key)
        return integers, scales
    keys = None
    if key is not None:
        signed = (key + (1 << 63)) % (1 << 64) - (1 << 63)  # the same bits
        keys = torch.tensor([signed])
    rows = numbers.to_tensor(row)[None]
    many_integers, many_scales = quantise_rows(rows, block=block, levels=levels, keys=keys)
    return many_integers[0].numpy(), numbers.to_little(many_scales[0])


def dequantise(integers: Integers, scales: Values, *, block: int) -> tuple[Values, Bytes]:
    """The values of one row, and the largest magnitude among the integers of each block."""
    row = np.empty(len(integers), scales.dtype)
    peaks = np.empty(len(scales), np.uint8)
    if native.packs():
        native.dequantise(integers, scales, row, peaks, block=block)
    elif len(row):
        row[:] = integers * np.repeat(scales, block)[: len(row)]
        peaks[:] = np.maximum.reduceat(
            np.abs(integers.astype(np.int16)), np.arange(0, len(row), block)
        )
    return row, peaks


def quantise_rows(
    rows: Tensor, *, block: int, levels: int, keys: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The integers [n, P] and scales [n, blocks] of many rows, on any device.

    They are bit for bit those of `quantise` for each row. For that a divisor is a tensor, since
    torch on a GPU multiplies by the reciprocal of a plain number.
    """
    n, width = rows.shape
    count = blocks(width, block)
    cut = torch.nn.functional.pad(rows, (0, count * block - width)).reshape(n, count, block)
    most = torch.full((), levels, dtype=rows.dtype, device=rows.device)
    size = cut.abs()
    peak = size.amax(dim=2)
    scale = (peak / most).clamp(min=torch.finfo(rows.dtype).tiny)
    scale = (scale.view(PATTERNS[rows.dtype]) & ~levels).view(rows.dtype)
    scale = scale.masked_fill(peak == 0, 0).masked_fill(~peak.isfinite(), torch.nan)
    size = (size / scale[..., None]).masked_fill(~(scale[..., None] > 0), 0)
    if keys is None:
        whole = size.round()
    else:
        local_keys = keys.to(rows.device)
        draw = draws.uniform(local_keys, torch.zeros_like(local_keys), count * block).reshape(
            cut.shape
        )
        whole = size.floor() + (draw < (size - size.floor()).double())
    whole = torch.minimum(whole, most)
    return torch.where(cut < 0, -whole, whole).to(torch.int8).reshape(n, count * block)[
        :, :width
    ], scale


def rounded(rows: Tensor, *, block: int, levels: int, keys: Tensor | None) -> Tensor:
    """Integers times scales, for many rows on any device."""
    if native.serves(rows) and native.packs():
        values = rows.contiguous().numpy()
        out = np.empty_like(values)
        for row, to, key in zip(
            values,
            out,
            [None] * len(values) if keys is None else keys.tolist(),
            strict=True,
        ):
            integers, scales = quantise(row, block=block, levels=levels, key=key)
            native.dequantise(
                integers,
                scales,
                to,
                np.empty(len(scales), np.uint8),
                block=block,
            )
        return torch.from_numpy(out)
    back = torch.empty_like(rows)
    few = max(1, _AT_ONCE // max(1, rows.shape[1]))
    for k in range(0, len(rows), few):
        part = slice(k, k + few)
        part_keys = None if keys is None else keys[part]
        whole, scale = quantise_rows(rows[part], block=block, levels=levels, keys=part_keys)
        each = scale.repeat_interleave(block, dim=1)[:, : rows.shape[1]]
        back[part] = torch.where(each.isnan(), each, whole.to(rows.dtype) * each)
    return back


def check_scales(scales: Values, levels: int) -> None:
    """Refuse scales that `quantise` does not make."""
    patterns = scales.view(f"<u{scales.itemsize}")
    limits = np.finfo(scales.dtype)
    none = (patterns == 0) | (patterns == np.array(np.nan, scales.dtype).view(patterns.dtype))
    whole = (scales >= limits.tiny) & (scales <= limits.max / levels) & (patterns & levels == 0)
    if (wrong := np.flatnonzero(~(none | whole))).size:
        scale = scales[wrong[0]]
        raise DecodeError(
            f"scale {wrong[0]} is {scale}, expected 0, the usual NaN, "
            "or a number as `quantise` makes it."
        )


def check_peaks(scales: Values, peaks: Bytes, levels: int) -> None:
    """Refuse blocks that `quantise` would have given another scale.

    Such blocks would change when they are sent again.
    """
    none = ~(scales > 0)
    fits = np.where(
        none,
        peaks == 0,
        (peaks == levels) | ((scales == np.finfo(scales.dtype).tiny) & (peaks < levels)),
    )
    if (wrong := np.flatnonzero(~fits)).size:
        k = wrong[0]
        want = 0 if none[k] else levels
        raise DecodeError(
            f"block {k} has integers up to {peaks[k]} under the scale {scales[k]}, expected {want}."
        )


def pack_nibbles(integers: Integers) -> Bytes:
    """Two to a byte, the low half first."""
    packed = np.zeros((len(integers) + 1) // 2, np.uint8)
    if native.packs():
        native.pack_nibbles(integers, packed)
    else:
        packed |= integers[::2].view(np.uint8) & 15
        packed[: len(integers) // 2] |= integers[1::2].view(np.uint8) << 4
    return packed


def unpack_nibbles(packed: Bytes, count: int) -> Integers:
    """The reverse; DecodeError where a half is left over that is not 0."""
    if count % 2 and packed[-1] >> 4:
        raise DecodeError(
            f"last byte of {count} int4 is {packed[-1]:#04x}, expected its high half to be 0."
        )
    integers = np.empty(count, np.int8)
    if native.packs():
        native.unpack_nibbles(packed, integers)
    else:
        integers[::2] = ((packed & 15) ^ 8).astype(np.int8) - 8
        integers[1::2] = ((packed[: count // 2] >> 4) ^ 8).astype(np.int8) - 8
    return integers
